"""A cached view of one log for planners: its segments, its readable end, and record counts at positions.

`refresh` reads the log's state and, if a segment is in progress, queries its bookies once. Closed segments
are read once and cached, until one has moved to another ledger (`segment_merge.py`). Between refreshes, most
answers come from memory.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import NoSuchLedger
from ..format.dlsn import DLSN
from ..format.record import EntryHeader, decode_header
from ..interfaces.segment_store import SegmentEntryReader, SegmentEntryStore
from ..model.log_keys import incarnation_text, segment_key
from ..model.log_state import LogState
from ..model.segment_ranges import SegmentRange, ranges_between
from ..model.segment_record import SegmentRecord
from .position_search import check_searchable, header_of_record, search_time, search_txid
from .segment_reader import open_segment
from .state_watch import StateWatch, open_state_watch

CACHED_TOTALS_MAX = 64

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PositionTotals:
    """The records of the log before an entry, and the entry bytes of its segment before it."""

    sequence_id: int
    segment_bytes: int


class LogView:
    """One incarnation of a log. `view_log` creates it, and the caller closes it."""

    def __init__(
        self, metadata: Metadata, ledgers: SegmentEntryStore, state_watch: StateWatch
    ) -> None:
        self.state = state_watch.state
        self.name = self.state.name
        self.incarnation = incarnation_text(self.state.log_id)
        """The incarnation of the log with this name, 16 hex digits."""
        self.closed: list[SegmentRecord] = []
        self.tail: SegmentRecord | None = None
        """The oldest segment in progress, up to its last confirmed entry. Readers read no further (H11)."""
        self._metadata = metadata
        self._ledgers = ledgers
        self._state_watch = state_watch
        self._reader: SegmentEntryReader | None = None
        self._totals_cache: dict[tuple[int, int], PositionTotals] = {}

    # --- the readable range -----------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the log again. After an error the view is unchanged.

        Raises:
            LogNotFound: The log was deleted.
            DistributedLogError: The cluster did not answer.
        """
        await self._state_watch.load()
        await self.load_new_segments()

    async def load_new_segments(self) -> None:
        """Read the segments of the watched state that are not cached yet. Raises as `refresh`."""
        state = self._state_watch.state
        while not await self._read_closed(state):  # truncated while it was read
            await self._state_watch.load()
            state = self._state_watch.state
        in_progress = state.in_progress
        tail = await self._read_tail(state, in_progress[0]) if in_progress else None
        self.state, self.tail = state, tail

    @property
    def earliest(self) -> DLSN:
        """The first position that is not truncated."""
        return self.state.earliest

    @property
    def end(self) -> DLSN:
        """The position after the last readable record."""
        if self.tail is not None:
            return DLSN(self.tail.segment, self.tail.last_entry + 1, 0)
        return DLSN(self.state.last_segment + 1, 0, 0)

    @property
    def segments(self) -> list[SegmentRecord]:
        """All readable segments, in ascending order."""
        return [*self.closed, *([self.tail] if self.tail is not None else [])]

    def ranges(self, start: DLSN, end: DLSN) -> list[SegmentRange]:
        """Return the readable ranges between two positions."""
        return ranges_between(self.name, self.incarnation, self.segments, start, end)

    def mark_readable_before(self, dlsn: DLSN) -> None:
        """State that a reader received ``dlsn`` as the end of the readable records, possibly before a
        restart.

        The entries before it are then confirmed, even if the bookies have lost the LAC (H24).
        """
        tail = self.tail
        if tail is not None and dlsn.segment == tail.segment and dlsn.entry - 1 > tail.last_entry:
            self.tail = replace(tail, last_entry=dlsn.entry - 1)

    def close(self) -> None:
        """Stop following the open segment."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- counts at positions ----------------------------------------------------------------------

    async def totals_before(self, dlsn: DLSN) -> PositionTotals:
        """Return the totals before a position of this log, including the records of its entry before its
        slot."""
        record = self._find_segment(dlsn.segment)
        if record is None:  # before the first or after the last one
            if dlsn.segment < self.state.first_segment:
                return PositionTotals(self.state.truncated_sequence_id, 0)
            segments = self.segments
            return PositionTotals(
                segments[-1].end_sequence_id if segments else self.state.next_sequence_id, 0
            )
        entry_totals = await self._totals_before_entry(
            record, min(dlsn.entry, record.last_entry + 1)
        )
        sequence_id = entry_totals.sequence_id
        if dlsn.slot:  # a DLSN need not be that of a record, so its entry can have fewer records
            entry_end = await self._totals_before_entry(record, dlsn.entry + 1)
            sequence_id = min(sequence_id + dlsn.slot, entry_end.sequence_id)
        return PositionTotals(sequence_id, entry_totals.segment_bytes)

    async def totals_between(self, start: DLSN, end: DLSN) -> tuple[int, int]:
        """Return the number of records and the entry bytes from ``start`` to ``end``."""
        if start >= end:
            return 0, 0
        records = (await self.totals_before(end)).sequence_id - (
            await self.totals_before(start)
        ).sequence_id
        size = 0
        for record in self.segments:
            if start.segment <= record.segment <= end.segment:
                first = start.entry if record.segment == start.segment else 0
                last = end.entry if record.segment == end.segment else record.last_entry + 1
                size += (await self._totals_before_entry(record, last)).segment_bytes
                size -= (await self._totals_before_entry(record, first)).segment_bytes
        return max(0, records), max(0, size)

    async def _totals_before_entry(self, record: SegmentRecord, entry: int) -> PositionTotals:
        if entry <= 0:
            return PositionTotals(record.start_sequence_id, 0)
        if entry > record.last_entry:
            return PositionTotals(record.end_sequence_id, record.size_bytes)
        key = (record.segment, entry)
        totals = self._totals_cache.get(key)
        if totals is None:
            header, length = await self._read_header(record, entry - 1)
            totals = PositionTotals(record.start_sequence_id + header.records_through, length)
            if len(self._totals_cache) >= CACHED_TOTALS_MAX:
                self._totals_cache.pop(next(iter(self._totals_cache)))
            self._totals_cache[key] = totals
        return totals

    async def limit_position(
        self, start: DLSN, end: DLSN, *, records: int | None, size: int | None
    ) -> DLSN:
        """Return the last entry boundary up to which at most ``records`` records, or ``size`` bytes, follow
        ``start``.

        It is found by interpolation, with a few reads.

        Args:
            start: The first position.
            end: The largest result.
            records: The number of records. Give either this or ``size``.
            size: The entry bytes.
        Returns:
            The position. ``start`` itself if not even one entry fits.
        """
        assert (records is None) != (size is None)
        remaining = records if records is not None else size
        assert remaining is not None
        position = start
        for record in self.segments:
            if record.segment < position.segment or record.segment > end.segment:
                continue
            first = position.entry if record.segment == position.segment else 0
            last = record.last_entry
            if record.segment == end.segment:
                last = min(last, end.entry - 1)
            if first > last:
                continue
            first_position = DLSN(
                record.segment, first, position.slot if record.segment == position.segment else 0
            )
            base_total = _select_total(
                await self.totals_before(first_position), records is not None
            )
            segment_total = (
                _select_total(
                    await self._totals_before_entry(record, last + 1), records is not None
                )
                - base_total
            )
            if segment_total <= remaining:
                remaining -= segment_total
                position = DLSN(record.segment, last + 1, 0)
                continue
            stop = await self._last_fitting_entry(
                record, first, last + 1, base_total, segment_total, remaining, records is not None
            )
            return DLSN(record.segment, stop, 0) if stop > first else position
        return end

    async def _last_fitting_entry(
        self,
        record: SegmentRecord,
        first: int,
        stop: int,
        base_total: int,
        segment_total: int,
        remaining: int,
        by_records: bool,
    ) -> int:
        """Return the greatest entry before which at most ``remaining`` records or bytes follow ``first``."""
        low, low_total, high, high_total = first, 0, stop, segment_total
        while high - low > 1:
            guess = low + int(
                (remaining - low_total) * (high - low) / max(1, high_total - low_total)
            )
            guess = min(max(guess, low + 1), high - 1)
            guess_total = (
                _select_total(await self._totals_before_entry(record, guess), by_records)
                - base_total
            )
            if guess_total <= remaining:
                low, low_total = guess, guess_total
                # Entries have similar sizes, so the next boundary usually is above the limit.
                next_total = (
                    _select_total(await self._totals_before_entry(record, guess + 1), by_records)
                    - base_total
                )
                if next_total > remaining:
                    return guess
            else:
                high, high_total = guess, guess_total
        return low

    def entry_after(self, dlsn: DLSN) -> DLSN:
        """Return the position after the first entry at or after ``dlsn``."""
        ranges = self.ranges(dlsn, self.end)
        return DLSN(ranges[0].segment, ranges[0].first_entry + 1, 0) if ranges else dlsn

    async def first_with_txid(self, txid: int) -> DLSN:
        """Return the first position whose record has at least this transaction ID, or the end.

        Raises:
            InvalidRequest: The log cannot be searched (`check_searchable`).
        """
        check_searchable(self.state)
        try:
            position = await search_txid(
                self.state, self._ledgers, self._segments_with_txid(txid), txid
            )
        except NoSuchLedger:
            await self._reload()
            position = await search_txid(
                self.state, self._ledgers, self._segments_with_txid(txid), txid
            )
        return min(position, self.end)

    async def _segments_with_txid(self, txid: int) -> AsyncGenerator[SegmentRecord, None]:
        """Yield the segments, from the first on that may have such a record."""
        for record in self.closed[
            bisect_left(self.closed, txid, key=lambda closed_segment: closed_segment.last_txid) :
        ]:
            yield record
        if self.tail is not None:
            yield self.tail

    async def first_with_time(self, time_ms: int) -> DLSN:
        """Return the first position whose log time is at least ``time_ms`` (milliseconds since 1970), or
        the end."""
        try:
            position = await search_time(
                self.state, self._ledgers, self._segments_with_time(time_ms), time_ms
            )
        except NoSuchLedger:
            await self._reload()
            position = await search_time(
                self.state, self._ledgers, self._segments_with_time(time_ms), time_ms
            )
        return min(position, self.end)

    async def _segments_with_time(self, time_ms: int) -> AsyncGenerator[SegmentRecord, None]:
        start_index = bisect_left(
            self.closed, time_ms, key=lambda closed_segment: closed_segment.end_time_ms
        )
        for record in self.closed[start_index:]:
            yield record
        if self.tail is not None:
            yield self.tail

    async def time_at(self, dlsn: DLSN) -> int | None:
        """Return the log time of the first record at or after a position, in milliseconds since 1970.

        None if there is no record.
        """
        sequence_id = (await self.totals_before(dlsn)).sequence_id
        for record in self.segments:
            if record.segment >= dlsn.segment and record.end_sequence_id > sequence_id:
                index = max(0, sequence_id - record.start_sequence_id)
                entry = dlsn.entry if record.segment == dlsn.segment else 0
                read = partial(header_of_record, record=record, index=index, entry=entry)
                header = await self._read(record, read)
                return record.time_of(header)
        return None

    # --- reading ----------------------------------------------------------------------------------

    def _find_segment(self, number: int) -> SegmentRecord | None:
        if self.tail is not None and self.tail.segment == number:
            return self.tail
        segment_index = number - self.closed[0].segment if self.closed else -1
        return self.closed[segment_index] if 0 <= segment_index < len(self.closed) else None

    async def _read_closed(self, state: LogState) -> bool:
        """Read the new closed segments. Return False if some were deleted during the read."""
        last_known = self.closed[-1].segment if self.closed else state.first_segment - 1
        last_known = max(last_known, state.first_segment - 1)
        new_records: list[SegmentRecord] = []
        if last_known + 1 < state.first_open_segment:
            start = segment_key(state.log_id, last_known + 1)
            end = segment_key(state.log_id, state.first_open_segment)
            async for item in Scan(self._metadata, start, end):
                new_records.append(SegmentRecord.decode(item.value))
        if len(new_records) != state.first_open_segment - last_known - 1:
            return False
        kept_records = [
            segment_record
            for segment_record in self.closed
            if segment_record.segment >= state.first_segment
        ]
        self.closed = kept_records + new_records
        return True

    async def _reload(self) -> None:
        """Read all records again, because a ledger was deleted after its segment was merged or truncated."""
        self.closed = []
        await self.refresh()

    async def _read_tail(self, state: LogState, number: int) -> SegmentRecord | None:
        """Return the open segment, up to the last entry that its bookies report as confirmed."""
        known_tail = self.tail if self.tail is not None and self.tail.segment == number else None
        if known_tail is None or self._reader is None:
            stored = await self._metadata.get(segment_key(state.log_id, number))
            if stored is None:
                return None
            # It may have been closed since the state was read. Only its location is used.
            record = SegmentRecord.decode(stored.value)
            known_tail = replace(
                SegmentRecord(
                    number,
                    record.ledger_id,
                    record.epoch,
                    record.created_ms,
                ).with_start(state),
                base_entry=record.base_entry,
                base_bytes=record.base_bytes,
            )
            self.close()
            self._reader = await open_segment(self._ledgers, record)
        elif not self._reader.closed:
            await self._reader.refresh_lac()
        reader = self._reader
        lac = reader.lac
        if known_tail.last_entry >= lac:
            return (
                known_tail  # confirmed entries stay confirmed, even if bookies lose the LAC (H24)
            )
        entry = (await reader.read(lac, lac, bytes_max=1))[0]
        header = decode_header(entry.payload)
        return replace(
            known_tail,
            last_txid=known_tail.max_txid_of(header),
            last_time_ms=known_tail.time_of(header),
            records=header.records_through,
            size_bytes=entry.length_so_far,
            last_entry=lac,
        )

    async def _open_reader(self, record: SegmentRecord) -> SegmentEntryReader:
        reader = await open_segment(self._ledgers, record)
        if not reader.closed:
            reader.record_lac(record.last_entry)
        return reader

    async def _read_header(self, record: SegmentRecord, entry: int) -> tuple[EntryHeader, int]:
        """Return the header of an entry, and the entry bytes of its segment up to and including it."""

        async def read_entry(reader: SegmentEntryReader) -> tuple[EntryHeader, int]:
            entry_read = (await reader.read(entry, entry, bytes_max=1))[0]
            return decode_header(entry_read.payload), entry_read.length_so_far

        return await self._read(record, read_entry)

    async def _read(
        self, record: SegmentRecord, call: Callable[[SegmentEntryReader], Awaitable[Result]]
    ) -> Result:
        """Call a function with a reader of a segment. If the ledger was replaced, use the new one."""
        try:
            reader = await self._open_reader(record)
        except NoSuchLedger:
            await self._reload()
            reloaded = self._find_segment(record.segment)
            if reloaded is None:
                raise
            reader = await self._open_reader(reloaded)
        try:
            return await call(reader)
        finally:
            reader.close()


async def view_log(
    metadata: Metadata, ledgers: SegmentEntryStore, name: str, log_id: int
) -> LogView:
    """Return a view of the present log.

    Raises:
        LogNotFound: The log was deleted.
        DistributedLogError: The cluster did not answer.
    """
    view = LogView(metadata, ledgers, await open_state_watch(metadata, log_id, name))
    try:
        await view.load_new_segments()
    except BaseException:
        view.close()
        raise
    return view


def _select_total(mark: PositionTotals, by_records: bool) -> int:
    return mark.sequence_id if by_records else mark.segment_bytes
