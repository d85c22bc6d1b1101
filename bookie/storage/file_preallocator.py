"""Create the next journal file before it is needed, so that a roll does not wait for it (H32).

The size of a file depends on the rate at which the last one was filled. If there is no space for another
file, the reserve is turned into one, but only for a block that already waits.
"""

from collections import deque
from dataclasses import dataclass

import trio

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import DiskFull, TooBusy
from ...runtime.interfaces.host import Disk, File
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.options import FILE_OVERHEAD_BYTES, BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace
from ..disk.disk_reserve import Reserve
from ..format.journal_format import file_name

FILE_FILL_S = 5.0
"""A file is sized to be filled in this time at the rate of the last one, within limits. Rolls stay rare at
full speed, and a bookie with few writes uses little space."""
RETRY_SPACE_S = 1.0

log = get_logger("distributedlog.bookie.storage.journal")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file without any blocks."""

    number: int
    file: File
    size_bytes: int
    """The preallocated bytes."""


class FilePreallocator:
    """Holds the next file of one journal. There is none while it is being created, or without free space."""

    def __init__(
        self, disk: Disk, options: BookieOptions, space: BookieDiskSpace, reserve: Reserve
    ) -> None:
        self._disk = disk
        self._options = options
        self._space = space
        self._reserve = reserve
        self._ready_files: deque[NewFile] = deque()
        self._changed = trio.Event()
        self._next_bytes = options.first_file_bytes
        self._file_wanted = trio.Event()
        """Set while a block waits for a file."""
        self._running = False
        self.state_bytes = 0
        """The bytes of the ledger states at the beginning of the current file."""
        self.next_number = 1
        """The number of the next journal or compacted file."""

    async def run(self) -> None:
        """Keep the next file ready, until cancelled."""
        self._running = True
        while True:
            while not self._ready_files:
                new_file = await self.create_next()
                if new_file is None and self.is_starved:
                    await trio.sleep(RETRY_SPACE_S)
                    continue
                if new_file is None:
                    with trio.move_on_after(RETRY_SPACE_S):
                        await self._file_wanted.wait()
                    continue
                self._ready_files.append(new_file)
                self._notify_change()
            await self._changed.wait()

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_starved(self) -> bool:
        """Whether a block waits for a file."""
        return self._file_wanted.is_set()

    @property
    def has_file(self) -> bool:
        """Whether the next file is ready."""
        return bool(self._ready_files)

    @property
    def ready_bytes(self) -> int:
        """The bytes of the files that are ready."""
        return sum(new_file.size_bytes for new_file in self._ready_files)

    # --- numbers ----------------------------------------------------------------------------------

    def next_file_number(self) -> int:
        """Reserve and return the number of the next journal or compacted file."""
        number, self.next_number = self.next_number, self.next_number + 1
        return number

    def _release_number(self, number: int) -> None:
        """Release a number without a file, unless a later one is in use."""
        if self.next_number == number + 1:
            self.next_number = number

    # --- creating ---------------------------------------------------------------------------------

    async def create(self, number: int, size: int) -> NewFile:
        """Create a file of at least ``size`` bytes.

        The file is longer if the states of all ledgers would nearly fill it, because a write into space that
        was not preallocated can fail.

        Raises:
            DiskFull: No file was created.
        """
        if size >= self._options.first_file_bytes:
            size = max(size, self.file_bytes_min)
        try:
            file = await self._disk.create(file_name(number), size=size, direct=True)
        except DiskFull:
            await self._delete(number)
            raise
        return NewFile(number, file, size)

    @property
    def file_bytes_min(self) -> int:
        """The minimum file size that leaves space for blocks after the states."""
        bytes_min = 2 * self.state_bytes + self._options.block_bytes_max + FILE_OVERHEAD_BYTES
        return max(self._options.first_file_bytes, bytes_min // blocks.ALIGN * blocks.ALIGN)

    async def create_from_reserve(self, number: int) -> NewFile | None:
        """Turn the reserve into a file; return None if the reserve was used already."""
        reserved = await self._reserve.convert_to_file(file_name(number))
        return None if reserved is None else NewFile(number, *reserved)

    async def create_next(self) -> NewFile | None:
        """Create the next file, or return None if this is not possible now."""
        number = self.next_file_number()
        try:
            new_file = await self.create(number, self._next_bytes)
            self._space.set_next_file_missing(missing=False)
            return new_file
        except TooBusy as error:  # no file descriptor is free; the disk is sound
            log.warning("no journal file can be created now: %s", error)
            self._release_number(number)
            return None
        except DiskFull:
            self._space.set_next_file_missing(missing=True)
        if self._next_bytes > self._options.first_file_bytes:
            self._next_bytes = self._options.first_file_bytes
        if self.is_starved:
            reserved = await self.create_from_reserve(number)
            if reserved is not None:
                return reserved
        self._release_number(number)
        return None

    async def acquire_file(self) -> NewFile:
        """Return the next file, and wait for free space if there is none.

        A full disk does not end the node, because the requests that wait for the block have their own
        deadlines.

        Raises:
            DiskFull: There is no space, and this is a start, which cannot wait.
        """
        while not self._ready_files:
            self._file_wanted.set()
            if self._running:
                await self._changed.wait()
            # The copies of a start have filled a file.
            elif (new_file := await self.create_next()) is not None:
                self._ready_files.append(new_file)
            else:
                raise DiskFull("no space for another journal file, which this start needs")
        self._file_wanted = trio.Event()
        next_file = self._ready_files.popleft()
        self._notify_change()
        return next_file

    def adapt_size(self, length: int, filled_in_s: float) -> None:
        """Size the next files by the rate at which ``length`` bytes were filled in ``filled_in_s``."""
        options = self._options
        rate = length / max(filled_in_s, 0.001)
        size = options.first_file_bytes
        while size < options.journal_file_bytes and size < rate * FILE_FILL_S:
            size *= 2
        size_max = max(options.journal_file_bytes, options.first_file_bytes)
        self._next_bytes = min(size, size_max)

    async def discard_ready_files(self) -> None:
        """Remove the preallocated file, and create short ones from now on, because the rate has fallen."""
        self._next_bytes = self._options.first_file_bytes
        while self._ready_files:
            new_file = self._ready_files.popleft()
            new_file.file.close()
            await self._delete(new_file.number)
        self._notify_change()

    async def _delete(self, number: int) -> None:
        """Remove a file without any blocks."""
        if (name := file_name(number)) in self._disk.list():
            await self._disk.delete(name)

    def close(self) -> None:
        """Close the files that are ready."""
        for new_file in self._ready_files:
            new_file.file.close()
