"""`dlog grant`: who may do what with which logs."""

import click

from ...metadata.model.rights import CLUSTER_ROLES, ROLES
from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import emit, rows_or_table
from .trust import asked, change, users_and_grants


@click.group(
    cls=Group,
    examples="""
    dlog grant add etl writer orders/         on all logs of a directory of the URI's namespace
    dlog grant add etl reader orders          on one log
    dlog grant add ann owner /                on the whole namespace
    dlog grant add ops operator               on the cluster
    dlog grant check etl orders/eu
    """,
)
def command() -> None:
    """Say who may do what with which logs of the URI's namespace, or on the cluster.

    \b
    reader    read                      operator  run the cluster, read no record
    writer    read, write               admin     say who may do what, and run it
    owner     and create, delete, cut   producer, consumer  through proxies alone

    A PATH is a log's name, a directory that ends in a slash, or a slash alone: all of the namespace.
    """


@command.command(name="add", cls=CliCommand, examples="dlog grant add etl writer orders/")
@click.argument("name")
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("path", required=False)
@common
def add_grant(settings: Settings, name: str, role: str, path: str | None) -> None:
    """Give a user a role on a path, instead of the one that it may have there."""
    namespace, place = _place(settings, role, path)
    change(
        settings,
        f"{name}: {role} on {_where(namespace, place)}",
        "grant",
        name,
        role,
        namespace,
        place,
    )


@command.command(name="revoke", cls=CliCommand, examples="dlog grant revoke etl orders/")
@click.argument("name")
@click.argument("path", required=False)
@common
def revoke_grant(settings: Settings, name: str, path: str | None) -> None:
    """Take away what a user has on exactly this path; without one, its role on the cluster."""
    role = "admin" if path is None else "reader"
    namespace, place = _place(settings, role, path)
    change(
        settings,
        f"{name}: nothing on {_where(namespace, place)} any more",
        "revoke",
        name,
        namespace,
        place,
    )


@command.command(
    name="list", cls=CliCommand, examples="dlog grant list\ndlog grant list --user etl"
)
@click.option("--user", "name", default="", help="Of that user alone.")
@common
def list_grants(settings: Settings, name: str) -> None:
    """All grants, of all namespaces; with --json one object a line."""
    _, grants = asked(settings, "the grants", users_and_grants)
    columns = ("user", "role", "namespace", "path")
    rows = [
        [who, role, namespace, path or ("/" if namespace else "")]
        for who, namespace, path, role in grants
        if name in ("", who)
    ]
    rows_or_table(settings.json, columns, rows, empty="there are no grants")


@command.command(cls=CliCommand, examples="dlog grant check etl orders/eu")
@click.argument("name")
@click.argument("log")
@common
def check(settings: Settings, name: str, log: str) -> None:
    """What a user may do with a log, there or not, and by which grants (exit code 6: nothing)."""
    from ...metadata.model.rights import words
    from ...runtime.protocol.tokens import covers
    from ...uri import parse_uri

    users, grants = asked(settings, "the grants", users_and_grants)
    namespace = parse_uri(settings.where()).path
    found = [
        (role, path)
        for who, of, path, role in grants
        if who == name and of == namespace and covers(path, log)
    ]
    one = users.get(name)
    rights = 0
    for role, _ in found:
        rights |= ROLES[role]
    if one is None or one.disabled:
        rights = 0
    if settings.json:
        emit(
            {
                "user": name,
                "known": one is not None,
                "disabled": one is not None and one.disabled,
                "rights": words(rights).split(" or ") if rights else [],
                "grants": [{"role": role, "path": path or "/"} for role, path in found],
            }
        )
    elif one is None:
        print(f"there is no user {name}")
    elif one.disabled:
        print(f"{name} is disabled")
    else:
        print(f"{name}: {words(rights).replace(' or ', ', ') if rights else 'nothing'}")
        for role, path in found:
            print(f"  {role} on {namespace}/{path}")
    if not rights:
        raise ExitWithCode(NO)


def _where(namespace: str, path: str) -> str:
    return f"{namespace}/{path}" if namespace else "the cluster"


def _place(settings: Settings, role: str, path: str | None) -> tuple[str, str]:
    """Namespace and path of a grant."""
    from ...uri import parse_uri

    if role in CLUSTER_ROLES and path is None:
        return "", ""
    if role in CLUSTER_ROLES or path is None:
        raise click.UsageError(
            f"{role} is given on the cluster, without a path"
            if role in CLUSTER_ROLES
            else f"{role} is given on a PATH: a log, a directory/, or / for the whole namespace"
        )
    if not path:  # an unset variable of a script must not mean the whole namespace
        raise click.UsageError(
            "PATH is empty: give a log, a directory/, or / for the whole namespace"
        )
    return parse_uri(settings.where()).path, "" if path == "/" else path
