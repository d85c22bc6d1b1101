"""`dlog scrub`: have a bookie read all that it holds."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, plural, visible

POLL_S = 0.5


@click.command(
    cls=CliCommand,
    examples="""
    dlog scrub b3                                      now, beside its work
    dlog scrub b3 --wait --timeout 3600                until all is read, and what rotted is healed
    """,
)
@click.argument("bookie")
@click.option(
    "--wait", is_flag=True, help="Until it is done and healed, up to --timeout (exit code 6)."
)
@common
def command(settings: Settings, bookie: str, wait: bool) -> None:
    """Have a bookie read all that it holds, and heal what does not read as it was written.

    BOOKIE is a name, an id, or the beginning of one. Each does so by itself once in two weeks. What rotted
    is healed from the copies of other bookies; entries of logs that are being written follow when their
    segment is closed. A bookie that is down begins when it is up.
    """
    import trio

    from ...cluster.node import scrub_requests as scrubbing
    from ...cluster.repair import decommission as leaving
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.cluster_overview import corruption_of
    from ..connection.cluster_connection import await_answer, quorum, run

    async def work() -> tuple[str, dict[str, Any]]:
        deadline = trio.current_time() + settings.timeout_s
        async with quorum(settings) as metadata:
            bookie_id = await await_answer(
                settings, "finding the bookie", lambda: leaving.find_bookie(metadata, bookie)
            )
            names = await await_answer(settings, "the names", lambda: bookie_names(metadata))
            await await_answer(
                settings, "asking", lambda: scrubbing.request_scrub(metadata, bookie_id)
            )
            while True:
                is_reading = await await_answer(
                    settings,
                    "how far it is",
                    lambda: scrubbing.is_scrub_pending(metadata, bookie_id),
                )
                corruption = await await_answer(
                    settings, "its rot", lambda: corruption_of(metadata, bookie_id)
                )
                is_done = (
                    not is_reading and corruption is not None and not corruption["rotten_ledgers"]
                )
                if is_done or not wait or trio.current_time() + POLL_S >= deadline:
                    break
                await trio.sleep(POLL_S)
        output = {"bookie": bookie_id, "reading": is_reading, "done": is_done, **(corruption or {})}
        return visible(names.name(bookie_id)), output

    bookie_name, result = run(work)
    if settings.json:
        emit(result)
    elif result["reading"]:
        print(f"bookie {bookie_name} reads all that it holds")
    elif "rotten_ledgers" not in result:
        print(f"bookie {bookie_name} is down: it begins when it is up")
    else:
        print(
            f"bookie {bookie_name} has read all: {plural(result['healed_entries'], 'entry', 'entries')} "
            "healed since"
            f" its start, {plural(result['rotten_ledgers'], 'ledger')} with rotten entries left"
        )
    if wait and not result["done"]:
        raise ExitWithCode(NO)
