"""Reading what a cold file says of itself: at a start, where no index says it, and for who looks for rot."""

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
"""Read at once where records are looked for without a footer: more than any record."""


async def what_is_wrong(
    disk: Disk, cold: cb.CompactedFile, seed: int, bookie_id: str
) -> tuple[str, bool]:
    """Why this is not the file that was listed, and whether nothing of it is left; ("", False): it is.

    Head and trailer are looked at, which are its ends, not the records. Raises `ForeignData`,
    `UnsupportedFormat`.
    """
    name = cb.cold_name(cold.number)
    try:
        file = await open_file(disk, name)
    except CorruptData as error:
        return str(error), False
    try:
        head = await _head(file, cold.number, seed)
        trailer = await _trailer(file, cold, seed)
    finally:
        file.close()
    if head is not None and bookie_id and head[0] != bookie_id:
        raise ForeignData(f"{name} was written by bookie {head[0]}, this is {bookie_id}")
    if head is None and trailer is None:
        return f"{name} holds nothing of what was written there", True
    if head is None:
        return f"{name} does not begin as it did", False
    if trailer is None:
        return f"{name} does not end as it did", False
    return "", False


async def read_compacted_footer(
    disk: Disk, cold: cb.CompactedFile, seed: int
) -> tuple[cb.CompactedExtent, ...] | None:
    """The runs that a cold file was made of, dead ones too; None where its footer is not whole."""
    payloads = await read_compacted_payloads(disk, cold, seed)
    if payloads is None:
        return None
    name = cb.cold_name(cold.number)
    try:
        return tuple(
            run for payload in payloads for run in cb.unpack_runs(payload, cold.number, name)
        )
    except CorruptData:
        return None


async def read_compacted_payloads(
    disk: Disk, cold: cb.CompactedFile, seed: int
) -> list[memoryview] | None:
    """As `read_compacted_footer`, the runs as they stand there."""
    name = cb.cold_name(cold.number)
    try:
        file = await open_file(disk, name)
    except CorruptData:
        return None
    try:
        trailer = await _trailer(file, cold, seed)
        if trailer is None:
            return None
        payloads = []
        offset, left = trailer.footer_offset, trailer.runs
        for _ in range(trailer.footer_blocks):
            runs = min(left, jb.FOOTER_RUNS_MAX)
            block = await _block(
                file, cold.number, seed, offset, blocks.padded(runs * cb.RUN_BYTES)
            )
            if block is None or block.kind != cb.COLD_FOOTER:
                return None
            payloads.append(block.payload)
            offset += block.padded_length
            left -= runs
        if xxhash.xxh3_64_intdigest(b"".join(payloads)) != trailer.digest:
            return None
        return payloads
    except CorruptData:
        return None
    finally:
        file.close()


async def find_records(
    disk: Disk, cold: cb.CompactedFile
) -> AsyncIterator[tuple[int, ExtentLocation]]:
    """Each sound record of a cold file whose footer is not: (ledger, a run of one). Slow.

    Records begin at multiples of 8 bytes; what lies between sound ones was given back, or is rotten.

    Corrupt records are searched, too. A payload with the form of an entry record may be taken for one. All
    ledgers are in the limbo state then. Searching only zeros would avoid this.
    """
    try:
        file = await open_file(disk, cb.cold_name(cold.number))
    except CorruptData:
        return
    try:
        at = cb.DATA_OFFSET
        while at < cold.data_end:
            try:
                data = await file.read_cold(at, min(SEARCH_BYTES, cold.data_end - at))
            except CorruptData:
                at += blocks.ALIGN
                continue
            ends = at + len(data) >= cold.data_end
            position = 0
            view = memoryview(data)
            while position < len(view):
                record = _record(view, position)
                if record is not None:
                    ledger, entry, length = record
                    yield ledger, ExtentLocation(entry, 1, cold.number, at + position, length)
                    position += length
                elif not ends and len(view) - position < SEARCH_BYTES // 2:
                    break  # it may go on in what was not read yet
                elif not any(view[position : position + blocks.ALIGN]):
                    position += blocks.ALIGN
                else:
                    position += entries.ALIGN
            if not position:
                break
            at += position
    finally:
        file.close()


def _record(view: memoryview, position: int) -> tuple[int, int, int] | None:
    if len(view) - position < entries.HEADER_BYTES:
        return None
    _, length, payload_bytes, _, _, _, ledger, entry, _, _ = entries.HEADER.unpack_from(
        view, position
    )
    if length != entries.record_bytes(payload_bytes) or position + length > len(view):
        return None
    try:
        entries.check(view[position : position + length])
    except CorruptData:
        return None
    return ledger, entry, length


async def _head(file: File, number: int, seed: int) -> tuple[str, int] | None:
    block = await _block(file, number, seed, 0, blocks.ALIGN)
    if block is None or block.kind != cb.COLD_HEAD:
        return None
    return cb.decode_head(block.payload, f"the head of {cb.cold_name(number)}")


async def _trailer(file: File, cold: cb.CompactedFile, seed: int) -> cb.CompactedFileTrailer | None:
    at = cold.length - jb.TRAILER_SPACE
    block = await _block(file, cold.number, seed, at, jb.TRAILER_SPACE)
    if block is None or block.kind != cb.COLD_TRAILER:
        return None
    try:
        trailer = cb.CompactedFileTrailer.decode(block.payload, cb.cold_name(cold.number))
    except CorruptData:
        return None
    return trailer if (trailer.data_end, trailer.runs) == (cold.data_end, cold.runs) else None


async def _block(
    file: File, number: int, seed: int, offset: int, length: int
) -> blocks.Block | None:
    if offset < 0:
        return None
    try:
        data = await file.read_cold(offset, length)
    except CorruptData:
        return None
    return blocks.block_at(number, memoryview(data), seed, 0, offset)
