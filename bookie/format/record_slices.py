"""Entry records out of the bytes of a run, as far as they are here and fit (pure).

A run is records back to back; nothing says where one begins but the headers before it. Digests are for
whoever uses a record to check; ids and lengths must fit here, or nothing is believed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from ...runtime.interfaces.errors import CorruptData
from . import entry as entries
from .extent_map import ExtentLocation


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """Records of a run. ``end``: bytes from the run's beginning to theirs."""

    records: memoryview
    last_entry: int
    """The last id that is in ``part``; the one before the first asked for where none is."""
    end_offset: int
    is_truncated: bool
    """It stopped where the bytes that are here end, not the run, nor what was allowed."""


def slice_extent(
    view: memoryview | bytes,
    ledger_id: int,
    extent: ExtentLocation,
    first: int,
    last: int,
    bytes_max: int,
    at_least_one: bool,
) -> RecordSlice:
    """The records first..last of a run, together at most ``bytes_max``, a first longer one if wanted.

    ``view`` may end before the run does. Raises `CorruptData`.
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
    """The record of ``entry`` in all the bytes of a run, unverified. Raises `CorruptData`."""
    return slice_extent(view, ledger_id, extent, entry, entry, 0, True).records


SOUND_PART_RECORDS_MAX = 500
"""Of what `sound_parts` yields at a time: half a millisecond of digests."""


def sound_parts(
    view: memoryview | bytes, ledger_id: int, extent: ExtentLocation
) -> Iterator[ExtentLocation]:
    """Stretches of a run, ascending, whose records fit their digests; what is between them is rotten.

    ``view``: the run's bytes, as many as there are. Where a header rotted nobody knows where the next record
    begins, and all that follows counts as rotten: nothing is searched for, or a record that somebody stored
    as a payload would be found. Stretches that follow each other may come as several.
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
    """The same stretches, those that lie back to back as one."""
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
    """The length of the record that must stand there. Raises `CorruptData`."""
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
    raise CorruptData(f"ledger {ledger_id} entry {entry}: the journal holds something else there")
