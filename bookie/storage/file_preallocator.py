"""The journal's next file, made off the path of commits, so that a roll does not wait for it (H32).

A file is made as long as the rate of the last one asks for. Where there is no room for another file, the
reserve becomes one, and only for a block that waits.
"""

from collections import deque
from dataclasses import dataclass

import trio

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import DiskFull, TooBusy
from ...runtime.interfaces.host import Disk, File
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.options import BESIDE_BLOCK_BYTES, BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace
from ..disk.disk_reserve import Reserve
from ..format.journal_format import file_name

FILE_S = 5.0
"""A file is sized to be filled in this time at the rate of the last one, within bounds. Rolls stay rare at
full speed, and a bookie with few writes uses little space."""
RETRY_SPACE_S = 1.0

log = get_logger("distributedlog.bookie.storage.journal")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that nothing was written to."""

    number: int
    file: File
    size: int
    """Preallocated, bytes."""


class FilePreallocator:
    """Hold the next file of one journal. There is none while it is being made, or without free space."""

    def __init__(
        self, disk: Disk, options: BookieOptions, space: BookieDiskSpace, reserve: Reserve
    ) -> None:
        self._disk = disk
        self._options = options
        self._space = space
        self._reserve = reserve
        self._ahead: deque[NewFile] = deque()
        self._changed = trio.Event()
        self._next_bytes = options.first_file_bytes
        self._starved = trio.Event()
        """A block waits for a file."""
        self._runs = False
        self.state_bytes = 0
        """Of the states of all ledgers, at the current file's beginning."""
        self.next_number = 1
        """Of a journal or cold file."""

    async def run(self) -> None:
        """Keep the next file ready, until cancelled."""
        self._runs = True
        while True:
            while not self._ahead:
                new_file = await self.make_ahead()
                if new_file is None and self.starved:
                    await trio.sleep(RETRY_SPACE_S)
                    continue
                if new_file is None:
                    with trio.move_on_after(RETRY_SPACE_S):
                        await self._starved.wait()
                    continue
                self._ahead.append(new_file)
                self._note_change()
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def starved(self) -> bool:
        """Does a block wait for a file?"""
        return self._starved.is_set()

    @property
    def has_file(self) -> bool:
        """Is the next file there?"""
        return bool(self._ahead)

    @property
    def bytes_ahead(self) -> int:
        """Of the file that is there."""
        return sum(each.size for each in self._ahead)

    # --- numbers ----------------------------------------------------------------------------------

    def take_number(self) -> int:
        """The next file's number, for a journal or a cold file."""
        number, self.next_number = self.next_number, self.next_number + 1
        return number

    def _return_number(self, number: int) -> None:
        """Take back a number without a file, unless a later one is in use."""
        if self.next_number == number + 1:
            self.next_number = number

    # --- making -----------------------------------------------------------------------------------

    async def create(self, number: int, size: int) -> NewFile:
        """Make a file of at least ``size`` bytes. Raises `DiskFull`, and then leaves nothing of the file.

        The file is longer if the states of all ledgers would nearly fill it, because a write into space that
        was not preallocated can fail.
        """
        if size >= self._options.first_file_bytes:
            size = max(size, self.least_bytes)
        try:
            file = await self._disk.create(file_name(number), size=size, direct=True)
        except DiskFull:
            await self._delete(number)
            raise
        return NewFile(number, file, size)

    @property
    def least_bytes(self) -> int:
        """Return the length that leaves room for blocks after the states."""
        least = 2 * self.state_bytes + self._options.block_bytes_max + BESIDE_BLOCK_BYTES
        return max(self._options.first_file_bytes, least // blocks.ALIGN * blocks.ALIGN)

    async def from_reserve(self, number: int) -> NewFile | None:
        """Turn the reserve into a file; return None if the reserve was used already."""
        taken = await self._reserve.become(file_name(number))
        return None if taken is None else NewFile(number, *taken)

    async def make_ahead(self) -> NewFile | None:
        """Make the next file, or return None where that is not possible now."""
        number = self.take_number()
        try:
            new_file = await self.create(number, self._next_bytes)
            self._space.note_next_file(missing=False)
            return new_file
        except TooBusy as error:  # no file descriptor is free; the disk is sound
            log.warning("no journal file can be made now: %s", error)
            self._return_number(number)
            return None
        except DiskFull:
            self._space.note_next_file(missing=True)
        if self._next_bytes > self._options.first_file_bytes:
            self._next_bytes = self._options.first_file_bytes
        if self.starved:
            reserved = await self.from_reserve(number)
            if reserved is not None:
                return reserved
        self._return_number(number)
        return None

    async def take(self) -> NewFile:
        """Return the next file; wait for free space if there is none.

        A full disk does not end the node: the requests that wait for the block have deadlines of their own.
        """
        while not self._ahead:
            self._starved.set()
            if self._runs:
                await self._changed.wait()
            elif (
                new_file := await self.make_ahead()
            ) is not None:  # the copies of a start have filled a file
                self._ahead.append(new_file)
            else:
                raise DiskFull("no room for another journal file, which this start needs")
        self._starved = trio.Event()
        taken = self._ahead.popleft()
        self._note_change()
        return taken

    def note_full(self, length: int, lasted_s: float) -> None:
        """Size the next files by the rate at which one of ``length`` bytes was filled in ``lasted_s``."""
        options = self._options
        rate = length / max(lasted_s, 0.001)
        size = options.first_file_bytes
        while size < options.journal_file_bytes and size < rate * FILE_S:
            size *= 2
        most = max(options.journal_file_bytes, options.first_file_bytes)
        self._next_bytes = min(size, most)

    async def give_back(self) -> None:
        """Remove the preallocated file and make short ones from now on, because the rate has fallen."""
        self._next_bytes = self._options.first_file_bytes
        while self._ahead:
            made = self._ahead.popleft()
            made.file.close()
            await self._delete(made.number)
        self._note_change()

    async def _delete(self, number: int) -> None:
        """Remove a file that no block was written to."""
        if (name := file_name(number)) in self._disk.list():
            await self._disk.delete(name)

    def close(self) -> None:
        """Close the file that is open for writing."""
        for each in self._ahead:
            each.file.close()
