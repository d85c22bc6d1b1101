"""Read records for display: a page from a position on, one whole payload, and a tail.

Of a payload, the first `PAYLOAD_SHOWN` bytes are sent without a further request, and nothing if payloads are
hidden. A tail of a fast log shows `TAIL_RECORDS_S` records per second, reports the number of skipped ones,
and continues at the end of the log. The console must not use the capacity that the readers of the log need
(H262).
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
from ..runtime.interfaces.errors import EndOfStream, InvalidRequest, LogEmpty, RequestTimeout
from .http import Send

PAYLOAD_SHOWN = 1024
RECORDS_MAX = 100
"""Records per page."""
PAGE_S = 5.0
TAIL_RECORDS_S = 200
TAIL_BATCH_S = 0.25
"""Records that arrive within this time, in seconds, are sent together."""
TAIL_QUIET_S = 15.0
ENTRIES_BACK = 8
"""Entries before the end at which a page of the last records starts."""
READER_OPTIONS = {"read_ahead_bytes": 256 * 1024, "read_bytes": 256 * 1024}
"""Options of the console's readers."""
Encode = Callable[[Mapping[str, Any] | None], bytes]
"""Encodes a value as an event; None is a sign of life."""
START_KINDS = ("first", "last", "dlsn", "txid", "time")


class RecordBrowser:
    """Reads the logs of a namespace. With ``payloads`` False it returns only the sizes of payloads."""

    def __init__(self, namespace: Namespace, *, payloads: bool) -> None:
        self._namespace = namespace
        self._payloads = payloads

    async def page(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return up to `RECORDS_MAX` records.

        Args:
            name: The log.
            query: ``from`` is one of `START_KINDS`; ``at`` is the position of "dlsn", "txid" or "time".

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
            reader_start = await _reader_start(log, start, query.get("at", ""))
            if reader_start is None:  # an empty log has no last records
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

    def _record_row(self, record: LogRecord) -> dict[str, Any]:
        row = {
            "dlsn": str(record.dlsn),
            "txid": str(record.txid),  # JavaScript numbers are not exact beyond 2^53
            "sequence_id": record.sequence_id,
            "time_ms": record.time_ms,
            "bytes": len(record.payload),
        }
        if self._payloads:
            head = bytes(record.payload[:PAYLOAD_SHOWN])
            row["payload"] = b64encode(head).decode()
        return row


async def _reader_start(log: Log, start: str, position: str) -> dict[str, Any] | None:
    """Return the arguments of `Log.open_reader`, or None if the log is empty. Raises `InvalidRequest`."""
    if start == "first":
        return {"at": "earliest"}
    if start == "last":
        try:
            last = await log.last_dlsn()
        except LogEmpty:
            return None
        earliest = (await log.snapshot(limit=1)).first_dlsn
        return {"dlsn": max(earliest, DLSN(last.segment, max(0, last.entry - ENTRIES_BACK), 0))}
    if start == "dlsn":
        return {"dlsn": DLSN.parse(position)}
    if start in ("txid", "time"):
        if not position.isascii() or not position.isdigit() or len(position) > 19:
            raise InvalidRequest(f"{start} must be a whole number, got {position[:40]!r}")
        return {"txid" if start == "txid" else "since": int(position)}
    raise InvalidRequest(f"from must be one of {', '.join(START_KINDS)}, got {start[:40]!r}")
