"""Read head, footer and trailer of a compacted file: at a start, and to rebuild the index or compact the
file.
"""

from collections.abc import AsyncIterator

import xxhash

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData, ForeignData
from ...runtime.interfaces.host import Disk, File
from ..format import compacted_format as cb
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation
from .journal_replay import open_file

SEARCH_BYTES = blocks.BLOCK_BYTES_MAX
"""Bytes that are read at once to find records without a footer: more than the longest record."""


async def find_damage(
    disk: Disk, compacted: cb.CompactedFile, seed: int, bookie_id: str
) -> tuple[str, bool]:
    """Check the head and the trailer of a listed compacted file. Its records are not read.

    Returns:
        The reason why the file is damaged, empty if it is not, and whether the file has no usable content.
    Raises:
        ForeignData: Another bookie wrote the file.
        UnsupportedFormat: A newer version wrote it.
    """
    name = cb.compacted_file_name(compacted.number)
    try:
        file = await open_file(disk, name)
    except CorruptData as error:
        return str(error), False
    try:
        head = await _read_head(file, compacted.number, seed)
        trailer = await _read_trailer(file, compacted, seed)
    finally:
        file.close()
    if head is not None and bookie_id and head[0] != bookie_id:
        raise ForeignData(f"{name} was written by bookie {head[0]}, this is {bookie_id}")
    if head is None and trailer is None:
        return f"{name} has lost all of its content", True
    if head is None:
        return f"{name} does not begin with its head", False
    if trailer is None:
        return f"{name} does not end with its trailer", False
    return "", False


async def read_compacted_footer(
    disk: Disk, compacted: cb.CompactedFile, seed: int
) -> tuple[jb.JournalExtent, ...] | None:
    """Return the extents in the footer of a compacted file, live or not; None if the footer is incomplete."""
    payloads = await read_compacted_payloads(disk, compacted, seed)
    if payloads is None:
        return None
    name = cb.compacted_file_name(compacted.number)
    try:
        return tuple(extent for payload in payloads for extent in cb.unpack_extents(payload, name))
    except CorruptData:
        return None


async def read_compacted_payloads(
    disk: Disk, compacted: cb.CompactedFile, seed: int
) -> list[memoryview] | None:
    """Return the payloads of the footer blocks of a compacted file; None if the footer is incomplete."""
    name = cb.compacted_file_name(compacted.number)
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        trailer = await _read_trailer(file, compacted, seed)
        if trailer is None:
            return None
        payloads = []
        offset, remaining_extents = trailer.footer_offset, trailer.extent_count
        for _ in range(trailer.footer_blocks):
            block_extents = min(remaining_extents, jb.FOOTER_EXTENTS_MAX)
            block = await _read_block(
                file,
                compacted.number,
                seed,
                offset,
                blocks.padded_length(block_extents * cb.EXTENT_ROW_BYTES),
            )
            if block is None or block.kind != cb.COMPACTED_FOOTER:
                return None
            payloads.append(block.payload)
            offset += block.padded_length
            remaining_extents -= block_extents
        if xxhash.xxh3_64_intdigest(b"".join(payloads)) != trailer.digest:
            return None
        return payloads
    except CorruptData:
        return None
    finally:
        file.close()


async def scan_records(
    disk: Disk, compacted: cb.CompactedFile
) -> AsyncIterator[tuple[int, ExtentLocation]]:
    """Yield the valid records of a compacted file without a valid footer. Slow.

    Each is yielded as (ledger, extent of one entry). Records begin at multiples of 8 bytes. Bytes between
    valid records were freed, or are corrupt.

    Corrupt bytes are searched as well. A payload with the form of an entry record could be taken for a record
    there. All ledgers are in limbo state in this case. Searching only zeros would avoid this.
    """
    try:
        file = await open_file(disk, cb.compacted_file_name(compacted.number))
    except CorruptData:
        return
    try:
        offset = cb.DATA_OFFSET
        while offset < compacted.data_end:
            try:
                data = await file.read_in_worker(
                    offset, min(SEARCH_BYTES, compacted.data_end - offset)
                )
            except CorruptData:
                offset += blocks.ALIGN
                continue
            is_last_chunk = offset + len(data) >= compacted.data_end
            position = 0
            view = memoryview(data)
            while position < len(view):
                record = _sound_record_at(view, position)
                if record is not None:
                    ledger, entry, length = record
                    yield (
                        ledger,
                        ExtentLocation(entry, 1, compacted.number, offset + position, length),
                    )
                    position += length
                elif not is_last_chunk and len(view) - position < SEARCH_BYTES // 2:
                    break  # the record may continue in bytes that were not read yet
                elif not any(view[position : position + blocks.ALIGN]):
                    position += blocks.ALIGN
                else:
                    position += entries.ALIGN
            if not position:
                break
            offset += position
    finally:
        file.close()


def _sound_record_at(view: memoryview, position: int) -> tuple[int, int, int] | None:
    if len(view) - position < entries.HEADER_BYTES:
        return None
    _, length, payload_bytes, _, _, _, ledger, entry, _, _ = entries.HEADER.unpack_from(
        view, position
    )
    if length != entries.record_bytes(payload_bytes) or position + length > len(view):
        return None
    try:
        entries.verify_record(view[position : position + length])
    except CorruptData:
        return None
    return ledger, entry, length


async def _read_head(file: File, number: int, seed: int) -> tuple[str, int] | None:
    block = await _read_block(file, number, seed, 0, blocks.ALIGN)
    if block is None or block.kind != cb.COMPACTED_HEAD:
        return None
    return cb.decode_head(block.payload, f"the head of {cb.compacted_file_name(number)}")


async def _read_trailer(
    file: File, compacted: cb.CompactedFile, seed: int
) -> cb.CompactedFileTrailer | None:
    offset = compacted.length - jb.TRAILER_SPACE
    block = await _read_block(file, compacted.number, seed, offset, jb.TRAILER_SPACE)
    if block is None or block.kind != cb.COMPACTED_TRAILER:
        return None
    try:
        trailer = cb.CompactedFileTrailer.decode(
            block.payload, cb.compacted_file_name(compacted.number)
        )
    except CorruptData:
        return None
    return (
        trailer
        if (trailer.data_end, trailer.extent_count) == (compacted.data_end, compacted.extent_count)
        else None
    )


async def _read_block(
    file: File, number: int, seed: int, offset: int, length: int
) -> blocks.Block | None:
    if offset < 0:
        return None
    try:
        data = await file.read_in_worker(offset, length)
    except CorruptData:
        return None
    return blocks.block_at(number, memoryview(data), seed, 0, offset)
