"""`dlog user`: who there is."""

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
    dlog user token etl --days 30             into a file
    dlog user disable etl                     at once, everywhere
    """,
)
def command() -> None:
    """Make, list, disable and remove users, and make tokens. NAME is what a certificate has after user/."""


@command.command(cls=CliCommand, examples="dlog user add etl")
@click.argument("name")
@common
def add(settings: Settings, name: str) -> None:
    """A user without any right."""
    change_rights(
        settings,
        f"{name} is a user, without any right: dlog grant add {name} ROLE PATH",
        "user",
        name,
    )


@command.command(name="list", cls=CliCommand, examples="dlog user list\ndlog user list --json")
@common
def list_users(settings: Settings) -> None:
    """The users, with the number of their grants; with --json one object a line."""
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
    """End all that it may do, and its connections; its grants stay."""
    change_rights(settings, f"{name} is disabled", "disable", name)


@command.command(cls=CliCommand, examples="dlog user enable etl")
@click.argument("name")
@common
def enable(settings: Settings, name: str) -> None:
    """It may do again what its grants say."""
    change_rights(settings, f"{name} may do again what its grants say", "enable", name)


@command.command(cls=CliCommand, examples="dlog user remove etl --force")
@click.argument("name")
@force_option
@common
def remove(settings: Settings, name: str, force: bool) -> None:
    """With all its grants."""
    require_consent(f"remove user {name} and all its grants", force)
    change_rights(settings, f"{name} is removed, with all its grants", "remove", name)


@command.command(
    cls=CliCommand,
    examples="""
    dlog user token etl --days 30                              etl.token: all that etl may
    dlog user token etl --log orders/ --right reader           that alone, of a directory
    dlog user token --out mine/token                           for yourself, for a day
    """,
)
@click.argument("name", required=False)
@click.option(
    "--days",
    type=click.FloatRange(min=0, max=90, min_open=True),
    help="Until it ends; default 1, and at most 90, of your own 1.",
)
@click.option(
    "--log", "paths", multiple=True, metavar="PATH", help="A log, a directory/, or /; repeatable."
)
@click.option(
    "--right",
    type=click.Choice(["reader", "writer", "owner", "producer", "consumer"]),
    default="reader",
    help="On these (default reader); never more than the user itself.",
)
@click.option("--out", metavar="FILE", help='Default NAME.token; "-" is standard output.')
@force_option
@common
def token(
    settings: Settings,
    name: str | None,
    days: float | None,
    paths: tuple[str, ...],
    right: str,
    out: str | None,
    force: bool,
) -> None:
    """Make a token: who has it is that user until it ends, or until `dlog user revoke`.

    It goes into a file that nobody else can read, with the cluster's ca.pem beside it:
    `--credentials file:FILE`. An admin makes them for others; without NAME it is your own.
    """
    from ...metadata.model.rights import ROLES
    from ...runtime.protocol.tokens import read_token
    from ...uri import parse_uri

    namespace = parse_uri(settings.where()).path if paths else ""
    if paths and not namespace:
        raise click.UsageError("--log names a log of the URI's namespace, and the URI has none")
    if not all(paths):  # an unset variable of a script must not mean the whole namespace
        raise click.UsageError(
            "--log is empty: give a log, a directory/, or / for the whole namespace"
        )
    scope = tuple((namespace, "" if path == "/" else path, ROLES[right]) for path in paths)
    valid_s = int((1 if days is None else days) * 24 * 3600)
    file = Path(out or f"{name or 'own'}.token")
    target = confirmed_destination(file, force)
    authority = None if target.file is None else _authority_for(file, settings)
    with output_file(
        file, secret=True, reader_wait_s=settings.timeout_s
    ) as out_file:  # before a token is made that has no file
        token_bytes: bytes = query_metadata(
            settings,
            "a token",
            lambda metadata: metadata.make_token(name or "", valid_s=valid_s, narrowing=scope),
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
        settings.note(f"{file}: a token of {parsed_token.user} until {ends}")


def _authority_for(file: Path, settings: Settings) -> bytes | None:
    """What is to stand beside the file as ca.pem; None: it does. Raises `InvalidRequest`."""
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
            "a token is for clusters with TLS: say who you are by --credentials file:DIR"
        )
    return source.read_bytes()


@command.command(
    cls=CliCommand, examples="dlog user revoke etl\ndlog user revoke etl --serial 5f0c"
)
@click.argument("name")
@click.option("--serial", default="", help="Of a certificate: that, too; default: all tokens.")
@common
def revoke(settings: Settings, name: str, serial: str) -> None:
    """Take no token any more that was made up to now, nor one certificate."""
    if serial:
        done_text = f"certificate {serial} of {name} is refused, and all tokens of up to now"
        change_rights(settings, done_text, "refuse", name, serial)
    else:
        change_rights(settings, f"all tokens of {name} of up to now are void", "tokens", name)
