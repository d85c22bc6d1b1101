"""New secrets for capabilities and passes, and which bookies still check by older ones.

A bookie hears at once that there are new ones, by what it watches, and asks the leader. What was made with
the generation before the newest is taken until the next rotation; so who rotates twice, and waits in between,
has ended all that was given before, and no call of anybody who may still ask has failed.
"""

from collections.abc import Callable, Sequence

import trio

from ...bookie.client.bookie_client import BookieClient
from ...ledger.placement.bookie_pool import BookiePool
from ...metadata.client.metadata_client import MetadataClient
from ...runtime.interfaces.errors import DistributedLogError
from ..status.cluster_overview import bookies

QUERY_S = 2.0
POLL_S = 0.5


async def rotate_secrets(
    metadata: MetadataClient,
    pool: BookiePool,
    *,
    timeout_s: float,
    on_waiting: Callable[[Sequence[str]], None],
) -> tuple[int, list[str]]:
    """Rotate, and wait until each live bookie checks by it: its number, and whom it waited for in vain.

    ``note`` is told of those that are waited for, when they change. Raises `NotAllowed`, `OutcomeUnknown`;
    nothing once it is done, or who asks would do it a second time.
    """
    generation = await metadata.rotate_secrets("ledgers")
    deadline = trio.current_time() + timeout_s
    reported: list[str] = []
    while True:
        try:
            bookies_waited_for = await bookies_behind(metadata, pool, generation)
        except DistributedLogError as error:
            bookies_waited_for = [f"all bookies ({error})"]
        if not bookies_waited_for or trio.current_time() + POLL_S >= deadline:
            return generation, bookies_waited_for
        if bookies_waited_for != reported:
            reported = bookies_waited_for
            on_waiting(bookies_waited_for)
        await trio.sleep(POLL_S)


async def bookies_behind(metadata: MetadataClient, pool: BookiePool, generation: int) -> list[str]:
    """The bookies that do not check by that generation yet, each with what is known of it."""
    # One that is down asks before it serves anybody.
    rows = [row for row in await bookies(metadata, metadata.listener) if row["address"] is not None]
    reasons: list[str] = [""] * len(rows)

    async def ask(number: int, bookie: str) -> None:
        client = pool.get(bookie)
        reasons[number] = (
            "no connection" if client is None else await _behind_reason(client, generation)
        )

    async with (
        trio.open_nursery() as nursery
    ):  # all at once: one that hangs costs `QUERY_S`, and so do ten
        for number, row in enumerate(rows):
            nursery.start_soon(ask, number, row["id"])
    return [
        f"{row['label']} ({reason})" for row, reason in zip(rows, reasons, strict=True) if reason
    ]


async def _behind_reason(client: BookieClient, generation: int) -> str:
    """ "": it checks by that one."""
    try:
        bookie_generation = (await client.info(QUERY_S)).get("trust_generation")
    except DistributedLogError as error:
        return str(error)
    if isinstance(bookie_generation, int) and bookie_generation >= generation:
        return ""
    return (
        f"checks by generation {bookie_generation if isinstance(bookie_generation, int) else '?'}"
    )
