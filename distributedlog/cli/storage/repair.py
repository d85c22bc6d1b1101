"""`dlog repair`: missing copies, now."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common, force_option, run_confirmed
from ..framework.output import emit, plural, size, visible

PROGRESS_S = 2.0
RETRY_S = 2.0
SHOWN_LEDGERS_MAX = 10


@click.command(
    cls=CliCommand,
    examples="""
    dlog repair                                        all that is known to miss copies
    dlog repair 1042                                   a ledger; each bookie's list is compared
    dlog repair numbers                                a log's ledgers
    dlog repair --bookie b3                            all that should lie on b3
    dlog repair --all --rate 100                       every ledger is looked at; at most 100 MiB/s
    dlog repair --all --apart                          and copies on one host, or in one rack, are moved
    dlog repair --wait --timeout 3600                  until nothing is missing any more
    """,
)
@click.argument("target", required=False, metavar="[LEDGER|LOG]")
@click.option(
    "--bookie", metavar="BOOKIE", help="All ledgers that name it: a name, an id, its beginning."
)
@click.option("--all", "whole", is_flag=True, help="Every ledger, also where nothing is noted.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=32.0,
    show_default=True,
    metavar="MIB_S",
    help="Copied a second, in MiB.",
)
@click.option("--wait", is_flag=True, help="Try again what waits, up to --timeout (exit code 6).")
@click.option("--apart", is_flag=True, help="Also move copies that stand together, where they can.")
@force_option
@common
def command(
    settings: Settings,
    target: str | None,
    bookie: str | None,
    whole: bool,
    rate: float,
    wait: bool,
    apart: bool,
    force: bool,
) -> None:
    """Bring missing copies back now, the ledgers with the fewest first, and say how far it is.

    What lies on a bookie that is down is stored on others at once, without the usual five minutes. A number
    is a ledger; a log of such a name is given as ./7. It ends when all copies are there (exit code 0), or
    when nothing more can be done: then it says what each ledger waits for (exit code 6). The copies go
    through this process: run it near the bookies. It may be interrupted and given again, and runs beside
    the cluster's own repair.
    """
    import trio

    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import await_answer, namespace, run

    if sum((target is not None, bookie is not None, whole)) > 1:
        raise click.UsageError("one of LEDGER or LOG, --bookie, --all")
    started_at = 0.0

    async def tell(repairer: Any) -> None:
        while True:
            await trio.sleep(PROGRESS_S)
            settings.note(_progress_text(repairer, trio.current_time() - started_at))

    async def work(is_forced: bool) -> tuple[Any, dict[str, Any]]:
        nonlocal started_at
        started_at = trio.current_time()
        async with namespace(settings) as logs, trio.open_nursery() as nursery:
            repairer = _make_repairer(logs, rate, apart)
            names = await await_answer(settings, "the names", lambda: bookie_names(logs.metadata))
            ledger_ids = await await_answer(
                settings,
                "what is to be done",
                lambda: _ledgers_to_repair(logs, target, bookie, whole),
            )
            nursery.start_soon(tell, repairer)
            deadline = started_at + settings.timeout_s if wait else None
            complete_count, incomplete = await _run_passes(
                settings, repairer, ledger_ids, names, is_forced, deadline
            )
            nursery.cancel_scope.cancel()
        seconds = trio.current_time() - started_at
        return names, _result_values(repairer, complete_count, incomplete, seconds)

    names, result = run_confirmed("repair anyway", force, lambda forced: run(lambda: work(forced)))
    _print_result(settings, names, result)
    if result["left"]:
        raise ExitWithCode(NO)


def _result_values(
    repairer: Any, complete_count: int, incomplete: dict[int, str], seconds: float
) -> dict[str, Any]:
    """Return the keys that `dlog repair` prints."""
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


def _make_repairer(logs: Any, rate: float, apart: bool) -> Any:
    """Return what repairs ledgers with the connections of these logs, at most ``rate`` MiB per second."""
    from ...cluster.repair import manual_repair as repair_now
    from ...runtime.machine import real_host

    pool = logs.ledgers.pool
    return repair_now.ManualRepair(
        logs.metadata,
        pool,
        pool.candidates,
        real_host("dlog repair").random.random,
        bytes_per_s=max(1, int(rate * 1024 * 1024)),
        policy=pool.required_placement if apart else lambda: pool.placement,
        labels=pool.labels,
        move_apart=apart,
    )


async def _ledgers_to_repair(
    logs: Any, target: str | None, bookie: str | None, is_all: bool
) -> list[int]:
    """Return the ledgers that the command line names. Raises `NoSuchLedger`, `LogNotFound`."""
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
    """Repair until nothing is left, nothing gets better, or with a deadline until then.

    Returns how many ledgers are full, and the reason for each that is not.
    """
    import trio

    from ..connection.cluster_connection import await_answer

    progress_before, complete_count = (len(ledger_ids), 0), 0
    while True:
        with names.in_errors():
            await await_answer(settings, "who is there", lambda: repairer.look(force=is_forced))
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
    """Return the counts of a repair that is under way."""
    progress, copied_bytes = repairer.progress, repairer.copier.copied_bytes
    return (
        f"{progress.full} of {plural(progress.ledgers, 'ledger is', 'ledgers are')} full, "
        f"{len(progress.left)}"
        f" {'waits' if len(progress.left) == 1 else 'wait'};"
        f" copied {size(copied_bytes)}, {size(copied_bytes / max(0.1, seconds))}/s"
    )


def _print_result(settings: Settings, names: Any, result: dict[str, Any]) -> None:
    """Print the result, and the reason for each ledger that waits."""
    if settings.json:
        emit(result)
    else:
        print(
            f"{result['full']} of"
            f" {plural(result['ledgers'], 'ledger has all its', 'ledgers have all their')} copies;"
            f" copied {size(result['copied_bytes'])} in {result['seconds']:.1f} s"
        )
        for incomplete in result["left"][:SHOWN_LEDGERS_MAX]:
            print(f"ledger {incomplete['ledger']}: {visible(names.in_words(incomplete['why']))}")


async def _ledgers_of_log(logs: Any, name: str) -> list[int]:
    """The ledgers of a log's segments, each once. Raises `LogNotFound`."""
    log, ledger_ids, first = logs.open_log(name), dict[int, None](), 1
    while page := await log.segments(first=first):
        ledger_ids.update(dict.fromkeys(segment.ledger_id for segment in page))
        first = page[-1].segment + 1
    return list(ledger_ids)
