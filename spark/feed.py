"""What fetches for a task: the entries of its ranges, ahead of Spark, from several bookies at once.

Ranges are cut into stretches of some MiB. A few of them are fetched at a time, each beginning at a replica
of its own, in the background loop; the task's thread takes them in order. What is fetched and not taken is
bounded in bytes, but the stretch at the head always gets on. Nothing waits longer than ``timeout_s`` without
progress.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import trio

from ..log.dlsn import DLSN
from ..log.keys import incarnation_id, state_key
from ..log.ranges import WHOLE, SegmentRange
from ..log.record import Columns, Origin, decode, decode_header
from ..log.state import LogState
from ..runtime.errors import (
    AlreadyClosed,
    DistributedLogError,
    LogNotFound,
    LogTruncated,
    NoSuchEntry,
    NoSuchLedger,
    RequestTimeout,
)
from .client import Client
from .patience import RETRY_FIRST_S, RETRY_MAX_S

STRETCH_BYTES = 8 * 1024 * 1024
STRETCHES_AT_ONCE = 3
SMALL_AT_ONCE = 16
"""Of stretches that are small, and so cost more waiting than reading: thousands of logs of a few records."""
READ_BYTES = 1024 * 1024
"""Of one request."""
READ_AHEAD_BYTES = 16 * 1024 * 1024
LOOK_S = 0.1

log = logging.getLogger("distributedlog.spark")


@dataclass(slots=True)
class Stretch:
    """A part of a range, as far as it has been fetched and not taken."""

    range: SegmentRange
    ready: deque[list[Columns]] = field(default_factory=deque)
    done: bool = False


class Feed:
    """The entries of ranges, in order. Take them `by_log`, once, then `close` it."""

    def __init__(
        self,
        client: Client,
        ranges: Sequence[SegmentRange],
        *,
        timeout_s: float,
        fail_on_data_loss: bool,
    ) -> None:
        self._client = client
        self._stretches = [Stretch(part) for one in ranges for part in _stretches(one)]
        self._timeout_s = timeout_s
        self._fail_on_data_loss = fail_on_data_loss
        self._condition = threading.Condition()
        self._failure: BaseException | None = None
        self._held_bytes = 0
        self._head = 0
        self._next = 0
        self._waiting = 0
        self._room: trio.Event
        self._states: dict[str, LogState | DistributedLogError] = {}
        self._future: Future[None] | None = None

    def by_log(self) -> Iterator[tuple[str, Iterator[Columns]]]:
        """(log, its entries) in the order of the ranges. Take all of a log's before the next log."""
        if not self._stretches:
            return
        self._client.users += 1
        self._future = self._client.background.submit(self._run)
        number = 0
        while number < len(self._stretches):
            name = self._stretches[number].range.log
            behind = number
            while behind < len(self._stretches) and self._stretches[behind].range.log == name:
                behind += 1
            yield name, self._entries(number, behind)
            number = behind

    def close(self) -> None:
        """Fetch nothing more, also when Spark left in the middle (LIMIT). Idempotent."""
        if self._future is not None:
            self._future.cancel()
            self._future = None
            self._client.users -= 1

    def _entries(self, first: int, behind: int) -> Iterator[Columns]:
        for number in range(first, behind):
            self._head = number
            while (parts := self._take(self._stretches[number])) is not None:
                yield from parts

    def _take(self, stretch: Stretch) -> list[Columns] | None:
        if self._waiting:
            self._client.background.post(self._on_taken)
        with self._condition:
            while not stretch.ready:
                if self._failure is not None:
                    raise self._failure
                if stretch.done:
                    return None
                if not self._condition.wait(self._timeout_s):
                    raise RequestTimeout(
                        f'log "{stretch.range.log}": nothing came from {stretch.range.start} on for '
                        f'{self._timeout_s:g} s (option "readTimeout")'
                    )
            parts = stretch.ready.popleft()
            self._held_bytes -= _bytes(parts)
        return parts

    # --- in the background loop -------------------------------------------------------------------

    def _on_taken(self) -> None:
        self._room.set()
        self._room = trio.Event()

    async def _run(self) -> None:
        self._room = trio.Event()
        failure: BaseException | None = AlreadyClosed("the client of this worker was closed")
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_at_once(self._stretches)):
                    nursery.start_soon(self._work)
            failure = None
        except BaseExceptionGroup as group:
            failure = _first(group)
            if isinstance(failure, trio.Cancelled):
                raise
        finally:
            if failure is not None:
                with self._condition:
                    self._failure = self._failure or failure
                    self._condition.notify()

    async def _work(self) -> None:
        while self._next < len(self._stretches):
            number = self._next
            self._next += 1
            await self._fetch(number, self._stretches[number])
            with self._condition:
                self._stretches[number].done = True
                self._condition.notify()

    async def _fetch(self, number: int, stretch: Stretch) -> None:
        one = stretch.range
        trouble_since: float | None = None
        retry_s = RETRY_FIRST_S
        at = one.first_entry
        while at <= one.last_entry:
            try:
                at = await self._check_state(one, at)
                if at > one.last_entry:
                    return
                ledger = await self._client.namespace.ledgers.open(one.ledger_id)
                try:
                    if not ledger.closed:
                        ledger.note_lac(
                            one.last_entry
                        )  # the plan proves that it is confirmed (H24)
                    while at <= one.last_entry:
                        found = await ledger.read(at, one.last_entry, bytes_max=READ_BYTES)
                        trouble_since, retry_s = None, RETRY_FIRST_S
                        parts = [part for e in found if (part := _decoded(one, e.entry, e.payload))]
                        at = found[-1].entry + 1
                        if parts:
                            await self._deliver(number, stretch, parts)
                finally:
                    ledger.close()
                return
            except (NoSuchLedger, NoSuchEntry) as error:
                self._states.pop(one.incarnation, None)
                if at == await self._check_state(one, at):
                    raise error  # the log says it is there: a loss, not a truncation (H30)
            except DistributedLogError as error:
                now = trio.current_time()
                trouble_since = now if trouble_since is None else trouble_since
                if not error.retryable or now - trouble_since > self._timeout_s:
                    raise
                log.info('log "%s" %d.%d: %s; tried again', one.log, one.segment, at, error)
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _deliver(self, number: int, stretch: Stretch, parts: list[Columns]) -> None:
        while self._held_bytes > READ_AHEAD_BYTES and (number != self._head or stretch.ready):
            self._waiting += 1
            with trio.move_on_after(LOOK_S):  # the last wake-up may have come before the count
                await self._room.wait()
            self._waiting -= 1
        with self._condition:
            self._held_bytes += _bytes(parts)
            stretch.ready.append(parts)
            self._condition.notify()

    async def _check_state(self, one: SegmentRange, at: int) -> int:
        """Where to read on: ``at``, or behind what was truncated since the plan was made.

        Raises `LogTruncated` or `LogNotFound` unless data loss is allowed.
        """
        state = self._states.get(one.incarnation)
        if state is None:
            found = await self._client.namespace.metadata.get(
                state_key(incarnation_id(one.incarnation))
            )
            state = _state(one, None if found is None else LogState.decode(found.value))
            self._states[one.incarnation] = state
        if isinstance(state, DistributedLogError):
            if self._fail_on_data_loss:
                raise state
            log.warning("%s; failOnDataLoss=false: its records are left out", state)
            return one.last_entry + 1
        first = max(state.truncated_to, DLSN(state.first_segment, 0, 0))
        if (one.segment, at) >= first[:2]:
            return at
        error = LogTruncated(
            f'log "{one.log}" was truncated while it was read: wanted {DLSN(one.segment, at, 0)}, its '
            f'first position is {first}; "failOnDataLoss"=false goes on from there',
            str(first),
        )
        if self._fail_on_data_loss:
            raise error
        log.warning("%s", error)
        return first.entry if one.segment == first.segment else one.last_entry + 1


def _state(one: SegmentRange, state: LogState | None) -> LogState | DistributedLogError:
    if state is None or state.deleting:
        return LogNotFound(f'log "{one.log}" was deleted while it was read')
    return state


def _stretches(one: SegmentRange) -> Iterator[SegmentRange]:
    left = one
    while left.size_bytes > STRETCH_BYTES * 3 // 2 and left.entries > 1:
        entries = max(1, STRETCH_BYTES * left.entries // left.size_bytes)
        if entries >= left.entries:
            break
        head, left = left.cut(entries)
        yield head
    yield left


def _at_once(stretches: Sequence[Stretch]) -> int:
    """How many to fetch at a time: as many bytes as that are few of the usual size."""
    mean_bytes = sum(one.range.size_bytes for one in stretches) // len(stretches)
    wanted = STRETCHES_AT_ONCE * STRETCH_BYTES // max(mean_bytes, 1)
    return min(max(wanted, STRETCHES_AT_ONCE), SMALL_AT_ONCE, len(stretches))


def _decoded(one: SegmentRange, entry: int, payload: memoryview) -> Columns | None:
    """The records of an entry that are asked for; None for none."""
    header = decode_header(payload)
    if header.control:
        return None
    sequence_id = one.start_sequence_id + header.records_before
    origin = Origin(one.segment, entry, sequence_id, one.given_txid)
    columns = decode(payload, header, origin)
    start, stop = 0, columns.count
    if entry == one.first_entry:
        start = min(one.first_slot, stop)
    if entry == one.last_entry and one.stop_slot != WHOLE:
        stop = min(stop, one.stop_slot)
    if start >= stop:
        return None
    return columns if (start, stop) == (0, columns.count) else columns.cut(start, stop)


def _bytes(parts: list[Columns]) -> int:
    return sum(part.payload_bytes for part in parts)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = next(
            (one for one in error.exceptions if not isinstance(one, trio.Cancelled)),
            error.exceptions[0],
        )
    return error
