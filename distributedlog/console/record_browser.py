"""Read records for display: a page from a position on, one whole payload, and a tail.

Of a payload, the first `PAYLOAD_SHOWN` bytes are sent without a further request. If payloads are hidden,
nothing of payloads, keys and headers is sent. A tail of a fast log shows `TAIL_RECORDS_S` records per second,
reports the number of skipped ones, and continues at the end of the log. The console must not use the capacity
that the readers of the log need (H262).
"""

from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import trio

from ..log.format.dlsn import DLSN
from ..log.format.record import LogRecord
from ..log.log import Log
from ..log.namespace import Namespace
from ..log.read.position_search import record_with_id
from ..log.read.state_watch import open_state_watch
from ..runtime.interfaces.errors import EndOfStream, InvalidRequest, RequestTimeout
from ..runtime.interfaces.host import Buffer
from .http import Send

PAYLOAD_SHOWN = 1024
KEY_SHOWN = 256
"""Maximum number of bytes of a key, and of the name and the value of a header."""
HEADERS_SHOWN = 16
RECORDS_MAX = 100
"""Records per page."""
PAGE_S = 5.0
TAIL_RECORDS_S = 200
TAIL_BATCH_S = 0.25
"""Records that arrive within this time, in seconds, are sent together."""
TAIL_QUIET_S = 15.0
READER_OPTIONS = {"read_ahead_bytes": 256 * 1024, "read_bytes": 256 * 1024}
"""Options of the console's readers."""
Encode = Callable[[Mapping[str, Any] | None], bytes]
"""Encodes a value as an event; None is a sign of life."""
NUMBER_DIGITS_MAX = 19
START_KINDS = ("first", "last", "dlsn", "txid", "time", "sequence")


class RecordBrowser:
    """Reads the logs of a namespace. With ``payloads`` False it returns only the sizes of payloads."""

    def __init__(self, namespace: Namespace, *, payloads: bool) -> None:
        self._namespace = namespace
        self._payloads = payloads

    async def page(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return up to `RECORDS_MAX` records.

        Args:
            name: The log.
            query: ``from`` is one of `START_KINDS`; ``at`` is the position of "dlsn", "txid", "time" (in
                milliseconds since 1970) or "sequence" (the sequence ID of the first record).

        Raises:
            InvalidRequest: The position is invalid.
            RequestTimeout: No record arrived within `PAGE_S`.
            DistributedLogError: The reader failed.
        """
        log = self._log(name)
        start = query.get("from", "first")
        rows: deque[dict[str, Any]] = deque(maxlen=RECORDS_MAX)
        is_end = False
        with trio.move_on_after(PAGE_S) as scope:
            reader_start = await self._reader_start(log, start, query.get("at", ""))
            if reader_start is None:
                return {"records": [], "ended": True, "whole": True}
            async with log.open_reader(**reader_start, to="end") as reader:
                while start == "last" or len(rows) < RECORDS_MAX:
                    try:
                        record = await reader.read_next()
                    except EndOfStream:
                        record = None
                    if record is None:
                        is_end = True
                        break
                    rows.append(self._record_row(record))
        if scope.cancelled_caught and not rows:
            raise RequestTimeout(f"no record arrived for {PAGE_S:g} s")
        return {"records": list(rows), "ended": is_end, "whole": not scope.cancelled_caught}

    async def payload(self, name: str, dlsn: str) -> bytes:
        """Return the whole payload of one record.

        Raises:
            InvalidRequest: Payloads are hidden, or there is no record at this position.
            RequestTimeout: The record did not arrive within `PAGE_S`.
            DistributedLogError: The reader failed.
        """
        if not self._payloads:
            raise InvalidRequest("payloads are hidden: dlog console runs with --no-payloads")
        position = DLSN.parse(dlsn)
        with trio.move_on_after(PAGE_S):
            async with self._log(name).open_reader(dlsn=position, to=position) as reader:
                record = await reader.read_next()
                if record is None or record.dlsn != position:
                    raise InvalidRequest(f"there is no record at {position}")
                return bytes(record.payload)
        raise RequestTimeout(f"no record arrived for {PAGE_S:g} s")

    async def tail(self, name: str, send: Send, encode: Encode) -> None:
        """Send new records until cancelled or the log is sealed. Raises the errors of a reader."""
        log = self._log(name)
        last_sequence_id: int | None = None
        while True:
            second_started_at = trio.current_time()
            shown_records = 0
            async with log.open_reader(at="latest") as reader:
                while shown_records < TAIL_RECORDS_S:
                    if trio.current_time() - second_started_at >= 1.0:
                        second_started_at, shown_records = trio.current_time(), 0
                    try:
                        record = await reader.read_next(wait_s=TAIL_QUIET_S)
                        records = [] if record is None else [record]
                        while record is not None and shown_records + len(records) < TAIL_RECORDS_S:
                            record = await reader.read_next(wait_s=0)
                            records += [] if record is None else [record]
                    except EndOfStream:
                        await send(encode({"records": [], "passed_over": 0, "sealed": True}))
                        return
                    if not records:
                        await send(encode(None))
                        continue
                    first = records[0].sequence_id
                    skipped = (
                        0 if last_sequence_id is None else max(0, first - last_sequence_id - 1)
                    )
                    last_sequence_id = records[-1].sequence_id
                    shown_records += len(records)
                    lines = [self._record_row(shown_record) for shown_record in records]
                    await send(encode({"records": lines, "passed_over": skipped}))
                    await trio.sleep(TAIL_BATCH_S)
            # More records than can be shown: wait for the rest of the second, then continue at the end.
            await trio.sleep(max(0.0, second_started_at + 1.0 - trio.current_time()))

    def _log(self, name: str) -> Log:
        return self._namespace.open_log(name, config=READER_OPTIONS)

    async def _reader_start(self, log: Log, start: str, position: str) -> dict[str, Any] | None:
        """Return the arguments of `Log.open_reader`, or None if no record follows.

        Raises: InvalidRequest.
        """
        match start:
            case "first":
                return {"at": "earliest"}
            case "dlsn":
                return {"dlsn": DLSN.parse(position)}
            case "txid":
                return {"txid": _whole_number(start, position)}
            case "time":
                return {"since": _whole_number(start, position)}
            case "last" | "sequence":
                snapshot = await log.snapshot(limit=1)
                sequence_id = snapshot.end_sequence_id - RECORDS_MAX
                if start == "sequence":
                    sequence_id = _whole_number(start, position)
                sequence_id = max(snapshot.first_sequence_id, sequence_id)
                return await self._start_at(log.name, sequence_id)
        raise InvalidRequest(f"from must be one of {', '.join(START_KINDS)}, got {start[:40]!r}")

    async def _start_at(self, name: str, sequence_id: int) -> dict[str, Any] | None:
        """Return the start of a reader at a record, which can be in any segment."""
        namespace = self._namespace
        state_watch = await open_state_watch(
            namespace.metadata, await namespace.resolve_name(name), name, namespace.path
        )
        record = await record_with_id(
            namespace.metadata, state_watch.state, namespace.ledgers, sequence_id
        )
        return None if record is None else {"dlsn": record.dlsn}

    def _record_row(self, record: LogRecord) -> dict[str, Any]:
        row = {
            "dlsn": str(record.dlsn),
            "txid": str(record.txid),  # JavaScript numbers are not exact beyond 2^53
            "sequence_id": record.sequence_id,
            "time_ms": record.time_ms,
            "bytes": len(record.payload),
        }
        if self._payloads:
            row["payload"] = _encoded(record.payload, PAYLOAD_SHOWN)
            if record.key is not None:
                row["key"] = _encoded(record.key, KEY_SHOWN)
                row["key_bytes"] = len(record.key)
            if record.headers:
                row["headers"] = [
                    [_encoded(name, KEY_SHOWN), _encoded(value, KEY_SHOWN), len(value)]
                    for name, value in record.headers[:HEADERS_SHOWN]
                ]
                row["headers_left_out"] = max(0, len(record.headers) - HEADERS_SHOWN)
        return row


def _encoded(content: Buffer, bytes_max: int) -> str:
    """Return the first bytes in base64."""
    return b64encode(bytes(content[:bytes_max])).decode()


def _whole_number(kind: str, text: str) -> int:
    """Return the number in a query. Raises `InvalidRequest`."""
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise InvalidRequest(f"{kind} must be a whole number, got {text[:40]!r}")
    return int(text)
