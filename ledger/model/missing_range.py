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
from ...runtime.protocol.schema import fields, number, optional, row, rows, text, versioned

FORMAT = 1
_NOTE = fields(holes=rows(row(text(chars_min=1), number(), optional(number())), 64 * 1024))


@dataclass(frozen=True, slots=True, order=True)
class MissingRange:
    """Entries from ``first`` to before ``to`` that ``bookie`` should hold and may not."""

    bookie: str
    first: int
    to: int | None
    """One past the last missing entry; None: to the end of the ledger."""


def merged(holes: Iterable[MissingRange]) -> tuple[MissingRange, ...]:
    """The same holes with overlapping and adjacent ones joined, empty ones dropped, in order."""
    result: list[MissingRange] = []
    for hole in sorted(holes, key=lambda h: (h.bookie, h.first, h.to is None, h.to or 0)):
        if hole.to is not None and hole.to <= hole.first:
            continue
        last = result[-1] if result else None
        if (
            last is not None
            and last.bookie == hole.bookie
            and (last.to is None or last.to >= hole.first)
        ):
            to = None if last.to is None or hole.to is None else max(last.to, hole.to)
            result[-1] = MissingRange(last.bookie, last.first, to)
        else:
            result.append(hole)
    return tuple(result)


def ended(holes: Iterable[MissingRange], end: int) -> tuple[MissingRange, ...]:
    """The holes of a ledger that is now known to end before entry ``end``."""
    return merged(
        MissingRange(h.bookie, h.first, end if h.to is None else min(h.to, end)) for h in holes
    )


def encode(holes: Iterable[MissingRange]) -> bytes:
    """As the value of ``under/<ledger>``."""
    return pack({"format": FORMAT, "holes": [[h.bookie, h.first, h.to] for h in holes]})


def decode(value: Buffer) -> tuple[MissingRange, ...]:
    """Raises `CorruptData`, or `UnsupportedFormat` for a newer version's note."""
    return tuple(
        MissingRange(*one) for one in versioned(value, FORMAT, _NOTE, "a note of holes")["holes"]
    )
