"""`dlog user`: manage users and their tokens."""

from pathlib import Path

import click

from ...runtime.disk.output_file import output_file, write_file
from ...runtime.interfaces.errors import InvalidRequest
from ..framework.options import (
    CliCommand,
    Group,
    Settings,
    common,
    confirmed_destination,
    force_option,
    require_consent,
)
from ..framework.output import emit, rows_or_table
from .trust import change_rights, load_users_and_grants, query_metadata, time_text

CA_FILE = "ca.pem"


@click.group(
    cls=Group,
    examples="""
    dlog user add etl
    dlog user list
    dlog user token etl --days 30             write a token to a file
    dlog user disable etl                     end all access of a user
    """,
)
def command() -> None:
    """Create, list, disable and remove users, and create tokens.

    NAME is the part after user/ in a certificate.
    """


@command.command(cls=CliCommand, examples="dlog user add etl")
@click.argument("name")
@common
def add(settings: Settings, name: str) -> None:
    """Add a user, without rights."""
    change_rights(
        settings,
        f"created user {name}, without rights. Next: dlog grant add {name} ROLE PATH",
        "user",
        name,
    )


@command.command(name="list", cls=CliCommand, examples="dlog user list\ndlog user list --json")
@common
def list_users(settings: Settings) -> None:
    """List the users, with the number of their grants.

    With --json, the command prints one object per line.
    """
    users, grants = query_metadata(settings, "the users", load_users_and_grants)
    rows = [
        [
            name,
            user_record.disabled,
            sum(grant[0] == name for grant in grants),
            time_text(user_record.made_ms),
        ]
        for name, user_record in users.items()
    ]
    columns = ("name", "disabled", "grants", "made")
    rows_or_table(settings.json, columns, rows, empty="there are no users")


@command.command(cls=CliCommand, examples="dlog user disable etl")
@click.argument("name")
@common
def disable(settings: Settings, name: str) -> None:
    """Disable a user and end its connections.

    The grants are kept.
    """
    change_rights(settings, f"disabled user {name}", "disable", name)


@command.command(cls=CliCommand, examples="dlog user enable etl")
@click.argument("name")
@common
def enable(settings: Settings, name: str) -> None:
    """Enable a user again, with its grants."""
    change_rights(settings, f"enabled user {name}, with its grants", "enable", name)


@command.command(cls=CliCommand, examples="dlog user remove etl --force")
@click.argument("name")
@force_option
@common
def remove(settings: Settings, name: str, force: bool) -> None:
    """Remove a user and all its grants."""
    require_consent(f"remove user {name} and all its grants", force)
    change_rights(settings, f"removed user {name} and all its grants", "remove", name)


@command.command(
    cls=CliCommand,
    examples="""
    dlog user token etl --days 30                              write etl.token with all rights of etl
    dlog user token etl --path orders/ --role reader           restrict it to reading a directory
    dlog user token --output mine/token                        create a token for yourself, for one day
    """,
)
@click.argument("name", required=False)
@click.option(
    "--days",
    type=click.FloatRange(min=0, max=90, min_open=True),
    help="Validity in days (default 1, maximum 90; for your own token, maximum 1).",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Restrict the token to a log, a directory/, or / for the namespace. Repeatable.",
)
@click.option(
    "--role",
    type=click.Choice(["reader", "writer", "owner", "producer", "consumer"]),
    default="reader",
    help="Restrict the token to this role on the paths of --path (default reader).",
)
@click.option("--output", metavar="FILE", help='File to write (default NAME.token); "-" is stdout.')
@force_option
@common
def token(
    settings: Settings,
    name: str | None,
    days: float | None,
    paths: tuple[str, ...],
    role: str,
    output: str | None,
    force: bool,
) -> None:
    """Create a token.

    Everyone with the token has the rights of the user, until the token expires or until `dlog user revoke`.
    The command writes it to a file that only you can read, and ca.pem of the cluster next to it. Use it with
    `--credentials file:FILE`. Only an admin can create tokens of other users. Without NAME, it is your own
    token.
    """
    from ...metadata.model.rights import ROLES
    from ...runtime.protocol.tokens import read_token
    from ...uri import parse_uri

    namespace = parse_uri(settings.where()).path if paths else ""
    if paths and not namespace:
        raise click.UsageError("--path requires a URI with a namespace")
    if not all(paths):  # an unset variable of a script must not mean the whole namespace
        raise click.UsageError(
            "--path is empty: specify a log, a directory/, or / for the whole namespace"
        )
    scope = tuple((namespace, "" if path == "/" else path, ROLES[role]) for path in paths)
    valid_s = int((1 if days is None else days) * 24 * 3600)
    file = Path(output or f"{name or 'own'}.token")
    target = confirmed_destination(file, force)
    authority = None if target.file is None else _authority_for(file, settings)
    with output_file(
        file, secret=True, reader_wait_s=settings.timeout_s
    ) as out_file:  # opened first: no token is created that cannot be written
        token_bytes: bytes = query_metadata(
            settings,
            "a token",
            lambda metadata: metadata.make_token(name or "", valid_s=valid_s, token_scope=scope),
        )
        out_file.write(token_bytes + b"\n")
    parsed_token = read_token(token_bytes)
    ends = time_text(parsed_token.ends_s * 1000)
    if authority is not None:
        write_file(file.parent / CA_FILE, authority)
    if target.file is None:
        return
    if settings.json:
        emit({"user": parsed_token.user, "file": str(file), "ends": ends})
    else:
        settings.note(f"created token {file} of user {parsed_token.user}, valid until {ends}")


def _authority_for(file: Path, settings: Settings) -> bytes | None:
    """Return the content of ca.pem for the directory of the file, or None if it exists there.

    Raises:
        InvalidRequest: The credentials have no ca.pem.
    """
    import os

    from ...runtime.machine import expand_path

    if (file.parent / CA_FILE).exists():
        return None
    settings.where()
    credentials = os.environ.get("DLOG_CREDENTIALS", "").partition(":")[2]
    credentials_path = expand_path(credentials) if credentials else None
    source = (
        None
        if credentials_path is None
        else (credentials_path if credentials_path.is_dir() else credentials_path.parent) / CA_FILE
    )
    if source is None or not source.is_file():
        raise InvalidRequest(
            "tokens require a cluster with TLS: specify your identity with --credentials file:DIR"
        )
    return source.read_bytes()


@command.command(
    cls=CliCommand, examples="dlog user revoke etl\ndlog user revoke etl --serial 5f0c"
)
@click.argument("name")
@click.option(
    "--serial", default="", help="Serial number of a certificate: the cluster also refuses it."
)
@common
def revoke(settings: Settings, name: str, serial: str) -> None:
    """Revoke all present tokens of a user.

    With --serial, the cluster also refuses this certificate of the user.
    """
    if serial:
        done_text = f"revoked certificate {serial} and all present tokens of user {name}"
        change_rights(settings, done_text, "refuse", name, serial)
    else:
        change_rights(settings, f"revoked all present tokens of user {name}", "tokens", name)
