"""`dlog node`: check whether nodes can be stopped."""

from typing import Any

import click

from ...runtime.declarations.condition_texts import as_json, texts_of
from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import emit, paint, plural, visible


@click.group(cls=Group, examples="dlog node can-stop b2\ndlog node can-stop m1 b1 b2")
def command() -> None:
    """Check whether nodes can be stopped."""


@command.command(
    name="can-stop",
    cls=CliCommand,
    examples="""
    dlog node can-stop b2                   before a restart of its machine
    dlog node can-stop m1 b1 b2             all nodes of a rack
    dlog node can-stop b2 && ssh h2 systemctl restart dlog-bookie@b2
    """,
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@common
def can_stop(settings: Settings, nodes: tuple[str, ...]) -> None:
    """Check whether all logs remain available while these nodes are stopped together.

    NODE is the name of a metadata node, or the name or ID of a bookie. The command checks every ledger on
    these bookies. No entry may be left without a copy, or with only one copy if it has three. Open ledgers
    must keep enough bookies for writes and recovery. If the check fails, the command prints the reasons and
    ends with exit code 6.
    The check holds no lock: two operators who check at the same time do not see each other's nodes.
    """
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.safe_to_stop import check_stop
    from ..connection.cluster_connection import quorum, run_call

    async def read_conditions(metadata: Any) -> tuple[Any, Any]:
        names = await bookie_names(metadata)
        return names, await check_stop(metadata, await metadata.status(), nodes)

    names, stop_check = run_call(settings, "checking the nodes", read_conditions, quorum)
    if settings.json:
        emit(
            {
                "can_stop": stop_check.is_safe,
                "nodes": list(stop_check.nodes),
                "conditions": as_json(stop_check.conditions),
                "reasons": texts_of(stop_check.conditions),
                "ledgers": stop_check.ledgers,
            }
        )
    elif stop_check.is_safe:
        print(f"{paint('yes')}: {plural(stop_check.ledgers, 'ledger')} checked")
    else:
        print(paint("no"))
        for text in texts_of(stop_check.conditions):
            print(f"  - {visible(names.with_names(text))}")
    if not stop_check.is_safe:
        raise ExitWithCode(NO)
