"""`dlog config`: list options with values and reasons, write and check node files."""

import textwrap
from pathlib import Path
from typing import Any

import click

from ..framework.options import CliCommand, Group, Settings, read_text, without_cluster
from ..framework.output import emit, table

PARTS = ("bookie", "proxy", "gateway", "client", "log", "retention", "merging", "formats", "ledger")
KINDS = ("bookie", "metadata", "write-proxy", "read-proxy", "gateway")
"""Kinds of node files."""
LINE_CHARS = 80
"""Maximum line length of a file: the usual width of a terminal."""
PROXY_HEAD = """# A {kind}'s settings: dlog serve {kind} --config FILE
# Commented-out settings show their default value, or an example.
# Sizes can be written as "64MiB", times as "10m".

[{kind}]
metadata = "h1:4181,h2:4181,h3:4181"
listen = "0.0.0.0:{port}"
tls = "/etc/dlog/tls"         # from "dlog pki issue"; or insecure = true, which
                              # gives all rights to every client
# name = "{name}"
# advertise = "h7:{port}"       # address for other nodes, if not that of listen
# http = "127.0.0.1:8480"     # GET /health
# rack = "r1"
# Options of logs and ledgers are also allowed here: see "dlog config show
# log".
"""
FILE_HEADERS = {
    "bookie": """# A bookie's settings: dlog serve bookie --config FILE
# Commented-out settings show their default value, or an example.
# Sizes can be written as "64MiB", times as "10m".

[bookie]
metadata = "h1:4181,h2:4181,h3:4181"
data = "/var/lib/dlog/bookie"
listen = "0.0.0.0:4182"
tls = "/etc/dlog/tls"         # from "dlog pki issue"; or insecure = true, which
                              # gives all rights to every client
# advertise = "h4:4182"       # address for other nodes, if not that of listen
# index-dir = "/fast/index"   # default: in data
# http = "127.0.0.1:8480"     # GET /health
# rack = "r1"
# label = ["zone=z1"]         # further placement labels; host is this
                              # machine unless it is given
""",
    "metadata": """# A metadata node's settings: dlog serve metadata --config FILE

[metadata]
name = "m1"
metadata = "m1=h1:4181,m2=h2:4181,m3=h3:4181"
data = "/var/lib/dlog/metadata"
# listen = "0.0.0.0:4181"     # default: this node's address in metadata
tls = "/etc/dlog/tls"         # from "dlog pki issue"; or insecure = true, which
                              # gives all rights to every client
# http = "127.0.0.1:8480"     # GET /health
""",
    "write-proxy": PROXY_HEAD.format(kind="write-proxy", port=4183, name="w1"),
    "read-proxy": PROXY_HEAD.format(kind="read-proxy", port=4184, name="r1"),
    "gateway": """# A gateway's settings: dlog serve gateway --config FILE
# Commented-out settings show their default value, or an example.
# Sizes can be written as "64MiB", times as "10m".

[gateway]
uri = "distributedlog+proxy://h7:4183,h8:4184/ns"
# listen = "127.0.0.1:8491"
# allow-host = ["logs.example.org"]   # its host names, if other machines use
                                      # it
# token-file = "/etc/dlog/token"      # clients must send this token
# users = true                        # a request has the rights of the user
                                      # whose token it carries
# tls = "/etc/dlog/https"             # cert.pem and key.pem of the listener
""",
}


@click.group(
    cls=Group,
    examples="""
    dlog config show bookie
    dlog config show bookie --file node.toml --changed
    dlog config show log segment_bytes_max
    dlog config init bookie > node.toml
    dlog config check node.toml
    """,
)
def command() -> None:
    """List all options with values and reasons; write and check the files of nodes.

    To show the stored settings of a log or a namespace, use "dlog log config".
    """


@command.command(
    cls=CliCommand,
    examples="""
    dlog config show                        list the parts
    dlog config show bookie --file node.toml --changed
    dlog config show bookie lost_after_s    show one option, with its reason
    """,
)
@click.argument("part", required=False, type=click.Choice(PARTS))
@click.argument("name", required=False, metavar="[OPTION]")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of a bookie whose values are shown.",
)
@click.option("--changed", is_flag=True, help="Show only options that are not at their default.")
@without_cluster()
def show(
    settings: Settings, part: str | None, name: str | None, file: Path | None, changed: bool
) -> None:
    """List the options of a part with value, unit and origin.

    With OPTION, the command shows also the accepted values and the reason of this option. Without PART, it
    lists the parts.
    """
    if part is None:
        click.echo("\n".join(PARTS))
        return
    if file is not None and part != "bookie":
        raise click.UsageError(
            "--file is for a bookie; programs set the options of the other parts"
        )
    rows = _option_rows(part, file)
    if name is not None:
        rows = [row for row in rows if row["option"] == name]
        if not rows:
            raise click.UsageError(f'{part} has no option {name!r}: see "dlog config show {part}"')
    if changed:
        rows = [row for row in rows if row["value"] != row["default"]]
    if settings.json:
        for row in rows:
            emit(row)
    elif name is not None:
        for key, value in rows[0].items():
            click.echo(
                f"{key:8} {_value_text(value, rows[0]['unit'] if key in ('value', 'default') else '')}"
            )
    else:
        table(
            ("option", "value", "unit", "from"),
            [
                [row["option"], _value_text(row["value"], row["unit"]), row["unit"], row["from"]]
                for row in rows
            ],
            empty="all options are at their default",
        )


@command.command(cls=CliCommand, examples="dlog config check /etc/dlog/bookie.toml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@without_cluster()
def check(settings: Settings, file: Path) -> None:
    """Check the file of a node.

    The command prints the first error with its location, and ends with exit code 2.
    """
    from ...cluster.declarations.config import parse_file, parse_named_addresses, parse_quorum
    from .node_settings import read_file

    parts = [kind for kind in KINDS if kind in parse_file(read_text(file), str(file))]
    if not parts:
        read_file(file, "bookie")  # names an unknown table
        raise click.UsageError(
            f"{file} has none of the tables {', '.join(f'[{kind}]' for kind in KINDS)}"
        )
    for part in parts:
        flags, _ = read_file(file, part)
        if "metadata" in flags:
            parse_quorum(flags["metadata"], f"{file}: [{part}] metadata")
        for key in ("listen", "advertise") if part != "gateway" else ():
            value = flags.get(key, ())
            parse_named_addresses(
                [value] if isinstance(value, str) else value, f"{file}: [{part}] {key}"
            )
    if settings.json:
        emit({"file": str(file), "parts": parts, "ok": True})
    else:
        settings.note(f"{file}: valid, for {' and '.join(parts)}")


@command.command(cls=CliCommand, examples="dlog config init bookie > bookie.toml")
@click.argument("kind", type=click.Choice(KINDS))
@without_cluster()
def init(settings: Settings, kind: str) -> None:
    """Print a file for a node, with all options.

    Every option is commented out, with its default, unit and reason.
    """
    click.echo(config_file_text(kind), nl=False)


def config_file_text(kind: str) -> str:
    """Return the file that `init` prints."""
    text = FILE_HEADERS[kind]
    if kind == "bookie":
        from .node_settings import BOOKIE_NODE_OPTIONS, STORE_OPTIONS

        text += (
            "\n" + "\n".join(map(_commented_option, BOOKIE_NODE_OPTIONS.values())) + "\n[store]\n"
        )
        text += "\n".join(map(_commented_option, STORE_OPTIONS.values()))
    elif kind != "metadata":
        from ...runtime.declarations.options import option_fields

        [option_class] = _option_classes("gateway" if kind == "gateway" else "proxy")
        text += "\n" + "\n".join(map(_commented_option, option_fields(option_class)))
    return text


def _commented_option(option_field: Any) -> str:
    from ...runtime.declarations.options import describe_legal_values, format_value

    unit = option_field.metadata["unit"]
    value = (
        format_value(option_field.default, unit)
        if unit == "bytes" and option_field.default
        else None
    )
    value_text = (
        f'"{value.replace(" ", "").replace(",", "")}"' if value else _toml(option_field.default)
    )
    unit_text = f"{unit}, " if unit and unit != "bytes" else ""
    legal_values, reason = (
        describe_legal_values(option_field, brief=True),
        option_field.metadata["reason"],
    )
    comment = f"{unit_text}{legal_values}: {reason}".replace("`", "")
    lines = textwrap.wrap(
        comment,
        LINE_CHARS,
        initial_indent="#     ",
        subsequent_indent="#     ",
        break_on_hyphens=False,
    )
    return "\n".join([f"# {option_field.name} = {value_text}", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _option_rows(part: str, file: Path | None) -> list[dict[str, Any]]:
    from ...runtime.declarations.options import describe_legal_values, option_fields

    file_values: dict[str, Any] = {}
    if file is not None:
        from .node_settings import read_file, split_settings

        node, store = split_settings(read_file(file, "bookie")[1], str(file))
        file_values = {**node, **store}
    return [
        {
            "option": option_field.name,
            "value": file_values.get(option_field.name, option_field.default),
            "default": option_field.default,
            "unit": option_field.metadata["unit"],
            "from": str(file) if option_field.name in file_values else "default",
            "takes": describe_legal_values(option_field),
            "reason": option_field.metadata["reason"],
        }
        for cls in _option_classes(part)
        for option_field in option_fields(cls)
    ]


def _option_classes(part: str) -> list[type]:
    if part == "bookie":
        from ...bookie.declarations.options import BookieOptions
        from ...cluster.declarations.options import BookieNodeConfig

        return [BookieNodeConfig, BookieOptions]
    if part == "proxy":
        from ...proxy.declarations.options import ProxyOptions

        return [ProxyOptions]
    if part == "gateway":
        from ...gateway.options import GatewayOptions

        return [GatewayOptions]
    if part == "client":
        from ...connect import ClientOptions

        return [ClientOptions]
    if part == "ledger":
        from ...ledger.declarations.options import LedgerOptions

        return [LedgerOptions]
    if part == "log":
        from ...log.declarations.options import LogOptions

        return [LogOptions]
    from ...log.model.stored_settings import FormatOptions, MergingOptions, RetentionOptions

    stored_parts = {
        "retention": RetentionOptions,
        "merging": MergingOptions,
        "formats": FormatOptions,
    }
    return [stored_parts[part]]


def _value_text(value: Any, unit: str) -> str:
    from ...runtime.declarations.options import format_value

    return format_value(value, unit) if isinstance(value, bool | int | float | str) else str(value)
