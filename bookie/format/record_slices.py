"""Cut entry records out of the loaded bytes of an extent, and check them (pure).

The records of an extent are contiguous, so a record is found only through the headers before it. Here IDs and
lengths must match. Digests are verified by the callers that need it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from ...runtime.interfaces.errors import CorruptData
from . import entry as entries
from .extent_map import ExtentLocation


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """Records of an extent."""

    records: memoryview
    last_entry: int
    """The last ID in `records`. If this is empty, it is the ID before the first requested one."""
    end_offset: int
    """Offset of the end of the records from the start of the extent, in bytes."""
    is_truncated: bool
    """Whether the slice ended at the end of the loaded bytes, not at the end of the extent or at a limit."""


def slice_extent(
    view: memoryview | bytes,
    ledger_id: int,
    extent: ExtentLocation,
    first: int,
    last: int,
    bytes_max: int,
    at_least_one: bool,
) -> RecordSlice:
    """Return the records ``first`` to ``last`` of an extent, or the first of them if ``view`` ends before.

    Args:
        view: Bytes from the start of the extent, possibly not all of them.
        bytes_max: Maximum bytes of all records.
        at_least_one: Whether to return the first record even if it exceeds ``bytes_max``.
    Raises:
        CorruptData: A header does not match the extent.
    """
    view = memoryview(view)
    view_bytes = len(view)
    length, last_in_extent = extent.length, extent.first + extent.count - 1
    if (
        first == extent.first
        and last_in_extent <= last
        and length <= bytes_max
        and length <= view_bytes
    ):
        _check_header(view, 0, length, ledger_id, first)
        return RecordSlice(
            view if length == view_bytes else view[:length], last_in_extent, length, False
        )
    position = start = end = 0
    last_sliced = first - 1
    is_truncated = False
    for entry in range(extent.first, min(last_in_extent, last) + 1):
        if view_bytes - position < entries.HEADER_BYTES and view_bytes < extent.length:
            is_truncated = True
            break
        length = _check_header(view, position, extent.length, ledger_id, entry)
        if entry == first:
            start = end = position
        position += length
        if entry >= first:
            if position - start > bytes_max and not (at_least_one and entry == first):
                break
            if position > view_bytes:
                is_truncated = True
                break
            end, last_sliced = position, entry
    return RecordSlice(view[start:end], last_sliced, end, is_truncated)


def find_record(
    view: memoryview | bytes, ledger_id: int, extent: ExtentLocation, entry: int
) -> memoryview:
    """Return the record of ``entry`` from the complete bytes of an extent, without verification.

    Raises:
        CorruptData: A header does not match the extent.
    """
    return slice_extent(view, ledger_id, extent, entry, entry, 0, True).records


SOUND_PART_RECORDS_MAX = 500
"""The maximum records of one part from `valid_parts`, half a millisecond of hashing."""


def valid_parts(
    view: memoryview | bytes, ledger_id: int, extent: ExtentLocation
) -> Iterator[ExtentLocation]:
    """Yield ascending parts of an extent whose records are valid. All records between them are corrupt.

    ``view`` has the bytes of the extent, as many as are readable. If a header is corrupt, the offset of the
    next record is unknown, and all later records count as corrupt. They are not searched for, because a
    user's payload could look like a record. Adjacent parts may be yielded separately.
    """
    view = memoryview(view)
    position = start = 0
    first = extent.first
    for entry in range(extent.first, extent.last + 1):
        try:
            length = _check_header(view, position, extent.length, ledger_id, entry)
        except CorruptData:
            break
        record_end = position + length
        digest = int.from_bytes(view[position : position + entries.DIGEST_BYTES], "little")
        is_sound = (
            record_end <= len(view)
            and xxhash.xxh3_64_intdigest(view[position + entries.DIGEST_BYTES : record_end])
            == digest
        )
        if not is_sound and entry > first:
            yield ExtentLocation(
                first, entry - first, extent.file_number, extent.offset + start, position - start
            )
        position = record_end
        if not is_sound:
            first, start = entry + 1, position
        elif entry + 1 - first == SOUND_PART_RECORDS_MAX:
            yield ExtentLocation(
                first,
                SOUND_PART_RECORDS_MAX,
                extent.file_number,
                extent.offset + start,
                record_end - start,
            )
            first, start = entry + 1, record_end
    else:
        entry = extent.last + 1
    if entry > first:
        yield ExtentLocation(
            first, entry - first, extent.file_number, extent.offset + start, position - start
        )


def merge_adjacent(parts: list[ExtentLocation]) -> list[ExtentLocation]:
    """Merge the parts that are contiguous."""
    merged: list[ExtentLocation] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and (last.last + 1, last.offset + last.length) == (
            part.first,
            part.offset,
        ):
            merged[-1] = ExtentLocation(
                last.first,
                last.count + part.count,
                last.file_number,
                last.offset,
                last.length + part.length,
            )
        else:
            merged.append(part)
    return merged


def _check_header(
    view: memoryview, position: int, extent_bytes: int, ledger_id: int, entry: int
) -> int:
    """Return the length of the record that must be at this position. Raises `CorruptData`."""
    if len(view) - position >= entries.HEADER_BYTES:
        _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
            view, position
        )
        if (
            ledger == ledger_id
            and number == entry
            and length == entries.record_bytes(payload_bytes)
            and position + length <= extent_bytes
        ):
            return int(length)
    raise CorruptData(f"ledger {ledger_id} entry {entry}: the journal has other bytes there")
