"""`dlog node`: what to ask before a node is touched."""

from typing import Any

import click

from ...runtime.declarations.condition_texts import as_json, texts_of
from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import emit, plural, visible


@click.group(cls=Group, examples="dlog node can-stop b2\ndlog node can-stop m1 b1 b2")
def command() -> None:
    """May nodes be stopped for a while?"""


@command.command(
    name="can-stop",
    cls=CliCommand,
    examples="""
    dlog node can-stop b2                   before its machine is started again
    dlog node can-stop m1 b1 b2             a whole rack
    dlog node can-stop b2 && ssh h2 systemctl restart dlog-bookie@b2
    """,
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@common
def can_stop(settings: Settings, nodes: tuple[str, ...]) -> None:
    """Would all be read and written while these nodes are stopped together? Exit code 6, and why, if not.

    NODE is a metadata node's name, a bookie's name or id. Looks at every ledger that lies on one of the
    bookies: no entry may be left without a copy, or with one alone where there are three; what is open must
    have enough bookies to be written and to be recovered. It is about this moment, and holds nothing:
    two who ask at once are told of their own nodes alone.
    """
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.safe_to_stop import check_stop
    from ..connection.cluster_connection import quorum, run_call

    async def look(metadata: Any) -> tuple[Any, Any]:
        names = await bookie_names(metadata)
        return names, await check_stop(metadata, await metadata.status(), nodes)

    names, stop_check = run_call(settings, "whether they may be stopped", look, quorum)
    if settings.json:
        emit(
            {
                "can_stop": stop_check.may,
                "nodes": list(stop_check.nodes),
                "conditions": as_json(stop_check.conditions),
                "reasons": texts_of(stop_check.conditions),
                "ledgers": stop_check.ledgers,
            }
        )
    elif stop_check.may:
        print(f"yes: {plural(stop_check.ledgers, 'ledger')} looked at")
    else:
        print("no")
        for text in texts_of(stop_check.conditions):
            print(f"  - {visible(names.in_words(text))}")
    if not stop_check.may:
        raise ExitWithCode(NO)
