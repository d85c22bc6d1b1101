"""Ranges of entries, and how they are packed into tasks (pure).

A range is whole entries of one segment, save a part of its first and last one. A task is a list of ranges
in the order of the log, filled to a number of bytes: a task costs Spark 4 to 30 ms whatever it reads, so a
thousand small segments are a handful of tasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..log.dlsn import DLSN

RANGE_BYTES = 64 * 1024
"""What opening a range costs, as bytes that would be read in that time."""
TASK_BYTES_MIN = 1024 * 1024
"""A hint for more tasks makes none smaller than this."""
WHOLE = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """What planning needs of a segment: closed, or as far as it is confirmed."""

    segment: int
    ledger_id: int
    last_entry: int
    """-1: no entry can be read (yet)."""
    size_bytes: int
    records: int
    start_sequence_id: int
    first_txid: int
    last_txid: int
    closed: bool
    given_txid: int = -1
    """Of all its records, given when it was linked; -1: they have their own."""

    @property
    def end_sequence_id(self) -> int:
        """Of the first record behind it."""
        return self.start_sequence_id + self.records

    @property
    def entry_bytes(self) -> float:
        """Of one entry, on average."""
        return max(1.0, self.size_bytes / max(1, self.last_entry + 1))


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first_entry`` to ``last_entry`` of one segment; travels to a task."""

    log: str
    log_id: int
    segment: int
    ledger_id: int
    first_entry: int
    last_entry: int
    start_sequence_id: int
    """Of the segment."""
    size_bytes: int
    """About."""
    first_slot: int = 0
    """Where to begin in the first entry."""
    stop_slot: int = WHOLE
    """Where to stop in the last entry; -1: at its end."""
    given_txid: int = -1
    """Of the segment."""

    @property
    def entries(self) -> int:
        """How many."""
        return self.last_entry - self.first_entry + 1

    @property
    def start(self) -> DLSN:
        """The first position."""
        return DLSN(self.segment, self.first_entry, self.first_slot)


def ranges_between(
    log: str, log_id: int, segments: Iterable[Segment], start: DLSN, end: DLSN
) -> list[EntryRange]:
    """What lies from ``start`` up to, and without, ``end``. ``segments`` ascend."""
    found = []
    for one in segments:
        if one.segment < start.segment or one.segment > end.segment:
            continue
        first, first_slot, last, stop_slot = 0, 0, one.last_entry, WHOLE
        if one.segment == start.segment:
            first, first_slot = start.entry, start.slot
        if one.segment == end.segment and end.entry <= last:
            last, stop_slot = (end.entry, end.slot) if end.slot else (end.entry - 1, WHOLE)
        if first > last or (first == last and stop_slot != WHOLE and first_slot >= stop_slot):
            continue
        size = int((last - first + 1) * one.entry_bytes)
        found.append(
            EntryRange(
                log,
                log_id,
                one.segment,
                one.ledger_id,
                first,
                last,
                one.start_sequence_id,
                size,
                first_slot,
                stop_slot,
                one.given_txid,
            )
        )
    return found


def kept(one: EntryRange, first: int, last: int) -> EntryRange:
    """Only the entries ``first`` to ``last`` of it, which it has."""
    assert one.first_entry <= first <= last <= one.last_entry
    return replace(
        one,
        first_entry=first,
        last_entry=last,
        size_bytes=one.size_bytes * (last - first + 1) // one.entries,
        first_slot=one.first_slot if first == one.first_entry else 0,
        stop_slot=one.stop_slot if last == one.last_entry else WHOLE,
    )


def cut(one: EntryRange, entries: int) -> tuple[EntryRange, EntryRange]:
    """The first ``entries`` entries, and the rest; there is a rest."""
    assert 0 < entries < one.entries
    first_bytes = one.size_bytes * entries // one.entries
    middle = one.first_entry + entries
    return (
        replace(one, last_entry=middle - 1, size_bytes=first_bytes, stop_slot=WHOLE),
        replace(one, first_entry=middle, size_bytes=one.size_bytes - first_bytes, first_slot=0),
    )


def pack(
    ranges: Sequence[EntryRange], bytes_max: int, partitions_min: int | None = None
) -> list[list[EntryRange]]:
    """The ranges as tasks, in order, each of about the same size and about ``bytes_max`` at most."""
    total = sum(_weight(one) for one in ranges)
    if not total:
        return []
    size = sum(one.size_bytes for one in ranges)
    # A tenth above the limit is no reason for one more task, which would run alone after the others.
    number = max(1, -(-size * 10 // (11 * bytes_max)), total // bytes_max)
    if partitions_min is not None:
        number = max(number, min(partitions_min, size // TASK_BYTES_MIN))
    target = total / max(1, number)
    tasks: list[list[EntryRange]] = [[]]
    filled = 0.0
    left = list(reversed(ranges))
    while left:
        one = left.pop()
        room = target * len(tasks) - filled
        if _weight(one) > room + RANGE_BYTES and len(tasks) < number:
            fits = int((room - RANGE_BYTES) * one.entries / max(1, one.size_bytes))
            if 0 < fits < one.entries:
                head, rest = cut(one, fits)
                tasks[-1].append(head)
                filled += _weight(head)
                left.append(rest)
                tasks.append([])
                continue
            if tasks[-1] and room < _weight(one) / 2:
                left.append(one)
                filled = target * len(tasks)
                tasks.append([])
                continue
        tasks[-1].append(one)
        filled += _weight(one)
    return tasks


def _weight(one: EntryRange) -> int:
    return one.size_bytes + RANGE_BYTES
