"""`dlog cluster`: the versions of all nodes, and the end of an upgrade."""

from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common, force_option, run_confirmed
from ..framework.output import emit, paint, table, visible


@click.group(
    cls=Group,
    examples="""
    dlog cluster finalize --dry-run
    dlog cluster finalize
    dlog cluster can-downgrade 0.1
    """,
)
def command() -> None:
    """List the versions of all nodes, finalize an upgrade, and check whether a downgrade is possible."""


@command.command(
    cls=CliCommand,
    examples="""
    dlog cluster finalize --dry-run        list the versions; exit code 6 if a node is older or offline
    dlog cluster finalize                  permit the formats of this version
    """,
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Change nothing. List the versions; exit code 6 if a node is older or offline.",
)
@force_option
@common
def finalize(settings: Settings, dry_run: bool, force: bool) -> None:
    """Finalize an upgrade to the version of this program, after which no downgrade is possible.

    Until then, all programs write the formats of the older version, so every node can return to it. All
    metadata nodes, bookies and proxies must be up and have this version. Upgrade all clients before, because
    the command cannot see them.

    A new cluster is finalized from its start. A repetition changes nothing, and an unreadable version is
    replaced. The command asks for confirmation, and requires the role admin.
    """
    from ...cluster.status.upgrade import check_finalize, finalize_upgrade
    from ...runtime.declarations.versions import CURRENT
    from ..connection.cluster_connection import quorum, run_call

    if dry_run and force:
        raise click.UsageError("--dry-run excludes --force")

    def call(is_forced: bool) -> Any:
        async def work(metadata: Any) -> Any:
            if dry_run:
                return await check_finalize(metadata)
            return await finalize_upgrade(metadata, force=is_forced)

        return run_call(settings, "the versions of the nodes", work, quorum)

    result = run_confirmed(f"finalize the upgrade to version {CURRENT}", force, call)
    is_possible = result.is_done or not result.blocking
    if settings.json:
        emit(
            {
                "finalized": None if result.finalized is None else str(result.finalized),
                "target": str(result.target),
                "can_finalize": is_possible,
                "blocking": [node.name for node in result.blocking],
                "nodes": [
                    {"name": node.name, "kind": node.kind, "version": node.shown}
                    for node in result.nodes
                ],
            }
        )
    else:
        if dry_run:
            rows = [
                [visible(node.name), node.kind, node.shown or "offline"] for node in result.nodes
            ]
            table(("node", "kind", "version"), rows)
        print(f"the cluster is finalized for {_shown(result.finalized)}")
        if dry_run and not result.is_done:
            print(f"it can be finalized for {result.target}: {'yes' if is_possible else 'no'}")
    if dry_run and not is_possible:
        raise ExitWithCode(NO)


@command.command(
    name="can-downgrade",
    cls=CliCommand,
    examples="""
    dlog cluster can-downgrade 0.1
    dlog cluster can-downgrade 0.1 --json
    """,
)
@click.argument("version")
@common
def can_downgrade(settings: Settings, version: str) -> None:
    """Check whether nodes and clients can return to an older version.

    They cannot after the cluster was finalized for a newer one, because the data can have formats that the
    older version refuses. The exit code is 6 then. The command changes nothing.
    """
    from ...metadata.model.cluster_version import confirmed_cluster_version
    from ...runtime.declarations.versions import version_in
    from ..connection.cluster_connection import quorum, run_call

    target = version_in(version)
    if target is None:
        raise click.UsageError(f"{version!r} is not a version, such as 0.1")
    stored = run_call(settings, "the version of the cluster", confirmed_cluster_version, quorum)
    is_possible = stored.finalized <= target
    if settings.json:
        emit(
            {
                "can_downgrade": is_possible,
                "finalized": str(stored.finalized),
                "target": str(target),
            }
        )
    else:
        answer = paint("yes") if is_possible else paint("no")
        print(f"{answer}: the cluster is finalized for {_shown(stored.finalized)}")
    if not is_possible:
        raise ExitWithCode(NO)


def _shown(finalized: Any) -> str:
    return "an unreadable version" if finalized is None else f"version {finalized}"
