"""Entries that detached slots of a ledger lack, as recorded in ``under/<ledger>`` (pure).

A writer that continues without a slot (H22) leaves out the entries of the slot's bookie. It records them
here. The repair leader copies them when the ledger is closed, and then removes the record.

The record may contain entries that the bookie did receive, because they were in flight. Repair therefore
checks before it copies. The record is written outside the acknowledgement path, so a crash can lose it. The
slow audit of entry lists finds such missing entries, too.
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
    """Entries from ``first`` to before ``end`` that ``bookie`` should store and may lack."""

    bookie: str
    first: int
    end: int | None
    """One past the last missing entry; None for the end of the ledger."""


def merge_ranges(missing_ranges: Iterable[MissingRange]) -> tuple[MissingRange, ...]:
    """Return the ranges in order, with overlapping and adjacent ones merged and empty ones removed."""
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
    """Return the ranges of a ledger that ends before entry ``end``, merged."""
    return merge_ranges(
        MissingRange(h.bookie, h.first, end if h.end is None else min(h.end, end))
        for h in missing_ranges
    )


def encode_missing_ranges(missing_ranges: Iterable[MissingRange]) -> bytes:
    """Encode the ranges as the value of ``under/<ledger>``."""
    return pack({"format": FORMAT, "holes": [[h.bookie, h.first, h.end] for h in missing_ranges]})


def decode_missing_ranges(value: Buffer) -> tuple[MissingRange, ...]:
    """Decode the value of ``under/<ledger>``.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: The record is of a newer version.
    """
    return tuple(
        MissingRange(*range_row)
        for range_row in decode_versioned(
            value, FORMAT, _RECORD_FIELDS, "a record of missing entries"
        )["holes"]
    )
