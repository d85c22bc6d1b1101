"""`dlog repair`: copy missing replicas now."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import (
    CommandWithSubcommands,
    Settings,
    common,
    force_option,
    run_confirmed,
)
from ..framework.output import emit, plural, size, visible
from ..framework.progress import show_progress
from . import repair_control

RETRY_S = 2.0
SHOWN_LEDGERS_MAX = 10


@click.command(
    cls=CommandWithSubcommands,
    subcommands=(repair_control.pause, repair_control.resume, repair_control.config),
    examples="""
    dlog repair                                        all ledgers that are known to lack copies
    dlog repair 1042                                   one ledger; the entry lists of its bookies are compared
    dlog repair numbers                                the ledgers of a log
    dlog repair --bookie b3                            all ledgers on b3
    dlog repair --all --throttle 100                   check every ledger; copy at most 100 MiB/s
    dlog repair --all --fix-placement                  also move copies that violate the placement policy
    dlog repair --wait --timeout 3600                  retry until no copy is missing
    dlog repair pause --for 2h                         pause automatic repair of lost bookies
    dlog repair resume                                 end the pause
    dlog repair config set lost_after_s=30m            delay before a bookie counts as lost
    """,
)
@click.argument("target", required=False, metavar="[LEDGER|LOG]")
@click.option(
    "--bookie",
    metavar="BOOKIE",
    help="Only ledgers on this bookie: a name, an ID, or the start of an ID.",
)
@click.option(
    "--all", "whole", is_flag=True, help="Check every ledger, not only those known to lack copies."
)
@click.option(
    "--throttle",
    type=click.FloatRange(min=0, min_open=True),
    default=32.0,
    show_default=True,
    metavar="MIB_S",
    help="Maximum rate of copying, in MiB per second.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait, up to --timeout: until no copy is missing (otherwise exit code 6).",
)
@click.option(
    "--fix-placement",
    is_flag=True,
    help="Also move copies that violate the placement policy, where possible.",
)
@force_option
@common
def command(
    settings: Settings,
    target: str | None,
    bookie: str | None,
    whole: bool,
    throttle: float,
    wait: bool,
    fix_placement: bool,
    force: bool,
) -> None:
    """Copy missing replicas now, and show the progress.

    Ledgers with the fewest copies come first. Data of an offline bookie is copied to other bookies at
    once, without the delay lost_after_s (five minutes by default). A number is a ledger ID. Write ./7 for a
    log named 7, and ./pause for a log with the name of a subcommand: pause, resume and config.

    The command ends with exit code 0 when all copies exist. If it can make no more progress, it prints the
    reason for each remaining ledger and ends with exit code 6. All copied data passes through this process,
    so run it near the bookies. You can interrupt and repeat it. Automatic repair continues at the same time.
    """
    import trio

    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import await_answer, namespace, run

    if sum((target is not None, bookie is not None, whole)) > 1:
        raise click.UsageError("use only one of LEDGER or LOG, --bookie, --all")

    async def work(is_forced: bool) -> tuple[Any, dict[str, Any]]:
        started_at = trio.current_time()
        async with namespace(settings) as logs:
            repairer = _make_repairer(logs, throttle, fix_placement)
            deadline = started_at + settings.timeout_s if wait else None
            with show_progress(settings, lambda s: _progress_text(repairer, s)):
                names = await await_answer(
                    settings, "the names", lambda: bookie_names(logs.metadata)
                )
                ledger_ids = await await_answer(
                    settings,
                    "listing the ledgers to repair",
                    lambda: _ledgers_to_repair(logs, target, bookie, whole),
                )
                complete_count, incomplete = await _run_passes(
                    settings, repairer, ledger_ids, names, is_forced, deadline
                )
        seconds = trio.current_time() - started_at
        return names, _result_values(repairer, complete_count, incomplete, seconds)

    names, result = run_confirmed("repair anyway", force, lambda forced: run(lambda: work(forced)))
    _print_result(settings, names, result)
    if result["left"]:
        raise ExitWithCode(NO)


def _result_values(
    repairer: Any, complete_count: int, incomplete: dict[int, str], seconds: float
) -> dict[str, Any]:
    """Return the values that `dlog repair` prints."""
    return {
        "ledgers": complete_count + len(incomplete),
        "full": complete_count,
        "copied_entries": repairer.copier.copied_entries,
        "copied_bytes": repairer.copier.copied_bytes,
        "seconds": round(seconds, 3),
        "left": [
            {"ledger": ledger_id, "why": reason} for ledger_id, reason in sorted(incomplete.items())
        ],
    }


def _make_repairer(logs: Any, throttle: float, fix_placement: bool) -> Any:
    """Return a `ManualRepair` over the connections of these logs, limited to ``throttle`` MiB per second."""
    from ...cluster.repair import manual_repair as repair_now
    from ...runtime.machine import real_host

    pool = logs.ledgers.pool
    return repair_now.ManualRepair(
        logs.metadata,
        pool,
        pool.candidates,
        real_host("dlog repair").random.random,
        bytes_per_s=max(1, int(throttle * 1024 * 1024)),
        policy=pool.required_placement if fix_placement else lambda: pool.placement,
        labels=pool.labels,
        move_apart=fix_placement,
    )


async def _ledgers_to_repair(
    logs: Any, target: str | None, bookie: str | None, is_all: bool
) -> list[int]:
    """Return the ledger IDs that the command line specifies. Raises `NoSuchLedger` or `LogNotFound`."""
    from ...cluster.repair import manual_repair as repair_now
    from ...cluster.repair.decommission import find_bookie
    from ...ledger.model import ledger_keys as keys
    from ...runtime.interfaces.errors import NoSuchLedger

    if target is not None and target.isdecimal():
        if await logs.metadata.get(keys.ledger_key(int(target))) is None:
            raise NoSuchLedger(f"ledger {target} does not exist")
        return [int(target)]
    if target is not None:
        return await _ledgers_of_log(logs, target.removeprefix("./"))
    if bookie is not None:
        return await repair_now.ledgers_of_bookie(
            logs.metadata, await find_bookie(logs.metadata, bookie)
        )
    if is_all:
        return await repair_now.all_ledgers(logs.metadata)
    return await repair_now.under_replicated_ledgers(logs.metadata)


async def _run_passes(
    settings: Settings,
    repairer: Any,
    ledger_ids: list[int],
    names: Any,
    is_forced: bool,
    deadline: float | None,
) -> tuple[int, dict[int, str]]:
    """Repair until all ledgers are complete, a pass makes no progress, or the deadline passes.

    With a deadline, passes without progress are repeated until then. Returns the number of complete ledgers,
    and the reason for each other one.
    """
    import trio

    from ..connection.cluster_connection import await_answer

    progress_before, complete_count = (len(ledger_ids), 0), 0
    while True:
        with names.names_in_errors():
            await await_answer(
                settings, "listing the bookies", lambda: repairer.load_bookies(force=is_forced)
            )
        progress = await repairer.work(ledger_ids)
        complete_count += progress.full
        progress_after = (len(progress.left), repairer.copier.copied_bytes)
        is_last_pass = (
            progress_after == progress_before
            if deadline is None
            else trio.current_time() + RETRY_S >= deadline
        )
        if is_last_pass or not progress.left:
            return complete_count, progress.left
        ledger_ids, progress_before = list(progress.left), progress_after
        await trio.sleep(RETRY_S)


def _progress_text(repairer: Any, seconds: float) -> str:
    """Return the counts of a repair that is running."""
    progress, copied_bytes = repairer.progress, repairer.copier.copied_bytes
    return (
        f"{progress.full} of {plural(progress.ledgers, 'ledger is', 'ledgers are')} complete, "
        f"{len(progress.left)}"
        f" {'waits' if len(progress.left) == 1 else 'wait'};"
        f" copied {size(copied_bytes)}, {size(copied_bytes / max(0.1, seconds))}/s"
    )


def _print_result(settings: Settings, names: Any, result: dict[str, Any]) -> None:
    """Print the result, and the reason for each ledger that is incomplete."""
    if settings.json:
        emit(result)
    else:
        print(
            f"{result['full']} of"
            f" {plural(result['ledgers'], 'ledger has all its', 'ledgers have all their')} copies;"
            f" copied {size(result['copied_bytes'])} in {result['seconds']:.1f} s"
        )
        for incomplete in result["left"][:SHOWN_LEDGERS_MAX]:
            print(f"ledger {incomplete['ledger']}: {visible(names.with_names(incomplete['why']))}")


async def _ledgers_of_log(logs: Any, name: str) -> list[int]:
    """Return the ledger IDs of a log's segments, each once. Raises `LogNotFound`."""
    log, ledger_ids, first = logs.open_log(name), dict[int, None](), 1
    while page := await log.segments(first=first):
        ledger_ids.update(dict.fromkeys(segment.ledger_id for segment in page))
        first = page[-1].segment + 1
    return list(ledger_ids)
