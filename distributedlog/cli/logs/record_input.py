"""`dlog log write`: append a stream of records, pipelined and with limited memory.

After a failure it reports exactly which records are certainly stored.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, BinaryIO

import trio

from ...cluster.coordination.log_changes import open_checked_writer
from ...log.format.record import TXID_MAX
from ...log.format.record_headers import KeyedContent
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogExists,
    LogNotFound,
    OutcomeUnknown,
)
from ..connection.cluster_connection import await_answer, namespace, notice_when_slow
from ..framework.errors import innermost, print_notice
from ..framework.options import Settings
from ..framework.output import emit, plural, size
from ..framework.progress import show_progress
from ..framework.standard_streams import read_some
from .record_formats import parser

CHUNK_BYTES = 256 * 1024


class StoredSummary:
    """Counts the records that are certainly stored so far, their bytes, and the first and last position."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.first: Any = None
        self.last: Any = None
        self.started_at = time.perf_counter()
        self.failure: DistributedLogError | None = None
        """Why a record is not stored, or why this is unknown. All counted records precede it."""
        self._waiting: deque[tuple[Any, list[bytes]]] = deque()

    def add_bulk(self, bulk: Any, payloads: list[bytes]) -> None:
        """Add a bulk whose writes are pending."""
        self._waiting.append((bulk, payloads))
        self.count_acknowledged()

    @property
    def is_rejected(self) -> bool:
        """Whether a record of the newest bulk was rejected. Then no record may follow it."""
        return bool(self._waiting) and _failure(self._waiting[-1][0]) is not None

    def count_acknowledged(self) -> None:
        """Count the finished writes in order, up to the first that is pending or failed."""
        while self._waiting and self.failure is None and self._waiting[0][0].done():
            bulk, payloads = self._waiting.popleft()
            self.failure = _failure(bulk)
            if self.failure is None:
                self.records += len(bulk)
                self.bytes += sum(map(len, payloads))
                self.first = self.first or bulk[0].result()
                self.last = bulk[-1].result()
            else:
                self._count_before_failure(bulk, payloads)

    def _count_before_failure(self, bulk: Any, payloads: list[bytes]) -> None:
        for pending, payload in zip(bulk, payloads, strict=True):
            try:
                self.last = pending.result()
            except DistributedLogError as error:
                self.failure = error
                return
            self.first = self.first or self.last
            self.records += 1
            self.bytes += len(payload)

    def progress_text(self) -> str:
        """Return the stored amount and the rate so far."""
        rate = self.records / max(time.perf_counter() - self.started_at, 1e-9)
        return f"{plural(self.records, 'record')}, {size(self.bytes)}, {rate:,.0f} records/s"

    def summary(self) -> dict[str, Any]:
        """Return the documented keys of the JSON output."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "first_dlsn": str(self.first) if self.first is not None else None,
            "last_dlsn": str(self.last) if self.last is not None else None,
            "seconds": round(time.perf_counter() - self.started_at, 6),
        }


def _failure(bulk: Any) -> DistributedLogError | None:
    """Return the error of a bulk's last record. It has one if any record before it has one."""
    if not bulk[-1].done():
        return None
    try:
        bulk[-1].result()
    except DistributedLogError as error:
        return error
    return None


async def write_stream(
    settings: Settings,
    name: str,
    file: BinaryIO,
    format_name: str,
    *,
    txid_policy: str | None,
    create: bool,
    takeover: bool,
    keyed: KeyedContent | None = None,
) -> None:
    """Append all records of ``file``, and print the summary, also after a failure.

    All records get the key and headers of ``keyed``. The writer is opened only when a first valid
    record is available, because opening creates a segment. ``txid_policy`` sets omitted transaction IDs:
    "ms", "count", or None for the policy of the log. Raises `LogNotFound` without ``create``,
    `OutcomeUnknown` after the timeout, and the errors of the writer.
    """
    stored = StoredSummary()
    source = _RecordSource(settings, file, format_name, keyed)
    try:
        async with namespace(settings) as logs:
            if not create and not await await_answer(
                settings, f"looking for {name}", lambda: logs.log_exists(name)
            ):
                raise LogNotFound(
                    f'log "{name}" does not exist in {settings.where()} (--create creates it)', name
                )
            items = await source.next_records()
            if not items:
                if create:  # an empty input creates the log without a segment
                    with suppress(LogExists):
                        await logs.create_log(name)
                source.raise_malformed()
            else:
                opening = await open_checked_writer(
                    logs,
                    name,
                    (None, items[0]) if isinstance(items[0], bytes) else items[0],
                    create=create,
                    recover_timeout_s=settings.timeout_s,
                    takeover=takeover,
                )
                async with AsyncExitStack() as stack:
                    with notice_when_slow(
                        settings, f"opening {name}, or waiting for another writer"
                    ):
                        writer = await stack.enter_async_context(opening)
                    stored.started_at = time.perf_counter()
                    await _write_all(settings, writer, source, items, txid_policy, stored)
    except BaseException as group:
        error = innermost(group)
        stored.count_acknowledged()
        if isinstance(error, DistributedLogError) or isinstance(group, KeyboardInterrupt):
            _report_failure(settings, stored, error)
        raise
    if settings.json:
        emit(stored.summary())
    elif not settings.quiet:
        summary = stored.summary()
        seconds = max(summary["seconds"], 1e-9)
        settings.note(
            f"{plural(stored.records, 'record')} ({size(stored.bytes)}) in {seconds:.2f} s,"
            f" {stored.records / seconds:,.0f} records/s; {summary['first_dlsn'] or '-'}"
            f" to {summary['last_dlsn'] or '-'}"
        )


class _RecordSource:
    """Reads the records of a file chunk by chunk."""

    def __init__(
        self,
        settings: Settings,
        file: BinaryIO,
        format_name: str,
        keyed: KeyedContent | None,
    ) -> None:
        self._settings = settings
        self._keyed = keyed
        self._descriptor = file.fileno()
        self._parser = parser(format_name)
        self._is_ended = False

    async def next_records(self) -> Any:
        """Return the next records of the input; none at its end, or if the next record is malformed."""
        items: Any = []
        while not (items or self._is_ended or self._parser.error is not None):
            # Read by descriptor: a thread in a buffered read would hold the lock of the buffer at exit.
            chunk = await trio.to_thread.run_sync(
                read_some, self._descriptor, CHUNK_BYTES, abandon_on_cancel=True
            )
            self._is_ended = not chunk
            items = self._parser.finish() if self._is_ended else self._parser.feed(chunk)
        if self._keyed is not None:
            return [_with_keyed(item, self._keyed) for item in items]
        return items

    def raise_malformed(self) -> None:
        """Raise the error of the first malformed record, if there is one."""
        if self._parser.error is not None:
            raise self._parser.error


def _with_keyed(item: Any, keyed: KeyedContent) -> tuple[int | None, KeyedContent]:
    txid, content = (None, item) if isinstance(item, bytes) else item
    key, headers = keyed.key, keyed.headers
    if type(content) is KeyedContent:
        if key is not None and content.key is not None:
            raise InvalidRequest("a record of the input has a key, and --key was given")
        key = content.key if key is None else key
        headers, content = (*content.headers, *headers), content.payload
    return txid, KeyedContent(content, key, headers)


async def _write_all(
    settings: Settings,
    writer: Any,
    source: _RecordSource,
    first_items: Any,
    txid_policy: str | None,
    stored: StoredSummary,
) -> None:
    with show_progress(settings, lambda _: stored.progress_text()):
        await _submit_all(settings, writer, source, first_items, txid_policy, stored)
    stored.count_acknowledged()
    if stored.failure is not None:
        raise stored.failure
    source.raise_malformed()


async def _submit_all(
    settings: Settings,
    writer: Any,
    source: _RecordSource,
    items: Any,
    txid_policy: str | None,
    stored: StoredSummary,
) -> None:
    while items:
        txids, payloads = _columns(items, writer.last_txid, txid_policy)
        try:
            with trio.fail_after(settings.timeout_s):
                bulk = await writer.submit_columns(txids, payloads)
        except trio.TooSlowError:
            raise _timeout_error(settings) from None
        stored.add_bulk(bulk, payloads)
        if stored.is_rejected:
            break
        items = await source.next_records()
    try:
        with trio.fail_after(settings.timeout_s):
            await writer.commit()
    except trio.TooSlowError:
        raise _timeout_error(settings) from None


def _columns(
    items: Any, last: int, fill: str | None
) -> tuple[Sequence[int | None] | None, list[bytes]]:
    """Return transaction IDs and payloads.

    ``fill`` determines omitted transaction IDs. None leaves them to the log. ``ms`` sets the same ID for
    all records of the call, and never one below the last one.
    """
    if isinstance(items[0], bytes):
        if fill is None:
            return None, items
        items = [(None, payload) for payload in items]
    now = max(last, time.time_ns() // 1_000_000, 0)
    txids: list[int | None] = []
    for txid, _ in items:
        record_txid = txid
        if record_txid is None and fill is not None:
            record_txid = min(last + 1 if fill == "count" else max(last, now), TXID_MAX)
        if record_txid is not None:
            last = max(last, record_txid)
        txids.append(record_txid)
    return txids, [payload for _, payload in items]


def _timeout_error(settings: Settings) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"no acknowledgement for {settings.timeout_s:g} s; pending records may or may not be stored"
    )


def _report_failure(settings: Settings, stored: StoredSummary, error: BaseException) -> None:
    summary = stored.summary()
    if settings.json:
        name, code = type(error).__name__, getattr(error, "code", 0)
        emit({**summary, "error": {"name": name, "code": code, "message": str(error)}})
        return
    last_text = f", the last at {stored.last}" if stored.last is not None else ""
    print_notice(
        f"{plural(stored.records, 'record is', 'records are')} certainly stored{last_text}"
    )
