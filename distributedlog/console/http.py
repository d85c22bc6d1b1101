"""HTTP server for a browser: requests with a query and a small body, pages, and event streams.

Each connection carries one request. Everything is limited: connections, heads, bodies, the time of a request,
and that of each write, in each of its steps and in total. If all connections are in use, further clients
receive 503.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

import h11
import trio

from ..runtime.interfaces.errors import ConnectionLost
from ..runtime.interfaces.host import Connection, Listener
from ..runtime.interfaces.log_lines import get_logger
from ..runtime.schedule.work_failures import WorkFailures

CONNECTIONS_MAX = 64
REQUEST_S = 10.0
"""Timeout for receiving a request, in seconds."""
WRITE_S = 5.0
"""A peer that accepts no bytes for this long, in seconds, is disconnected."""
WRITE_TOTAL_S = 60.0
"""A peer that has not accepted a whole page or event after this time, in seconds, is disconnected.

Otherwise, a peer that accepts one byte at a time would hold the page and its connection for hours.
"""
RECEIVE_BYTES = 4096
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 4 * 1024
"""Maximum size of a body without actions, in bytes."""
ACTION_BODY_BYTES_MAX = 64 * 1024
"""Maximum size of a body of a console that permits changes, in bytes."""
FIELDS_MAX = 16
"""Maximum number of query fields."""
JSON = "application/json"
EVENTS = "text/event-stream"

log = get_logger("distributedlog.console")


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a browser. Header names are in lower case; of repeated headers the last applies."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    """Address and port of the client."""


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A complete answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


Send = Callable[[bytes], Awaitable[None]]
"""Sends bytes to the peer, within `WRITE_S` and `WRITE_TOTAL_S`. Raises `ConnectionLost`."""


@dataclass(frozen=True, slots=True)
class EventStreamResponse:
    """A streamed answer. ``run`` sends until it returns, or is cancelled when the peer disconnects."""

    run: Callable[[Send], Awaitable[None]]
    content_type: str = EVENTS


HandleRequest = Callable[[Request], Awaitable[ConsolePage | EventStreamResponse]]


def as_page(status: int, value: object) -> ConsolePage:
    """Return a page with a JSON value."""
    return ConsolePage(status, json.dumps(value).encode())


async def serve_http(
    listener: Listener,
    handle: HandleRequest,
    common_headers: Mapping[str, str],
    body_bytes_max: int = BODY_BYTES_MAX,
) -> None:
    """Answer requests on a listener until cancelled, then close the listener.

    Args:
        listener: The listener.
        handle: Returns the answer to a request.
        common_headers: Headers that are part of every answer.
        body_bytes_max: Maximum size of a body, in bytes (413 otherwise).
    """
    open_connections = 0

    async def one(connection: Connection) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            await _serve(
                connection,
                _answer_overload if open_connections > CONNECTIONS_MAX else handle,
                common_headers,
                body_bytes_max,
            )
        except (ConnectionLost, h11.ProtocolError):
            pass  # the peer disconnected or does not speak HTTP
        except Exception:
            log.exception("a request of %s", connection.peer)  # the other connections continue
        finally:
            open_connections -= 1
            connection.close()

    async def accept_all(nursery: trio.Nursery) -> None:
        while True:
            connection = await listener.accept()
            if open_connections >= 2 * CONNECTIONS_MAX:  # an answer of 503 also needs a connection
                connection.close()
            else:
                nursery.start_soon(one, connection)

    try:
        async with trio.open_nursery() as nursery:
            await WorkFailures().keep_running("the console's listener", accept_all, nursery)
    finally:
        listener.close()


async def _answer_overload(_: Request) -> ConsolePage:
    return as_page(503, {"error": f"{CONNECTIONS_MAX} connections are open: close some tabs"})


async def _serve(
    connection: Connection,
    handle: HandleRequest,
    common_headers: Mapping[str, str],
    body_bytes_max: int,
) -> None:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
    request: Request | ConsolePage | None = None
    with trio.move_on_after(REQUEST_S):
        try:
            request = await _read_request(connection, http, body_bytes_max)
        except h11.RemoteProtocolError as error:
            request = as_page(error.error_status_hint, {"error": str(error)})
    if request is None:
        return
    response = await handle(request) if isinstance(request, Request) else request
    is_head = isinstance(request, Request) and request.method == "HEAD"
    headers = {**common_headers, "content-type": response.content_type, "connection": "close"}

    async def send(*events: h11.Event) -> None:
        await _send_all(connection, b"".join(http.send(event) or b"" for event in events))

    if isinstance(response, ConsolePage):
        headers |= {**response.headers, "content-length": str(len(response.body))}
        await send(
            h11.Response(status_code=response.status, headers=list(headers.items())),
            h11.Data(data=b"" if is_head else response.body),
            h11.EndOfMessage(),
        )
        return
    await send(h11.Response(status_code=200, headers=list(headers.items())))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_hangup, connection, nursery.cancel_scope)
        with suppress(ConnectionLost):
            await response.run(lambda data: send(h11.Data(data=data)))
            await send(h11.EndOfMessage())
        nursery.cancel_scope.cancel()


async def _cancel_on_hangup(connection: Connection, scope: trio.CancelScope) -> None:
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    with suppress(ConnectionLost):
        while await connection.receive_into(buffer):
            pass
    scope.cancel()


async def _read_request(
    connection: Connection, http: h11.Connection, body_bytes_max: int
) -> Request | None:
    """Return one request, or None if the peer disconnects first. Raises `h11.RemoteProtocolError`."""
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    request_head: h11.Request | None = None
    body = b""
    while True:
        event = http.next_event()
        if isinstance(event, h11.Request):
            request_head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
            if len(body) > body_bytes_max:
                raise h11.RemoteProtocolError(
                    f"the body exceeds {body_bytes_max} bytes", error_status_hint=413
                )
        elif isinstance(event, h11.EndOfMessage):
            assert request_head is not None, "h11 yields the head before the end"
            return _parse_request(request_head, body, connection.peer)
        elif event is h11.NEED_DATA:
            count = await connection.receive_into(buffer)
            http.receive_data(bytes(buffer[:count]))
        else:
            return None


def _parse_request(head: h11.Request, body: bytes, peer: str) -> Request:
    """Raises `h11.RemoteProtocolError` if the query has too many fields."""
    path, _, query = head.target.decode("ascii", "replace").partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise h11.RemoteProtocolError(f"the query exceeds {FIELDS_MAX} fields") from None
    return Request(
        head.method.decode("ascii", "replace"),
        unquote(path),
        dict(fields),
        {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body,
        peer,
    )


async def _send_all(connection: Connection, data: bytes) -> None:
    """Send all bytes. Raises `ConnectionLost`, also if the peer exceeds `WRITE_S` or `WRITE_TOTAL_S`."""
    unsent = memoryview(data)
    ends_at = trio.current_time() + WRITE_TOTAL_S
    with trio.move_on_after(WRITE_S) as scope:
        while unsent:
            accepted = connection.try_send([unsent])
            unsent = unsent[accepted:]
            if accepted:
                scope.deadline = min(trio.current_time() + WRITE_S, ends_at)
            if unsent:
                await connection.wait_writable()
    if scope.cancelled_caught:
        raise ConnectionLost(
            f"{connection.peer} accepted no bytes for {WRITE_S:g} s, or not all within {WRITE_TOTAL_S:g} s"
        )
