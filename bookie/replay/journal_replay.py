"""What a start believes of the journal it finds: blocks judged by sequence, never by bytes (H3).

`scan_file` reads valid blocks; `decide` (pure) tells which of them count:

- a later start cuts off what an earlier one left after its own first sequence;
- sequences named by a SKIP record do not count, and are not missed;
- of the rest `runtime/blocks.judge` tells the torn tail (cut, with whatever is valid in it) from what was
  synced and is gone (corruption: fence and limbo);
- what counts and lies above the highest sequence known synced are *survivors*: they are copied into the
  new file and synced before anything is served.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.disk.atomic_file import read_around
from ...runtime.interfaces.errors import CorruptData, DiskFailed, ForeignData
from ...runtime.interfaces.host import Disk, File
from ..format import journal_format as jb
from ..format.index_format import IndexCheckpoint

SCAN_BYTES = blocks.BLOCK_BYTES_MAX
_MAGIC_AT = 8
"""Where the low byte of a block's magic lies, which is not zero."""


@dataclass(slots=True)
class Replayed:
    """A valid block of the journal, without its bytes."""

    kind: int
    sequence: int
    durable_to: int
    start_count: int
    file_number: int
    offset: int
    padded_length: int
    records_length: int = 0
    runs: list[jb.JournalExtent] = field(default_factory=list)
    lacs: dict[int, int] = field(default_factory=dict)
    controls: list[jb.Control] = field(default_factory=list)
    head: jb.Head | None = None


@dataclass(slots=True)
class ReplayDecision:
    """What counts, in order of sequence."""

    durable: list[Replayed]
    survivors: list[Replayed]
    corrupt: list[tuple[int, int]]
    """Sequences (inclusive) that were synced and are gone."""
    durable_to: int
    tail_from: int
    """The first sequence that is free for the next start."""


@dataclass(slots=True)
class Scanned:
    """What a file holds."""

    blocks: list[Replayed]
    blank: bool
    """Nothing was ever written there: not even a block that is torn."""


class ReplayedJournal:
    """The journal as a start has replayed it: which blocks count, and in which files they lie."""

    def __init__(
        self,
        decision: ReplayDecision,
        sealed: dict[int, tuple[int, int]],
        number: int,
        end: int,
        start_count: int,
    ) -> None:
        self.decision = decision
        self.sealed = sealed
        self.number = number
        """The last file that counts; 0: none."""
        self.end = end
        self.first = 0
        """The first sequence of that file."""
        self.start_count = start_count

    def leave_out(self, number: int) -> None:
        """Nothing is left of this file."""
        self.sealed.pop(number, None)
        if number == self.number:
            self.first = 0

    def note_files(
        self, found: list[Replayed], decision: ReplayDecision, saved: IndexCheckpoint | None
    ) -> None:
        """Which sequences lie in which file, from the blocks that count."""
        self.start_count = max((self.start_count, *(block.start_count for block in found)))
        spans: dict[int, tuple[int, int]] = {}
        for block in (*decision.durable, *decision.survivors):
            first, _ = spans.get(block.file_number, (block.sequence, 0))
            spans[block.file_number] = first, block.sequence
            if block.file_number >= self.number:  # a file is sealed after the next one has begun
                self.number = block.file_number
                self.end = block.offset + block.padded_length
        if saved is not None and saved.file_number:
            _, last = spans.get(saved.file_number, (0, saved.sequence - 1))
            spans[saved.file_number] = (saved.first_sequence, last)
        numbers = sorted(spans)
        for number, following in pairwise(numbers):
            self.sealed[number] = (spans[number][0], spans[following][0] - 1)
        if numbers:
            self.first = spans[numbers[-1]][0]
        for block in decision.durable:
            for control in block.controls:
                if control.kind == jb.SKIP:
                    leave_tails(self.sealed, control.a, control.b)


OnUnreadable = Callable[[CorruptData], None]


async def open_file(disk: Disk, name: str) -> File:
    """A journal file. Raises `CorruptData` where it cannot be opened, `TooBusy` for a lack of descriptors."""
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
) -> Scanned:
    """The valid blocks of a journal file from offset ``start`` on.

    ``on_unreadable`` is told of the file, or of each part of it, that cannot be read; what stood there is
    not in the answer, and such a file is not blank. Raises `ForeignData` for a file of another bookie,
    `UnsupportedFormat`, `CorruptData` where a block that is sound holds nonsense.
    """
    try:
        file = await open_file(disk, name)
    except CorruptData as error:
        on_unreadable(error)
        return Scanned([], False)
    found: list[Replayed] = []
    blank = start == 0
    last = 0

    def note_unreadable(error: CorruptData, end: int) -> None:
        nonlocal blank
        blank = False
        on_unreadable(error)

    try:
        size = file.size()
        while start < size:
            length = min(SCAN_BYTES, size - start)
            data = await read_around(file, start, length, note_unreadable)
            view = memoryview(data)
            if not any(view[_MAGIC_AT :: blocks.ALIGN]):  # space that was never written
                start += len(view)
                continue
            blank = False
            whole = len(view)
            if start + len(view) < size:
                whole = blocks.whole_bytes(number, view, seed, start)
            for block in blocks.scan(number, view[:whole], seed, start, after=last):
                last = block.sequence
                found.append(read_block(block, name, bookie_id))
            if not whole:
                break
            start += whole
    finally:
        file.close()
    return Scanned(found, blank)


async def read_one(
    disk: Disk, name: str, number: int, seed: int, bookie_id: str, offset: int
) -> Replayed | None:
    """The block at ``offset``; None where there is no valid one, or the file cannot be read there.

    Raises as `scan_file`.
    """
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        left = file.size() - offset
        data = await file.read_cold(offset, min(blocks.ALIGN, left)) if left > 0 else b""
        length = blocks.announced(number, memoryview(data), 0)
        if len(data) < length <= left:
            data = await file.read_cold(offset, length)
    except CorruptData:
        return None
    finally:
        file.close()
    block = blocks.block_at(number, memoryview(data), seed, 0, offset)
    return read_block(block, name, bookie_id) if block is not None else None


def read_block(block: blocks.Block, name: str, bookie_id: str) -> Replayed:
    """What a block says. Raises `CorruptData`, `ForeignData`, `UnsupportedFormat`."""
    what = f"{name} offset {block.offset}"
    replayed = Replayed(
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
        replayed.runs, replayed.lacs = jb.runs_of(records, block.offset + blocks.HEADER_BYTES, what)
    elif block.kind == jb.HEAD:
        replayed.head = jb.Head.decode(block.payload, what)
        if bookie_id and replayed.head.bookie_id != bookie_id:
            raise ForeignData(
                f"{name} was written by bookie {replayed.head.bookie_id}, this is {bookie_id}"
            )
    return replayed


def decide(found: Iterable[Replayed], *, from_sequence: int, witnessed: int = 0) -> ReplayDecision:
    """Which of the blocks count (given in order of file and offset). All below were synced.

    ``witnessed`` is a sequence that others know to have been synced (0: they know of none).
    """
    kept = _cut_by_later_starts([block for block in found if block.sequence >= from_sequence])
    tail = 1 << 63
    # Blocks that are cut still bear witness: what they say was synced, was.
    known = max((from_sequence - 1, witnessed, *(block.durable_to for block in kept)))
    while True:
        skipped = skipped_ranges(block for block in kept if block.sequence < tail)
        counting = [
            block
            for block in kept
            if block.sequence < tail and not is_within(block.sequence, skipped)
        ]
        meta = [(block.sequence, block.durable_to) for block in counting]
        verdict = blocks.judge(
            meta, from_sequence=from_sequence, durable_floor=known, excused=skipped
        )
        if verdict.tail_from >= tail or all(
            block.sequence < verdict.tail_from for block in counting
        ):
            break
        tail = verdict.tail_from  # a SKIP in the cut tail excuses nothing: judge again without it
    return ReplayDecision(
        [block for block in counting if block.sequence <= verdict.durable_to],
        [block for block in counting if block.sequence > verdict.durable_to],
        verdict.corrupt,
        verdict.durable_to,
        verdict.tail_from,
    )


def _cut_by_later_starts(found: Sequence[Replayed]) -> list[Replayed]:
    """A start goes on after what it believed: its first sequence cuts what earlier ones left there."""
    kept: list[Replayed] = []
    lowest = 1 << 63
    start_count = -1
    for block in reversed(found):
        if block.start_count != start_count:
            cut = lowest if start_count >= 0 else 1 << 63
            start_count = block.start_count
        if block.sequence < cut:
            kept.append(block)
            lowest = min(lowest, block.sequence)
    kept.reverse()
    return kept


def leave_tails(sealed: dict[int, tuple[int, int]], first: int, last: int) -> None:
    """Sequences from ``first`` to ``last`` do not count where they lie: those that end a file are left out.

    Of survivors the copies count; where they were found only the cache may have them (H4), and a head that
    was written before their copies were durable lists them.
    """
    for number, (begin, end) in [*sealed.items()]:
        if first <= end <= last:
            sealed[number] = (begin, max(first, begin) - 1)


def skipped_ranges(found: Iterable[Replayed]) -> list[tuple[int, int]]:
    """Sequences that do not count and are not missed, as ranges with both ends inclusive.

    What SKIP records name; and what seals a file before, of which nothing is read here: where the file's
    head stands, it says all that a footer is needed for as a proof.
    """
    ranges: list[tuple[int, int]] = []
    for block in found:
        ranges += ((control.a, control.b) for control in block.controls if control.kind == jb.SKIP)
        if block.head is not None and block.head.sealing_blocks:
            first = block.sequence + 1 + block.head.state_blocks
            ranges.append((first, first + block.head.sealing_blocks - 1))
    return ranges


def is_within(sequence: int, ranges: list[tuple[int, int]]) -> bool:
    """Does one of the ranges hold the sequence?"""
    return any(first <= sequence <= last for first, last in ranges)


async def read_footer(
    disk: Disk, name: str, number: int, seed: int
) -> tuple[jb.Trailer, list[jb.JournalExtent]] | None:
    """The runs of a sealed file from its footer, or None where there is no sound one."""
    found = await read_footer_payloads(disk, name, number, seed)
    if found is None:
        return None
    trailer, payloads = found
    try:
        return trailer, [run for payload in payloads for run in jb.unpack_runs(payload, name)]
    except CorruptData:
        return None


async def read_footer_payloads(
    disk: Disk, name: str, number: int, seed: int
) -> tuple[jb.Trailer, list[memoryview]] | None:
    """As `read_footer`, the runs as they stand there."""
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        size = file.size()
        at = size - jb.TRAILER_SPACE
        block = await _block(file, number, seed, at, jb.TRAILER_SPACE) if at > 0 else None
        if block is None or block.kind != jb.TRAILER:
            return None
        trailer = jb.Trailer.decode(block.payload, name)
        payloads: list[memoryview] = []
        offset = trailer.footer_offset
        for _ in range(trailer.footer_blocks):
            length = blocks.padded(jb.FOOTER_RUNS_MAX * jb.RUN_BYTES)
            block = await _block(file, number, seed, offset, min(length, size - offset))
            if block is None or block.kind != jb.FOOTER:
                return None
            payloads.append(block.payload)
            offset += block.padded_length
        return trailer, payloads
    except CorruptData:
        return None
    finally:
        file.close()


async def _block(
    file: File, number: int, seed: int, offset: int, length: int
) -> blocks.Block | None:
    if length <= 0 or offset % blocks.ALIGN:
        return None
    data = await file.read_cold(offset, length)
    return blocks.block_at(number, memoryview(data), seed, 0, offset)


async def read_records(disk: Disk, name: str, block: Replayed) -> bytes:
    """The entry records of a block that was found valid before."""
    file = await open_file(disk, name)
    try:
        return await file.read_cold(block.offset + blocks.HEADER_BYTES, block.records_length)
    finally:
        file.close()
