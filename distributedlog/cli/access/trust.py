"""`dlog trust`: is it judged who may do what, whom would that refuse, who changed it."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode, say
from ..framework.options import CliCommand, Group, Settings, common, confirmed, force_option
from ..framework.output import emit, rows_or_table, table

MIB = 1024 * 1024
COUNT = click.IntRange(0, (1 << 63) - 1)
MODES = {"off": "open", "report": "report", "enforce": "required"}
"""The authorization modes of the command line, with the stored ones."""
WORDS = {stored: mode for mode, stored in MODES.items()}
NEARLY = 0.9
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
    def full(self) -> float:
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
    from ...cluster.status.proxy_overview import would_refuse

    async def look(metadata: Any) -> tuple[Any, Any]:
        said = await metadata.trust_report()
        return said, await would_refuse(metadata) if said.mode == "report" else ([], [])

    report, (of_proxies, silent) = asked(settings, "the mode", look)
    rows_ = [("metadata", *one) for one in report.would_refuse] + of_proxies
    would = [
        {"principal": who, "refused": what, "times": times, "by": by}
        for by, who, what, times in rows_
    ]
    if settings.json:
        spaces = [asdict(one) for one in spaces_of(report)]
        said = {"mode": WORDS[report.mode], "would_refuse": would, "not_heard": silent}
        emit({**said, "namespaces": spaces})
        return
    print(f"mode: {WORDS[report.mode]}")
    for one in spaces_of(report):
        if one.full >= NEARLY:
            print(
                f"namespace {one.namespace} has {one.full:.0%} of what it may have: dlog trust quota"
            )
    for proxy in silent:
        say(f"not heard: {proxy}")
    if report.mode == "report":
        columns = ("principal", "times", "by", "refused")
        rows = [[one[column] for column in columns] for one in would]
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
    also = f"; {admin} is an admin" if admin else ""
    question = f"set the authorization mode to {mode}"
    change(settings, f"mode: {mode}{also}", "mode", stored, admin, ask=question, force=force)


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
    given = [keys, None if mib is None else mib * MIB, ledgers]
    sets = none or any(one is not None for one in given)
    if sets and none == any(one is not None for one in given):
        raise click.UsageError("--default takes what was set away: give it alone")
    if bool(namespace) + of_all > 1 or (sets and not (namespace or of_all)):
        raise click.UsageError("say whose: a namespace, or --all")
    if sets:
        words = ("", "", "") if none else ("" if one is None else str(one) for one in given)
        whose = namespace or "all that have none of their own"
        said = (
            f"{whose}: from now on what is the default" if none else f"the quota of {whose} is set"
        )
        question = f"set the quota of {whose}"
        change(settings, said, "quota", namespace, *words, ask=question, force=force)
        return
    report = asked(settings, "quotas", lambda metadata: metadata.trust_report())
    found = [one for one in spaces_of(report) if namespace in ("", one.namespace)]
    columns = ("namespace", "keys", "of", "MiB", "of", "ledgers", "of", "full")
    if settings.json:
        emit({"counted": report.counted, "namespaces": [asdict(one) for one in found]})
        return
    rows = [
        [
            *(one.namespace, one.keys, one.keys_max, f"{one.bytes / MIB:.1f}"),
            *(f"{one.bytes_max / MIB:.0f}", one.ledgers, one.ledgers_max, f"{one.full:.0%}"),
        ]
        for one in found
    ]
    table(columns, rows, empty="nothing is counted: namespaces are, once rights are judged")
    if found and not report.counted:
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
    from ...cluster.auth.key_rotation import rotate as rotate_ledgers
    from ...uri import parse_uri
    from ..connection.cluster_connection import answer, namespace, run

    if parse_uri(settings.where()).proxied:
        raise click.UsageError("metadata nodes draw secrets: give their URI, distributedlog://…")
    if tokens:
        number = asked(settings, "new secrets", lambda one: one.rotate_secrets("tokens"))
        behind: list[str] = []
    else:

        async def work() -> tuple[int, list[str]]:
            async with namespace(settings) as found:
                return await answer(
                    settings,
                    "new secrets",
                    lambda: rotate_ledgers(
                        found.metadata,
                        found.ledgers.pool,
                        timeout_s=settings.timeout_s,
                        note=lambda some: settings.note(f"waits for {', '.join(some)}"),
                    ),
                )

        number, behind = run(work)
    if settings.json:
        emit({"generation": number, "behind": behind})
    elif behind:
        print(f"generation {number}; still behind: {', '.join(behind)}")
    else:
        print(f"generation {number}; what was made with {number - 1} counts until the next one")
    if behind:
        raise ExitWithCode(NO)


@command.command(cls=CliCommand, examples="dlog trust audit\ndlog trust audit --json")
@common
def audit(settings: Settings) -> None:
    """Who changed rights, when, from where; the last one last."""
    from ...metadata.model.acl_records import AUDIT_PREFIX, AuditLine
    from ...metadata.model.interface import Scan

    async def work(metadata: Any) -> list[Any]:
        return [AuditLine.decode(one.value) async for one in Scan(metadata, AUDIT_PREFIX)]

    lines = asked(settings, "the audit", work)
    columns = ("time", "principal", "address", "action", "subject")
    rows = [
        [time_of(line.ms), line.principal, line.address, line.action, line.subject]
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
    from ...metadata.node.admin_recovery import store_rescue
    from ...metadata.storage.member_identity import load_members
    from ...runtime.disk.node_identity import load_identity
    from ...runtime.interfaces.errors import ForeignData
    from ..cluster.metadata_backups import locked
    from ..connection.cluster_connection import run

    async def tell(directory: Path) -> dict[str, str]:
        place = directory / "metadata"
        if not place.is_dir():
            raise click.UsageError(f"{directory} is no data directory of a metadata node")
        async with locked(place) as disk:
            members, identity = await load_members(disk), await load_identity(disk)
            if members is None or identity is None:
                raise ForeignData(f"{directory} belongs to no cluster: there is nobody to ask")
            await store_rescue(disk, admin)
            return {"node": identity.label, "cluster": members.cluster_id, "admin": admin}

    async def work() -> list[dict[str, str]]:
        return [await tell(directory) for directory in directories]

    for found in run(work):
        if settings.json:
            emit(found)
        else:
            print(
                f"{found['node']} of cluster {found['cluster']} asks for the admin {admin} when it is"
                " started; it is done when a majority of the metadata nodes does"
            )


async def users_and_grants(metadata: Any) -> tuple[dict[str, Any], list[tuple[str, str, str, str]]]:
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
        one.key.removeprefix(USER_PREFIX).decode(): User.decode(one.value)
        async for one in Scan(metadata, USER_PREFIX)
    }
    grants = [
        (*grant_of(one.key), decode_grant(one.value)) async for one in Scan(metadata, GRANT_PREFIX)
    ]
    return users, grants


def spaces_of(report: Any) -> list[NamespaceUsageReport]:
    """The fullest first."""
    return [NamespaceUsageReport(*one) for one in report.spaces]


def change(settings: Settings, said: str, *wanted: str, ask: str = "", force: bool = False) -> None:
    """Have it changed, then print ``said``. ``ask``: the question of `confirmed`."""

    def send(forced: bool) -> None:
        asked(
            settings,
            "changing rights",
            lambda metadata: metadata.change_trust(*wanted, force=forced),
        )

    confirmed(ask, force, send)
    if settings.json:
        emit({"changed": list(wanted)})
    else:
        settings.note(said)


@click.command(cls=CliCommand, examples="dlog whoami")
@common
def whoami(settings: Settings) -> None:
    """Show your principal and your roles on the cluster."""
    from ...metadata.model.rights import ADMIN, OPERATOR

    report = asked(settings, "who this is", lambda metadata: metadata.trust_report(own=True))
    held = [
        word for word, right in (("operator", OPERATOR), ("admin", ADMIN)) if report.rights & right
    ]
    if settings.json:
        emit({"principal": report.principal, "mode": WORDS[report.mode], "cluster": held})
    else:
        print(f"{report.principal}, {' and '.join(held) or 'no role of the cluster'}")


def asked(settings: Settings, what: str, call: Any) -> Any:
    """The answer of the metadata nodes."""
    from ..connection.cluster_connection import ask, quorum

    return ask(settings, what, call, quorum)


def time_of(ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
