"""`dlog proxy`: list proxies and their logs, move logs, drain and balance proxies."""

from collections.abc import Awaitable, Callable
from typing import Any

import click

from ..framework.errors import FAILED, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import State, emit, optional_id_column, table
from ..framework.progress import show_progress


@click.group(
    cls=Group,
    examples="""
    dlog proxy list
    dlog proxy owners w1
    dlog proxy move orders --target w2
    dlog proxy drain w1
    dlog proxy balance
    """,
)
def command() -> None:
    """List proxies and the logs that they write; move logs, drain and balance proxies.

    PROXY is a name, an ID, or the first characters of an ID. These commands require a URI with metadata
    nodes.
    """


@command.command(name="list", cls=CliCommand, examples="dlog proxy list\ndlog proxy list --json")
@common
def show(settings: Settings) -> None:
    """List the registered proxies and their state.

    With --json, the command prints one object per line. A narrow terminal omits IDs, unless two proxies have
    the same name.
    """
    from ...cluster.status.proxy_overview import proxy_rows

    proxy_list = _query_quorum(settings, "listing the proxies", proxy_rows)
    if settings.json:
        for proxy_row in proxy_list:
            emit(proxy_row)
        return
    columns = ("name", "id", "kind", "state", "address", "connections", "logs", "streams")
    rows = [
        [(row | {"state": State(row["state"])}).get(name) for name in columns] for row in proxy_list
    ]
    spare = optional_id_column([proxy_row["name"] for proxy_row in proxy_list])
    table(columns, rows, empty="no proxy is registered in this cluster", optional_columns=spare)


@command.command(cls=CliCommand, examples="dlog proxy owners\ndlog proxy owners w1 --json")
@click.argument("proxy", required=False)
@common
def owners(settings: Settings, proxy: str | None) -> None:
    """List the logs that write proxies own, for one proxy or all."""
    from ...cluster.status.proxy_overview import hosted_logs

    log_rows = _query_quorum(
        settings,
        "listing the logs of the proxies",
        lambda metadata: hosted_logs(metadata, proxy or ""),
    )
    if settings.json:
        for log_row in log_rows:
            emit(log_row)
        return
    columns = ("proxy", "namespace", "log", "producers", "segment")
    table(
        columns,
        [[log_row[name] for name in columns] for log_row in log_rows],
        empty="no log is owned by a proxy",
    )


@command.command(
    cls=CliCommand, examples="dlog proxy move orders --target w2\ndlog proxy move orders"
)
@click.argument("log")
@click.option(
    "--target",
    default="",
    metavar="PROXY",
    help="Destination (default: the preferred other proxy of the log).",
)
@common
def move(settings: Settings, log: str, target: str) -> None:
    """Move a log from its write proxy to another one.

    The producers of the log are paused during the move.
    """
    from ...cluster.status.proxy_overview import move_log as move_log
    from ...uri import parse_uri

    path = parse_uri(settings.where()).path
    previous_proxy = _query_quorum(
        settings, "moving the log", lambda metadata: move_log(metadata, path, log, target)
    )
    if settings.json:
        emit({"log": log, "from": previous_proxy, "to": target or None})
    else:
        click.echo(f"moved {log} away from {previous_proxy}")


@command.command(cls=CliCommand, examples="dlog proxy drain w1")
@click.argument("proxy")
@common
def drain(settings: Settings, proxy: str) -> None:
    """Move all logs away from a write proxy.

    The proxy accepts no logs until it is restarted.
    """
    from ...cluster.status.proxy_overview import drain_proxy as drain_proxy

    name = _query_quorum(
        settings, "draining the proxy", lambda metadata: drain_proxy(metadata, proxy)
    )
    if settings.json:
        emit({"proxy": name, "drained": True})
    else:
        click.echo(f"{name} has no more logs")


@command.command(cls=CliCommand, examples="dlog proxy balance --dry-run\ndlog proxy balance")
@click.option("--dry-run", is_flag=True, help="Change nothing. Print the moves.")
@common
def balance(settings: Settings, dry_run: bool) -> None:
    """Balance the number of logs per write proxy.

    The command plans once and makes as few moves as possible, one after the other. Producers of a log that
    moves are paused. Proxies that drain or do not answer are excluded. The exit code is 1 if a move fails,
    and the output contains the reason.
    """
    from ...cluster.status.proxy_overview import balance_logs as balance_proxies
    from ..connection.cluster_connection import quorum, run

    async def work() -> Any:
        async with quorum(settings) as metadata:
            return await balance_proxies(metadata, dry_run=dry_run)

    with show_progress(settings, lambda s: f"moving logs: {s:.0f} s"):
        moves = run(work)
    if settings.json:
        for log_move in moves:
            emit(log_move)
    else:
        columns = ("log", "namespace", "from", "to", "outcome")
        table(
            columns,
            [[log_move[name] for name in columns] for log_move in moves],
            empty="already balanced",
        )
    if any(log_move["outcome"] not in ("moved", "planned") for log_move in moves):
        raise ExitWithCode(FAILED)


def _query_quorum(
    settings: Settings, description: str, call: Callable[[Any], Awaitable[Any]]
) -> Any:
    from ..connection.cluster_connection import quorum, run_call

    return run_call(settings, description, call, quorum)
