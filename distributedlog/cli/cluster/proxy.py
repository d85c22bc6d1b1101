"""`dlog proxy`: which proxies there are, which logs each has, and how a log or all of them go elsewhere."""

from collections.abc import Awaitable, Callable
from typing import Any

import click

from ..framework.errors import FAILED, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import emit, spare_ids, table


@click.group(
    cls=Group,
    examples="""
    dlog proxy list
    dlog proxy owners w1
    dlog proxy move orders --to w2
    dlog proxy drain w1
    dlog proxy balance
    """,
)
def command() -> None:
    """Show the proxies and the logs that they write; move a log, or all of a proxy.

    A PROXY is a name, an id, or the beginning of one. These commands need the metadata nodes' URI.
    """


@command.command(name="list", cls=CliCommand, examples="dlog proxy list\ndlog proxy list --json")
@common
def show(settings: Settings) -> None:
    """List the proxies that are registered, and what each says of itself; with --json one object a line.

    A narrow terminal shows no ids, unless two have one name; --json has all.
    """
    from ...cluster.status.proxy_overview import proxies

    found = _ask(settings, "listing the proxies", proxies)
    if settings.json:
        for one in found:
            emit(one)
        return
    columns = ("name", "id", "kind", "state", "address", "connections", "logs", "streams")
    rows = [[one.get(name) for name in columns] for one in found]
    spare = spare_ids([one["name"] for one in found])
    table(columns, rows, empty="no proxy is registered in this cluster", spare=spare)


@command.command(cls=CliCommand, examples="dlog proxy owners\ndlog proxy owners w1 --json")
@click.argument("proxy", required=False)
@common
def owners(settings: Settings, proxy: str | None) -> None:
    """List the logs that write proxies have, of one of them or of all."""
    from ...cluster.status.proxy_overview import owned

    found = _ask(settings, "asking the proxies", lambda metadata: owned(metadata, proxy or ""))
    if settings.json:
        for one in found:
            emit(one)
        return
    columns = ("proxy", "namespace", "log", "producers", "segment")
    table(columns, [[one[name] for name in columns] for one in found], empty="no log is written")


@command.command(cls=CliCommand, examples="dlog proxy move orders --to w2\ndlog proxy move orders")
@click.argument("log")
@click.option(
    "--to", "target", default="", metavar="PROXY", help="Default: whoever is first for it."
)
@common
def move(settings: Settings, log: str, target: str) -> None:
    """Have the proxy that writes a log give it to another one; its producers see a pause."""
    from ...cluster.status.proxy_overview import move as move_log
    from ...uri import parse_uri

    path = parse_uri(settings.where()).path
    moved = _ask(settings, "moving the log", lambda metadata: move_log(metadata, path, log, target))
    if settings.json:
        emit({"log": log, "from": moved, "to": target or None})
    else:
        click.echo(f"{log} has left {moved}")


@command.command(cls=CliCommand, examples="dlog proxy drain w1")
@click.argument("proxy")
@common
def drain(settings: Settings, proxy: str) -> None:
    """Have a write proxy give all its logs to others, and take none until it is started anew."""
    from ...cluster.status.proxy_overview import drain as drain_proxy

    name = _ask(settings, "draining the proxy", lambda metadata: drain_proxy(metadata, proxy))
    if settings.json:
        emit({"proxy": name, "drained": True})
    else:
        click.echo(f"{name} has no logs any more")


@command.command(cls=CliCommand, examples="dlog proxy balance --dry-run\ndlog proxy balance")
@click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing.")
@common
def balance(settings: Settings, dry_run: bool) -> None:
    """Even out how many logs the write proxies have: plans once, moves the fewest, one after the other.

    Producers of a log that moves see a pause. Proxies that drain, or do not answer, are left out. Exit code 1
    where some could not be moved: the line says why.
    """
    from ...cluster.status.proxy_overview import balance as balance_proxies
    from ..connection.cluster_connection import quorum, run

    async def work() -> Any:
        async with quorum(settings) as metadata:
            return await balance_proxies(metadata, dry_run=dry_run)

    found = run(work)
    if settings.json:
        for one in found:
            emit(one)
    else:
        columns = ("log", "namespace", "from", "to", "outcome")
        table(columns, [[one[name] for name in columns] for one in found], empty="they are even")
    if any(one["outcome"] not in ("moved", "planned") for one in found):
        raise ExitWithCode(FAILED)


def _ask(settings: Settings, what: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
    from ..connection.cluster_connection import ask, quorum

    return ask(settings, what, call, quorum)
