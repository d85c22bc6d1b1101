"""Remove journal and cold files without a live record, after a durable record of their removal."""

from functools import partial

import trio

from ..declarations.counters import Stats
from ..format import journal_format as jb
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock
from .checkpointer import Checkpointer

REMOVED_AT_ONCE = 16
"""Files removed by one commit and one update of the directory. When each was removed alone, the twenty files
of a 5 GB log delayed other writes by as many updates, up to 10 ms each."""


class FileRemoval:
    """The removal of one bookie's dead files."""

    def __init__(
        self, storage: BookieStorage, commits: GroupCommit, checkpointer: Checkpointer, stats: Stats
    ) -> None:
        self._journal = storage.journal
        self._index = storage.index
        self._files = storage.files
        self._space = storage.space
        self._commits = commits
        self._checkpointer = checkpointer
        self._stats = stats

    async def remove_dead_files(self) -> None:
        """Delete sealed, checkpointed files without a live record; their control records live on (H7).

        Every file begins with the state of all ledgers, so the current one repeats their control records. Or
        it names a base, and files from the position of the base on stay.
        """
        dead = self.dead_files()
        for at in range(0, len(dead), REMOVED_AT_ONCE):
            await self._remove(dead[at : at + REMOVED_AT_ONCE])
            self._space.look()  # refused writers need not wait for the next tick

    def dead_files(self) -> list[int]:
        """Return the numbers of the files that may be removed now."""
        checkpointed = self._checkpointer.checkpointed
        if not checkpointed:
            return []
        base = self._journal.named_base
        upto = checkpointed if base is None else min(checkpointed, base.position)
        passed = [number for number, (_, last) in self._journal.sealed.items() if last < upto]
        return [
            number
            for number in (*passed, *self._journal.cold)
            if not self._index.live_bytes.get(number, 0) and number not in self._journal.held
        ]

    async def _remove(self, numbers: list[int]) -> None:
        left = set(numbers)
        durable = trio.Event()

        def removed(number: int) -> None:
            # In the same commit, so that no checkpoint after it lists the file.
            self._journal.sealed.pop(number, None)
            self._journal.cold.pop(number, None)
            self._index.live_bytes.pop(number, None)
            left.remove(number)
            if not left:
                durable.set()

        def write(number: int, block: CommitBlock) -> None:
            block.controls.append(jb.file_removed_record(number))
            block.after_sync.append(partial(removed, number))

        for number in numbers:
            self._commits.with_block(partial(write, number))
        await durable.wait()
        for number in numbers:
            self._files.forget(number)
        await self._journal.delete(*numbers)
        self._stats.files_removed += len(numbers)
