"""DLSN: the position of a record in a log (pure).

A log is a list of segments, a segment a list of entries, an entry a list of records; a DLSN names all
three. Segments count from 1, entries and slots from 0. DLSNs compare in the order of the log (G1).
"""

import re
from typing import ClassVar, NamedTuple

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import InvalidRequest

SEGMENT_DIGITS = 10
ENTRY_DIGITS = 15
SLOT_DIGITS = 7
_TEXT = re.compile(r"([0-9]{1,10})\.([0-9]{1,15})\.([0-9]{1,7})")


class DLSN(NamedTuple("DLSN", [("segment", int), ("entry", int), ("slot", int)])):
    """Segment (from 1), entry in it (from 0), slot in the entry (from 0). Ordered as the log is.

    A position need not hold a record: a reader that starts between two records begins with the next. It is
    an address that anybody may write down, and proves nothing about what is there (G5).
    """

    __slots__ = ()

    INITIAL: ClassVar["DLSN"]
    """Where every log began: before all records that it ever had. Not a word for "the earliest that is left":
    a reader that begins here misses what was truncated, and is told so (`LogTruncated`)."""

    NONE: ClassVar["DLSN"]
    """No position: where the last record is of a log that never had one."""

    def __str__(self) -> str:
        return f"{self.segment}.{self.entry}.{self.slot}"

    def __repr__(self) -> str:
        return f"DLSN({self.segment}, {self.entry}, {self.slot})"

    def sort_key(self) -> str:
        """Text of one width, which sorts as the positions do: ``0000000001.000000000000012.0000003``."""
        return (
            f"{self.segment:0{SEGMENT_DIGITS}d}.{self.entry:0{ENTRY_DIGITS}d}"
            f".{self.slot:0{SLOT_DIGITS}d}"
        )

    def next(self) -> "DLSN":
        """The smallest position after this one."""
        return DLSN(self.segment, self.entry, self.slot + 1)

    @classmethod
    def parse(cls, text: str) -> "DLSN":
        """Read ``1.12.3`` or what `sort_key` gives. Raises `InvalidRequest`."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) < 1:
            raise InvalidRequest(
                f"not a DLSN: {text[:80]!r}; it is written SEGMENT.ENTRY.SLOT, such as 1.12.3, "
                "and segments count from 1"
            )
        return cls(int(match[1]), int(match[2]), int(match[3]))


DLSN.INITIAL = DLSN(1, 0, 0)
DLSN.NONE = DLSN(0, 0, 0)


def check_dlsn(value: object) -> DLSN:
    """Return the value if it is a DLSN. Raises `InvalidRequest`, also for a DLSN's text."""
    if not isinstance(value, DLSN):
        raise InvalidRequest(f"a DLSN is a DLSN, not {quoted(value)}; DLSN.parse reads its text")
    return value
