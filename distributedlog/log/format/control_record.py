"""Control entries: what a writer says that has nothing to write, or says it of producers (pure).

A control entry holds one empty row and no record. It counts the records before it, like every entry, and its
txid is the greatest of the segment so far. Section 4 says where that record is:

    entry i64 | slot i64 | first txid of the segment i64               24 bytes, little-endian

so that whoever looks for the segment's end reads one entry, however many control entries there are at it.
Before a segment's first record there is no such section.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Buffer
from .record import FLAG_CONTROL, EntryHeader, build_entry, find_section

SECTION_LAST_RECORD = 4
_LAST = struct.Struct("<qqq")


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record before a control entry, in its segment."""

    entry: int
    slot: int
    first_txid: int
    """Of the first record of the segment."""


def build_control(
    last: LastRecord | None,
    max_txid: int,
    *,
    records_before: int,
    written_ms: int,
    sections: Sequence[tuple[int, int, Buffer]] = (),
) -> tuple[list[Buffer], int]:
    """The buffers of a control entry and their length in bytes. ``last``: None before the first record.

    ``sections``: as of `record.build`, and more of them.
    """
    sections = [*sections]
    if last is not None:
        packed = _LAST.pack(last.entry, last.slot, last.first_txid)
        sections.append((SECTION_LAST_RECORD, 0, packed))
    return build_entry(
        (max(0, max_txid),),
        (b"",),
        records_before=records_before,
        written_ms=written_ms,
        flags=FLAG_CONTROL,
        sections=sections,
    )


def last_record(entry: int, payload: Buffer, header: EntryHeader) -> LastRecord | None:
    """What control entry ``entry`` says of the last record before it; None: nothing. Raises `CorruptData`."""
    packed = find_section(payload, header, SECTION_LAST_RECORD)
    if packed is None:
        return None
    if len(packed) < _LAST.size:
        raise CorruptData(f"control entry {entry} names its last record in {len(packed)} bytes")
    result = LastRecord(*_LAST.unpack_from(packed))
    if not (
        0 <= result.entry < entry
        and 0 <= result.slot < header.records_before
        and result.first_txid >= 0
    ):
        raise CorruptData(f"control entry {entry} names a record that cannot be: {result}")
    return result
