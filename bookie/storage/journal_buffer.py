"""The ring of buffers in which commits are collected, and from which the newest entries are read.

A commit's block is built in place: space for the header, entry records in the order of arrival, control
records, and the end mark. While one block is written and synced, the next one is collected after it. A buffer
is reused only when none of its blocks waits for a sync. Until then, readers copy entries from it. No
reference to a buffer remains after a synchronous call, so that readers do not delay its reuse (H16).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.host import Buffer
from ..format import journal_format as jb
from ..ledgers.ledger_table import IncomingStream, Ledger, PendingExtent

CONTROL_SPACE_BYTES = 64 * 1024
"""Space for control records at the end of a block. If they need more, a block takes no further records."""


@dataclass(slots=True, eq=False)
class CommitBlock:
    """One commit that is being collected. ``start`` and ``end`` are positions in ``buffer``."""

    buffer: "_RingBuffer"
    start: int
    end: int
    end_max: int
    """The maximum end of the block, including its end mark."""
    records_end_max: int
    """The maximum end of its records, while its control records fit into their reserved space."""
    pending_extents: list[PendingExtent] = field(default_factory=list)
    control_records: list[bytes] = field(default_factory=list)
    acks: dict[IncomingStream, int] = field(default_factory=dict)
    """Add stream -> how many of its records are durable when this block is (H1)."""
    highest_lacs: dict[Ledger, int] = field(default_factory=dict)
    """Ledger -> the highest LAC in its records, which is published after the sync."""
    after_sync: list[Callable[[], None]] = field(default_factory=list)
    is_watermark: bool = False
    """Write the block even if it is empty: it proves that the blocks before it were synced (H3)."""
    padded_length: int = 0
    """Set when the block is taken for its commit; 0 if nothing is written for it."""

    @property
    def records_start(self) -> int:
        """The position of the first record."""
        return self.start + blocks.HEADER_BYTES

    @property
    def has_content(self) -> bool:
        """Whether anything must be written. Duplicates alone are only acknowledged (H10)."""
        return self.end > self.records_start or bool(self.control_records) or self.is_watermark

    @property
    def has_no_effect(self) -> bool:
        """Whether its commit would change nothing and notify no client."""
        return not (self.has_content or self.acks or self.after_sync or self.highest_lacs)


@dataclass(slots=True)
class _FilePart:
    """A range of a buffer whose bytes are contiguous in a file."""

    file_number: int
    file_offset: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class _RingBuffer:
    view: memoryview
    file_parts: list[_FilePart] = field(default_factory=list)
    unsynced_blocks: int = 0
    """Its blocks that are being collected or synced."""


class JournalBuffer:
    """The buffers, the block that is being collected, and the blocks that wait for their commit."""

    def __init__(
        self,
        allocate: Callable[[int], memoryview],
        *,
        buffers: int,
        bytes_each: int,
        block_max: int,
    ) -> None:
        self._ring = [_RingBuffer(allocate(bytes_each)) for _ in range(buffers)]
        self._bytes_each = bytes_each
        self._block_max = min(block_max, bytes_each)
        self._current = 0
        self._position = 0
        """Where the newest block starts in the current buffer, or the next one if no block is open."""
        self._open_blocks: deque[CommitBlock] = deque()
        self.unsynced_bytes = 0
        """Record bytes that were collected and are not synced yet."""
        self._control_space = min(CONTROL_SPACE_BYTES, self._block_max // 8)
        self.entry_bytes_max = (
            self._block_max - blocks.HEADER_BYTES - self._control_space - jb.COMMIT_END_BYTES
        )
        """The maximum bytes of records in an empty block."""

    @property
    def has_work(self) -> bool:
        """Whether there is a block to commit."""
        return len(self._open_blocks) > 1 or (
            bool(self._open_blocks) and not self._open_blocks[0].has_no_effect
        )

    @property
    def only_block(self) -> CommitBlock | None:
        """The block that waits to be taken, if there is exactly one."""
        return self._open_blocks[0] if len(self._open_blocks) == 1 else None

    def block_for_records(self, length: int) -> CommitBlock | None:
        """Return the block for ``length`` bytes of records; None while the ring is full."""
        block = self._open_blocks[-1] if self._open_blocks else None
        if block is not None:
            end = block.end + length
            if end <= block.records_end_max:
                used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
                if used <= self._control_space or end + used + jb.COMMIT_END_BYTES <= block.end_max:
                    return block
        return self._open_block(length)

    def records_end_max(self, block: CommitBlock, unsynced_bytes_max: int) -> int:
        """Return the end up to which records may be appended to the newest block.

        Up to there, `block_for_records` would return this block for each record, as long as no control record
        is added. At most ``unsynced_bytes_max`` bytes are then unsynced.
        """
        used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
        end_max = block.records_end_max
        if used > self._control_space:
            end_max = min(end_max, block.end_max - used - jb.COMMIT_END_BYTES)
        return min(end_max, block.end + unsynced_bytes_max - self.unsynced_bytes)

    def control_block(self) -> CommitBlock | None:
        """Return the block for one more control record; None while the ring is full."""
        block = self._open_blocks[-1] if self._open_blocks else None
        if block is not None:
            used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
            if block.end + used + jb.COMMIT_END_BYTES <= block.end_max:
                return block
        return self._open_block(0)

    def newest(self) -> CommitBlock | None:
        """Return the open block, to join its commit without a record; None while the ring is full."""
        return self._open_blocks[-1] if self._open_blocks else self._open_block(0)

    def _open_block(self, length: int) -> CommitBlock | None:
        bytes_needed = blocks.HEADER_BYTES + length + self._control_space + jb.COMMIT_END_BYTES
        if bytes_needed > self._block_max:
            return None
        start = self._position
        if self._open_blocks:
            last = self._open_blocks[-1]
            start = last.start + self.padded_length(last)
        if start + bytes_needed > self._bytes_each:
            next_index = (self._current + 1) % len(self._ring)
            if self._ring[next_index].unsynced_blocks:
                return None
            self._current = next_index
            self._ring[next_index].file_parts.clear()
            start = 0
        buffer = self._ring[self._current]
        buffer.unsynced_blocks += 1
        self._position = start
        limit = min(start + self._block_max, self._bytes_each)
        block = CommitBlock(
            buffer,
            start,
            start + blocks.HEADER_BYTES,
            limit,
            limit - self._control_space - jb.COMMIT_END_BYTES,
        )
        self._open_blocks.append(block)
        return block

    def padded_length(self, block: CommitBlock) -> int:
        """Return the bytes that a block would write if it were taken now; 0 for none."""
        if not block.has_content:
            return 0
        controls = jb.CONTROL_BYTES * len(block.control_records) + jb.COMMIT_END_BYTES
        return blocks.padded_length(block.end - block.records_start + controls)

    def append(self, block: CommitBlock, records: Buffer) -> int:
        """Copy records into a block that has space for them; return their position in its buffer."""
        position = block.end
        end = position + len(records)
        block.buffer.view[position:end] = records
        block.end = end
        self.unsynced_bytes += end - position
        return position

    def take(self) -> CommitBlock:
        """Close the oldest block for its commit: its payload is complete, and only the header is missing.

        Later records are collected in the next block.
        """
        block = self._open_blocks.popleft()
        if not block.has_content:
            return block
        controls = b"".join(block.control_records)
        tail = controls + jb.commit_end(len(controls))
        block.buffer.view[block.end : block.end + len(tail)] = tail
        block.padded_length = blocks.padded_length(block.end - block.records_start + len(tail))
        if not self._open_blocks:  # otherwise the newest block has its start already
            self._position = block.start + block.padded_length
        return block

    def payload_bytes(self, block: CommitBlock) -> int:
        """Return the bytes of a taken block's records, control records and end mark."""
        controls = jb.CONTROL_BYTES * len(block.control_records) + jb.COMMIT_END_BYTES
        return block.end - block.records_start + controls

    def on_block_positioned(self, block: CommitBlock, file_number: int, file_offset: int) -> None:
        """Record the location of a taken block in a file, so that `find_bytes` finds its bytes."""
        parts = block.buffer.file_parts
        if parts:
            last = parts[-1]
            if (
                last.file_number == file_number
                and last.end == block.start
                and last.file_offset + (last.end - last.start) == file_offset
            ):
                last.end = block.start + block.padded_length
                return
        parts.append(
            _FilePart(file_number, file_offset, block.start, block.start + block.padded_length)
        )

    def synced(self, block: CommitBlock) -> None:
        """Record that a taken block is durable."""
        block.buffer.unsynced_blocks -= 1
        self.unsynced_bytes -= block.end - block.records_start

    def find_bytes(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """Return these bytes of a file if the ring still has them. Copy them before the next ``await``."""
        for buffer in self._ring:
            for part in buffer.file_parts:
                if part.file_number == file_number:
                    start = part.start + offset - part.file_offset
                    if part.start <= start and start + length <= part.end:
                        return buffer.view[start : start + length]
        return None
