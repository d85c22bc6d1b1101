"""What a node answers over HTTP: ``GET /health``, for those who start and watch containers.

200 when the node is well, 503 when not or not yet; the body is JSON either way. One request a connection,
few connections at once, a deadline on each: this door must not become a way to slow the node down. Where
all are taken the oldest makes room: those that say nothing lock nobody out.
"""

import json
from collections.abc import Awaitable, Callable, Mapping

import h11
import trio

from ..runtime.errors import ConnectionLost
from ..runtime.host import Connection, Listener
from .health import Health

CONNECTIONS_MAX = 16
"""At once; the oldest is hung up on when one more comes."""
REQUEST_S = 10.0
"""From the connection to the end of the answer."""
RECEIVE_BYTES = 4096
HEADER_BYTES_MAX = 16 * 1024

Ask = Callable[[], Awaitable[Health]]


async def serve_http(listener: Listener, ask: Ask) -> None:
    """Answer on ``listener`` until cancelled; closes it."""
    busy: dict[Connection, None] = {}

    async def one(connection: Connection) -> None:
        try:
            with trio.move_on_after(REQUEST_S):
                await _answer(connection, ask)
        except (ConnectionLost, h11.ProtocolError):
            pass  # a peer that hung up or speaks something else: its loss
        finally:
            busy.pop(connection, None)
            connection.close()

    try:
        async with trio.open_nursery() as nursery:
            while True:
                connection = await listener.accept()
                busy[connection] = None
                if len(busy) > CONNECTIONS_MAX:
                    oldest = next(iter(busy))
                    del busy[oldest]
                    oldest.close()
                nursery.start_soon(one, connection)
    finally:
        listener.close()


async def _answer(connection: Connection, ask: Ask) -> None:
    """Read one request, answer it."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
    try:
        request = await _request(connection, http)
    except h11.RemoteProtocolError as error:
        await _send(connection, http, error.error_status_hint, {"error": str(error)})
        return
    if request is None:
        return
    head = request.method == b"HEAD"
    if request.target.split(b"?", 1)[0] != b"/health":
        what = {"error": "there is /health, nothing else"}
        await _send(connection, http, 404, what, head=head)
    elif request.method not in (b"GET", b"HEAD"):
        await _send(connection, http, 405, {"error": "GET it"})
    else:
        health = await ask()
        status = 200 if health.healthy else 503
        await _send(connection, http, status, health.as_json(), head=head)


async def _request(connection: Connection, http: h11.Connection) -> h11.Request | None:
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
    connection: Connection,
    http: h11.Connection,
    status: int,
    body: Mapping[str, object],
    *,
    head: bool = False,
) -> None:
    """The answer; without its body when only the ``head`` was asked for."""
    content = json.dumps(body).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"connection", b"close"),
    ]
    events: list[h11.Event] = [
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=b"" if head else content),
        h11.EndOfMessage(),
    ]
    rest = memoryview(b"".join(http.send(event) or b"" for event in events))
    while rest:
        rest = rest[connection.try_send([rest]) :]
        if rest:
            await connection.wait_writable()
