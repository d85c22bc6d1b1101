"""Write one compacted file: read extents, verify them and write them sorted, a few MiB at a time."""

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
"""The size of one read or write. A commit waits for at most one such device operation."""
WINDOW_BYTES = 4 * 1024 * 1024
"""The bytes that are sorted in memory before they are written."""
WINDOW_EXTENTS = 1000
"""The extents that are sorted in memory. This limits the time of one sort, because 4 MiB can contain many
single-entry extents of a hundred bytes."""
READ_GAP_BYTES = 64 * 1024
"""Two live extents with a gap up to this size are read together, which is cheaper than two reads."""
RECORDS_PER_YIELD = 200
"""The records that are verified in one event-loop iteration: about half a millisecond."""

ReadFile = Callable[[int, int, int], Awaitable[bytes]]
"""Read bytes of a file, given its number, an offset and a length. Raises `CorruptData`, `TooBusy`."""
Throttle = Callable[[int], Awaitable[None]]
"""Report that this number of bytes was read or written, and wait until the next operation is allowed."""


@dataclass(frozen=True, slots=True)
class ExtentMove:
    """An extent with its present location and its location in the compacted file."""

    ledger: int
    source: ExtentLocation
    target: ExtentLocation


class CompactedFileWriter:
    """Write the records of sorted extents and a footer that lists them.

    The file is not used before the caller has renamed it to its final name.
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
        self._footer_extents: list[jb.JournalExtent] = []
        self._last_extent: tuple[int, ExtentLocation] | None = None
        self.corrupt: list[tuple[int, ExtentLocation]] = []
        """Extents that were not copied, because their bytes do not match the index."""
        self.first_error: CorruptData | UnsupportedFormat | None = None

    async def write(self, moves: Sequence[ExtentMove]) -> bool:
        """Write and sync the whole file; return False if an extent is corrupt.

        In that case the file is incomplete, and `corrupt` lists the extents.

        Raises:
            DiskFailed: A write or sync failed.
            TooBusy: No file descriptor is free.
        """
        window_offset = cb.DATA_OFFSET
        unwritten = b""
        for window in _windows(moves):
            end = window[-1].target.offset + window[-1].target.length
            buffer = self._disk.aligned_buffer(_aligned(end - window_offset))
            buffer[: len(unwritten)] = unwritten
            await self._read_window(buffer, window_offset, window)
            for number, move in enumerate(window, 1):
                self._add_to_footer(move)
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
        """Read the extents of a window in device order into their places in ``buffer``."""
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
            else:  # perhaps only one of the extents is unreadable
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

    def _add_to_footer(self, move: ExtentMove) -> None:
        """Add an extent to the footer, merged with the previous one if they are contiguous."""
        previous = self._last_extent
        merged = (
            previous[1].merge_with(move.target)
            if previous is not None and previous[0] == move.ledger
            else None
        )
        if merged is None:
            self._finish_extent()
        self._last_extent = (move.ledger, merged or move.target)

    def _finish_extent(self) -> None:
        """Add the last extent, which nothing continues, to the footer."""
        if self._last_extent is not None:
            ledger, location = self._last_extent
            self._footer_extents.append(
                jb.JournalExtent(
                    ledger, location.first, location.count, location.offset, location.length
                )
            )

    async def _finish(self, offset: int) -> None:
        self._finish_extent()
        assert len(self._footer_extents) == self._compacted.extent_count, (
            "the layout matches the written extents"
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
        assert offset == self._compacted.length - jb.TRAILER_SPACE, (
            "the layout matches the written blocks"
        )
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
    """Check the digest and the IDs of each record against the index (H90)."""
    expected = move.source.first
    for record in entries.records(view):
        if record.ledger != move.ledger or record.entry != expected:
            raise CorruptData(
                f"file {move.source.file_number} has ledger {record.ledger} entry {record.entry} in place of"
                f" ledger {move.ledger} entry {expected}"
            )
        expected += 1
        if not expected % RECORDS_PER_YIELD:
            await trio.lowlevel.checkpoint()
    if expected != move.source.last + 1 or len(view) != move.source.length:
        raise CorruptData(
            f"ledger {move.ledger} entries {move.source.first} to {move.source.last}: file"
            f" {move.source.file_number} has them only up to {expected - 1}"
        )


def _windows(moves: Sequence[ExtentMove]) -> Iterator[Sequence[ExtentMove]]:
    """Yield ranges of the new file that are each sorted in memory."""
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
    """Yield groups of nearby extents in device order; each group is one read."""
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
