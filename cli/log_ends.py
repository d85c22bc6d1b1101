"""`dlog log truncate`, `seal`, `find`, `positions`, `watch`: where a log begins and ends, who is where."""

import json
from typing import Any

import click

from .options import Command, Settings, common, consent, yes_option
from .output import emit, table


def add_to(group: click.Group) -> None:
    """Put these commands into `dlog log`."""
    for command in (truncate, seal, find, positions, watch):
        group.add_command(command)


@click.command(
    cls=Command,
    examples="""
    dlog log truncate orders --to 12.0.0
    dlog log truncate orders --txid 1700000000000 --yes
    dlog log truncate orders --up-to-subscriber cold --yes      in a script: nobody is asked
    """,
)
@click.argument("name")
@click.option("--to", metavar="DLSN", help="Give up all records before this position.")
@click.option("--txid", type=click.IntRange(0), help="Before the first record with such a txid.")
@click.option("--up-to-subscriber", metavar="POSITION", help="Before this named position.")
@yes_option
@common
def truncate(
    settings: Settings,
    name: str,
    to: str | None,
    txid: int | None,
    up_to_subscriber: str | None,
    yes: bool,
) -> None:
    """Give up the oldest records; the rest stays as it is. There is no way back.

    Prints where the log begins now: the point never goes back, and never behind the end.
    """
    if sum(given is not None for given in (to, txid, up_to_subscriber)) != 1:
        raise click.UsageError("give one of --to, --txid, --up-to-subscriber")
    from ..log.dlsn import DLSN
    from ..runtime.errors import InvalidRequest
    from .connect import answer, namespace, run

    point = None if to is None else DLSN.parse(to)
    where = to or (f"txid {txid}" if txid is not None else f"position {up_to_subscriber}")
    consent(f"give up the records of log {name} before {where}, in {settings.where()}", yes)

    async def call(log: Any) -> DLSN:
        dlsn = point
        if up_to_subscriber is not None:
            dlsn = await log.positions.get(up_to_subscriber)
            if dlsn is None:
                raise InvalidRequest(
                    f'log "{name}" has no position {up_to_subscriber!r}; those it has: '
                    f'"dlog log positions {name}"'
                )
        found: DLSN = await log.truncate(dlsn, txid=txid)
        return found

    async def work() -> None:
        async with namespace(settings) as logs:
            log = logs.open_log(name)
            found = await answer(settings, f"truncating {name}", lambda: call(log))
        if settings.json:
            emit({"name": name, "truncated_to": str(found)})
        else:
            print(found)

    run(work)


@click.command(cls=Command, examples="dlog log seal orders --yes")
@click.argument("name")
@yes_option
@click.option("--takeover", is_flag=True, help="Fence a writer that holds the log.")
@common
def seal(settings: Settings, name: str, yes: bool, takeover: bool) -> None:
    """End a log: it takes no more records, readers reach an end. There is no way back."""
    consent(f"seal log {name} for good, in {settings.where()}", yes)
    from .connect import answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            log = logs.open_log(name)
            new = await answer(
                settings, f"sealing {name}", lambda: log.seal(takeover=takeover, wait_s=0)
            )
        if settings.json:
            emit({"name": name, "sealed": True, "before": not new})
        else:
            settings.note(f"sealed {name}" if new else f"{name} was sealed already")

    run(work)


@click.command(
    cls=Command,
    examples="""
    dlog log find orders --txid 1700000000000
    dlog log find orders --time 2026-01-31T12:00:00+00:00
    """,
)
@click.argument("name")
@click.option("--txid", type=click.IntRange(0), help="The first record with at least this txid.")
@click.option("--time", "when", metavar="ISO", help="The first entry written then or later.")
@common
def find(settings: Settings, name: str, txid: int | None, when: str | None) -> None:
    """The position of the first record from a txid or a time on; behind the end, the next one's."""
    if (txid is None) == (when is None):
        raise click.UsageError("give one of --txid, --time")
    from datetime import datetime

    from .connect import answer, namespace, run

    wall_ms = None
    if when is not None:
        try:
            wall_ms = int(datetime.fromisoformat(when).timestamp() * 1000)
        except ValueError:
            raise click.UsageError(
                f"--time {when!r} is not a time such as 2026-01-31T12:00:00"
            ) from None

    async def work() -> None:
        async with namespace(settings) as logs:
            log = logs.open_log(name)
            found = await answer(
                settings, f"searching {name}", lambda: log.find(txid=txid, wall_ms=wall_ms)
            )
        if settings.json:
            emit({"name": name, "dlsn": str(found)})
        else:
            print(found)

    run(work)


@click.command(
    cls=Command,
    examples="""
    dlog log positions orders
    dlog log positions orders --forget cold
    """,
)
@click.argument("name")
@click.option("--forget", metavar="POSITION", help="Delete this one.")
@common
def positions(settings: Settings, name: str, forget: str | None) -> None:
    """Where the named subscribers of a log go on."""
    from .connect import answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            stored = logs.open_log(name).positions
            if forget is not None:
                await answer(settings, f"forgetting {forget}", lambda: stored.delete(forget))
            found = await answer(settings, f"positions of {name}", stored.list)
        if settings.json:
            emit({"name": name, "positions": {one: str(at) for one, at in found.items()}})
        else:
            rows = [[one, str(at)] for one, at in found.items()]
            table(("position", "dlsn"), rows, empty="no positions")

    run(work)


@click.command(cls=Command, examples="dlog log watch\ndlog log watch orders/ --json")
@click.argument("prefix", default="")
@common
def watch(settings: Settings, prefix: str) -> None:
    """Each log there is, then each that is created or deleted, until Ctrl-C."""
    from .connect import namespace, run

    def tell(kind: str, name: str, incarnation: str) -> None:
        if settings.json:
            line = json.dumps({"kind": kind, "name": name, "incarnation": incarnation})
        else:
            line = f"{kind:8} {name}"
        print(line, flush=True)

    async def work() -> None:
        async with namespace(settings) as logs, logs.watch_logs(prefix) as changes:
            for name, incarnation in changes.logs.items():
                tell("exists", name, incarnation)
            async for change in changes:
                tell(change.kind, change.name, change.incarnation)

    run(work)
