"""What silent slots of a ledger miss: the note in ``under/<ledger>`` (pure).

A writer that goes on without a slot (H22) owes the ledger the entries that the slot's bookie did not get.
The note says which; the repairer copies them once the ledger is closed and then removes the note. A note
may claim too much (the entries were on their way): the repairer looks before it copies. It is written off
the path of acks, so a crash may lose it: the slow audit of entry lists finds such holes as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_versioned, fields, number, optional, row, rows, text

FORMAT = 1
_RECORD_FIELDS = fields(holes=rows(row(text(chars_min=1), number(), optional(number())), 64 * 1024))


@dataclass(frozen=True, slots=True, order=True)
class MissingRange:
    """Entries from ``first`` to before ``to`` that ``bookie`` should hold and may not."""

    bookie: str
    first: int
    end: int | None
    """One past the last missing entry; None: to the end of the ledger."""


def merge_ranges(missing_ranges: Iterable[MissingRange]) -> tuple[MissingRange, ...]:
    """The same holes with overlapping and adjacent ones joined, empty ones dropped, in order."""
    result: list[MissingRange] = []
    for missing_range in sorted(
        missing_ranges, key=lambda h: (h.bookie, h.first, h.end is None, h.end or 0)
    ):
        if missing_range.end is not None and missing_range.end <= missing_range.first:
            continue
        previous = result[-1] if result else None
        if (
            previous is not None
            and previous.bookie == missing_range.bookie
            and (previous.end is None or previous.end >= missing_range.first)
        ):
            range_end = (
                None
                if previous.end is None or missing_range.end is None
                else max(previous.end, missing_range.end)
            )
            result[-1] = MissingRange(previous.bookie, previous.first, range_end)
        else:
            result.append(missing_range)
    return tuple(result)


def limit_ranges(missing_ranges: Iterable[MissingRange], end: int) -> tuple[MissingRange, ...]:
    """The holes of a ledger that is now known to end before entry ``end``."""
    return merge_ranges(
        MissingRange(h.bookie, h.first, end if h.end is None else min(h.end, end))
        for h in missing_ranges
    )


def encode_missing_ranges(missing_ranges: Iterable[MissingRange]) -> bytes:
    """As the value of ``under/<ledger>``."""
    return pack({"format": FORMAT, "holes": [[h.bookie, h.first, h.end] for h in missing_ranges]})


def decode_missing_ranges(value: Buffer) -> tuple[MissingRange, ...]:
    """Raises `CorruptData`, or `UnsupportedFormat` for a newer version's note."""
    return tuple(
        MissingRange(*range_row)
        for range_row in decode_versioned(value, FORMAT, _RECORD_FIELDS, "a note of holes")["holes"]
    )
