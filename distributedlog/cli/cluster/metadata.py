"""`dlog metadata`: show and change the members of the metadata quorum."""

from typing import TYPE_CHECKING, Any

import click

from ..framework.options import CliCommand, Group, Settings, common, force_option, require_consent
from ..framework.output import emit, optional_id_column, table, yes_or_no
from ..framework.progress import show_progress
from . import metadata_backups as backups

if TYPE_CHECKING:
    from ...metadata.model.interface import MemberStatus

POLL_S = 0.25


@click.group(
    cls=Group,
    examples="""
    dlog metadata show
    dlog metadata replace m2                  m2 lost its disk, and was started with an empty one
    dlog metadata replace m2=h9:4181          the same, on another host
    dlog metadata add m4=h4:4181
    dlog metadata remove m4                   asks for confirmation; use --force in scripts
    dlog metadata backup meta.backup          back up all metadata, consistently
    """,
)
def command() -> None:
    """Show the metadata quorum; replace, add and remove its nodes, back up and restore its data.

    The exit code is 5 if a change would lose the quorum or does not match the members.
    """


command.add_command(backups.backup)
command.add_command(backups.restore)
command.add_command(backups.force_new_cluster, "force-new-cluster")
command.add_command(backups.gc)


@command.command(cls=CliCommand, examples="dlog metadata show\ndlog metadata show --json")
@common
def show(settings: Settings) -> None:
    """List the members of the metadata quorum, with role, term and applied index.

    With --json, the command prints one object per line.
    """
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
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait, up to --timeout: until the node votes. This is the default.",
)
@common
def replace(settings: Settings, node: str, wait: bool) -> None:
    """Replace a metadata node that was started again with an empty directory.

    NAME is the name of the member. The new node first receives all data. Then the old ID is removed, and the
    new node votes.
    """
    name, address = _parse_node(node, is_address_required=False)
    _change_members(settings, "replace", name, address, wait)


@command.command(cls=CliCommand, examples="dlog metadata add m4=h4:4181")
@click.argument("node", metavar="NAME=HOST:PORT")
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait, up to --timeout: until the node votes. This is the default.",
)
@common
def add(settings: Settings, node: str, wait: bool) -> None:
    """Add a metadata node.

    The node must run with an empty directory and be reachable at this address.
    """
    name, address = _parse_node(node, is_address_required=True)
    _change_members(settings, "add", name, address, wait)


@command.command(
    cls=CliCommand, examples="dlog metadata remove m4\ndlog metadata remove m4 --force"
)
@click.argument("name")
@force_option
@common
def remove(settings: Settings, name: str, force: bool) -> None:
    """Remove a metadata node from the quorum.

    The node may be offline. Stop it afterwards. It cannot be added again with its data.
    """
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
                    member.role if member.alive else "no answer"
                    for member in members_before
                    if member.name == name
                ]
                if not roles:
                    known_names = ", ".join(member.name for member in members_before)
                    raise MembersRefused(
                        f"metadata node {name} not found. Known nodes: {known_names}"
                    )
                require_consent(
                    f"remove metadata node {name} ({', '.join(roles)}) from the quorum", force
                )
                deadline = (
                    trio.current_time() + settings.timeout_s
                )  # the time for the user's answer does not count
            members = await await_answer(
                settings,
                f"metadata {kind}",
                lambda: metadata.change_members(MembersRequest(kind, name, address)),
            )
            new_node_id = next((m.node_id for m in members if m.name == name and not m.votes), "")
            with show_progress(settings, lambda s: f"{name} receives the metadata: {s:.0f} s"):
                while True:
                    members_now = await await_answer(settings, "the members", metadata.status)
                    if not wait or not new_node_id or _is_voting(members_now, name, new_node_id):
                        break
                    if trio.current_time() >= deadline:
                        raise RequestTimeout(
                            f"node {name} is a learner and did not catch up within {settings.timeout_s:g} s."
                            ' Catch-up continues; run "dlog metadata show" for progress'
                        )
                    await trio.sleep(POLL_S)
            print_members(settings, members_now)

    run(work)


def _is_voting(members: "list[MemberStatus]", name: str, node_id: str) -> bool:
    """Whether the node is the only one of its name and reports itself as a voter.

    For a node that was just added, the leader answers in its place that it is empty or not reached yet.
    """
    from ...metadata.raft.ready import RaftRole

    same_name = [member for member in members if member.name == name]
    if [member.node_id for member in same_name] != [node_id]:
        return False
    return same_name[0].applied > 0 and same_name[0].role in {role.value for role in RaftRole}


def print_members(settings: Settings, members: list[Any]) -> None:
    """Print the members, as a table or as JSON."""
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
    table(
        columns,
        [list((row | {"alive": yes_or_no(row["alive"])}).values()) for row in rows],
        optional_columns=spare,
    )


def _parse_node(node: str, *, is_address_required: bool) -> tuple[str, str]:
    """Split NAME=HOST:PORT. Raises `InvalidRequest` or `click.UsageError`."""
    from ...cluster.declarations.config import parse_address

    name, equals, rest = node.partition("=")
    if not name or (is_address_required and not equals):
        raise click.UsageError(f"invalid node {node!r}: use NAME=HOST:PORT, such as m4=h4:4181")
    if not equals:
        return name, ""
    host, port = parse_address(rest, "the address")
    return name, f"{host}:{port}"
