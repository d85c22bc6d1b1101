"""Control entries: keep-alive entries of idle writers, and producer state without records (pure).

A control entry holds one empty row and no record. Like every entry, it counts the records before it, and its
txid is the greatest of the segment so far. Section 4 has the position of the last record before it:

    entry i64 | slot i64 | first txid of the segment i64               24 bytes, little-endian

Therefore a search for the end of the segment reads one entry, regardless of the number of control entries at
the end. Before the first record of a segment, this section is absent.
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
    """The txid of the first record of the segment."""


def build_control_entry(
    last: LastRecord | None,
    max_txid: int,
    *,
    records_before: int,
    written_ms: int,
    sections: Sequence[tuple[int, int, Buffer]] = (),
) -> tuple[list[Buffer], int]:
    """Return the buffers of a control entry and their length in bytes.

    Args:
        last: The last record before it, or None before the first record of the segment.
        max_txid: The greatest txid of the segment so far; a negative number is stored as 0.
        records_before: The number of records of the segment before this entry.
        written_ms: The writer's time stamp, in ms since 1970.
        sections: Further sections, as for `build_entry`.
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


def decode_last_record(entry: int, payload: Buffer, header: EntryHeader) -> LastRecord | None:
    """Return the last record before a control entry, or None if its segment has no earlier record.

    Args:
        entry: The ID of the control entry.
        payload: Its bytes.
        header: Its decoded header.
    Raises:
        CorruptData: The section is too short or names an impossible position.
    """
    packed = find_section(payload, header, SECTION_LAST_RECORD)
    if packed is None:
        return None
    if len(packed) < _LAST.size:
        raise CorruptData(f"control entry {entry}: its last-record section has {len(packed)} bytes")
    result = LastRecord(*_LAST.unpack_from(packed))
    if not (
        0 <= result.entry < entry
        and 0 <= result.slot < header.records_before
        and result.first_txid >= 0
    ):
        raise CorruptData(f"control entry {entry}: impossible last record {result}")
    return result
