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
from ...runtime.primitives.background_rate import QUIET_S, WORK_S, Pacer
from ..declarations.counters import BookieHealth
from ..format import compacted_format as cb
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation
from ..format.footer_ranges import FooterRanges, Span
from ..format.journal_format import file_name
from ..replay.compacted_file_scan import read_compacted_payloads
from ..replay.journal_replay import read_footer_payloads
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock
from .checkpointer import Checkpointer
from .compacted_file_writer import CompactedFileWriter, ExtentMove
from .compaction_policy import FileFacts, output_bytes_max, worth_moving, worth_punching
from .extent_relocation import MOVES_A_TURN, PAIRS_A_SPAN, ExtentRelocation

RUNS_MAX = 100_000
"""Moved in one go: they are in memory meanwhile, some 30 MB."""
ROWS_A_TURN = 1000
"""Of a footer: some half a millisecond."""
SPANS_MIN = 1000
"""So few are looked at, however small the index is."""
SMALL_BYTES = 1024 * 1024
PUNCH_BYTES = 16 * 1024 * 1024
"""Given back in one call. It costs the device about as much as reading a hundredth of it."""
PUNCH_COST = 100
REST_S = 0.002
RESTS_S_MAX = 5.0
"""Of one cold file, in sum: to go twice through an index of ten million runs would take minutes of them."""
SHORT_LOOK_S = 1.0
"""Where room is short, between two looks."""
FIRST_LOOK_S = 2.0
"""After a start, at the latest: where it is killed again and again nothing would ever move."""
YOUNG_S = 600.0
"""A journal file of small commits is a fifth headers, padding and footer, of lone records nearly all of it.
It is not rewritten for that so soon: much is deleted young, and who writes now has CPU and device."""
YOUNG_FREE_PART = 8
"""What is left alone so is no more than this part of what is free, the youngest first: a disk that fills in
that time is to have room for cold files, and not to become read-only before."""

log = get_logger("distributedlog.bookie.gc.compactor")


class Compactor:
    """What gives the room of dead records back, in files that still have live ones."""

    def __init__(
        self,
        storage: BookieStorage,
        commits: GroupCommit,
        checkpointer: Checkpointer,
        health: BookieHealth,
        on_damage: Callable[[DistributedLogError, int, int, int], None],
    ) -> None:
        """``on_damage`` gets why entries (ledger, first, last) could not be copied."""
        self._disk = storage.disk
        self._journal = storage.journal
        self._index = storage.index
        self._files = storage.files
        self._commits = commits
        self._space = storage.space
        self._checkpointer = checkpointer
        self._options = storage.options
        self._stats = health.stats
        self._on_damage = on_damage
        self._failures = health.failures
        self.relocation = ExtentRelocation(storage.index)
        self.pacer = Pacer()
        self._paid_until = 0.0
        self._may_work = trio.Event()
        """Not set in the quiet second of a round."""
        self._round_ends = -inf
        self._begun_at = trio.current_time()
        self._rested_s = 0.0
        """Since the last cold file was begun."""
        self._rotten: dict[int, tuple[int, ExtentLocation]] = {}
        """Files with a run that cannot be copied, and one such: they stay until it is gone from there."""
        self._live_before: dict[int, int] = {}
        """Of cold files: what was live when their pages were last looked at."""
        self._punches = True
        """As far as is known the file system gives pages back."""

    async def run(self) -> None:
        """Look for what is worth it, every few seconds, until cancelled. Raises what ends the node."""
        wait_s = min(self._options.compaction_s, FIRST_LOOK_S)
        while wait_s:
            await self._until_due(wait_s)
            while await self.go_once():
                pass
            wait_s = self._options.compaction_s

    async def _until_due(self, wait_s: float) -> None:
        """The next look is due; soon where room is short, for what was deleted may have made it worth it."""
        due = trio.current_time() + wait_s
        while (left_s := due - trio.current_time()) > 0:
            await trio.sleep(min(left_s, SHORT_LOOK_S))
            if self._space.short:
                return

    async def go_once(self) -> bool:
        """One look, and one cold file at most. False: nothing is worth it, or there is no room for it."""
        files = [file for file in self._facts() if not self._failures.rests(_unit_of(file.number))]
        room = self._room_bytes
        punched = worth_punching(files, self._live_before) if self._punches else []
        moved = worth_moving(
            (file for file in files if file.number not in self._rotten and file.live_bytes <= room),
            live_bytes_max=min(room, self._output_bytes_max),
            small_bytes=min(SMALL_BYTES, self._options.first_file_bytes // 16),
            pressed=self._space.short,
        )
        if not (punched or moved):
            return False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_pace)
            done = False
            try:
                # The first file of several may be sound: then it is tried alone, after its rest.
                with self._failures.contained(_unit_of((punched or moved)[0])):
                    done = await (self._punch(punched) if punched else self._move(moved))
            except (TooBusy, DiskFull) as error:  # no descriptor, no room for the index: later
                log.warning("bookie %s: nothing is moved now: %s", self._space.bookie_id, error)
            nursery.cancel_scope.cancel()
        return done

    @property
    def _kept_bytes(self) -> int:
        """What a cold file leaves of what is free: for the journal's next files, one where it is short."""
        return (1 if self._space.short else 2) * self._options.first_file_bytes

    @property
    def _room_bytes(self) -> int:
        """For copies, beside what says where they are. A file is only begun if all that lives in it fits:
        nothing of it comes back before."""
        return max(0, self._disk.free_bytes() - self._kept_bytes) * 3 // 4

    @property
    def _output_bytes_max(self) -> int:
        live = sum(self._index.live_bytes.values())
        up_s = trio.current_time() - self._begun_at
        return output_bytes_max(live, self._options.first_file_bytes, up_s)

    def _next_rest_s(self) -> float:
        """Between two turns of the loop that go to moving: for who writes, and nobody does without room.

        None where somebody waits for the index, as a checkpoint does: what is written meanwhile stays in
        memory, of which too much makes a bookie read-only.
        """
        waiting = self._checkpointer.lock.statistics().tasks_waiting
        if waiting or self._space.read_only or self._rested_s >= RESTS_S_MAX:
            return 0.0
        self._rested_s += REST_S
        return REST_S

    def _facts(self) -> list[FileFacts]:
        """Of the files all of whose runs are in the index's map."""
        journal, live = self._journal, self._index.live_bytes
        checkpointed = self._checkpointer.checkpointed
        if not checkpointed:  # after a start on a full disk the map may have nothing yet
            return []
        found: list[FileFacts] = []
        room = 0 if self._space.short else self._disk.free_bytes() // YOUNG_FREE_PART
        for number, (_, last) in sorted(journal.sealed.items(), reverse=True):
            if last < checkpointed:
                taken = journal.file_bytes.get(number, 0)
                own = self._own_bytes(number, taken, room)
                room -= own
                found.append(FileFacts(number, taken, own, live.get(number, 0), False))
        for number, cold in journal.cold.items():
            taken = journal.file_bytes.get(number, 0)
            self._live_before.setdefault(number, cold.data_end - cb.DATA_OFFSET)
            found.append(FileFacts(number, taken, cold.own_bytes, live.get(number, 0), True))
        self._rotten = {file: run for file, run in self._rotten.items() if self._is_there(*run)}
        for number in self._live_before.keys() - journal.cold.keys():
            del self._live_before[number]
        return found

    def _own_bytes(self, number: int, taken: int, room: int) -> int:
        """Of a journal file what no entry ever took, and is left alone for now.

        ``room``: for what of all files is left alone.
        """
        left = self._journal.left.get(number)
        if left is None or trio.current_time() >= left.at + YOUNG_S:
            return 0
        padding = max(0, taken - left.record_bytes)
        return padding if padding <= room else 0

    def _is_there(self, ledger_id: int, run: ExtentLocation) -> bool:
        """Is it in the map as it was? A healed run is not, nor one of a deleted ledger."""
        found = self._index.runs_from(ledger_id, run.first, 1)
        return found == [(ledger_id, run)]

    # --- moving -----------------------------------------------------------------------------------

    async def _move(self, sources: list[int]) -> bool:
        self._rested_s = 0.0
        number = self._journal.preallocator.take_number()
        held = {*sources, number}
        self._journal.held |= held
        try:
            spans = await self._spans_of(sources)
            runs, whole = await self.relocation.runs_in(
                sources,
                RUNS_MAX,
                self._output_bytes_max,
                spans=spans,
                next_rest_s=self._next_rest_s,
            )
            if runs and not await self._copy(number, runs):
                return False
            if whole or not all(self._index.live_bytes.get(source, 0) > 0 for source in sources):
                async with self._checkpointer.lock:
                    # Never from what was counted while adds, deletions and moves went on (H84).
                    await self.relocation.count_again(
                        sources, spans=spans, next_rest_s=self._next_rest_s
                    )
            return True
        finally:
            self._journal.held -= held

    async def _spans_of(self, numbers: Iterable[int]) -> list[Span] | None:
        """Where the index may have runs in these files, as their footers say.

        None where that takes a look at all of it: one has no footer (it was written to when its process
        ended), or no sound one, or they name so many places that all of it is read sooner.
        """
        spans = FooterRanges()
        spans_max = max(SPANS_MIN, self._index.in_map.runs // PAIRS_A_SPAN)
        for number in numbers:
            cold = self._journal.cold.get(number)
            if cold is None:
                found = await read_footer_payloads(
                    self._disk, file_name(number), number, self._journal.seed
                )
                payloads = None if found is None else found[1]
                rows_of, step = jb.run_rows, ROWS_A_TURN * jb.RUN_BYTES
            else:
                payloads = await read_compacted_payloads(self._disk, cold, self._journal.seed)
                rows_of, step = cb.run_rows, ROWS_A_TURN * cb.RUN_BYTES
            if payloads is None:
                return None
            for payload in payloads:
                for at in range(0, len(payload), step):
                    try:
                        spans.add(rows_of(payload[at : at + step], self._journal.name_of(number)))
                    except CorruptData:
                        return None
                    if len(spans) > spans_max:
                        return None
                    await trio.sleep(self._next_rest_s())
        return spans.sorted()

    async def _copy(self, number: int, runs: list[tuple[int, ExtentLocation]]) -> bool:
        """Make the cold file and point to it; False where it cannot be, or not of all of the runs."""
        layout = cb.Layout(number)
        moves: list[ExtentMove] = []
        for at, (ledger_id, run) in enumerate(runs, 1):
            moves.append(ExtentMove(ledger_id, run, layout.place(ledger_id, run)))
            if at % MOVES_A_TURN == 0:
                await trio.sleep(self._next_rest_s())
        cold = layout.file
        if self._disk.free_bytes() < cold.length + self._kept_bytes:
            return False
        name = cb.cold_name(number)
        try:
            file = await self._disk.create(name + cb.UNFINISHED, size=cold.length, direct=True)
        except DiskFull:
            return False
        writer = CompactedFileWriter(
            self._disk,
            file,
            cold,
            bookie_id=self._space.bookie_id,
            seed=self._journal.seed,
            start_count=self._journal.start_count,
            read=self._read,
            spend=self._spend,
        )
        try:
            whole = await writer.write(moves)
            taken = file.allocated_bytes()
        except Exception:  # else each try would leave one until the next start
            await self._disk.delete(name + cb.UNFINISHED)
            raise
        finally:
            file.close()
        if not whole:
            await self._disk.delete(name + cb.UNFINISHED)
            self._rotten |= {run.file_number: (ledger, run) for ledger, run in writer.rotten}
            assert writer.damage is not None, "something is rotten"
            for ledger_id, run in writer.rotten:
                self._on_damage(writer.damage, ledger_id, run.first, run.last)
            rotten = {(ledger, run.first) for ledger, run in writer.rotten}
            sound = [run for run in runs if (run[0], run[1].first) not in rotten]
            return bool(sound) and await self._copy(number, sound)
        await self._disk.rename(name + cb.UNFINISHED, name)
        await self._announce(cold, taken)
        if not await self._checkpointer.checkpoint_if_room():
            return False  # nothing points to the file: it is removed again
        async with self._checkpointer.lock:
            await self.relocation.move(
                ((move.ledger, move.old, move.new) for move in moves), next_rest_s=self._next_rest_s
            )
        self._stats.files_compacted += 1
        self._stats.moved_bytes += cold.data_end - cb.DATA_OFFSET
        return True

    async def _announce(self, cold: cb.CompactedFile, taken_bytes: int) -> None:
        """Say durably that the file is there, before anything points to it (H85)."""
        durable = trio.Event()

        def added() -> None:
            # At the very commit that says so: heads and checkpoints after it list the file.
            self._journal.cold[cold.number] = cold
            self._journal.file_bytes[cold.number] = taken_bytes
            durable.set()

        def write(block: CommitBlock) -> None:
            block.controls.append(jb.cold_added_record(cold.row))
            block.after_sync.append(added)

        self._commits.with_block(write)
        await durable.wait()

    async def _read(self, file_number: int, offset: int, length: int) -> bytes:
        file = await self._files.open(file_number)
        return await file.read_aside(offset, length)

    # --- giving pages back ------------------------------------------------------------------------

    async def _punch(self, numbers: list[int]) -> bool:
        """Give back the pages of cold files in which nothing is live (H87).

        What is live is asked of the map itself, and can only become less: nothing new ever points into a
        file that has its name. Head, footer and trailer stay.
        """
        chosen: dict[int, cb.CompactedFile] = {}
        for number in numbers:
            if not chosen or sum(cold.runs for cold in chosen.values()) < RUNS_MAX:
                chosen[number] = self._journal.cold[number]
        self._journal.held |= chosen.keys()
        try:
            spans = await self._spans_of(chosen)
            runs, whole = await self.relocation.runs_in(chosen, 4 * RUNS_MAX, 1 << 62, spans=spans)
            if not whole:  # what is not seen here may be live
                return False
            for number, cold in chosen.items():
                live = [run for _, run in runs if run.file_number == number]
                self._live_before[number] = sum(run.length for run in live)
                try:
                    punches = await self._punch_one(cold, live)
                except CorruptData as error:  # who reads in it is told; others go on
                    log.warning("bookie %s: %s", self._space.bookie_id, error)
                    continue
                if not punches:
                    self._punches = False
                    log.warning("this file system gives no pages back: files are rewritten")
                    break
        finally:
            self._journal.held -= chosen.keys()
        return self._punches

    async def _punch_one(self, cold: cb.CompactedFile, live: list[ExtentLocation]) -> bool:
        file = await self._files.open(cold.number)
        before = file.allocated_bytes()
        for start, end in gaps(cold, live):
            for at in range(-(-start // blocks.ALIGN) * blocks.ALIGN, end, PUNCH_BYTES):
                length = min(PUNCH_BYTES, end - at)
                if not await file.punch(at, length):
                    return False
                await self._spend(length // PUNCH_COST)
        taken = file.allocated_bytes()
        self._journal.file_bytes[cold.number] = taken
        self._stats.punched_bytes += before - taken
        return True

    # --- pace -------------------------------------------------------------------------------------

    async def _keep_pace(self) -> None:
        """Let one second in ten pass without work, and learn from the commits, until cancelled."""
        try:
            while True:
                times: list[float] = []
                self._journal.commit_times = times
                if trio.current_time() >= self._round_ends:
                    self._may_work = trio.Event()
                    await trio.sleep(QUIET_S)
                    self.pacer.on_quiet(times)
                    self._round_ends = trio.current_time() + WORK_S
                    self._may_work.set()
                    continue
                try:
                    await trio.sleep_until(self._round_ends)
                finally:
                    self.pacer.on_work(times)
        finally:
            self._journal.commit_times = None

    async def _spend(self, size: int) -> None:
        """So many bytes were read or written: wait for as long as that may take.

        Nobody writes where room is short.
        """
        if self._space.short:
            await trio.lowlevel.checkpoint()
            return
        await self._may_work.wait()
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now) + size / self.pacer.rate
        await trio.sleep_until(self._paid_until)


def _unit_of(number: int) -> str:
    return f"the compaction of file {number}"


def gaps(cold: cb.CompactedFile, live: Iterable[ExtentLocation]) -> Iterator[tuple[int, int]]:
    """Where in a cold file no live record lies, between its head and its footer: (start, end)."""
    at = cb.DATA_OFFSET
    for run in sorted(live, key=lambda run: run.offset):
        assert run.offset >= cb.DATA_OFFSET, "a record in a head"
        assert run.offset + run.length <= cold.data_end, "a record in a footer"
        if run.offset > at:
            yield at, run.offset
        at = max(at, run.offset + run.length)
    if at < cold.data_end:
        yield at, cold.data_end
