"""The pages that a node answers over HTTP (`node_pages.py` says which). One request a connection,
few connections at once, a deadline on each: this door must not become a way to slow the node down. Where
all are taken the oldest makes room: those that say nothing lock nobody out.
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
"""At once; the oldest is hung up on when one more comes."""
REQUEST_S = 10.0
"""From the connection to the end of the answer."""
RECEIVE_BYTES = 4096
HEADER_BYTES_MAX = 16 * 1024
"""Names and values of all headers."""

JSON = "application/json"

log = get_logger("distributedlog.cluster.process.http_server")


@dataclass(frozen=True, slots=True)
class NodePage:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = JSON


Pages = Mapping[str, Callable[[], Awaitable[NodePage]]]
"""Path to who answers it."""


def as_page(status: int, value: Mapping[str, object]) -> NodePage:
    """As JSON."""
    return NodePage(status, json.dumps(value).encode() + b"\n")


async def serve_http(listener: Listener, pages: Pages, names: Collection[str] = ()) -> None:
    """Answer on ``listener`` until cancelled; closes it. ``names``: host names that lead here."""
    open_connections: dict[Connection, None] = {}

    async def one(connection: Connection) -> None:
        try:
            with trio.move_on_after(REQUEST_S):
                await _serve_request(connection, pages, names)
        except (ConnectionLost, h11.ProtocolError):
            pass  # a peer that hung up or speaks something else: its loss
        except Exception:
            log.exception("a request for a page")  # and no other's, nor the node's
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
    """May a request name this host? A page of another site must not read a node (DNS rebinding).

    An attacker needs a domain for that. An address, or a name without a dot, is no domain.
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
    """Their size in a request. The parser only limits a head that has not ended yet."""
    return sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


async def _serve_request(connection: Connection, pages: Pages, names: Collection[str]) -> None:
    """Read one request, answer it."""
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
            431, {"error": f"{header_size} bytes of headers, allowed are {HEADER_BYTES_MAX}"}
        )
    elif not is_allowed_host(host.decode("latin-1"), names):
        shown_host = host.decode("latin-1")[:100]
        page = as_page(
            421, {"error": f"this is no {shown_host!r}: ask by address, or an advertised name"}
        )
    elif path not in pages:
        page = as_page(404, {"error": f"there are {', '.join(pages)}, nothing else"})
    elif request.method not in (b"GET", b"HEAD"):
        page = as_page(405, {"error": "GET it"})
    else:
        page = await pages[path]()
    await _send(connection, http, page, head_only=request.method == b"HEAD")


async def _read_request(connection: Connection, http: h11.Connection) -> h11.Request | None:
    """The request's head, or None when the peer hangs up before. Raises `h11.RemoteProtocolError`."""
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
    """The answer; without its body when only the ``head`` was asked for."""
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
