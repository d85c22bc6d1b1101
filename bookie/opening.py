"""A bookie's start: believe what can be believed, write again what is not known synced, then serve.

1. The index's map is read and verified, or dropped and built again (H7).
2. The journal behind the index's position is replayed and judged (`replay.py`).
3. A new file begins; what counts and is not known synced is copied into it; all is synced (H4).
4. The index is checkpointed. What lost blocks may have held is fenced and in limbo by then (H3).

That nothing was synced behind what is found must be shown, it is never taken from where the blocks end
(H80): the file of the index's position is whole up to there, what is numbered has no gap, and the journal
reaches as far as the cluster was told that it was durable.
"""

import logging
from collections.abc import Iterable

from ..runtime.atomic_file import read_file, replace_file
from ..runtime.errors import CorruptData, DiskFailed, ForeignData
from ..runtime.host import Disk, Host, OrderedMap
from . import entry as entries
from . import journal_blocks as jb
from .beginning import Beginning
from .gather import GatherRing
from .index import MAP_NAME, Index
from .index_records import Saved
from .journal import PREFIX, Journal, file_number
from .ledgers import Ledger
from .options import BookieOptions
from .reads import JournalFiles
from .replay import (
    Decision,
    Replayed,
    decide,
    is_within,
    open_file,
    read_footer,
    read_one,
    scan_file,
    skipped_ranges,
)
from .replayed import ReplayedJournal
from .reserve import Reserve
from .seed import SEED_NAME, Seed, seed_of
from .store import LIMBO_ALL, Store

log = logging.getLogger("distributedlog.bookie.opening")


RANGES_NAMED = 3
"""Of what is missing; the rest is counted."""
LEAP_MAX = 1 << 40
"""Blocks that may be gone at the end: no journal comes so far. What says so is not believed its number."""


async def open_store(
    host: Host, options: BookieOptions, bookie_id: str, *, witnessed: int = 0, doubt: str = ""
) -> Store:
    """See `Store.open`."""
    opening = _Opening(host, options, bookie_id, witnessed)
    if doubt:
        opening.losses.append(doubt)
    return await opening.open()


class _Opening:
    def __init__(self, host: Host, options: BookieOptions, bookie_id: str, witnessed: int) -> None:
        self.host = host
        self.options = options
        self.disk: Disk = host.disks["journal"]
        self.index_disk: Disk = host.disks["index"]
        self.bookie_id = bookie_id
        self.witnessed = witnessed
        """A block of this sequence was synced, others say; 0: they know of none."""
        self.seed = 0
        self.ledgers: dict[int, Ledger] = {}
        self.removed: set[int] = set()
        self.limbo_below = 0
        self.started = False
        """This bookie has served: an empty journal is a loss, not a first start that was cut short."""
        self.losses: list[str] = []
        """Why it cannot be shown that nothing is gone that was synced."""
        self.unreadable: set[int] = set()
        """Files that could not be read everywhere."""
        self.missing: set[int] = set()
        """Files that should be there, and are not."""
        self.blank: set[int] = set()
        """Files of zeros: made ahead and never used, or what is left of a lost one."""

    async def open(self) -> Store:
        names: dict[int, str] = {}
        for name in self.disk.list():
            number = file_number(name)
            if number is not None:
                names[number] = name
            elif name.startswith(PREFIX):
                log.warning("%s is no journal file of a bookie's: it is left alone", name)
        data, seed = await self._read_seed()
        index, saved = await self._open_index(seed)
        try:
            await self._take_seed(data, seed, saved, bool(names))
            return await self._open_behind(index, saved, names)
        except BaseException:
            index.close()
            raise

    async def _open_behind(self, index: Index, saved: Saved | None, names: dict[int, str]) -> Store:
        ring = GatherRing(
            self.disk.aligned_buffer,
            buffers=self.options.gather_buffers,
            bytes_each=self.options.gather_bytes,
            block_max=self.options.block_bytes_max,
        )
        files = JournalFiles(self.disk, self.options.open_files_max)
        reserves = {
            role: Reserve(self.host.disks[role], role, self.options.first_file_bytes)
            for role in ("journal", "index")
        }
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
            reserve=reserves["journal"],
            on_space=lambda: store.look_at_space(),
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
            index_disk=self.index_disk,
            reserves=reserves,
        )
        if saved is not None:
            replay = await self._replay(index, saved, names)
        else:
            replay = await self._rebuild(index, names)
        self._ask_what_is_missing(replay.decision)
        if self.losses:
            await self._forget_gone_files(index, replay, names)
            self._into_limbo(index)
        store.limbo.below = self.limbo_below
        store.limbo.lost = "; ".join(self.losses)
        store.stats.corrupt_ranges = len(replay.decision.corrupt)
        beginning = Beginning(self.disk, names, store, journal, ring, index, self.ledgers)
        worthless = self.blank | self.removed if self.losses else set(names)
        await beginning.begin(replay, saved, self.blank, worthless)
        await self._note_started()
        await store.make_reserves()
        files.close()
        return store

    # --- the index --------------------------------------------------------------------------------

    async def _open_index(self, seed: Seed | None) -> tuple[Index, Saved | None]:
        stored: OrderedMap | None = None
        try:
            stored = await self.index_disk.open_map(MAP_NAME)
            index = Index(stored, self.ledgers)
            saved = await index.load()
            if saved is not None and seed is not None and saved.seed != seed.seed:
                # Its position may fit all the same: bookies that store the same grow alike (H80).
                raise CorruptData(f"it belongs to another journal, of bookie {saved.bookie_id}")
            return index, saved
        except CorruptData as error:
            log.error("bookie %s: the index is built again: %s", self.bookie_id, error)
            if stored is not None:
                stored.close()
            self.ledgers.clear()
            await self.index_disk.delete_map(MAP_NAME)
            return Index(await self.index_disk.open_map(MAP_NAME), self.ledgers), None

    async def _read_seed(self) -> tuple[bytes | None, Seed | None]:
        """The seed's file and what it says, None where it is missing or damaged. Raises `ForeignData`."""
        try:
            data = await read_file(self.disk, SEED_NAME)
        except (CorruptData, DiskFailed) as error:  # as a damaged one: the index may know it
            log.error("bookie %s: %s cannot be read: %s", self.bookie_id, SEED_NAME, error)
            data = b""
        found = seed_of(data) if data is not None else None
        if found is not None:
            self._check_owner(found)
        return data, found

    async def _take_seed(
        self, data: bytes | None, found: Seed | None, saved: Saved | None, any_file: bool
    ) -> None:
        """The seed of block digests: made once, kept in a file of its own and in the index."""
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
        self._check_owner(found)
        self.bookie_id, self.seed = found.bookie_id, found.seed
        if data != found.encode():
            await replace_file(self.disk, SEED_NAME, found.encode())

    def _check_owner(self, found: Seed) -> None:
        if self.bookie_id and found.bookie_id != self.bookie_id:
            raise ForeignData(f"the journal of bookie {found.bookie_id}, this is {self.bookie_id}")

    async def _note_started(self) -> None:
        """From now on adds may be acknowledged."""
        if not self.started:
            seed = Seed(self.bookie_id, self.seed, True)
            await replace_file(self.disk, SEED_NAME, seed.encode())

    # --- the journal ------------------------------------------------------------------------------

    async def _scan(self, names: dict[int, str], number: int, start: int = 0) -> list[Replayed]:
        def on_unreadable(error: CorruptData) -> None:
            # Not a torn tail, whatever comes behind it: what cannot be read may have been synced.
            self._lose(f"{names[number]} cannot be read ({error})", number)

        scanned = await scan_file(
            self.disk,
            names[number],
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
            log.error("bookie %s: %s", self.bookie_id, reason)
            self.losses.append(reason)

    def _believed(self, found: list[Replayed], from_sequence: int) -> int:
        """What others say was synced, unless it cannot be: sequences go on behind what is believed."""
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

    async def _replay(self, index: Index, saved: Saved, names: dict[int, str]) -> ReplayedJournal:
        """The blocks behind the index's position."""
        self.limbo_below = saved.limbo_below
        found: list[Replayed] = []
        for number in sorted(names):
            if number >= saved.file_number:
                start = saved.offset if number == saved.file_number else 0
                found += await self._scan(names, number, start)
        decision = decide(
            found, from_sequence=saved.sequence, witnessed=self._believed(found, saved.sequence)
        )
        sealed = {number: (first, last) for number, first, last in saved.files}
        replay = ReplayedJournal(
            decision, sealed, saved.file_number, saved.offset, saved.start_count
        )
        replay.note_files(found, decision, saved)
        self._take_states((*decision.durable, *decision.survivors), index)
        self._know_survivors(decision, index)
        for block in decision.durable:
            for run in block.runs:
                await self._add_run(index, run, block.file_number, names)
        await self._prove_position(saved, names)
        self._miss_files(replay, names)
        await self._miss_older(index, saved, names)
        return replay

    async def _prove_position(self, saved: Saved, names: dict[int, str]) -> None:
        """The index knows a file, its first block and the last one before the position: are they there?"""
        number = saved.file_number
        if number in self.removed:
            return
        where = f"journal file {number}, which the index knows up to {saved.offset},"
        if number not in names:
            self.missing.add(number)
            self._lose(f"{where} is gone")
            return
        head = await self._read_one(names, number, 0)
        if head is None or head.head is None or head.sequence != saved.first_sequence:
            self._lose(f"{where} does not begin as it did")
        elif saved.last_offset >= 0:
            last = await self._read_one(names, number, saved.last_offset)
            if last is None or last.sequence != saved.sequence - 1:
                self._lose(f"{where} is not whole there: it was cut, damaged, or is an older copy")

    async def _read_one(self, names: dict[int, str], number: int, offset: int) -> Replayed | None:
        return await read_one(self.disk, names[number], number, self.seed, self.bookie_id, offset)

    async def _rebuild(self, index: Index, names: dict[int, str]) -> ReplayedJournal:
        """No index: runs from footers, states from the newest file head that is whole (H7)."""
        if not names:
            if self.started:
                self._lose("there is no journal file, and no index")
            decision = decide([], from_sequence=1, witnessed=self._believed([], 1))
            return ReplayedJournal(decision, {}, 0, 0, 0)
        scanned: dict[int, list[Replayed]] = {}
        base: int | None = None
        for number in sorted(names, reverse=True):
            scanned[number] = await self._scan(names, number)
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
        decision = decide(found, from_sequence=first, witnessed=self._believed(found, first))
        head = head_block.head if head_block else None
        sealed = {number: (a, b) for number, a, b in head.files} if head else {}
        replay = ReplayedJournal(decision, sealed, base or 0, 0, 0)
        replay.note_files(found, decision, None)
        if head is not None:
            self.limbo_below = head.limbo_below
        self._take_states((*decision.durable, *decision.survivors), index)
        self._know_survivors(decision, index)
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
            self._lose(f"{len(counting) - len(blocks)} blocks of {names[number]} are gone")
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
                self.missing.add(number)
                self._lose(f"journal file {number} is gone")

    async def _miss_older(self, index: Index, saved: Saved, names: dict[int, str]) -> None:
        """Files from before the index's position, which no start reads: what shows without reading them.

        Else a file that was emptied costs a copy of all that lay in it, and nobody would know before a read.
        """
        for number, end in sorted(index.file_ends.items()):
            if number >= saved.file_number or number not in names:
                continue
            try:
                file = await open_file(self.disk, names[number])
            except CorruptData as error:
                self._lose(str(error), number)
                continue
            size = file.size()
            file.close()
            if size < end:
                self._lose(f"journal file {number} ends at {size}, and held records up to {end}")
            elif await self._read_one(names, number, 0) is None:
                self._lose(f"journal file {number} does not begin as it did")

    async def _forget_gone_files(
        self, index: Index, replay: ReplayedJournal, names: dict[int, str]
    ) -> None:
        """What lay in files of which nothing is left is absent, so that it can be copied here again.

        Only where all is in limbo: absent is denied nowhere. A file that cannot be opened may come back.
        """
        gone = set(self.missing)
        for number in sorted({*replay.sealed, replay.number} & set(names)):
            if await self._is_gone(names, number):
                gone.add(number)
                replay.leave_out(number)
        index.forget_files(gone)

    async def _is_gone(self, names: dict[int, str], number: int) -> bool:
        if await self._read_one(names, number, 0) is not None:
            return False
        return not await self._scan(names, number) and number not in self.unreadable

    def _take_states(self, blocks: Iterable[Replayed], index: Index) -> None:
        for block in blocks:
            if block.head is not None:
                self.limbo_below = block.head.limbo_below
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

    def _know_survivors(self, decision: Decision, index: Index) -> None:
        """Their ledgers are known before limbo is marked, not only when they are copied (inv. 22)."""
        for block in decision.survivors:
            for run in block.runs:
                self._know(self._ledger(run.ledger), index)

    def _know(self, ledger: Ledger, index: Index) -> None:
        """An entry of it is here, and so was its state, in that block or before."""
        if not ledger.deleted and not ledger.stored:
            self._lose("a block with the state of a ledger is gone")
            ledger.stored = True
            index.note_state(ledger)

    async def _add_run(self, index: Index, run: jb.Run, number: int, names: dict[int, str]) -> None:
        """Index a run; ids that are known already (survivors and their copies) keep their first place."""
        ledger = self._ledger(run.ledger)
        if ledger.deleted:
            return
        self._know(ledger, index)
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
        try:
            file = await open_file(self.disk, names[number])
            try:
                data = await file.read_cold(run.offset, run.length)
            finally:
                file.close()
        except CorruptData as error:
            self._lose(f"{names[number]} cannot be read ({error})", number)
            return
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
