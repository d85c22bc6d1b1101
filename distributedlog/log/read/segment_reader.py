"""The one door to a segment's entries: a ledger of its own, or its part of one that several segments share.

A merged segment (`segment_merge.py`) has its entries somewhere in a ledger; in here they have the segment's
own numbers and lengths again. So nobody adds a base to an entry id but ranges, which take the place with them
(`range_reader.py`), and nobody reads a neighbour's entries.
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
    """An entry of a shared ledger, as its segment counts."""

    entry: int
    payload: memoryview
    length_so_far: int
    record: memoryview
    """The ledger's record: its entry id is the ledger's."""


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
        """What is merged was closed before."""
        return True

    @property
    def last_response_at(self) -> float:
        """As of its ledger: nobody waits for the end of a segment that is closed."""
        return self._ledger.last_response_at

    async def why_unreadable(self, entry: int) -> str:
        """As of its ledger."""
        return await self._ledger.why_unreadable(self._base_entry + entry)

    def record_lac(self, lac: int) -> None:
        """Its end is known."""

    def close(self) -> None:
        """As of its ledger."""
        self._ledger.close()

    async def refresh_lac(self) -> int:
        """Its last entry."""
        await trio.lowlevel.checkpoint()
        return self._last_entry

    async def read(self, first: int, last: int, *, bytes_max: int) -> Sequence[SegmentEntry]:
        """Contiguous entries from ``first``, at least one, none of another segment."""
        assert 0 <= first <= last <= self._last_entry, "only what the segment has is asked for"
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
        """Its last entry: there will be no other."""
        await trio.lowlevel.checkpoint()
        return self._last_entry


async def open_segment(ledgers: SegmentEntryStore, record: SegmentRecord) -> SegmentEntryReader:
    """What reads a segment's entries by their own numbers. Raises `NoSuchLedger`, `CorruptData`."""
    ledger = await ledgers.open(record.ledger_id)
    if not record.shares_ledger:
        return ledger
    end = record.base_entry + record.last_entry
    if not ledger.closed or ledger.lac < end:
        ledger.close()
        raise CorruptData(
            f"segment {record.segment} ends at entry {end} of ledger {record.ledger_id}, which has "
            f"{ledger.lac + 1} entries"
        )
    return SharedSegment(ledger, record)


async def read_header(reader: SegmentEntryReader, entry: int) -> EntryHeader:
    """Return the header of one entry."""
    entries = await reader.read(entry, entry, bytes_max=1)
    return decode_header(entries[0].payload)
