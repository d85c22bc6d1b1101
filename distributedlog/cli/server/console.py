"""`dlog console`: show the cluster in a browser."""

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..framework.errors import print_notice
from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit

if TYPE_CHECKING:
    import trio

    from ...console.access_guard import AccessGuard
    from ...console.actions import ConsoleActions
    from ...log.namespace import Namespace
    from ...metadata.model.interface import Metadata
    from ...runtime.interfaces.host import Host, Listener

LISTEN = "127.0.0.1:8490"
METADATA_TIMEOUT_S = 5.0
"""Seconds without an answer of the metadata quorum after which a page reports this."""
REOPEN_S = 2.0
"""Seconds after which opening a namespace is retried."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog console                                       print the link to the console
    dlog console --open
    dlog console --listen 10.0.0.5:8490 --allow-host ops.example.org
    dlog console --users --credentials file:ca-only    each user logs in with a token
    dlog console --allow-changes                       permit changes of logs and bookies
    dlog local --console                               run a cluster on this machine, with a console
    """,
)
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name by which clients connect. Required if other machines can reach it. With credentials, it"
    " requires --users. Repeatable.",
)
@click.option(
    "--users",
    is_flag=True,
    help="Use the rights of each user: a user enters a token (dlog user token). --credentials then needs only"
    " a ca.pem.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow other machines to connect without TLS (for example behind a TLS proxy).",
)
@click.option("--no-payloads", is_flag=True, help="Show the sizes of records, never their content.")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Permit changes, with the rights of the user: create, append to, truncate and delete logs,"
    " decommission bookies, pause repair. For other machines (--allow-host), it requires --users.",
)
@click.option("--open", "open_", is_flag=True, help="Open the console in a browser.")
@common
def command(
    settings: Settings,
    listen: str,
    hosts: tuple[str, ...],
    users: bool,
    insecure: bool,
    no_payloads: bool,
    allow_changes: bool,
    open_: bool,
) -> None:
    """Show the cluster in a browser: health with reasons, logs, records, lag, repairs and drains.

    The printed link contains a token. Everyone with the link can see everything that you can see, including
    records. With --users, the link has no token, and the page asks each user for one.

    The console is read-only. With --allow-changes, users can also change everything that their rights permit.
    Each change requires a confirmation, and is logged to stderr as the event console.change. The command ends
    with SIGINT or SIGTERM.
    """
    from ...cluster.declarations.config import parse_address
    from ...cluster.process.process_lifetime import run_until_stopped
    from ..connection.cluster_connection import run

    address = parse_address(listen, "--listen")
    uri = settings.where()
    _check_access(
        settings, listen, hosts, users=users, insecure=insecure, allow_changes=allow_changes
    )
    if allow_changes:
        from ...cluster.process.stderr_logs import log_to_stderr

        log_to_stderr("console", logging.INFO, as_json=settings.json)

    async def serve(status: "trio.TaskStatus[dict[str, Any]]") -> None:
        async with console(
            uri,
            address,
            hosts,
            payloads=not no_payloads,
            users=users,
            allow_changes=allow_changes,
        ) as link:
            status.started({"console": link})
            import trio

            await trio.sleep_forever()

    with ExitStack() as stack:

        def ready(line: dict[str, Any]) -> None:
            if settings.json:
                emit(line)
            else:
                print(f"console  {line['console']}", flush=True)
            if open_:
                stack.enter_context(open_browser(line["console"]))

        run(lambda: run_until_stopped(serve, stdin=False, ready=ready))


def _check_access(
    settings: Settings,
    listen: str,
    hosts: Sequence[str],
    *,
    users: bool,
    insecure: bool,
    allow_changes: bool,
) -> None:
    """Refuse a console that gives other machines or users the rights of this process."""
    from ...cluster.declarations.config import parse_address
    from ...console.access_guard import is_listen_allowed
    from ...runtime.machine import CREDENTIALS_VARIABLE
    from ...runtime.net.local_secret import is_loopback

    address = parse_address(listen, "--listen")
    if not is_listen_allowed(address[0], hosts):
        raise click.UsageError(
            f"--listen {listen}: other machines can reach it. Specify its host name with --allow-host NAME"
        )
    credentials, is_local = os.environ.get(CREDENTIALS_VARIABLE, ""), is_loopback(address[0])
    if not (is_local or insecure):
        raise click.UsageError(
            f"--listen {listen}: other machines can reach it without encryption. Use ssh -L, or --insecure"
            " behind a TLS proxy"
        )
    if users and not credentials:
        raise click.UsageError(
            "--users requires the CA of the cluster: use --credentials file:DIR, a directory with its ca.pem"
        )
    # With --allow-host, a tunnel or TLS proxy of this machine serves other machines.
    is_shared = bool(hosts) or not is_local
    if allow_changes and not users and is_shared:
        raise click.UsageError(
            "every user of the link could change the cluster from other machines. Use --users (per-user"
            " rights)"
        )
    if credentials and not users:
        if is_shared:
            raise click.UsageError(
                f"every user of the link would read with the rights of {credentials} from other machines."
                " Use --users (per-user rights)"
            )
        reads = "reads and makes changes" if allow_changes else "reads"
        settings.note(f"every user of this link {reads} with the rights of {credentials}")


@contextmanager
def open_browser(link: str) -> Iterator[None]:
    """Open the link in a browser.

    Every user of the machine can read the arguments of the browser process. A link with a token is therefore
    written to a page that only this user can read and that redirects to the link. The page is deleted at the
    end of the block.
    """
    import webbrowser

    from ...runtime.interfaces.errors import InvalidRequest
    from ...runtime.net.local_secret import write_private

    file: Path | None = None
    if "#" in link:
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">'
        name = f"console-{secrets.token_hex(8)}.html"
        try:
            file = write_private(name, page.encode(), "the link of the console")
        except InvalidRequest as error:
            print_notice(f"the browser was not started: {error}")
            yield
            return
    try:
        if not webbrowser.open(link if file is None else file.as_uri()):
            print_notice("the browser could not be started: open the link manually")
        yield
    finally:
        if file is not None:
            file.unlink(missing_ok=True)


@asynccontextmanager
async def console(
    uri: str,
    address: tuple[str, int],
    hosts: Sequence[str] = (),
    *,
    payloads: bool = True,
    users: bool = False,
    allow_changes: bool = False,
) -> AsyncIterator[str]:
    """Serve a console of the cluster at ``uri``, and yield the link to it.

    The console also works while no quorum answers; its pages then report this.

    Args:
        uri: The cluster and namespace.
        address: Host and port to listen on.
        hosts: Names by which browsers reach it.
        payloads: Whether pages show the content of records.
        users: Whether each user must enter a token, and sees what this user may see.
        allow_changes: Whether pages can change logs and bookies.

    Raises:
        AddressInUse: Another program listens at ``address``.
        InvalidUri: The URI is invalid.
    """
    from ...console.access_guard import AccessGuard
    from ...runtime.machine import real_host
    from ...uri import format_address

    # An explicit time limit prevents `end_if_refused`: a console waits for a cluster that does not run yet.
    settings = Settings(uri=uri, timeout_s=METADATA_TIMEOUT_S, ranks={"timeout_s": 1})
    token = secrets.token_urlsafe(24)
    # First, so that nothing is started if the port is in use.
    listener = await real_host("dlog console").listen(address)
    port = listener.address[1]
    guard = AccessGuard(token, port, hosts, lambda: secrets.token_urlsafe(24))
    name = hosts[0] if hosts else format_address(address).rpartition(":")[0]
    if users:
        async with _serve_user_console(
            settings, uri, listener, guard, payloads=payloads, allow_changes=allow_changes
        ):
            yield f"http://{name}:{port}/"
    else:
        async with _serve_own_console(
            settings, uri, listener, guard, payloads=payloads, allow_changes=allow_changes
        ):
            yield f"http://{name}:{port}/#t={token}"


@asynccontextmanager
async def _serve_user_console(
    settings: Settings,
    uri: str,
    listener: "Listener",
    guard: "AccessGuard",
    *,
    payloads: bool,
    allow_changes: bool,
) -> AsyncIterator[None]:
    """Serve the console with the rights of each user, whose token the page requests."""
    import trio

    from ...console.access_guard import HEADERS
    from ...console.cluster_state import sampled_state
    from ...console.http import ACTION_BODY_BYTES_MAX, BODY_BYTES_MAX, serve_http
    from ...console.node_connections import node_links
    from ...console.server import Console
    from ...console.user_consoles import UserConsoles
    from ...console.work_state_poller import WorkStatePoller
    from ...runtime.machine import authority_host, with_token
    from ...runtime.protocol.tokens import read_token
    from ..connection.cluster_connection import namespace, quorum

    cluster_host = authority_host("dlog console")

    @asynccontextmanager
    async def of_a_user(token: bytes) -> AsyncIterator[Console]:
        host = with_token(cluster_host, token)
        async with (
            namespace(settings, host) as logs,  # first, because it reports a rejected token
            quorum(settings, host) as metadata,
            node_links(host) as nodes,
            sampled_state(nodes, metadata, uri, host.wall_ms, lambda: logs) as cluster,
        ):
            yield Console(
                cluster,
                WorkStatePoller(metadata, host.wall_ms),
                lambda: logs,
                guard,
                payloads=payloads,
                actions=_actions(lambda: logs, metadata, host, user=read_token(token).user)
                if allow_changes
                else None,
                by_users=True,
            )

    user_consoles = UserConsoles(of_a_user, guard)
    async with trio.open_nursery() as nursery:
        await nursery.start(user_consoles.run)
        body_bytes_max = ACTION_BODY_BYTES_MAX if allow_changes else BODY_BYTES_MAX
        nursery.start_soon(serve_http, listener, user_consoles.handle, HEADERS, body_bytes_max)
        yield
        nursery.cancel_scope.cancel()


def _actions(
    opened: "Callable[[], Namespace | None]", metadata: "Metadata", host: "Host", *, user: str
) -> "ConsoleActions":
    """Return the changes that a user can make."""
    from ...console.actions import ConsoleActions

    return ConsoleActions(
        opened,
        metadata,
        wall_ms=host.wall_ms,
        user=user,
        random_text=lambda: secrets.token_urlsafe(12),
    )


@asynccontextmanager
async def _serve_own_console(
    settings: Settings,
    uri: str,
    listener: "Listener",
    guard: "AccessGuard",
    *,
    payloads: bool,
    allow_changes: bool,
) -> AsyncIterator[None]:
    """Serve the console with the rights of this process, also while no quorum answers."""
    import trio

    from ...console.access_guard import HEADERS
    from ...console.cluster_state import sampled_state
    from ...console.http import ACTION_BODY_BYTES_MAX, BODY_BYTES_MAX, serve_http
    from ...console.node_connections import node_links
    from ...console.server import Console
    from ...console.work_state_poller import WorkStatePoller
    from ...runtime.interfaces.errors import DistributedLogError
    from ...runtime.machine import client_host
    from ...runtime.schedule.work_failures import WorkFailures
    from ..connection.cluster_connection import namespace, quorum

    open_namespaces: list[Namespace] = []

    async def keep_open() -> None:
        while True:
            try:
                async with namespace(settings) as logs:
                    open_namespaces.append(logs)
                    await trio.sleep_forever()
            except DistributedLogError:
                await trio.sleep(REOPEN_S)
            finally:
                open_namespaces.clear()

    def logs() -> "Namespace | None":
        return open_namespaces[0] if open_namespaces else None

    host = client_host("dlog console")
    async with (
        quorum(settings) as metadata,
        node_links(host) as nodes,
        sampled_state(nodes, metadata, uri, host.wall_ms, logs) as cluster,
    ):
        own_console = Console(
            cluster,
            WorkStatePoller(metadata, host.wall_ms),
            logs,
            guard,
            payloads=payloads,
            actions=_actions(logs, metadata, host, user="") if allow_changes else None,
        )
        async with trio.open_nursery() as nursery:
            keep = WorkFailures().keep_running
            nursery.start_soon(keep, "the console's namespace", keep_open)
            body_bytes_max = ACTION_BODY_BYTES_MAX if allow_changes else BODY_BYTES_MAX
            nursery.start_soon(serve_http, listener, own_console.handle, HEADERS, body_bytes_max)
            yield
            nursery.cancel_scope.cancel()
