"""Ranges of entries between positions: what they hold, and cut in two, each record once (hypothesis)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.segment_ranges import WHOLE_ENTRY, SegmentRange, ranges_between
from distributedlog.log.model.segment_record import SegmentRecord
from tests.examples import examples


def segment(number: int, entries: int, size: int = 100) -> SegmentRecord:
    """A closed segment; ``size`` is of an entry."""
    return SegmentRecord(
        number, 100 + number, 1, 0, 0, True, records=entries, size_bytes=entries * size,
        last_entry=entries - 1,
    )  # fmt: skip


def covered(ranges: list[SegmentRange]) -> list[tuple[int, int]]:
    return [(one.segment, e) for one in ranges for e in range(one.first_entry, one.last_entry + 1)]


def between(start: DLSN, end: DLSN, segments: list[SegmentRecord]) -> list[SegmentRange]:
    return ranges_between("a", "7", segments, start, end)


def test_a_range_ends_before_its_end_position() -> None:
    segments = [segment(1, 3), segment(2, 0), segment(3, 4)]

    assert covered(between(DLSN(1, 1, 0), DLSN(3, 2, 0), segments)) == [
        (1, 1),
        (1, 2),
        (3, 0),
        (3, 1),
    ]
    assert between(DLSN(3, 4, 0), DLSN(4, 0, 0), segments) == []
    assert between(DLSN(1, 3, 0), DLSN(3, 0, 0), segments) == []


def test_positions_inside_an_entry_keep_their_slots() -> None:
    found = between(DLSN(1, 1, 2), DLSN(1, 1, 5), [segment(1, 3)])

    assert [(one.first_entry, one.first_slot, one.last_entry, one.stop_slot) for one in found] == [
        (1, 2, 1, 5)
    ]
    assert between(DLSN(1, 1, 5), DLSN(1, 1, 5), [segment(1, 3)]) == []
    assert between(DLSN(1, 1, 0), DLSN(1, 2, 0), [segment(1, 3)])[0].stop_slot == WHOLE_ENTRY


SLOTS = 10
"""Records of an entry, for `slots`."""


def slots(ranges: list[SegmentRange]) -> list[tuple[int, int, int]]:
    """Every record of the ranges, where each entry has ten."""
    found = []
    for one in ranges:
        for entry in range(one.first_entry, one.last_entry + 1):
            first = one.first_slot if entry == one.first_entry else 0
            stop = SLOTS
            if entry == one.last_entry and one.stop_slot != WHOLE_ENTRY:
                stop = one.stop_slot
            found += [(one.segment, entry, slot) for slot in range(first, stop)]
    return found


@settings(max_examples=examples(100))
@given(st.integers(2, 9), st.integers(0, SLOTS - 1), st.integers(1, SLOTS), st.data())
def test_a_range_that_is_cut_keeps_each_record_once(
    entries: int, first_slot: int, stop_slot: int, data: st.DataObject
) -> None:
    """Its first slot belongs to the head alone, its last one to the rest alone."""
    stop = stop_slot if stop_slot < SLOTS else WHOLE_ENTRY
    whole = SegmentRange(
        "7", 1, 101, 0, 3, 3 + entries - 1, first_slot=first_slot, stop_slot=stop,
        size_bytes=entries * 100, log="a",
    )  # fmt: skip

    head, rest = whole.split(data.draw(st.integers(1, entries - 1)))

    assert slots([head]) + slots([rest]) == slots([whole])
    assert head.size_bytes + rest.size_bytes == whole.size_bytes
