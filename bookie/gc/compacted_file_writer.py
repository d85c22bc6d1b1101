"""Writing one cold file: runs from anywhere, verified, put in order, a few MiB at a time."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import trio
import xxhash

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Disk, File
from ..format import compacted_format as cb
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation

STEP_BYTES = 256 * 1024
"""Read, and written, in one call: a commit waits for one such step of the device at most."""
WINDOW_BYTES = 4 * 1024 * 1024
"""Put in order in memory, then written."""
WINDOW_RUNS = 1000
"""The same: single entries of a hundred bytes are many in 4 MiB, and all are sorted in one turn."""
GAP_BYTES = 64 * 1024
"""Between two live runs: cheaper to read than to ask twice."""
RECORDS_A_TURN = 200
"""Verified between two turns of the loop: about half a millisecond."""

Read = Callable[[int, int, int], Awaitable[bytes]]
"""Of a file, by number, from an offset on so many bytes. Raises `CorruptData`, `TooBusy`."""
Spend = Callable[[int], Awaitable[None]]
"""So many bytes were read or written: returns when the next may be."""


@dataclass(frozen=True, slots=True)
class ExtentMove:
    """A run that lies in a file, and its place in the one that is written."""

    ledger: int
    old: ExtentLocation
    new: ExtentLocation


class CompactedFileWriter:
    """Writes the records of some runs, which are given sorted, and what says where they lie.

    Nothing of it counts before the file has its name.
    """

    def __init__(
        self,
        disk: Disk,
        file: File,
        cold: cb.CompactedFile,
        *,
        bookie_id: str,
        seed: int,
        start_count: int,
        read: Read,
        spend: Spend,
    ) -> None:
        self._disk = disk
        self._file = file
        self._cold = cold
        self._bookie_id = bookie_id
        self._seed = seed
        self._start_count = start_count
        self._read = read
        self._spend = spend
        self._blocks = 0
        self._runs: list[cb.CompactedExtent] = []
        self._last: tuple[int, ExtentLocation] | None = None
        self._hash = xxhash.xxh3_64()
        self.rotten: list[tuple[int, ExtentLocation]] = []
        """Runs that do not hold what the index says: not copied."""
        self.damage: CorruptData | UnsupportedFormat | None = None
        """What was met first."""

    async def write(self, moves: Sequence[ExtentMove]) -> bool:
        """Write and sync all of it; False where something is rotten: then it is no whole file.

        Raises `DiskFailed`, `TooBusy`.
        """
        base = cb.DATA_OFFSET
        rest = b""
        for window in _windows(moves):
            end = window[-1].new.offset + window[-1].new.length
            buffer = self._disk.aligned_buffer(_aligned(end - base))
            buffer[: len(rest)] = rest
            await self._fill(buffer, base, window)
            for number, move in enumerate(window, 1):
                at = move.new.offset - base
                self._note_run(move, buffer[at : at + move.new.length])
                if number % RECORDS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
            last = window[-1] is moves[-1]
            whole = len(buffer) if last else (end - base) // blocks.ALIGN * blocks.ALIGN
            if not self.rotten:
                await self._write(base, buffer[:whole])
            rest = bytes(buffer[whole : end - base])
            base += whole
        if self.rotten:
            return False
        await self._finish(base)
        return True

    async def _fill(self, buffer: memoryview, base: int, window: Sequence[ExtentMove]) -> None:
        """Read the window's runs, as they lie on the device, into their places."""
        for extent in _extents(window):
            await self._take(buffer, base, extent)

    async def _take(self, buffer: memoryview, base: int, extent: Sequence[ExtentMove]) -> None:
        start = extent[0].old.offset
        length = max(move.old.offset + move.old.length for move in extent) - start
        try:
            data = memoryview(await self._read(extent[0].old.file_number, start, length))
        except CorruptData as error:
            if len(extent) == 1:
                self._note_rotten(extent[0], error)
            else:  # what cannot be read is one of them, perhaps
                for move in extent:
                    await self._take(buffer, base, (move,))
            return
        for move in extent:
            at = move.old.offset - start
            view = data[at : at + move.old.length]
            try:
                await _verify(view, move)
            except (CorruptData, UnsupportedFormat) as error:
                self._note_rotten(move, error)
                continue
            to = move.new.offset - base
            buffer[to : to + len(view)] = view
        await self._spend(length)

    def _note_rotten(self, move: ExtentMove, error: CorruptData | UnsupportedFormat) -> None:
        self.rotten.append((move.ledger, move.old))
        self.damage = self.damage or error

    def _note_run(self, move: ExtentMove, view: memoryview) -> None:
        """What the footer says of it; joined with the one before where they are one run."""
        last = self._last
        whole = last[1].joined(move.new) if last is not None and last[0] == move.ledger else None
        if whole is None:
            self._end_run()
            self._hash = xxhash.xxh3_64()
        self._hash.update(view)
        self._last = (move.ledger, whole or move.new)

    def _end_run(self) -> None:
        if self._last is not None:
            self._runs.append(cb.CompactedExtent(*self._last, self._hash.intdigest()))

    async def _finish(self, offset: int) -> None:
        self._end_run()
        assert len(self._runs) == self._cold.runs, "laid out as it is written"
        footer_offset = offset
        payloads: list[bytes] = []
        for at in range(0, len(self._runs), jb.FOOTER_RUNS_MAX):
            payloads.append(cb.footer_payload(self._runs[at : at + jb.FOOTER_RUNS_MAX]))
            offset += await self._write_block(cb.COLD_FOOTER, offset, payloads[-1])
        trailer = cb.CompactedFileTrailer(
            footer_offset,
            len(payloads),
            self._cold.data_end,
            len(self._runs),
            xxhash.xxh3_64_intdigest(b"".join(payloads)),
        )
        assert offset == self._cold.length - jb.TRAILER_SPACE, "laid out as it is written"
        await self._write_block(cb.COLD_TRAILER, offset, trailer.encode())
        await self._write_block(cb.COLD_HEAD, 0, cb.encode_head(self._bookie_id, self._cold.number))

    async def _write_block(self, kind: int, offset: int, payload: bytes) -> int:
        self._blocks += 1
        buffer = self._disk.aligned_buffer(blocks.padded(len(payload)))
        buffer[blocks.HEADER_BYTES : blocks.HEADER_BYTES + len(payload)] = payload
        length = blocks.header_into(
            buffer,
            0,
            kind=kind,
            payload_bytes=len(payload),
            start_count=self._start_count,
            sequence=self._blocks,
            durable_to=0,
            file_number=self._cold.number,
            file_offset=offset,
            seed=self._seed,
        )
        await self._write(offset, buffer)
        return length

    async def _write(self, offset: int, buffer: memoryview) -> None:
        for at in range(0, len(buffer), STEP_BYTES):
            part = buffer[at : at + STEP_BYTES]
            await self._file.write_aside(offset + at, part)
            await self._spend(len(part))


async def _verify(view: memoryview, move: ExtentMove) -> None:
    """Every record's own digest, and that it is the one that the index means (H90)."""
    expected = move.old.first
    for record in entries.records(view):
        if record.ledger != move.ledger or record.entry != expected:
            raise CorruptData(
                f"ledger {record.ledger} entry {record.entry} where ledger {move.ledger} entry {expected}"
                f" should be: file {move.old.file_number}"
            )
        expected += 1
        if not expected % RECORDS_A_TURN:
            await trio.lowlevel.checkpoint()
    if expected != move.old.last + 1 or len(view) != move.old.length:
        raise CorruptData(
            f"ledger {move.ledger} entries {move.old.first} to {move.old.last}: file"
            f" {move.old.file_number} holds them up to {expected - 1}"
        )


def _windows(moves: Sequence[ExtentMove]) -> Iterator[Sequence[ExtentMove]]:
    """Stretches of the file that is written, each put in order in memory."""
    start = size = 0
    for at, move in enumerate(moves):
        if at > start and (size + move.new.length > WINDOW_BYTES or at - start == WINDOW_RUNS):
            yield moves[start:at]
            start, size = at, 0
        size += move.new.length
    if moves:
        yield moves[start:]


def _extents(window: Sequence[ExtentMove]) -> Iterator[Sequence[ExtentMove]]:
    """Runs that lie near each other, in the order of the device: each group is one read."""
    group: list[ExtentMove] = []
    for move in sorted(window, key=lambda move: (move.old.file_number, move.old.offset)):
        if group:
            before = group[-1].old
            start = group[0].old.offset
            if (
                move.old.file_number != before.file_number
                or move.old.offset - before.offset - before.length > GAP_BYTES
                or move.old.offset + move.old.length - start > STEP_BYTES
            ):
                yield group
                group = []
        group.append(move)
    if group:
        yield group


def _aligned(size: int) -> int:
    return -(-size // blocks.ALIGN) * blocks.ALIGN
