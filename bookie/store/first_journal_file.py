"""The new journal file that every start begins, and the copies of unsynced blocks in it (H4)."""

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData, DiskFull
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.compacted_format import UNFINISHED_SUFFIX, compacted_file_name, compacted_file_number
from ..format.journal_format import file_name
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import LIMBO_ALL, PendingExtent
from ..replay.journal_replay import ReplayedBlock, exclude_tails, open_file, read_records
from ..storage.bookie_storage import BookieStorage
from ..storage.file_preallocator import NewFile
from ..storage.group_commit import GroupCommit
from .journal_verifier import JournalDirectoryListing, VerifiedJournal

SHORT_FILE_BYTES = 64 * 1024
"""The shortest first file of a start on a full disk."""

LOST_PREFIX = "lost-"
"""Replaces ``journal-`` and precedes ``cold-`` in the names of files that a start with a loss has
set aside."""


class FirstJournalFile:
    """The first file that one start writes.

    Nothing is appended to a replayed file. Blocks that count and are not known to be synced are written
    again. The original counts until its copy is durable, and never afterwards.
    """

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        checkpointer: Checkpointer,
        listing: JournalDirectoryListing,
        verified: VerifiedJournal,
    ) -> None:
        self._disk = storage.disk
        self._journal = storage.journal
        self._buffer = storage.buffer
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._options = storage.options
        self._group_commit = group_commit
        self._checkpointer = checkpointer
        self._file_names, self._compacted_names = listing.journal, listing.compacted
        self._verified = verified
        self._replay = verified.replay

    async def begin(self) -> None:
        """Begin a file, copy unsynced blocks, write a checkpoint, and remove the files that do not count.

        If data may be lost, removed files with content are renamed instead, for inspection. Raises
        `DiskFull`, `DiskFailed`, `CorruptData`.
        """
        verified, replay, decision = self._verified, self._replay, self._replay.decision
        if (
            replay.last_file_number in self._file_names
            and replay.last_file_number not in replay.sealed_files
            and replay.last_file_first_sequence
        ):
            replay.sealed_files[replay.last_file_number] = (
                replay.last_file_first_sequence,
                decision.tail_from - 1,
            )
        await self._sync_replayed()
        blank_files = (verified.blank_files & self._deletable_files) - replay.sealed_files.keys()
        for number in sorted(
            blank_files
        ):  # frees space for the new file, also on a full disk (H28)
            await self._journal.delete_files(number)
        for (
            name
        ) in self._disk.list():  # unfinished compacted files, to which the index does not refer
            if name.endswith(UNFINISHED_SUFFIX) and compacted_file_number(
                name.removesuffix(UNFINISHED_SUFFIX)
            ):
                await self._disk.delete(name)
        await self._journal.start(
            start_count=replay.start_count + 1,
            next_sequence=decision.tail_from,
            durable_to=decision.durable_to,
            new_file=await self._create_first_file(self._next_number()),
            predecessor=replay.last_file_number,
            predecessor_end=replay.last_file_end,
            sealed_files=dict(replay.sealed_files),
            compacted_files=verified.compacted_files,
            state_snapshot=verified.state_snapshot,
            states=verified.states,
        )
        for block in decision.unsynced_blocks:
            await self._copy_block(block)
        await self._write_controls()
        await self._record_copies_synced()
        await self._truncate_to_ends()
        await self._record_file_sizes()
        if not await self._checkpointer.try_checkpoint():
            return  # the position of the index has not moved, so the files after it stay
        await self._remove_uncounted_files(blank_files)

    @property
    def _deletable_files(self) -> set[int]:
        """Files to delete rather than to set aside, if they do not count."""
        verified = self._verified
        return (
            verified.blank_files | verified.removed_files
            if verified.loss_reasons
            else set(self._file_names)
        )

    async def _sync_replayed(self) -> None:
        """Sync the replayed files, whose blocks may be only in the page cache."""
        checkpoint = self._verified.checkpoint
        for number in sorted(self._file_names):
            if number in self._replay.sealed_files and (
                checkpoint is None or number >= checkpoint.file_number
            ):
                await self._sync(self._file_names[number])

    def _next_number(self) -> int:
        """Return a number that no file has or had. Raises `CorruptData` if none is left."""
        verified = self._verified
        numbers = (
            *(
                *self._file_names,
                *self._compacted_names,
                *verified.compacted_files,
                *verified.removed_files,
            ),
            *(self._replay.last_file_number, 0),
        )
        next_number = (
            max(*numbers, verified.checkpoint.next_file_number - 1 if verified.checkpoint else 0)
            + 1
        )
        if next_number > jb.FILE_NUMBER_MAX:
            raise CorruptData(
                f"{file_name(next_number - 1)} is not a file of this bookie: move it out of the directory"
            )
        return next_number

    async def _write_controls(self) -> None:
        """Write the control records about removed files, skipped blocks and limbo."""
        decision = self._replay.decision
        # Removals that only an unsynced block records are repeated before it is skipped. The head covers
        # all others.
        controls = [
            jb.file_removed_record(control.subject)
            for unsynced_block in decision.unsynced_blocks
            for control in unsynced_block.controls
            if control.kind == jb.FILE_REMOVED and control.subject in self._verified.removed_files
        ]
        controls += [jb.skip_record(first, last) for first, last in decision.lost_ranges]
        if decision.unsynced_blocks:
            controls.append(jb.skip_record(decision.durable_to + 1, decision.tail_from - 1))
        if self._ledgers.limbo_below:
            controls.append(jb.limbo_below_record(self._ledgers.limbo_below))
        for control in controls:
            block = self._buffer.control_block()
            if block is None:
                await self._journal.flush(self._group_commit.on_synced)
                block = self._buffer.control_block()
                assert block is not None, "an empty ring has space for any record"
            block.control_records.append(control)
        await self._journal.flush(self._group_commit.on_synced)

    async def _record_copies_synced(self) -> None:
        """Prove by a block of the new file that the copies are synced. The originals no longer count."""
        decision = self._replay.decision
        self._journal.mark_all_synced()
        exclude_tails(self._journal.sealed_files, decision.durable_to + 1, decision.tail_from - 1)
        proof_block = self._buffer.newest()
        assert proof_block is not None, "an empty ring has space"
        proof_block.is_watermark = True
        await self._journal.flush(self._group_commit.on_synced)

    async def _remove_uncounted_files(self, deleted: set[int]) -> None:
        """Delete the files that do not count, or set them aside; ``deleted`` were deleted before."""
        for number in sorted(self._file_names.keys() - self._replay.sealed_files.keys() - deleted):
            if number in self._deletable_files:
                await self._journal.delete_files(number)
            else:
                await self._disk.rename(self._file_names[number], f"{LOST_PREFIX}{number:012d}")
        for number in sorted(self._compacted_names.keys() - self._verified.compacted_files.keys()):
            name = self._compacted_names[number]
            if self._verified.loss_reasons:
                await self._disk.rename(name, f"{LOST_PREFIX}{name}")
            else:
                await self._disk.delete(name)

    async def _create_first_file(self, number: int) -> NewFile:
        """Create the first file; on a full disk from the reserve, or a shorter one. Raises `DiskFull`."""
        size = self._options.first_file_bytes
        try:
            return await self._journal.preallocator.create(number, size)
        except DiskFull:
            reserved = await self._journal.preallocator.create_from_reserve(number)
            if reserved is not None:
                return reserved
        await self._truncate_to_ends()
        size = min(size, self._disk.free_bytes() * 15 // 16 // blocks.ALIGN * blocks.ALIGN)
        while size // 2 >= SHORT_FILE_BYTES:
            try:
                return await self._journal.preallocator.create(number, size)
            except DiskFull:
                size = size // 2 // blocks.ALIGN * blocks.ALIGN
        return await self._journal.preallocator.create(number, SHORT_FILE_BYTES)

    async def _truncate_to_ends(self) -> None:
        """Free the space after the ends of the files that this start and earlier starts have replayed.

        Nothing there counts, by the heads of the files after them (H4). This precedes the checkpoint, so that
        the next start repeats it if this one is killed.
        """
        replay = self._replay
        if replay.decision.lost_ranges or self._ledgers.limbo_below == LIMBO_ALL:
            return  # after a loss, everything is kept for inspection
        ends = {replay.last_file_number: replay.last_file_end}
        for block in (*replay.decision.durable_blocks, *replay.decision.unsynced_blocks):
            head = block.head
            if head is not None and not head.sealing_blocks:
                ends[head.predecessor_file] = head.predecessor_end
        for number, end in ends.items():
            if number not in self._file_names or number not in replay.sealed_files or not end:
                continue
            file = await self._disk.open(self._file_names[number])
            try:
                if file.size() > end:
                    file.truncate(end)
                    await file.sync()
            finally:
                file.close()

    async def _record_file_sizes(self) -> None:
        for number in self._journal.sealed_files.keys() & self._file_names.keys():
            try:
                file = await open_file(self._disk, self._file_names[number])
            except CorruptData:
                continue  # a read of it reports the error
            self._journal.file_bytes[number] = file.size()
            file.close()
        for number in self._journal.compacted_files:
            try:
                file = await open_file(self._disk, compacted_file_name(number))
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

    async def _copy_block(self, block: ReplayedBlock) -> None:
        """Write the records of an unsynced block again, except those that are already stored."""
        if not block.extents:
            return
        data = await read_records(self._disk, self._file_names[block.file_number], block)
        view = memoryview(data)
        for record in entries.records(view):
            ledger = self._ledgers.get_or_make(record.ledger)
            if ledger.deleted:
                continue
            if record.entry <= ledger.last_added_entry and (
                ledger.find_pending(record.entry) or self._index.find(ledger, record.entry)
            ):
                continue
            target = self._buffer.block_for_records(len(record.record))
            if target is None:
                await self._journal.flush(self._group_commit.on_synced)
                target = self._buffer.block_for_records(len(record.record))
                assert target is not None, "an empty ring has space for any record"
            position = self._buffer.append(target, record.record)
            pending_extent = PendingExtent(
                ledger, record.entry, 1, target.buffer.view, position, len(record.record)
            )
            target.pending_extents.append(pending_extent)
            ledger.add_pending(pending_extent)
