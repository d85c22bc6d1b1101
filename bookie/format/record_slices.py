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

    part: memoryview
    upto: int
    """The last id that is in ``part``; the one before the first asked for where none is."""
    end: int
    short: bool
    """It stopped where the bytes that are here end, not the run, nor what was allowed."""


def cut(
    view: memoryview | bytes,
    ledger_id: int,
    run: ExtentLocation,
    first: int,
    last: int,
    bytes_max: int,
    at_least_one: bool,
) -> RecordSlice:
    """The records first..last of a run, together at most ``bytes_max``, a first longer one if wanted.

    ``view`` may end before the run does. Raises `CorruptData`.
    """
    view = memoryview(view)
    here = len(view)
    length, run_last = run.length, run.first + run.count - 1
    if first == run.first and run_last <= last and length <= bytes_max and length <= here:
        _check_header(view, 0, length, ledger_id, first)
        return RecordSlice(view if length == here else view[:length], run_last, length, False)
    position = start = end = 0
    upto = first - 1
    short = False
    for entry in range(run.first, min(run_last, last) + 1):
        if here - position < entries.HEADER_BYTES and here < run.length:
            short = True
            break
        length = _check_header(view, position, run.length, ledger_id, entry)
        if entry == first:
            start = end = position
        position += length
        if entry >= first:
            if position - start > bytes_max and not (at_least_one and entry == first):
                break
            if position > here:
                short = True
                break
            end, upto = position, entry
    return RecordSlice(view[start:end], upto, end, short)


def find_record(
    view: memoryview | bytes, ledger_id: int, run: ExtentLocation, entry: int
) -> memoryview:
    """The record of ``entry`` in all the bytes of a run, unverified. Raises `CorruptData`."""
    return cut(view, ledger_id, run, entry, entry, 0, True).part


PART_RECORDS_MAX = 500
"""Of what `sound_parts` yields at a time: half a millisecond of digests."""


def sound_parts(
    view: memoryview | bytes, ledger_id: int, run: ExtentLocation
) -> Iterator[ExtentLocation]:
    """Stretches of a run, ascending, whose records fit their digests; what is between them is rotten.

    ``view``: the run's bytes, as many as there are. Where a header rotted nobody knows where the next record
    begins, and all that follows counts as rotten: nothing is searched for, or a record that somebody stored
    as a payload would be found. Stretches that follow each other may come as several.
    """
    view = memoryview(view)
    position = start = 0
    first = run.first
    for entry in range(run.first, run.last + 1):
        try:
            length = _check_header(view, position, run.length, ledger_id, entry)
        except CorruptData:
            break
        stop = position + length
        digest = int.from_bytes(view[position : position + entries.DIGEST_BYTES], "little")
        sound = (
            stop <= len(view)
            and xxhash.xxh3_64_intdigest(view[position + entries.DIGEST_BYTES : stop]) == digest
        )
        if not sound and entry > first:
            yield ExtentLocation(
                first, entry - first, run.file_number, run.offset + start, position - start
            )
        position = stop
        if not sound:
            first, start = entry + 1, position
        elif entry + 1 - first == PART_RECORDS_MAX:
            yield ExtentLocation(
                first, PART_RECORDS_MAX, run.file_number, run.offset + start, stop - start
            )
            first, start = entry + 1, stop
    else:
        entry = run.last + 1
    if entry > first:
        yield ExtentLocation(
            first, entry - first, run.file_number, run.offset + start, position - start
        )


def joined(parts: list[ExtentLocation]) -> list[ExtentLocation]:
    """The same stretches, those that lie back to back as one."""
    found: list[ExtentLocation] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and (last.last + 1, last.offset + last.length) == (
            part.first,
            part.offset,
        ):
            found[-1] = ExtentLocation(
                last.first,
                last.count + part.count,
                last.file_number,
                last.offset,
                last.length + part.length,
            )
        else:
            found.append(part)
    return found


def _check_header(
    view: memoryview, position: int, run_bytes: int, ledger_id: int, entry: int
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
            and position + length <= run_bytes
        ):
            return int(length)
    raise CorruptData(f"ledger {ledger_id} entry {entry}: the journal holds something else there")
