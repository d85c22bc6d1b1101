"""Find the live runs of some files in the index, and point the index to copies of their records.

A compaction copies the records between these two steps. See `compactor.py` for the order of all steps.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

import trio

from ...runtime.interfaces.log_lines import get_logger
from ..format.extent_map import ExtentLocation
from ..format.footer_ranges import Span
from ..format.index_format import RUN, RUN_KEY, file_of, located, sealed
from ..storage.index import PAGE, Index, no_rest, pairs_between

PAIRS_A_SPAN = 8
"""The cost of a seek in the map, in pairs."""
MOVES_A_TURN = 200
"""Runs whose copies are pointed to: some half a millisecond."""

log = get_logger("distributedlog.bookie.storage.index")


class ExtentRelocation:
    """Relocate runs of one index from file to file."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def runs_in(
        self,
        numbers: Collection[int],
        runs_max: int,
        bytes_max: int,
        *,
        spans: Sequence[Span] | None = None,
        next_rest_s: Callable[[], float] = no_rest,
    ) -> tuple[list[tuple[int, ExtentLocation]], bool]:
        """Return the map's runs in these files, as sorted (ledger, run), and whether these are all.

        Args:
            numbers: The files.
            runs_max: Return at most this many runs, but at least one.
            bytes_max: Return at most this many bytes.
            spans: Where the footers of the files list entries. If less is found there than was counted, or
                for None, the whole map is read. Runs that only memory has are never returned.
            next_rest_s: Returns the pause before the next turn of the loop, here and in the other methods.
        """
        found: list[tuple[int, ExtentLocation]] = []
        size = 0
        live = dict.fromkeys(numbers, 0)
        async for key, value in self._pairs_within(spans, next_rest_s):
            if file_of(value) not in live:
                continue
            run = located(key, value)
            size += run.length
            if found and (len(found) >= runs_max or size > bytes_max):
                return found, False
            found.append((RUN_KEY.unpack(key)[1], run))
            live[run.file_number] += run.length
        if spans is not None and self._is_too_little(live):
            return await self.runs_in(numbers, runs_max, bytes_max, next_rest_s=next_rest_s)
        return found, True

    async def _pairs_within(
        self, spans: Sequence[Span] | None, next_rest_s: Callable[[], float]
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the pairs of runs that begin within these spans, or of all runs for None."""
        if spans is None:
            async for pair in pairs_between(self._index.stored, b"r", b"s", next_rest_s):
                yield pair
            return
        seen = 0
        for ledger_id, first, last in spans:
            start = RUN_KEY.pack(b"r", ledger_id, first)
            end = RUN_KEY.pack(b"r", ledger_id, last) + b"\0"
            while page := self._index.stored.scan(start, end, PAGE):
                for pair in page:
                    yield pair
                start = page[-1][0] + b"\0"
                seen += len(page)
                if seen >= PAGE:
                    seen = 0
                    await trio.sleep(next_rest_s())
                if len(page) < PAGE:
                    break
            seen += PAIRS_A_SPAN

    def _is_too_little(self, live: Mapping[int, int]) -> bool:
        """Whether more bytes were counted for one of these files."""
        for number, length in live.items():
            counted = self._index.in_map.live_bytes.get(number, 0)
            if length < counted:
                log.warning(
                    "file %d: its footer leads to %d live bytes, %d were counted: the whole index is"
                    " read",
                    number,
                    length,
                    counted,
                )
                return True
        return False

    async def move(
        self,
        moves: Iterable[tuple[int, ExtentLocation, ExtentLocation]],
        *,
        next_rest_s: Callable[[], float] = no_rest,
    ) -> None:
        """Point the index to the copies of runs, as sorted (ledger, old, new), in one synced transaction.

        Runs that were deleted or replaced since the copy are skipped (H84). The caller holds the lock of the
        checkpoints. Raises `DiskFull`: then nothing was changed.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        totals = self._index.in_map.copy()
        last: tuple[int, ExtentLocation] | None = None

        def put_last() -> None:
            if last is not None:
                ledger_id, run = last
                key = RUN_KEY.pack(b"r", ledger_id, run.first)
                value = RUN.pack(run.file_number, run.offset, run.length, run.count)
                puts.append((key, sealed(key, value)))
                totals.add_run(run)

        for at, (ledger_id, old, new) in enumerate(moves, 1):
            if at % MOVES_A_TURN == 0:
                await trio.sleep(next_rest_s())
            key = RUN_KEY.pack(b"r", ledger_id, old.first)
            stored = self._index.stored.get(key)
            if stored is None or located(key, stored) != old:
                continue
            deletes.append(key)
            totals.drop_run(old)
            whole = last[1].joined(new) if last is not None and last[0] == ledger_id else None
            if whole is None:
                put_last()
            last = (ledger_id, whole or new)
        put_last()
        await self._index.apply(puts, deletes, totals)

    async def count_again(
        self,
        numbers: Collection[int],
        *,
        spans: Sequence[Span] | None = None,
        next_rest_s: Callable[[], float] = no_rest,
    ) -> None:
        """Count the live bytes of these files again, from the map.

        The map has all of their runs, and the caller holds the lock of the checkpoints. ``spans`` is as in
        `runs_in`.
        """
        live = {number: 0 for number in self._index.live_bytes if number in numbers}
        async for key, value in self._pairs_within(spans, next_rest_s):
            number = file_of(value)
            if number in live:
                live[number] += located(key, value).length
        if spans is not None and self._is_too_little(live):
            await self.count_again(numbers, next_rest_s=next_rest_s)
            return
        for number, length in live.items():
            if length != self._index.live_bytes.get(number, 0):
                log.warning(
                    "file %d: %d bytes are live, %d were counted",
                    number,
                    length,
                    self._index.live_bytes.get(number, 0),
                )
            self._index.live_bytes[number] = self._index.in_map.live_bytes[number] = length
