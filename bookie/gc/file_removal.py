"""Remove journal files and compacted files without a live record, after a durable record of the removal."""

from functools import partial

import trio

from ..declarations.counters import Stats
from ..format import journal_format as jb
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock
from .checkpointer import Checkpointer

FILES_PER_REMOVAL = 16
"""Files removed by one commit and one update of the directory. When each was removed alone, the twenty files
of a 5 GB log delayed other writes by as many updates, up to 10 ms each."""


class FileRemoval:
    """The removal of one bookie's dead files."""

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        checkpointer: Checkpointer,
        stats: Stats,
    ) -> None:
        self._journal = storage.journal
        self._index = storage.index
        self._files = storage.files
        self._space = storage.space
        self._group_commit = group_commit
        self._checkpointer = checkpointer
        self._stats = stats

    async def remove_dead_files(self) -> None:
        """Delete sealed, checkpointed files without a live record.

        The control records of a deleted file are not lost (H7). Every journal file begins with the state of
        all ledgers, so the current file repeats them. Or it names a state snapshot, and the files from the
        position of this snapshot on are kept.
        """
        file_numbers = self.dead_files()
        for start in range(0, len(file_numbers), FILES_PER_REMOVAL):
            await self._remove_files(file_numbers[start : start + FILES_PER_REMOVAL])
            self._space.check()  # rejected writers need not wait for the next periodic check

    def dead_files(self) -> list[int]:
        """Return the numbers of the files that may be removed now."""
        first_unindexed = self._checkpointer.first_unindexed_sequence
        if not first_unindexed:
            return []
        snapshot = self._journal.head_snapshot
        sequence_limit = (
            first_unindexed if snapshot is None else min(first_unindexed, snapshot.next_sequence)
        )
        sealed_before = [
            number
            for number, (_, last) in self._journal.sealed_files.items()
            if last < sequence_limit
        ]
        return [
            number
            for number in (*sealed_before, *self._journal.compacted_files)
            if not self._index.live_bytes.get(number, 0)
            and number not in self._journal.pinned_files
        ]

    async def _remove_files(self, numbers: list[int]) -> None:
        remaining = set(numbers)
        durable = trio.Event()

        def removed(number: int) -> None:
            # In the same commit, so that no checkpoint after it lists the file.
            self._journal.sealed_files.pop(number, None)
            self._journal.compacted_files.pop(number, None)
            self._index.live_bytes.pop(number, None)
            remaining.remove(number)
            if not remaining:
                durable.set()

        def write(number: int, block: CommitBlock) -> None:
            block.control_records.append(jb.file_removed_record(number))
            block.after_sync.append(partial(removed, number))

        for number in numbers:
            self._group_commit.request_block(partial(write, number))
        await durable.wait()
        for number in numbers:
            self._files.mark_removed(number)
        await self._journal.delete_files(*numbers)
        self._stats.files_removed += len(numbers)
