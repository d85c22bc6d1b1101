"""One log as the driver sees it: its segments, how far it is confirmed, and what lies at a position.

`refresh` is a read of the log's state and, where a segment is in progress, one question to its bookies;
closed segments are read once and kept as numbers. Between refreshes everything is answered from memory.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

from ..ledger.client import LedgerClient
from ..ledger.reader import LedgerReader
from ..runtime.errors import LogNotFound
from .dlsn import DLSN
from .keys import incarnation_text, segment_key, state_key
from .namespace import Namespace
from .ranges import SegmentRange, ranges_between
from .record import EntryHeader, Origin, decode, decode_header
from .segments import UNKNOWN, SegmentRecord
from .state import LogState

PAGE = 500
MARKS_MAX = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """What lies before an entry: records of the log, and entry bytes of its segment."""

    sequence_id: int
    segment_bytes: int


class LogView:
    """One log of one incarnation. All in the background loop."""

    def __init__(self, namespace: Namespace, name: str, log_id: int) -> None:
        self.name = name
        self.log_id = log_id
        self.state: LogState
        self.closed: list[SegmentRecord] = []
        self.tail: SegmentRecord | None = None
        """The oldest segment in progress, as far as it is confirmed; readers see no further (H11)."""
        self._namespace = namespace
        ledgers = namespace.ledgers
        assert isinstance(ledgers, LedgerClient)
        self._ledgers: LedgerClient = ledgers
        self._reader: LedgerReader | None = None
        self._marks: dict[tuple[int, int], Mark] = {}

    # --- how far ----------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Look again. Raises `LogNotFound`, and what keeps the cluster from answering; then all stays."""
        state = await self._read_state()
        while not await self._read_closed(state):
            state = await self._read_state()  # truncated while it was read
        in_progress = state.in_progress
        tail = await self._read_tail(state, in_progress[0]) if in_progress else None
        self.state, self.tail = state, tail

    @property
    def identity(self) -> str:
        """Which log of this name it is."""
        return incarnation_text(self.log_id)

    @property
    def earliest(self) -> DLSN:
        """The first position that is left."""
        return max(self.state.truncated_to, DLSN(self.state.first_segment, 0, 0))

    @property
    def end(self) -> DLSN:
        """The position behind all that can be read."""
        if self.tail is not None:
            return DLSN(self.tail.segment, self.tail.last_entry + 1, 0)
        return DLSN(self.state.last_segment + 1, 0, 0)

    @property
    def segments(self) -> list[SegmentRecord]:
        """All that can be read, ascending."""
        return [*self.closed, *([self.tail] if self.tail is not None else [])]

    def ranges(self, start: DLSN, end: DLSN) -> list[SegmentRange]:
        """What lies between two positions, as far as it can be read."""
        return ranges_between(self.name, self.identity, self.segments, start, end)

    def prove(self, dlsn: DLSN) -> None:
        """Somebody was given ``dlsn`` as the end of what can be read, before a restart perhaps: then it is
        confirmed up to there, whatever the bookies remember (H24)."""
        tail = self.tail
        if tail is not None and dlsn.segment == tail.segment and dlsn.entry - 1 > tail.last_entry:
            assert self._reader is not None
            self._reader.note_lac(dlsn.entry - 1)
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
        if one is None:  # before the first or behind the last one
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
        """The last entry boundary up to which at most so many records, or bytes, lie behind ``start``.

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
        behind: int,
        base: int,
        whole: int,
        left: int,
        count: bool,
    ) -> int:
        """The greatest entry before which at most ``left`` lies, counted from ``first``."""
        low, low_at, high, high_at = first, 0, behind, whole
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

    def entry_behind(self, dlsn: DLSN) -> DLSN:
        """The position behind the first entry at or after ``dlsn``."""
        ranges = self.ranges(dlsn, self.end)
        return DLSN(ranges[0].segment, ranges[0].first_entry + 1, 0) if ranges else dlsn

    async def first_with_txid(self, txid: int) -> DLSN:
        """The first position whose record has a txid of at least this; the end where there is none."""
        for one in self.segments:
            if one.closed and one.last_txid < txid:
                continue
            low, high = 0, one.last_entry + 1
            while low < high:
                middle = (low + high) // 2
                header, _ = await self._header(one, middle)
                if header.last_txid_in(one.given_txid) < txid:
                    low = middle + 1
                else:
                    high = middle
            if low <= one.last_entry:
                return max(self.earliest, await self._slot_of(one, low, txid))
        return self.end

    async def _slot_of(self, one: SegmentRecord, entry: int, txid: int) -> DLSN:
        reader = await self._open(one)
        try:
            payload = (await reader.read(entry, entry, bytes_max=1))[0].payload
        finally:
            reader.close()
        header = decode_header(payload)
        if header.control:
            return DLSN(one.segment, entry, 0)
        columns = decode(payload, header, Origin(one.segment, entry, 0, one.given_txid))
        return DLSN(one.segment, entry, bisect_left(columns.txids.tolist(), txid))

    # --- reading ----------------------------------------------------------------------------------

    def _segment(self, number: int) -> SegmentRecord | None:
        if self.tail is not None and self.tail.segment == number:
            return self.tail
        at = number - self.closed[0].segment if self.closed else -1
        return self.closed[at] if 0 <= at < len(self.closed) else None

    async def _read_state(self) -> LogState:
        found = await self._namespace.metadata.get(state_key(self.log_id))
        state = None if found is None else LogState.decode(found.value)
        if state is None:
            raise LogNotFound(f'log "{self.name}" was deleted')
        if state.deleting:
            raise LogNotFound(f'log "{self.name}" is being deleted')
        return state

    async def _read_closed(self, state: LogState) -> bool:
        """Read the closed segments that are new; False when some are gone meanwhile."""
        known = self.closed[-1].segment if self.closed else state.first_segment - 1
        known = max(known, state.first_segment - 1)
        new: list[SegmentRecord] = []
        start = segment_key(self.log_id, known + 1)
        end = segment_key(self.log_id, state.open_from)
        while known + len(new) + 1 < state.open_from:
            page = await self._namespace.metadata.range(start, end, limit=PAGE)
            new += [SegmentRecord.decode(item.value) for item in page.items]
            if not page.more or not page.items:
                break
            start = page.items[-1].key + b"\x00"
        if len(new) != state.open_from - known - 1:
            return False
        kept = [one for one in self.closed if one.segment >= state.first_segment]
        self.closed = kept + new
        return True

    async def _read_tail(self, state: LogState, number: int) -> SegmentRecord | None:
        """The segment in progress, as far as its bookies say that it is confirmed."""
        before = self.tail if self.tail is not None and self.tail.segment == number else None
        if before is None or self._reader is None or self._reader.ledger_id != before.ledger_id:
            found = await self._namespace.metadata.get(segment_key(self.log_id, number))
            if found is None:
                return None
            record = SegmentRecord.decode(found.value)
            self.close()
            self._reader = await self._ledgers.open(record.ledger_id)
        elif not self._reader.closed:
            await self._reader.refresh_lac()
        reader = self._reader
        lac = reader.lac
        if before is not None and before.last_entry >= lac:
            return before  # what was seen confirmed stays so, whatever the bookies remember (H24)
        size, records, last_txid = 0, 0, UNKNOWN
        if lac >= 0:
            entry = (await reader.read(lac, lac, bytes_max=1))[0]
            header = decode_header(entry.payload)
            size, records, last_txid = entry.length_so_far, header.records_through, header.last_txid
        return SegmentRecord(
            number, reader.ledger_id, 0, 0, state.next_sequence_id, last_txid=last_txid,
            records=records, size_bytes=size, last_entry=lac,
        )  # fmt: skip

    async def _open(self, one: SegmentRecord) -> LedgerReader:
        reader = await self._ledgers.open(one.ledger_id)
        if not reader.closed:
            reader.note_lac(one.last_entry)
        return reader

    async def _header(self, one: SegmentRecord, entry: int) -> tuple[EntryHeader, int]:
        """An entry's header, and the entry bytes of its segment up to and with it."""
        reader = await self._open(one)
        try:
            found = (await reader.read(entry, entry, bytes_max=1))[0]
            return decode_header(found.payload), found.length_so_far
        finally:
            reader.close()


def _amount(mark: Mark, count: bool) -> int:
    return mark.sequence_id if count else mark.segment_bytes
