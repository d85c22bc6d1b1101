"""`dlog repair pause`, `resume` and `config`: the stored repair settings of the cluster.

They are words of `dlog repair`, whose first argument is otherwise a ledger or a log. A log with such a name
is written ./pause.
"""

from typing import Any

import click

from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit

LOST_AFTER = "lost_after_s"


@click.command(
    cls=CliCommand,
    examples="""
    dlog repair pause --for 2h
    """,
)
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    required=True,
    help="Duration of the pause, such as 30m or 2h; at most 30 days.",
)
@common
def pause(settings: Settings, duration: str) -> None:
    """Pause the repair of lost bookies for a time.

    During the pause, no data of offline or draining bookies is copied to other bookies.
    Ledgers that lack copies keep lacking them. Copies in progress are finished, and missing entries of
    running bookies are still copied. Repair resumes after this time, or with "dlog repair resume". dlog
    status shows the pause. Bookies of older versions ignore it.

    The end is computed with the clock of this machine, because no reply of a node has the time. The repair
    leader compares it with its own clock. If they differ, the pause is longer or shorter by the difference.
    """
    from ...runtime.declarations.options import parse_duration
    from ...runtime.machine import client_host

    pause_s = parse_duration(duration)
    if pause_s is None:
        raise click.UsageError(f"--for {duration!r} is not a duration with its unit, such as 2h")
    now_ms = client_host("dlog").wall_ms()
    _change(settings, lambda stored: stored.with_pause(now_ms, pause_s), now_ms)


@click.command(cls=CliCommand, examples="dlog repair resume")
@common
def resume(settings: Settings) -> None:
    """End a pause of repair."""
    from dataclasses import replace

    _change(settings, lambda stored: replace(stored, paused_until_ms=0), 0)


@click.command(
    cls=CliCommand,
    examples="""
    dlog repair config
    dlog repair config set lost_after_s=30m            for a planned outage of bookies
    dlog repair config unset lost_after_s              use the option of the bookies again
    """,
)
@click.argument("words", nargs=-1, metavar="[set lost_after_s=TIME | unset lost_after_s]")
@common
def config(settings: Settings, words: tuple[str, ...]) -> None:
    """Show or change the delay after which a bookie counts as lost, for the whole running cluster.

    The stored delay replaces the option lost_after_s of the bookies, within seconds and without a restart.
    Bookies of older versions ignore it.
    """
    from ...runtime.declarations.options import parse_option
    from ...runtime.machine import client_host
    from ..server.node_settings import BOOKIE_NODE_OPTIONS

    now_ms = client_host("dlog").wall_ms()
    if not words:
        _change(settings, None, now_ms)
    elif words == ("unset", LOST_AFTER):
        _change(settings, lambda stored: stored.with_lost_after(None), now_ms)
    elif len(words) == 2 and words[0] == "set" and words[1].startswith(f"{LOST_AFTER}="):
        value = parse_option(BOOKIE_NODE_OPTIONS[LOST_AFTER], words[1].partition("=")[2])
        if type(value) not in (int, float):
            raise click.UsageError(f"{words[1]!r} is not a duration such as {LOST_AFTER}=30m")
        _change(settings, lambda stored: stored.with_lost_after(float(value)), now_ms)
    else:
        raise click.UsageError(f"invalid change: use set {LOST_AFTER}=TIME or unset {LOST_AFTER}")


def _change(settings: Settings, change: Any, now_ms: int) -> None:
    """Change the repair settings, if there is a change, and print them."""
    from ...cluster.coordination.repair_settings import change_repair_settings, read_repair_settings
    from ..connection.cluster_connection import quorum, run_call

    def call(metadata: Any) -> Any:
        if change is None:
            return read_repair_settings(metadata)
        return change_repair_settings(metadata, change)

    stored = run_call(settings, "the repair settings", call, quorum)
    end = stored.pause_end if stored.is_paused(now_ms) else ""
    if settings.json:
        emit({"paused_until": end or None, LOST_AFTER: stored.lost_after_s})
        return
    delay = stored.lost_after_s
    print(f"repair of lost bookies: {f'paused until {end}' if end else 'not paused'}")
    print(
        f"{LOST_AFTER}: {'not stored, the option of the bookies' if delay is None else f'{delay:g}'}"
    )
