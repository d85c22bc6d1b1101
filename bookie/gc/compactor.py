"""Live records move out of files that are mostly dead, into cold files where whole ledgers lie together.

A file is only removed when nothing in it is live, and it holds the records of all ledgers that were written
at a time. So what is left of it is copied, and the file goes:

1. The index says what is live in it. Each record is read, its own digest verified (H90), and written to
   ``cold-N.tmp``, which is synced and gets its name (`compacted_file_writer.py`).
2. A durable control record says that the file is there; a checkpoint of the index lists it (H85, H86).
3. One transaction of the index points to the copies, of those runs that are as they were (H84).
4. Nothing of the old file is left, says the index, counted again: it goes as every dead file goes.

Between any two steps each record is where the index says, or in two places with equal bytes. A start
removes what was not finished; a file that is listed and to which nothing points is dead, like any other.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

import trio

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData, DiskFull, DistributedLogError, TooBusy
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.background_rate import BASELINE_S, WORK_S, Pacer
from ..declarations.counters import BookieHealth
from ..format import compacted_format as cb
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation
from ..format.footer_ranges import EntryRange, FooterRanges
from ..format.journal_format import file_name
from ..replay.compacted_file_scan import read_compacted_payloads
from ..replay.journal_replay import read_footer_payloads
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock
from .checkpointer import Checkpointer
from .compacted_file_writer import CompactedFileWriter, ExtentMove
from .compaction_policy import FileFacts, files_to_compact, files_to_punch, output_bytes_max
from .extent_relocation import MOVES_PER_YIELD, PAIRS_PER_SEEK, ExtentRelocation

EXTENTS_MAX = 100_000
"""Moved in one go: they are in memory meanwhile, some 30 MB."""
ROWS_PER_YIELD = 1000
"""Of a footer: some half a millisecond."""
RANGES_MIN = 1000
"""So few are looked at, however small the index is."""
SMALL_BYTES = 1024 * 1024
PUNCH_CALL_BYTES = 16 * 1024 * 1024
"""Given back in one call. It costs the device about as much as reading a hundredth of it."""
PUNCH_COST = 100
PAUSE_S = 0.002
PAUSES_S_MAX = 5.0
"""Of one cold file, in sum: to go twice through an index of ten million runs would take minutes of them."""
SPACE_CHECK_S = 1.0
"""Where room is short, between two looks."""
FIRST_COMPACTION_S = 2.0
"""After a start, at the latest: where it is killed again and again nothing would ever move."""
YOUNG_FILE_S = 600.0
"""A journal file of small commits is a fifth headers, padding and footer, of lone records nearly all of it.
It is not rewritten for that so soon: much is deleted young, and who writes now has CPU and device."""
YOUNG_FILE_SPACE_DIVISOR = 8
"""What is left alone so is no more than this part of what is free, the youngest first: a disk that fills in
that time is to have room for cold files, and not to become read-only before."""

log = get_logger("distributedlog.bookie.gc.compactor")


class Compactor:
    """What gives the room of dead records back, in files that still have live ones."""

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        checkpointer: Checkpointer,
        health: BookieHealth,
        on_damage: Callable[[DistributedLogError, int, int, int], None],
    ) -> None:
        """``on_damage`` gets why entries (ledger, first, last) could not be copied."""
        self._disk = storage.disk
        self._journal = storage.journal
        self._index = storage.index
        self._files = storage.files
        self._group_commit = group_commit
        self._space = storage.space
        self._checkpointer = checkpointer
        self._options = storage.options
        self._stats = health.stats
        self._on_damage = on_damage
        self._failures = health.failures
        self.relocation = ExtentRelocation(storage.index)
        self.pacer = Pacer()
        self._next_io_at = 0.0
        self._work_allowed = trio.Event()
        """Not set in the quiet second of a round."""
        self._round_ends_at = -inf
        self._started_at = trio.current_time()
        self._paused_s = 0.0
        """Since the last cold file was begun."""
        self._corrupt_extents: dict[int, tuple[int, ExtentLocation]] = {}
        """Files with a run that cannot be copied, and one such: they stay until it is gone from there."""
        self._live_bytes_at_punch: dict[int, int] = {}
        """Of cold files: what was live when their pages were last looked at."""
        self._can_punch = True
        """As far as is known the file system gives pages back."""

    async def run(self) -> None:
        """Look for what is worth it, every few seconds, until cancelled. Raises what ends the node."""
        wait_s = min(self._options.compaction_s, FIRST_COMPACTION_S)
        while wait_s:
            await self._wait_until_due(wait_s)
            while await self.compact_once():
                pass
            wait_s = self._options.compaction_s

    async def _wait_until_due(self, wait_s: float) -> None:
        """The next look is due; soon where room is short, for what was deleted may have made it worth it."""
        due = trio.current_time() + wait_s
        while (remaining_s := due - trio.current_time()) > 0:
            await trio.sleep(min(remaining_s, SPACE_CHECK_S))
            if self._space.is_low:
                return

    async def compact_once(self) -> bool:
        """One look, and one cold file at most. False: nothing is worth it, or there is no room for it."""
        files = [
            file
            for file in self._file_facts()
            if not self._failures.is_waiting(_failure_unit(file.number))
        ]
        available_bytes = self._available_bytes
        punchable = files_to_punch(files, self._live_bytes_at_punch) if self._can_punch else []
        files_to_move = files_to_compact(
            (
                file
                for file in files
                if file.number not in self._corrupt_extents and file.live_bytes <= available_bytes
            ),
            live_bytes_max=min(available_bytes, self._output_bytes_max),
            small_bytes=min(SMALL_BYTES, self._options.first_file_bytes // 16),
            disk_is_low=self._space.is_low,
        )
        if not (punchable or files_to_move):
            return False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_pacing)
            done = False
            try:
                # The first file of several may be sound: then it is tried alone, after its rest.
                with self._failures.attempt(_failure_unit((punchable or files_to_move)[0])):
                    done = await (
                        self._punch(punchable) if punchable else self._move(files_to_move)
                    )
            except (TooBusy, DiskFull) as error:  # no descriptor, no room for the index: later
                log.warning("bookie %s: nothing is moved now: %s", self._space.bookie_id, error)
            nursery.cancel_scope.cancel()
        return done

    @property
    def _journal_reserve_bytes(self) -> int:
        """What a cold file leaves of what is free: for the journal's next files, one where it is short."""
        return (1 if self._space.is_low else 2) * self._options.first_file_bytes

    @property
    def _available_bytes(self) -> int:
        """For copies, beside what says where they are. A file is only begun if all that lives in it fits:
        nothing of it comes back before."""
        return max(0, self._disk.free_bytes() - self._journal_reserve_bytes) * 3 // 4

    @property
    def _output_bytes_max(self) -> int:
        live = sum(self._index.live_bytes.values())
        uptime_s = trio.current_time() - self._started_at
        return output_bytes_max(live, self._options.first_file_bytes, uptime_s)

    def _next_pause_s(self) -> float:
        """Between two turns of the loop that go to moving: for who writes, and nobody does without room.

        None where somebody waits for the index, as a checkpoint does: what is written meanwhile stays in
        memory, of which too much makes a bookie read-only.
        """
        waiting = self._checkpointer.lock.statistics().tasks_waiting
        if waiting or self._space.read_only or self._paused_s >= PAUSES_S_MAX:
            return 0.0
        self._paused_s += PAUSE_S
        return PAUSE_S

    def _file_facts(self) -> list[FileFacts]:
        """Of the files all of whose runs are in the index's map."""
        journal, live = self._journal, self._index.live_bytes
        checkpointed = self._checkpointer.first_unindexed_sequence
        if not checkpointed:  # after a start on a full disk the map may have nothing yet
            return []
        facts: list[FileFacts] = []
        young_bytes_allowance = (
            0 if self._space.is_low else self._disk.free_bytes() // YOUNG_FILE_SPACE_DIVISOR
        )
        for number, (_, last) in sorted(journal.sealed_files.items(), reverse=True):
            if last < checkpointed:
                file_bytes = journal.file_bytes.get(number, 0)
                padding = self._young_padding_bytes(number, file_bytes, young_bytes_allowance)
                young_bytes_allowance -= padding
                facts.append(FileFacts(number, file_bytes, padding, live.get(number, 0), False))
        for number, compacted in journal.compacted_files.items():
            file_bytes = journal.file_bytes.get(number, 0)
            self._live_bytes_at_punch.setdefault(number, compacted.data_end - cb.DATA_OFFSET)
            facts.append(
                FileFacts(number, file_bytes, compacted.overhead_bytes, live.get(number, 0), True)
            )
        self._corrupt_extents = {
            file: extent
            for file, extent in self._corrupt_extents.items()
            if self._is_still_indexed(*extent)
        }
        for number in self._live_bytes_at_punch.keys() - journal.compacted_files.keys():
            del self._live_bytes_at_punch[number]
        return facts

    def _young_padding_bytes(self, number: int, file_bytes: int, bytes_max: int) -> int:
        """Of a journal file what no entry ever took, and is left alone for now.

        ``room``: for what of all files is left alone.
        """
        sealed = self._journal.sealed_file_info.get(number)
        if sealed is None or trio.current_time() >= sealed.sealed_at + YOUNG_FILE_S:
            return 0
        padding = max(0, file_bytes - sealed.record_bytes)
        return padding if padding <= bytes_max else 0

    def _is_still_indexed(self, ledger_id: int, extent: ExtentLocation) -> bool:
        """Is it in the map as it was? A healed run is not, nor one of a deleted ledger."""
        stored = self._index.runs_from(ledger_id, extent.first, 1)
        return stored == [(ledger_id, extent)]

    # --- moving -----------------------------------------------------------------------------------

    async def _move(self, sources: list[int]) -> bool:
        self._paused_s = 0.0
        number = self._journal.preallocator.next_file_number()
        pinned = {*sources, number}
        self._journal.pinned_files |= pinned
        try:
            ranges = await self._footer_ranges_of(sources)
            extents, is_complete = await self.relocation.runs_in(
                sources,
                EXTENTS_MAX,
                self._output_bytes_max,
                ranges=ranges,
                next_pause_s=self._next_pause_s,
            )
            if extents and not await self._copy_extents(number, extents):
                return False
            if is_complete or not all(
                self._index.live_bytes.get(source, 0) > 0 for source in sources
            ):
                async with self._checkpointer.lock:
                    # Never from what was counted while adds, deletions and moves went on (H84).
                    await self.relocation.recount_live_bytes(
                        sources, ranges=ranges, next_pause_s=self._next_pause_s
                    )
            return True
        finally:
            self._journal.pinned_files -= pinned

    async def _footer_ranges_of(self, numbers: Iterable[int]) -> list[EntryRange] | None:
        """Where the index may have runs in these files, as their footers say.

        None where that takes a look at all of it: one has no footer (it was written to when its process
        ended), or no sound one, or they name so many places that all of it is read sooner.
        """
        ranges = FooterRanges()
        ranges_max = max(RANGES_MIN, self._index.stored_totals.extent_count // PAIRS_PER_SEEK)
        for number in numbers:
            compacted = self._journal.compacted_files.get(number)
            if compacted is None:
                footer = await read_footer_payloads(
                    self._disk, file_name(number), number, self._journal.seed
                )
                payloads = None if footer is None else footer[1]
                decode_rows, step = jb.iter_extent_rows, ROWS_PER_YIELD * jb.EXTENT_ROW_BYTES
            else:
                payloads = await read_compacted_payloads(self._disk, compacted, self._journal.seed)
                decode_rows, step = cb.iter_extent_rows, ROWS_PER_YIELD * cb.EXTENT_ROW_BYTES
            if payloads is None:
                return None
            for payload in payloads:
                for offset in range(0, len(payload), step):
                    try:
                        ranges.add(
                            decode_rows(
                                payload[offset : offset + step], self._journal.file_name_of(number)
                            )
                        )
                    except CorruptData:
                        return None
                    if len(ranges) > ranges_max:
                        return None
                    await trio.sleep(self._next_pause_s())
        return ranges.merged_ranges()

    async def _copy_extents(self, number: int, extents: list[tuple[int, ExtentLocation]]) -> bool:
        """Make the cold file and point to it; False where it cannot be, or not of all of the runs."""
        layout = cb.CompactedFileLayout(number)
        moves: list[ExtentMove] = []
        for count, (ledger_id, extent) in enumerate(extents, 1):
            moves.append(ExtentMove(ledger_id, extent, layout.place(ledger_id, extent)))
            if count % MOVES_PER_YIELD == 0:
                await trio.sleep(self._next_pause_s())
        compacted = layout.file
        if self._disk.free_bytes() < compacted.length + self._journal_reserve_bytes:
            return False
        name = cb.compacted_file_name(number)
        try:
            file = await self._disk.create(
                name + cb.UNFINISHED_SUFFIX, size=compacted.length, direct=True
            )
        except DiskFull:
            return False
        writer = CompactedFileWriter(
            self._disk,
            file,
            compacted,
            bookie_id=self._space.bookie_id,
            seed=self._journal.seed,
            start_count=self._journal.start_count,
            read=self._read,
            throttle=self._throttle,
        )
        try:
            is_complete = await writer.write(moves)
            allocated_bytes = file.allocated_bytes()
        except Exception:  # else each try would leave one until the next start
            await self._disk.delete(name + cb.UNFINISHED_SUFFIX)
            raise
        finally:
            file.close()
        if not is_complete:
            await self._disk.delete(name + cb.UNFINISHED_SUFFIX)
            self._corrupt_extents |= {
                extent.file_number: (ledger, extent) for ledger, extent in writer.corrupt
            }
            assert writer.first_error is not None, "something is rotten"
            for ledger_id, extent in writer.corrupt:
                self._on_damage(writer.first_error, ledger_id, extent.first, extent.last)
            corrupt = {(ledger, extent.first) for ledger, extent in writer.corrupt}
            sound = [extent for extent in extents if (extent[0], extent[1].first) not in corrupt]
            return bool(sound) and await self._copy_extents(number, sound)
        await self._disk.rename(name + cb.UNFINISHED_SUFFIX, name)
        await self._record_file_added(compacted, allocated_bytes)
        if not await self._checkpointer.try_checkpoint():
            return False  # nothing points to the file: it is removed again
        async with self._checkpointer.lock:
            await self.relocation.point_to_copies(
                ((move.ledger, move.source, move.target) for move in moves),
                next_pause_s=self._next_pause_s,
            )
        self._stats.files_compacted += 1
        self._stats.moved_bytes += compacted.data_end - cb.DATA_OFFSET
        return True

    async def _record_file_added(self, compacted: cb.CompactedFile, taken_bytes: int) -> None:
        """Say durably that the file is there, before anything points to it (H85)."""
        durable = trio.Event()

        def added() -> None:
            # At the very commit that says so: heads and checkpoints after it list the file.
            self._journal.compacted_files[compacted.number] = compacted
            self._journal.file_bytes[compacted.number] = taken_bytes
            durable.set()

        def write(block: CommitBlock) -> None:
            block.control_records.append(jb.compacted_added_record(compacted.row))
            block.after_sync.append(added)

        self._group_commit.request_block(write)
        await durable.wait()

    async def _read(self, file_number: int, offset: int, length: int) -> bytes:
        file = await self._files.open(file_number)
        return await file.read_in_worker_unbuffered(offset, length)

    # --- giving pages back ------------------------------------------------------------------------

    async def _punch(self, numbers: list[int]) -> bool:
        """Give back the pages of cold files in which nothing is live (H87).

        What is live is asked of the map itself, and can only become less: nothing new ever points into a
        file that has its name. Head, footer and trailer stay.
        """
        chosen: dict[int, cb.CompactedFile] = {}
        for number in numbers:
            if (
                not chosen
                or sum(compacted.extent_count for compacted in chosen.values()) < EXTENTS_MAX
            ):
                chosen[number] = self._journal.compacted_files[number]
        self._journal.pinned_files |= chosen.keys()
        try:
            ranges = await self._footer_ranges_of(chosen)
            extents, is_complete = await self.relocation.runs_in(
                chosen, 4 * EXTENTS_MAX, 1 << 62, ranges=ranges
            )
            if not is_complete:  # what is not seen here may be live
                return False
            for number, compacted in chosen.items():
                live = [extent for _, extent in extents if extent.file_number == number]
                self._live_bytes_at_punch[number] = sum(extent.length for extent in live)
                try:
                    could_punch = await self._punch_gaps(compacted, live)
                except CorruptData as error:  # who reads in it is told; others go on
                    log.warning("bookie %s: %s", self._space.bookie_id, error)
                    continue
                if not could_punch:
                    self._can_punch = False
                    log.warning("this file system gives no pages back: files are rewritten")
                    break
        finally:
            self._journal.pinned_files -= chosen.keys()
        return self._can_punch

    async def _punch_gaps(
        self, compacted: cb.CompactedFile, live_extents: list[ExtentLocation]
    ) -> bool:
        file = await self._files.open(compacted.number)
        bytes_before = file.allocated_bytes()
        for start, end in gaps(compacted, live_extents):
            for offset in range(-(-start // blocks.ALIGN) * blocks.ALIGN, end, PUNCH_CALL_BYTES):
                length = min(PUNCH_CALL_BYTES, end - offset)
                if not await file.punch_hole(offset, length):
                    return False
                await self._throttle(length // PUNCH_COST)
        bytes_after = file.allocated_bytes()
        self._journal.file_bytes[compacted.number] = bytes_after
        self._stats.punched_bytes += bytes_before - bytes_after
        return True

    # --- pace -------------------------------------------------------------------------------------

    async def _run_pacing(self) -> None:
        """Let one second in ten pass without work, and learn from the commits, until cancelled."""
        try:
            while True:
                times: list[float] = []
                self._journal.commit_times = times
                if trio.current_time() >= self._round_ends_at:
                    self._work_allowed = trio.Event()
                    await trio.sleep(BASELINE_S)
                    self.pacer.record_baseline_round(times)
                    self._round_ends_at = trio.current_time() + WORK_S
                    self._work_allowed.set()
                    continue
                try:
                    await trio.sleep_until(self._round_ends_at)
                finally:
                    self.pacer.record_work_round(times)
        finally:
            self._journal.commit_times = None

    async def _throttle(self, size_bytes: int) -> None:
        """So many bytes were read or written: wait for as long as that may take.

        Nobody writes where room is short.
        """
        if self._space.is_low:
            await trio.lowlevel.checkpoint()
            return
        await self._work_allowed.wait()
        now = trio.current_time()
        self._next_io_at = max(self._next_io_at, now) + size_bytes / self.pacer.rate
        await trio.sleep_until(self._next_io_at)


def _failure_unit(number: int) -> str:
    return f"the compaction of file {number}"


def gaps(
    compacted: cb.CompactedFile, live_extents: Iterable[ExtentLocation]
) -> Iterator[tuple[int, int]]:
    """Where in a cold file no live record lies, between its head and its footer: (start, end)."""
    gap_start = cb.DATA_OFFSET
    for extent in sorted(live_extents, key=lambda extent: extent.offset):
        assert extent.offset >= cb.DATA_OFFSET, "a record in a head"
        assert extent.offset + extent.length <= compacted.data_end, "a record in a footer"
        if extent.offset > gap_start:
            yield gap_start, extent.offset
        gap_start = max(gap_start, extent.offset + extent.length)
    if gap_start < compacted.data_end:
        yield gap_start, compacted.data_end
