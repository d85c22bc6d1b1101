"""A bookie's start: believe what can be believed, write again what is not known synced, then serve.

1. The index's map says how far it reaches and what it holds in sum; what the replay touches is read from
   it. One that is damaged is dropped and built again (H7).
2. The journal after the index's position is replayed and judged (`replay.py`).
3. A new file begins; what counts and is not known synced is copied into it; all is synced.
4. The index is checkpointed. What lost blocks may have held is fenced and in limbo by then.

That nothing was synced after what is found must be shown, it is never taken from where the blocks end:
the file of the index's position is whole up to there, what is numbered has no gap, and the journal
reaches as far as the cluster was told that it was durable.
"""

from collections.abc import Iterable

from ..runtime import blocks
from ..runtime.atomic_file import read_file, replace_file
from ..runtime.errors import (
    CorruptData,
    DiskFailed,
    DiskFull,
    ForeignData,
    LedgerStateUnknown,
)
from ..runtime.host import Disk, Host, OrderedMap
from ..runtime.log_lines import get_logger
from ..runtime.work_failures import WorkFailures
from . import entry as entries
from . import journal_blocks as jb
from .cold_blocks import UNFINISHED, ColdFile, cold_name, cold_number
from .cold_files import find_records, read_cold_footer, what_is_wrong
from .events import INDEX_REBUILT, LOSS
from .gather import GatherRing
from .index import MAP_NAME, Index
from .index_records import IndexDamaged, Saved
from .journal import PREFIX, Journal, NewFile, file_name, file_number
from .ledgers import LIMBO_ALL, Ledger, Ledgers, Note
from .options import BookieOptions
from .replay import (
    Decision,
    Replayed,
    ReplayedJournal,
    decide,
    is_within,
    leave_tails,
    open_file,
    read_footer,
    read_one,
    read_records,
    scan_file,
    skipped_ranges,
)
from .reserve import Reserve
from .seed import SEED_NAME, Seed, seed_of
from .space import Facts, Space
from .state_base import is_there, read_base
from .store import Store

log = get_logger("distributedlog.bookie.opening")


RANGES_NAMED = 3
"""Of what is missing; the rest is counted."""
LEAP_MAX = 1 << 40
"""Blocks that may be gone at the end: no journal comes so far. What says so is not believed its number."""
SHORT_FILE_BYTES = 64 * 1024
"""The shortest journal file that a start on a full disk makes do with."""

LOST_PREFIX = "lost-"
"""In place of ``journal-``, before ``cold-``: set aside by a start that missed data, to be looked at."""


async def open_store(
    host: Host,
    options: BookieOptions | None = None,
    *,
    bookie_id: str = "",
    witnessed: int = 0,
    doubt: str = "",
    failures: WorkFailures | None = None,
) -> Store:
    """Replay what is on ``host.disks["journal"]`` and ``["index"]``, and be ready to serve.

    ``witnessed``: somebody else knows that the block of this sequence was synced here (`durable_to`).
    ``doubt``: why nobody can say, in words; then nothing is denied.
    ``failures``: of the background work of its node.
    All that was acknowledged is there, or what may have lost it is in limbo. Raises `ForeignData` for
    another bookie's data, `UnsupportedFormat`, `DiskFailed`, `CorruptData`.
    """
    options = options or BookieOptions()
    disk = host.disks["journal"]
    names = _journal_names(disk)
    cold_names = {number: name for name in disk.list() if (number := cold_number(name)) is not None}
    data, found = await _read_seed(disk, bookie_id)
    map_disk = host.disks["index"]
    ledgers, index, saved = await _open_index(map_disk, options, found, bookie_id)
    try:
        seed = _seed_to_take(host, data, found, saved, bookie_id, bool(names or cold_names))
        if data != seed.encode():
            await replace_file(disk, SEED_NAME, seed.encode())
        opening = _Opening(disk, names, cold_names, ledgers, index, seed, witnessed, doubt)
        try:
            replay = await opening.believe(saved)
            base, states = await opening.states_of_head(saved)
        except (IndexDamaged, LedgerStateUnknown) as error:
            # It was met where the map was asked for what the replay touches: as if it had been met at once.
            if saved is None:
                raise
            log.error("bookie %s: the index is built again: %s", seed.bookie_id, error)
            ledgers, index = await _new_index(map_disk, options, index)
            saved = None
            opening = _Opening(disk, names, cold_names, ledgers, index, seed, witnessed, doubt)
            replay = await opening.believe(None)
            base, states = await opening.states_of_head(None)
        ring = GatherRing(
            disk.aligned_buffer,
            buffers=options.gather_buffers,
            bytes_each=options.gather_bytes,
            block_max=options.block_bytes_max,
        )
        reserves = {
            role: Reserve(host.disks[role], role, options.first_file_bytes)
            for role in ("journal", "index")
        }
        # Nobody is refused for room that only waits: not for entries, and not for the journal's next file.
        disk.keep_free(options.free_bytes_min + 2 * options.journal_file_bytes)
        space = Space(seed.bookie_id, lambda: _measure(host, options, index, reserves))
        journal = Journal(
            disk,
            ring,
            options,
            bookie_id=seed.bookie_id,
            seed=seed.seed,
            ledgers=ledgers,
            space=space,
            reserve=reserves["journal"],
        )
        store = Store(
            disk,
            journal,
            ring,
            index,
            ledgers,
            space,
            reserves,
            options,
            lost="; ".join(opening.losses),
            failures=failures or WorkFailures(),
        )
        store.stats.corrupt_ranges = len(replay.decision.corrupt)
        worthless = opening.blank | opening.removed if opening.losses else set(names)
        first = _FirstFile(disk, names, cold_names, store, journal, ring, index)
        await first.begin(
            replay,
            saved,
            opening.blank,
            worthless,
            opening.cold,
            opening.removed,
            base,
            states,
            lost=bool(opening.losses),
        )
        if not seed.started:  # from now on adds may be acknowledged
            started = Seed(seed.bookie_id, seed.seed, True)
            await replace_file(disk, SEED_NAME, started.encode())
        await store.upkeep.make_reserves()
        return store
    except BaseException as error:
        if ledgers.damage is not None or isinstance(error, IndexDamaged):
            await index.condemn()
        index.close()
        raise


def _measure(
    host: Host, options: BookieOptions, index: Index, reserves: dict[str, Reserve]
) -> Facts:
    """What is to be looked at of a bookie's room."""
    return Facts(
        journal_free_bytes=host.disks["journal"].free_bytes(),
        index_free_bytes=host.disks["index"].free_bytes(),
        free_bytes_min=options.free_bytes_min,
        reserves_missing=tuple(role for role, reserve in reserves.items() if not reserve.held),
        runs_in_memory=index.runs_in_memory + index.runs_frozen,
        checkpoint_runs=options.checkpoint_runs,
    )


def _journal_names(disk: Disk) -> dict[int, str]:
    """The journal files that are there, by number."""
    names: dict[int, str] = {}
    for name in disk.list():
        number = file_number(name)
        if number is not None:
            names[number] = name
        elif name.startswith(PREFIX):
            log.warning("%s is no journal file of a bookie's: it is left alone", name)
    return names


async def _read_seed(disk: Disk, bookie_id: str) -> tuple[bytes | None, Seed | None]:
    """The seed's file and what it says, None where it is missing or damaged. Raises `ForeignData`."""
    try:
        data = await read_file(disk, SEED_NAME)
    except (CorruptData, DiskFailed) as error:  # as a damaged one: the index may know it
        log.error("bookie %s: %s cannot be read: %s", bookie_id, SEED_NAME, error)
        data = b""
    found = seed_of(data) if data is not None else None
    if found is not None:
        _check_owner(found, bookie_id)
    return data, found


async def _open_index(
    disk: Disk, options: BookieOptions, seed: Seed | None, bookie_id: str
) -> tuple[Ledgers, Index, Saved | None]:
    index: Index | None = None
    try:
        ledgers, index = _index_of(await disk.open_map(MAP_NAME), options)
        saved = await index.load()
        if saved is not None and seed is not None and saved.seed != seed.seed:
            # Its position may fit all the same: bookies that store the same grow alike (H80).
            raise CorruptData(f"it belongs to another journal, of bookie {saved.bookie_id}")
        return ledgers, index, saved
    except (CorruptData, LedgerStateUnknown) as error:
        why = str(error)
        text = "bookie %s: the index is built again: %s"
        INDEX_REBUILT.say(log, text, bookie_id, why, bookie=bookie_id, why=why)
        return *await _new_index(disk, options, index), None


async def _new_index(
    disk: Disk, options: BookieOptions, damaged: Index | None
) -> tuple[Ledgers, Index]:
    """An empty one in its place."""
    if damaged is not None:
        damaged.close()
    await disk.delete_map(MAP_NAME)
    return _index_of(await disk.open_map(MAP_NAME), options)


def _index_of(stored: OrderedMap, options: BookieOptions) -> tuple[Ledgers, Index]:
    ledgers = Ledgers(stored, options.ledgers_in_memory_max)
    return ledgers, Index(stored, ledgers)


def _seed_to_take(
    host: Host,
    data: bytes | None,
    found: Seed | None,
    saved: Saved | None,
    bookie_id: str,
    any_file: bool,
) -> Seed:
    """The seed of block digests: made once, kept in a file of its own and in the index."""
    if found is None and saved is not None:
        found = Seed(saved.bookie_id, saved.seed, True)
    elif found is None and (data is not None or any_file):
        raise CorruptData(
            f"{SEED_NAME} is missing or damaged, and so is the index: nothing in the journal can be"
            " verified. Start it with empty directories, as a new bookie, then decommission the old id"
            ' (docs/operations.md, "A bookie does not start any more")'
        )
    elif found is None:
        found = Seed(bookie_id, host.random.getrandbits(63), False)
    _check_owner(found, bookie_id)
    return found


def _check_owner(found: Seed, bookie_id: str) -> None:
    if bookie_id and found.bookie_id != bookie_id:
        raise ForeignData(f"the journal of bookie {found.bookie_id}, this is {bookie_id}")


class _Opening:
    """What a start believes of the journal that it finds."""

    def __init__(
        self,
        disk: Disk,
        names: dict[int, str],
        cold_names: dict[int, str],
        ledgers: Ledgers,
        index: Index,
        seed: Seed,
        witnessed: int,
        doubt: str,
    ) -> None:
        self.disk = disk
        self.names = names
        """The journal files that were found, by number."""
        self.cold_names = cold_names
        """The same of cold files, those included that nothing lists."""
        self.cold: dict[int, ColdFile] = {}
        """The cold files that are listed, and there."""
        self.ledgers = ledgers
        self.index = index
        self.bookie_id, self.seed = seed.bookie_id, seed.seed
        self.started = seed.started
        """This bookie has served: an empty journal is a loss, not a first start that was cut short."""
        self.witnessed = witnessed
        """A block of this sequence was synced, others say; 0: they know of none."""
        self.removed: set[int] = set()
        self.losses: list[str] = [doubt] if doubt else []
        """Why it cannot be shown that nothing is gone that was synced."""
        self.unreadable: set[int] = set()
        """Files that could not be read everywhere."""
        self.missing: set[int] = set()
        """Files that should be there, and are not."""
        self.blank: set[int] = set()
        """Files of zeros: made ahead and never used, or what is left of a lost one."""
        self.survivors: set[tuple[int, int]] = set()
        """Ledgers and entries that are copied before this bookie serves."""
        self.ended_below = 0
        """All states are known: what lies in old files of other ledgers below this is dead, not lost."""

    async def believe(self, saved: Saved | None) -> ReplayedJournal:
        """Replay the journal; all is in limbo afterwards if something that was synced may be gone."""
        replay = await (self._rebuild() if saved is None else self._replay(saved))
        self._ask_what_is_missing(replay.decision)
        if self.losses:
            await self._forget_gone_files(replay)
            await self._into_limbo()
        return replay

    async def states_of_head(self, saved: Saved | None) -> tuple[jb.Base | None, list[bytes]]:
        """The base that the new file's head may name, and the states that it lacks: what was replayed.

        Without one (a loss has changed all) the head repeats all states. Raises `LedgerStateUnknown`.
        """
        base = None if saved is None or self.ledgers.limbo_below == LIMBO_ALL else saved.base
        if base is None or not await is_there(self.disk, base):
            return None, await self.ledgers.state_records()
        dirty = self.index.dirty_states
        return base, [ledger.state_record() for ledger in dirty if ledger.stored]

    async def _scan(self, number: int, start: int = 0) -> list[Replayed]:
        def on_unreadable(error: CorruptData) -> None:
            # Not a torn tail, whatever comes after it: what cannot be read may have been synced.
            self._lose(f"{self.names[number]} cannot be read ({error})", number)

        scanned = await scan_file(
            self.disk,
            self.names[number],
            number,
            self.seed,
            self.bookie_id,
            start,
            on_unreadable=on_unreadable,
        )
        if scanned.blank:
            self.blank.add(number)
        return scanned.blocks

    def _lose(self, reason: str, number: int = 0) -> None:
        """Something that was synced may be gone. Of each file the first reason is enough."""
        if number and number in self.unreadable:
            return
        if number:
            self.unreadable.add(number)
        if reason not in self.losses:
            LOSS.say(
                log, "bookie %s: %s", self.bookie_id, reason, bookie=self.bookie_id, why=reason
            )
            self.losses.append(reason)

    def _believed(self, found: list[Replayed], from_sequence: int) -> int:
        """What others say was synced, unless it cannot be: sequences go on after what is believed."""
        end = max((block.sequence for block in found), default=from_sequence)
        if self.witnessed > end + LEAP_MAX:
            self._lose(
                f"the cluster says that block {self.witnessed} was synced here, and the journal goes to"
                f" {end}: that cannot be"
            )
            self.witnessed = 0
        return self.witnessed

    def _ask_what_is_missing(self, decision: Decision) -> None:
        if not decision.corrupt:
            return
        missing = ", ".join(
            f"{first} to {last}" if last > first else f"{first}"
            for first, last in decision.corrupt[:RANGES_NAMED]
        )
        reason = f"blocks of the journal that were synced are gone: {missing}"
        if len(decision.corrupt) > RANGES_NAMED:
            reason += f" and {len(decision.corrupt) - RANGES_NAMED} ranges more"
        if decision.corrupt[-1][1] == decision.durable_to == self.witnessed:
            reason += (
                f"; it had told the cluster that block {self.witnessed} was synced: this is an older"
                " copy of its directory, or its newest journal files were lost"
            )
        self._lose(reason)

    async def _replay(self, saved: Saved) -> ReplayedJournal:
        """The blocks after the index's position."""
        self.ledgers.limbo_below, self.ledgers.gone_below = saved.limbo_below, saved.gone_below
        found: list[Replayed] = []
        for number in sorted(self.names):
            if number >= saved.file_number:
                start = saved.offset if number == saved.file_number else 0
                found += await self._scan(number, start)
        decision = decide(
            found, from_sequence=saved.sequence, witnessed=self._believed(found, saved.sequence)
        )
        self._list_cold(saved.cold)
        sealed = {number: (first, last) for number, first, last in saved.files}
        replay = ReplayedJournal(
            decision, sealed, saved.file_number, saved.offset, saved.start_count
        )
        replay.note_files(found, decision, saved)
        self._take_states((*decision.durable, *decision.survivors))
        self._know_survivors(decision)
        for block in decision.durable:
            for run in block.runs:
                await self._add_run(run, block.file_number)
        self._check_index()
        await self._prove_position(saved)
        self._miss_files(replay)
        await self._miss_cold()
        await self._miss_older(saved)
        return replay

    def _check_index(self) -> None:
        """A file goes when nothing in it is live: what lived was moved, and no commit says where to."""
        for number, length in sorted(self.index.in_map.live_bytes.items()):
            if length and number in self.removed:
                raise IndexDamaged(
                    f"it has {length} bytes of records in file {number}, which was removed: an older copy"
                )

    async def _prove_position(self, saved: Saved) -> None:
        """The index knows a file, its first block and the last one before the position: are they there?"""
        number = saved.file_number
        if number in self.removed:
            return
        where = f"journal file {number}, which the index knows up to {saved.offset},"
        if number not in self.names:
            self.missing.add(number)
            self._lose(f"{where} is gone")
            return
        head = await self._read_one(number, 0)
        if head is None or head.head is None or head.sequence != saved.first_sequence:
            self._lose(f"{where} does not begin as it did")
        elif saved.last_offset >= 0:
            last = await self._read_one(number, saved.last_offset)
            if last is None or last.sequence != saved.sequence - 1:
                self._lose(f"{where} is not whole there: it was cut, damaged, or is an older copy")

    async def _read_one(self, number: int, offset: int) -> Replayed | None:
        return await read_one(
            self.disk, self.names[number], number, self.seed, self.bookie_id, offset
        )

    async def _rebuild(self) -> ReplayedJournal:
        """No index: runs from footers, states from the newest file head that is whole (H7)."""
        if not self.names:
            if self.started:
                self._lose("there is no journal file, and no index")
            decision = decide([], from_sequence=1, witnessed=self._believed([], 1))
            return ReplayedJournal(decision, {}, 0, 0, 0)
        scanned: dict[int, list[Replayed]] = {}
        base: int | None = None
        for number in sorted(self.names, reverse=True):
            scanned[number] = await self._scan(number)
            if _whole_head(scanned[number]):
                base = number if base is None else base
                if _all_before_is_durable(scanned, number):
                    base = number
                    break
        found = [block for number in sorted(scanned) for block in scanned[number]]
        if base is None and (self.started or found):
            self._lose("no journal file has a whole head, and there is no index")
        head_block = scanned[base][0] if base is not None else None
        first = head_block.sequence if head_block else min((b.sequence for b in found), default=1)
        head = head_block.head if head_block else None
        if head is not None and head.base is not None:
            first = min(first, await self._scan_back_to(head.base.position, head, scanned))
            found = [block for number in sorted(scanned) for block in scanned[number]]
            await self._take_base(head.base)  # blocks before its position say the same again
        decision = decide(found, from_sequence=first, witnessed=self._believed(found, first))
        sealed = {number: (a, b) for number, a, b in head.files} if head else {}
        replay = ReplayedJournal(decision, sealed, base or 0, 0, 0)
        replay.note_files(found, decision, None)
        if head is not None:
            self.ledgers.limbo_below, self.ledgers.gone_below = head.limbo_below, head.gone_below
        self._take_states((*decision.durable, *decision.survivors))
        self._know_survivors(decision)
        removed = self.removed
        self.ended_below = 0 if decision.corrupt or self.losses else self.ledgers.gone_below
        await self._miss_cold()
        whole, with_holes = await self._cold_in_order()
        for cold in whole:
            await self._rebuild_cold(cold)
        skipped = skipped_ranges((*decision.durable, *decision.survivors))
        for number in sorted(set(self.names) - set(scanned) - removed):
            if number in sealed:
                await self._rebuild_file(number, sealed[number], skipped)
        for block in decision.durable:
            for run in block.runs:
                await self._add_run(run, block.file_number)
        for cold in with_holes:
            await self._rebuild_cold(cold)
        self._miss_files(replay)
        return replay

    async def _cold_in_order(self) -> tuple[list[ColdFile], list[ColdFile]]:
        """Those that nothing was given back of, and those with holes; the newest first.

        What comes first keeps its place, and a footer goes on naming what was given back: what moved on from
        there lies in a newer cold file, what was copied here anew in the journal.
        """
        whole: list[ColdFile] = []
        with_holes: list[ColdFile] = []
        for _, cold in sorted(self.cold.items(), reverse=True):
            try:
                file = await open_file(self.disk, cold_name(cold.number))
            except CorruptData:
                with_holes.append(cold)
                continue
            holes = file.allocated_bytes() < cold.length
            file.close()
            (with_holes if holes else whole).append(cold)
        return whole, with_holes

    async def _scan_back_to(
        self, position: int, head: jb.Head, scanned: dict[int, list[Replayed]]
    ) -> int:
        """Read the files from the one that holds ``position``; return the first sequence of that one."""
        first = 1 << 63
        for number, begins, last in head.files:
            if last >= position:
                first = min(first, begins)
                if number in self.names and number not in scanned:
                    scanned[number] = await self._scan(number)
        return first

    async def _take_base(self, base: jb.Base) -> None:
        """The states that no journal file repeats. An older base would have forgotten fences (H88)."""
        try:
            for chunk in await read_base(self.disk, base, self.seed):
                for state in jb.controls_of(memoryview(chunk)):
                    ledger = self.ledgers.get_or_make(state.subject)
                    self.ledgers.set_state(ledger, state.flags, state.a, state.key)
                    self.index.note_state(ledger)
        except CorruptData as error:
            self._lose(f"the states of the ledgers cannot be read ({error})")

    async def _rebuild_file(
        self,
        number: int,
        span: tuple[int, int],
        skipped: list[tuple[int, int]],
    ) -> None:
        footer = await read_footer(self.disk, self.names[number], number, self.seed)
        if footer is not None:
            for run in footer[1]:
                await self._add_old_run(run, number)
            return
        scanned = await self._scan(number)
        skipped = [*skipped, *skipped_ranges(scanned)]
        counting = [n for n in range(span[0], span[1] + 1) if not is_within(n, skipped)]
        blocks = [
            block
            for block in scanned
            if span[0] <= block.sequence <= span[1] and not is_within(block.sequence, skipped)
        ]
        if len(blocks) != len(counting):
            self._lose(f"{len(counting) - len(blocks)} blocks of {self.names[number]} are gone")
        for block in blocks:
            for run in block.runs:
                await self._add_old_run(run, number)

    async def _add_old_run(self, run: jb.Run, number: int) -> None:
        """A run that is older than the states: without one its ledger's tombstone has ended, or is lost."""
        known = self.ledgers.get(run.ledger)
        if run.ledger >= self.ended_below or (known is not None and known.stored):
            await self._add_run(run, number)

    async def _rebuild_cold(self, cold: ColdFile) -> None:
        """What lies in a cold file; what is dead of it is of deleted ledgers, or lies elsewhere as well."""
        runs = await read_cold_footer(self.disk, cold, self.seed)
        if runs is not None:
            for run in runs:
                at = run.at
                found = jb.Run(run.ledger, at.first, at.count, at.offset, at.length)
                await self._add_old_run(found, cold.number)
            return
        self._lose(f"{cold_name(cold.number)} has no sound footer, and there is no index")
        async for ledger_id, at in find_records(self.disk, cold):
            found = jb.Run(ledger_id, at.first, at.count, at.offset, at.length)
            await self._add_old_run(found, cold.number)

    def _list_cold(self, listed: Iterable[jb.ColdRow]) -> None:
        for row in listed:
            self.cold[row[0]] = ColdFile(*row)

    async def _miss_cold(self) -> None:
        """A cold file that is listed and not there, or not as it was: what it held is lost."""
        for number in [*self.cold]:
            if number in self.removed:
                del self.cold[number]
            elif number not in self.cold_names:
                del self.cold[number]
                self.missing.add(number)
                self._lose(f"{cold_name(number)} is gone")
            else:
                wrong, all_gone = await what_is_wrong(
                    self.disk, self.cold[number], self.seed, self.bookie_id
                )
                if wrong:
                    self._lose(wrong, number)
                if all_gone:
                    del self.cold[number]
                    self.missing.add(number)

    def _miss_files(self, replay: ReplayedJournal) -> None:
        """A sealed file that should be there and is not: what it held is lost."""
        for number in self.removed:
            replay.sealed.pop(number, None)
        for number in [*replay.sealed]:
            if number not in self.names:
                del replay.sealed[number]
                self.missing.add(number)
                self._lose(f"journal file {number} is gone")

    async def _miss_older(self, saved: Saved) -> None:
        """Files from before the index's position, which no start reads: what shows without reading them.

        Else a file that was emptied costs a copy of all that lay in it, and nobody would know before a read.
        """
        for number, end in sorted(self.index.in_map.file_ends.items()):
            if number >= saved.file_number or number not in self.names:
                continue
            try:
                file = await open_file(self.disk, self.names[number])
            except CorruptData as error:
                self._lose(str(error), number)
                continue
            size = file.size()
            file.close()
            if size < end:
                self._lose(f"journal file {number} ends at {size}, and held records up to {end}")
            elif await self._read_one(number, 0) is None:
                self._lose(f"journal file {number} does not begin as it did")

    async def _forget_gone_files(self, replay: ReplayedJournal) -> None:
        """What lay in files of which nothing is left is absent, so that it can be copied here again.

        Only where all is in limbo: absent is denied nowhere. A file that cannot be opened may come back.
        """
        gone = set(self.missing)
        for number in sorted({*replay.sealed, replay.number} & set(self.names)):
            if await self._is_gone(number):
                gone.add(number)
                replay.leave_out(number)
        self.index.forget_files(gone)

    async def _is_gone(self, number: int) -> bool:
        if await self._read_one(number, 0) is not None:
            return False
        return not await self._scan(number) and number not in self.unreadable

    def _take_states(self, blocks: Iterable[Replayed]) -> None:
        for block in blocks:
            if block.head is not None:
                self.removed.discard(block.file_number)  # another file of this number was, before
                self.ledgers.limbo_below = block.head.limbo_below
                self._end_tombstones(block.head.gone_below)
                self._list_cold(block.head.cold)
            for control in block.controls:
                if control.kind == jb.STATE:
                    ledger = self.ledgers.get_or_make(control.subject)
                    self.ledgers.set_state(ledger, control.flags, control.a, control.key)
                    self.index.note_state(ledger)
                elif control.kind == jb.LIMBO_BELOW:
                    self.ledgers.limbo_below = control.subject
                elif control.kind == jb.GONE_BELOW:
                    self._end_tombstones(control.subject)
                elif control.kind == jb.FILE_REMOVED:
                    self.removed.add(control.subject)
                elif control.kind == jb.COLD_ADDED:
                    self.removed.discard(control.subject)
                    self._list_cold([(control.subject, control.a, control.b, control.flags)])
            for ledger_id, lac in block.lacs.items():
                ledger = self.ledgers.get_or_make(ledger_id)
                if lac > ledger.lac:
                    ledger.lac = lac
                    self.index.note_state(ledger)

    def _end_tombstones(self, below: int) -> None:
        self.ledgers.gone_below = max(self.ledgers.gone_below, below)

    def _know_survivors(self, decision: Decision) -> None:
        """Their ledgers are known before limbo is marked, not only when they are copied (inv. 22)."""
        for block in decision.survivors:
            for run in block.runs:
                self._know(self.ledgers.get_or_make(run.ledger))
                self.survivors |= {(run.ledger, run.first + n) for n in range(run.count)}

    def _know(self, ledger: Ledger) -> None:
        """An entry of it is here, and so was its state, in that block or before."""
        if not ledger.deleted and not ledger.stored:
            self._lose("a block with the state of a ledger is gone")
            self.ledgers.mark(ledger, ledger.flags)
            self.index.note_state(ledger)

    async def _add_run(self, run: jb.Run, number: int) -> None:
        """Index a run; ids that are known already (survivors and their copies) keep their first place."""
        ledger = self.ledgers.get_or_make(run.ledger)
        if ledger.deleted:
            return
        self._know(ledger)
        if run.first > ledger.top:
            self.index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = run.first + run.count - 1
            return
        last = run.first + run.count - 1
        following = self.index.following(ledger, run.first)
        if self.index.find(ledger, run.first) or (following and following.first <= last):
            await self._add_missing(ledger, run, number)
        else:
            self.index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = max(ledger.top, last)

    async def _add_missing(self, ledger: Ledger, run: jb.Run, number: int) -> None:
        name = cold_name(number) if number in self.cold else self.names[number]
        try:
            file = await open_file(self.disk, name)
            try:
                data = await file.read_cold(run.offset, run.length)
            finally:
                file.close()
        except CorruptData as error:
            self._lose(f"{name} cannot be read ({error})", number)
            return
        position = 0
        for entry in range(run.first, run.first + run.count):
            length = _record_bytes(data, position, ledger.id, entry)
            if not length:  # given back, or rotten; nothing is searched for (H91)
                if not self._is_all_here(ledger, entry, run.first + run.count - 1):
                    self._lose(f"{name} does not hold ledger {ledger.id} from entry {entry} on")
                return
            if self.index.find(ledger, entry) is None:
                self.index.add(ledger, entry, 1, number, run.offset + position, length)
                ledger.top = max(ledger.top, entry)
            position += length

    def _is_all_here(self, ledger: Ledger, first: int, last: int) -> bool:
        while first <= last:
            found = self.index.find(ledger, first)
            if found is None and (ledger.id, first) not in self.survivors:
                return False
            first = found.last + 1 if found is not None else first + 1
        return True

    async def _into_limbo(self) -> None:
        """Lost blocks may have held entries, fences, tombstones of any ledger, known or not.

        All that are known are in memory until the checkpoint that follows has written this.
        """
        self.ledgers.limbo_below = LIMBO_ALL
        async for page in self.ledgers.states():
            for state in page:
                ledger = self.ledgers.get_or_make(state.ledger_id)
                if not ledger.deleted:
                    self.ledgers.mark(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
                    ledger.fence_durable = (
                        True  # by the state in the new file's head, before serving
                    )
                    self.index.note_state(ledger)


def _record_bytes(data: bytes, position: int, ledger_id: int, entry: int) -> int:
    """The length of the record that must stand there; 0: something else does."""
    if len(data) - position < entries.HEADER_BYTES:
        return 0
    _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
        data, position
    )
    fits = length == entries.record_bytes(payload_bytes) and position + length <= len(data)
    return int(length) if fits and (ledger, number) == (ledger_id, entry) else 0


def _all_before_is_durable(scanned: dict[int, list[Replayed]], number: int) -> bool:
    """Was all synced that a whole head follows? A start's is written before the copies of survivors.

    Where that start died, and the cache lost a survivor, the head before it tells what was there (H4).
    """
    head = scanned[number][0]
    known = max(block.durable_to for found in scanned.values() for block in found)
    return head.durable_to >= head.sequence - 1 or known >= head.sequence


def _whole_head(found: list[Replayed]) -> bool:
    """Does a file begin with its head and all the states that belong to it?"""
    if not found or found[0].head is None:
        return False
    wanted = found[0].head.state_blocks
    states = found[1 : 1 + wanted]
    return len(states) == wanted and all(
        block.sequence == found[0].sequence + place for place, block in enumerate(states, 1)
    )


class _FirstFile:
    """The new journal file that every start begins, and the copies of survivors in it (H4).

    Nothing is appended after a replayed tail. What counts and is not known synced is written again; until
    its copy is durable it counts where it was found, and never again there afterwards.
    """

    def __init__(
        self,
        disk: Disk,
        names: dict[int, str],
        cold_names: dict[int, str],
        store: Store,
        journal: Journal,
        ring: GatherRing,
        index: Index,
    ) -> None:
        self._disk = disk
        self._names = names
        self._cold_names = cold_names
        self._store = store
        self._journal = journal
        self._ring = ring
        self._index = index
        self._ledgers = store.ledgers

    async def begin(
        self,
        replay: ReplayedJournal,
        saved: Saved | None,
        blank: set[int],
        worthless: set[int],
        cold: dict[int, ColdFile],
        removed: set[int],
        base: jb.Base | None,
        states: list[bytes],
        *,
        lost: bool,
    ) -> None:
        """Begin a file, copy survivors, checkpoint, remove what does not count.

        To the ``blank`` files nothing was ever written. Of those that do not count the ``worthless`` are
        deleted, the others are set aside; so are, where something is ``lost``, cold files that are not in
        ``cold``. The file's head names ``base``, and ``states`` follow it. No file takes the number of a
        ``removed`` one again. Raises `DiskFull`, `DiskFailed`, `CorruptData`.
        """
        decision = replay.decision
        if replay.number in self._names and replay.number not in replay.sealed and replay.first:
            replay.sealed[replay.number] = (replay.first, decision.tail_from - 1)
        for number in sorted(self._names):
            if number in replay.sealed and (saved is None or number >= saved.file_number):
                await self._sync(self._names[number])
        gone = sorted(blank & worthless - replay.sealed.keys())
        for number in gone:  # room for the new file, also on a full disk (H28)
            await self._journal.delete(number)
        for name in self._disk.list():  # nothing points to what was not finished
            if name.endswith(UNFINISHED) and cold_number(name.removesuffix(UNFINISHED)):
                await self._disk.delete(name)
        numbers = (*self._names, *self._cold_names, *cold, *removed, replay.number, 0)
        following = max(*numbers, saved.next_file - 1 if saved else 0) + 1
        if following > jb.FILE_NUMBER_MAX:
            raise CorruptData(
                f"{file_name(following - 1)} is no file that this bookie made: move it out of the directory"
            )
        await self._journal.start(
            start_count=replay.start_count + 1,
            sequence=decision.tail_from,
            durable_to=decision.durable_to,
            new_file=await self._new_file(following, replay),
            predecessor=replay.number,
            predecessor_end=replay.end,
            sealed=dict(replay.sealed),
            cold=cold,
            base=base,
            states=states,
        )
        for survivor in decision.survivors:
            await self._copy(survivor)
        # What only a survivor says of files is said again before it is skipped; the head has all else.
        controls = [
            jb.file_removed_record(control.subject)
            for survivor in decision.survivors
            for control in survivor.controls
            if control.kind == jb.FILE_REMOVED and control.subject in removed
        ]
        controls += [jb.skip_record(first, last) for first, last in decision.corrupt]
        if decision.survivors:
            controls.append(jb.skip_record(decision.durable_to + 1, decision.tail_from - 1))
        if self._ledgers.limbo_below:
            controls.append(jb.limbo_below_record(self._ledgers.limbo_below))
        for control in controls:
            block = self._ring.control_block()
            if block is None:
                await self._journal.flush(self._store.commits.on_synced)
                block = self._ring.control_block()
                assert block is not None, "an empty ring takes any record"
            block.controls.append(control)
        await self._journal.flush(self._store.commits.on_synced)
        self._journal.prove_survivors()
        leave_tails(self._journal.sealed, decision.durable_to + 1, decision.tail_from - 1)
        proof = self._ring.newest()
        assert proof is not None, "an empty ring has room"
        proof.watermark = True
        await self._journal.flush(self._store.commits.on_synced)
        await self._cut(replay)
        await self._note_sizes()
        if not await self._store.upkeep.checkpoint_if_room():
            return  # the position stays where it was, and so does all that lies after it
        for number in sorted(self._names):
            if number in replay.sealed or number in gone:
                continue
            name = self._names[number]
            if number in worthless:
                await self._journal.delete(number)
            else:
                await self._disk.rename(name, f"{LOST_PREFIX}{number:012d}")
        for number in sorted(self._cold_names.keys() - cold.keys()):
            name = self._cold_names[number]
            if lost:
                await self._disk.rename(name, f"{LOST_PREFIX}{name}")
            else:
                await self._disk.delete(name)

    async def _new_file(self, number: int, replay: ReplayedJournal) -> NewFile:
        """The file that this start begins; on a full disk of what can be given up. Raises `DiskFull`."""
        size = self._store.options.first_file_bytes
        try:
            return await self._journal.create(number, size)
        except DiskFull:
            reserved = await self._journal.from_reserve(number)
            if reserved is not None:
                return reserved
        await self._cut(replay)
        size = min(size, self._disk.free_bytes() * 15 // 16 // blocks.ALIGN * blocks.ALIGN)
        while size // 2 >= SHORT_FILE_BYTES:
            try:
                return await self._journal.create(number, size)
            except DiskFull:
                size = size // 2 // blocks.ALIGN * blocks.ALIGN
        return await self._journal.create(number, SHORT_FILE_BYTES)

    async def _cut(self, replay: ReplayedJournal) -> None:
        """Give back what lies after the ends of files that starts left, this one and those replayed.

        Nothing there counts, by the heads of the files after them (H4). Before the index's position moves
        on: a start that dies in between leaves it to the next.
        """
        if replay.decision.corrupt or self._ledgers.limbo_below == LIMBO_ALL:
            return  # something is missing: nothing is thrown away that may be looked at
        ends = {replay.number: replay.end}
        for block in (*replay.decision.durable, *replay.decision.survivors):
            head = block.head
            if head is not None and not head.sealing_blocks:
                ends[head.predecessor] = head.predecessor_end
        for number, end in ends.items():
            if number not in self._names or number not in replay.sealed or not end:
                continue
            file = await self._disk.open(self._names[number])
            try:
                if file.size() > end:
                    file.truncate(end)
                    await file.sync()
            finally:
                file.close()

    async def _note_sizes(self) -> None:
        for number in self._journal.sealed.keys() & self._names.keys():
            try:
                file = await open_file(self._disk, self._names[number])
            except CorruptData:
                continue  # who reads in it is told
            self._journal.file_bytes[number] = file.size()
            file.close()
        for number in self._journal.cold:
            try:
                file = await open_file(self._disk, cold_name(number))
            except CorruptData:
                continue
            self._journal.file_bytes[number] = file.allocated_bytes()
            file.close()

    async def _sync(self, name: str) -> None:
        """What a killed process wrote may be in the page cache only: make it durable before it counts."""
        try:
            file = await open_file(self._disk, name)
        except CorruptData:
            return  # the scan has met it too: nothing that it held counts
        try:
            await file.sync()
        finally:
            file.close()

    async def _copy(self, block: Replayed) -> None:
        """Write the records of a survivor again, those that are not here yet."""
        if not block.runs:
            return
        data = await read_records(self._disk, self._names[block.file_number], block)
        view = memoryview(data)
        for record in entries.records(view):
            ledger = self._ledgers.get_or_make(record.ledger)
            if ledger.deleted:
                continue
            if record.entry <= ledger.top and (
                ledger.find_pending(record.entry) or self._index.find(ledger, record.entry)
            ):
                continue
            target = self._ring.room(len(record.raw))
            if target is None:
                await self._journal.flush(self._store.commits.on_synced)
                target = self._ring.room(len(record.raw))
                assert target is not None, "an empty ring takes any record"
            position = self._ring.append(target, record.raw)
            note = Note(ledger, record.entry, 1, target.buffer.view, position, len(record.raw))
            target.notes.append(note)
            ledger.add_pending(note)
