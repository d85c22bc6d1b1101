"""Who is answered at all: logs are other people's data, on a port that every page of the machine reaches.

- Only names that are ours are answered (421 else): a page whose name was pointed here reads nothing.
- What comes from a page comes from one of ours (Origin; 403 else): no other site writes by a browser.
- Where there is a token, each request has it (`Authorization: Bearer …`; 401 else). Where requests are done
  as users, each has one of a user: whose it is, the cluster says (`request_sessions.py`).
- So many requests are under way at a time (503 else).
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
"""Times `write_s` that a part of an answer may take."""
OPEN_PATHS = ("/health", "/openapi.json")
"""Say nothing of a log: they need no token."""
GATEWAY_TOKEN_PATH = "/metrics"
"""Is nobody's of the users: it needs the gateway's own token."""
HEAD_BYTES_MAX = 16 * 1024
"""Of a request's line and headers."""
SEPARATOR_BYTES = len(b": \r\n")
DROPPED_BYTES_MAX = 64 * MIB
"""The limit for the rest of a body after its answer."""
ABSOLUTE_TARGET = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
"""A request's target with the name that it is asked by, as a client of an HTTP proxy sends it."""
SINGLE_HEADERS = frozenset(
    b"host origin authorization content-type content-encoding if-match last-event-id"
    b" dlog-producer dlog-sequence dlog-txid".split()
)
"""Headers that say what is done and for whom: of two, the first would count, and something before the gateway
may have looked at the other."""
AS_USERS = "dlog serve gateway --users does it as whom a token names"
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
"""On everything that is answered."""


class RequestSlot:
    """A request's place among those that are under way, and the bytes that are held for it."""

    def __init__(self, meters: GatewayMeters, held_bytes_max: int) -> None:
        self._meters: GatewayMeters | None = meters
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._share: UserShare | None = None

    def join(self, share: UserShare) -> None:
        """It is of a user, who has a share. Raises `TooBusy`."""
        share.begin_request()
        self._share = share

    def hold(self, size: int) -> None:
        """So many bytes more, until it leaves. Raises `TooBusy` where that is too much of all together."""
        meters = self._meters
        assert meters is not None, "who has left holds nothing"
        if meters.held_bytes + size > self._held_bytes_max:
            raise TooBusy(f"the gateway holds {meters.held_bytes} bytes for others")
        if self._share is not None:
            self._share.reserve_bytes(size)
        meters.held_bytes += size
        self._held_bytes += size

    def leave(self) -> None:
        """It counts no more: it is over, or goes on without end and is counted elsewhere. Idempotent."""
        meters, self._meters = self._meters, None
        if meters is not None:
            meters.under_way -= 1
            meters.held_bytes -= self._held_bytes
        share, self._share = self._share, None
        if share is not None:
            share.end_request(self._held_bytes)


class _RequestBody:
    """The parts of a request's body, and whether the last one has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.is_complete = True
        return message

    async def discard(self, bytes_max: float) -> None:
        """Read the rest, up to so many bytes, and drop it."""
        while not self.is_complete and bytes_max > 0:
            bytes_max -= len((await self()).get("body", b""))


class RequestGuard:
    """Stands before the app, as one."""

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
        """``hosts``: names that it is reached by, beside this machine's own.

        ``token``: of all who ask; where requests are done as users, ``by_users``, of who asks about the
        gateway itself. ``left``: told of each request that is over.
        """
        self._app = app
        self._meters = meters
        self._by_users = by_users
        self._on_request_end = on_request_end
        # Whoever stands before it leaves the port of its scheme out, or has one of its own.
        self._hosts = {f"{name}:{port}".lower() for name in (*LOCAL, *hosts)}
        self._hosts |= {name.lower() for name in hosts}
        if port in (80, 443):
            self._hosts |= set(LOCAL)
        self._token = token.encode()
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or have the app do it."""
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
            # A connection has its own deadline; a stream of HTTP/2 that is given no window has this one.
            with trio.fail_after(SEND_TIMEOUTS * self._options.write_s):
                await send(message)

        if (absolute := ABSOLUTE_TARGET.fullmatch(scope["raw_path"])) is not None:
            scope["dlog.asked_by"], scope["raw_path"] = absolute[1], absolute[2] or b"/"
        # Starlette would take a name with %2F in it for two parts.
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        rejection = self.check(scope)
        if rejection is None and meters.under_way >= self._options.requests_max:
            rejection = 503, f"{meters.under_way} requests are under way", "try again later"
        if rejection is not None:
            meters.turned_away += 1
            try:
                await _send_rejection(counted, *rejection)
            except* trio.TooSlowError:
                meters.hung_up += 1
            return
        meters.requests += 1
        meters.under_way += 1
        scope["dlog.place"] = slot = RequestSlot(meters, self._options.held_bytes_max)
        try:
            await self._app(scope, body, counted)
        except* trio.TooSlowError:
            meters.hung_up += 1
        finally:
            slot.leave()
            self._on_request_end(scope)

    def check(self, scope: Scope) -> tuple[int, str, str] | None:
        """Why a request is not answered: status, what, what to do. None: it may be."""
        headers: dict[bytes, bytes] = {}
        head_bytes = sum(
            len(name) + len(value) + SEPARATOR_BYTES for name, value in scope["headers"]
        )
        if head_bytes > HEAD_BYTES_MAX:  # the parser bounds only a head that has not ended yet
            return 431, f"{head_bytes} bytes of headers", f"send {HEAD_BYTES_MAX} at most"
        for name, value in scope["headers"]:
            if name in SINGLE_HEADERS and name in headers:
                return 400, f"{name.decode()} comes twice", "send it once"
            headers[name] = value
        host = headers.get(b"host", b"")
        for asked_by in (host, scope.get("dlog.asked_by", host)):
            name = asked_by.decode("latin-1").lower()
            if name not in self._hosts:
                return (
                    421,
                    f"this is no {name[:100]!r}",
                    "dlog serve gateway --allow-host NAME adds a name",
                )
        origin = headers.get(b"origin")
        if origin is not None:
            scheme, _, name = origin.decode("latin-1").lower().partition("://")
            if scheme not in ("http", "https") or name not in self._hosts:
                return 403, "only pages of the gateway's own names may ask", "ask from a program"
        if scope["path"] in OPEN_PATHS:
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        token = token.strip() if kind.lower() == b"bearer" else b""
        if self._by_users and scope["path"] != GATEWAY_TOKEN_PATH:
            return self._check_user_token(scope, token)
        if self._token or self._by_users:
            if not self._token or not hmac.compare_digest(token, self._token):
                return 401, "no token, or another one", "send Authorization: Bearer TOKEN"
        elif is_token(token):
            return 401, "this gateway does what it does as itself, for all", AS_USERS
        return None

    def _check_user_token(self, scope: Scope, token: bytes) -> tuple[int, str, str] | None:
        if not token:
            return (
                401,
                "no user's token",
                "send Authorization: Bearer TOKEN, one of dlog user token",
            )
        try:
            read_token(token)  # what is none at all costs the cluster nothing
        except NotAuthenticated as error:
            return 401, str(error), "send a token that dlog user token has made"
        scope["dlog.token"] = token
        return None


async def _send_last(
    message: Message, body: _RequestBody, send: Send, body_deadline: float, slot: RequestSlot | None
) -> None:
    """Send the last part of an answer; before the connection ends, the rest of its request is dropped.

    Most clients send all of their request before they read. If its connection is closed before that, they
    report a broken pipe, and not the answer.
    """
    if not body.is_complete:
        await send({**message, "more_body": True})
        message = {"type": "http.response.body", "body": b""}
        if slot is not None:
            slot.leave()
        with trio.move_on_at(body_deadline):
            await body.discard(DROPPED_BYTES_MAX)
    if body.is_complete:
        await send(message)
        return
    async with (
        trio.open_nursery() as nursery
    ):  # the connection ends: hypercorn's queue must not be full
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
    """Beyond the machine's own address a gateway has a name that it is reached by."""
    return host in ("127.0.0.1", "::1", "localhost") or bool(allowed_hosts)
