"""`dlog metadata`: who forms the metadata quorum, and how that is changed."""

from typing import TYPE_CHECKING, Any

import click

from ..framework.options import CliCommand, Group, Settings, common, force_option, require_consent
from ..framework.output import emit, optional_id_column, table
from . import metadata_backups as saves

if TYPE_CHECKING:
    from ...metadata.model.interface import MemberStatus

POLL_S = 0.25


@click.group(
    cls=Group,
    examples="""
    dlog metadata show
    dlog metadata replace m2                  m2 has lost its disk, and was started with an empty one
    dlog metadata replace m2=h9:4181          the same, and it runs on another host now
    dlog metadata add m4=h4:4181
    dlog metadata remove m4                   asks first; --force in a script
    dlog metadata save meta.save              all of it, as of one moment
    """,
)
def command() -> None:
    """Show the metadata quorum, replace a node that lost its disk, add and remove nodes; save and restore.

    Exit code 5, with a sentence, for what would lose the quorum or fits nothing.
    """


command.add_command(saves.save)
command.add_command(saves.restore)
command.add_command(saves.force_new_cluster, "force-new-cluster")
command.add_command(saves.gc)


@command.command(cls=CliCommand, examples="dlog metadata show\ndlog metadata show --json")
@common
def show(settings: Settings) -> None:
    """The members, and how far each is; with --json one object a line."""
    from ..connection.cluster_connection import quorum, run_call

    print_members(
        settings, run_call(settings, "the members", lambda metadata: metadata.status(), quorum)
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog metadata replace m2
    dlog metadata replace m2=h9:4181 --no-wait
    """,
)
@click.argument("node", metavar="NAME[=HOST:PORT]")
@click.option("--wait/--no-wait", default=True, help="Until it votes, up to --timeout.")
@common
def replace(settings: Settings, node: str, wait: bool) -> None:
    """Let the node of that name, which came back with an empty directory, take its own old place.

    It gets all data first; then the old id is put out, and the new one votes.
    """
    name, address = _parse_node(node, is_address_required=False)
    _change_members(settings, "replace", name, address, wait)


@command.command(cls=CliCommand, examples="dlog metadata add m4=h4:4181")
@click.argument("node", metavar="NAME=HOST:PORT")
@click.option("--wait/--no-wait", default=True, help="Until it votes, up to --timeout.")
@common
def add(settings: Settings, node: str, wait: bool) -> None:
    """Let one more node in. It runs already, with an empty directory, and answers at that address."""
    name, address = _parse_node(node, is_address_required=True)
    _change_members(settings, "add", name, address, wait)


@command.command(
    cls=CliCommand, examples="dlog metadata remove m4\ndlog metadata remove m4 --force"
)
@click.argument("name")
@force_option
@common
def remove(settings: Settings, name: str, force: bool) -> None:
    """Put a node out, also one that is down. Stop it afterwards; it never comes back with its data."""
    _change_members(settings, "remove", name, "", False, force)


def _change_members(
    settings: Settings, kind: str, name: str, address: str, wait: bool, force: bool = True
) -> None:
    import trio

    from ...metadata.protocol.client_messages import MembersRequest
    from ...runtime.interfaces.errors import MembersRefused, RequestTimeout
    from ..connection.cluster_connection import await_answer, quorum, run

    async def work() -> None:
        deadline = trio.current_time() + settings.timeout_s
        async with quorum(settings) as metadata:
            if kind == "remove":
                members_before = await await_answer(settings, "the members", metadata.status)
                roles = [
                    member.role if member.alive else "it does not answer"
                    for member in members_before
                    if member.name == name
                ]
                if not roles:
                    known_names = ", ".join(member.name for member in members_before)
                    raise MembersRefused(
                        f"no metadata node is called {name}; known are {known_names}"
                    )
                require_consent(
                    f"put metadata node {name} ({', '.join(roles)}) out of the quorum", force
                )
                deadline = (
                    trio.current_time() + settings.timeout_s
                )  # the answer was not ours to give
            members = await await_answer(
                settings,
                f"metadata {kind}",
                lambda: metadata.change_members(MembersRequest(kind, name, address)),
            )
            new_node_id = next((m.node_id for m in members if m.name == name and not m.votes), "")
            while True:
                members_now = await await_answer(settings, "the members", metadata.status)
                if not wait or not new_node_id or _is_voting(members_now, name, new_node_id):
                    break
                if trio.current_time() >= deadline:
                    raise RequestTimeout(
                        f"{name} is let in and has not caught up within {settings.timeout_s:g} s; it goes on"
                        ' by itself, "dlog metadata show" tells how far it is'
                    )
                await trio.sleep(POLL_S)
            print_members(settings, members_now)

    run(work)


def _is_voting(members: "list[MemberStatus]", name: str, node_id: str) -> bool:
    """Whether that node is the only one of its name, and says itself that it votes.

    For one that was let in a moment ago the leader answers: empty, or not reached yet.
    """
    from ...metadata.raft.ready import RaftRole

    same_name = [member for member in members if member.name == name]
    if [member.node_id for member in same_name] != [node_id]:
        return False
    return same_name[0].applied > 0 and same_name[0].role in {role.value for role in RaftRole}


def print_members(settings: Settings, members: list[Any]) -> None:
    """The members for eyes or programs."""
    rows = [
        {
            "name": member.name,
            "id": member.node_id,
            "address": member.address,
            "role": member.role,
            "term": member.term,
            "applied": member.applied,
            "alive": member.alive,
        }
        for member in members
    ]
    if settings.json:
        for row in rows:
            emit(row)
        return
    columns = ("name", "id", "address", "role", "term", "applied", "alive")
    spare = optional_id_column([row["name"] for row in rows])
    table(columns, [list(row.values()) for row in rows], optional_columns=spare)


def _parse_node(node: str, *, is_address_required: bool) -> tuple[str, str]:
    """NAME=HOST:PORT taken apart. Raises `InvalidRequest`, `UsageError`."""
    from ...cluster.declarations.config import parse_address

    name, equals, rest = node.partition("=")
    if not name or (is_address_required and not equals):
        raise click.UsageError(f"{node!r} is not NAME=HOST:PORT, such as m4=h4:4181")
    if not equals:
        return name, ""
    host, port = parse_address(rest, "the address")
    return name, f"{host}:{port}"
