"""Find the live extents of some files in the index, and point the index to copies of their records.

A compaction copies the records between these two steps. See `compactor.py` for the order of all steps.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

import trio

from ...runtime.interfaces.log_lines import get_logger
from ..format.extent_map import ExtentLocation
from ..format.footer_ranges import EntryRange
from ..format.index_format import (
    EXTENT_KEY,
    EXTENT_VALUE,
    decode_extent,
    file_number_of,
    with_digest,
)
from ..storage.index import PAIRS_PER_PAGE, Index, no_pause, pairs_between

PAIRS_PER_SEEK = 8
"""The cost of a seek in the map, in pairs."""
MOVES_PER_YIELD = 200
"""The extents that are redirected in one event-loop iteration: about half a millisecond."""

log = get_logger("distributedlog.bookie.storage.index")


class ExtentRelocation:
    """Relocate extents of one index from file to file."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def extents_in(
        self,
        file_numbers: Collection[int],
        extents_max: int,
        bytes_max: int,
        *,
        ranges: Sequence[EntryRange] | None = None,
        next_pause_s: Callable[[], float] = no_pause,
    ) -> tuple[list[tuple[int, ExtentLocation]], bool]:
        """Return the map's extents in these files, sorted by ledger, and whether these are all.

        Extents that are only in memory are never returned.

        Args:
            extents_max: Return at most this many extents, but at least one.
            bytes_max: Return at most this many bytes.
            ranges: The entry ranges in the footers of the files. If the map has fewer live bytes there than
                were counted, or for None, the whole map is read.
            next_pause_s: Returns the pause before the next event-loop iteration, here and in the other
                methods.
        """
        extents: list[tuple[int, ExtentLocation]] = []
        size = 0
        live_bytes = dict.fromkeys(file_numbers, 0)
        async for key, value in self._pairs_in_ranges(ranges, next_pause_s):
            if file_number_of(value) not in live_bytes:
                continue
            extent = decode_extent(key, value)
            size += extent.length
            if extents and (len(extents) >= extents_max or size > bytes_max):
                return extents, False
            extents.append((EXTENT_KEY.unpack(key)[1], extent))
            live_bytes[extent.file_number] += extent.length
        if ranges is not None and self._misses_live_bytes(live_bytes):
            return await self.extents_in(
                file_numbers, extents_max, bytes_max, next_pause_s=next_pause_s
            )
        return extents, True

    async def _pairs_in_ranges(
        self, ranges: Sequence[EntryRange] | None, next_pause_s: Callable[[], float]
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the pairs of extents that begin within these ranges, or of all extents for None."""
        if ranges is None:
            async for pair in pairs_between(self._index.ordered_map, b"r", b"s", next_pause_s):
                yield pair
            return
        cost_pairs = 0
        for ledger_id, first, last in ranges:
            start = EXTENT_KEY.pack(b"r", ledger_id, first)
            end = EXTENT_KEY.pack(b"r", ledger_id, last) + b"\0"
            while page := self._index.ordered_map.scan(start, end, PAIRS_PER_PAGE):
                for pair in page:
                    yield pair
                start = page[-1][0] + b"\0"
                cost_pairs += len(page)
                if cost_pairs >= PAIRS_PER_PAGE:
                    cost_pairs = 0
                    await trio.sleep(next_pause_s())
                if len(page) < PAIRS_PER_PAGE:
                    break
            cost_pairs += PAIRS_PER_SEEK

    def _misses_live_bytes(self, live_bytes: Mapping[int, int]) -> bool:
        """Whether more live bytes were counted for one of these files than were found."""
        for number, length in live_bytes.items():
            counted = self._index.stored_totals.live_bytes.get(number, 0)
            if length < counted:
                log.warning(
                    "file %d: its footer leads to %d live bytes, but %d were counted, so the whole"
                    " index is read",
                    number,
                    length,
                    counted,
                )
                return True
        return False

    async def point_to_copies(
        self,
        moves: Iterable[tuple[int, ExtentLocation, ExtentLocation]],
        *,
        next_pause_s: Callable[[], float] = no_pause,
    ) -> None:
        """Point the index to the copies of extents in one synced transaction.

        ``moves`` are sorted (ledger, old, new). Extents that were deleted or replaced since the copy are
        skipped (H84). The caller holds the lock of the checkpoints.

        Raises:
            DiskFull: Nothing was changed.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        totals = self._index.stored_totals.copy()
        merged_last: tuple[int, ExtentLocation] | None = None

        def put_last() -> None:
            if merged_last is not None:
                ledger_id, extent = merged_last
                key = EXTENT_KEY.pack(b"r", ledger_id, extent.first)
                value = EXTENT_VALUE.pack(
                    extent.file_number, extent.offset, extent.length, extent.count
                )
                puts.append((key, with_digest(key, value)))
                totals.add_extent(extent)

        for count, (ledger_id, old, new) in enumerate(moves, 1):
            if count % MOVES_PER_YIELD == 0:
                await trio.sleep(next_pause_s())
            key = EXTENT_KEY.pack(b"r", ledger_id, old.first)
            stored_value = self._index.ordered_map.get(key)
            if stored_value is None or decode_extent(key, stored_value) != old:
                continue
            deletes.append(key)
            totals.subtract_extent(old)
            merged = (
                merged_last[1].merge_with(new)
                if merged_last is not None and merged_last[0] == ledger_id
                else None
            )
            if merged is None:
                put_last()
            merged_last = (ledger_id, merged or new)
        put_last()
        await self._index.apply(puts, deletes, totals)

    async def recount_live_bytes(
        self,
        file_numbers: Collection[int],
        *,
        ranges: Sequence[EntryRange] | None = None,
        next_pause_s: Callable[[], float] = no_pause,
    ) -> None:
        """Count the live bytes of these files again, from the map.

        The map has all of their extents, and the caller holds the lock of the checkpoints. ``ranges`` is as
        in `extents_in`.
        """
        live_bytes = {number: 0 for number in self._index.live_bytes if number in file_numbers}
        async for key, value in self._pairs_in_ranges(ranges, next_pause_s):
            number = file_number_of(value)
            if number in live_bytes:
                live_bytes[number] += decode_extent(key, value).length
        if ranges is not None and self._misses_live_bytes(live_bytes):
            await self.recount_live_bytes(file_numbers, next_pause_s=next_pause_s)
            return
        for number, length in live_bytes.items():
            if length != self._index.live_bytes.get(number, 0):
                log.warning(
                    "file %d: %d bytes are live, %d were counted",
                    number,
                    length,
                    self._index.live_bytes.get(number, 0),
                )
            self._index.live_bytes[number] = self._index.stored_totals.live_bytes[number] = length
