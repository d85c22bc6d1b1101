"""The new journal file that every start begins, and the copies of survivors in it (H4)."""

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData, DiskFull
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.compacted_format import UNFINISHED, cold_name, cold_number
from ..format.journal_format import file_name
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import LIMBO_ALL, PendingExtent
from ..replay.journal_replay import Replayed, leave_tails, open_file, read_records
from ..storage.bookie_storage import BookieStorage
from ..storage.file_preallocator import NewFile
from ..storage.group_commit import GroupCommit
from .journal_verifier import FilesFound, VerifiedJournal

SHORT_FILE_BYTES = 64 * 1024
"""The shortest first file of a start on a full disk."""

LOST_PREFIX = "lost-"
"""Replaces ``journal-`` and precedes ``cold-`` in names of files that a start with a loss set aside."""


class FirstJournalFile:
    """The first file that one start writes.

    Nothing is appended after a replayed tail. Blocks that count and are not known to be synced are written
    again. The original counts until its copy is durable, and never afterwards.
    """

    def __init__(
        self,
        storage: BookieStorage,
        commits: GroupCommit,
        checkpointer: Checkpointer,
        found: FilesFound,
        verified: VerifiedJournal,
    ) -> None:
        self._disk = storage.disk
        self._journal = storage.journal
        self._ring = storage.ring
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._options = storage.options
        self._commits = commits
        self._checkpointer = checkpointer
        self._names, self._cold_names = found.journal, found.cold
        self._verified = verified
        self._replay = verified.replay

    async def begin(self) -> None:
        """Begin a file, copy survivors, write a checkpoint, and remove the files that do not count.

        If something may be lost, removed files with content are renamed instead, for inspection. Raises
        `DiskFull`, `DiskFailed`, `CorruptData`.
        """
        verified, replay, decision = self._verified, self._replay, self._replay.decision
        if replay.number in self._names and replay.number not in replay.sealed and replay.first:
            replay.sealed[replay.number] = (replay.first, decision.tail_from - 1)
        await self._sync_replayed()
        blank = (verified.blank & self._worthless) - replay.sealed.keys()
        for number in sorted(blank):  # room for the new file, also on a full disk (H28)
            await self._journal.delete(number)
        for name in self._disk.list():  # unfinished cold files, to which nothing points
            if name.endswith(UNFINISHED) and cold_number(name.removesuffix(UNFINISHED)):
                await self._disk.delete(name)
        await self._journal.start(
            start_count=replay.start_count + 1,
            sequence=decision.tail_from,
            durable_to=decision.durable_to,
            new_file=await self._new_file(self._next_number()),
            predecessor=replay.number,
            predecessor_end=replay.end,
            sealed=dict(replay.sealed),
            cold=verified.cold,
            base=verified.base,
            states=verified.states,
        )
        for survivor in decision.survivors:
            await self._copy(survivor)
        await self._write_controls()
        await self._prove_survivors()
        await self._cut()
        await self._note_sizes()
        if not await self._checkpointer.checkpoint_if_room():
            return  # the position of the index has not moved, so the files after it stay
        await self._remove_what_does_not_count(blank)

    @property
    def _worthless(self) -> set[int]:
        """Files to delete rather than to set aside, if they do not count."""
        verified = self._verified
        return verified.blank | verified.removed if verified.losses else set(self._names)

    async def _sync_replayed(self) -> None:
        """Sync the replayed files, whose blocks may be only in the page cache."""
        saved = self._verified.saved
        for number in sorted(self._names):
            if number in self._replay.sealed and (saved is None or number >= saved.file_number):
                await self._sync(self._names[number])

    def _next_number(self) -> int:
        """Return a number that no file has, or had. Raises `CorruptData` if none is left."""
        verified = self._verified
        numbers = (
            *(*self._names, *self._cold_names, *verified.cold, *verified.removed),
            *(self._replay.number, 0),
        )
        following = max(*numbers, verified.saved.next_file - 1 if verified.saved else 0) + 1
        if following > jb.FILE_NUMBER_MAX:
            raise CorruptData(
                f"{file_name(following - 1)} is no file that this bookie made: move it out of the directory"
            )
        return following

    async def _write_controls(self) -> None:
        """Write the control records about removed files, skipped blocks and limbo."""
        decision = self._replay.decision
        # Removals that only a survivor names are repeated before it is skipped. The head has all others.
        controls = [
            jb.file_removed_record(control.subject)
            for survivor in decision.survivors
            for control in survivor.controls
            if control.kind == jb.FILE_REMOVED and control.subject in self._verified.removed
        ]
        controls += [jb.skip_record(first, last) for first, last in decision.corrupt]
        if decision.survivors:
            controls.append(jb.skip_record(decision.durable_to + 1, decision.tail_from - 1))
        if self._ledgers.limbo_below:
            controls.append(jb.limbo_below_record(self._ledgers.limbo_below))
        for control in controls:
            block = self._ring.control_block()
            if block is None:
                await self._journal.flush(self._commits.on_synced)
                block = self._ring.control_block()
                assert block is not None, "an empty ring takes any record"
            block.controls.append(control)
        await self._journal.flush(self._commits.on_synced)

    async def _prove_survivors(self) -> None:
        """Prove by a block of the new file that the copies are synced. The originals no longer count."""
        decision = self._replay.decision
        self._journal.prove_survivors()
        leave_tails(self._journal.sealed, decision.durable_to + 1, decision.tail_from - 1)
        proof = self._ring.newest()
        assert proof is not None, "an empty ring has room"
        proof.watermark = True
        await self._journal.flush(self._commits.on_synced)

    async def _remove_what_does_not_count(self, deleted: set[int]) -> None:
        """Delete the files that do not count, or set them aside; ``deleted`` were deleted before."""
        for number in sorted(self._names.keys() - self._replay.sealed.keys() - deleted):
            if number in self._worthless:
                await self._journal.delete(number)
            else:
                await self._disk.rename(self._names[number], f"{LOST_PREFIX}{number:012d}")
        for number in sorted(self._cold_names.keys() - self._verified.cold.keys()):
            name = self._cold_names[number]
            if self._verified.losses:
                await self._disk.rename(name, f"{LOST_PREFIX}{name}")
            else:
                await self._disk.delete(name)

    async def _new_file(self, number: int) -> NewFile:
        """Make the first file; on a full disk from the reserve, or a shorter one. Raises `DiskFull`."""
        size = self._options.first_file_bytes
        try:
            return await self._journal.preallocator.create(number, size)
        except DiskFull:
            reserved = await self._journal.preallocator.from_reserve(number)
            if reserved is not None:
                return reserved
        await self._cut()
        size = min(size, self._disk.free_bytes() * 15 // 16 // blocks.ALIGN * blocks.ALIGN)
        while size // 2 >= SHORT_FILE_BYTES:
            try:
                return await self._journal.preallocator.create(number, size)
            except DiskFull:
                size = size // 2 // blocks.ALIGN * blocks.ALIGN
        return await self._journal.preallocator.create(number, SHORT_FILE_BYTES)

    async def _cut(self) -> None:
        """Free the space after the ends of the files that this start and earlier starts have left.

        Nothing there counts, by the heads of the files after them (H4). This precedes the checkpoint, so that
        the next start repeats it if this one is killed.
        """
        replay = self._replay
        if replay.decision.corrupt or self._ledgers.limbo_below == LIMBO_ALL:
            return  # after a loss, everything is kept for inspection
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
                continue  # a read of it reports the error
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
        """Sync a file, because writes of a killed process may be only in the page cache."""
        try:
            file = await open_file(self._disk, name)
        except CorruptData:
            return  # the scan failed too, so no block of it counts
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
                await self._journal.flush(self._commits.on_synced)
                target = self._ring.room(len(record.raw))
                assert target is not None, "an empty ring takes any record"
            position = self._ring.append(target, record.raw)
            note = PendingExtent(
                ledger, record.entry, 1, target.buffer.view, position, len(record.raw)
            )
            target.notes.append(note)
            ledger.add_pending(note)
