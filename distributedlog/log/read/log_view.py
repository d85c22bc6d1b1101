"""One log as it can be read now, for planners: its segments, how far it is confirmed, what lies where.

`refresh` is a read of the log's state and, where a segment is in progress, one question to its bookies;
closed segments are read once and kept, until one is not where it was (`segment_merge.py`). Between refreshes
everything is answered from memory.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import NoSuchLedger
from ..format.dlsn import DLSN
from ..format.record import EntryHeader, decode_header
from ..interfaces.segment_store import SegmentEntryReader, SegmentEntryStore
from ..model.log_keys import incarnation_text, segment_key
from ..model.log_state import LogState
from ..model.segment_ranges import SegmentRange, ranges_between
from ..model.segment_record import SegmentRecord
from .position_search import check_searchable, search_time, search_txid
from .segment_reader import open_segment
from .state_watch import StateWatch, follow

MARKS_MAX = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """What lies before an entry: records of the log, and entry bytes of its segment."""

    sequence_id: int
    segment_bytes: int


class LogView:
    """One log of one incarnation. Made by `view_log`; `close` it."""

    def __init__(
        self, metadata: Metadata, ledgers: SegmentEntryStore, follower: StateWatch
    ) -> None:
        self.state = follower.state
        self.name = self.state.name
        self.incarnation = incarnation_text(self.state.log_id)
        """Which log of this name it is."""
        self.closed: list[SegmentRecord] = []
        self.tail: SegmentRecord | None = None
        """The oldest segment in progress, as far as it is confirmed; readers see no further (H11)."""
        self._metadata = metadata
        self._ledgers = ledgers
        self._follower = follower
        self._reader: SegmentEntryReader | None = None
        self._marks: dict[tuple[int, int], Mark] = {}

    # --- how far ----------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Look again. Raises `LogNotFound`, and what keeps the cluster from answering; then all stays."""
        await self._follower.load()
        await self.look()

    async def look(self) -> None:
        """Read what the follower's state names and is not known yet. Raises as `refresh`."""
        state = self._follower.state
        while not await self._read_closed(state):  # truncated while it was read
            await self._follower.load()
            state = self._follower.state
        in_progress = state.in_progress
        tail = await self._read_tail(state, in_progress[0]) if in_progress else None
        self.state, self.tail = state, tail

    @property
    def earliest(self) -> DLSN:
        """The first position that is left."""
        return self.state.earliest

    @property
    def end(self) -> DLSN:
        """The position after all that can be read."""
        if self.tail is not None:
            return DLSN(self.tail.segment, self.tail.last_entry + 1, 0)
        return DLSN(self.state.last_segment + 1, 0, 0)

    @property
    def segments(self) -> list[SegmentRecord]:
        """All that can be read, ascending."""
        return [*self.closed, *([self.tail] if self.tail is not None else [])]

    def ranges(self, start: DLSN, end: DLSN) -> list[SegmentRange]:
        """What lies between two positions, as far as it can be read."""
        return ranges_between(self.name, self.incarnation, self.segments, start, end)

    def prove(self, dlsn: DLSN) -> None:
        """Somebody was given ``dlsn`` as the end of what can be read, before a restart perhaps: then it is
        confirmed up to there, whatever the bookies remember (H24)."""
        tail = self.tail
        if tail is not None and dlsn.segment == tail.segment and dlsn.entry - 1 > tail.last_entry:
            self.tail = replace(tail, last_entry=dlsn.entry - 1)

    def close(self) -> None:
        """Follow nothing more."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- what lies at a position ------------------------------------------------------------------

    async def mark(self, dlsn: DLSN) -> Mark:
        """What lies before a position of this log, its slot included."""
        one = self._segment(dlsn.segment)
        if one is None:  # before the first or after the last one
            if dlsn.segment < self.state.first_segment:
                return Mark(self.state.truncated_sequence_id, 0)
            segments = self.segments
            return Mark(
                segments[-1].end_sequence_id if segments else self.state.next_sequence_id, 0
            )
        before = await self._before(one, min(dlsn.entry, one.last_entry + 1))
        return Mark(before.sequence_id + dlsn.slot, before.segment_bytes)

    async def between(self, start: DLSN, end: DLSN) -> tuple[int, int]:
        """Records and entry bytes from ``start`` to ``end``."""
        if start >= end:
            return 0, 0
        records = (await self.mark(end)).sequence_id - (await self.mark(start)).sequence_id
        size = 0
        for one in self.segments:
            if start.segment <= one.segment <= end.segment:
                first = start.entry if one.segment == start.segment else 0
                last = end.entry if one.segment == end.segment else one.last_entry + 1
                size += (await self._before(one, last)).segment_bytes
                size -= (await self._before(one, first)).segment_bytes
        return max(0, records), max(0, size)

    async def _before(self, one: SegmentRecord, entry: int) -> Mark:
        if entry <= 0:
            return Mark(one.start_sequence_id, 0)
        if entry > one.last_entry:
            return Mark(one.end_sequence_id, one.size_bytes)
        key = (one.segment, entry)
        found = self._marks.get(key)
        if found is None:
            header, length = await self._header(one, entry - 1)
            found = Mark(one.start_sequence_id + header.records_through, length)
            if len(self._marks) >= MARKS_MAX:
                self._marks.pop(next(iter(self._marks)))
            self._marks[key] = found
        return found

    async def advance(
        self, start: DLSN, end: DLSN, *, records: int | None, size: int | None
    ) -> DLSN:
        """The last entry boundary up to which at most so many records, or bytes, follow ``start``.

        Found by interpolation, in a few reads. Never beyond ``end``; ``start`` itself where not even one
        entry fits.
        """
        assert (records is None) != (size is None)
        left = records if records is not None else size
        assert left is not None
        at = start
        for one in self.segments:
            if one.segment < at.segment or one.segment > end.segment:
                continue
            first = at.entry if one.segment == at.segment else 0
            last = one.last_entry
            if one.segment == end.segment:
                last = min(last, end.entry - 1)
            if first > last:
                continue
            here = DLSN(one.segment, first, at.slot if one.segment == at.segment else 0)
            base = _amount(await self.mark(here), records is not None)
            whole = _amount(await self._before(one, last + 1), records is not None) - base
            if whole <= left:
                left -= whole
                at = DLSN(one.segment, last + 1, 0)
                continue
            stop = await self._fitting(one, first, last + 1, base, whole, left, records is not None)
            return DLSN(one.segment, stop, 0) if stop > first else at
        return end

    async def _fitting(
        self,
        one: SegmentRecord,
        first: int,
        stop: int,
        base: int,
        whole: int,
        left: int,
        count: bool,
    ) -> int:
        """The greatest entry before which at most ``left`` lies, counted from ``first``."""
        low, low_at, high, high_at = first, 0, stop, whole
        while high - low > 1:
            guess = low + int((left - low_at) * (high - low) / max(1, high_at - low_at))
            guess = min(max(guess, low + 1), high - 1)
            at = _amount(await self._before(one, guess), count) - base
            if at <= left:
                low, low_at = guess, at
                # Entries are much alike: the next boundary usually is the answer's other side.
                beyond = _amount(await self._before(one, guess + 1), count) - base
                if beyond > left:
                    return guess
            else:
                high, high_at = guess, at
        return low

    def entry_after(self, dlsn: DLSN) -> DLSN:
        """The position after the first entry at or after ``dlsn``."""
        ranges = self.ranges(dlsn, self.end)
        return DLSN(ranges[0].segment, ranges[0].first_entry + 1, 0) if ranges else dlsn

    async def first_with_txid(self, txid: int) -> DLSN:
        """The first position whose record has a txid of at least this; the end where there is none.

        Raises `InvalidRequest` as `check_searchable`.
        """
        check_searchable(self.state)
        try:
            found = await search_txid(self.state, self._ledgers, self._with_txid(txid), txid)
        except NoSuchLedger:
            await self._look_anew()
            found = await search_txid(self.state, self._ledgers, self._with_txid(txid), txid)
        return min(found, self.end)

    async def _with_txid(self, txid: int) -> AsyncGenerator[SegmentRecord, None]:
        """The segments from the first on that may hold such a record."""
        for record in self.closed[bisect_left(self.closed, txid, key=lambda one: one.last_txid) :]:
            yield record
        if self.tail is not None:
            yield self.tail

    async def first_with_time(self, time_ms: int) -> DLSN:
        """The first position whose log time is at least this, ms since 1970; the end where there is none."""
        try:
            found = await search_time(self.state, self._ledgers, self._with_time(time_ms), time_ms)
        except NoSuchLedger:
            await self._look_anew()
            found = await search_time(self.state, self._ledgers, self._with_time(time_ms), time_ms)
        return min(found, self.end)

    async def _with_time(self, time_ms: int) -> AsyncGenerator[SegmentRecord, None]:
        """The segments from the first on that may hold such a record."""
        at = bisect_left(self.closed, time_ms, key=lambda one: one.end_time_ms)
        for record in self.closed[at:]:
            yield record
        if self.tail is not None:
            yield self.tail

    async def time_at(self, dlsn: DLSN) -> int | None:
        """The log time of the first entry at or after a position, ms since 1970; None where there is none."""
        ranges = self.ranges(dlsn, self.end)
        if not ranges:
            return None
        one = self._segment(ranges[0].segment)
        assert one is not None, "a range is of a segment that is known"
        header, _ = await self._header(one, ranges[0].first_entry)
        return one.time_of(header)

    # --- reading ----------------------------------------------------------------------------------

    def _segment(self, number: int) -> SegmentRecord | None:
        if self.tail is not None and self.tail.segment == number:
            return self.tail
        at = number - self.closed[0].segment if self.closed else -1
        return self.closed[at] if 0 <= at < len(self.closed) else None

    async def _read_closed(self, state: LogState) -> bool:
        """Read the closed segments that are new; False when some are gone meanwhile."""
        known = self.closed[-1].segment if self.closed else state.first_segment - 1
        known = max(known, state.first_segment - 1)
        new: list[SegmentRecord] = []
        if known + 1 < state.open_from:
            start = segment_key(state.log_id, known + 1)
            end = segment_key(state.log_id, state.open_from)
            async for item in Scan(self._metadata, start, end):
                new.append(SegmentRecord.decode(item.value))
        if len(new) != state.open_from - known - 1:
            return False
        kept = [one for one in self.closed if one.segment >= state.first_segment]
        self.closed = kept + new
        return True

    async def _look_anew(self) -> None:
        """A ledger is gone: its segment was merged into another one, or truncated. Read all records again."""
        self.closed = []
        await self.refresh()

    async def _read_tail(self, state: LogState, number: int) -> SegmentRecord | None:
        """The segment in progress, as far as its bookies say that it is confirmed."""
        before = self.tail if self.tail is not None and self.tail.segment == number else None
        if before is None or self._reader is None:
            found = await self._metadata.get(segment_key(state.log_id, number))
            if found is None:
                return None
            # It may have been closed since the state was read: what counts is where it lies.
            record = SegmentRecord.decode(found.value)
            before = replace(
                SegmentRecord(
                    number,
                    record.ledger_id,
                    record.epoch,
                    record.created_ms,
                ).numbered(state),
                base_entry=record.base_entry,
                base_bytes=record.base_bytes,
            )
            self.close()
            self._reader = await open_segment(self._ledgers, record)
        elif not self._reader.closed:
            await self._reader.refresh_lac()
        reader = self._reader
        lac = reader.lac
        if before.last_entry >= lac:
            return before  # what was seen confirmed stays so, whatever the bookies remember (H24)
        entry = (await reader.read(lac, lac, bytes_max=1))[0]
        header = decode_header(entry.payload)
        return replace(
            before,
            last_txid=before.max_txid_of(header),
            last_time_ms=before.time_of(header),
            records=header.records_through,
            size_bytes=entry.length_so_far,
            last_entry=lac,
        )

    async def _open(self, one: SegmentRecord) -> SegmentEntryReader:
        reader = await open_segment(self._ledgers, one)
        if not reader.closed:
            reader.note_lac(one.last_entry)
        return reader

    async def _header(self, one: SegmentRecord, entry: int) -> tuple[EntryHeader, int]:
        """An entry's header, and the entry bytes of its segment up to and with it."""
        try:
            reader = await self._open(one)
        except NoSuchLedger:
            await self._look_anew()
            again = self._segment(one.segment)
            if again is None:
                raise
            reader = await self._open(again)
        try:
            found = (await reader.read(entry, entry, bytes_max=1))[0]
            return decode_header(found.payload), found.length_so_far
        finally:
            reader.close()


async def view_log(
    metadata: Metadata, ledgers: SegmentEntryStore, name: str, log_id: int
) -> LogView:
    """A log as it is now. Raises `LogNotFound`, and what keeps the cluster from answering."""
    view = LogView(metadata, ledgers, await follow(metadata, log_id, name))
    try:
        await view.look()
    except BaseException:
        view.close()
        raise
    return view


def _amount(mark: Mark, count: bool) -> int:
    return mark.sequence_id if count else mark.segment_bytes
