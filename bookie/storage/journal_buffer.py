"""The ring of gather buffers: where commits gather, and where the newest bytes are read from.

A commit's block is built in place: room for the header, entry records one after the other as they come,
control records, the end. While one block is written and synced the next one gathers after it. A buffer
is used again only when none of its blocks waits for a sync; until then it serves readers, who copy out.
No reference to it leaves a synchronous call, so nothing is pinned (H16).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.host import Buffer
from ..format import journal_format as jb
from ..ledgers.ledger_table import IncomingStream, Ledger, PendingExtent

CONTROL_SPACE_BYTES = 64 * 1024
"""Room for control records at the end of a block; a block with more of them is closed."""


@dataclass(slots=True, eq=False)
class CommitBlock:
    """One commit in the making. ``start`` and ``end`` are positions in ``buffer``."""

    buffer: "_RingBuffer"
    start: int
    end: int
    end_max: int
    """Up to here it may reach, its end included."""
    records_end_max: int
    """Up to here its records may, while its control records fit the space that is kept for them."""
    pending_extents: list[PendingExtent] = field(default_factory=list)
    control_records: list[bytes] = field(default_factory=list)
    acks: dict[IncomingStream, int] = field(default_factory=dict)
    """Add stream -> how many of its records are durable when this block is (H1)."""
    highest_lacs: dict[Ledger, int] = field(default_factory=dict)
    """Ledger -> the highest LAC its records carry; published after the sync."""
    after_sync: list[Callable[[], None]] = field(default_factory=list)
    is_watermark: bool = False
    """Write it though it is empty: it proves that the blocks before it were synced (H3)."""
    padded_length: int = 0
    """Set when the block is taken for its commit; 0 for one that writes nothing."""

    @property
    def records_start(self) -> int:
        """Position of the first record."""
        return self.start + blocks.HEADER_BYTES

    @property
    def has_content(self) -> bool:
        """Is there anything to write? Duplicates alone are only acknowledged (H10)."""
        return self.end > self.records_start or bool(self.control_records) or self.is_watermark

    @property
    def has_no_effect(self) -> bool:
        """Would its commit change nothing, for nobody?"""
        return not (self.has_content or self.acks or self.after_sync or self.highest_lacs)


@dataclass(slots=True)
class _FilePart:
    """A stretch of a buffer whose bytes lie in a file in the same order."""

    file_number: int
    file_offset: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class _RingBuffer:
    view: memoryview
    file_parts: list[_FilePart] = field(default_factory=list)
    unsynced_blocks: int = 0
    """Blocks in it that are gathering or being synced."""


class JournalBuffer:
    """The buffers, the block that gathers now, and those that wait for their commit."""

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
        self._open_blocks: deque[CommitBlock] = deque()
        self.unsynced_bytes = 0
        """Record bytes gathered and not yet synced."""
        self._control_space = min(CONTROL_SPACE_BYTES, self._block_max // 8)
        self.entry_bytes_max = (
            self._block_max - blocks.HEADER_BYTES - self._control_space - jb.COMMIT_END_BYTES
        )
        """The longest stretch of records that fits an empty block."""

    @property
    def has_work(self) -> bool:
        """Is there a block to commit?"""
        return len(self._open_blocks) > 1 or (
            bool(self._open_blocks) and not self._open_blocks[0].has_no_effect
        )

    @property
    def only_block(self) -> CommitBlock | None:
        """The block that waits to be taken, where it is the only one."""
        return self._open_blocks[0] if len(self._open_blocks) == 1 else None

    def block_for_records(self, length: int) -> CommitBlock | None:
        """The block that takes ``length`` bytes of records now; None while the ring is full."""
        block = self._open_blocks[-1] if self._open_blocks else None
        if block is not None:
            end = block.end + length
            if end <= block.records_end_max:
                used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
                if used <= self._control_space or end + used + jb.COMMIT_END_BYTES <= block.end_max:
                    return block
        return self._open_block(length)

    def records_end_max(self, block: CommitBlock, unsynced_bytes_max: int) -> int:
        """Up to where records may be appended to the newest block, as `block_for_records` would say of each,
        while no more than so many bytes are not synced and no control record joins it."""
        used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
        end_max = block.records_end_max
        if used > self._control_space:
            end_max = min(end_max, block.end_max - used - jb.COMMIT_END_BYTES)
        return min(end_max, block.end + unsynced_bytes_max - self.unsynced_bytes)

    def control_block(self) -> CommitBlock | None:
        """The block that takes one more control record; None while the ring is full."""
        block = self._open_blocks[-1] if self._open_blocks else None
        if block is not None:
            used = jb.CONTROL_BYTES * (len(block.control_records) + 1)
            if block.end + used + jb.COMMIT_END_BYTES <= block.end_max:
                return block
        return self._open_block(0)

    def newest(self) -> CommitBlock | None:
        """The block that gathers now, to join its commit without writing; None while the ring is full."""
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
        """What a block that gathers would write, if it were taken now; 0: nothing."""
        if not block.has_content:
            return 0
        controls = jb.CONTROL_BYTES * len(block.control_records) + jb.COMMIT_END_BYTES
        return blocks.padded_length(block.end - block.records_start + controls)

    def append(self, block: CommitBlock, records: Buffer) -> int:
        """Copy records into ``block`` (room was asked for); return where they begin in its buffer."""
        position = block.end
        end = position + len(records)
        block.buffer.view[position:end] = records
        block.end = end
        self.unsynced_bytes += end - position
        return position

    def take(self) -> CommitBlock:
        """Close the oldest block for its commit: its payload is complete, only the header is missing.

        Records that come from now on gather after it.
        """
        block = self._open_blocks.popleft()
        if not block.has_content:
            return block
        controls = b"".join(block.control_records)
        tail = controls + jb.commit_end(len(controls))
        block.buffer.view[block.end : block.end + len(tail)] = tail
        block.padded_length = blocks.padded_length(block.end - block.records_start + len(tail))
        if not self._open_blocks:
            self._position = block.start + block.padded_length
        return block

    def payload_bytes(self, block: CommitBlock) -> int:
        """Of a taken block: records, control records and the end."""
        controls = jb.CONTROL_BYTES * len(block.control_records) + jb.COMMIT_END_BYTES
        return block.end - block.records_start + controls

    def on_block_positioned(self, block: CommitBlock, file_number: int, file_offset: int) -> None:
        """A taken block lies at this place of a file: from now on `find_bytes` knows its bytes."""
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
        """A taken block is durable."""
        block.buffer.unsynced_blocks -= 1
        self.unsynced_bytes -= block.end - block.records_start

    def find_bytes(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """The bytes of that place if they are still here: copy them before the next ``await``."""
        for buffer in self._ring:
            for part in buffer.file_parts:
                if part.file_number == file_number:
                    start = part.start + offset - part.file_offset
                    if part.start <= start and start + length <= part.end:
                        return buffer.view[start : start + length]
        return None
