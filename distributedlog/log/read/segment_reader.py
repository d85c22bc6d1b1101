"""Open the entries of a segment, which is a whole ledger or a part of a shared one.

The entries of a merged segment (`segment_merge.py`) are in the middle of a ledger. This module gives them the
segment's own entry IDs and lengths again. So only range readers (`range_reader.py`), whose ranges include the
location, add a base to an entry ID, and no reader sees the entries of another segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import CorruptData
from ..format.record import EntryHeader, decode_header
from ..interfaces.segment_store import SegmentEntry, SegmentEntryReader, SegmentEntryStore
from ..model.segment_record import SegmentRecord


@dataclass(slots=True)
class SharedEntry:
    """An entry of a shared ledger, with the numbers of its segment."""

    entry: int
    payload: memoryview
    length_so_far: int
    record: memoryview
    """The ledger's record, which has the entry ID of the ledger."""


class SharedSegment:
    """The part of a closed ledger that is one segment. A `SegmentEntryReader`."""

    def __init__(self, ledger: SegmentEntryReader, record: SegmentRecord) -> None:
        self._ledger = ledger
        self._base_entry = record.base_entry
        self._base_bytes = record.base_bytes
        self._last_entry = record.last_entry

    @property
    def lac(self) -> int:
        """The segment's last entry."""
        return self._last_entry

    @property
    def closed(self) -> bool:
        """True, because only closed segments are merged."""
        return True

    @property
    def last_response_at(self) -> float:
        """The time of the ledger. No reader waits for the end of a closed segment."""
        return self._ledger.last_response_at

    async def why_unreadable(self, entry: int) -> str:
        """Return the reason for the entry of the ledger."""
        return await self._ledger.why_unreadable(self._base_entry + entry)

    def record_lac(self, lac: int) -> None:
        """Do nothing, because the end is known."""

    def close(self) -> None:
        """Close the reader of the ledger."""
        self._ledger.close()

    async def refresh_lac(self) -> int:
        """Return the segment's last entry."""
        await trio.lowlevel.checkpoint()
        return self._last_entry

    async def read(self, first: int, last: int, *, bytes_max: int) -> Sequence[SegmentEntry]:
        """Return contiguous entries from ``first`` on, at least one, and none of another segment."""
        assert 0 <= first <= last <= self._last_entry, "the entries belong to the segment"
        base, base_bytes = self._base_entry, self._base_bytes
        ledger_entries = await self._ledger.read(base + first, base + last, bytes_max=bytes_max)
        return [
            SharedEntry(
                ledger_entry.entry - base,
                ledger_entry.payload,
                ledger_entry.length_so_far - base_bytes,
                ledger_entry.record,
            )
            for ledger_entry in ledger_entries
        ]

    async def wait(
        self,
        after: int,
        *,
        wait_s: float,
        on_entries: Callable[[Sequence[SegmentEntry]], int] | None = None,
    ) -> int:
        """Return the segment's last entry, because no further one will follow."""
        await trio.lowlevel.checkpoint()
        return self._last_entry


async def open_segment(ledgers: SegmentEntryStore, record: SegmentRecord) -> SegmentEntryReader:
    """Open the ledger of a segment to read its entries by their segment-relative IDs.

    Raises:
        NoSuchLedger: The ledger was deleted.
        CorruptData: A shared ledger ends before the segment does.
    """
    ledger = await ledgers.open(record.ledger_id)
    if not record.shares_ledger:
        return ledger
    end = record.base_entry + record.last_entry
    if not ledger.closed or ledger.lac < end:
        ledger.close()
        raise CorruptData(
            f"segment {record.segment} ends at entry {end} of ledger {record.ledger_id}, which has only "
            f"{ledger.lac + 1} entries"
        )
    return SharedSegment(ledger, record)


async def read_header(reader: SegmentEntryReader, entry: int) -> EntryHeader:
    """Return the header of one entry."""
    entries = await reader.read(entry, entry, bytes_max=1)
    return decode_header(entries[0].payload)
