"""`dlog console`: the cluster in a browser."""

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
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
    from ...log.namespace import Namespace
    from ...runtime.interfaces.host import Listener

LISTEN = "127.0.0.1:8490"
METADATA_TIMEOUT_S = 5.0
"""Without an answer of the quorum for so long a page says so."""
REOPEN_S = 2.0
"""A namespace that could not be opened is tried again after this."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog console                                       prints the link that opens it
    dlog console --open
    dlog console --listen 10.0.0.5:8490 --allow-host ops.example.org
    dlog console --users --credentials file:ca-only    each reads with his own token
    dlog local --console                               a cluster on this machine, and its console
    """,
)
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name that browsers reach it by; must be given where it listens beyond this machine.",
)
@click.option(
    "--users",
    is_flag=True,
    help="Each reads as the user whose token (dlog user token) he gives to the page. Of --credentials the"
    " ca.pem is used, and nothing else.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen where other machines reach it, in clear: where something before it ends TLS.",
)
@click.option("--no-payloads", is_flag=True, help="Show sizes of records, never what is in them.")
@click.option("--open", "open_", is_flag=True, help="Open a browser on it.")
@common
def command(
    settings: Settings,
    listen: str,
    hosts: tuple[str, ...],
    users: bool,
    insecure: bool,
    no_payloads: bool,
    open_: bool,
) -> None:
    """Show the cluster in a browser: how well it is and why, logs, one log with its records, work.

    Read only. The link that is printed holds a token: who has it sees all that you may see, records too; with
    --users it holds none, and the page asks for one. Ends with SIGINT or SIGTERM.
    """
    from ...cluster.declarations.config import parse_address
    from ...cluster.process.process_lifetime import run_until_stopped
    from ..connection.cluster_connection import run

    address = parse_address(listen, "--listen")
    uri = settings.where()
    _check_access(settings, listen, hosts, users=users, insecure=insecure)

    async def serve(status: "trio.TaskStatus[dict[str, Any]]") -> None:
        async with console(uri, address, hosts, payloads=not no_payloads, users=users) as link:
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
    settings: Settings, listen: str, hosts: Sequence[str], *, users: bool, insecure: bool
) -> None:
    """Refuse a console that other machines or users reach with rights that are not theirs."""
    from ...cluster.declarations.config import parse_address
    from ...console.access_guard import is_listen_allowed
    from ...runtime.machine import CREDENTIALS_VARIABLE
    from ...runtime.net.local_secret import is_loopback

    address = parse_address(listen, "--listen")
    if not is_listen_allowed(address[0], hosts):
        raise click.UsageError(
            f"--listen {listen} is reached from elsewhere: say by which name, --allow-host NAME"
        )
    credentials, is_local = os.environ.get(CREDENTIALS_VARIABLE, ""), is_loopback(address[0])
    if not (is_local or insecure):
        raise click.UsageError(
            f"other machines may reach {listen}, and who is between reads what is sent: go there by ssh -L,"
            " or give --insecure where something before it ends TLS"
        )
    if users and not credentials:
        raise click.UsageError(
            "--users wants to know the cluster: --credentials file:DIR, a directory with its ca.pem"
        )
    if credentials and not users:
        if not is_local:
            raise click.UsageError(
                f"whoever has the link would read with the rights of {credentials}: give --users, and"
                " each has his own"
            )
        settings.note(f"whoever has this link reads with the rights of {credentials}")


@contextmanager
def open_browser(link: str) -> Iterator[None]:
    """Open the link in a browser.

    Every user of the machine can read the arguments of the browser's process. A link with a token is
    therefore in a file that only this user can read, until the end of the block: it leads the browser there.
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
            print_notice(f"no browser is started: {error}")
            yield
            return
    try:
        if not webbrowser.open(link if file is None else file.as_uri()):
            print_notice("no browser could be started: open the link yourself")
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
) -> AsyncIterator[str]:
    """A console of the cluster at ``uri``; the link that opens it. Raises `AddressInUse`, `InvalidUri`.

    It serves also where no quorum answers: then it says so. ``users``: each reads with a token of his own.
    """
    from ...console.access_guard import AccessGuard
    from ...runtime.machine import real_host
    from ...uri import format_address

    # The time limit is given: a console waits for a cluster that does not run yet.
    settings = Settings(uri=uri, timeout_s=METADATA_TIMEOUT_S, ranks={"timeout_s": 1})
    token = secrets.token_urlsafe(24)
    # First: a console that finds the port in use has started nothing.
    listener = await real_host("dlog console").listen(address)
    port = listener.address[1]
    guard = AccessGuard(token, port, hosts, lambda: secrets.token_urlsafe(24))
    name = hosts[0] if hosts else format_address(address).rpartition(":")[0]
    if users:
        async with _serve_user_console(settings, uri, listener, guard, payloads):
            yield f"http://{name}:{port}/"
    else:
        async with _serve_own_console(settings, uri, listener, guard, payloads):
            yield f"http://{name}:{port}/#t={token}"


@asynccontextmanager
async def _serve_user_console(
    settings: Settings, uri: str, listener: "Listener", guard: "AccessGuard", payloads: bool
) -> AsyncIterator[None]:
    """Serve the console with the rights of each user, whose token the page asks for."""
    import trio

    from ...console.access_guard import HEADERS
    from ...console.cluster_state import ClusterState
    from ...console.http import serve_http
    from ...console.node_connections import node_links
    from ...console.server import Console
    from ...console.user_consoles import UserConsoles
    from ...console.work_state_poller import WorkStatePoller
    from ...runtime.machine import authority_host, with_token
    from ..connection.cluster_connection import namespace, quorum

    cluster_host = authority_host("dlog console")

    @asynccontextmanager
    async def of_a_user(token: bytes) -> AsyncIterator[Console]:
        host = with_token(cluster_host, token)
        async with (
            namespace(settings, host) as logs,  # first: it reports a token that is refused
            quorum(settings, host) as metadata,
            node_links(host) as nodes,
        ):
            yield Console(
                ClusterState(nodes, metadata, uri, host.wall_ms),
                WorkStatePoller(metadata, host.wall_ms),
                lambda: logs,
                guard,
                payloads=payloads,
            )

    user_consoles = UserConsoles(of_a_user, guard)
    async with trio.open_nursery() as nursery:
        await nursery.start(user_consoles.run)
        nursery.start_soon(serve_http, listener, user_consoles.handle, HEADERS)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _serve_own_console(
    settings: Settings, uri: str, listener: "Listener", guard: "AccessGuard", payloads: bool
) -> AsyncIterator[None]:
    """Serve the console with the rights of this process, also while no quorum answers."""
    import trio

    from ...console.access_guard import HEADERS
    from ...console.cluster_state import ClusterState
    from ...console.http import serve_http
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

    host = client_host("dlog console")
    async with quorum(settings) as metadata, node_links(host) as nodes:
        own_console = Console(
            ClusterState(nodes, metadata, uri, host.wall_ms),
            WorkStatePoller(metadata, host.wall_ms),
            lambda: open_namespaces[0] if open_namespaces else None,
            guard,
            payloads=payloads,
        )
        async with trio.open_nursery() as nursery:
            keep = WorkFailures().keep_running
            nursery.start_soon(keep, "the console's namespace", keep_open)
            nursery.start_soon(serve_http, listener, own_console.handle, HEADERS)
            yield
            nursery.cancel_scope.cancel()
