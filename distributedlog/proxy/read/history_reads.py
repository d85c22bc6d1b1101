"""Subscribers below the ring: ranges read from the bookies, a few at once, equal ones once.

What is read here never enters the ring: somebody who reads a year of history pushes nobody's newest entries
out (H190). A subscriber that has reached the ring goes over to its feed. What is not there is judged as a
direct reader judges it: by the log's state as it is then (`lifecycle.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from ...log.format.dlsn import DLSN
from ...log.format.record import decode_header
from ...log.interfaces.error_boundary import error_boundary
from ...log.interfaces.segment_store import SegmentEntry, SegmentEntryReader
from ...log.model.position_outcome import PositionOutcome
from ...log.model.segment_record import UNKNOWN, SegmentRecord
from ...log.read.segment_reader import open_segment
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LedgerStateUnknown,
    LogDeleted,
    LogTruncated,
    NoSuchEntry,
    NoSuchLedger,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.net.link import Link
from ...runtime.schedule.work_failures import WorkFailures
from ..protocol.read_messages import HEAD_BYTES, SegmentHead
from ..session.fair_queue import FairQueue
from .entry_ring import Place, RingSpan
from .tail_feed import FRAME_BYTES, Subscriber, TailFeed

AT_ONCE = 8
"""Ranges, of all logs in turns, and of one log half of them: else one that hangs holds all up."""
RANGE_BYTES = 1024 * 1024
KEPT_S = 1.0
"""A range is kept for so long: who asks for it meanwhile is given the same one."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
PARKED_MAX = 16
"""Ledgers that are open between two ranges, with what is under way for the next one."""
ROLL_WAIT_S = 5.0
"""For the log to say where a segment ends that the feed has left."""
TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class _Parked:
    """A segment that is open between two ranges."""

    ledger: SegmentEntryReader
    record: SegmentRecord
    since: float


@dataclass(eq=False, slots=True)
class _Range:
    """Entries from one place on, in frames; or under way."""

    done: trio.Event = field(default_factory=trio.Event)
    runs: dict[Place, RingSpan] = field(default_factory=dict)
    """By where they begin."""
    after: Place = (0, 0)
    size: int = 0
    used_at: float = 0.0
    error: DistributedLogError | None = None


class HistoryReads:
    """Serves whoever stands below its log's ring, in turns."""

    def __init__(
        self, *, has_room: Callable[[Link], bool], to_blocked: Callable[[Subscriber], object]
    ) -> None:
        self.ranges_read = 0
        self.bytes_read = 0
        self._has_room = has_room
        self._to_blocked = to_blocked
        self._waiting: FairQueue[TailFeed, Subscriber] = FairQueue(AT_ONCE)
        self._idle = trio.lowlevel.ParkingLot()
        self._ranges: dict[tuple[TailFeed, Place], _Range] = {}
        """By where each of their frames begins."""
        self._kept: dict[_Range, TailFeed] = {}
        """Those that were read, the one unused longest first."""
        self._kept_bytes = 0
        self._parked: dict[tuple[TailFeed, Place], _Parked] = {}
        """By where they were read to, the one parked longest first."""

    def add(self, subscriber: Subscriber) -> None:
        """It is below the ring, and may be sent something."""
        self._waiting.add(subscriber.feed, subscriber)
        self._idle.unpark()

    @property
    def waiting(self) -> int:
        """Subscribers that wait for their turn."""
        return len(self._waiting)

    async def run(self, failures: WorkFailures) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(failures.keep, "reads below a ring", self._work)
        finally:
            for parked in self._parked.values():
                parked.ledger.close()

    async def _work(self) -> None:
        while True:
            found = self._waiting.take()
            if found is None:
                await self._idle.park()
                continue
            feed, subscriber = found
            try:
                with error_boundary(f'log "{feed.name}" at this proxy', subscriber.end):
                    await self._turn(subscriber)
            finally:
                self._waiting.give_back(feed)

    async def _turn(self, subscriber: Subscriber) -> None:
        """What one range has for it; then it waits for its next turn."""
        feed, cursor = subscriber.feed, subscriber.cursor
        if subscriber.over or cursor.at >= feed.ring.begin or cursor.credit <= 0:
            feed.attach(subscriber)
            return
        try:
            feed.follower.check_position(*cursor.at)
            found = await self._range(feed, cursor.at)
        except (NoSuchLedger, NoSuchEntry, LogTruncated, LogDeleted) as error:
            await self._meet(subscriber, error)
            return
        except DistributedLogError as error:
            subscriber.end(error)
            return
        while not subscriber.over:
            run = found.runs.get(cursor.at)
            if run is None:
                if cursor.at < found.after:
                    cursor.skip_to(found.after)
                break
            if not self._has_room(subscriber.link):
                self._to_blocked(subscriber)
                return
            subscriber.send(run)
            if cursor.credit <= 0:
                break
        feed.attach(subscriber)

    async def _meet(self, subscriber: Subscriber, error: DistributedLogError) -> None:
        """Something is not there: it ends by what has become of the log (H30), or goes on where that does."""
        feed, cursor = subscriber.feed, subscriber.cursor
        sequence_id = None if cursor.next_id < 0 else cursor.next_id
        held = feed.follower.held(DLSN(*cursor.at, 0), sequence_id)
        try:
            verdict = await feed.follower.meet(held)
        except DistributedLogError as other:
            subscriber.end(other)
            return
        if verdict.met is not PositionOutcome.GO_ON:
            subscriber.end(verdict.error(feed.name, held))
            return
        assert verdict.at is not None, "it says where"
        if verdict.at[:2] > cursor.at:
            cursor.skip_to(verdict.at[:2])
        else:  # merged into another ledger meanwhile, or a loss
            subscriber.tries += 1
            if subscriber.tries >= TRIES_MAX:
                subscriber.end(error)
                return
        feed.attach(subscriber)

    # --- ranges -----------------------------------------------------------------------------------

    async def _range(self, feed: TailFeed, at: Place) -> _Range:
        """What is stored from this place on, up to the ring at most."""
        key = (feed, at)
        found = self._ranges.get(key)
        if found is None:
            found = self._ranges[key] = _Range()
            try:
                await self._read(feed, at, found)
            except DistributedLogError as error:
                found.error = error
                raise
            finally:
                found.done.set()
                if (
                    self._ranges.get(key) is found
                ):  # else one that came to this place is kept, or was
                    del self._ranges[key]
                self._keep(feed, found)
        else:
            await found.done.wait()
            if found.error is not None:
                raise found.error.again()
            if found in self._kept:
                self._keep(feed, found)
        return found

    def _keep(self, feed: TailFeed, found: _Range) -> None:
        """Whoever comes to one of its frames soon is given the same bytes."""
        if found not in self._kept:
            self._kept_bytes += found.size
            for place in found.runs:
                self._ranges[feed, place] = found
        self._kept.pop(found, None)
        self._kept[found] = feed
        found.used_at = trio.current_time()
        self.sweep()

    def sweep(self) -> None:
        """Forget what nobody has come for."""
        now = trio.current_time()
        for found, feed in list(self._kept.items()):
            if self._kept_bytes <= KEPT_BYTES_MAX and now - found.used_at <= KEPT_S:
                break
            del self._kept[found]
            self._kept_bytes -= found.size
            for place in found.runs:
                if self._ranges.get((feed, place)) is found:
                    del self._ranges[feed, place]
        for key, parked in list(self._parked.items()):
            if len(self._parked) <= PARKED_MAX and now - parked.since <= KEPT_S:
                break
            del self._parked[key]
            parked.ledger.close()

    async def _read(self, feed: TailFeed, at: Place, found: _Range) -> None:
        number, entry = at
        parked = self._parked.pop((feed, at), None)
        ahead = None if parked is None else parked.ledger
        try:
            record = await self._record_of(feed, number, parked)
            last = record.last_entry
            if feed.ring.begin[0] == number:
                last = feed.ring.begin[1] - 1
            if entry > last:
                if ahead is not None:
                    ahead.close()
                found.after = (number + 1, 0)
                return
            if ahead is None:
                ahead = await open_segment(feed.context.ledgers, record)
            if not ahead.closed:
                ahead.note_lac(last)  # what is before the ring was read by the feed
            entries = await ahead.read(entry, last, bytes_max=RANGE_BYTES)
        except BaseException:
            if ahead is not None:
                ahead.close()
            raise
        self.ranges_read += 1
        found.after = (number, entries[-1].entry + 1)
        if record.closed and entries[-1].entry == record.last_entry:
            found.after = (number + 1, 0)
            ahead.close()
        else:
            self._park(feed, found.after, _Parked(ahead, record, trio.current_time()))
        self._add_frames(found, at, record, entries)

    async def _record_of(
        self, feed: TailFeed, number: int, parked: _Parked | None
    ) -> SegmentRecord:
        """Return a segment's record, and wait for its end if the feed has left the segment."""
        # A closed segment does not change. If it was merged, its ledger is deleted, and `_meet` handles that.
        if parked is not None and parked.record.closed:
            record = parked.record
        else:
            record = await feed.follower.segment(number)
        if record.start_sequence_id == UNKNOWN or (
            not record.closed and feed.ring.begin[0] > number
        ):
            # The feed has seen the next segment. The log's state shows the end a moment later.
            with trio.move_on_after(ROLL_WAIT_S) as waited:
                await feed.follower.until(lambda state: state.open_from > number)
            if waited.cancelled_caught:
                raise LedgerStateUnknown(
                    f'log "{feed.name}": where segment {number} ends is not known yet'
                )
            record = await feed.follower.segment(number)
        return record

    def _add_frames(
        self, found: _Range, at: Place, record: SegmentRecord, entries: Sequence[SegmentEntry]
    ) -> None:
        """Add the entries of a segment, from ``at`` on, as frames of at most `FRAME_BYTES`."""
        head = SegmentHead.of(record)
        number, begins, size = at[0], at, HEAD_BYTES
        parts: list[Buffer] = [head.encode()]
        next_id = -1
        for one in entries:
            self.bytes_read += len(one.raw)
            header = decode_header(one.payload)
            if header.control:
                continue
            if len(parts) > 1 and size + len(one.raw) > FRAME_BYTES:
                place, before = (number, one.entry), (number, one.entry - 1)
                begins = self._add(found, begins, parts, next_id, before, place)
                parts, size = [head.encode()], HEAD_BYTES
            parts.append(one.raw)
            size += len(one.raw)
            next_id = head.start_sequence_id + header.records_through
        if len(parts) > 1:
            self._add(found, begins, parts, next_id, (number, entries[-1].entry), found.after)

    def _add(
        self,
        found: _Range,
        begins: Place,
        parts: list[Buffer],
        next_id: int,
        last: Place,
        after: Place,
    ) -> Place:
        """One more frame; where the next one begins."""
        body = b"".join(parts)
        found.runs[begins] = RingSpan(body, after, next_id, last)
        found.size += len(body)
        return after

    def _park(self, feed: TailFeed, at: Place, parked: _Parked) -> None:
        """Whoever reads on from there has what is under way already."""
        before = self._parked.pop((feed, at), None)
        if before is not None:
            before.ledger.close()
        self._parked[feed, at] = parked
        self.sweep()
