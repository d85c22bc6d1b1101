"""Which path answers what; openapi.json tells it to the world, and a test holds the two together.

A log's name is one part of a path: its slashes are written %2F. All that is not a stream of events has a
deadline, and ends when its peer goes, but for records that are on their way: these are written.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, cast
from urllib.parse import unquote

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from ..log.format.dlsn import DLSN
from ..log.format.record import LogRecord
from ..log.interfaces.log_names import check_log_name
from ..log.model.log_keys import incarnation_text
from ..log.read.log_reader import LogReader
from ..runtime.declarations.metrics_text import KIND, text_of
from ..runtime.interfaces.errors import (
    DistributedLogError,
    EndOfStream,
    InternalError,
    InvalidRequest,
    LogEmpty,
    NotAuthenticated,
    RecordTooLarge,
    RequestTimeout,
    TooBusy,
)
from ..runtime.interfaces.log_lines import get_logger
from .error_responses import BROKEN, TurnedAway, fault, headers_of, turned_away
from .event_stream import Tail, until_gone
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import (
    BYTES,
    JSON,
    SEQUENCE_MAX,
    Given,
    ProducerRef,
    again,
    as_bytes,
    begin,
    event_place,
    following,
    is_json_lines,
    places,
    records_of,
    seconds,
    shown,
    whole,
)
from .request_guard import App, Receive, Scope, Send
from .request_sessions import AsItself, AsUsers, Served

SEND_BYTES = 64 * 1024
"""Of an answer that are handed over at a time: each has `write_s`."""
LOGS_A_PAGE = 1000
RECORDS_A_PAGE = 1000
WAIT_MAX_S = 30.0
SEGMENTS_SHOWN = 100
HELD_A_BYTE = 3
"""What a byte of a payload takes, with its JSON."""

log = get_logger("distributedlog.gateway")


class CompleteResponse:
    """An answer that ends, handed over piece by piece: each piece has the deadline of a write."""

    def __init__(
        self, status: int, body: bytes, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self._body = body
        named = {"content-type": kind} if kind else {}
        if status != 204:
            named["content-length"] = str(len(body))
        self._headers = {**named, **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for at in range(0, len(self._body), SEND_BYTES):
            part = self._body[at : at + SEND_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


Answer = CompleteResponse | Tail
Call = Callable[[Request], Awaitable[Answer]]


class Gateway:
    """The calls, on logs of one namespace. `app` answers requests."""

    def __init__(
        self,
        sessions: AsItself | AsUsers,
        options: GatewayOptions,
        name: str,
        meters: GatewayMeters,
    ) -> None:
        self.meters = meters
        self._sessions = sessions
        self._options = options
        self._name = name
        self._description = files(__package__).joinpath("openapi.json").read_bytes()

    def app(self) -> App:
        """What answers, for a `Door`."""
        one, records = "/v1/logs/{log}", "/v1/logs/{log}/records"
        calls: list[tuple[str, str, Call, bool]] = [
            ("GET", "/v1/logs", self.logs, False),
            ("GET", one, self.describe, False),
            ("PUT", one, self.create, True),
            ("DELETE", one, self.delete, True),
            ("POST", f"{one}/producers", self.open_producer, True),
            ("POST", records, self.append, True),
            ("GET", records, self.read, False),
            ("GET", f"{one}/tail", self.tail, False),
        ]
        own: list[tuple[str, Call]] = [
            ("/openapi.json", self.description),
            ("/health", self.health),
            ("/metrics", self.metrics),
        ]
        app = Starlette(
            routes=[
                *(
                    Route(path, self._answering(call, writing), methods=[method])
                    for method, path, call, writing in calls
                ),
                *(Route(path, call, methods=["GET"]) for path, call in own),
            ],
            exception_handlers={HTTPException: _not_there},
        )
        # A slash at the end was answered with 307 and no word: what curl posted there was stored nowhere, and
        # curl says nothing of it.
        app.router.redirect_slashes = False
        answers: App = app
        return answers

    # --- logs -------------------------------------------------------------------------------------

    async def logs(self, request: Request) -> CompleteResponse:
        """A page of names."""
        query = _query(request, "prefix", "after", "limit")
        limit = whole("limit", query.get("limit", str(LOGS_A_PAGE)), 1, LOGS_A_PAGE)
        with trio.fail_after(self._options.read_s):
            page = await _served(request).namespace.log_page(
                query.get("prefix", ""), query.get("after", ""), limit
            )
        return _json(200, {"logs": list(page.names), "next": page.next})

    async def describe(self, request: Request) -> CompleteResponse:
        """What a log is, and where it ends."""
        with trio.fail_after(self._options.read_s):
            found = await self._log(request).describe(segments_max=SEGMENTS_SHOWN)
        state = found.state
        first, last = found.first_dlsn, found.last_dlsn
        return _json(
            200,
            {
                "log": found.name,
                "incarnation": incarnation_text(state.log_id),
                "txids": found.txid_policy,
                "sealed": state.sealed,
                "owner": found.owner,
                "first": None if first is None else str(first),
                "last": None if last is None else str(last),
                "closed_records": found.records,
                "closed_bytes": found.size_bytes,
            },
        )

    async def create(self, request: Request) -> CompleteResponse:
        """Make a log."""
        given = await self._object(request, "txids", "durability", "config")
        name, config = _name(request), given.get("config")
        if config is not None and not isinstance(config, dict):
            raise InvalidRequest("config is an object of options")
        with trio.fail_after(self._options.read_s):
            await _served(request).namespace.create_log(
                name,
                durability=given.get("durability", "standard"),
                config=config,
                txids=given.get("txids", "auto"),
            )
        return _json(201, {"log": name})

    async def delete(self, request: Request) -> CompleteResponse:
        """Delete a log."""
        query = _query(request, "wait_s")
        wait_s = seconds("wait_s", query.get("wait_s", "0"), WAIT_MAX_S)
        served, name = _served(request), _name(request)
        with trio.fail_after(self._options.read_s + wait_s):
            await served.appending.let_go(name)
            await served.namespace.delete_log(name, wait_s=wait_s)
        return CompleteResponse(204, b"", "")

    # --- writing ----------------------------------------------------------------------------------

    async def open_producer(self, request: Request) -> CompleteResponse:
        """Give a producer a number."""
        name = (await self._object(request, "name")).get("name", "")
        if not isinstance(name, str):
            raise InvalidRequest("name is a text")
        found = await _served(request).appending.open_producer(_name(request), name)
        return _json(
            201,
            {
                "producer": str(ProducerRef(found.number, found.name)),
                "number": found.number,
                "name": found.name,
                "next_sequence": found.next_sequence,
                "known": found.known,
            },
        )

    async def append(self, request: Request) -> CompleteResponse:
        """Write one record, or many."""
        headers = request.headers
        lines = is_json_lines(headers.get("content-type", BYTES))
        given = records_of(
            lines,
            await self._body(request),
            headers.get("dlog-txid"),
            self._options.records_max,
        )
        match = headers.get("if-match")
        expect = None if match is None else _expected(match)
        producer, sequence = headers.get("dlog-producer"), headers.get("dlog-sequence")
        if (producer is None) != (sequence is None):
            raise InvalidRequest("Dlog-Producer and Dlog-Sequence come together")
        name = _name(request)
        if producer is None or sequence is None:
            found = await _served(request).appending.append(name, given, expect)
            return _json(200, {"dlsns": places(found)})
        at = whole("Dlog-Sequence", sequence, 0, SEQUENCE_MAX)
        stored = await _served(request).appending.append_once(
            name, ProducerRef.parse(producer), at, given, expect
        )
        return _json(200, _of_producer(stored.first, given, at, stored.repeated))

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, request: Request) -> CompleteResponse:
        """Records from a place on."""
        query = _query(request, "from", "txid", "since_ms", "to", "limit", "wait_s")
        most = self._options.records_max
        limit = whole("limit", query.get("limit", str(min(RECORDS_A_PAGE, most))), 1, most)
        wait_s = seconds("wait_s", query.get("wait_s", "0"), min(WAIT_MAX_S, self._options.read_s))
        to = DLSN.parse(query["to"]) if "to" in query else None
        begins = begin(query, "earliest")
        if begins.get("at") == "latest":  # as a place: who asks again with it misses nothing
            with trio.fail_after(self._options.read_s):
                begins = following(await self._last(request))
        hold(request, HELD_A_BYTE * self._options.read_bytes_max)
        found, ended = await self._found(request, begins, to, limit, wait_s)
        self.meters.records_read += len(found)
        self.meters.bytes_read += sum(len(one.payload) for one in found)
        after = str(found[-1].dlsn.next()) if found else again(begins)
        if BYTES in request.headers.get("accept", ""):
            named = {"dlog-end": str(ended).lower(), "dlog-next": after}
            return CompleteResponse(200, as_bytes(found), BYTES, named)
        return _json(200, {"records": [shown(one) for one in found], "next": after, "end": ended})

    async def _last(self, request: Request) -> DLSN:
        """The place of the last record; `DLSN.NONE` where there is none."""
        try:
            return cast("DLSN", await self._log(request).last_dlsn())
        except LogEmpty:
            return DLSN.NONE

    async def _found(
        self, request: Request, begins: dict[str, Any], to: DLSN | None, limit: int, wait_s: float
    ) -> tuple[list[LogRecord], bool]:
        """Records, and whether nothing comes after them as far as is known now. Ends when the peer goes."""
        found: list[LogRecord] = []
        ended, failed = False, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_gone, request.receive, nursery.cancel_scope)
            try:
                with trio.move_on_after(self._options.read_s) as scope:
                    until = None if wait_s else "end"
                    async with self._log(request).open_reader(**begins, to=until) as reader:
                        ended = await self._take(reader, found, limit, wait_s, to)
            except DistributedLogError as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None and not found:
            raise failed
        if scope.cancelled_caught and not found:
            raise RequestTimeout(f"no record came for {self._options.read_s:g} s")
        return found, ended

    async def _take(
        self,
        reader: LogReader,
        found: list[LogRecord],
        limit: int,
        wait_s: float,
        to: DLSN | None,
    ) -> bool:
        """Put records there. True: nothing comes after them, as far as is known now."""
        left = self._options.read_bytes_max
        while len(found) < limit and left > 0:
            try:
                if not wait_s:
                    record = await reader.read_next()
                else:
                    record = await reader.read_next(wait_s=0 if found else wait_s)
            except EndOfStream:
                return True
            if record is None:
                return not wait_s
            if to is not None and record.dlsn > to:
                return False
            found.append(record)
            left -= len(record.payload)
        return False

    async def tail(self, request: Request) -> Answer:
        """Records as they come."""
        query = _query(request, "from", "txid", "since_ms")
        seen = request.headers.get("last-event-id")
        begins = begin(query, "latest", seen)
        if self.meters.tails >= self._options.tails_max:
            raise TooBusy(f"{self.meters.tails} tails are open")
        if request.method != "GET":
            raise InvalidRequest("a tail is answered to GET alone")
        if seen is not None and await self._is_end(request, event_place(seen)):
            return CompleteResponse(204, b"", "")  # a browser comes back after any other answer
        share = _served(request).share
        if share is not None:
            share.begin_tail()
        self.meters.tails += 1
        last: DLSN | None = None
        try:
            with trio.fail_after(self._options.read_s):
                if begins.get("at") == "latest":
                    last = await self._last(request)
                    begins = following(last)
                reader = await self._log(request).open_reader(**begins)
        except BaseException:
            self.meters.tails -= 1
            if share is not None:
                share.end_tail()
            raise
        return Tail(
            reader,
            self.meters,
            quiet_s=self._options.quiet_s,
            where=_where(request),
            share=share,
            by_users=self._sessions.by_users,
            last=last,
            end=partial(self._last, request),
        )

    async def _is_end(self, request: Request, place: DLSN) -> bool:
        """Whether the log is sealed and has no record after that place."""
        with trio.fail_after(self._options.read_s):
            found = await self._log(request).describe(segments_max=1)
        return found.state.sealed and (found.last_dlsn or DLSN.NONE) <= place

    # --- about the gateway ------------------------------------------------------------------------

    async def description(self, _: Request) -> CompleteResponse:
        """The description of all this."""
        return CompleteResponse(200, self._description, JSON)

    async def health(self, _: Request) -> CompleteResponse:
        """It answers."""
        return _json(200, {"healthy": True, "name": self._name})

    async def metrics(self, _: Request) -> CompleteResponse:
        """Its numbers, for Prometheus."""
        self._sessions.measure()
        node = {"name": self._name, "kind": "gateway"}
        return CompleteResponse(200, text_of(self.meters.samples(), node), KIND)

    # --- requests ---------------------------------------------------------------------------------

    def _answering(self, call: Call, writing: bool) -> Call:
        """A call, done as whoever it is done as; its errors are answers."""

        async def answer(request: Request) -> Answer:
            try:
                try:
                    request.scope["dlog.served"] = await self._sessions.enter(request.scope)
                    return await call(request)
                except trio.TooSlowError:
                    raise RequestTimeout("the cluster did not answer in time") from None
                except ClientDisconnect:
                    raise InvalidRequest("the peer has gone") from None
            except TurnedAway as error:
                return CompleteResponse(error.status, error.body, JSON, error.headers)
            except DistributedLogError as error:
                if isinstance(error, NotAuthenticated):
                    self._sessions.refused(request.scope)
                return self._fault(error, request, writing)
            except Exception as error:
                log.exception("a request: %s", _where(request))
                what = f"a defect of the gateway: {type(error).__name__}"
                if not request.scope.get("dlog.begun", False):
                    # Nothing was asked of the cluster: "it may have happened, send it again" is for ever.
                    return CompleteResponse(500, turned_away(500, what, BROKEN))
                said = InternalError(what)
                return self._fault(said, request, writing)

        return answer

    def _fault(
        self, error: DistributedLogError, request: Request, writing: bool
    ) -> CompleteResponse:
        status, said = fault(
            error, _where(request), writing=writing, by_users=self._sessions.by_users
        )
        return _json(status, said, headers_of(status))

    def _log(self, request: Request) -> Any:
        return _served(request).namespace.open_log(_name(request))

    async def _body(self, request: Request) -> bytes:
        """Return all of it. Raises `RecordTooLarge`, `TurnedAway`, `InvalidRequest` if it takes too long."""
        coding = request.headers.get("content-encoding", "").strip()
        if coding.lower() not in ("", "identity"):
            raise TurnedAway(
                415,
                f"a body in the encoding {coding[:60]!r}",
                "send it uncompressed, without Content-Encoding",
                {"accept-encoding": "identity"},
            )
        most = self._options.body_bytes_max
        said = request.headers.get("content-length", "0")
        if said.isdigit() and int(said) > most:
            raise RecordTooLarge(f"a body of {said[:20]} bytes; the most are {most}")
        parts, size = [], 0
        with trio.move_on_after(self._options.body_s):
            async for part in request.stream():
                size += len(part)
                hold(request, HELD_A_BYTE * len(part))
                if size > most:
                    raise RecordTooLarge(f"a body of more than {most} bytes")
                parts.append(part)
            return b"".join(parts)
        raise InvalidRequest(f"the body did not come within {self._options.body_s:g} s")

    async def _object(self, request: Request, *known: str) -> dict[str, Any]:
        """The body, an object of JSON or nothing. Raises `InvalidRequest`."""
        body = await self._body(request)
        try:
            found = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            raise InvalidRequest("the body is not JSON") from None
        if not isinstance(found, dict) or not found.keys() <= set(known):
            raise InvalidRequest(f"the body is an object of {', '.join(known)}")
        return found


async def _not_there(request: Request, error: Exception) -> CompleteResponse:
    """No such path, or no such method of it."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{_where(request)} is not known here"
    return CompleteResponse(status, turned_away(status, what, "GET /openapi.json says what is"))


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> CompleteResponse:
    return CompleteResponse(status, json.dumps(value).encode() + b"\n", JSON, headers)


def hold(request: Request, size: int) -> None:
    """So many bytes more are held until the request is answered. Raises `TooBusy`."""
    request.scope["dlog.place"].hold(size)


def _served(request: Request) -> Served:
    """Return the user's namespace and writers, from a request that may change the cluster afterwards."""
    request.scope["dlog.begun"] = True
    found: Served = request.scope["dlog.served"]
    return found


def _where(request: Request) -> str:
    return f"{request.method} {request.scope['path']}"


def _name(request: Request) -> str:
    """The log's name. Raises `InvalidRequest`, `InvalidLogName`."""
    try:
        return check_log_name(unquote(request.path_params["log"], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidRequest("a log's name in a path is UTF-8, percent-encoded") from None


def _query(request: Request, *known: str) -> dict[str, str]:
    """Each field once. Raises `InvalidRequest`, also for one that is not known."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise InvalidRequest(f"there is no {name[:60]!r} here; known are {', '.join(known)}")
        if name in found:
            raise InvalidRequest(f"{name} is given twice")
        found[name] = value
    return found


def _expected(match: str) -> DLSN:
    """Of If-Match: a DLSN in quotes or bare; 0.0.0: the log never had a record. Raises `InvalidRequest`."""
    text = match.strip().strip('"')
    return DLSN.NONE if text == str(DLSN.NONE) else DLSN.parse(text)


def _of_producer(first: DLSN | None, given: Given, sequence: int, repeated: bool) -> dict[str, Any]:
    """What is said of a producer's records; without their places where the log has let these go."""
    count = len(given.payloads)
    found = [] if first is None else [first._replace(slot=first.slot + k) for k in range(count)]
    return {
        "dlsns": places(found),
        "repeated": repeated,
        "next_sequence": sequence + count,
    }
