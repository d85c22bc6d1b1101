"""`dlog serve`: run one node in the foreground until SIGINT or SIGTERM."""

import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..framework.options import CliCommand, Group, Settings, common, read_text, without_cluster

if TYPE_CHECKING:
    import trio

GATEWAY_LISTEN = "127.0.0.1:8491"
TOKEN_CHARS_MIN = 16

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group(
    cls=Group,
    examples="""
    dlog serve metadata --name m1 --tls m1.tls --metadata m1=h1:4181,m2=h2:4181,m3=h3:4181 --data ./m1
    dlog serve bookie --name b4 --tls b4.tls --metadata h1:4181,h2:4181,h3:4181 --listen h4:4182 --data ./b4
    """,
)
def command() -> None:
    """Run one node.

    When the node is ready, it prints one line to stdout. Logs are written to stderr. On a terminal, both are
    text. Otherwise, and with --json, they are JSON, for a supervisor. The node ends with SIGINT or SIGTERM.
    """


CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with flags and options in a table of the node's kind, such as [bookie], and in [store]."
    ' "dlog config init bookie" writes one.',
)


def with_node_options(function: Function) -> Function:
    """Add the options of nodes that have a disk."""
    for option in reversed(
        [
            CONFIG,
            click.option(
                "--data",
                type=click.Path(file_okay=False, path_type=Path),
                help="Data directory.",
            ),
        ]
    ):
        function = option(function)
    return with_common_node_options(function)


def with_common_node_options(function: Function) -> Function:
    """Add the options of all node kinds."""
    options = [
        click.option(
            "--name",
            help="Name of the node: for a metadata node as in --metadata, otherwise a display name. The"
            " default of a bookie is the name of its directory.",
        ),
        click.option(
            "--metadata",
            "quorum",
            metavar="[NAME=]HOST:PORT,…",
            help="Addresses of the metadata quorum.",
        ),
        click.option(
            "--listen",
            multiple=True,
            metavar="[NAME=]HOST:PORT",
            help="Address to listen on (default 127.0.0.1 and a free port; for a metadata node the one in"
            " --metadata). Repeatable with different names.",
        ),
        click.option(
            "--advertise",
            multiple=True,
            metavar="[NAME=]HOST:PORT",
            help="Address under which others reach that listener (default: the address it listens on).",
        ),
        click.option(
            "--http",
            metavar="HOST:PORT",
            help="Address for GET /health, for containers: 200 if this node is healthy, otherwise 503.",
        ),
        click.option(
            "--tls",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help='Certificate directory: created by "dlog pki issue". It also identifies the node.',
        ),
        click.option(
            "--transport",
            type=click.Choice(("tls", "either")),
            help='Accepted connections (default tls). "either" also accepts plain ones, during a migration.',
        ),
        click.option(
            "--insecure",
            is_flag=True,
            help="Allow other machines to connect without TLS. Every client then has all rights.",
        ),
        click.option(
            "--end-with-stdin",
            is_flag=True,
            help="End when stdin ends, for a parent process.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command(
    cls=CliCommand,
    examples="""
    dlog serve metadata --name m1 --tls m1.tls --metadata m1=h1:4181,m2=h2:4181,m3=h3:4181 --data ./m1
    dlog serve metadata --metadata 127.0.0.1:4181 --data ./m        run a quorum of one node
    """,
)
@with_node_options
@without_cluster()
def metadata(settings: Settings, **option_values: Any) -> None:
    """Run a node of the metadata quorum."""
    from ...cluster.declarations.config import format_address, parse_named_addresses, parse_quorum
    from ...cluster.declarations.options import MetadataNodeConfig

    option_values = _merge_file(option_values, "metadata")
    voters = parse_quorum(_required(option_values, "quorum", "--metadata"))
    listen = parse_named_addresses(option_values["listen"], "--listen")
    name = option_values["name"]
    if name is None:
        matching_names = [
            voter_name
            for voter_name, address in voters.items()
            if address in listen.values() or len(voters) == 1
        ]
        if len(matching_names) != 1:
            raise click.UsageError(f"--name is required: select this node from {', '.join(voters)}")
        name = matching_names[0]
    if name not in voters:
        by_address = [
            voter_name for voter_name, address in voters.items() if format_address(address) == name
        ]
        if not by_address:
            raise click.UsageError(f"--name {name} is not in --metadata: {', '.join(voters)}")
        name = by_address[0]
    advertise = parse_named_addresses(option_values["advertise"], "--advertise")
    _serve_node(settings, option_values, MetadataNodeConfig(name, voters, listen, advertise))


@command.command(
    cls=CliCommand,
    examples="""
    dlog serve bookie --name b4 --tls b4.tls --metadata h1:4181,h2:4181,h3:4181 --listen h4:4182 --data ./b4
    dlog serve bookie --metadata 127.0.0.1:4181 --data ./b1         listen on a free port
    """,
)
@with_node_options
@click.option(
    "--index-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the index (default: in --data).",
)
@click.option("--rack", help="Rack of the node. Copies are placed in different racks if possible.")
@click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    help="Further location of this bookie, by host (default: this machine), zone or region. Repeatable.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="OPTION=VALUE",
    help='Value of an option (see "dlog config show bookie"), such as lost_after_s=10m. Repeatable.',
)
@without_cluster("timeout")
def bookie(settings: Settings, **option_values: Any) -> None:
    """Run a bookie, which stores entries."""
    from ...cluster.declarations.config import parse_named_addresses, parse_quorum
    from ...cluster.declarations.options import BookieNodeConfig
    from ...ledger.placement.placement_policy import parse_labels
    from .node_settings import parse_changes, split_settings

    option_values = _merge_file(option_values, "bookie")
    labels = parse_labels(option_values["label"], "--label")
    quorum = tuple(parse_quorum(_required(option_values, "quorum", "--metadata")).values())
    listen = parse_named_addresses(option_values["listen"], "--listen") or {"": ("127.0.0.1", 0)}
    node_settings, store_settings = split_settings(option_values.get("settings", {}), "the file")
    node_changes, store_changes = split_settings(parse_changes(option_values["changes"]), "--set")
    config = BookieNodeConfig(
        option_values["name"] or _required(option_values, "data", "--data").name,
        quorum,
        listen,
        parse_named_addresses(option_values["advertise"], "--advertise"),
        option_values["rack"] or labels.pop("rack", ""),
        labels,
        store={**store_settings, **store_changes},
        **{"metadata_timeout_s": settings.timeout_s, **node_settings, **node_changes},
    )
    _serve_node(settings, option_values, config)


CHANGES = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="OPTION=VALUE",
    help="Value of an option (of a proxy, its logs or their ledgers; docs/reference/options.md). Repeatable.",
)
RACK = click.option("--rack", help="Rack of the node.")


@command.command(
    name="write-proxy",
    cls=CliCommand,
    examples="""
    dlog serve write-proxy --name w1 --tls w1.tls --metadata h1:4181,h2:4181,h3:4181 --listen h7:4183
    dlog serve write-proxy --metadata 127.0.0.1:4181                listen on a free port
    """,
)
@with_common_node_options
@CONFIG
@RACK
@CHANGES
@without_cluster("timeout")
def write_proxy(settings: Settings, **option_values: Any) -> None:
    """Run a write proxy, through which many producers share the writers of logs."""
    _serve_proxy(settings, option_values, "write-proxy")


@command.command(
    name="read-proxy",
    cls=CliCommand,
    examples="""
    dlog serve read-proxy --name r1 --tls r1.tls --metadata h1:4181,h2:4181,h3:4181 --listen h7:4184
    dlog serve read-proxy --metadata 127.0.0.1:4181                 listen on a free port
    """,
)
@with_common_node_options
@CONFIG
@RACK
@CHANGES
@without_cluster("timeout")
def read_proxy(settings: Settings, **option_values: Any) -> None:
    """Run a read proxy, which reads a log once for many readers."""
    _serve_proxy(settings, option_values, "read-proxy")


def _serve_proxy(settings: Settings, option_values: dict[str, Any], kind: str) -> None:
    from ...cluster.declarations.config import parse_named_addresses, parse_quorum
    from ...cluster.declarations.options import ProxyNodeConfig
    from .node_settings import check_options, parse_changes

    option_values = _merge_file(option_values, kind)
    changes = check_options(kind, parse_changes(option_values["changes"]), "--set")
    config = ProxyNodeConfig(
        option_values["name"] or kind,
        kind,
        tuple(parse_quorum(_required(option_values, "quorum", "--metadata")).values()),
        parse_named_addresses(option_values["listen"], "--listen") or {"": ("127.0.0.1", 0)},
        parse_named_addresses(option_values["advertise"], "--advertise"),
        option_values["rack"] or "",
        settings.timeout_s,
        {**option_values.get("settings", {}), **changes},
    )
    _serve_node(settings, option_values, config)


@command.command(
    cls=CliCommand,
    examples="""
    dlog serve gateway --uri distributedlog+proxy://h7:4183,h8:4184/ns
    dlog serve gateway --uri distributedlog://127.0.0.1:4181/ns --listen 127.0.0.1:0     use a free port
    dlog serve gateway --users --credentials file:/etc/dlog/ca --tls /etc/dlog/https \
--listen 0.0.0.0:8491 --allow-host logs.example.org
    """,
)
@CONFIG
@click.option("--name", help='Name of the node: a display name, also in logs (default "gateway").')
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help=f"Address to listen on (default {GATEWAY_LISTEN}); port 0 selects a free port.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name by which clients connect. Required if other machines can reach it. Repeatable.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with a bearer token that clients must send. With --users, it is the token for /metrics.",
)
@click.option(
    "--users",
    is_flag=True,
    help="Use the rights of each user: requests send a token (dlog user token). --credentials then needs only"
    " a ca.pem.",
)
@click.option(
    "--tls",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Certificate directory: cert.pem and key.pem for HTTPS, from an authority that your clients trust.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow other machines to connect without TLS (for example behind a TLS proxy).",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="OPTION=VALUE",
    help='Value of an option (see "dlog config show gateway"). Repeatable.',
)
@click.option("--end-with-stdin", is_flag=True, help="End when stdin ends, for a parent process.")
@common
def gateway(settings: Settings, **option_values: Any) -> None:
    """Run a gateway, which serves logs over HTTP. Requires the extra `gateway`.

    A gateway is stateless. With a proxy URI, run as many as you need. With a direct URI, the gateway is the
    writer of its logs, so run only one per namespace.
    """
    from ...cluster.declarations.config import parse_address
    from ...gateway.options import GatewayOptions
    from ...uri import parse_uri
    from .node_settings import check_options, parse_changes

    option_values = _merge_file({**option_values, "uri": settings.uri}, "gateway")
    settings.uri = option_values["uri"]
    uri = settings.where()
    parse_uri(uri)
    listen = option_values["listen"] or GATEWAY_LISTEN
    address = parse_address(listen, "--listen")
    _check_access(option_values, listen, address)
    changes = check_options("gateway", parse_changes(option_values["changes"]), "--set")
    options = GatewayOptions(**{**option_values.get("settings", {}), **changes})
    token = _read_token_file(option_values["token_file"])
    try:
        from ...gateway.gateway_lifecycle import run_gateway
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{error.name} is not installed: pip install '.[gateway]'") from None
    from ...runtime.process.descriptor_limit import raise_limit

    name = option_values["name"] or "gateway"
    if sys.platform == "linux":
        raise_limit()
    _run_server(
        settings,
        name,
        lambda status: run_gateway(
            uri,
            address,
            options,
            name=name,
            hosts=option_values["hosts"],
            token=token,
            users=option_values["users"],
            tls=option_values["tls"],
            timeout_s=settings.timeout_s,
            task_status=status,
        ),
        ends_with_stdin=option_values["end_with_stdin"],
    )


def _check_access(option_values: dict[str, Any], listen: str, address: tuple[str, int]) -> None:
    """Refuse a gateway that gives other machines or users the rights of this process."""
    from ...gateway.request_guard import is_listen_allowed
    from ...runtime.machine import CREDENTIALS_VARIABLE
    from ...runtime.net.local_secret import is_loopback

    if not is_listen_allowed(address[0], option_values["hosts"]):
        raise click.UsageError(
            f"--listen {listen}: other machines can reach it. Specify its host name with --allow-host NAME"
        )
    if not (is_loopback(address[0]) or option_values["tls"] or option_values["insecure"]):
        raise click.UsageError(
            f"--listen {listen}: other machines can reach it without encryption. Use --tls DIR, or"
            " --insecure behind a TLS proxy"
        )
    credentials = os.environ.get(CREDENTIALS_VARIABLE, "")
    if option_values["users"] and not credentials:
        raise click.UsageError(
            "--users requires the CA of the cluster: use --credentials file:DIR, a directory with its ca.pem"
        )
    if credentials and not option_values["users"] and option_values["token_file"] is None:
        raise click.UsageError(
            "every client would use the rights of --credentials. Use --users (per-user rights) or"
            " --token-file (shared token)"
        )


def _read_token_file(file: Path | None) -> str:
    if file is None:
        return ""
    token = read_text(file).strip()
    if len(token) < TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable():
        raise click.UsageError(
            f"{file} has no valid token: a token is one line of at least {TOKEN_CHARS_MIN} ASCII characters"
        )
    return token


def _merge_file(option_values: dict[str, Any], part: str) -> dict[str, Any]:
    """Merge the file's table ``[part]`` into the flags, which have precedence; options into ``settings``."""
    if option_values["file"] is None:
        return option_values
    from .node_settings import flags_of, read_file

    flags, settings = read_file(option_values["file"], part)
    for key, value in flags.items():
        name = flags_of(part)[key]
        if name in option_values and option_values[name] in (None, (), False):
            if isinstance(option_values[name], tuple):
                value = [value] if isinstance(value, str) else value
            paths = ("data", "index_dir", "tls", "token_file")
            option_values[name] = Path(value) if name in paths else value
    option_values["settings"] = settings
    return option_values


def _required(option_values: dict[str, Any], key: str, flag: str) -> Any:
    if option_values[key] is None:
        raise click.UsageError(f"{flag} is missing")
    return option_values[key]


def _serve_node(settings: Settings, option_values: dict[str, Any], config: Any) -> None:
    from ...runtime.machine import require_linux

    require_linux("dlog serve")  # before imports that work only on Linux
    from ...cluster.declarations.config import parse_address
    from ...cluster.declarations.options import to_json
    from ...cluster.local.node_child import run_node

    _check_listen_access(option_values, config)
    tls = option_values["tls"]
    spec = {
        "config": to_json(config),
        "data": str(_required(option_values, "data", "--data").absolute())
        if "data" in option_values
        else None,
        "index": str(option_values["index_dir"].absolute())
        if option_values.get("index_dir")
        else None,
        "http": parse_address(option_values["http"], "--http") if option_values["http"] else None,
        "tls": {"directory": str(tls.absolute()), "transport": option_values["transport"] or "tls"}
        if tls
        else None,
    }
    _run_server(
        settings,
        config.name,
        lambda status: run_node(spec, task_status=status),
        ends_with_stdin=option_values["end_with_stdin"],
    )


def _run_server(
    settings: Settings,
    name: str,
    serve: Callable[["trio.TaskStatus[dict[str, Any]]"], Awaitable[None]],
    *,
    ends_with_stdin: bool,
) -> None:
    """Serve until a signal ends it, with one ready line on stdout and the log on stderr."""
    import trio

    from ...cluster.process.process_lifetime import run_until_stopped
    from ...cluster.process.stderr_logs import log_to_stderr
    from .systemd_notify import notify_systemd

    if not __debug__:
        raise click.UsageError("servers require asserts: do not run them with python -O")
    levels: Sequence[int] = (logging.INFO, logging.DEBUG)
    level = logging.WARNING if settings.quiet else levels[min(settings.verbose, 1)]
    log_to_stderr(name, level, as_json=settings.json)

    def ready(line: dict[str, Any]) -> None:
        is_text = sys.stdout.isatty() and not settings.json
        click.echo(ready_text(line) if is_text else json.dumps(line))
        notify_systemd("READY=1")

    trio.run(lambda: run_until_stopped(serve, stdin=ends_with_stdin, ready=ready))


def ready_text(line: dict[str, Any]) -> str:
    """Return the text that a terminal shows when a node is ready."""
    address = line.get("url") or line["address"]
    return f"{line['kind']} {line['name']} serves at {address} until Ctrl-C"


def _check_listen_access(option_values: dict[str, Any], config: Any) -> None:
    """Require --tls or --insecure if other machines can reach the node. Raises a usage error otherwise."""
    from ...cluster.declarations.config import format_address
    from ...runtime.net.local_secret import is_loopback

    if option_values["tls"] is not None or option_values["insecure"]:
        return
    listen_addresses = list(config.listen.values())
    for address in listen_addresses or [config.voters[config.name]]:
        if not is_loopback(address[0]):
            raise click.UsageError(
                f"{format_address(address)}: other machines can reach it without authentication. Use"
                ' --tls DIR ("dlog pki issue" creates it), or --insecure: every client then has all rights'
            )
