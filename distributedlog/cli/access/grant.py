"""`dlog grant`: manage the grants of users on logs."""

import click

from ...metadata.model.rights import CLUSTER_ROLES, ROLES
from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common
from ..framework.output import emit, rows_or_table
from .trust import change_rights, load_users_and_grants, query_metadata


@click.group(
    cls=Group,
    examples="""
    dlog grant add etl writer orders/         grant on all logs of a directory
    dlog grant add etl reader orders          grant on one log
    dlog grant add ann owner /                grant on the whole namespace of the URI
    dlog grant add ops operator               grant on the cluster
    dlog grant check etl orders/eu
    """,
)
def command() -> None:
    """Manage the grants of users on logs of the URI's namespace, or on the cluster.

    \b
    reader    read                     operator  run the cluster, read no records
    writer    read, write              admin     run the cluster, change grants
    owner     read, write, create,     producer  write through proxies only
              delete, truncate         consumer  read through proxies only

    PATH is the name of a log, a directory with a final slash, or / for the whole namespace.
    """


@command.command(name="add", cls=CliCommand, examples="dlog grant add etl writer orders/")
@click.argument("name")
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("path", required=False)
@common
def add_grant(settings: Settings, name: str, role: str, path: str | None) -> None:
    """Grant a user a role on a path.

    The role replaces the user's present role on this path. The roles operator and admin have no PATH.
    """
    namespace, log_path = _parse_location(settings, role, path)
    change_rights(
        settings,
        f"granted role {role} on {_location_text(namespace, log_path)} to user {name}",
        "grant",
        name,
        role,
        namespace,
        log_path,
    )


@command.command(name="revoke", cls=CliCommand, examples="dlog grant revoke etl orders/")
@click.argument("name")
@click.argument("path", required=False)
@common
def revoke_grant(settings: Settings, name: str, path: str | None) -> None:
    """Revoke the role of a user on exactly this path.

    Without PATH, the command revokes the role on the cluster.
    """
    role = "admin" if path is None else "reader"
    namespace, log_path = _parse_location(settings, role, path)
    change_rights(
        settings,
        f"revoked the role of user {name} on {_location_text(namespace, log_path)}",
        "revoke",
        name,
        namespace,
        log_path,
    )


@command.command(
    name="list", cls=CliCommand, examples="dlog grant list\ndlog grant list --user etl"
)
@click.option("--user", "name", default="", help="Only grants of this user.")
@common
def list_grants(settings: Settings, name: str) -> None:
    """List the grants of all namespaces.

    With --json, the command prints one object per line.
    """
    _, grants = query_metadata(settings, "the grants", load_users_and_grants)
    columns = ("user", "role", "namespace", "path")
    rows = [
        [user_name, role, namespace, path or ("/" if namespace else "")]
        for user_name, namespace, path, role in grants
        if name in ("", user_name)
    ]
    rows_or_table(settings.json, columns, rows, empty="there are no grants")


@command.command(cls=CliCommand, examples="dlog grant check etl orders/eu")
@click.argument("name")
@click.argument("log")
@common
def check(settings: Settings, name: str, log: str) -> None:
    """Show the rights of a user on a log, and the grants that give them.

    The log need not exist. The exit code is 6 if the user has no rights.
    """
    from ...metadata.model.rights import describe_rights
    from ...runtime.protocol.tokens import covers
    from ...uri import parse_uri

    users, grants = query_metadata(settings, "the grants", load_users_and_grants)
    namespace = parse_uri(settings.where()).path
    user_grants = [
        (role, path)
        for user_name, grant_namespace, path, role in grants
        if user_name == name and grant_namespace == namespace and covers(path, log)
    ]
    user_record = users.get(name)
    rights = 0
    for role, _ in user_grants:
        rights |= ROLES[role]
    if user_record is None or user_record.disabled:
        rights = 0
    if settings.json:
        emit(
            {
                "user": name,
                "known": user_record is not None,
                "disabled": user_record is not None and user_record.disabled,
                "rights": describe_rights(rights).split(" or ") if rights else [],
                "grants": [{"role": role, "path": path or "/"} for role, path in user_grants],
            }
        )
    elif user_record is None:
        print(f"there is no user {name}")
    elif user_record.disabled:
        print(f"{name} is disabled")
    else:
        print(f"{name}: {describe_rights(rights).replace(' or ', ', ') if rights else 'no rights'}")
        for role, path in user_grants:
            print(f"  {role} on {namespace}/{path}")
    if not rights:
        raise ExitWithCode(NO)


def _location_text(namespace: str, path: str) -> str:
    return f"{namespace}/{path}" if namespace else "the cluster"


def _parse_location(settings: Settings, role: str, path: str | None) -> tuple[str, str]:
    """Return namespace and path of a grant."""
    from ...uri import parse_uri

    if role in CLUSTER_ROLES and path is None:
        return "", ""
    if role in CLUSTER_ROLES or path is None:
        raise click.UsageError(
            f"the role {role} is granted on the cluster, without a path"
            if role in CLUSTER_ROLES
            else f"the role {role} requires a PATH: a log, a directory/, or / for the whole namespace"
        )
    if not path:  # an unset variable of a script must not mean the whole namespace
        raise click.UsageError(
            "PATH is empty: specify a log, a directory/, or / for the whole namespace"
        )
    return parse_uri(settings.where()).path, "" if path == "/" else path
