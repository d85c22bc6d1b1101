"""A bookie's start: believe what can be believed, write again what is not known synced, then serve.

1. The index's map is read and verified, or dropped and built again (H7).
2. The journal behind the index's position is replayed and judged (`replay.py`).
3. A new file begins; what counts and is not known synced is copied into it; all is synced (H4).
4. The index is checkpointed. What lost blocks may have held is fenced and in limbo by then (H3).
"""

from collections.abc import Iterable

from ..runtime.atomic_file import read_file, replace_file
from ..runtime.errors import CorruptData, ForeignData
from ..runtime.host import Disk, Host, OrderedMap
from . import entry as entries
from . import journal_blocks as jb
from .beginning import Beginning
from .gather import GatherRing
from .index import MAP_NAME, Index
from .index_records import Saved
from .journal import Journal, file_number
from .ledgers import Ledger
from .options import BookieOptions
from .reads import JournalFiles
from .replay import (
    Decision,
    Replayed,
    decide,
    is_within,
    read_footer,
    scan_file,
    skipped_ranges,
)
from .replayed import ReplayedJournal
from .seed import SEED_NAME, Seed, seed_of
from .store import LIMBO_ALL, Store


async def open_store(host: Host, options: BookieOptions, bookie_id: str) -> Store:
    """See `Store.open`."""
    return await _Opening(host, options, bookie_id).open()


class _Opening:
    def __init__(self, host: Host, options: BookieOptions, bookie_id: str) -> None:
        self.host = host
        self.options = options
        self.disk: Disk = host.disks["journal"]
        self.index_disk: Disk = host.disks["index"]
        self.bookie_id = bookie_id
        self.seed = 0
        self.ledgers: dict[int, Ledger] = {}
        self.removed: set[int] = set()
        self.empty: list[int] = []
        """Files without a valid block: made ahead, never used."""
        self.limbo_below = 0
        self.started = False
        """This bookie has served: an empty journal is a loss, not a first start that was cut short."""
        self.lost = False
        """Something that was synced is gone."""

    async def open(self) -> Store:
        names = {number: name for name in self.disk.list() if (number := file_number(name))}
        index, saved = await self._open_index()
        try:
            return await self._open_behind(index, saved, names)
        except BaseException:
            index.close()
            raise

    async def _open_behind(self, index: Index, saved: Saved | None, names: dict[int, str]) -> Store:
        await self._find_seed(saved, bool(names))
        ring = GatherRing(
            self.disk.aligned_buffer,
            buffers=self.options.gather_buffers,
            bytes_each=self.options.gather_bytes,
            block_max=self.options.block_bytes_max,
        )
        files = JournalFiles(self.disk, self.options.open_files_max)
        journal = Journal(
            self.disk,
            ring,
            self.options,
            bookie_id=self.bookie_id,
            seed=self.seed,
            states=lambda: [
                ledger.state_record() for ledger in self.ledgers.values() if ledger.stored
            ],
            limbo_below=lambda: store.limbo.below,
        )
        store = Store(
            self.disk,
            journal,
            ring,
            index,
            self.ledgers,
            files,
            self.options,
            bookie_id=self.bookie_id,
            seed=self.seed,
        )
        if saved is not None:
            replay = await self._replay(index, saved, names)
        else:
            replay = await self._rebuild(index, names)
        if self.lost or replay.decision.corrupt:
            self._into_limbo(index)
        store.limbo.below = self.limbo_below
        store.stats.corrupt_ranges = len(replay.decision.corrupt)
        beginning = Beginning(self.disk, names, store, journal, ring, index, self.ledgers)
        await beginning.begin(replay, saved, self.empty)
        await self._note_started()
        files.close()
        return store

    # --- the index --------------------------------------------------------------------------------

    async def _open_index(self) -> tuple[Index, Saved | None]:
        stored: OrderedMap | None = None
        try:
            stored = await self.index_disk.open_map(MAP_NAME)
            index = Index(stored, self.ledgers)
            return index, await index.load()
        except CorruptData:
            if stored is not None:
                stored.close()
            self.ledgers.clear()
            await self.index_disk.delete_map(MAP_NAME)
            return Index(await self.index_disk.open_map(MAP_NAME), self.ledgers), None

    async def _find_seed(self, saved: Saved | None, any_file: bool) -> None:
        """The seed of block digests: made once, kept in a file of its own and in the index."""
        data = await read_file(self.disk, SEED_NAME)
        found = seed_of(data) if data is not None else None
        if found is not None:
            self.started = found.started
        elif saved is not None:
            found = Seed(saved.bookie_id, saved.seed, True)
            self.started = True
        elif data is not None or any_file:
            raise CorruptData(
                f"{SEED_NAME} is missing or damaged, and so is the index: nothing in the journal can be"
                " verified. Start it with empty directories, as a new bookie, then decommission the old id"
                ' (docs/operations.md, "A bookie does not start any more")'
            )
        else:
            found = Seed(self.bookie_id, self.host.random.getrandbits(63), False)
        if self.bookie_id and found.bookie_id != self.bookie_id:
            raise ForeignData(f"the journal of bookie {found.bookie_id}, this is {self.bookie_id}")
        self.bookie_id, self.seed = found.bookie_id, found.seed
        if data != found.encode():
            await replace_file(self.disk, SEED_NAME, found.encode())

    async def _note_started(self) -> None:
        """From now on adds may be acknowledged."""
        if not self.started:
            seed = Seed(self.bookie_id, self.seed, True)
            await replace_file(self.disk, SEED_NAME, seed.encode())

    # --- the journal ------------------------------------------------------------------------------

    async def _scan(self, names: dict[int, str], number: int, start: int = 0) -> list[Replayed]:
        return await scan_file(self.disk, names[number], number, self.seed, self.bookie_id, start)

    async def _replay(self, index: Index, saved: Saved, names: dict[int, str]) -> ReplayedJournal:
        """The blocks behind the index's position."""
        self.limbo_below = saved.limbo_below
        found: list[Replayed] = []
        for number in sorted(names):
            if number >= saved.file_number:
                start = saved.offset if number == saved.file_number else 0
                found += await self._scan(names, number, start)
        decision = decide(found, from_sequence=saved.sequence)
        sealed = {number: (first, last) for number, first, last in saved.files}
        replay = ReplayedJournal(
            decision, sealed, saved.file_number, saved.offset, saved.start_count
        )
        replay.note_files(found, decision, saved)
        self._take_states((*decision.durable, *decision.survivors), index)
        for block in decision.durable:
            for run in block.runs:
                await self._add_run(index, run, block.file_number, names)
        if saved.file_number not in names and saved.file_number not in self.removed:
            self.lost = True
        self._miss_files(replay, names)
        return replay

    async def _rebuild(self, index: Index, names: dict[int, str]) -> ReplayedJournal:
        """No index: runs from footers, states from the newest file head that is whole (H7)."""
        if not names:
            self.lost = self.started
            return ReplayedJournal(Decision([], [], [], 0, 1), {}, 0, 0, 0)
        scanned: dict[int, list[Replayed]] = {}
        base: int | None = None
        for number in sorted(names, reverse=True):
            scanned[number] = await self._scan(names, number)
            if _whole_head(scanned[number]):
                base = number
                break
        found = [block for number in sorted(scanned) for block in scanned[number]]
        self.lost = base is None and (self.started or bool(found))
        head_block = scanned[base][0] if base is not None else None
        first = head_block.sequence if head_block else min((b.sequence for b in found), default=1)
        decision = decide(found, from_sequence=first)
        head = head_block.head if head_block else None
        sealed = {number: (a, b) for number, a, b in head.files} if head else {}
        replay = ReplayedJournal(decision, sealed, base or 0, 0, 0)
        replay.note_files(found, decision, None)
        if head is not None:
            self.limbo_below = head.limbo_below
        self._take_states((*decision.durable, *decision.survivors), index)
        removed = self.removed
        skipped = skipped_ranges((*decision.durable, *decision.survivors))
        for number in sorted(set(names) - set(scanned) - removed):
            if number in sealed:
                await self._rebuild_file(index, names, number, sealed[number], skipped)
        for block in decision.durable:
            for run in block.runs:
                await self._add_run(index, run, block.file_number, names)
        self._miss_files(replay, names)
        return replay

    async def _rebuild_file(
        self,
        index: Index,
        names: dict[int, str],
        number: int,
        span: tuple[int, int],
        skipped: list[tuple[int, int]],
    ) -> None:
        footer = await read_footer(self.disk, names[number], number, self.seed)
        if footer is not None:
            for run in footer[1]:
                await self._add_run(index, run, number, names)
            return
        scanned = await self._scan(names, number)
        skipped = [*skipped, *skipped_ranges(scanned)]
        counting = [n for n in range(span[0], span[1] + 1) if not is_within(n, skipped)]
        blocks = [
            block
            for block in scanned
            if span[0] <= block.sequence <= span[1] and not is_within(block.sequence, skipped)
        ]
        if len(blocks) != len(counting):
            self.lost = True
        for block in blocks:
            for run in block.runs:
                await self._add_run(index, run, number, names)

    def _miss_files(self, replay: ReplayedJournal, names: dict[int, str]) -> None:
        """A sealed file that should be there and is not: what it held is lost."""
        for number in self.removed:
            replay.sealed.pop(number, None)
        for number in [*replay.sealed]:
            if number not in names:
                del replay.sealed[number]
                self.lost = True

    def _take_states(self, blocks: Iterable[Replayed], index: Index) -> None:
        for block in blocks:
            for control in block.controls:
                if control.kind == jb.STATE:
                    ledger = self._ledger(control.subject)
                    was_deleted = ledger.deleted
                    ledger.set_state(control.flags, control.a, control.key)
                    index.note_state(ledger)
                    if ledger.deleted and not was_deleted:
                        index.forget_runs(ledger)
                elif control.kind == jb.LIMBO_BELOW:
                    self.limbo_below = control.subject
                elif control.kind == jb.FILE_REMOVED:
                    self.removed.add(control.subject)
            for ledger_id, lac in block.lacs.items():
                ledger = self._ledger(ledger_id)
                if lac > ledger.lac:
                    ledger.lac = lac
                    index.note_state(ledger)

    async def _add_run(self, index: Index, run: jb.Run, number: int, names: dict[int, str]) -> None:
        """Index a run; ids that are known already (survivors and their copies) keep their first place."""
        ledger = self._ledger(run.ledger)
        if ledger.deleted:
            return
        if not ledger.stored:  # its state was in a block that is lost
            self.lost = True
            ledger.stored = True
            index.note_state(ledger)
        if run.first > ledger.top:
            index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = run.first + run.count - 1
            return
        ids = range(run.first, run.first + run.count)
        if any(index.find(ledger, entry) is not None for entry in ids):
            await self._add_missing(index, ledger, run, number, names)
        else:
            index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = max(ledger.top, ids[-1])

    async def _add_missing(
        self, index: Index, ledger: Ledger, run: jb.Run, number: int, names: dict[int, str]
    ) -> None:
        file = await self.disk.open(names[number])
        try:
            data = await file.read_cold(run.offset, run.length)
        finally:
            file.close()
        position = 0
        for entry in range(run.first, run.first + run.count):
            length = entries.HEADER.unpack_from(data, position)[1]
            if index.find(ledger, entry) is None:
                index.add(ledger, entry, 1, number, run.offset + position, length)
                ledger.top = max(ledger.top, entry)
            position += length

    def _ledger(self, ledger_id: int) -> Ledger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger(ledger_id)
        return ledger

    def _into_limbo(self, index: Index) -> None:
        """Lost blocks may have held entries, fences, tombstones of any ledger, known or not."""
        self.limbo_below = LIMBO_ALL
        for ledger in self.ledgers.values():
            if not ledger.deleted:
                ledger.flags |= jb.FENCED | jb.LIMBO
                ledger.fence_durable = True  # by the state in the new file's head, before serving
                ledger.stored = True
                index.note_state(ledger)


def _whole_head(found: list[Replayed]) -> bool:
    """Does a file begin with its head and all the states that belong to it?"""
    if not found or found[0].head is None:
        return False
    wanted = found[0].head.state_blocks
    states = found[1 : 1 + wanted]
    return len(states) == wanted and all(
        block.sequence == found[0].sequence + place for place, block in enumerate(states, 1)
    )
