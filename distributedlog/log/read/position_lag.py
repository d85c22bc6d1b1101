"""Measure how far positions are behind the end of their log, in records, bytes and time.

The cost does not depend on the length of the log. The end requires at most one query of the bookies of the
segment in progress. A position requires one segment record and one entry, and the entry of the next record
for its age; after empty segments or control entries, also a search by bisection. Entries do not change, so a
caller that measures repeatedly keeps a cache. A position that has not moved then costs nothing.
"""

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ...metadata.model.interface import Metadata
from ..format.dlsn import DLSN
from ..format.record import decode_header
from ..interfaces.segment_store import SegmentEntryReader, SegmentEntryStore
from ..model.log_state import LogState
from ..model.position_outcome import HeldPosition, LogLookup, resolve_position
from ..model.segment_record import SegmentRecord
from .position_search import header_of_record, held_position_at, segments_from
from .segment_reader import open_segment
from .state_watch import StateWatch

CACHED_POSITIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class PositionLag:
    """The distance between a position and the end of its log."""

    records: int
    """Readable records at and after the position."""
    bytes: int | None
    """Their entry bytes, exact to one entry. None if an old log does not count its bytes."""
    seconds: float
    """Age of the first of these records; 0 if there is none."""
    lost: int | None = 0
    """Records after the position that were truncated before they were read. None if their number is
    unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "lost": self.lost,
        }


@dataclass(frozen=True, slots=True)
class _Totals:
    """The records and bytes of a log before a position, and the log time of the first record there."""

    records: int
    bytes: int
    """-1 if it is not known."""
    time_ms: int | None
    """None if it is not known: the entry of the position has no record after it."""


LagCache = dict[tuple[int, DLSN], _Totals]
"""Log ID and position to the totals there. Of at most `CACHED_POSITIONS_MAX` positions."""


class LagMeter:
    """Measures positions of one log against one end. `lag_meter` creates it."""

    def __init__(
        self,
        metadata: Metadata,
        ledgers: SegmentEntryStore,
        state_watch: StateWatch,
        tail: SegmentRecord | None,
        cache: LagCache,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._state_watch = state_watch
        self._state: LogState = state_watch.state
        self._tail = tail
        """The oldest segment in progress, up to its last confirmed entry."""
        self._cache = cache
        if tail is None:
            state = self._state
            self.end = DLSN(state.first_open_segment, 0, 0)
            self._end_totals = _Totals(state.next_sequence_id, state.bytes_total, None)
            self._newest_ms = state.time_ms
        else:
            self.end = DLSN(tail.segment, tail.last_entry + 1, 0)
            self._end_totals = _Totals(
                tail.end_sequence_id, _sum(tail.bytes_before, tail.size_bytes), None
            )
            self._newest_ms = tail.end_time_ms

    @property
    def end_sequence_id(self) -> int:
        """The number of records that the log ever had, up to the end."""
        return self._end_totals.records

    async def lag(
        self, position: DLSN, now_ms: int, *, sequence_id: int | None = None
    ) -> PositionLag:
        """Return the lag of one position.

        Args:
            position: The next record to read.
            now_ms: The wall clock.
            sequence_id: The sequence ID of the record there, if it is known.

        Raises:
            LogDeleted: The log was deleted.
            DistributedLogError: An entry could not be read.
        """
        state = self._state
        if sequence_id is None:
            held_position = await held_position_at(self._metadata, self._ledgers, state, position)
        else:
            held_position = HeldPosition(position, self._state_watch.incarnation, sequence_id)
        resolution = resolve_position(held_position, LogLookup.of(state))
        if resolution.position is None:
            raise resolution.error(state.name, held_position)
        totals, end = await self._totals_before(resolution.position), self._end_totals
        records = max(0, end.records - totals.records)
        if not records:
            return PositionLag(0, 0, 0.0, resolution.lost)
        size = max(0, end.bytes - totals.bytes) if min(end.bytes, totals.bytes) >= 0 else None
        since_ms = totals.time_ms
        if since_ms is None:  # a record was written after the position since it was measured first
            since_ms = await self._read_time(resolution.position, totals.records)
            key = (state.log_id, resolution.position)
            self._cache[key] = replace(totals, time_ms=since_ms)
        seconds = age_s(since_ms, self._newest_ms, now_ms)
        return PositionLag(records, size, seconds, resolution.lost)

    async def _totals_before(self, position: DLSN) -> _Totals:
        if position >= self.end:
            return self._end_totals
        key = (self._state.log_id, position)
        totals = self._cache.get(key)
        if totals is None:
            totals = await self._read_totals(position)
            while len(self._cache) >= CACHED_POSITIONS_MAX:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = totals
        return totals

    async def _read_totals(self, position: DLSN) -> _Totals:
        record = await self._segment(position.segment)
        if position.entry > record.last_entry:
            # After the last entry of a closed segment, the next record is in a later segment.
            following = await self._first_segment_after(record)
            if following is None:
                return self._end_totals
            record, position = following, following.first_dlsn
        reader = await self._open_reader(record)
        try:
            (entry,) = await reader.read(position.entry, position.entry, bytes_max=1)
        finally:
            reader.close()
        header = decode_header(entry.payload)
        records = min(header.records_before + position.slot, header.records_through)
        return _Totals(
            record.start_sequence_id + records,
            _sum(record.bytes_before, entry.length_so_far - len(entry.payload)),
            record.time_of(header) if records < header.records_through else None,
        )

    async def _read_time(self, position: DLSN, sequence_id: int) -> int:
        """Return the log time of the record with this sequence ID, the first one at or after a position."""
        record = await self._segment(position.segment)
        if record.end_sequence_id <= sequence_id:
            following = await self._first_segment_after(record)
            assert following is not None, "the caller has counted a record after the position"
            record, position = following, following.first_dlsn
        reader = await self._open_reader(record)
        try:
            index = sequence_id - record.start_sequence_id
            return record.time_of(await header_of_record(reader, record, index, position.entry))
        finally:
            reader.close()

    async def _open_reader(self, record: SegmentRecord) -> SegmentEntryReader:
        reader = await open_segment(self._ledgers, record)
        if not reader.closed:  # the bookies may have lost the LAC since (H24)
            reader.record_lac(record.last_entry)
        return reader

    async def _segment(self, number: int) -> SegmentRecord:
        if self._tail is not None and number == self._tail.segment:
            return self._tail
        return await self._state_watch.segment(number)

    async def _first_segment_after(self, record: SegmentRecord) -> SegmentRecord | None:
        """Return the first segment with a record after this closed one, or None."""
        read = record.end_sequence_id
        async with aclosing(
            segments_from(
                self._metadata, self._state, lambda segment: segment.end_sequence_id <= read
            )
        ) as segments:
            async for segment in segments:
                found = await self._segment(segment.segment)
                return found if found.last_entry >= 0 else None
        return None


async def lag_meter(
    metadata: Metadata,
    ledgers: SegmentEntryStore,
    state_watch: StateWatch,
    cache: LagCache | None = None,
) -> LagMeter:
    """Return a meter against the present end of a log whose state has just been loaded.

    Args:
        metadata: The metadata store.
        ledgers: The ledgers of the segments.
        state_watch: The state of the log.
        cache: The results of earlier meters, also of other logs. The meter adds to it.

    Raises:
        LedgerStateUnknown: Too few bookies of the segment in progress answered.
    """
    state, tail = state_watch.state, None
    if state.in_progress:
        record = await state_watch.segment(state.first_open_segment)
        # It may have been closed since the state was read.
        tail = record if record.closed else await _read_tail(ledgers, record.with_start(state))
    return LagMeter(metadata, ledgers, state_watch, tail, {} if cache is None else cache)


def age_s(since_ms: int, newest_ms: int, now_ms: int) -> float:
    """Return the age of a record in seconds.

    Log time is ahead of this clock if the writer's clock is. Then it is used instead.

    Args:
        since_ms: The log time of the record.
        newest_ms: The log time at the end of the log.
        now_ms: The wall clock.
    """
    return max(0, max(now_ms, newest_ms) - since_ms) / 1000


async def _read_tail(ledgers: SegmentEntryStore, record: SegmentRecord) -> SegmentRecord:
    """Return the record of an open segment up to its last confirmed entry."""
    reader = await open_segment(ledgers, record)
    try:
        last_entry = reader.lac
        if last_entry < 0:
            return replace(record, last_time_ms=record.time_floor_ms)
        (entry,) = await reader.read(last_entry, last_entry, bytes_max=1)
    finally:
        reader.close()
    header = decode_header(entry.payload)
    return replace(
        record,
        records=header.records_through,
        size_bytes=entry.length_so_far,
        last_entry=last_entry,
        last_time_ms=record.time_of(header),
    )


def _sum(before: int, size: int) -> int:
    """Return the sum, or -1 if the first number is not known."""
    return before + size if before >= 0 else -1
