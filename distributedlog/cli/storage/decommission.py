"""`dlog decommission`: take a bookie out of the cluster for good."""

from dataclasses import asdict
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common, confirmed, force_option
from ..framework.output import RateEstimate, emit, plural, visible

POLL_S = 1.0
NAMED_MAX = 10
"""Ledgers of which it is said why they are left."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog decommission b3                               ask, and show how far it is
    dlog decommission b3 --wait --timeout 3600         until no ledger needs it any more
    dlog decommission b3 --by b7                       and all that it holds goes to b7, where it can
    dlog decommission b3 --cancel                      it may stay after all
    """,
)
@click.argument("bookie")
@click.option("--wait", is_flag=True, help="Until it is drained, up to --timeout (exit code 6).")
@click.option("--cancel", is_flag=True, help="It need not leave.")
@click.option("--by", default="", metavar="BOOKIE", help="Who takes its place, where it can.")
@force_option
@common
def command(
    settings: Settings, bookie: str, wait: bool, cancel: bool, by: str, force: bool
) -> None:
    """Store what a bookie holds elsewhere, and forget it.

    BOOKIE is a name, an id, or the beginning of one. A bookie that runs takes no new entries from now on
    and is a source of the copies; one that is lost need not be there. To replace a bookie, start a new
    one with an empty directory first. Ledgers that are being written follow when they are closed: their
    writers roll off it within seconds, and what nobody writes is closed after half a minute. Each of the
    first ten ledgers that are left is told with what it waits for.

    If no log could be created without the bookie, this is asked, or refused without a terminal.
    """
    import trio

    from ...cluster.repair import decommission as leaving
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.safe_to_stop import decommission
    from ..connection.cluster_connection import answer, quorum, run

    if cancel and (wait or by):
        raise click.UsageError("--cancel excludes --wait and --by")

    async def work(forced: bool) -> tuple[Any, dict[str, Any]]:
        began = trio.current_time()
        async with quorum(settings) as metadata:
            bookie_id = await answer(
                settings, "finding the bookie", lambda: leaving.find_bookie(metadata, bookie)
            )
            names = await answer(settings, "the names", lambda: bookie_names(metadata))
            successor = by and await answer(
                settings, "finding the other", lambda: leaving.find_bookie(metadata, by)
            )

            async def change() -> None:
                if cancel:
                    await leaving.ask_to_stay(metadata, bookie_id)
                else:
                    await decommission(metadata, bookie_id, by=successor, force=forced)

            await answer(settings, "asking", change)
            deadline = began + settings.timeout_s if wait else began
            state = await _drained(settings, metadata, bookie_id, names, deadline)
        return names, {**asdict(state), "drained": state.drained}

    names, found = confirmed(
        f"decommission {bookie}", force, lambda forced: run(lambda: work(forced))
    )
    _show(settings, names, found, cancel)
    if wait and not found["drained"]:
        raise ExitWithCode(NO)


async def _drained(
    settings: Settings, metadata: Any, bookie_id: str, names: Any, deadline: float
) -> Any:
    """Wait until the deadline, or until no ledger needs the bookie; return the last state of its drain."""
    import trio

    from ...cluster.repair import decommission as leaving
    from ..connection.cluster_connection import answer

    left, said, pace = -1, [""], RateEstimate()
    while True:
        state = await answer(
            settings,
            "how far it is",
            lambda: leaving.how_far(metadata, bookie_id, named=NAMED_MAX),
        )
        if state.drained or trio.current_time() + POLL_S >= deadline:
            return state
        lines = [f"ledger {one.ledger}: {names.in_words(one.why)}" for one in state.waiting]
        if state.ledgers != left or lines != said:
            left, said = state.ledgers, lines
            told = pace.told(trio.current_time(), left)
            settings.note("\n".join([f"{plural(left, 'ledger')} left{told}", *lines]))
        await trio.sleep(POLL_S)


def _show(settings: Settings, names: Any, found: dict[str, Any], cancel: bool) -> None:
    """Print how far the drain of a bookie is."""
    who = visible(names.name(found["bookie"]))
    if settings.json:
        emit(found)
    elif cancel:
        print(f"bookie {who} stays; {plural(found['ledgers'], 'ledger names', 'ledgers name')} it")
    elif found["drained"]:
        then = "stop it now" if found["running"] else "it is removed from the list within seconds"
        print(f"no ledger needs bookie {who} any more: {then}")
    else:
        name_it = plural(found["ledgers"], "ledger names", "ledgers name")
        print(f"bookie {who} is to leave: {name_it} it still")
        for one in found["waiting"]:
            print(f"ledger {one['ledger']}: {visible(names.in_words(one['why']))}")
