"""Records for eyes: some from a position on, one whole, and a tail that shows what a reader of it can read.

Of a payload `PAYLOAD_SHOWN` bytes come unasked, and nothing at all where payloads are hidden. A tail of a
fast log shows `TAIL_RECORDS_S` a second, says how many it passed over, and begins anew at the end: the
console must not take what the log's readers need (H262).
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
"""Of one page."""
PAGE_S = 5.0
TAIL_RECORDS_S = 200
TAIL_BATCH_S = 0.25
"""What comes within it is sent together."""
TAIL_QUIET_S = 15.0
ENTRIES_BACK = 8
"""From the end: where a page of the last records begins."""
READER_OPTIONS = {"read_ahead_bytes": 256 * 1024, "read_bytes": 256 * 1024}
"""Options of the console's readers."""
Encode = Callable[[Mapping[str, Any] | None], bytes]
"""As an event; None: a sign of life."""
START_KINDS = ("first", "last", "dlsn", "txid", "time")


class RecordBrowser:
    """Reads logs of a namespace. ``payloads`` off: their sizes alone are told."""

    def __init__(self, namespace: Namespace, *, payloads: bool) -> None:
        self._namespace = namespace
        self._payloads = payloads

    async def page(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Up to `RECORDS_MAX` records: ``from`` one of `START_KINDS`, and ``at``.

        Raises `InvalidRequest`, and what a reader raises; `RequestTimeout` when none comes in `PAGE_S`.
        """
        log = self._log(name)
        start = query.get("from", "first")
        rows: deque[dict[str, Any]] = deque(maxlen=RECORDS_MAX)
        is_end = False
        with trio.move_on_after(PAGE_S) as scope:
            reader_start = await _reader_start(log, start, query.get("at", ""))
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
            raise RequestTimeout(f"no record came for {PAGE_S:g} s")
        return {"records": list(rows), "ended": is_end, "whole": not scope.cancelled_caught}

    async def payload(self, name: str, dlsn: str) -> bytes:
        """All of one. Raises `InvalidRequest`, and what a reader raises."""
        if not self._payloads:
            raise InvalidRequest("payloads are not shown: dlog console runs with --no-payloads")
        position = DLSN.parse(dlsn)
        with trio.move_on_after(PAGE_S):
            async with self._log(name).open_reader(dlsn=position, to=position) as reader:
                record = await reader.read_next()
                if record is None or record.dlsn != position:
                    raise InvalidRequest(f"there is no record at {position}")
                return bytes(record.payload)
        raise RequestTimeout(f"no record came for {PAGE_S:g} s")

    async def tail(self, name: str, send: Send, encode: Encode) -> None:
        """Send what is written from now on, until cancelled or the log is sealed. Raises as a reader does."""
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
            # More than can be shown: the rest of the second passes, then on from the end.
            await trio.sleep(max(0.0, second_started_at + 1.0 - trio.current_time()))

    def _log(self, name: str) -> Log:
        return self._namespace.open_log(name, config=READER_OPTIONS)

    def _record_row(self, record: LogRecord) -> dict[str, Any]:
        row = {
            "dlsn": str(record.dlsn),
            "txid": str(record.txid),  # beyond 2^53 a browser's numbers are not exact
            "sequence_id": record.sequence_id,
            "time_ms": record.time_ms,
            "bytes": len(record.payload),
        }
        if self._payloads:
            head = bytes(record.payload[:PAYLOAD_SHOWN])
            row["payload"] = b64encode(head).decode()
        return row


async def _reader_start(log: Log, start: str, position: str) -> dict[str, Any] | None:
    """What `Log.open_reader` takes; None: there is nothing. Raises `InvalidRequest`."""
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
            raise InvalidRequest(f"{start} is a whole number, not {position[:40]!r}")
        return {"txid" if start == "txid" else "since": int(position)}
    raise InvalidRequest(f"records begin at one of {', '.join(START_KINDS)}, not at {start[:40]!r}")
