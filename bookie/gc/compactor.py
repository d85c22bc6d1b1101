"""Move live records out of mostly dead files into compacted files, which are sorted by ledger.

A file can be removed only if it has no live record, and it contains records of all ledgers that were written
at the same time. So its remaining live records are copied first:

1. The index lists the live extents of the file. Each record is read, its own digest is verified (H90), and it
   is written to ``cold-N.tmp``. This file is synced and then renamed (`compacted_file_writer.py`).
2. A durable control record lists the new file, and so does a checkpoint of the index (H85, H86).
3. One transaction of the index points to the copies. It skips extents that have changed since (H84).
4. The live bytes of the old file are counted again. If none are left, it is removed like every dead file.

Between any two steps, each record is at the location in the index, or at two locations with equal bytes. A
start removes unfinished files. A listed file without references from the index is dead, like any other.
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
"""The extents that are moved at once. They are kept in memory for that time, about 30 MB."""
ROWS_PER_YIELD = 1000
"""The footer rows that are decoded in one event-loop iteration: about half a millisecond."""
RANGES_MIN = 1000
"""At least this many ranges are queried, even if the index is small."""
SMALL_BYTES = 1024 * 1024
PUNCH_CALL_BYTES = 16 * 1024 * 1024
"""The bytes that one call frees. This costs the device about as much as reading a hundredth of them."""
PUNCH_COST = 100
"""Freeing this many bytes counts as reading one byte."""
PAUSE_S = 0.002
PAUSES_S_MAX = 5.0
"""The sum of all pauses for one compacted file. Two passes over an index of ten million extents would
otherwise pause for minutes."""
SPACE_CHECK_S = 1.0
"""The interval of checks for low disk space while the next compaction is not due."""
FIRST_COMPACTION_S = 2.0
"""The maximum delay of the first compaction after a start. With a longer one, a bookie that is killed again
and again would never compact."""
YOUNG_FILE_S = 600.0
"""The padding of a younger journal file is no reason to compact it. With small commits, a fifth of the file
is headers, padding and footer, with single-record entries nearly all of it. Many young records are deleted
soon, and the present writers need the CPU and the device."""
YOUNG_FILE_SPACE_DIVISOR = 8
"""The padding in young files is tolerated up to this part of the free space, newest files first. Otherwise a
disk that fills within `YOUNG_FILE_S` would lack space for compacted files, and the bookie would become
read-only."""

log = get_logger("distributedlog.bookie.gc.compactor")


class Compactor:
    """Free the space of dead records in files that still have live records."""

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        checkpointer: Checkpointer,
        health: BookieHealth,
        on_damage: Callable[[DistributedLogError, int, int, int], None],
    ) -> None:
        """Create the compactor of one bookie.

        ``on_damage`` receives the error and the entries (ledger, first, last) that could not be copied.
        """
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
        """Not set during the second of each round in which commits are measured without compaction."""
        self._round_ends_at = -inf
        self._started_at = trio.current_time()
        self._paused_s = 0.0
        """Since the current compacted file was started."""
        self._corrupt_extents: dict[int, tuple[int, ExtentLocation]] = {}
        """Files with an extent that cannot be copied, and one such extent. They are kept until the index no
        longer refers to it."""
        self._live_bytes_at_punch: dict[int, int] = {}
        """The live bytes of each compacted file when it was last checked for pages to free."""
        self._can_punch = True
        """False once the file system has failed to free pages."""

    async def run(self) -> None:
        """Compact files every few seconds until cancelled. Raises errors that end the node."""
        wait_s = min(self._options.compaction_s, FIRST_COMPACTION_S)
        while wait_s:
            await self._wait_until_due(wait_s)
            while await self.compact_once():
                pass
            wait_s = self._options.compaction_s

    async def _wait_until_due(self, wait_s: float) -> None:
        """Wait until the next check is due, or until disk space is low.

        Deletions may then have made files worth moving.
        """
        due = trio.current_time() + wait_s
        while (remaining_s := due - trio.current_time()) > 0:
            await trio.sleep(min(remaining_s, SPACE_CHECK_S))
            if self._space.is_low:
                return

    async def compact_once(self) -> bool:
        """Write at most one compacted file, or free pages once; return whether to continue.

        Returns:
            False if no file is worth compacting, or if there is not enough disk space.
        """
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
                # A failure is recorded for the first file, which may not have caused it. That file is tried
                # again after its retry delay.
                with self._failures.attempt(_failure_unit((punchable or files_to_move)[0])):
                    done = await (
                        self._punch(punchable) if punchable else self._move(files_to_move)
                    )
            except (
                TooBusy,
                DiskFull,
            ) as error:  # no descriptor, or no space for the index: retry later
                log.warning("bookie %s: compaction is postponed (%s)", self._space.bookie_id, error)
            nursery.cancel_scope.cancel()
        return done

    @property
    def _journal_reserve_bytes(self) -> int:
        """Free space that a compacted file must leave: two journal files, or one if space is low."""
        return (1 if self._space.is_low else 2) * self._options.first_file_bytes

    @property
    def _available_bytes(self) -> int:
        """Space for copies, without the space for the index's references to them.

        A file is moved only if all of its live records fit, because no space is freed before.
        """
        return max(0, self._disk.free_bytes() - self._journal_reserve_bytes) * 3 // 4

    @property
    def _output_bytes_max(self) -> int:
        live = sum(self._index.live_bytes.values())
        uptime_s = trio.current_time() - self._started_at
        return output_bytes_max(live, self._options.first_file_bytes, uptime_s)

    def _next_pause_s(self) -> float:
        """Return the pause between two event-loop iterations of compaction work, which writers can use.

        There is no pause if the bookie is read-only, because it then has no writers. There is none either if
        a task such as a checkpoint waits for the index, because a delayed checkpoint fills the memory. Too
        many extents in memory make a bookie read-only.
        """
        waiting = self._checkpointer.lock.statistics().tasks_waiting
        if waiting or self._space.read_only or self._paused_s >= PAUSES_S_MAX:
            return 0.0
        self._paused_s += PAUSE_S
        return PAUSE_S

    def _file_facts(self) -> list[FileFacts]:
        """Return the facts of the files whose extents are all in the index's map."""
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
        """Return the bytes of a young journal file that are not entries, or 0 if they exceed ``bytes_max``.

        These bytes are not a reason to compact the file (`YOUNG_FILE_S`). ``bytes_max`` is the remaining
        allowance for the padding of all young files. A file that was sealed before this start is not young.
        """
        sealed = self._journal.sealed_file_info.get(number)
        if sealed is None or trio.current_time() >= sealed.sealed_at + YOUNG_FILE_S:
            return 0
        padding = max(0, file_bytes - sealed.record_bytes)
        return padding if padding <= bytes_max else 0

    def _is_still_indexed(self, ledger_id: int, extent: ExtentLocation) -> bool:
        """Whether the map still has this extent, which a repair or a deletion of the ledger removes."""
        stored = self._index.extents_from(ledger_id, extent.first, 1)
        return stored == [(ledger_id, extent)]

    # --- moving -----------------------------------------------------------------------------------

    async def _move(self, sources: list[int]) -> bool:
        self._paused_s = 0.0
        number = self._journal.preallocator.next_file_number()
        pinned = {*sources, number}
        self._journal.pinned_files |= pinned
        try:
            ranges = await self._footer_ranges_of(sources)
            extents, is_complete = await self.relocation.extents_in(
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
                    # Counts that were updated during adds, deletions and moves are not trusted (H84).
                    await self.relocation.recount_live_bytes(
                        sources, ranges=ranges, next_pause_s=self._next_pause_s
                    )
            return True
        finally:
            self._journal.pinned_files -= pinned

    async def _footer_ranges_of(self, numbers: Iterable[int]) -> list[EntryRange] | None:
        """Return the ranges in which the index may have extents in these files, from their footers.

        Returns:
            None if the whole index must be read: a footer is missing or corrupt, or the footers list so many
            ranges that reading the whole index is faster. A file that was current when its process ended has
            no footer.
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
        """Write the compacted file and point the index to it; return False if nothing was moved.

        If some extents are corrupt, the others are written again without them.
        """
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
        except Exception:  # otherwise each attempt would leave a file until the next start
            await self._disk.delete(name + cb.UNFINISHED_SUFFIX)
            raise
        finally:
            file.close()
        if not is_complete:
            await self._disk.delete(name + cb.UNFINISHED_SUFFIX)
            self._corrupt_extents |= {
                extent.file_number: (ledger, extent) for ledger, extent in writer.corrupt
            }
            assert writer.first_error is not None, "an extent is corrupt"
            for ledger_id, extent in writer.corrupt:
                self._on_damage(writer.first_error, ledger_id, extent.first, extent.last)
            corrupt = {(ledger, extent.first) for ledger, extent in writer.corrupt}
            sound = [extent for extent in extents if (extent[0], extent[1].first) not in corrupt]
            return bool(sound) and await self._copy_extents(number, sound)
        await self._disk.rename(name + cb.UNFINISHED_SUFFIX, name)
        await self._record_file_added(compacted, allocated_bytes)
        if not await self._checkpointer.try_checkpoint():
            return False  # the index does not refer to the file, so it is removed again
        async with self._checkpointer.lock:
            await self.relocation.point_to_copies(
                ((move.ledger, move.source, move.target) for move in moves),
                next_pause_s=self._next_pause_s,
            )
        self._stats.files_compacted += 1
        self._stats.moved_bytes += compacted.data_end - cb.DATA_OFFSET
        return True

    async def _record_file_added(self, compacted: cb.CompactedFile, taken_bytes: int) -> None:
        """Record the file durably, before the index refers to it (H85)."""
        durable = trio.Event()

        def added() -> None:
            # In the same commit as the record, so that later heads and checkpoints list the file.
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

    # --- freeing pages ----------------------------------------------------------------------------

    async def _punch(self, numbers: list[int]) -> bool:
        """Free the pages without a live record in compacted files (H87).

        The live extents are read from the map. They can only become fewer, because no new reference into a
        complete compacted file is made. Head, footer and trailer are kept.
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
            extents, is_complete = await self.relocation.extents_in(
                chosen, 4 * EXTENTS_MAX, 1 << 62, ranges=ranges
            )
            if not is_complete:  # an extent that was not returned may be live
                return False
            for number, compacted in chosen.items():
                live = [extent for _, extent in extents if extent.file_number == number]
                self._live_bytes_at_punch[number] = sum(extent.length for extent in live)
                try:
                    could_punch = await self._punch_gaps(compacted, live)
                except (
                    CorruptData
                ) as error:  # a read of this file reports it; continue with the others
                    log.warning("bookie %s: %s", self._space.bookie_id, error)
                    continue
                if not could_punch:
                    self._can_punch = False
                    log.warning(
                        "this file system cannot free pages of a file, so files are rewritten"
                    )
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
        """Measure commit times in rounds: one second without compaction, then nine with it.

        Runs until cancelled.
        """
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
        """Wait for the time that reading or writing this many bytes may take at the present rate.

        If disk space is low, there is no wait, because the bookie then has no normal writers.
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
    """Yield the ranges (start, end) without a live record between head and footer of a compacted file."""
    gap_start = cb.DATA_OFFSET
    for extent in sorted(live_extents, key=lambda extent: extent.offset):
        assert extent.offset >= cb.DATA_OFFSET, "a record in a head"
        assert extent.offset + extent.length <= compacted.data_end, "a record in a footer"
        if extent.offset > gap_start:
            yield gap_start, extent.offset
        gap_start = max(gap_start, extent.offset + extent.length)
    if gap_start < compacted.data_end:
        yield gap_start, compacted.data_end
