"""`dlog trust`: manage the authorization mode, quotas and secrets, show denied requests and the audit log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode, print_notice
from ..framework.options import CliCommand, Group, Settings, common, force_option, run_confirmed
from ..framework.output import emit, rows_or_table, size, table
from ..framework.progress import show_progress

MIB = 1024 * 1024
COUNT = click.IntRange(0, (1 << 63) - 1)
MODES = {"off": "open", "report": "report", "enforce": "required"}
"""The authorization modes of the command line, with the stored ones."""
MODE_OF_STORED = {stored: mode for mode, stored in MODES.items()}
NEARLY_FULL = 0.9
"""Share of a quota from which `dlog trust show` reports a namespace."""


@dataclass(frozen=True, slots=True)
class NamespaceUsageReport:
    """The metadata usage of a namespace, and its quota."""

    namespace: str
    keys: int
    bytes: int
    ledgers: int
    keys_max: int
    bytes_max: int
    ledgers_max: int

    @property
    def fill_ratio(self) -> float:
        """The greatest share of the three quotas. It exceeds 1 if a quota is below the present usage."""
        return max(
            self.keys / max(1, self.keys_max),
            self.bytes / max(1, self.bytes_max),
            self.ledgers / max(1, self.ledgers_max),
        )


@click.group(
    cls=Group,
    examples="""
    dlog trust show
    dlog trust set-mode report --admin me     count the requests that would be refused
    dlog trust set-mode enforce               refuse them; requires an admin
    dlog trust quota                          show the metadata usage and quotas of namespaces
    dlog trust rotate                         replace the secrets that open ledgers
    dlog trust audit                          list all changes of rights
    dlog trust rescue /var/lib/dlog/m --admin ann     restore an admin, on a majority of the metadata nodes
    """,
)
def command() -> None:
    """Manage the authorization mode, quotas and secrets; show the audit log.

    To manage users and their rights, use `dlog user` and `dlog grant`.
    """


@command.command(cls=CliCommand, examples="dlog trust show\ndlog trust show --json")
@common
def show(settings: Settings) -> None:
    """Show the authorization mode.

    In mode "report", the command also lists the requests that "enforce" would refuse, as the metadata leader
    counted them since its election, and each proxy since its start. It names proxies that do not answer.
    """
    from ...cluster.status.proxy_overview import reported_denials

    async def read_mode(metadata: Any) -> tuple[Any, Any]:
        mode_report = await metadata.authorization_report()
        return mode_report, await reported_denials(metadata) if mode_report.mode == "report" else (
            [],
            [],
        )

    report, (proxy_denials, unanswered_proxies) = query_metadata(settings, "the mode", read_mode)
    denial_rows = [("metadata", *usage) for usage in report.would_refuse] + proxy_denials
    denials = [
        {"principal": denied_principal, "refused": denied_right, "times": times, "by": reported_by}
        for reported_by, denied_principal, denied_right, times in denial_rows
    ]
    if settings.json:
        usage_rows = [asdict(usage) for usage in namespace_usages(report)]
        output = {
            "mode": MODE_OF_STORED[report.mode],
            "would_refuse": denials,
            "not_heard": unanswered_proxies,
        }
        emit({**output, "namespaces": usage_rows})
        return
    print(f"mode: {MODE_OF_STORED[report.mode]}")
    for usage in namespace_usages(report):
        if usage.fill_ratio >= NEARLY_FULL:
            print(
                f"namespace {usage.namespace} uses {usage.fill_ratio:.0%} of its quota: dlog trust "
                "quota"
            )
    for proxy in unanswered_proxies:
        print_notice(f"no answer: {proxy}")
    if report.mode == "report":
        columns = ("principal", "times", "by", "refused")
        rows = [[usage[column] for column in columns] for usage in denials]
        table(columns, rows, empty="no request would have been refused")


@command.command(
    name="set-mode",
    cls=CliCommand,
    examples="dlog trust set-mode report --admin me\ndlog trust set-mode off",
)
@click.argument("mode", type=click.Choice(list(MODES)))
@click.option("--admin", default="", metavar="USER", help="User that becomes an admin.")
@force_option
@common
def set_mode(settings: Settings, mode: str, admin: str, force: bool) -> None:
    """Set the authorization mode of the cluster.

    \b
    off      Allow every request.
    report   Allow every request, and count those that "enforce" would refuse.
    enforce  Refuse requests without a grant.

    The first change to "report" requires --admin and all metadata nodes. After it, only admins can change
    rights. Only an authenticated admin can select "enforce". Before you do, check "dlog trust show" for
    refused requests. A change from "enforce" to another mode asks for confirmation; without a terminal it
    fails.
    """
    stored = MODES[mode]
    admin_text = f"; user {admin} is an admin" if admin else ""
    change = f"set the authorization mode to {mode}"
    change_rights(settings, f"{change}{admin_text}", "mode", stored, admin, ask=change, force=force)


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust quota                             show the usage and the quotas of namespaces
    dlog trust quota shop --keys 1000000 --mib 512
    dlog trust quota shop --reset                use the default quota again
    dlog trust quota --default-quota --ledgers 200000
    """,
)
@click.argument("namespace", default="")
@click.option("--keys", type=COUNT, metavar="N", help="Maximum number of keys of logs and ledgers.")
@click.option(
    "--mib", type=COUNT, metavar="N", help="Maximum size of these keys and values, in MiB."
)
@click.option("--ledgers", type=COUNT, metavar="N", help="Maximum number of ledgers.")
@click.option("--reset", is_flag=True, help="Remove the stored value: the default applies again.")
@click.option(
    "--default-quota",
    is_flag=True,
    help="Change the default quota, of all namespaces that have none of their own.",
)
@force_option
@common
def quota(
    settings: Settings,
    namespace: str,
    keys: int | None,
    mib: int | None,
    ledgers: int | None,
    reset: bool,
    default_quota: bool,
    force: bool,
) -> None:
    """Show or set the metadata quotas of namespaces.

    In mode "enforce", a namespace that exceeds its quota can create nothing (`OverQuota`). Reading,
    truncating, deleting and closing still work. Limits that are not given do not change. A limit of 0, or one
    that is already exceeded, asks for confirmation; without a terminal it fails.
    """
    limits = [keys, None if mib is None else mib * MIB, ledgers]
    is_change = reset or any(limit is not None for limit in limits)
    if is_change and reset == any(limit is not None for limit in limits):
        raise click.UsageError("--reset excludes --keys, --mib and --ledgers")
    if bool(namespace) + default_quota > 1 or (is_change and not (namespace or default_quota)):
        raise click.UsageError("specify either a NAMESPACE or --default-quota")
    if is_change:
        limit_texts = (
            ("", "", "") if reset else ("" if limit is None else str(limit) for limit in limits)
        )
        namespace_text = namespace or "all namespaces without a quota"
        done_text = (
            f"reset the quota of {namespace_text}"
            if reset
            else f"set the quota of {namespace_text}"
        )
        question = f"set the quota of {namespace_text}"
        change_rights(
            settings, done_text, "quota", namespace, *limit_texts, ask=question, force=force
        )
        return
    report = query_metadata(settings, "quotas", lambda metadata: metadata.authorization_report())
    usages = [limit for limit in namespace_usages(report) if namespace in ("", limit.namespace)]
    columns = ("namespace", "keys", "of", "size", "of", "ledgers", "of", "full")
    if settings.json:
        emit({"counted": report.usage_complete, "namespaces": [asdict(limit) for limit in usages]})
        return
    rows = [
        [
            *(limit.namespace, limit.keys, limit.keys_max, size(limit.bytes)),
            *(
                size(limit.bytes_max),
                limit.ledgers,
                limit.ledgers_max,
                f"{limit.fill_ratio:.0%}",
            ),
        ]
        for limit in usages
    ]
    table(columns, rows, empty="no usage: it is counted in the modes report and enforce")
    if usages and not report.usage_complete:
        print("counting is not complete yet")


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust rotate                        wait until each bookie uses the new secrets
    dlog trust rotate && dlog trust rotate   invalidate all capabilities that were issued before
    dlog trust rotate --tokens
    """,
)
@click.option("--tokens", is_flag=True, help="Replace the secrets of tokens instead.")
@common
def rotate(settings: Settings, tokens: bool) -> None:
    """Replace the secrets of ledger capabilities, or of tokens.

    The two newest secrets are valid. Capabilities of older secrets end. Clients request new ones
    automatically, and no request fails. The command waits for all running bookies, up to --timeout (then exit
    code 6). An offline bookie fetches the secrets before it serves clients. Tokens from before the second
    to last rotation are refused; their open connections remain until the tokens expire.
    """
    from ...cluster.auth.key_rotation import rotate_secrets as rotate_ledgers
    from ...uri import parse_uri
    from ..connection.cluster_connection import namespace, run

    if parse_uri(settings.where()).is_proxied:
        raise click.UsageError(
            "rotation requires a distributedlog:// URI with addresses of metadata nodes"
        )
    if tokens:
        number = query_metadata(
            settings,
            "new secrets",
            lambda metadata_client: metadata_client.rotate_secrets("tokens"),
        )
        bookies_behind: list[str] = []
    else:
        waited_for = ["new secrets"]

        def set_waited_for(bookies: Sequence[str]) -> None:
            waited_for[:] = bookies

        async def work() -> tuple[int, list[str]]:
            async with namespace(settings) as opened:
                with show_progress(
                    settings, lambda s: f"waiting for {', '.join(waited_for)}: {s:.0f} s"
                ):
                    return await rotate_ledgers(
                        opened.metadata,
                        opened.ledgers.pool,
                        timeout_s=settings.timeout_s,
                        on_waiting=set_waited_for,
                    )

        number, bookies_behind = run(work)
    if settings.json:
        emit({"generation": number, "behind": bookies_behind})
    elif bookies_behind:
        print(f"generation {number}; not yet updated: {', '.join(bookies_behind)}")
    else:
        print(f"generation {number}; generation {number - 1} is valid until the next rotation")
    if bookies_behind:
        raise ExitWithCode(NO)


@command.command(cls=CliCommand, examples="dlog trust audit\ndlog trust audit --json")
@common
def audit(settings: Settings) -> None:
    """List all changes of rights, oldest first, with time, principal and address."""
    from ...metadata.model.acl_records import AUDIT_PREFIX, AuditLine
    from ...metadata.model.interface import Scan

    async def work(metadata: Any) -> list[Any]:
        return [AuditLine.decode(item.value) async for item in Scan(metadata, AUDIT_PREFIX)]

    lines = query_metadata(settings, "the audit", work)
    columns = ("time", "principal", "address", "action", "subject")
    rows = [
        [time_text(line.ms), line.principal, line.address, line.action, line.subject]
        for line in lines
    ]
    rows_or_table(settings.json, columns, rows, empty="no changes of rights")


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust rescue /var/lib/dlog/m --admin ann       on a stopped node; then start it
    """,
)
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR…",
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option("--admin", required=True, metavar="USER", help="User that becomes an admin.")
@common
def rescue(settings: Settings, directories: tuple[Path, ...], admin: str) -> None:
    """Restore an admin on a cluster that has none, with access to a majority of the metadata nodes.

    DIR is the data directory (--data) of a stopped metadata node. After its start, the node requests the
    admin USER from the leader. When a majority of the nodes has done so, USER becomes an admin, the audit log
    records the requests, and the nodes delete them. You can do this node by node, while the others run. USER
    needs a certificate of an authority that the nodes trust (dlog pki issue user/USER).
    """
    from ...metadata.node.admin_recovery import store_recovery_request
    from ...metadata.storage.member_identity import load_member_identity
    from ...runtime.disk.node_identity import load_identity
    from ...runtime.interfaces.errors import ForeignData
    from ..cluster.metadata_backups import open_locked
    from ..connection.cluster_connection import run

    async def tell(directory: Path) -> dict[str, str]:
        metadata_directory = directory / "metadata"
        if not metadata_directory.is_dir():
            raise click.UsageError(f"{directory} is not the data directory of a metadata node")
        async with open_locked(metadata_directory) as disk:
            members, identity = await load_member_identity(disk), await load_identity(disk)
            if members is None or identity is None:
                raise ForeignData(f"{directory} belongs to no cluster")
            await store_recovery_request(disk, admin)
            return {"node": identity.label, "cluster": members.cluster_id, "admin": admin}

    async def work() -> list[dict[str, str]]:
        return [await tell(directory) for directory in directories]

    for request in run(work):
        if settings.json:
            emit(request)
        else:
            print(
                f"{request['node']} of cluster {request['cluster']} will request the admin {admin} after its"
                " start. A majority of the metadata nodes must request it"
            )


async def load_users_and_grants(
    metadata: Any,
) -> tuple[dict[str, Any], list[tuple[str, str, str, str]]]:
    """Return the users by name, and the grants as (user, namespace, path, role)."""
    from ...metadata.model.acl_records import (
        GRANT_PREFIX,
        USER_PREFIX,
        User,
        decode_grant,
        grant_of,
    )
    from ...metadata.model.interface import Scan

    users = {
        item.key.removeprefix(USER_PREFIX).decode(): User.decode(item.value)
        async for item in Scan(metadata, USER_PREFIX)
    }
    grants = [
        (*grant_of(item.key), decode_grant(item.value))
        async for item in Scan(metadata, GRANT_PREFIX)
    ]
    return users, grants


def namespace_usages(report: Any) -> list[NamespaceUsageReport]:
    """Return the usage of all namespaces, the fullest first."""
    return [NamespaceUsageReport(*usage_values) for usage_values in report.namespaces]


def change_rights(
    settings: Settings, done_text: str, *change_words: str, ask: str = "", force: bool = False
) -> None:
    """Change rights, and print ``done_text``. If the cluster requires it, ask for confirmation first.

    Args:
        settings: The common options.
        done_text: The note after success.
        change_words: The change and its arguments, as for `MetadataClient.change_authorization`.
        ask: The question, as for `run_confirmed`.
        force: Whether --force was given.
    """

    def send(forced: bool) -> None:
        query_metadata(
            settings,
            "changing rights",
            lambda metadata: metadata.change_authorization(*change_words, force=forced),
        )

    run_confirmed(ask, force, send)
    if settings.json:
        emit({"changed": list(change_words)})
    else:
        settings.note(done_text)


@click.command(cls=CliCommand, examples="dlog whoami")
@common
def whoami(settings: Settings) -> None:
    """Show your principal and your roles on the cluster."""
    from ...metadata.model.rights import ADMIN, OPERATOR

    report = query_metadata(
        settings, "who this is", lambda metadata: metadata.authorization_report(own=True)
    )
    role_names = [
        role_name
        for role_name, right in (("operator", OPERATOR), ("admin", ADMIN))
        if report.rights & right
    ]
    if settings.json:
        emit(
            {
                "principal": report.principal,
                "mode": MODE_OF_STORED[report.mode],
                "cluster": role_names,
            }
        )
    else:
        print(f"{report.principal}, {' and '.join(role_names) or 'no role on the cluster'}")


def query_metadata(settings: Settings, description: str, call: Any) -> Any:
    """Return the answer of the metadata nodes to a call."""
    from ..connection.cluster_connection import quorum, run_call

    return run_call(settings, description, call, quorum)


def time_text(ms: int) -> str:
    """Return the time in UTC, in seconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
