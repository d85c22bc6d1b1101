"""Map paths to handlers; openapi.json describes the same paths, and a test compares the two.

A log's name is one part of a path, so its slashes are written as %2F. All answers except event streams have a
deadline, and end when the client disconnects. Records that are being written are still written.
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
from ..log.format.record_headers import memory_bytes
from ..log.interfaces.log_names import check_log_name
from ..log.model.log_keys import incarnation_text
from ..log.read.log_reader import LogReader
from ..runtime.declarations.metrics_text import TEXT_CONTENT_TYPE, metrics_text
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
from .error_responses import (
    DEFECT_ADVICE,
    RejectedRequest,
    error_response,
    headers_of,
    rejection_body,
)
from .event_stream import Tail, cancel_on_disconnect
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import (
    BYTES,
    JSON,
    SEQUENCE_MAX,
    ProducerRef,
    SubmittedRecords,
    dlsn_texts,
    is_json_lines,
    next_start,
    parse_event_id,
    parse_flag,
    parse_seconds,
    parse_start,
    parse_whole,
    record_to_json,
    records_of,
    records_to_bytes,
    start_after,
)
from .request_guard import App, Receive, Scope, Send
from .request_sessions import GatewaySessions, RequestSession, UserSessions

SEND_BYTES = 64 * 1024
"""The bytes of an answer that are sent at a time; the limit `write_s` applies to each part."""
LOGS_PER_PAGE = 1000
RECORDS_PER_PAGE = 1000
WAIT_MAX_S = 30.0
SEGMENTS_SHOWN = 100
HELD_PER_PAYLOAD_BYTE = 3
"""The memory that a byte of a payload takes, including its JSON."""

log = get_logger("distributedlog.gateway")


class CompleteResponse:
    """An answer with an end, sent in parts. The deadline of a write applies to each part."""

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self._body = body
        own_headers = {"content-type": content_type} if content_type else {}
        if status != 204:
            own_headers["content-length"] = str(len(body))
        self._headers = {**own_headers, **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for offset in range(0, len(self._body), SEND_BYTES):
            part = self._body[offset : offset + SEND_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


GatewayResponse = CompleteResponse | Tail
RequestHandler = Callable[[Request], Awaitable[GatewayResponse]]


class Gateway:
    """The handlers of requests for the logs of one namespace. `app` routes requests to them."""

    def __init__(
        self,
        sessions: GatewaySessions | UserSessions,
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
        """Return the ASGI application, for a `RequestGuard`."""
        log_path, records_path = "/v1/logs/{log}", "/v1/logs/{log}/records"
        log_routes: list[tuple[str, str, RequestHandler, bool]] = [
            ("GET", "/v1/logs", self.logs, False),
            ("GET", log_path, self.describe, False),
            ("PUT", log_path, self.create, True),
            ("DELETE", log_path, self.delete, True),
            ("POST", f"{log_path}/producers", self.open_producer, True),
            ("POST", records_path, self.append, True),
            ("GET", records_path, self.read, False),
            ("GET", f"{log_path}/tail", self.tail, False),
        ]
        own_routes: list[tuple[str, RequestHandler]] = [
            ("/openapi.json", self.description),
            ("/health", self.health),
            ("/metrics", self.metrics),
        ]
        app = Starlette(
            routes=[
                *(
                    Route(path, self._wrap_handler(call, is_write), methods=[method])
                    for method, path, call, is_write in log_routes
                ),
                *(Route(path, call, methods=["GET"]) for path, call in own_routes),
            ],
            exception_handlers={HTTPException: _not_found},
        )
        # By default, a slash at the end is answered with an empty 307. curl does not follow it and reports no
        # error, so a record that it posts would be lost.
        app.router.redirect_slashes = False
        asgi_app: App = app
        return asgi_app

    # --- logs -------------------------------------------------------------------------------------

    async def logs(self, request: Request) -> CompleteResponse:
        """Return a page of log names."""
        query = _query(request, "prefix", "after", "limit")
        limit = parse_whole("limit", query.get("limit", str(LOGS_PER_PAGE)), 1, LOGS_PER_PAGE)
        with trio.fail_after(self._options.read_s):
            page = await _session_of(request).namespace.log_page(
                query.get("prefix", ""), query.get("after", ""), limit
            )
        return _json(200, {"logs": list(page.names), "next": page.next})

    async def describe(self, request: Request) -> CompleteResponse:
        """Return the properties of a log and its end."""
        with trio.fail_after(self._options.read_s):
            description = await self._log(request).describe(segments_max=SEGMENTS_SHOWN)
        state = description.state
        first, last = description.first_dlsn, description.last_dlsn
        return _json(
            200,
            {
                "log": description.name,
                "incarnation": incarnation_text(state.log_id),
                "txids": description.txid_policy,
                "sealed": state.sealed,
                "owner": description.owner,
                "first": None if first is None else str(first),
                "last": None if last is None else str(last),
                "closed_records": description.records,
                "closed_bytes": description.size_bytes,
            },
        )

    async def create(self, request: Request) -> CompleteResponse:
        """Create a log."""
        fields = await self._json_object(request, "txids", "durability", "config")
        name, config = _name(request), fields.get("config")
        if config is not None and not isinstance(config, dict):
            raise InvalidRequest("config must be an object of options")
        with trio.fail_after(self._options.read_s):
            await _session_of(request).namespace.create_log(
                name,
                durability=fields.get("durability", "standard"),
                config=config,
                txids=fields.get("txids", "auto"),
            )
        return _json(201, {"log": name})

    async def delete(self, request: Request) -> CompleteResponse:
        """Delete a log."""
        query = _query(request, "wait_s")
        wait_s = parse_seconds("wait_s", query.get("wait_s", "0"), WAIT_MAX_S)
        session, name = _session_of(request), _name(request)
        with trio.fail_after(self._options.read_s + wait_s):
            await session.append_handler.close_unused(name)
            await session.namespace.delete_log(name, wait_s=wait_s)
        return CompleteResponse(204, b"", "")

    # --- writing ----------------------------------------------------------------------------------

    async def open_producer(self, request: Request) -> CompleteResponse:
        """Open a producer and return its number."""
        name = (await self._json_object(request, "name")).get("name", "")
        if not isinstance(name, str):
            raise InvalidRequest("name must be a text")
        opened = await _session_of(request).append_handler.open_producer(_name(request), name)
        return _json(
            201,
            {
                "producer": str(ProducerRef(opened.number, opened.name)),
                "number": opened.number,
                "name": opened.name,
                "next_sequence": opened.next_sequence,
                "known": opened.has_stored_records,
            },
        )

    async def append(self, request: Request) -> CompleteResponse:
        """Append one record or several."""
        headers = request.headers
        is_lines = is_json_lines(headers.get("content-type", BYTES))
        records = records_of(
            is_lines,
            await self._body(request),
            headers.get("dlog-txid"),
            self._options.records_max,
        )
        match = headers.get("if-match")
        expected = None if match is None else _expected(match)
        producer, sequence = headers.get("dlog-producer"), headers.get("dlog-sequence")
        if (producer is None) != (sequence is None):
            raise InvalidRequest("Dlog-Producer and Dlog-Sequence must be sent together")
        name = _name(request)
        if producer is None or sequence is None:
            dlsns = await _session_of(request).append_handler.append(name, records, expected)
            return _json(200, {"dlsns": dlsn_texts(dlsns)})
        first_sequence = parse_whole("Dlog-Sequence", sequence, 0, SEQUENCE_MAX)
        stored = await _session_of(request).append_handler.append_once(
            name, ProducerRef.parse(producer), first_sequence, records, expected
        )
        return _json(
            200, _producer_response(stored.first_dlsn, records, first_sequence, stored.is_duplicate)
        )

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, request: Request) -> CompleteResponse:
        """Return records from a position on."""
        query = _query(
            request, "from", "txid", "since_ms", "to", "limit", "wait_s", "include_headers"
        )
        include_headers = parse_flag("include_headers", query.get("include_headers", "false"))
        records_max = self._options.records_max
        limit = parse_whole(
            "limit", query.get("limit", str(min(RECORDS_PER_PAGE, records_max))), 1, records_max
        )
        wait_s = parse_seconds(
            "wait_s", query.get("wait_s", "0"), min(WAIT_MAX_S, self._options.read_s)
        )
        last_wanted = DLSN.parse(query["to"]) if "to" in query else None
        start = parse_start(query, "earliest")
        if start.get("at") == "latest":  # as a position, so that the next request misses nothing
            with trio.fail_after(self._options.read_s):
                start = start_after(await self._last_dlsn(request))
        reserve_bytes(request, HELD_PER_PAYLOAD_BYTE * self._options.read_bytes_max)
        records, is_end = await self._read_records(request, start, last_wanted, limit, wait_s)
        self.meters.records_read += len(records)
        self.meters.bytes_read += sum(len(record.payload) for record in records)
        next_position = str(records[-1].dlsn.next()) if records else next_start(start)
        if BYTES in request.headers.get("accept", ""):
            position_headers = {"dlog-end": str(is_end).lower(), "dlog-next": next_position}
            body = records_to_bytes(records, include_headers=include_headers)
            return CompleteResponse(200, body, BYTES, position_headers)
        return _json(
            200,
            {
                "records": [record_to_json(record) for record in records],
                "next": next_position,
                "end": is_end,
            },
        )

    async def _last_dlsn(self, request: Request) -> DLSN:
        """Return the position of the last record, or `DLSN.NONE` for an empty log."""
        try:
            return cast("DLSN", await self._log(request).last_dlsn())
        except LogEmpty:
            return DLSN.NONE

    async def _read_records(
        self,
        request: Request,
        start: dict[str, Any],
        last_wanted: DLSN | None,
        limit: int,
        wait_s: float,
    ) -> tuple[list[LogRecord], bool]:
        """Return records, and whether the log has no later ones now. Ends when the client disconnects."""
        records: list[LogRecord] = []
        is_end, failure = False, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_disconnect, request.receive, nursery.cancel_scope)
            try:
                with trio.move_on_after(self._options.read_s) as scope:
                    reader_end = None if wait_s else "end"
                    async with self._log(request).open_reader(**start, to=reader_end) as reader:
                        is_end = await self._read_into(reader, records, limit, wait_s, last_wanted)
            except DistributedLogError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None and not records:
            raise failure
        if scope.cancelled_caught and not records:
            raise RequestTimeout(f"no record arrived for {self._options.read_s:g} s")
        return records, is_end

    async def _read_into(
        self,
        reader: LogReader,
        records: list[LogRecord],
        limit: int,
        wait_s: float,
        last_wanted: DLSN | None,
    ) -> bool:
        """Append records to the list, and return whether the log has no later ones now."""
        remaining_bytes = self._options.read_bytes_max
        while len(records) < limit and remaining_bytes > 0:
            try:
                if not wait_s:
                    record = await reader.read_next()
                else:
                    record = await reader.read_next(wait_s=0 if records else wait_s)
            except EndOfStream:
                return True
            if record is None:
                return not wait_s
            if last_wanted is not None and record.dlsn > last_wanted:
                return False
            records.append(record)
            remaining_bytes -= len(record.payload) + memory_bytes([record.key], [record.headers])
        return False

    async def tail(self, request: Request) -> GatewayResponse:
        """Send new records as an event stream."""
        query = _query(request, "from", "txid", "since_ms")
        last_event_id = request.headers.get("last-event-id")
        start = parse_start(query, "latest", last_event_id)
        if self.meters.tails >= self._options.tails_max:
            raise TooBusy(f"{self.meters.tails} tails are open")
        if request.method != "GET":
            raise InvalidRequest("a tail supports only GET")
        if last_event_id is not None and await self._is_end(request, parse_event_id(last_event_id)):
            return CompleteResponse(204, b"", "")  # a browser reconnects after any other answer
        share = _session_of(request).share
        if share is not None:
            share.begin_tail()
        self.meters.tails += 1
        last: DLSN | None = None
        try:
            with trio.fail_after(self._options.read_s):
                if start.get("at") == "latest":
                    last = await self._last_dlsn(request)
                    start = start_after(last)
                reader = await self._log(request).open_reader(**start)
        except BaseException:
            self.meters.tails -= 1
            if share is not None:
                share.end_tail()
            raise
        return Tail(
            reader,
            self.meters,
            quiet_s=self._options.quiet_s,
            where=_method_and_path(request),
            share=share,
            by_users=self._sessions.by_users,
            last=last,
            end=partial(self._last_dlsn, request),
        )

    async def _is_end(self, request: Request, dlsn: DLSN) -> bool:
        """Return whether the log is sealed and has no record after a position."""
        with trio.fail_after(self._options.read_s):
            description = await self._log(request).describe(segments_max=1)
        return description.state.sealed and (description.last_dlsn or DLSN.NONE) <= dlsn

    # --- about the gateway ------------------------------------------------------------------------

    async def description(self, _: Request) -> CompleteResponse:
        """Return openapi.json."""
        return CompleteResponse(200, self._description, JSON)

    async def health(self, _: Request) -> CompleteResponse:
        """Report that the gateway answers."""
        return _json(200, {"healthy": True, "name": self._name})

    async def metrics(self, _: Request) -> CompleteResponse:
        """Return the metrics of the gateway in the Prometheus text format."""
        self._sessions.update_meters()
        node = {"name": self._name, "kind": "gateway"}
        return CompleteResponse(200, metrics_text(self.meters.samples(), node), TEXT_CONTENT_TYPE)

    # --- requests ---------------------------------------------------------------------------------

    def _wrap_handler(self, handler: RequestHandler, is_write: bool) -> RequestHandler:
        """Return a handler that runs a call with the rights of its session, and answers with its errors."""

        async def answer(request: Request) -> GatewayResponse:
            try:
                try:
                    request.scope["dlog.request_session"] = await self._sessions.acquire(
                        request.scope
                    )
                    return await handler(request)
                except trio.TooSlowError:
                    raise RequestTimeout("the cluster did not answer in time") from None
                except ClientDisconnect:
                    raise InvalidRequest("the client disconnected") from None
            except RejectedRequest as error:
                return CompleteResponse(error.status, error.body, JSON, error.headers)
            except DistributedLogError as error:
                if isinstance(error, NotAuthenticated):
                    self._sessions.reject(request.scope)
                return self._error_response(error, request, is_write)
            except Exception as error:
                log.exception("a request: %s", _method_and_path(request))
                description = f"a defect of the gateway: {type(error).__name__}"
                if not request.scope.get("dlog.begun", False):
                    # The request did not reach the cluster. With the advice for an unknown outcome, a client
                    # would repeat it forever.
                    return CompleteResponse(500, rejection_body(500, description, DEFECT_ADVICE))
                internal_error = InternalError(description)
                return self._error_response(internal_error, request, is_write)

        return answer

    def _error_response(
        self, error: DistributedLogError, request: Request, is_write: bool
    ) -> CompleteResponse:
        status, body = error_response(
            error, _method_and_path(request), is_write=is_write, by_users=self._sessions.by_users
        )
        return _json(status, body, headers_of(status))

    def _log(self, request: Request) -> Any:
        return _session_of(request).namespace.open_log(_name(request))

    async def _body(self, request: Request) -> bytes:
        """Return the complete body.

        Raises `RecordTooLarge`, `RejectedRequest`, or `InvalidRequest` if it takes too long.
        """
        coding = request.headers.get("content-encoding", "").strip()
        if coding.lower() not in ("", "identity"):
            raise RejectedRequest(
                415,
                f"the encoding {coding[:60]!r} of the body is not supported",
                "send it uncompressed, without Content-Encoding",
                {"accept-encoding": "identity"},
            )
        size_max = self._options.body_bytes_max
        declared_size = request.headers.get("content-length", "0")
        if declared_size.isdigit() and int(declared_size) > size_max:
            raise RecordTooLarge(f"a body of {declared_size[:20]} bytes; the limit is {size_max}")
        parts, size = [], 0
        with trio.move_on_after(self._options.body_s):
            async for part in request.stream():
                size += len(part)
                reserve_bytes(request, HELD_PER_PAYLOAD_BYTE * len(part))
                if size > size_max:
                    raise RecordTooLarge(f"a body of more than {size_max} bytes")
                parts.append(part)
            return b"".join(parts)
        raise InvalidRequest(f"the body did not arrive within {self._options.body_s:g} s")

    async def _json_object(self, request: Request, *known_fields: str) -> dict[str, Any]:
        """Return the body, which is a JSON object or empty. Raises `InvalidRequest`."""
        body = await self._body(request)
        try:
            value = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            raise InvalidRequest("the body is not JSON") from None
        if not isinstance(value, dict) or not value.keys() <= set(known_fields):
            raise InvalidRequest(f"the body must be an object with {', '.join(known_fields)}")
        return value


async def _not_found(request: Request, error: Exception) -> CompleteResponse:
    """Answer a request for an unknown path or method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{_method_and_path(request)} does not exist"
    return CompleteResponse(
        status, rejection_body(status, what, "GET /openapi.json lists all paths")
    )


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> CompleteResponse:
    return CompleteResponse(status, json.dumps(value).encode() + b"\n", JSON, headers)


def reserve_bytes(request: Request, size: int) -> None:
    """Count ``size`` more bytes of memory until the request is answered. Raises `TooBusy`."""
    request.scope["dlog.slot"].hold(size)


def _session_of(request: Request) -> RequestSession:
    """Return the session of a request, which may change the cluster afterwards."""
    request.scope["dlog.begun"] = True
    session: RequestSession = request.scope["dlog.request_session"]
    return session


def _method_and_path(request: Request) -> str:
    return f"{request.method} {request.scope['path']}"


def _name(request: Request) -> str:
    """Return the log's name. Raises `InvalidRequest`, `InvalidLogName`."""
    try:
        return check_log_name(unquote(request.path_params["log"], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidRequest("a log's name in a path must be percent-encoded UTF-8") from None


def _query(request: Request, *known_fields: str) -> dict[str, str]:
    """Return the query parameters. Raises `InvalidRequest` for an unknown or repeated one."""
    fields: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known_fields:
            raise InvalidRequest(
                f"unknown parameter {name[:60]!r}; known are {', '.join(known_fields)}"
            )
        if name in fields:
            raise InvalidRequest(f"{name} is given twice")
        fields[name] = value
    return fields


def _expected(match: str) -> DLSN:
    """Parse If-Match: a DLSN with or without quotes; 0.0.0 for a log that never had a record.

    Raises `InvalidRequest`.
    """
    text = match.strip().strip('"')
    return DLSN.NONE if text == str(DLSN.NONE) else DLSN.parse(text)


def _producer_response(
    first: DLSN | None, records: SubmittedRecords, sequence: int, is_duplicate: bool
) -> dict[str, Any]:
    """Return the answer for a producer's records, without positions that the log no longer has."""
    count = len(records.payloads)
    dlsns = [] if first is None else [first._replace(slot=first.slot + k) for k in range(count)]
    return {
        "dlsns": dlsn_texts(dlsns),
        "repeated": is_duplicate,
        "next_sequence": sequence + count,
    }
