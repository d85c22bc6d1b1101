"""`dlog trust`: is it judged who may do what, whom would that refuse, who changed it."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode, print_notice
from ..framework.options import CliCommand, Group, Settings, common, force_option, run_confirmed
from ..framework.output import emit, rows_or_table, table

MIB = 1024 * 1024
COUNT = click.IntRange(0, (1 << 63) - 1)
MODES = {"off": "open", "report": "report", "enforce": "required"}
"""The authorization modes of the command line, with the stored ones."""
MODE_OF_STORED = {stored: mode for mode, stored in MODES.items()}
NEARLY_FULL = 0.9
"""A namespace that has so much of what it may have is told of."""


@dataclass(frozen=True, slots=True)
class NamespaceUsageReport:
    """What a namespace takes of the metadata, and may take."""

    namespace: str
    keys: int
    bytes: int
    ledgers: int
    keys_max: int
    bytes_max: int
    ledgers_max: int

    @property
    def fill_ratio(self) -> float:
        """The greatest of its shares; above 1: what it may have was made less, or it was there before."""
        return max(
            self.keys / max(1, self.keys_max),
            self.bytes / max(1, self.bytes_max),
            self.ledgers / max(1, self.ledgers_max),
        )


@click.group(
    cls=Group,
    examples="""
    dlog trust show
    dlog trust require report --admin me      judge, count, and do it all the same
    dlog trust require enforce                refuse; as an admin
    dlog trust quota                          what namespaces take of the metadata, and may take
    dlog trust rotate                         new secrets for what opens ledgers
    dlog trust audit                          who changed it
    dlog trust rescue /var/lib/dlog/m --admin ann     no admin is left: on a majority of the metadata nodes
    """,
)
def command() -> None:
    """Show and set whether what is asked is judged; see who would be refused, and who changed it.

    `dlog user` and `dlog grant` say who may do what.
    """


@command.command(cls=CliCommand, examples="dlog trust show\ndlog trust show --json")
@common
def show(settings: Settings) -> None:
    """Show the authorization mode; in mode report also whom `enforce` would refuse, since this leader leads.

    And whom proxies would, each since it started; one that does not say it is named.
    """
    from ...cluster.status.proxy_overview import reported_denials

    async def look(metadata: Any) -> tuple[Any, Any]:
        mode_report = await metadata.trust_report()
        return mode_report, await reported_denials(metadata) if mode_report.mode == "report" else (
            [],
            [],
        )

    report, (proxy_denials, unanswered_proxies) = query_metadata(settings, "the mode", look)
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
                f"namespace {usage.namespace} has {usage.fill_ratio:.0%} of what it may have: dlog trust "
                "quota"
            )
    for proxy in unanswered_proxies:
        print_notice(f"not heard: {proxy}")
    if report.mode == "report":
        columns = ("principal", "times", "by", "refused")
        rows = [[usage[column] for column in columns] for usage in denials]
        table(columns, rows, empty="nobody would have been refused")


@command.command(
    cls=CliCommand, examples="dlog trust require report --admin me\ndlog trust require off"
)
@click.argument("mode", type=click.Choice(list(MODES)))
@click.option("--admin", default="", metavar="USER", help="A user who is made an admin with it.")
@force_option
@common
def require(settings: Settings, mode: str, admin: str, force: bool) -> None:
    """Set the authorization mode.

    `off` authorizes nothing. `report` authorizes and counts what it would refuse, but refuses nothing.
    `enforce` refuses. The first `report` names an admin: afterwards only admins change rights. All metadata
    nodes must be running once then. `enforce` requires an admin who has proved their identity. A change from
    `enforce` to another mode is asked, or refused without a terminal.
    """
    stored = MODES[mode]
    admin_text = f"; {admin} is an admin" if admin else ""
    question = f"set the authorization mode to {mode}"
    change_rights(
        settings, f"mode: {mode}{admin_text}", "mode", stored, admin, ask=question, force=force
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust quota                             what namespaces have, and may have
    dlog trust quota shop --keys 1000000 --mib 512
    dlog trust quota shop --default              what all others may have
    dlog trust quota --all --ledgers 200000      what those may have
    """,
)
@click.argument("namespace", default="")
@click.option("--keys", type=COUNT, metavar="N", help="Keys of its logs and their ledgers.")
@click.option("--mib", type=COUNT, metavar="N", help="Of these keys and their values.")
@click.option("--ledgers", type=COUNT, metavar="N")
@click.option("--default", "none", is_flag=True, help="It has none of its own any more.")
@click.option("--all", "of_all", is_flag=True, help="Of all that have none of their own.")
@force_option
@common
def quota(
    settings: Settings,
    namespace: str,
    keys: int | None,
    mib: int | None,
    ledgers: int | None,
    none: bool,
    of_all: bool,
    force: bool,
) -> None:
    """What each namespace takes of the metadata, and its bounds; or set those of one.

    Beyond them nothing new is made there, where rights are required: `OverQuota`. It can still be read,
    truncated and deleted, and what is open is closed. What is not given stays as it is. A limit of 0, or one
    that is used up, is asked, or refused without a terminal.
    """
    limits = [keys, None if mib is None else mib * MIB, ledgers]
    is_change = none or any(limit is not None for limit in limits)
    if is_change and none == any(limit is not None for limit in limits):
        raise click.UsageError("--default takes what was set away: give it alone")
    if bool(namespace) + of_all > 1 or (is_change and not (namespace or of_all)):
        raise click.UsageError("say whose: a namespace, or --all")
    if is_change:
        limit_texts = (
            ("", "", "") if none else ("" if limit is None else str(limit) for limit in limits)
        )
        namespace_text = namespace or "all that have none of their own"
        done_text = (
            f"{namespace_text}: from now on what is the default"
            if none
            else f"the quota of {namespace_text} is set"
        )
        question = f"set the quota of {namespace_text}"
        change_rights(
            settings, done_text, "quota", namespace, *limit_texts, ask=question, force=force
        )
        return
    report = query_metadata(settings, "quotas", lambda metadata: metadata.trust_report())
    usages = [limit for limit in namespace_usages(report) if namespace in ("", limit.namespace)]
    columns = ("namespace", "keys", "of", "MiB", "of", "ledgers", "of", "full")
    if settings.json:
        emit({"counted": report.counted, "namespaces": [asdict(limit) for limit in usages]})
        return
    rows = [
        [
            *(limit.namespace, limit.keys, limit.keys_max, f"{limit.bytes / MIB:.1f}"),
            *(
                f"{limit.bytes_max / MIB:.0f}",
                limit.ledgers,
                limit.ledgers_max,
                f"{limit.fill_ratio:.0%}",
            ),
        ]
        for limit in usages
    ]
    table(columns, rows, empty="nothing is counted: namespaces are, once rights are judged")
    if usages and not report.counted:
        print("not all of it is counted yet")


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust rotate                        until each bookie checks by the new ones
    dlog trust rotate && dlog trust rotate   what was given before is worth nothing any more
    dlog trust rotate --tokens
    """,
)
@click.option("--tokens", is_flag=True, help="What tokens are sealed with, instead.")
@common
def rotate(settings: Settings, tokens: bool) -> None:
    """Draw new secrets for what opens ledgers at bookies, or for tokens.

    The two newest count: what was made with the ones before these ends. Clients ask again by themselves, and
    nothing fails. Waits for the bookies that are up, up to --timeout (exit code 6); one that is down asks
    before it serves. Tokens of before the last rotation but one are taken no more; their open connections
    stay until the tokens end.
    """
    from ...cluster.auth.key_rotation import rotate_secrets as rotate_ledgers
    from ...uri import parse_uri
    from ..connection.cluster_connection import await_answer, namespace, run

    if parse_uri(settings.where()).is_proxied:
        raise click.UsageError("metadata nodes draw secrets: give their URI, distributedlog://…")
    if tokens:
        number = query_metadata(
            settings,
            "new secrets",
            lambda metadata_client: metadata_client.rotate_secrets("tokens"),
        )
        bookies_behind: list[str] = []
    else:

        async def work() -> tuple[int, list[str]]:
            async with namespace(settings) as opened:
                return await await_answer(
                    settings,
                    "new secrets",
                    lambda: rotate_ledgers(
                        opened.metadata,
                        opened.ledgers.pool,
                        timeout_s=settings.timeout_s,
                        on_waiting=lambda waited_for: settings.note(
                            f"waits for {', '.join(waited_for)}"
                        ),
                    ),
                )

        number, bookies_behind = run(work)
    if settings.json:
        emit({"generation": number, "behind": bookies_behind})
    elif bookies_behind:
        print(f"generation {number}; still behind: {', '.join(bookies_behind)}")
    else:
        print(f"generation {number}; what was made with {number - 1} counts until the next one")
    if bookies_behind:
        raise ExitWithCode(NO)


@command.command(cls=CliCommand, examples="dlog trust audit\ndlog trust audit --json")
@common
def audit(settings: Settings) -> None:
    """Who changed rights, when, from where; the last one last."""
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
    rows_or_table(settings.json, columns, rows, empty="nobody has changed rights yet")


@command.command(
    cls=CliCommand,
    examples="""
    dlog trust rescue /var/lib/dlog/m --admin ann       there, on a stopped node; then start it
    """,
)
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR…",
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option("--admin", required=True, metavar="USER", help="Who is to be one.")
@common
def rescue(settings: Settings, directories: tuple[Path, ...], admin: str) -> None:
    """Have an admin made where none is left who could: on the disks of a majority of the metadata nodes.

    DIR is the data directory (--data) of a metadata node that is stopped. Started again it asks the leader
    for USER, until a majority of the nodes does; one at a time will do, the others may run on. Then USER is
    an admin, the audit says who asked, and what is left in the directories goes. USER needs a certificate of
    an authority that the nodes trust: dlog pki issue user/USER.
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
            raise click.UsageError(f"{directory} is no data directory of a metadata node")
        async with open_locked(metadata_directory) as disk:
            members, identity = await load_member_identity(disk), await load_identity(disk)
            if members is None or identity is None:
                raise ForeignData(f"{directory} belongs to no cluster: there is nobody to ask")
            await store_recovery_request(disk, admin)
            return {"node": identity.label, "cluster": members.cluster_id, "admin": admin}

    async def work() -> list[dict[str, str]]:
        return [await tell(directory) for directory in directories]

    for request in run(work):
        if settings.json:
            emit(request)
        else:
            print(
                f"{request['node']} of cluster {request['cluster']} asks for the admin {admin} when it is"
                " started; it is done when a majority of the metadata nodes does"
            )


async def load_users_and_grants(
    metadata: Any,
) -> tuple[dict[str, Any], list[tuple[str, str, str, str]]]:
    """Users by name; grants as user, namespace, path, role."""
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
    """The fullest first."""
    return [NamespaceUsageReport(*usage_values) for usage_values in report.spaces]


def change_rights(
    settings: Settings, done_text: str, *change_words: str, ask: str = "", force: bool = False
) -> None:
    """Have it changed, then print ``said``. ``run_call``: the question of `run_confirmed`."""

    def send(forced: bool) -> None:
        query_metadata(
            settings,
            "changing rights",
            lambda metadata: metadata.change_trust(*change_words, force=forced),
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
        settings, "who this is", lambda metadata: metadata.trust_report(own=True)
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
        print(f"{report.principal}, {' and '.join(role_names) or 'no role of the cluster'}")


def query_metadata(settings: Settings, description: str, call: Any) -> Any:
    """The answer of the metadata nodes."""
    from ..connection.cluster_connection import quorum, run_call

    return run_call(settings, description, call, quorum)


def time_text(ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
