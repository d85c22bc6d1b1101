"""Requests that both kinds of proxies answer: information about the node, the list of proxies, and calls."""

from collections.abc import Callable

from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, ProtocolError
from ...runtime.net.link import Link
from ...runtime.protocol.frames import REPLY_MORE, Op, pack
from ..membership.proxy_members import ProxyMembers
from ..protocol.proxy_messages import LogCall, ProxyCall, encode_members
from .client_authorizer import ClientSession
from .log_calls import LogCalls


class CommonSession:
    """The common requests of one connection. A session with further requests calls `try_serve` first."""

    def __init__(
        self,
        link: Link,
        client: ClientSession,
        members: ProxyMembers,
        calls: LogCalls,
        info: Callable[[], dict[str, object]],
    ) -> None:
        """Create the session. ``client`` has the rights of the connection, and is ended with it."""
        self.client = client
        self._link = link
        self._members = members
        self._calls = calls
        self._info = info
        self._members_request = 0
        """The request that is answered at each change of the proxies; 0 if there is none."""
        self._unsubscribe: Callable[[], None] | None = None
        self._last_members = b""

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Process one frame.

        Raises:
            ProtocolError: The frame is invalid, so the connection must end.
        """
        if not self.try_serve(op, ident, body):
            raise ProtocolError(f"{self._link.peer_address} sent operation {op} to a proxy")

    def on_batch_end(self) -> None:
        """Do nothing: no frames are batched."""

    def try_serve(self, op: int, ident: int, body: memoryview) -> bool:
        """Process a frame if it is one of the common requests. Return whether it is.

        Raises:
            ProtocolError: The frame is invalid.
        """
        if op == Op.INFO:
            self._link.reply(ident, pack(self._info()))
        elif op == Op.MEMBERS:
            self._on_members(ident)
        elif op == Op.LOG_CALL:
            self._calls.start_call(self.client, self._link, ident, LogCall.decode(body))
        elif op == Op.PROXY_CALL:
            self._on_call(ident, ProxyCall.decode(body))
        else:
            return False
        return True

    def on_closed(self) -> None:
        """End the client's calls and rights after the connection has ended."""
        self._calls.cancel_calls(self._link)
        self.client.disconnect()
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _on_call(self, ident: int, call: ProxyCall) -> None:
        try:
            if call.call != "would_refuse":
                raise InvalidRequest(f"{call.call} requires a write proxy; this is a read proxy")
            rows = self.client.report_denials()
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
            return
        self._link.reply(ident, pack(rows))

    def _on_members(self, ident: int) -> None:
        self._members_request, self._last_members = ident, b""
        if self._unsubscribe is None:
            self._unsubscribe = self._members.subscribe(self._send_members)
        self._send_members()

    def _send_members(self) -> None:
        rows = encode_members(self._members.rows(self._link.listener))
        if rows != self._last_members:
            self._last_members = rows
            self._link.reply(self._members_request, rows, flags=REPLY_MORE)
