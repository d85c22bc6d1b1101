"""The journal: numbered files, one block and one sync per commit. The journal is also the store.

`Journal.run` takes the oldest collected block, completes its header, writes and syncs it, and notifies the
store. The next block is collected during the sync. Only the commit of a single small block may run elsewhere
(`try_commit_inline`). Files are preallocated outside of commits, and rolled before a block that does not fit.
Every file begins with the states of all ledgers, and a sealed file ends in a footer with its extents. Nothing
is ever overwritten, and files are removed, never reused (H16). A failed write or sync ends the node, and
nothing in it was acknowledged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import trio

from ...runtime.declarations.meters import DurationHistogram
from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.disk.preallocation import Preallocation
from ...runtime.interfaces.host import Disk, File
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.options import BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace
from ..disk.disk_reserve import Reserve
from ..format import journal_format as jb
from ..format.compacted_format import CompactedFile, compacted_file_name
from ..ledgers.ledger_table import LedgerTable
from .file_preallocator import FilePreallocator, NewFile
from .journal_buffer import CommitBlock, JournalBuffer

IDLE_S = 60.0
"""After this time without a commit, a long file is sealed and truncated, and a short one begins."""
INLINE_BLOCK_BYTES_MAX = 16 * 1024
"""A longer block has more than a single record. It is left to `run`, so that more records can join it."""
CONTROL_RESERVE_BYTES_MAX = 1024 * 1024
"""The maximum space in the last possible file that is kept for fences and deletions (H28)."""
SERVICE_BUFFER_BYTES = 1024 * 1024
STATE_BYTES_MAX = 512 * 1024
log = get_logger("distributedlog.bookie.storage.journal")


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """A position in the journal: the sequence of the next block, and where it would begin."""

    next_sequence: int
    file_number: int
    offset: int
    first_sequence: int
    """The first sequence of the file."""
    last_block_offset: int = -1
    """The offset of the last block before the position; -1 if there is none."""


_length_of = attrgetter("length")


@dataclass(slots=True)
class JournalCounters:
    """Counts of a journal since its start."""

    syncs: int = 0
    commits: int = 0
    device_bytes: int = 0
    rolls: int = 0
    sync_seconds: DurationHistogram = field(default_factory=DurationHistogram)
    """The time to write and sync each block."""


class Journal:
    """The journal of one bookie. `start` opens it."""

    def __init__(
        self,
        disk: Disk,
        buffer: JournalBuffer,
        options: BookieOptions,
        *,
        identity: jb.JournalIdentity,
        ledgers: LedgerTable,
        space: BookieDiskSpace,
        reserve: Reserve,
    ) -> None:
        self._disk = disk
        self._space = space
        self.preallocator = FilePreallocator(disk, options, space, reserve)
        self._buffer = buffer
        self._options = options
        self.bookie_id, self.seed = identity.bookie_id, identity.seed
        self._ledgers = ledgers
        self._service_buffer = disk.aligned_buffer(SERVICE_BUFFER_BYTES)
        self._wake = trio.Event()
        self._file: File | None = None
        self._offset = self._limit = self._first_sequence = 0
        self._last_block_offset = -1
        self._file_begun_at = 0.0
        self._shrink_wanted = False
        self._footer_extents: list[bytes] = []
        self._watermark_frozen = False
        self._idle = False
        """Whether `run` waits for records."""
        self._failure: Exception | None = None
        """The error of a commit outside of `run`, which raises it."""
        self.preallocation = Preallocation(options.zero_ahead_bytes, identity.seed)
        self.number = 0
        self.start_count = 0
        self.next_sequence = 1
        self.durable_to = 0
        self.state_snapshot: jb.StateSnapshotRef | None = None
        """The snapshot that the next file's head names in place of all states."""
        self.head_snapshot: jb.StateSnapshotRef | None = None
        """The snapshot that the current file's head names."""
        self.sealed_files: dict[int, tuple[int, int]] = {}
        """Existing files before the current one: first and last sequence."""
        self.compacted_files: dict[int, CompactedFile] = {}
        """By number."""
        self.sealed_file_info: dict[int, SealedFileInfo] = {}
        """Information about the sealed files that this process has written."""
        self._entry_bytes_in_file = 0
        """The bytes of the entries in the current file."""
        self.pinned_files: set[int] = set()
        """Files that are kept even without live records, because records are being moved out of them or into
        them."""
        self.commit_times: list[float] | None = None
        """A list to which each commit's duration in seconds is added, or None."""
        self.last_sync_unproven = False
        """Whether no later block proves that the last block with content was synced."""
        self.file_bytes: dict[int, int] = {}
        """The bytes of each existing file on the device. Compacted files may have freed pages."""
        self.last_sync_at = 0.0
        self._write_began_at = 0.0
        self.counters = JournalCounters()

    # --- opening ----------------------------------------------------------------------------------

    async def start(
        self,
        *,
        start_count: int,
        next_sequence: int,
        durable_to: int,
        new_file: NewFile,
        predecessor: int,
        predecessor_end: int,
        sealed_files: dict[int, tuple[int, int]],
        compacted_files: dict[int, CompactedFile],
        state_snapshot: jb.StateSnapshotRef | None,
        states: list[bytes],
    ) -> None:
        """Begin a new file after the replayed part of the journal (H4).

        Until `mark_all_synced`, no block proves a sync of sequences after ``durable_to``.

        Args:
            start_count: The number of this start.
            next_sequence: The sequence of the first block.
            durable_to: The highest sequence that is known to be synced.
            predecessor: The number of the last replayed file; 0 if there is none.
            predecessor_end: The end of that file in bytes.
            state_snapshot: The snapshot that the head names, or None.
            states: The states that the snapshot lacks, because replayed blocks may no longer count. All
                states if there is no snapshot.
        """
        self.start_count = start_count
        self.next_sequence = next_sequence
        self.durable_to = durable_to
        self.sealed_files = sealed_files
        self.compacted_files = compacted_files
        self._watermark_frozen = True
        self.preallocator.next_number = new_file.number + 1
        self.state_snapshot = state_snapshot
        await self._begin_file(new_file, predecessor, predecessor_end, 0, states)

    def mark_all_synced(self) -> None:
        """Record that all replayed blocks that were not known to be synced have been copied and synced."""
        self._watermark_frozen = False
        self.durable_to = self.next_sequence - 1
        self.last_sync_unproven = True

    async def flush(self, on_synced: Callable[[CommitBlock, int, int], None]) -> None:
        """Commit all collected blocks, before `run` starts."""
        while self._buffer.has_work:
            await self._commit_one(on_synced)

    # --- serving ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake `run`, because records were collected."""
        self._wake.set()

    async def run(
        self, before_commit: Callable[[], None], on_synced: Callable[[CommitBlock, int, int], None]
    ) -> None:
        """Commit the collected blocks, one block and one sync at a time, until cancelled.

        Args:
            before_commit: Called before a block is taken.
            on_synced: Receives a durable block, the number of its file, and the difference between an offset
                in the file and a position in the block's buffer.
        Raises:
            DiskFailed: A write or sync failed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.preallocator.run)
            nursery.start_soon(self.preallocation.run)
            while True:
                if not self._buffer.has_work:
                    if self._shrink_wanted:
                        await self._shrink_file()
                        continue
                    await self._wait_for_work()
                    continue
                before_commit()
                await self._commit_one(on_synced)
                if (
                    self._buffer.has_work
                ):  # with inline syncs, no other task has run since the last commit
                    await trio.lowlevel.checkpoint()

    async def _wait_for_work(self) -> None:
        """Wait until records are collected. Raises the error of a commit outside of `run`."""
        self._wake = trio.Event()
        self._idle = True
        try:
            await self._wake.wait()
        finally:
            self._idle = False
        if self._failure is not None:
            raise self._failure

    def try_commit_inline(
        self, before_commit: Callable[[], None], on_synced: Callable[[CommitBlock, int, int], None]
    ) -> bool:
        """Commit the collected block within this call; return False if `run` must be woken to do it.

        The conditions: `run` is idle, there is only one block, it is short, its space in the file is
        preallocated, and the disk syncs within a call. Connections call this, and an error here would be
        attributed to the peer. So `run` raises errors that end the node.
        """
        file = self._file
        if not self._idle or self._wake.is_set() or file is None or not file.syncs_inline:
            return False
        before_commit()
        block_to_commit = self._buffer.only_block
        length = 0 if block_to_commit is None else self._buffer.padded_length(block_to_commit)
        if block_to_commit is None or not 0 < length <= INLINE_BLOCK_BYTES_MAX:
            return False
        offset = self._offset
        if not self._block_fits(block_to_commit, length) or not self.preallocation.reserve(
            offset, offset + length
        ):
            return False
        try:
            block = self._buffer.take()
            self._assign_position(block)
            began_at = trio.current_time()
            file.write_synced_now(offset, block.buffer.view[block.start : block.start + length])
            if self.commit_times is not None:
                self.commit_times.append(trio.current_time() - began_at)
            shift = self._record_written_block(block)
            self._on_block_synced(block, shift, on_synced)
        except Exception as error:  # failed assertions end the node as well
            self._failure = error
            self._wake.set()
        return True

    async def _commit_one(self, on_synced: Callable[[CommitBlock, int, int], None]) -> None:
        block = self._buffer.take()
        shift = 0
        if block.padded_length:
            shift = await self._write(block)
        else:
            await trio.lowlevel.checkpoint()
        self._on_block_synced(block, shift, on_synced)

    def _on_block_synced(
        self,
        block: CommitBlock,
        shift: int,
        on_synced: Callable[[CommitBlock, int, int], None],
    ) -> None:
        self._buffer.synced(block)
        self.counters.commits += 1
        on_synced(block, self.number, shift)

    async def _write(self, block: CommitBlock) -> int:
        length = block.padded_length
        if not self._block_fits(block, length):
            await self._roll()
            # A short file, from the last space of a full disk, is extended, or the write fails.
            self._extend_limit(
                length + _footer_bytes(len(block.pending_extents)) + jb.TRAILER_SPACE
            )
        assert self._file is not None, "started"
        offset = self._offset
        self._assign_position(block)
        began_at = trio.current_time()
        if not self.preallocation.reserve(offset, offset + length):
            await self.preallocation.wait_reserved(offset, offset + length)
        await self._file.write_synced(offset, block.buffer.view[block.start : block.start + length])
        if self.commit_times is not None:
            self.commit_times.append(trio.current_time() - began_at)
        return self._record_written_block(block)

    def _block_fits(self, block: CommitBlock, length: int) -> bool:
        """Whether the file has space for the block, and afterwards for its footer and trailer."""
        footer = _footer_bytes(len(self._footer_extents) + len(block.pending_extents))
        return self._offset + length + footer + jb.TRAILER_SPACE <= self._limit

    def _assign_position(self, block: CommitBlock) -> None:
        """Complete the header of a taken block for the next position in the file.

        It must be written at once.
        """
        self._write_began_at = trio.current_time()
        blocks.write_header(
            block.buffer.view,
            block.start,
            kind=jb.COMMIT,
            payload_bytes=self._buffer.payload_bytes(block),
            start_count=self.start_count,
            sequence=self.next_sequence,
            durable_to=self.durable_to,
            file_number=self.number,
            file_offset=self._offset,
            seed=self.seed,
        )
        self._buffer.on_block_positioned(block, self.number, self._offset)

    def _record_written_block(self, block: CommitBlock) -> int:
        """Record a durable block; return the difference between its offset in the file and in its buffer."""
        length = block.padded_length
        self.preallocation.record_commit(length)
        shift = self._offset - block.start
        append, pack_run = self._footer_extents.append, jb.pack_extent_row
        self._entry_bytes_in_file += sum(map(_length_of, block.pending_extents))
        for pending_extent in block.pending_extents:
            append(
                pack_run(
                    pending_extent.ledger.id,
                    pending_extent.first,
                    pending_extent.position + shift,
                    pending_extent.length,
                    pending_extent.count,
                )
            )
        self._advance_offset(length)
        self._record_sync(length)
        self.last_sync_unproven = bool(block.pending_extents or block.control_records)
        return shift

    def _advance_offset(self, length: int) -> None:
        self._last_block_offset = self._offset
        self._offset += length

    def _extend_limit(self, length: int) -> None:
        """Set the limit of the file to at least this many bytes after the present offset."""
        end = (self._offset + length + blocks.ALIGN - 1) // blocks.ALIGN * blocks.ALIGN
        self._limit = self.file_bytes[self.number] = max(self._limit, end)

    def _record_sync(self, length: int) -> None:
        if not self._watermark_frozen:
            self.durable_to = self.next_sequence
        self.next_sequence += 1
        self.counters.device_bytes += length
        self.counters.syncs += 1
        self.last_sync_at = trio.current_time()
        self.counters.sync_seconds.observe(self.last_sync_at - self._write_began_at)

    def position(self) -> JournalPosition:
        """Return the position after the last written block. A block that is not synced yet does not count."""
        return JournalPosition(
            self.next_sequence,
            self.number,
            self._offset,
            self._first_sequence,
            self._last_block_offset,
        )

    # --- files ------------------------------------------------------------------------------------

    def file_name_of(self, number: int) -> str:
        """Return the name of the journal or compacted file of this number."""
        return (
            compacted_file_name(number) if number in self.compacted_files else jb.file_name(number)
        )

    @property
    def waits_for_space(self) -> bool:
        """Whether a block waits for a file, for which there is no space."""
        return self._space.no_next_file and self.preallocator.is_starved

    @property
    def stored_bytes(self) -> int:
        """The bytes of all files, including the preallocated next one."""
        return sum(self.file_bytes.values()) + self.preallocator.ready_bytes

    def has_capacity(self, length: int) -> bool:
        """Whether there is space for this many bytes of records in addition to the collected ones.

        This is always the case if another file can be created. Otherwise the end of the last file is reserved
        for control records.
        """
        if not self._space.no_next_file:
            return True
        reserved_bytes = min(CONTROL_RESERVE_BYTES_MAX, self._limit // 4)
        remaining_bytes = (
            self._limit - self._offset - _footer_bytes(len(self._footer_extents)) - jb.TRAILER_SPACE
        )
        return 2 * (self._buffer.unsynced_bytes + length) + reserved_bytes <= remaining_bytes

    def check_idle(self) -> None:
        """After an idle time, replace a large file by a short one."""
        is_idle = trio.current_time() - max(self.last_sync_at, self._file_begun_at) >= IDLE_S
        is_oversized = self._limit > 2 * self.preallocator.file_bytes_min
        if (
            is_idle
            and is_oversized
            and self.preallocator.has_file
            and not self._space.no_next_file
            and not self._buffer.has_work
        ):
            self._shrink_wanted = True
            self._wake.set()

    async def _shrink_file(self) -> None:
        self._shrink_wanted = False
        await self.preallocator.discard_ready_files()
        await self._roll(shrink=True)

    async def _roll(self, *, shrink: bool = False) -> None:
        """Begin the next file, then seal this one, because a footer proves that a next file exists (H80).

        ``shrink`` frees the preallocated space that this file does not need.
        """
        assert self._file is not None, "started"
        await self.preallocation.finish_file()
        limit = self._limit
        if shrink:
            end = self._offset + _footer_bytes(len(self._footer_extents)) + jb.TRAILER_SPACE
            limit = min(limit, end // blocks.ALIGN * blocks.ALIGN + blocks.ALIGN)
        else:
            self.preallocator.adapt_size(self._offset, trio.current_time() - self._file_begun_at)
        sealing = _FileToSeal(
            self._file, self.number, self._offset, limit, self._first_sequence, self._footer_extents
        )
        new_file = await self.preallocator.acquire_file()
        states = await self._ledgers.state_records() if self.state_snapshot is None else []
        self.sealed_files[sealing.number] = (self._first_sequence, self.next_sequence - 1)
        self.sealed_file_info[sealing.number] = SealedFileInfo(
            trio.current_time(), self._entry_bytes_in_file
        )
        self.counters.rolls += 1
        await self._begin_file(new_file, sealing.number, sealing.end, sealing.block_count, states)
        await self._seal(sealing)

    async def _begin_file(
        self,
        new_file: NewFile,
        predecessor: int,
        end: int,
        sealing_blocks: int,
        states: list[bytes],
    ) -> None:
        self.number, self._file = new_file.number, new_file.file
        self.preallocation.start_file(
            new_file.file.write_zeros, new_file.size_bytes - jb.TRAILER_SPACE
        )
        self._file_begun_at = trio.current_time()
        self._offset = self._entry_bytes_in_file = 0
        self._last_block_offset = -1
        self._first_sequence = self.next_sequence
        self._footer_extents = []
        payloads = jb.state_payloads(states, STATE_BYTES_MAX)
        self.preallocator.state_bytes = sum(map(len, payloads))
        snapshot = self.state_snapshot
        head = jb.Head(
            self.bookie_id,
            self.start_count,
            predecessor,
            end,
            self._ledgers.limbo_below,
            tuple((file, first, last) for file, (first, last) in sorted(self.sealed_files.items())),
            len(payloads),
            sealing_blocks,
            self._ledgers.must_verify_below,
            tuple(file.row for _, file in sorted(self.compacted_files.items())),
            snapshot,
        )
        await self._write_service(jb.HEAD, head.encode())
        for payload in payloads:
            await self._write_service(jb.COMMIT, payload)
        self.head_snapshot = snapshot
        # The file may grow beyond its preallocation where the states alone nearly fill it.
        end_min = self._offset + self._options.block_bytes_max + 16 * blocks.ALIGN
        if new_file.size_bytes < self._options.first_file_bytes:
            # On a full disk, the file is for control records alone.
            end_min = self._offset + 2 * blocks.ALIGN
        self._limit = max(new_file.size_bytes, end_min // blocks.ALIGN * blocks.ALIGN)
        self.file_bytes[self.number] = self._limit

    async def _seal(self, sealing: "_FileToSeal") -> None:
        """Write footers and trailer of the previous file, when none of its space is being zeroed any more."""
        offset = sealing.end
        extents = sealing.footer_extents
        for start in range(0, len(extents), jb.FOOTER_EXTENTS_MAX):
            payload = b"".join(extents[start : start + jb.FOOTER_EXTENTS_MAX])
            offset += await self._write_service_block(
                sealing.file, sealing.number, offset, jb.FOOTER, payload
            )
        trailer = jb.Trailer(
            sealing.end, sealing.block_count - 1, sealing.first_sequence, self.next_sequence - 1
        )
        assert offset <= sealing.file_end - jb.TRAILER_SPACE, (
            "the trailer is after all other blocks"
        )
        offset = sealing.file_end - jb.TRAILER_SPACE
        await self._write_service_block(
            sealing.file, sealing.number, offset, jb.TRAILER, trailer.encode()
        )
        if sealing.file_end < self.file_bytes[sealing.number]:
            sealing.file.truncate(sealing.file_end)
            await sealing.file.sync()
            self.file_bytes[sealing.number] = sealing.file_end
        sealing.file.close()

    async def _write_service(self, kind: int, payload: bytes) -> None:
        """Append a head or state block to the current file."""
        assert self._file is not None, "started"
        await self.preallocation.wait_reserved(
            self._offset, self._offset + blocks.padded_length(len(payload))
        )
        self._advance_offset(
            await self._write_service_block(self._file, self.number, self._offset, kind, payload)
        )

    async def _write_service_block(
        self, file: File, number: int, offset: int, kind: int, payload: bytes
    ) -> int:
        """Write and sync a block before any later write; return its padded length."""
        start = blocks.HEADER_BYTES
        self._service_buffer[start : start + len(payload)] = payload
        length = blocks.write_header(
            self._service_buffer,
            0,
            kind=kind,
            payload_bytes=len(payload),
            start_count=self.start_count,
            sequence=self.next_sequence,
            durable_to=self.durable_to,
            file_number=number,
            file_offset=offset,
            seed=self.seed,
        )
        self._write_began_at = trio.current_time()
        await file.write_synced(offset, self._service_buffer[:length])
        self._record_sync(length)
        return length

    async def delete_files(self, *numbers: int) -> None:
        """Remove those of the files that exist.

        `FileRemoval` calls this for sealed and compacted files without a live record before the last
        checkpoint, after a durable record of the removal. A start (`FirstJournalFile`) calls it for files of
        which no block counts, if nothing is lost. No other code removes files that have blocks.
        `FilePreallocator` removes files that it has created and that were not begun.
        """
        existing = self._disk.list()
        names = [
            name
            for number in numbers
            for name in (jb.file_name(number), compacted_file_name(number))
        ]
        if names := [name for name in names if name in existing]:
            await self._disk.delete(*names)
        for number in numbers:
            self.file_bytes.pop(number, None)
            self.sealed_file_info.pop(number, None)

    def close(self) -> None:
        """Close the files that are open for writing."""
        if self._file is not None:
            self._file.close()
        self.preallocator.close()


@dataclass(frozen=True, slots=True)
class SealedFileInfo:
    """Information about a sealed file."""

    sealed_at: float
    record_bytes: int
    """The bytes of the entries that were written to it, live or not."""


@dataclass(frozen=True, slots=True)
class _FileToSeal:
    """The previous file, until it is sealed."""

    file: File
    number: int
    end: int
    """The end of its commits in bytes."""
    file_end: int
    first_sequence: int
    footer_extents: list[bytes]
    """Its extents as footer rows."""

    @property
    def block_count(self) -> int:
        """The number of its footer blocks and its trailer."""
        return -(-len(self.footer_extents) // jb.FOOTER_EXTENTS_MAX) + 1


def _footer_bytes(extent_count: int) -> int:
    """Return an upper limit of the bytes of a footer with this number of extents."""
    footers = extent_count // jb.FOOTER_EXTENTS_MAX + 1
    return (
        extent_count * jb.EXTENT_ROW_BYTES
        + footers * (blocks.ALIGN + blocks.HEADER_BYTES)
        + blocks.ALIGN
    )
