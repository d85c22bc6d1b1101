"""Map paths to answers. States are sent as server-sent events, always complete and the newest only.

GET  /                  the page, and /static/…, which show nothing of the cluster
POST /session           exchange the token for a cookie
GET  /events?page=…     the states cluster, logs and lag (prefix, after), log (name) and work
GET  /records?log=…     a page of records (from, at)
GET  /payload?log=…     one whole payload (dlsn)
GET  /tail?log=…        new records, as events
GET  /points            the charts of the last hour
GET  /actions           the permitted actions, and a token for the next change
GET  /effect?action=…   the effect of an action, for confirmation
POST /actions?action=…  execute an action; only with ``--allow-changes``, otherwise there is no such route
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import trio

from ..log.namespace import Namespace
from ..runtime.declarations.http_statuses import http_status
from ..runtime.interfaces.errors import (
    ConfirmationRequired,
    DistributedLogError,
    InvalidRequest,
    QuorumUnreachable,
)
from .access_guard import AccessGuard
from .actions import ConsoleActions
from .cluster_state import ClusterState, cut
from .http import ConsolePage, EventStreamResponse, Request, Send, as_page
from .lag_list import LAG_EVERY_S, LagList
from .log_states import LogDetail, LogList
from .record_browser import RecordBrowser
from .work_state_poller import WorkStatePoller

EVERY_S = 1.0
"""Minimum interval between two polls for all browsers together, in seconds."""
REST_FACTOR = 4
"""Minimum pause after a poll, as a multiple of its duration, so that the console is no relevant load (H261).
"""
ACTIONS_PATH = "/actions"
QUIET_S = 15.0
"""Seconds after which a comment is sent on an idle stream, to detect disconnected browsers."""
STREAMS_MAX = 16
STREAMS_PER_BROWSER = 4
"""Maximum number of streams per browser. A new tab replaces the oldest stream.

A browser allows six connections per origin (H260).
"""
STATES_MAX = 32
STATE_BYTES_MAX = 256 * 1024
RECONNECT_MS = 3000
"""Delay, in milliseconds, after which a browser reconnects an ended stream."""
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}

PollState = Callable[[], Awaitable[dict[str, Any]]]


class SharedState:
    """A state that all streams share. The first stream that finds it outdated polls it again."""

    def __init__(
        self,
        poll: PollState,
        waited_s: Callable[[], float] = lambda: 0.0,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        """Create the state.

        Args:
            poll: Returns the newest state.
            waited_s: Returns the seconds of the last poll that were no load. They require no pause.
            every_s: The minimum interval between two polls, in seconds.
        """
        self._poll = poll
        self._waited_s = waited_s
        self._every_s = every_s
        self._lock = trio.Lock()
        self._data = b""
        self._poll_at = -float("inf")

    async def data(self) -> bytes:
        """Return the newest state as an event. An error is also a state."""
        async with self._lock:
            started_at = trio.current_time()
            if started_at >= self._poll_at:
                try:
                    state = await self._poll()
                except DistributedLogError as error:
                    state = error_values(error)
                self._data = event(state)
                if len(self._data) > STATE_BYTES_MAX:
                    self._data = event({"error": f"the state has {len(self._data)} bytes"})
                waited_s = self._waited_s()
                load_s = trio.current_time() - started_at - waited_s
                self._poll_at = started_at + max(self._every_s + waited_s, REST_FACTOR * load_s)
            return self._data


@dataclass(slots=True, eq=False)
class _OpenStream:
    """An open event stream."""

    session: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Console:
    """Answers requests (`http.py`). ``namespace`` returns None until a quorum has answered."""

    def __init__(
        self,
        cluster: ClusterState,
        work: WorkStatePoller,
        namespace: Callable[[], Namespace | None],
        guard: AccessGuard,
        *,
        payloads: bool = True,
        actions: ConsoleActions | None = None,
        by_users: bool = False,
    ) -> None:
        """Create the console. It is read-only if ``actions`` is None.

        ``by_users`` states whether it reads with the rights of a user's token.
        """
        self._actions = actions
        self._by_users = by_users
        self._cluster = cluster
        self._namespace = namespace
        self._guard = guard
        self._payloads = payloads
        self._static = static_pages()
        self._open_streams: list[_OpenStream] = []
        self._states: dict[tuple[str, ...], SharedState] = {
            ("cluster",): SharedState(cluster.poll, lambda: cluster.waited_s),
            ("work",): SharedState(work.poll),
        }
        self._permanent_states = len(self._states)
        """The first states are permanent. Those of logs are replaced by newer ones."""

    async def handle(self, request: Request) -> ConsolePage | EventStreamResponse:
        """Answer a request. No request can cause an exception."""
        rejection = self._guard.check(request, self._static)
        if rejection is not None:
            return for_people(request, rejection, self._static)
        if request.method == "POST" and request.path == "/session":
            return self._guard.open_session(request)
        if request.method == "POST" and request.path == ACTIONS_PATH and self._actions is not None:
            return await self._handle_change(request, self._actions)
        if request.method not in ("GET", "HEAD"):
            return as_page(405, {"error": "the console is read-only"})
        if request.path in self._static:
            return self._static[request.path]
        try:
            return await self._handle_data(request)
        except DistributedLogError as error:
            status = http_status(error, is_write=False, by_users=self._by_users)
            # The token was revoked or has expired: the page requests another one.
            asks = {"asks": "token"} if status == 401 else {}
            return as_page(status, error_values(error) | asks)

    async def _handle_data(self, request: Request) -> ConsolePage | EventStreamResponse:
        query = request.query
        match request.path:
            case "/events":
                shared = self._state(query)
                return self._stream(request, lambda send: _send_states(shared, send))
            case "/tail":
                records, name = self._records(), query.get("log", "")
                return self._stream(request, lambda send: _send_tail(records, name, send))
            case "/points":
                return as_page(200, {"points": self._cluster.points()})
            case "/records":
                return as_page(200, await self._records().page(query.get("log", ""), query))
            case "/payload":
                payload = await self._records().payload(query.get("log", ""), query.get("dlsn", ""))
                return ConsolePage(
                    200,
                    payload,
                    "application/octet-stream",
                    {"content-disposition": "attachment; filename=payload"},
                )
            case "/actions":
                return self._permitted_actions(request)
            case "/effect" if self._actions is not None:
                fields = {name: value for name, value in query.items() if name != "action"}
                return as_page(200, await self._actions.effect(query.get("action", ""), fields))
        return for_people(request, as_page(404, {"error": "not found"}), self._static)

    def _permitted_actions(self, request: Request) -> ConsolePage:
        session = self._guard.session(request)
        if self._actions is None or session is None or request.method == "HEAD":
            return as_page(200, {"actions": {}})
        token = self._guard.issue_change_token(session)
        return as_page(200, {"actions": self._actions.labels(), "token": token})

    async def _handle_change(self, request: Request, actions: ConsoleActions) -> ConsolePage:
        """Execute one change. Each answer has the token for the next one."""
        session = self._guard.admit_change(request)
        if isinstance(session, ConsolePage):
            return session
        try:
            fields = json.loads(request.body)
        except (ValueError, RecursionError):
            fields = None
        status = 400
        answer: dict[str, Any] = {"error": "the body must be a JSON object"}
        if isinstance(fields, dict):
            try:
                done = await actions.run(request.query.get("action", ""), fields, request.peer)
                status, answer = 200, {"done": cut(done)}
            except DistributedLogError as error:
                status = http_status(error, is_write=True, by_users=self._by_users)
                answer = {**error_values(error), "definite": error.definite}
                if isinstance(error, ConfirmationRequired):
                    answer["confirm"] = cut(str(error))
        return as_page(status, {**answer, "token": self._guard.issue_change_token(session)})

    def _state(self, query: Mapping[str, str]) -> SharedState:
        """Return the state of a page. Raises `InvalidRequest`, `InvalidLogName` or `QuorumUnreachable`."""
        page = query.get("page", "")
        if page in ("logs", "log", "lag"):
            key = (page, *(query.get(name, "") for name in ("name", "prefix", "after")))
            if key in self._states:
                shared_state = self._states.pop(key)
            elif page == "logs":
                shared_state = SharedState(LogList(self._logs(), key[2], key[3]).poll)
            elif page == "lag":
                lag_list = LagList(self._logs(), key[2], key[3])
                shared_state = SharedState(lag_list.poll, every_s=LAG_EVERY_S)
            else:
                shared_state = SharedState(
                    LogDetail(self._logs(), key[1], self._cluster.labels).poll
                )
            self._states[key] = shared_state  # at the end: states at the start are dropped first
            while len(self._states) > self._permanent_states + STATES_MAX:
                del self._states[list(self._states)[self._permanent_states]]
            return shared_state
        if (page,) not in self._states:
            raise InvalidRequest(f"there is no page {page[:40]!r}")
        return self._states[(page,)]

    def _logs(self) -> Namespace:
        namespace = self._namespace()
        if namespace is None:
            raise QuorumUnreachable("no metadata quorum has answered yet; the console retries")
        return namespace

    def _records(self) -> RecordBrowser:
        return RecordBrowser(self._logs(), payloads=self._payloads)

    def _stream(
        self, request: Request, run: Callable[[Send], Awaitable[None]]
    ) -> ConsolePage | EventStreamResponse:
        session = self._guard.session(request)
        if session is None or request.method == "HEAD":
            return as_page(405, {"error": "use GET"})
        if self._is_full(session):
            return as_page(503, {"error": f"{STREAMS_MAX} pages are open: close some of them"})

        async def bounded(send: Send) -> None:
            if self._is_full(session):  # several requests arrived at once
                return
            own_streams = [stream for stream in self._open_streams if stream.session == session]
            if len(own_streams) >= STREAMS_PER_BROWSER:
                own_streams[0].scope.cancel()
                self._open_streams.remove(own_streams[0])
            new_stream = _OpenStream(session)
            self._open_streams.append(new_stream)
            try:
                with new_stream.scope:
                    await send(b"retry: %d\n\n" % RECONNECT_MS)
                    await run(send)
            finally:
                if new_stream in self._open_streams:
                    self._open_streams.remove(new_stream)

        return EventStreamResponse(bounded)

    def _is_full(self, session: str) -> bool:
        """Whether this browser can open no further stream. At its limit, it closes its oldest one instead."""
        own_streams = sum(stream.session == session for stream in self._open_streams)
        return len(self._open_streams) >= STREAMS_MAX and own_streams < STREAMS_PER_BROWSER


async def _send_states(shared: SharedState, send: Send) -> None:
    sent, sent_at = b"", trio.current_time()
    while True:
        data = await shared.data()
        if data != sent:
            await send(data)
            sent, sent_at = data, trio.current_time()
        elif trio.current_time() - sent_at >= QUIET_S:
            await send(event(None))
            sent_at = trio.current_time()
        await trio.sleep(EVERY_S)


async def _send_tail(records: RecordBrowser, name: str, send: Send) -> None:
    try:
        await records.tail(name, send, event)
    except DistributedLogError as error:
        await send(event(error_values(error)))


def error_values(error: DistributedLogError) -> dict[str, Any]:
    """Return an error as values for the page: its text for people, and its code for decisions."""
    return {"error": cut(f"{type(error).__name__}: {error}"), "code": error.code}


def for_people(
    request: Request, answer: ConsolePage, static: Mapping[str, ConsolePage]
) -> ConsolePage:
    """Return the empty page instead of an error, if a browser opens an address that it cannot show.

    The page then states that the address is unknown, or asks for the token.
    """
    is_opened = request.method == "GET" and request.headers.get("sec-fetch-dest") == "document"
    if answer.status not in (401, 404) or not is_opened:
        return answer
    return replace(static["/"], status=answer.status)


def event(value: Mapping[str, Any] | None) -> bytes:
    """Return a server-sent event, or a comment for None. ASCII JSON contains no newlines."""
    return b":\n\n" if value is None else b"data: " + json.dumps(value).encode() + b"\n\n"


def static_pages() -> dict[str, ConsolePage]:
    """Return the files of the page, by path."""
    pages = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            pages[path] = ConsolePage(200, file.read_bytes(), content_type)
    return pages
