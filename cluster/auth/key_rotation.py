"""Rotate the secrets of capabilities and passes, and find bookies that still use older ones.

A bookie receives a notice of new secrets through its watches, and requests them from the metadata leader.
Credentials of the previous generation are accepted until the next rotation. So an operator who rotates twice,
and waits in between, invalidates all earlier credentials without a failed call of an authorized client.
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
    """Rotate the secrets, and wait until each running bookie uses the new generation.

    Errors after the rotation are not raised. Otherwise, the caller might rotate a second time.

    Args:
        metadata: The metadata client.
        pool: The connections to the bookies.
        timeout_s: How long to wait for the bookies.
        on_waiting: Called with the bookies that use older secrets, when they change.

    Returns:
        The number of the new generation, and the bookies that did not use it in time.

    Raises:
        NotAllowed: The caller has no right to rotate.
        OutcomeUnknown: The request may or may not have been executed.
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
    """Return the bookies that do not use a generation yet, each with the reason."""
    # A bookie that is down requests the secrets before it serves any client.
    rows = [row for row in await bookies(metadata, metadata.listener) if row["address"] is not None]
    reasons: list[str] = [""] * len(rows)

    async def ask(number: int, bookie: str) -> None:
        client = pool.get(bookie)
        reasons[number] = (
            "no connection" if client is None else await _behind_reason(client, generation)
        )

    async with (
        trio.open_nursery() as nursery
    ):  # concurrently, so that ten unresponsive ones take `QUERY_S` together
        for number, row in enumerate(rows):
            nursery.start_soon(ask, number, row["id"])
    return [
        f"{row['label']} ({reason})" for row, reason in zip(rows, reasons, strict=True) if reason
    ]


async def _behind_reason(client: BookieClient, generation: int) -> str:
    """Return why a bookie does not use the generation; "" if it does."""
    try:
        bookie_generation = (await client.info(QUERY_S)).get("trust_generation")
    except DistributedLogError as error:
        return str(error)
    if isinstance(bookie_generation, int) and bookie_generation >= generation:
        return ""
    return f"uses generation {bookie_generation if isinstance(bookie_generation, int) else '?'}"
