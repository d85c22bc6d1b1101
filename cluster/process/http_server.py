"""Serve pages over HTTP (`node_pages.py` creates them).

Each connection serves one request, few connections are open at once, and each has a deadline. So HTTP
requests cannot slow down the node. If all connection slots are used, a new connection replaces the oldest
one, so that idle clients cannot block others.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

import h11
import trio

from ...runtime.interfaces.errors import ConnectionLost
from ...runtime.interfaces.host import Connection, Listener
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures

CONNECTIONS_MAX = 16
"""Open connections. A further connection closes the oldest one."""
REQUEST_S = 10.0
"""Time from the connection to the end of the response."""
RECEIVE_BYTES = 4096
HEADER_BYTES_MAX = 16 * 1024
"""Names and values of all headers."""

JSON = "application/json"

log = get_logger("distributedlog.cluster.process.http_server")


@dataclass(frozen=True, slots=True)
class NodePage:
    """A response."""

    status: int
    body: bytes
    content_type: str = JSON


Pages = Mapping[str, Callable[[], Awaitable[NodePage]]]
"""Maps each path to the function that creates its page."""


def as_page(status: int, value: Mapping[str, object]) -> NodePage:
    """Return a page with a JSON object."""
    return NodePage(status, json.dumps(value).encode() + b"\n")


async def serve_http(listener: Listener, pages: Pages, names: Collection[str] = ()) -> None:
    """Serve pages until cancelled, then close the listener.

    Args:
        listener: The open listener.
        pages: The pages, by path.
        names: Further host names under which the node is reachable.
    """
    open_connections: dict[Connection, None] = {}

    async def one(connection: Connection) -> None:
        try:
            with trio.move_on_after(REQUEST_S):
                await _serve_request(connection, pages, names)
        except (ConnectionLost, h11.ProtocolError):
            pass  # the peer disconnected, or uses another protocol
        except Exception:
            log.exception(
                "a request for a page failed"
            )  # must not affect other requests or the node
        finally:
            open_connections.pop(connection, None)
            connection.close()

    async def accept_all(nursery: trio.Nursery) -> None:
        while True:
            connection = await listener.accept()
            open_connections[connection] = None
            if len(open_connections) > CONNECTIONS_MAX:
                oldest = next(iter(open_connections))
                del open_connections[oldest]
                oldest.close()
            nursery.start_soon(one, connection)

    try:
        async with trio.open_nursery() as nursery:
            await WorkFailures().keep_running("the listener of pages", accept_all, nursery)
    finally:
        listener.close()


def is_allowed_host(host: str, names: Collection[str]) -> bool:
    """Return whether a request may name this host.

    This prevents a web page of another site from reading the node (DNS rebinding). Such an attack needs a
    domain name. An address, or a name without a dot, is not a domain name.
    """
    bracketed, _, _ = host.rpartition("]")
    name = bracketed.removeprefix("[") if bracketed else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if "." not in name and ":" not in name:
        return bool(name)
    try:
        ip_address(name)
    except ValueError:
        return name in names
    return True


def header_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the size of all headers in a request.

    The parser limits only the size of an incomplete header section.
    """
    return sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


async def _serve_request(connection: Connection, pages: Pages, names: Collection[str]) -> None:
    """Read and answer one request."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
    try:
        request = await _read_request(connection, http)
    except h11.RemoteProtocolError as error:
        await _send(connection, http, as_page(error.error_status_hint, {"error": str(error)}))
        return
    if request is None:
        return
    header_size = header_bytes(request.headers)
    host = next((value for name, value in request.headers if name == b"host"), b"localhost")
    path = request.target.split(b"?", 1)[0].decode("ascii", "replace")
    if header_size > HEADER_BYTES_MAX:
        page = as_page(
            431,
            {"error": f"{header_size} bytes of headers; at most {HEADER_BYTES_MAX} are allowed"},
        )
    elif not is_allowed_host(host.decode("latin-1"), names):
        shown_host = host.decode("latin-1")[:100]
        page = as_page(
            421,
            {"error": f"this host is not {shown_host!r}: use its address or an advertised name"},
        )
    elif path not in pages:
        page = as_page(404, {"error": f"the only pages are {', '.join(pages)}"})
    elif request.method not in (b"GET", b"HEAD"):
        page = as_page(405, {"error": "only GET and HEAD are supported"})
    else:
        page = await pages[path]()
    await _send(connection, http, page, head_only=request.method == b"HEAD")


async def _read_request(connection: Connection, http: h11.Connection) -> h11.Request | None:
    """Return the request; None if the peer disconnects before. Raises `h11.RemoteProtocolError`."""
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    while True:
        event = http.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        count = await connection.receive_into(buffer)
        http.receive_data(bytes(buffer[:count]))


async def _send(
    connection: Connection, http: h11.Connection, page: NodePage, *, head_only: bool = False
) -> None:
    """Send the response; only its headers with ``head_only``."""
    headers = [
        (b"content-type", page.content_type.encode()),
        (b"content-length", b"%d" % len(page.body)),
        (b"connection", b"close"),
    ]
    events: list[h11.Event] = [
        h11.Response(status_code=page.status, headers=headers),
        h11.Data(data=b"" if head_only else page.body),
        h11.EndOfMessage(),
    ]
    unsent = memoryview(b"".join(http.send(event) or b"" for event in events))
    while unsent:
        unsent = unsent[connection.try_send([unsent]) :]
        if unsent:
            await connection.wait_writable()
