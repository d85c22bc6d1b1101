"""Reject requests before they reach a log.

Every web page that a browser on the machine shows can send requests to the gateway's port. Therefore:

- Only requests for the gateway's own host names are answered (otherwise 421). A page whose name was pointed
  at this address cannot read anything.
- A request from a web page must come from one of the gateway's own names (Origin; otherwise 403). No other
  site can write through a browser.
- If the gateway has a token, each request needs it (``Authorization: Bearer …``; otherwise 401). If requests
  run with users' rights, each needs the token of a user, which the cluster verifies (`request_sessions.py`).
- The number of pending requests is limited (otherwise 503).
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from math import inf
from typing import Any

import trio

from ..runtime.declarations.options import MIB
from ..runtime.interfaces.errors import NotAuthenticated, TooBusy
from ..runtime.protocol.tokens import is_token, read_token
from .error_responses import headers_of, rejection_body
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import JSON
from .user_share import UserShare

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "[::1]")
SEND_TIMEOUTS = 2
"""A part of an answer may take this many times `write_s`."""
OPEN_PATHS = ("/health", "/openapi.json")
"""Paths without information about logs, which need no token."""
GATEWAY_TOKEN_PATH = "/metrics"
"""Not available to users; it requires the gateway's own token."""
HEAD_BYTES_MAX = 16 * 1024
"""The limit for a request's line and headers."""
SEPARATOR_BYTES = len(b": \r\n")
DROPPED_BYTES_MAX = 64 * MIB
"""The limit for the rest of a body after its answer."""
ABSOLUTE_TARGET = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
"""A request target with a host name, as clients of an HTTP proxy send it."""
SINGLE_HEADERS = frozenset(
    b"host origin authorization content-type content-encoding if-match last-event-id"
    b" dlog-producer dlog-sequence dlog-txid".split()
)
"""Headers that determine the operation and the user. If one is sent twice, the first would apply, and a proxy
in front of the gateway may have checked the other one."""
AS_USERS = "to use the rights of users, start the gateway with dlog serve gateway --users"
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
"""Headers of every answer."""


class RequestSlot:
    """The place of a request among the pending ones, and the bytes of memory that are counted for it."""

    def __init__(self, meters: GatewayMeters, held_bytes_max: int) -> None:
        self._meters: GatewayMeters | None = meters
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._share: UserShare | None = None

    def join(self, share: UserShare) -> None:
        """Count the request in the share of its user. Raises `TooBusy`."""
        share.begin_request()
        self._share = share

    def hold(self, size: int) -> None:
        """Count more bytes until the request leaves.

        Raises:
            TooBusy: All requests together, or those of the user, would exceed their limit.
        """
        meters = self._meters
        assert meters is not None, "the request has left"
        if meters.held_bytes + size > self._held_bytes_max:
            raise TooBusy(f"the gateway holds {meters.held_bytes} bytes for others")
        if self._share is not None:
            self._share.reserve_bytes(size)
        meters.held_bytes += size
        self._held_bytes += size

    def release(self) -> None:
        """Stop counting the request, because it ended or became a tail. Idempotent."""
        meters, self._meters = self._meters, None
        if meters is not None:
            meters.under_way -= 1
            meters.held_bytes -= self._held_bytes
        share, self._share = self._share, None
        if share is not None:
            share.end_request(self._held_bytes)


class _RequestBody:
    """The parts of a request's body, and whether the last one was received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.is_complete = True
        return message

    async def discard(self, bytes_max: float) -> None:
        """Read and drop the rest, up to ``bytes_max`` bytes."""
        while not self.is_complete and bytes_max > 0:
            bytes_max -= len((await self()).get("body", b""))


class RequestGuard:
    """An ASGI application that checks requests before the actual one handles them."""

    def __init__(
        self,
        app: App,
        meters: GatewayMeters,
        options: GatewayOptions,
        *,
        port: int,
        hosts: Collection[str] = (),
        token: str = "",
        by_users: bool = False,
        on_request_end: Callable[[Scope], None] = lambda scope: None,
    ) -> None:
        """Create a guard.

        Args:
            port: The port that the gateway listens on.
            hosts: Host names of the gateway in addition to those of this machine.
            token: The token that each request needs. With ``by_users``, only requests about the gateway
                itself.
            by_users: Whether requests run with the rights of their users.
            on_request_end: Called when an accepted request has ended.
        """
        self._app = app
        self._meters = meters
        self._by_users = by_users
        self._on_request_end = on_request_end
        # A proxy in front of the gateway omits the default port of its scheme, or has another port.
        self._hosts = {f"{name}:{port}".lower() for name in (*LOCAL, *hosts)}
        self._hosts |= {name.lower() for name in hosts}
        if port in (80, 443):
            self._hosts |= set(LOCAL)
        self._token = token.encode()
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        meters = self._meters
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        body = _RequestBody(receive)
        body_deadline = trio.current_time() + self._options.body_s
        slot: RequestSlot | None = None

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await _send_last(message, body, bounded, body_deadline, slot)
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                meters.refused += 400 <= status < 500
                meters.failed += status >= 500
                message["headers"] = [*message.get("headers", ()), *HEADERS.items()]
            await bounded(message)

        async def bounded(message: Message) -> None:
            # A connection has its own deadline. This one is for HTTP/2 streams whose window stays closed.
            with trio.fail_after(SEND_TIMEOUTS * self._options.write_s):
                await send(message)

        if (absolute := ABSOLUTE_TARGET.fullmatch(scope["raw_path"])) is not None:
            scope["dlog.asked_by"], scope["raw_path"] = absolute[1], absolute[2] or b"/"
        # Starlette would split a name with %2F into two parts.
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        rejection = self.check(scope)
        if rejection is None and meters.under_way >= self._options.requests_max:
            rejection = 503, f"{meters.under_way} requests are pending", "try again later"
        if rejection is not None:
            meters.turned_away += 1
            try:
                await _send_rejection(counted, *rejection)
            except* trio.TooSlowError:
                meters.hung_up += 1
            return
        meters.requests += 1
        meters.under_way += 1
        scope["dlog.slot"] = slot = RequestSlot(meters, self._options.held_bytes_max)
        try:
            await self._app(scope, body, counted)
        except* trio.TooSlowError:
            meters.hung_up += 1
        finally:
            slot.release()
            self._on_request_end(scope)

    def check(self, scope: Scope) -> tuple[int, str, str] | None:
        """Return why a request is rejected: status, problem, and action to take. None accepts it."""
        headers: dict[bytes, bytes] = {}
        head_bytes = sum(
            len(name) + len(value) + SEPARATOR_BYTES for name, value in scope["headers"]
        )
        if head_bytes > HEAD_BYTES_MAX:  # the parser limits only heads that are not complete yet
            return 431, f"{head_bytes} bytes of headers", f"send {HEAD_BYTES_MAX} at most"
        for name, value in scope["headers"]:
            if name in SINGLE_HEADERS and name in headers:
                return 400, f"{name.decode()} was sent twice", "send it once"
            headers[name] = value
        host = headers.get(b"host", b"")
        for asked_by in (host, scope.get("dlog.asked_by", host)):
            name = asked_by.decode("latin-1").lower()
            if name not in self._hosts:
                return (
                    421,
                    f"{name[:100]!r} is not a name of this gateway",
                    "dlog serve gateway --allow-host NAME adds a name",
                )
        origin = headers.get(b"origin")
        if origin is not None:
            scheme, _, name = origin.decode("latin-1").lower().partition("://")
            if scheme not in ("http", "https") or name not in self._hosts:
                return (
                    403,
                    "web pages of other origins have no access",
                    "send the request from a program",
                )
        if scope["path"] in OPEN_PATHS:
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        token = token.strip() if kind.lower() == b"bearer" else b""
        if self._by_users and scope["path"] != GATEWAY_TOKEN_PATH:
            return self._check_user_token(scope, token)
        if self._token or self._by_users:
            if not self._token or not hmac.compare_digest(token, self._token):
                return 401, "missing or wrong token", "send Authorization: Bearer TOKEN"
        elif is_token(token):
            return 401, "this gateway uses its own rights for all requests", AS_USERS
        return None

    def _check_user_token(self, scope: Scope, token: bytes) -> tuple[int, str, str] | None:
        if not token:
            return (
                401,
                "missing user token",
                "send Authorization: Bearer TOKEN, one of dlog user token",
            )
        try:
            read_token(token)  # malformed tokens are not sent to the cluster
        except NotAuthenticated as error:
            return 401, str(error), "send a token that dlog user token has made"
        scope["dlog.token"] = token
        return None


async def _send_last(
    message: Message, body: _RequestBody, send: Send, body_deadline: float, slot: RequestSlot | None
) -> None:
    """Send the last part of an answer, and drop the rest of its request before the connection ends.

    Most clients send the whole request before they read. If the connection is closed before that, they report
    a broken pipe instead of the answer.
    """
    if not body.is_complete:
        await send({**message, "more_body": True})
        message = {"type": "http.response.body", "body": b""}
        if slot is not None:
            slot.release()
        with trio.move_on_at(body_deadline):
            await body.discard(DROPPED_BYTES_MAX)
    if body.is_complete:
        await send(message)
        return
    async with (
        trio.open_nursery() as nursery
    ):  # the connection ends, for which hypercorn's queue must not be full
        nursery.start_soon(body.discard, inf)
        await send(message)
        nursery.cancel_scope.cancel()


async def _send_rejection(send: Send, status: int, problem: str, do: str) -> None:
    body = rejection_body(status, problem, do)
    named_headers = {"content-type": JSON, "content-length": str(len(body)), **headers_of(status)}
    headers = [(name.encode(), value.encode()) for name, value in named_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_listen_allowed(host: str, allowed_hosts: Sequence[str]) -> bool:
    """Return whether a gateway may listen on an address.

    On an address that other machines can reach, it needs a host name.
    """
    return host in ("127.0.0.1", "::1", "localhost") or bool(allowed_hosts)
