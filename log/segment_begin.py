"""What the first entry of a segment says of the one before it: where that ended (pure).

A writer enters a segment when all of the one before it is acknowledged, and never writes there again (H11).
So that one's end is certain from then on, long before the log's metadata say it: whoever closes it, its
writer or a recovery, finds just this (inv. 3, inv. 20). The first entry of the segment says it in section 5:

    last entry of the segment before i64 | sequence id of the first record here i64

16 bytes, little-endian; -1: the segment before has no entry. Who does not know the section passes over it and
waits for the close.
"""

import struct
from dataclasses import dataclass

from ..runtime.errors import CorruptData
from ..runtime.host import Buffer
from .record import decode_header, find_section, with_section

SECTION_BEGIN = 5
_BEGIN = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class SegmentBegin:
    """Where a segment begins: after this entry of the one before it."""

    last_entry: int
    """The last one of the segment before, a control entry too; -1: it has none."""
    sequence_id: int
    """Of the first record of this segment."""

    def into(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """An entry as `record.build` makes it, and its length in bytes: with this in it."""
        packed = _BEGIN.pack(self.last_entry, self.sequence_id)
        return with_section(buffers, length, SECTION_BEGIN, packed)


def segment_begin(entry: Buffer) -> SegmentBegin | None:
    """What the first entry of a segment says; None: nothing. Raises `CorruptData`, `UnsupportedFormat`."""
    found = find_section(entry, decode_header(entry), SECTION_BEGIN)
    if found is None:
        return None
    if len(found) < _BEGIN.size:
        raise CorruptData(f"a segment's first entry says in {len(found)} bytes where it begins")
    begin = SegmentBegin(*_BEGIN.unpack_from(found))
    if begin.last_entry < -1 or begin.sequence_id < 0:
        raise CorruptData(f"a segment begins where none can: {begin}")
    return begin
