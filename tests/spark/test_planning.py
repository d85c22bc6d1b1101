"""Cutting logs into tasks: nothing lost, nothing twice, in order (hypothesis), and few of them (S22)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.dlsn import DLSN
from distributedlog.spark.planning import WHOLE, EntryRange, Segment, cut, pack, ranges_between
from distributedlog.spark.sharing import shares, turn_of
from tests.examples import examples

MIB = 1024 * 1024


def segment(number: int, entries: int, size: int = 100, closed: bool = True) -> Segment:
    return Segment(number, 100 + number, entries - 1, entries * size, entries, 0, 0, 0, closed)


def covered(ranges: list[EntryRange]) -> list[tuple[int, int]]:
    return [(one.segment, e) for one in ranges for e in range(one.first_entry, one.last_entry + 1)]


def between(start: DLSN, end: DLSN, segments: list[Segment]) -> list[EntryRange]:
    return ranges_between("a", 7, segments, start, end)


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
    assert between(DLSN(1, 1, 0), DLSN(1, 2, 0), [segment(1, 3)])[0].stop_slot == WHOLE


SLOTS = 10
"""Records of an entry, for `slots`."""


def slots(ranges: list[EntryRange]) -> list[tuple[int, int, int]]:
    """Every record of the ranges, where each entry has ten."""
    found = []
    for one in ranges:
        for entry in range(one.first_entry, one.last_entry + 1):
            first = one.first_slot if entry == one.first_entry else 0
            stop = SLOTS
            if entry == one.last_entry and one.stop_slot != WHOLE:
                stop = one.stop_slot
            found += [(one.segment, entry, slot) for slot in range(first, stop)]
    return found


@settings(max_examples=examples(100))
@given(st.integers(2, 9), st.integers(0, SLOTS - 1), st.integers(1, SLOTS), st.data())
def test_a_range_that_is_cut_keeps_each_record_once(
    entries: int, first_slot: int, stop_slot: int, data: st.DataObject
) -> None:
    """Its first slot belongs to the head alone, its last one to the rest alone."""
    stop = stop_slot if stop_slot < SLOTS else WHOLE
    whole = EntryRange("a", 7, 1, 101, 3, 3 + entries - 1, 0, entries * 100, first_slot, stop)

    head, rest = cut(whole, data.draw(st.integers(1, entries - 1)))

    assert slots([head]) + slots([rest]) == slots([whole])
    assert head.size_bytes + rest.size_bytes == whole.size_bytes


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300_000)), max_size=30),
    st.integers(100_000, 20 * MIB),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_tasks_cover_every_entry_once_and_in_order(
    sizes: list[tuple[int, int]], bytes_max: int, hint: int | None
) -> None:
    segments = [segment(n, entries, size) for n, (entries, size) in enumerate(sizes, 1)]
    ranges = between(DLSN.INITIAL, DLSN(len(segments) + 1, 0, 0), segments)

    tasks = pack(ranges, bytes_max, hint)

    assert covered([one for task in tasks for one in task]) == covered(ranges)
    assert all(tasks)
    total = sum(one.size_bytes for one in ranges)
    assert len(tasks) <= (total + 64 * 1024 * len(ranges)) // bytes_max + 1 or hint is not None


def test_small_segments_share_a_task_and_large_ones_are_cut() -> None:
    """S22, and the bound of ten tasks for a thousand small segments."""
    small = between(DLSN.INITIAL, DLSN(1001, 0, 0), [segment(n, 1, 1000) for n in range(1, 1001)])
    large = between(DLSN.INITIAL, DLSN(2, 0, 0), [segment(1, 4096, 256 * 1024)])

    assert len(pack(small, 128 * MIB)) <= 4
    tasks = pack(large, 128 * MIB)
    assert 8 <= len(tasks) <= 9
    assert max(sum(one.size_bytes for one in task) for task in tasks) <= 1.1 * 128 * MIB


def test_a_hint_makes_more_tasks_but_none_below_a_mebibyte() -> None:
    ranges = between(DLSN.INITIAL, DLSN(2, 0, 0), [segment(1, 64, 256 * 1024)])

    assert len(pack(ranges, 128 * MIB, 8)) == 8
    assert len(pack(ranges, 128 * MIB, 1000)) <= 16


@settings(max_examples=examples(100))
@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10_000), max_size=8),
    st.integers(1, 5_000),
)
def test_shares_follow_the_backlog_and_keep_the_limit(backlog: dict[str, int], limit: int) -> None:
    """S19."""
    found = shares(limit, backlog)

    assert set(found) == set(backlog)
    assert sum(found.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= found[name] <= backlog[name] for name in backlog)


def test_every_waiting_log_has_its_turn() -> None:
    """S19: none starves."""
    backlog = {"a": 1, "b": 0, "c": 1_000_000}

    assert [turn_of(turn, backlog) for turn in range(3)] == ["a", "c", "a"]
    assert turn_of(0, {"a": 0}) is None
