"""The journal: numbered files, one block a commit, one sync a block. The journal is the store.

The only task that writes is `Journal.run`: it takes the oldest gathered block, seals its header, writes and
syncs it, and tells the store; meanwhile the next block gathers. Files are preallocated ahead, off the hot
path, and rolled before a block that would not fit; every file begins with the state of all ledgers and a
sealed one ends in a footer of its runs. Nothing is ever overwritten, files are unlinked, never used again
(H16). What fails to be written or synced ends the node: nothing was acknowledged for it.
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
"""After so long without a commit a long file is sealed, cut at its end, and a short one begins."""
INLINE_BLOCK_BYTES_MAX = 16 * 1024
"""A longer block is no lone record's: it is left to `run`, so that more may gather before it is taken."""
CONTROL_RESERVE_BYTES_MAX = 1024 * 1024
"""Of the last file that there is room for: kept for fences and deletions (H28)."""
SERVICE_BUFFER_BYTES = 1024 * 1024
STATE_BYTES_MAX = 512 * 1024
log = get_logger("distributedlog.bookie.storage.journal")


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """How far the journal is applied: the next block's sequence, and where it would begin."""

    next_sequence: int
    file_number: int
    offset: int
    first_sequence: int
    """Of the file's first block."""
    last_block_offset: int = -1
    """Where the last block before begins; -1: there is none."""


_length_of = attrgetter("length")


@dataclass(slots=True)
class JournalCounters:
    """Counts of a journal since its start."""

    syncs: int = 0
    commits: int = 0
    device_bytes: int = 0
    """Written to the device."""
    rolls: int = 0
    sync_seconds: DurationHistogram = field(default_factory=DurationHistogram)
    """Of each block: writing it and its sync."""


class Journal:
    """The journal of one bookie, from its opening in `start` on."""

    def __init__(
        self,
        disk: Disk,
        ring: JournalBuffer,
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
        self._ring = ring
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
        """Is `run` waiting for something to gather?"""
        self._failure: Exception | None = None
        """What ended a commit outside of `run`, which raises it."""
        self.preallocation = Preallocation(options.zero_ahead_bytes, identity.seed)
        self.number = 0
        self.start_count = 0
        self.next_sequence = 1
        """Of the next block."""
        self.durable_to = 0
        self.state_snapshot: jb.StateSnapshotRef | None = None
        """What the next file's head names in place of all states."""
        self.head_snapshot: jb.StateSnapshotRef | None = None
        """What the current file's head names."""
        self.sealed_files: dict[int, tuple[int, int]] = {}
        """Files before the current one that are still there: first and last sequence."""
        self.compacted_files: dict[int, CompactedFile] = {}
        """The cold files that are there, by number."""
        self.sealed_file_info: dict[int, SealedFileInfo] = {}
        """Of the sealed ones, those that this process has written and left."""
        self._entry_bytes_in_file = 0
        """Of entries, in the current file."""
        self.pinned_files: set[int] = set()
        """Files that stay, whatever is live in them: something is being moved out of them, or into them."""
        self.commit_times: list[float] | None = None
        """Where somebody wants to know how long commits take, seconds each."""
        self.last_block_unattested = False
        """The last block that matters has no block after it that says it was synced."""
        self.file_bytes: dict[int, int] = {}
        """What the files that are there take of the device, by number: cold ones have holes."""
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
        """Begin a new file after what was replayed (H4).

        ``states``: those that ``base`` lacks, where there is one: what was replayed may count no more; else
        all. Until `mark_all_synced` no block says that anything after ``durable_to`` was synced.
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
        """All that was replayed and not known synced has been written again and synced."""
        self._watermark_frozen = False
        self.durable_to = self.next_sequence - 1
        self.last_block_unattested = True

    async def flush(self, on_synced: Callable[[CommitBlock, int, int], None]) -> None:
        """Commit all that has gathered; for the time before `run`."""
        while self._ring.has_work:
            await self._commit_one(on_synced)

    # --- serving ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has gathered."""
        self._wake.set()

    async def run(
        self, before_commit: Callable[[], None], on_synced: Callable[[CommitBlock, int, int], None]
    ) -> None:
        """Commit what gathers, one block and one sync at a time, until cancelled.

        ``on_synced`` gets a durable block, its file's number and what to add to a position in its buffer
        to get the place in the file. Raises `DiskFailed`.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.preallocator.run)
            nursery.start_soon(self.preallocation.run)
            while True:
                if not self._ring.has_work:
                    if self._shrink_wanted:
                        await self._shrink_file()
                        continue
                    await self._wait_for_work()
                    continue
                before_commit()
                await self._commit_one(on_synced)
                if self._ring.has_work:  # on a loop that syncs inline nobody else had a turn
                    await trio.lowlevel.checkpoint()

    async def _wait_for_work(self) -> None:
        """Wait until something has gathered. Raises what ended a commit meanwhile."""
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
        """Commit what has gathered within this call; False: not done, wake `run`.

        Only a short block that is all there is, while `run` rests, into space that is there, on a disk that
        syncs on the loop. A connection's task calls this: what ends the node is raised in `run`, for here it
        would be taken for the peer's fault.
        """
        file = self._file
        if not self._idle or self._wake.is_set() or file is None or not file.syncs_inline:
            return False
        before_commit()
        block_to_commit = self._ring.only_block
        length = 0 if block_to_commit is None else self._ring.padded_length(block_to_commit)
        if block_to_commit is None or not 0 < length <= INLINE_BLOCK_BYTES_MAX:
            return False
        offset = self._offset
        if not self._block_fits(block_to_commit, length) or not self.preallocation.reserve(
            offset, offset + length
        ):
            return False
        try:
            block = self._ring.take()
            self._assign_position(block)
            began_at = trio.current_time()
            file.write_synced_now(offset, block.buffer.view[block.start : block.start + length])
            if self.commit_times is not None:
                self.commit_times.append(trio.current_time() - began_at)
            shift = self._record_written_block(block)
            self._on_block_synced(block, shift, on_synced)
        except Exception as error:  # a rule of ours that is broken in here is the node's, too
            self._failure = error
            self._wake.set()
        return True

    async def _commit_one(self, on_synced: Callable[[CommitBlock, int, int], None]) -> None:
        block = self._ring.take()
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
        self._ring.synced(block)
        self.counters.commits += 1
        on_synced(block, self.number, shift)

    async def _write(self, block: CommitBlock) -> int:
        length = block.padded_length
        if not self._block_fits(block, length):
            await self._roll()
            # A file that was made of what a full disk had left takes it all the same, or its disk says no.
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
        """Does the file have room for the block, and for what seals it then?"""
        footer = _footer_bytes(len(self._footer_extents) + len(block.pending_extents))
        return self._offset + length + footer + jb.TRAILER_SPACE <= self._limit

    def _assign_position(self, block: CommitBlock) -> None:
        """Give a taken block its place, which is next in the file, and its header; it is written at once."""
        self._write_began_at = trio.current_time()
        blocks.write_header(
            block.buffer.view,
            block.start,
            kind=jb.COMMIT,
            payload_bytes=self._ring.payload_bytes(block),
            start_count=self.start_count,
            sequence=self.next_sequence,
            durable_to=self.durable_to,
            file_number=self.number,
            file_offset=self._offset,
            seed=self.seed,
        )
        self._ring.on_block_positioned(block, self.number, self._offset)

    def _record_written_block(self, block: CommitBlock) -> int:
        """A block is durable in its place; return what to add to a position in its buffer to get that."""
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
        self.last_block_unattested = bool(block.pending_extents or block.control_records)
        return shift

    def _advance_offset(self, length: int) -> None:
        self._last_block_offset = self._offset
        self._offset += length

    def _extend_limit(self, length: int) -> None:
        """What seals the file lies after so many bytes more, at the least."""
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
        """Behind the last block that was written; what is not yet synced counts as not written."""
        return JournalPosition(
            self.next_sequence,
            self.number,
            self._offset,
            self._first_sequence,
            self._last_block_offset,
        )

    # --- files ------------------------------------------------------------------------------------

    def file_name_of(self, number: int) -> str:
        """The name of the file of this number, journal or cold."""
        return (
            compacted_file_name(number) if number in self.compacted_files else jb.file_name(number)
        )

    @property
    def waits_for_space(self) -> bool:
        """A block waits for a file, and there is no room for one."""
        return self._space.no_next_file and self.preallocator.is_starved

    @property
    def stored_bytes(self) -> int:
        """Of all files, the one made ahead included."""
        return sum(self.file_bytes.values()) + self.preallocator.ready_bytes

    def has_capacity(self, length: int) -> bool:
        """Is there room for so many bytes of records, beside what has gathered?

        Always, unless no other file can be made: then the end of the last one is kept for control records.
        """
        if not self._space.no_next_file:
            return True
        reserved_bytes = min(CONTROL_RESERVE_BYTES_MAX, self._limit // 4)
        remaining_bytes = (
            self._limit - self._offset - _footer_bytes(len(self._footer_extents)) - jb.TRAILER_SPACE
        )
        return 2 * (self._ring.unsynced_bytes + length) + reserved_bytes <= remaining_bytes

    def check_idle(self) -> None:
        """After a while without a commit: give back what was made for a rate that is gone."""
        is_idle = trio.current_time() - max(self.last_sync_at, self._file_begun_at) >= IDLE_S
        is_oversized = self._limit > 2 * self.preallocator.file_bytes_min
        if (
            is_idle
            and is_oversized
            and self.preallocator.has_file
            and not self._space.no_next_file
            and not self._ring.has_work
        ):
            self._shrink_wanted = True
            self._wake.set()

    async def _shrink_file(self) -> None:
        self._shrink_wanted = False
        await self.preallocator.discard_ready_files()
        await self._roll(shrink=True)

    async def _roll(self, *, shrink: bool = False) -> None:
        """Begin the next file, then seal this one: what seals it proves that there is a next one (H80).

        ``cut``: what this one was made for and does not need is given back.
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
        if (
            new_file.size_bytes < self._options.first_file_bytes
        ):  # on a full disk: for control records alone
            end_min = self._offset + 2 * blocks.ALIGN
        self._limit = max(new_file.size_bytes, end_min // blocks.ALIGN * blocks.ALIGN)
        self.file_bytes[self.number] = self._limit

    async def _seal(self, sealing: "_FileToSeal") -> None:
        """Footers and trailer of a file that was left; nothing of it is being zeroed any more."""
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
        assert offset <= sealing.file_end - jb.TRAILER_SPACE, "a trailer lies after all else"
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
        """A block of the journal's own at the end of the current file."""
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
        """Write and sync a block before anything goes after it; return its padded length."""
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
        """Remove the files that exist.

        `FileRemoval` calls this for sealed and cold files without a live record before the last checkpoint,
        after a durable record of the removal. A start (`FirstJournalFile`) calls it for files of which no
        block counts, if nothing is lost. No other code removes files that have blocks. `FilePreallocator`
        removes files that it has made and that were not begun.
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
    """A file that nothing more is written to."""

    sealed_at: float
    """Since when."""
    record_bytes: int
    """Of the entries that were written to it, whatever is live of them."""


@dataclass(frozen=True, slots=True)
class _FileToSeal:
    """A file that was left and is to be sealed."""

    file: File
    number: int
    end: int
    """Of its commits, bytes."""
    file_end: int
    first_sequence: int
    footer_extents: list[bytes]
    """Its runs, packed."""

    @property
    def block_count(self) -> int:
        """How many sequences it takes: the footers and the trailer."""
        return -(-len(self.footer_extents) // jb.FOOTER_EXTENTS_MAX) + 1


def _footer_bytes(extent_count: int) -> int:
    """Space for a footer of so many runs, bytes, never too little."""
    footers = extent_count // jb.FOOTER_EXTENTS_MAX + 1
    return (
        extent_count * jb.EXTENT_ROW_BYTES
        + footers * (blocks.ALIGN + blocks.HEADER_BYTES)
        + blocks.ALIGN
    )
