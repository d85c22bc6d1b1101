"""`dlog log write`: a stream of records in, pipelined, bounded in memory, with an honest end."""

import os
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import Any, BinaryIO

import trio

from ..cluster.counted import counted
from ..log.record import TXID_MAX
from ..runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    OutcomeUnknown,
)
from .connect import answer, namespace, waiting
from .errors import innermost, say, tell
from .formats import parser
from .options import Settings
from .output import emit, size

CHUNK_BYTES = 256 * 1024
PROGRESS_S = 10.0
"""Between lines of progress where stderr is no terminal; a terminal gets them each half second."""
PROGRESS_TERMINAL_S = 0.5


class Stored:
    """What is certainly stored so far: a count, bytes, and the first and last position."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.first: Any = None
        self.last: Any = None
        self.began = time.perf_counter()
        self.failed: DistributedLogError | None = None
        """Why a record was not stored, or is not known to be; what was counted comes before it."""
        self._waiting: deque[tuple[Any, list[bytes]]] = deque()

    def sent(self, bulk: Any, payloads: list[bytes]) -> None:
        """One more bulk is under way."""
        self._waiting.append((bulk, payloads))
        self.look()

    @property
    def refused(self) -> bool:
        """Was a record of the newest bulk not taken? Then nothing may follow it."""
        return bool(self._waiting) and _failure(self._waiting[-1][0]) is not None

    def look(self) -> None:
        """Count what is done, in order, up to the first that is not or failed."""
        while self._waiting and self.failed is None and self._waiting[0][0].done():
            bulk, payloads = self._waiting.popleft()
            self.failed = _failure(bulk)
            if self.failed is None:
                self.records += len(bulk)
                self.bytes += sum(map(len, payloads))
                self.first = self.first or bulk[0].result()
                self.last = bulk[-1].result()
            else:
                self._count_head(bulk, payloads)

    def _count_head(self, bulk: Any, payloads: list[bytes]) -> None:
        for pending, payload in zip(bulk, payloads, strict=True):
            try:
                self.last = pending.result()
            except DistributedLogError as error:
                self.failed = error
                return
            self.first = self.first or self.last
            self.records += 1
            self.bytes += len(payload)

    def summary(self) -> dict[str, Any]:
        """The keys of the contract."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "first_dlsn": str(self.first) if self.first is not None else None,
            "last_dlsn": str(self.last) if self.last is not None else None,
            "seconds": round(time.perf_counter() - self.began, 6),
        }


def _failure(bulk: Any) -> DistributedLogError | None:
    """The error of a bulk's last record, which has one when any before it has."""
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
    count: bool,
    create: bool,
    takeover: bool,
) -> None:
    """Write all of ``file``; print the summary, also when it fails."""
    stored = Stored()
    try:
        async with namespace(settings) as logs:
            if not create and not await answer(
                settings, f"looking for {name}", lambda: logs.log_exists(name)
            ):
                raise LogNotFound(
                    f'log "{name}" does not exist in {settings.where()} (--create creates it)', name
                )
            config = {"create_if_missing": create, "recover_timeout_s": settings.timeout_s}
            log = logs.open_log(name, config=config)
            async with AsyncExitStack() as stack:
                with waiting(settings, f"opening {name}; another writer is waited for"):
                    writer = await stack.enter_async_context(log.open_writer(takeover=takeover))
                stored.began = time.perf_counter()
                await _copy(settings, writer, file, format_name, count, stored)
    except BaseException as group:
        error = innermost(group)
        stored.look()
        if isinstance(error, DistributedLogError) or isinstance(group, KeyboardInterrupt):
            _tell_failure(settings, stored, error)
        raise
    if settings.json:
        emit(stored.summary())
    elif not settings.quiet:
        summary = stored.summary()
        seconds = max(summary["seconds"], 1e-9)
        settings.note(
            f"{counted(stored.records, 'record')} ({size(stored.bytes)}) in {seconds:.2f} s,"
            f" {stored.records / seconds:,.0f} records/s; {summary['first_dlsn'] or '-'}"
            f" to {summary['last_dlsn'] or '-'}"
        )


async def _copy(
    settings: Settings, writer: Any, file: BinaryIO, format_name: str, count: bool, stored: Stored
) -> None:
    cut = parser(format_name)
    number = file.fileno()
    progress = _Progress(settings, stored)
    ended = False
    while not ended and cut.error is None:
        # By descriptor: a thread left in a buffered read would hold the buffer's lock at our exit.
        chunk = await trio.to_thread.run_sync(os.read, number, CHUNK_BYTES, abandon_on_cancel=True)
        ended = not chunk
        items = cut.finish() if ended else cut.feed(chunk)
        if items:
            txids, payloads = _columns(items, writer.last_txid, count)
            try:
                with trio.fail_after(settings.timeout_s):
                    bulk = await writer.submit_columns(txids, payloads)
            except trio.TooSlowError:
                raise _no_answer(settings) from None
            stored.sent(bulk, payloads)
            if stored.refused:
                break
            progress.show()
    try:
        with trio.fail_after(settings.timeout_s):
            await writer.commit()
    except trio.TooSlowError:
        raise _no_answer(settings) from None
    stored.look()
    if stored.failed is not None:
        raise stored.failed
    if cut.error is not None:
        raise cut.error


def _columns(items: Any, last: int, count: bool) -> tuple[list[int], list[bytes]]:
    """Txids and payloads. ``time``: one for all that came in together, never below the last one."""
    now = max(last, time.time_ns() // 1_000_000, 0)
    if isinstance(items[0], bytes):
        number = len(items)
        txids = list(range(last + 1, last + 1 + number)) if count else [now] * number
        return txids, items
    txids = []
    for txid, _ in items:
        given = txid if txid is not None else (last + 1 if count else max(last, now))
        if given > TXID_MAX:
            raise InvalidRequest(f"txid {given} is above {TXID_MAX}")
        last = given
        txids.append(given)
    return txids, [payload for _, payload in items]


def _no_answer(settings: Settings) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"no acknowledgement for {settings.timeout_s:g} s; what was under way may be stored or not"
    )


def _tell_failure(settings: Settings, stored: Stored, error: BaseException) -> None:
    summary = stored.summary()
    if settings.json:
        name, code = type(error).__name__, getattr(error, "code", 0)
        emit({**summary, "error": {"name": name, "code": code, "message": str(error)}})
        return
    last = f", the last at {stored.last}" if stored.last is not None else ""
    say(f"{counted(stored.records, 'record is', 'records are')} certainly stored{last}")


class _Progress:
    """A line on stderr now and then."""

    def __init__(self, settings: Settings, stored: Stored) -> None:
        self._on = not settings.quiet and not settings.json
        self._terminal = sys.stderr.isatty()
        self._stored = stored
        self._next = time.perf_counter() + self._step

    @property
    def _step(self) -> float:
        return PROGRESS_TERMINAL_S if self._terminal else PROGRESS_S

    def show(self) -> None:
        """If it is time."""
        now = time.perf_counter()
        if not self._on or now < self._next:
            return
        self._next = now + self._step
        stored = self._stored
        rate = stored.records / max(now - stored.began, 1e-9)
        text = f"{counted(stored.records, 'record')}, {size(stored.bytes)}, {rate:,.0f} records/s"
        tell(f"\r{text}\033[K" if self._terminal else f"{text}\n")
