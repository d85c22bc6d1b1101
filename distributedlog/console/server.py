"""Which path answers what. States come as server-sent events: whole, the newest only, nothing queues.

GET  /                  the page, and /static/…: they show nothing of the cluster
POST /session           the token for a cookie
GET  /events?page=…     cluster, logs (prefix, after), log (name), work
GET  /records?log=…     a page of records (from, at); GET /payload?log=…&dlsn=…: one, whole
GET  /tail?log=…        records as they come, as events
GET  /points            of the charts, what was seen before this page came
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import trio

from ..log.namespace import Namespace
from ..runtime.interfaces.errors import DistributedLogError, InvalidRequest, QuorumUnreachable
from .access_guard import AccessGuard
from .cluster_state import ClusterState, cut
from .http import ConsolePage, EventStreamResponse, Request, Send, as_page
from .log_states import LogDetail, LogList
from .record_browser import RecordBrowser
from .work_state_poller import WorkStatePoller

EVERY_S = 1.0
"""Between two looks, for all who look together."""
REST_FACTOR = 4
"""Times as long as a look took nothing is looked at: the watcher must not be the load (H261)."""
QUIET_S = 15.0
"""A comment at least so often: who is gone is noticed."""
STREAMS_MAX = 16
STREAMS_PER_BROWSER = 4
"""A browser gives an origin six connections: the oldest stream makes room for the tab that comes (H260)."""
STATES_MAX = 32
STATE_BYTES_MAX = 256 * 1024
RECONNECT_MS = 3000
"""After this a browser comes back to a stream that ended."""
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}

PollState = Callable[[], Awaitable[dict[str, Any]]]


class SharedState:
    """One state for all who want it: looked at by the first that finds it old, while somebody does."""

    def __init__(self, poll: PollState, waited_s: Callable[[], float] = lambda: 0.0) -> None:
        """``waited_s``: how much of the last look was no load to anybody: no rest is due for that."""
        self._poll = poll
        self._waited_s = waited_s
        self._lock = trio.Lock()
        self._data = b""
        self._poll_at = -float("inf")

    async def data(self) -> bytes:
        """The newest, as an event. An error is a state, too."""
        async with self._lock:
            started_at = trio.current_time()
            if started_at >= self._poll_at:
                try:
                    state = await self._poll()
                except DistributedLogError as error:
                    state = {"error": cut(f"{type(error).__name__}: {error}")}
                self._data = event(state)
                if len(self._data) > STATE_BYTES_MAX:
                    self._data = event({"error": f"the state has {len(self._data)} bytes"})
                waited_s = self._waited_s()
                load_s = trio.current_time() - started_at - waited_s
                self._poll_at = started_at + max(EVERY_S + waited_s, REST_FACTOR * load_s)
            return self._data


@dataclass(slots=True, eq=False)
class _OpenStream:
    """A stream that somebody has open."""

    session: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Console:
    """Answers requests (`http.py`). ``namespace`` is None while no quorum has answered yet."""

    def __init__(
        self,
        cluster: ClusterState,
        work: WorkStatePoller,
        namespace: Callable[[], Namespace | None],
        guard: AccessGuard,
        *,
        payloads: bool = True,
    ) -> None:
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
        """The first ones stay; those of logs give way."""

    async def handle(self, request: Request) -> ConsolePage | EventStreamResponse:
        """Any request. Raises nothing that a request can cause."""
        rejection = self._guard.check(request, self._static)
        if rejection is not None:
            return rejection
        if request.method == "POST" and request.path == "/session":
            return self._guard.open_session(request)
        if request.method not in ("GET", "HEAD"):
            return as_page(405, {"error": "nothing is changed here"})
        if request.path in self._static:
            return self._static[request.path]
        try:
            return await self._handle_data(request)
        except DistributedLogError as error:
            status = 400 if isinstance(error, InvalidRequest) else 503
            return as_page(status, {"error": cut(f"{type(error).__name__}: {error}")})

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
        return as_page(404, {"error": "there is nothing"})

    def _state(self, query: Mapping[str, str]) -> SharedState:
        """Of the page that is asked for. Raises `InvalidRequest`, `InvalidLogName`, `QuorumUnreachable`."""
        page = query.get("page", "")
        if page in ("logs", "log"):
            key = (page, *(query.get(name, "") for name in ("name", "prefix", "after")))
            if key in self._states:
                shared_state = self._states.pop(key)
            elif page == "logs":
                shared_state = SharedState(LogList(self._logs(), key[2], key[3]).poll)
            else:
                shared_state = SharedState(
                    LogDetail(self._logs(), key[1], self._cluster.labels).poll
                )
            self._states[key] = shared_state  # the last one to give way
            while len(self._states) > self._permanent_states + STATES_MAX:
                del self._states[list(self._states)[self._permanent_states]]
            return shared_state
        if (page,) not in self._states:
            raise InvalidRequest(f"there is no page {page[:40]!r}")
        return self._states[(page,)]

    def _logs(self) -> Namespace:
        namespace = self._namespace()
        if namespace is None:
            raise QuorumUnreachable("no metadata quorum has answered yet; asking again")
        return namespace

    def _records(self) -> RecordBrowser:
        return RecordBrowser(self._logs(), payloads=self._payloads)

    def _stream(
        self, request: Request, run: Callable[[Send], Awaitable[None]]
    ) -> ConsolePage | EventStreamResponse:
        session = self._guard.session(request)
        if session is None or request.method == "HEAD":
            return as_page(405, {"error": "GET it"})
        if self._is_full(session):
            return as_page(503, {"error": f"{STREAMS_MAX} pages are open: close some"})

        async def bounded(send: Send) -> None:
            if self._is_full(session):  # many came at once
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
        """Is there no place for one more stream of this browser? One with four gives up its oldest."""
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
        await send(event({"error": cut(f"{type(error).__name__}: {error}")}))


def event(value: Mapping[str, Any] | None) -> bytes:
    """As a server-sent event; None: a comment. JSON in ASCII has no newlines of its own."""
    return b":\n\n" if value is None else b"data: " + json.dumps(value).encode() + b"\n\n"


def static_pages() -> dict[str, ConsolePage]:
    """The page's files, by path."""
    pages = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            pages[path] = ConsolePage(200, file.read_bytes(), content_type)
    return pages
