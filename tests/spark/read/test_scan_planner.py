"""Cutting logs into tasks: nothing lost, nothing twice, in order (hypothesis), and few of them (S22)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.spark.read.scan_planner import log_of_turn, pack_tasks, share_limit
from tests.examples import examples
from tests.log.model.test_segment_ranges import between, covered, segment

MIB = 1024 * 1024


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

    tasks = pack_tasks(ranges, bytes_max, hint)

    assert covered([one for task in tasks for one in task]) == covered(ranges)
    assert all(tasks)
    total = sum(one.size_bytes for one in ranges)
    assert len(tasks) <= (total + 64 * 1024 * len(ranges)) // bytes_max + 1 or hint is not None


def test_small_segments_share_a_task_and_large_ones_are_cut() -> None:
    """S22, and the bound of ten tasks for a thousand small segments."""
    small = between(DLSN.INITIAL, DLSN(1001, 0, 0), [segment(n, 1, 1000) for n in range(1, 1001)])
    large = between(DLSN.INITIAL, DLSN(2, 0, 0), [segment(1, 4096, 256 * 1024)])

    assert len(pack_tasks(small, 128 * MIB)) <= 4
    tasks = pack_tasks(large, 128 * MIB)
    assert 8 <= len(tasks) <= 9
    assert max(sum(one.size_bytes for one in task) for task in tasks) <= 1.1 * 128 * MIB


def test_a_hint_makes_more_tasks_but_none_below_a_mebibyte() -> None:
    ranges = between(DLSN.INITIAL, DLSN(2, 0, 0), [segment(1, 64, 256 * 1024)])

    assert len(pack_tasks(ranges, 128 * MIB, 8)) == 8
    assert len(pack_tasks(ranges, 128 * MIB, 1000)) <= 16


@settings(max_examples=examples(100))
@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10_000), max_size=8),
    st.integers(1, 5_000),
)
def test_shares_follow_the_backlog_and_keep_the_limit(backlog: dict[str, int], limit: int) -> None:
    """S19."""
    found = share_limit(limit, backlog)

    assert set(found) == set(backlog)
    assert sum(found.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= found[name] <= backlog[name] for name in backlog)


def test_every_waiting_log_has_its_turn() -> None:
    """S19: none starves."""
    backlog = {"a": 1, "b": 0, "c": 1_000_000}

    assert [log_of_turn(turn, backlog) for turn in range(3)] == ["a", "c", "a"]
    assert log_of_turn(0, {"a": 0}) is None
