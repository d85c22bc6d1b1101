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
from .error_responses import headers_of, turned_away
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
SENDS = 2
"""Times `write_s` that a part of an answer may take."""
OPEN = ("/health", "/openapi.json")
"""Say nothing of a log: they need no token."""
OF_THE_GATEWAY = "/metrics"
"""Is nobody's of the users: it needs the gateway's own token."""
HEAD_BYTES_MAX = 16 * 1024
"""Of a request's line and headers."""
SEPARATOR_BYTES = len(b": \r\n")
DROPPED_BYTES_MAX = 64 * MIB
"""The limit for the rest of a body after its answer."""
ABSOLUTE = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
"""A request's target with the name that it is asked by, as a client of an HTTP proxy sends it."""
ONCE = frozenset(
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
        share.begin()
        self._share = share

    def hold(self, size: int) -> None:
        """So many bytes more, until it leaves. Raises `TooBusy` where that is too much of all together."""
        meters = self._meters
        assert meters is not None, "who has left holds nothing"
        if meters.held_bytes + size > self._held_bytes_max:
            raise TooBusy(f"the gateway holds {meters.held_bytes} bytes for others")
        if self._share is not None:
            self._share.hold(size)
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
            share.end(self._held_bytes)


class _Incoming:
    """The parts of a request's body, and whether the last one has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.over = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.over = True
        return message

    async def drop(self, bytes_max: float) -> None:
        """Read the rest, up to so many bytes, and drop it."""
        while not self.over and bytes_max > 0:
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
        left: Callable[[Scope], None] = lambda scope: None,
    ) -> None:
        """``hosts``: names that it is reached by, beside this machine's own.

        ``token``: of all who ask; where requests are done as users, ``by_users``, of who asks about the
        gateway itself. ``left``: told of each request that is over.
        """
        self._app = app
        self._meters = meters
        self._by_users = by_users
        self._left = left
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

        body = _Incoming(receive)
        body_until = trio.current_time() + self._options.body_s
        place: RequestSlot | None = None

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await _send_last(message, body, bounded, body_until, place)
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                meters.refused += 400 <= status < 500
                meters.failed += status >= 500
                message["headers"] = [*message.get("headers", ()), *HEADERS.items()]
            await bounded(message)

        async def bounded(message: Message) -> None:
            # A connection has its own deadline; a stream of HTTP/2 that is given no window has this one.
            with trio.fail_after(SENDS * self._options.write_s):
                await send(message)

        if (absolute := ABSOLUTE.fullmatch(scope["raw_path"])) is not None:
            scope["dlog.asked_by"], scope["raw_path"] = absolute[1], absolute[2] or b"/"
        # Starlette would take a name with %2F in it for two parts.
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        refused = self.refusal(scope)
        if refused is None and meters.under_way >= self._options.requests_max:
            refused = 503, f"{meters.under_way} requests are under way", "try again later"
        if refused is not None:
            meters.turned_away += 1
            try:
                await _turn_away(counted, *refused)
            except* trio.TooSlowError:
                meters.hung_up += 1
            return
        meters.requests += 1
        meters.under_way += 1
        scope["dlog.place"] = place = RequestSlot(meters, self._options.held_bytes_max)
        try:
            await self._app(scope, body, counted)
        except* trio.TooSlowError:
            meters.hung_up += 1
        finally:
            place.leave()
            self._left(scope)

    def refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Why a request is not answered: status, what, what to do. None: it may be."""
        headers: dict[bytes, bytes] = {}
        head_bytes = sum(
            len(name) + len(value) + SEPARATOR_BYTES for name, value in scope["headers"]
        )
        if head_bytes > HEAD_BYTES_MAX:  # the parser bounds only a head that has not ended yet
            return 431, f"{head_bytes} bytes of headers", f"send {HEAD_BYTES_MAX} at most"
        for name, value in scope["headers"]:
            if name in ONCE and name in headers:
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
        if scope["path"] in OPEN:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if kind.lower() == b"bearer" else b""
        if self._by_users and scope["path"] != OF_THE_GATEWAY:
            return self._of_a_user(scope, given)
        if self._token or self._by_users:
            if not self._token or not hmac.compare_digest(given, self._token):
                return 401, "no token, or another one", "send Authorization: Bearer TOKEN"
        elif is_token(given):
            return 401, "this gateway does what it does as itself, for all", AS_USERS
        return None

    def _of_a_user(self, scope: Scope, given: bytes) -> tuple[int, str, str] | None:
        if not given:
            return (
                401,
                "no user's token",
                "send Authorization: Bearer TOKEN, one of dlog user token",
            )
        try:
            read_token(given)  # what is none at all costs the cluster nothing
        except NotAuthenticated as error:
            return 401, str(error), "send a token that dlog user token has made"
        scope["dlog.token"] = given
        return None


async def _send_last(
    message: Message, body: _Incoming, send: Send, body_until: float, place: RequestSlot | None
) -> None:
    """Send the last part of an answer; before the connection ends, the rest of its request is dropped.

    Most clients send all of their request before they read. If its connection is closed before that, they
    report a broken pipe, and not the answer.
    """
    if not body.over:
        await send({**message, "more_body": True})
        message = {"type": "http.response.body", "body": b""}
        if place is not None:
            place.leave()
        with trio.move_on_at(body_until):
            await body.drop(DROPPED_BYTES_MAX)
    if body.over:
        await send(message)
        return
    async with (
        trio.open_nursery() as nursery
    ):  # the connection ends: hypercorn's queue must not be full
        nursery.start_soon(body.drop, inf)
        await send(message)
        nursery.cancel_scope.cancel()


async def _turn_away(send: Send, status: int, what: str, do: str) -> None:
    body = turned_away(status, what, do)
    named = {"content-type": JSON, "content-length": str(len(body)), **headers_of(status)}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def may_listen(host: str, allowed: Sequence[str]) -> bool:
    """Beyond the machine's own address a gateway has a name that it is reached by."""
    return host in ("127.0.0.1", "::1", "localhost") or bool(allowed)
