"""The new journal file that every start begins, and the copies of survivors in it (H4).

Nothing is appended behind a replayed tail. What counts and is not known synced is written again; until its
copy is durable it counts where it was found, and never again there afterwards.
"""

from ..runtime import blocks
from ..runtime.errors import CorruptData, DiskFull
from ..runtime.host import Disk
from . import entry as entries
from . import journal_blocks as jb
from .gather import GatherRing
from .index import Index
from .index_records import Saved
from .journal import FILE_NUMBER_MAX, Journal, NewFile, file_name
from .ledgers import Ledger, Note
from .replay import Replayed, open_file, read_records
from .replayed import ReplayedJournal
from .store import LIMBO_ALL, Store

SHORT_FILE_BYTES = 64 * 1024
"""The shortest journal file that a start on a full disk makes do with."""

LOST_PREFIX = "lost-"
"""In place of ``journal-``: set aside by a start that missed data, for the operator to look at."""


class Beginning:
    """The last step of a start; the store, its parts and what was replayed are there."""

    def __init__(
        self,
        disk: Disk,
        names: dict[int, str],
        store: Store,
        journal: Journal,
        ring: GatherRing,
        index: Index,
        ledgers: dict[int, Ledger],
    ) -> None:
        self._disk = disk
        self._names = names
        """The journal files that were found, by number."""
        self._store = store
        self._journal = journal
        self._ring = ring
        self._index = index
        self._ledgers = ledgers

    async def begin(
        self,
        replay: ReplayedJournal,
        saved: Saved | None,
        blank: set[int],
        worthless: set[int],
    ) -> None:
        """Begin a file, copy survivors, checkpoint, remove what does not count.

        To the ``blank`` files nothing was ever written. Of those that do not count the ``worthless`` are
        deleted, the others are set aside. Raises `DiskFull`, `DiskFailed`, `CorruptData`.
        """
        decision = replay.decision
        if replay.number in self._names and replay.number not in replay.sealed and replay.first:
            replay.sealed[replay.number] = (replay.first, decision.tail_from - 1)
        for number in sorted(self._names):
            if number in replay.sealed and (saved is None or number >= saved.file_number):
                await self.sync(self._names[number])
        gone = sorted(blank & worthless - replay.sealed.keys())
        for number in gone:  # room for the new file, also on a full disk (H28)
            await self._disk.delete(self._names[number])
        following = max(*self._names, replay.number, saved.next_file - 1 if saved else 0, 0, 0) + 1
        if following > FILE_NUMBER_MAX:
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
        )
        for survivor in decision.survivors:
            await self._copy(survivor)
        controls = [jb.skip_record(first, last) for first, last in decision.corrupt]
        if decision.survivors:
            controls.append(jb.skip_record(decision.durable_to + 1, decision.tail_from - 1))
        if self._store.limbo.below:
            controls.append(jb.limbo_below_record(self._store.limbo.below))
        for control in controls:
            block = self._ring.control_block()
            if block is None:
                await self._journal.flush(self._store.commits.on_synced)
                block = self._ring.control_block()
                assert block is not None, "an empty ring takes any record"
            block.controls.append(control)
        await self._journal.flush(self._store.commits.on_synced)
        self._journal.prove_survivors()
        _leave_survivors(self._journal.sealed, decision.durable_to)
        proof = self._ring.newest()
        assert proof is not None, "an empty ring has room"
        proof.watermark = True
        await self._journal.flush(self._store.commits.on_synced)
        await self._cut(replay)
        await self._note_sizes()
        if not await self._store.checkpoint_if_room():
            return  # the position stays where it was, and so does all that lies behind it
        for number in sorted(self._names):
            if number in replay.sealed or number in gone:
                continue
            name = self._names[number]
            if number in worthless:
                await self._disk.delete(name)
            else:
                await self._disk.rename(name, f"{LOST_PREFIX}{number:012d}")

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
        """Give back what lies behind the ends of files that starts left, this one and those replayed.

        Nothing there counts, by the heads of the files behind them (H4). Before the index's position moves
        on: a start that dies in between leaves it to the next.
        """
        if replay.decision.corrupt or self._store.limbo.below == LIMBO_ALL:
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

    async def sync(self, name: str) -> None:
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
            ledger = self._ledgers.get(record.ledger)
            if ledger is None:
                ledger = self._ledgers[record.ledger] = Ledger(record.ledger)
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
            ledger.stored = True
            note = Note(ledger, record.entry, 1, target.buffer.view, position, len(record.raw))
            target.notes.append(note)
            ledger.add_pending(note)


def _leave_survivors(sealed: dict[int, tuple[int, int]], durable_to: int) -> None:
    """Survivors are copied and synced: from now on they count there, never again where they were found.

    Their own sync may have failed; then the cache shows what the next power cut takes away (H4).
    """
    for number, (first, last) in [*sealed.items()]:
        if last > durable_to:
            sealed[number] = (first, max(durable_to, first - 1))
