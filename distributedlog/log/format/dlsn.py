"""DLSN (DistributedLog Sequence Number): the position of a record in a log (pure).

A log is a list of segments, a segment a list of entries, and an entry a list of records. A DLSN contains one
number for each of the three. Segments count from 1, entries and slots from 0. DLSNs compare in the order of
the log (G1).
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
    """The position of a record: segment, entry in the segment, and slot in the entry.

    Segments count from 1, entries and slots from 0. DLSNs compare in the order of the log.

    A position need not hold a record. A reader that starts between two records begins with the next one. Any
    program can construct a DLSN, so a DLSN does not prove that a record is there (G5).
    """

    __slots__ = ()

    INITIAL: ClassVar["DLSN"]
    """The position before the first record that a log ever had.

    It is not the earliest record that is left. A reader that starts here raises `LogTruncated` if records
    were truncated.
    """

    NONE: ClassVar["DLSN"]
    """No position. The last position of a log without records."""

    def __str__(self) -> str:
        return f"{self.segment}.{self.entry}.{self.slot}"

    def __repr__(self) -> str:
        return f"DLSN({self.segment}, {self.entry}, {self.slot})"

    def sort_key(self) -> str:
        """Return a text of constant width, such as ``0000000001.000000000000012.0000003``.

        These texts sort as the positions do.
        """
        return (
            f"{self.segment:0{SEGMENT_DIGITS}d}.{self.entry:0{ENTRY_DIGITS}d}"
            f".{self.slot:0{SLOT_DIGITS}d}"
        )

    def next(self) -> "DLSN":
        """Return the smallest position after this one."""
        return DLSN(self.segment, self.entry, self.slot + 1)

    @classmethod
    def parse(cls, text: str) -> "DLSN":
        """Return the DLSN of a text such as ``1.12.3``, or of a result of `sort_key`.

        Raises:
            InvalidRequest: The text is not a DLSN.
        """
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) < 1:
            raise InvalidRequest(
                f"not a DLSN: {text[:80]!r}; the format is SEGMENT.ENTRY.SLOT, such as 1.12.3, "
                "and segments count from 1"
            )
        return cls(int(match[1]), int(match[2]), int(match[3]))


DLSN.INITIAL = DLSN(1, 0, 0)
DLSN.NONE = DLSN(0, 0, 0)


def check_dlsn(value: object) -> DLSN:
    """Return the value if it is a DLSN.

    Raises:
        InvalidRequest: The value is of another type, such as the text of a DLSN.
    """
    if not isinstance(value, DLSN):
        raise InvalidRequest(f"expected a DLSN, not {quoted(value)}; DLSN.parse reads its text")
    return value
