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

IO_BYTES = 256 * 1024
"""Read, and written, in one call: a commit waits for one such step of the device at most."""
WINDOW_BYTES = 4 * 1024 * 1024
"""Put in order in memory, then written."""
WINDOW_EXTENTS = 1000
"""The same: single entries of a hundred bytes are many in 4 MiB, and all are sorted in one turn."""
READ_GAP_BYTES = 64 * 1024
"""Between two live runs: cheaper to read than to ask twice."""
RECORDS_PER_YIELD = 200
"""Verified between two turns of the loop: about half a millisecond."""

ReadFile = Callable[[int, int, int], Awaitable[bytes]]
"""Of a file, by number, from an offset on so many bytes. Raises `CorruptData`, `TooBusy`."""
Throttle = Callable[[int], Awaitable[None]]
"""So many bytes were read or written: returns when the next may be."""


@dataclass(frozen=True, slots=True)
class ExtentMove:
    """A run that lies in a file, and its place in the one that is written."""

    ledger: int
    source: ExtentLocation
    target: ExtentLocation


class CompactedFileWriter:
    """Writes the records of some runs, which are given sorted, and what says where they lie.

    Nothing of it counts before the file has its name.
    """

    def __init__(
        self,
        disk: Disk,
        file: File,
        compacted: cb.CompactedFile,
        *,
        bookie_id: str,
        seed: int,
        start_count: int,
        read: ReadFile,
        throttle: Throttle,
    ) -> None:
        self._disk = disk
        self._file = file
        self._compacted = compacted
        self._bookie_id = bookie_id
        self._seed = seed
        self._start_count = start_count
        self._read = read
        self._throttle = throttle
        self._block_count = 0
        self._footer_extents: list[cb.CompactedExtent] = []
        self._last_extent: tuple[int, ExtentLocation] | None = None
        self._extent_hash = xxhash.xxh3_64()
        self.corrupt: list[tuple[int, ExtentLocation]] = []
        """Runs that do not hold what the index says: not copied."""
        self.first_error: CorruptData | UnsupportedFormat | None = None
        """What was met first."""

    async def write(self, moves: Sequence[ExtentMove]) -> bool:
        """Write and sync all of it; False where something is rotten: then it is no whole file.

        Raises `DiskFailed`, `TooBusy`.
        """
        window_offset = cb.DATA_OFFSET
        unwritten = b""
        for window in _windows(moves):
            end = window[-1].target.offset + window[-1].target.length
            buffer = self._disk.aligned_buffer(_aligned(end - window_offset))
            buffer[: len(unwritten)] = unwritten
            await self._read_window(buffer, window_offset, window)
            for number, move in enumerate(window, 1):
                position = move.target.offset - window_offset
                self._add_to_footer(move, buffer[position : position + move.target.length])
                if number % RECORDS_PER_YIELD == 0:
                    await trio.lowlevel.checkpoint()
            is_last = window[-1] is moves[-1]
            aligned_length = (
                len(buffer) if is_last else (end - window_offset) // blocks.ALIGN * blocks.ALIGN
            )
            if not self.corrupt:
                await self._write_in_steps(window_offset, buffer[:aligned_length])
            unwritten = bytes(buffer[aligned_length : end - window_offset])
            window_offset += aligned_length
        if self.corrupt:
            return False
        await self._finish(window_offset)
        return True

    async def _read_window(
        self, buffer: memoryview, window_offset: int, window: Sequence[ExtentMove]
    ) -> None:
        """Read the window's runs, as they lie on the device, into their places."""
        for group in _read_groups(window):
            await self._read_group(buffer, window_offset, group)

    async def _read_group(
        self, buffer: memoryview, window_offset: int, group: Sequence[ExtentMove]
    ) -> None:
        start = group[0].source.offset
        length = max(move.source.offset + move.source.length for move in group) - start
        try:
            data = memoryview(await self._read(group[0].source.file_number, start, length))
        except CorruptData as error:
            if len(group) == 1:
                self._record_corrupt(group[0], error)
            else:  # what cannot be read is one of them, perhaps
                for move in group:
                    await self._read_group(buffer, window_offset, (move,))
            return
        for move in group:
            source_position = move.source.offset - start
            view = data[source_position : source_position + move.source.length]
            try:
                await _verify(view, move)
            except (CorruptData, UnsupportedFormat) as error:
                self._record_corrupt(move, error)
                continue
            target_position = move.target.offset - window_offset
            buffer[target_position : target_position + len(view)] = view
        await self._throttle(length)

    def _record_corrupt(self, move: ExtentMove, error: CorruptData | UnsupportedFormat) -> None:
        self.corrupt.append((move.ledger, move.source))
        self.first_error = self.first_error or error

    def _add_to_footer(self, move: ExtentMove, view: memoryview) -> None:
        """What the footer says of it; joined with the one before where they are one run."""
        previous = self._last_extent
        merged = (
            previous[1].merge_with(move.target)
            if previous is not None and previous[0] == move.ledger
            else None
        )
        if merged is None:
            self._finish_extent()
            self._extent_hash = xxhash.xxh3_64()
        self._extent_hash.update(view)
        self._last_extent = (move.ledger, merged or move.target)

    def _finish_extent(self) -> None:
        if self._last_extent is not None:
            self._footer_extents.append(
                cb.CompactedExtent(*self._last_extent, self._extent_hash.intdigest())
            )

    async def _finish(self, offset: int) -> None:
        self._finish_extent()
        assert len(self._footer_extents) == self._compacted.extent_count, (
            "laid out as it is written"
        )
        footer_offset = offset
        payloads: list[bytes] = []
        for start in range(0, len(self._footer_extents), jb.FOOTER_EXTENTS_MAX):
            payloads.append(
                cb.footer_payload(self._footer_extents[start : start + jb.FOOTER_EXTENTS_MAX])
            )
            offset += await self._write_block(cb.COMPACTED_FOOTER, offset, payloads[-1])
        trailer = cb.CompactedFileTrailer(
            footer_offset,
            len(payloads),
            self._compacted.data_end,
            len(self._footer_extents),
            xxhash.xxh3_64_intdigest(b"".join(payloads)),
        )
        assert offset == self._compacted.length - jb.TRAILER_SPACE, "laid out as it is written"
        await self._write_block(cb.COMPACTED_TRAILER, offset, trailer.encode())
        await self._write_block(
            cb.COMPACTED_HEAD, 0, cb.encode_head(self._bookie_id, self._compacted.number)
        )

    async def _write_block(self, kind: int, offset: int, payload: bytes) -> int:
        self._block_count += 1
        buffer = self._disk.aligned_buffer(blocks.padded_length(len(payload)))
        buffer[blocks.HEADER_BYTES : blocks.HEADER_BYTES + len(payload)] = payload
        length = blocks.write_header(
            buffer,
            0,
            kind=kind,
            payload_bytes=len(payload),
            start_count=self._start_count,
            sequence=self._block_count,
            durable_to=0,
            file_number=self._compacted.number,
            file_offset=offset,
            seed=self._seed,
        )
        await self._write_in_steps(offset, buffer)
        return length

    async def _write_in_steps(self, offset: int, buffer: memoryview) -> None:
        for position in range(0, len(buffer), IO_BYTES):
            part = buffer[position : position + IO_BYTES]
            await self._file.write_in_worker(offset + position, part)
            await self._throttle(len(part))


async def _verify(view: memoryview, move: ExtentMove) -> None:
    """Every record's own digest, and that it is the one that the index means (H90)."""
    expected = move.source.first
    for record in entries.records(view):
        if record.ledger != move.ledger or record.entry != expected:
            raise CorruptData(
                f"ledger {record.ledger} entry {record.entry} where ledger {move.ledger} entry {expected}"
                f" should be: file {move.source.file_number}"
            )
        expected += 1
        if not expected % RECORDS_PER_YIELD:
            await trio.lowlevel.checkpoint()
    if expected != move.source.last + 1 or len(view) != move.source.length:
        raise CorruptData(
            f"ledger {move.ledger} entries {move.source.first} to {move.source.last}: file"
            f" {move.source.file_number} holds them up to {expected - 1}"
        )


def _windows(moves: Sequence[ExtentMove]) -> Iterator[Sequence[ExtentMove]]:
    """Stretches of the file that is written, each put in order in memory."""
    start = size_bytes = 0
    for index, move in enumerate(moves):
        if index > start and (
            size_bytes + move.target.length > WINDOW_BYTES or index - start == WINDOW_EXTENTS
        ):
            yield moves[start:index]
            start, size_bytes = index, 0
        size_bytes += move.target.length
    if moves:
        yield moves[start:]


def _read_groups(window: Sequence[ExtentMove]) -> Iterator[Sequence[ExtentMove]]:
    """Runs that lie near each other, in the order of the device: each group is one read."""
    group: list[ExtentMove] = []
    for move in sorted(window, key=lambda move: (move.source.file_number, move.source.offset)):
        if group:
            previous = group[-1].source
            start = group[0].source.offset
            if (
                move.source.file_number != previous.file_number
                or move.source.offset - previous.offset - previous.length > READ_GAP_BYTES
                or move.source.offset + move.source.length - start > IO_BYTES
            ):
                yield group
                group = []
        group.append(move)
    if group:
        yield group


def _aligned(size: int) -> int:
    return -(-size // blocks.ALIGN) * blocks.ALIGN
