"""`dlog repair`: missing copies, now."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common, confirmed, force_option
from ..framework.output import emit, plural, size, visible

TOLD_S = 2.0
AGAIN_S = 2.0
NAMED_MAX = 10


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
    from ..connection.cluster_connection import answer, namespace, run

    if sum((target is not None, bookie is not None, whole)) > 1:
        raise click.UsageError("one of LEDGER or LOG, --bookie, --all")
    began = 0.0

    async def tell(now: Any) -> None:
        while True:
            await trio.sleep(TOLD_S)
            settings.note(_progress(now, trio.current_time() - began))

    async def work(forced: bool) -> tuple[Any, dict[str, Any]]:
        nonlocal began
        began = trio.current_time()
        async with namespace(settings) as logs, trio.open_nursery() as nursery:
            now = _repairer(logs, rate, apart)
            names = await answer(settings, "the names", lambda: bookie_names(logs.metadata))
            todo = await answer(
                settings, "what is to be done", lambda: _wanted(logs, target, bookie, whole)
            )
            nursery.start_soon(tell, now)
            deadline = began + settings.timeout_s if wait else None
            full, left = await _passes(settings, now, todo, names, forced, deadline)
            nursery.cancel_scope.cancel()
        return names, {
            "ledgers": full + len(left),
            "full": full,
            "copied_entries": now.copier.copied_entries,
            "copied_bytes": now.copier.copied_bytes,
            "seconds": round(trio.current_time() - began, 3),
            "left": [{"ledger": one, "why": why} for one, why in sorted(left.items())],
        }

    names, found = confirmed("repair anyway", force, lambda forced: run(lambda: work(forced)))
    _show(settings, names, found)
    if found["left"]:
        raise ExitWithCode(NO)


def _repairer(logs: Any, rate: float, apart: bool) -> Any:
    """Return what repairs ledgers with the connections of these logs, at most ``rate`` MiB per second."""
    from ...cluster.repair import manual_repair as repair_now
    from ...runtime.machine import real_host

    pool = logs.ledgers.pool
    return repair_now.RepairNow(
        logs.metadata,
        pool,
        pool.candidates,
        real_host("dlog repair").random.random,
        bytes_per_s=max(1, int(rate * 1024 * 1024)),
        policy=pool.required_placement if apart else lambda: pool.placement,
        labels=pool.labels,
        apart=apart,
    )


async def _wanted(logs: Any, target: str | None, bookie: str | None, whole: bool) -> list[int]:
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
        return await _of_log(logs, target.removeprefix("./"))
    if bookie is not None:
        return await repair_now.ledgers_on(logs.metadata, await find_bookie(logs.metadata, bookie))
    if whole:
        return await repair_now.all_ledgers(logs.metadata)
    return await repair_now.lacking_ledgers(logs.metadata)


async def _passes(
    settings: Settings,
    now: Any,
    todo: list[int],
    names: Any,
    forced: bool,
    deadline: float | None,
) -> tuple[int, dict[int, str]]:
    """Repair until nothing is left, nothing gets better, or with a deadline until then.

    Returns how many ledgers are full, and the reason for each that is not.
    """
    import trio

    from ..connection.cluster_connection import answer

    before, full = (len(todo), 0), 0
    while True:
        with names.in_errors():
            await answer(settings, "who is there", lambda: now.look(force=forced))
        done = await now.work(todo)
        full += done.full
        after = (len(done.left), now.copier.copied_bytes)
        ends = after == before if deadline is None else trio.current_time() + AGAIN_S >= deadline
        if ends or not done.left:
            return full, done.left
        todo, before = list(done.left), after
        await trio.sleep(AGAIN_S)


def _progress(now: Any, seconds: float) -> str:
    """Return the counts of a repair that is under way."""
    done, copied = now.progress, now.copier.copied_bytes
    return (
        f"{done.full} of {plural(done.ledgers, 'ledger is', 'ledgers are')} full, {len(done.left)}"
        f" {'waits' if len(done.left) == 1 else 'wait'};"
        f" copied {size(copied)}, {size(copied / max(0.1, seconds))}/s"
    )


def _show(settings: Settings, names: Any, found: dict[str, Any]) -> None:
    """Print the result, and the reason for each ledger that waits."""
    if settings.json:
        emit(found)
    else:
        print(
            f"{found['full']} of"
            f" {plural(found['ledgers'], 'ledger has all its', 'ledgers have all their')} copies;"
            f" copied {size(found['copied_bytes'])} in {found['seconds']:.1f} s"
        )
        for one in found["left"][:NAMED_MAX]:
            print(f"ledger {one['ledger']}: {visible(names.in_words(one['why']))}")


async def _of_log(logs: Any, name: str) -> list[int]:
    """The ledgers of a log's segments, each once. Raises `LogNotFound`."""
    log, found, first = logs.open_log(name), dict[int, None](), 1
    while page := await log.segments(first=first):
        found.update(dict.fromkeys(one.ledger_id for one in page))
        first = page[-1].segment + 1
    return list(found)
