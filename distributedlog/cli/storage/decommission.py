"""`dlog decommission`: remove a bookie from the cluster permanently."""

from dataclasses import asdict
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common, force_option, run_confirmed
from ..framework.output import RateEstimate, emit, plural, visible
from ..framework.progress import show_progress

POLL_S = 1.0
SHOWN_LEDGERS_MAX = 10
"""Maximum number of remaining ledgers that are listed with their reasons."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog decommission b3                               start, and show the progress
    dlog decommission b3 --wait --timeout 3600         wait until no ledger needs the bookie
    dlog decommission b3 --target b7                   move its data to b7 if possible
    dlog decommission b3 --cancel                      cancel the decommission
    """,
)
@click.argument("bookie")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait, up to --timeout: until the bookie is empty (otherwise exit code 6).",
)
@click.option("--cancel", is_flag=True, help="Cancel the decommission.")
@click.option(
    "--target",
    default="",
    metavar="BOOKIE",
    help="Destination: preferred for the data, by name or ID.",
)
@force_option
@common
def command(
    settings: Settings, bookie: str, wait: bool, cancel: bool, target: str, force: bool
) -> None:
    """Move all data off a bookie and remove it from the cluster.

    BOOKIE is a name, an ID, or the first characters of an ID. A running bookie becomes read-only, and other
    bookies copy its data. If the bookie is lost, the copies come from the remaining bookies. To replace a
    bookie, start a new one with an empty directory first.

    Ledgers that are still open follow when they are closed. Writers start a new segment within seconds.
    Segments without a writer are closed after about 30 seconds. The output lists up to ten remaining ledgers,
    with the reason for each.

    If no log could be created without the bookie, the command asks for confirmation. Without a terminal it
    then fails.
    """
    import trio

    from ...cluster.repair import decommission as leaving
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.safe_to_stop import decommission
    from ..connection.cluster_connection import await_answer, quorum, run

    if cancel and (wait or target):
        raise click.UsageError("--cancel excludes --wait and --target")

    async def work(is_forced: bool) -> tuple[Any, dict[str, Any]]:
        started_at = trio.current_time()
        async with quorum(settings) as metadata:
            bookie_id = await await_answer(
                settings, "finding the bookie", lambda: leaving.find_bookie(metadata, bookie)
            )
            names = await await_answer(settings, "the names", lambda: bookie_names(metadata))
            successor = target and await await_answer(
                settings, "finding the other", lambda: leaving.find_bookie(metadata, target)
            )

            async def change() -> None:
                if cancel:
                    await leaving.cancel_decommission(metadata, bookie_id)
                else:
                    await decommission(metadata, bookie_id, successor=successor, force=is_forced)

            await await_answer(settings, "asking", change)
            deadline = started_at + settings.timeout_s if wait else started_at
            state = await _wait_drained(settings, metadata, bookie_id, names, deadline)
        return names, {**asdict(state), "drained": state.drained}

    names, result = run_confirmed(
        f"decommission {bookie}", force, lambda forced: run(lambda: work(forced))
    )
    _print_progress(settings, names, result, cancel)
    if wait and not result["drained"]:
        raise ExitWithCode(NO)


async def _wait_drained(
    settings: Settings, metadata: Any, bookie_id: str, names: Any, deadline: float
) -> Any:
    """Wait until the deadline or until no ledger needs the bookie; return the last state of its drain.

    The progress line has the number of remaining ledgers. Reasons of waiting ledgers are printed when they
    change.
    """
    import trio

    from ...cluster.repair import decommission as leaving
    from ..connection.cluster_connection import await_answer

    shown_lines: list[str] = []
    rate_estimate, progress_text = RateEstimate(), "reading the state of the bookie"
    with show_progress(settings, lambda _: progress_text) as progress:
        while True:
            state = await await_answer(
                settings,
                "the state of the bookie",
                lambda: leaving.decommission_status(
                    metadata, bookie_id, waiting_max=SHOWN_LEDGERS_MAX
                ),
            )
            if state.drained or trio.current_time() + POLL_S >= deadline:
                return state
            estimate = rate_estimate.describe(trio.current_time(), state.ledgers)
            progress_text = f"{plural(state.ledgers, 'ledger')} left{estimate}"
            lines = [
                f"ledger {waiting_ledger.ledger}: {names.with_names(waiting_ledger.why)}"
                for waiting_ledger in state.waiting
            ]
            if lines != shown_lines:
                shown_lines = lines
                progress.note("\n".join(lines))
            await trio.sleep(POLL_S)


def _print_progress(settings: Settings, names: Any, result: dict[str, Any], cancel: bool) -> None:
    """Print the state of a bookie's drain."""
    bookie_name = visible(names.name(result["bookie"]))
    if settings.json:
        emit(result)
    elif cancel:
        print(
            f"bookie {bookie_name} stays; {plural(result['ledgers'], 'ledger needs', 'ledgers need')} it"
        )
    elif result["drained"]:
        next_step = (
            "stop it now" if result["running"] else "it is removed from the list within seconds"
        )
        print(f"no ledger needs bookie {bookie_name} any more: {next_step}")
    else:
        name_it = plural(result["ledgers"], "ledger still needs", "ledgers still need")
        print(f"bookie {bookie_name} is draining: {name_it} it")
        for waiting_ledger in result["waiting"]:
            print(
                f"ledger {waiting_ledger['ledger']}: {visible(names.with_names(waiting_ledger['why']))}"
            )
