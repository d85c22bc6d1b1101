"""`dlog scrub`: read and verify everything that a bookie stores."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, plural, visible
from ..framework.progress import show_progress

POLL_S = 0.5


@click.command(
    cls=CliCommand,
    examples="""
    dlog scrub b3                                      start; the bookie continues to serve clients
    dlog scrub b3 --wait --timeout 3600                wait until all data is verified and repaired
    """,
)
@click.argument("bookie")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait, up to --timeout: until all is verified and repaired (otherwise exit code 6).",
)
@common
def command(settings: Settings, bookie: str, wait: bool) -> None:
    """Read and verify all data of a bookie, and repair corrupt entries.

    BOOKIE is a name, an ID, or the first characters of an ID. Each bookie also does this automatically every
    two weeks. Corrupt entries are repaired from the copies on other bookies. Entries of open segments are
    repaired when the segment is closed. A bookie that is offline starts the verification when it is up again.
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
                is_pending = await await_answer(
                    settings,
                    "reading the progress",
                    lambda: scrubbing.is_scrub_pending(metadata, bookie_id),
                )
                corruption = await await_answer(
                    settings,
                    "listing its corrupt entries",
                    lambda: corruption_of(metadata, bookie_id),
                )
                # The request of a bookie that is offline stays stored until the bookie starts.
                is_reading = is_pending and corruption is not None
                is_done = (
                    not is_pending and corruption is not None and not corruption["corrupt_ledgers"]
                )
                if is_done or not wait or trio.current_time() + POLL_S >= deadline:
                    break
                await trio.sleep(POLL_S)
        output = {"bookie": bookie_id, "reading": is_reading, "done": is_done, **(corruption or {})}
        return visible(names.name(bookie_id)), output

    with show_progress(settings, lambda s: f"verifying bookie {bookie}: {s:.0f} s"):
        bookie_name, result = run(work)
    if settings.json:
        emit(result)
    elif result["reading"]:
        print(f"bookie {bookie_name} is verifying all its data")
    elif "corrupt_ledgers" not in result:
        print(f"bookie {bookie_name} is offline: verification starts when it is up")
    else:
        print(
            f"bookie {bookie_name} has verified all its data:"
            f" {plural(result['repaired_entries'], 'entry', 'entries')} repaired since its start,"
            f" {plural(result['corrupt_ledgers'], 'ledger')} with corrupt entries left"
        )
    if wait and not result["done"]:
        raise ExitWithCode(NO)
