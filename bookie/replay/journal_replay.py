"""Read the journal at a start, and decide which blocks count, by their sequences and not by their bytes (H3).

`scan_file` reads the valid blocks. `decide` (pure) selects those that count:

- A later start drops the blocks of earlier starts from its own first sequence on.
- Sequences in a SKIP record do not count, and are not missing.
- For the rest, `classify_tail` of `runtime/disk/checksummed_blocks.py` separates the torn tail from missing
  synced blocks. The tail is cut, including any valid blocks in it. Missing synced blocks are a corruption,
  which leads to fences and the limbo state.
- Blocks that count, and are above the highest sequence known to be synced, are the unsynced blocks. They are
  copied into the new file and synced before the bookie serves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.disk.atomic_file import read_skipping_unreadable
from ...runtime.interfaces.errors import CorruptData, DiskFailed, ForeignData
from ...runtime.interfaces.host import Disk, File
from ..format import journal_format as jb
from ..format.index_format import IndexCheckpoint

SCAN_BYTES = blocks.BLOCK_BYTES_MAX
_MAGIC_OFFSET = 8
"""The offset of the low byte of a block's magic number, which is not zero."""


@dataclass(slots=True)
class ReplayedBlock:
    """A valid block of the journal, without its bytes."""

    kind: int
    sequence: int
    durable_to: int
    start_count: int
    file_number: int
    offset: int
    padded_length: int
    records_length: int = 0
    extents: list[jb.JournalExtent] = field(default_factory=list)
    lacs: dict[int, int] = field(default_factory=dict)
    controls: list[jb.ControlRecord] = field(default_factory=list)
    head: jb.Head | None = None


@dataclass(slots=True)
class ReplayDecision:
    """The blocks that count, in order of their sequence."""

    durable_blocks: list[ReplayedBlock]
    unsynced_blocks: list[ReplayedBlock]
    lost_ranges: list[tuple[int, int]]
    """Sequences (inclusive) that were synced and are missing."""
    durable_to: int
    tail_from: int
    """The first sequence that the next start may use."""


@dataclass(slots=True)
class FileScan:
    """The content of a file."""

    blocks: list[ReplayedBlock]
    is_blank: bool
    """Nothing was ever written to the file, not even a torn block."""


class ReplayedJournal:
    """The replayed journal: the blocks that count, and their files."""

    def __init__(
        self,
        decision: ReplayDecision,
        sealed: dict[int, tuple[int, int]],
        number: int,
        end: int,
        start_count: int,
    ) -> None:
        self.decision = decision
        self.sealed_files = sealed
        self.last_file_number = number
        """The last file with a block that counts; 0 if there is none."""
        self.last_file_end = end
        self.last_file_first_sequence = 0
        """The first sequence of that file."""
        self.start_count = start_count

    def remove_file(self, number: int) -> None:
        """Forget a file without any content."""
        self.sealed_files.pop(number, None)
        if number == self.last_file_number:
            self.last_file_first_sequence = 0

    def record_files(
        self,
        blocks_found: list[ReplayedBlock],
        decision: ReplayDecision,
        checkpoint: IndexCheckpoint | None,
    ) -> None:
        """Record the sequences of each file, from the blocks that count."""
        self.start_count = max((self.start_count, *(block.start_count for block in blocks_found)))
        sequences_by_file: dict[int, tuple[int, int]] = {}
        for block in (*decision.durable_blocks, *decision.unsynced_blocks):
            first, _ = sequences_by_file.get(block.file_number, (block.sequence, 0))
            sequences_by_file[block.file_number] = first, block.sequence
            # A file is sealed after the next one has begun, so the numbers are not in order.
            if block.file_number >= self.last_file_number:
                self.last_file_number = block.file_number
                self.last_file_end = block.offset + block.padded_length
        if checkpoint is not None and checkpoint.file_number:
            _, last = sequences_by_file.get(
                checkpoint.file_number, (0, checkpoint.first_unindexed_sequence - 1)
            )
            sequences_by_file[checkpoint.file_number] = (checkpoint.first_sequence, last)
        numbers = sorted(sequences_by_file)
        for number, next_number in pairwise(numbers):
            self.sealed_files[number] = (
                sequences_by_file[number][0],
                sequences_by_file[next_number][0] - 1,
            )
        if numbers:
            self.last_file_first_sequence = sequences_by_file[numbers[-1]][0]
        for block in decision.durable_blocks:
            for control in block.controls:
                if control.kind == jb.SKIP:
                    exclude_tails(self.sealed_files, control.a, control.b)


OnUnreadable = Callable[[CorruptData], None]


async def open_file(disk: Disk, name: str) -> File:
    """Open a journal or compacted file.

    Raises:
        CorruptData: The file is missing, or cannot be opened.
        TooBusy: No file descriptor is free.
    """
    try:
        return await disk.open(name)
    except (FileNotFoundError, DiskFailed) as error:
        raise CorruptData(f"{name} cannot be opened: {error}") from error


async def scan_file(
    disk: Disk,
    name: str,
    number: int,
    seed: int,
    bookie_id: str,
    start: int = 0,
    *,
    on_unreadable: OnUnreadable,
) -> FileScan:
    """Return the valid blocks of a journal file from offset ``start`` on.

    ``on_unreadable`` is called for the file, or for each part of it, that cannot be read. Blocks in such a
    part are not returned, and the file is not blank.

    Raises:
        ForeignData: Another bookie wrote the file.
        UnsupportedFormat: A newer version wrote it.
        CorruptData: The content of a valid block is inconsistent.
    """
    try:
        file = await open_file(disk, name)
    except CorruptData as error:
        on_unreadable(error)
        return FileScan([], False)
    scanned_blocks: list[ReplayedBlock] = []
    blank = start == 0
    last_sequence = 0

    def note_unreadable(error: CorruptData, end: int) -> None:
        nonlocal blank
        blank = False
        on_unreadable(error)

    try:
        size = file.size()
        while start < size:
            length = min(SCAN_BYTES, size - start)
            data = await read_skipping_unreadable(file, start, length, note_unreadable)
            view = memoryview(data)
            if not any(view[_MAGIC_OFFSET :: blocks.ALIGN]):  # space that was never written
                start += len(view)
                continue
            blank = False
            complete_bytes = len(view)
            if start + len(view) < size:
                complete_bytes = blocks.scannable_bytes(number, view, seed, start)
            for block in blocks.scan(
                number, view[:complete_bytes], seed, start, after=last_sequence
            ):
                last_sequence = block.sequence
                scanned_blocks.append(decode_block(block, name, bookie_id))
            if not complete_bytes:
                break
            start += complete_bytes
    finally:
        file.close()
    return FileScan(scanned_blocks, blank)


async def read_block_at(
    disk: Disk, name: str, number: int, seed: int, bookie_id: str, offset: int
) -> ReplayedBlock | None:
    """Return the block at ``offset``; None if no valid one is there, or if it cannot be read.

    Raises as `scan_file`.
    """
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        remaining_bytes = file.size() - offset
        data = (
            await file.read_in_worker(offset, min(blocks.ALIGN, remaining_bytes))
            if remaining_bytes > 0
            else b""
        )
        length = blocks.announced_length(number, memoryview(data), 0)
        if len(data) < length <= remaining_bytes:
            data = await file.read_in_worker(offset, length)
    except CorruptData:
        return None
    finally:
        file.close()
    block = blocks.block_at(number, memoryview(data), seed, 0, offset)
    return decode_block(block, name, bookie_id) if block is not None else None


def decode_block(block: blocks.Block, name: str, bookie_id: str) -> ReplayedBlock:
    """Decode the content of a block. Raises `CorruptData`, `ForeignData`, `UnsupportedFormat`."""
    what = f"{name} offset {block.offset}"
    replayed = ReplayedBlock(
        block.kind,
        block.sequence,
        block.durable_to,
        block.start_count,
        block.file_number,
        block.offset,
        block.padded_length,
    )
    if block.kind == jb.COMMIT:
        records, replayed.controls = jb.split_commit(block.payload, what)
        replayed.records_length = len(records)
        replayed.extents, replayed.lacs = jb.extents_of(
            records, block.offset + blocks.HEADER_BYTES, what
        )
    elif block.kind == jb.HEAD:
        replayed.head = jb.Head.decode(block.payload, what)
        if bookie_id and replayed.head.bookie_id != bookie_id:
            raise ForeignData(
                f"{name} was written by bookie {replayed.head.bookie_id}, this is {bookie_id}"
            )
    return replayed


def decide(
    candidates: Iterable[ReplayedBlock], *, from_sequence: int, recorded_sequence: int = 0
) -> ReplayDecision:
    """Select the blocks that count.

    Args:
        candidates: The valid blocks, in order of file and offset.
        from_sequence: All lower sequences were synced.
        recorded_sequence: A sequence that the metadata quorum has recorded as synced; 0 if there is none.
    """
    not_overwritten = _drop_overwritten_blocks(
        [block for block in candidates if block.sequence >= from_sequence]
    )
    tail = 1 << 63
    # A block in the cut tail does not count, but its statement about earlier syncs is true.
    durable_floor = max(
        (from_sequence - 1, recorded_sequence, *(block.durable_to for block in not_overwritten))
    )
    while True:
        skipped = skipped_ranges(block for block in not_overwritten if block.sequence < tail)
        counted_blocks = [
            block
            for block in not_overwritten
            if block.sequence < tail and not is_in_ranges(block.sequence, skipped)
        ]
        sequences = [(block.sequence, block.durable_to) for block in counted_blocks]
        scan_result = blocks.classify_tail(
            sequences, from_sequence=from_sequence, min_durable_to=durable_floor, known_gaps=skipped
        )
        if scan_result.tail_from >= tail or all(
            block.sequence < scan_result.tail_from for block in counted_blocks
        ):
            break
        tail = scan_result.tail_from  # decide again without the SKIP records of the cut tail
    return ReplayDecision(
        [block for block in counted_blocks if block.sequence <= scan_result.durable_to],
        [block for block in counted_blocks if block.sequence > scan_result.durable_to],
        scan_result.lost_ranges,
        scan_result.durable_to,
        scan_result.tail_from,
    )


def _drop_overwritten_blocks(candidates: Sequence[ReplayedBlock]) -> list[ReplayedBlock]:
    """Drop the blocks of each start from the first sequence of a later start on."""
    remaining: list[ReplayedBlock] = []
    lowest = 1 << 63
    start_count = -1
    for block in reversed(candidates):
        if block.start_count != start_count:
            limit = lowest if start_count >= 0 else 1 << 63
            start_count = block.start_count
        if block.sequence < limit:
            remaining.append(block)
            lowest = min(lowest, block.sequence)
    remaining.reverse()
    return remaining


def exclude_tails(sealed_files: dict[int, tuple[int, int]], first: int, last: int) -> None:
    """Remove sequences ``first`` to ``last`` from the ends of files, because they do not count there.

    The copies of unsynced blocks count. The originals may only be in the page cache (H4). A head that was
    written before the copies were durable still lists them.
    """
    for number, (begin, end) in [*sealed_files.items()]:
        if first <= end <= last:
            sealed_files[number] = (begin, max(first, begin) - 1)


def skipped_ranges(replayed_blocks: Iterable[ReplayedBlock]) -> list[tuple[int, int]]:
    """Return the sequences that do not count and are not missing, as ranges with both ends inclusive.

    These are the sequences in SKIP records, and those that seal the file before a head. The footer need not
    be read here. It proves that the next file exists, and the head proves this as well.
    """
    ranges: list[tuple[int, int]] = []
    for block in replayed_blocks:
        ranges += ((control.a, control.b) for control in block.controls if control.kind == jb.SKIP)
        if block.head is not None and block.head.sealing_blocks:
            first = block.sequence + 1 + block.head.state_blocks
            ranges.append((first, first + block.head.sealing_blocks - 1))
    return ranges


def is_in_ranges(sequence: int, ranges: list[tuple[int, int]]) -> bool:
    """Whether one of the ranges contains the sequence."""
    return any(first <= sequence <= last for first, last in ranges)


async def read_footer(
    disk: Disk, name: str, number: int, seed: int
) -> tuple[jb.Trailer, list[jb.JournalExtent]] | None:
    """Return the trailer and the extents of a sealed file from its footer; None without a valid one."""
    footer = await read_footer_payloads(disk, name, number, seed)
    if footer is None:
        return None
    trailer, payloads = footer
    try:
        return trailer, [
            extent for payload in payloads for extent in jb.unpack_extents(payload, name)
        ]
    except CorruptData:
        return None


async def read_footer_payloads(
    disk: Disk, name: str, number: int, seed: int
) -> tuple[jb.Trailer, list[memoryview]] | None:
    """Return the trailer and the payloads of the footer blocks of a sealed file; None without a valid one."""
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        size = file.size()
        trailer_offset = size - jb.TRAILER_SPACE
        block = (
            await _read_footer_block(file, number, seed, trailer_offset, jb.TRAILER_SPACE)
            if trailer_offset > 0
            else None
        )
        if block is None or block.kind != jb.TRAILER:
            return None
        trailer = jb.Trailer.decode(block.payload, name)
        payloads: list[memoryview] = []
        offset = trailer.footer_offset
        for _ in range(trailer.footer_blocks):
            length = blocks.padded_length(jb.FOOTER_EXTENTS_MAX * jb.EXTENT_ROW_BYTES)
            block = await _read_footer_block(file, number, seed, offset, min(length, size - offset))
            if block is None or block.kind != jb.FOOTER:
                return None
            payloads.append(block.payload)
            offset += block.padded_length
        return trailer, payloads
    except CorruptData:
        return None
    finally:
        file.close()


async def _read_footer_block(
    file: File, number: int, seed: int, offset: int, length: int
) -> blocks.Block | None:
    if length <= 0 or offset % blocks.ALIGN:
        return None
    data = await file.read_in_worker(offset, length)
    return blocks.block_at(number, memoryview(data), seed, 0, offset)


async def read_records(disk: Disk, name: str, block: ReplayedBlock) -> bytes:
    """Return the entry records of a block that was valid when it was scanned."""
    file = await open_file(disk, name)
    try:
        return await file.read_in_worker(block.offset + blocks.HEADER_BYTES, block.records_length)
    finally:
        file.close()
