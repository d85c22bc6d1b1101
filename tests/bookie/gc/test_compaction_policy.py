"""Which files are rewritten, and how fast: decided from numbers alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.gc.compaction_policy import (
    FileFacts,
    files_to_compact,
    files_to_punch,
    output_bytes_max,
)
from distributedlog.bookie.gc.compactor import FIRST_COMPACTION_S
from distributedlog.runtime.primitives.background_rate import (
    BASELINE_S,
    MIB,
    RATE_MAX,
    RATE_MIN,
    WORK_S,
    BackgroundRate,
    Pacer,
)
from tests.examples import examples

MOST = 64 * MIB


def moving(*files: FileFacts, most: int = MOST, pressed: bool = False) -> list[int]:
    return files_to_compact(files, live_bytes_max=most, small_bytes=MIB, disk_is_low=pressed)


def test_a_file_is_rewritten_from_fifteen_percent_dead_on() -> None:
    below = FileFacts(1, 100 * MIB, 0, 86 * MIB, False)
    above = FileFacts(2, 100 * MIB, 0, 84 * MIB, False)

    assert moving(below) == []
    assert moving(below, above) == [2]
    assert moving(below, above, most=1 << 40, pressed=True) == [2, 1]


def test_a_wholly_dead_file_is_not_rewritten() -> None:
    assert moving(FileFacts(1, 100 * MIB, 0, 0, False)) == []


def test_what_gives_most_for_its_bytes_goes_first_and_the_rest_waits() -> None:
    half = FileFacts(1, 100 * MIB, 0, 50 * MIB, False)
    little = FileFacts(2, 100 * MIB, 0, 10 * MIB, False)
    most = FileFacts(3, 100 * MIB, 0, 1 * MIB, False)

    assert moving(half, little, most) == [3, 2, 1]
    assert moving(half, little, most, most=20 * MIB) == [3, 2]
    assert moving(half, most=20 * MIB) == [1], "one at least"


def test_a_cold_file_is_not_rewritten_for_its_own_head_and_footer() -> None:
    """Else it would be as dead again in its next place, for ever."""
    tiny_records = FileFacts(1, 10 * MIB, 4 * MIB, 6 * MIB, True)
    borders = FileFacts(2, 200_000, 12_000, 140_000, True)

    assert moving(tiny_records) == []
    assert moving(borders) == []


def test_small_cold_files_go_along_and_never_alone() -> None:
    small = FileFacts(1, 600_000, 12_000, 588_000, True)
    dead = FileFacts(2, 16 * MIB, 0, MIB, False)

    assert moving(small) == []
    assert moving(small, dead) == [2, 1]


def test_a_small_sealed_file_is_moved_whatever_is_dead_in_it() -> None:
    """What starts have cut: else each start would leave one for good."""
    assert moving(FileFacts(1, 100_000, 0, 99_000, False)) == [1]


def test_pages_are_looked_for_when_a_part_has_died_since_the_last_look() -> None:
    file = FileFacts(1, 64 * MIB, 0, 60 * MIB, True)

    assert files_to_punch([file], {1: 64 * MIB}) == [1]
    assert files_to_punch([file], {1: 61 * MIB}) == []
    assert files_to_punch([FileFacts(1, 64 * MIB, 0, 0, True)], {1: MIB}) == [], "it is removed"
    assert files_to_punch([FileFacts(2, 64 * MIB, 0, MIB, False)], {2: 64 * MIB}) == []


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(1, 1 << 28), st.floats(0, 1)), max_size=30), st.booleans())
def test_what_is_left_alone_is_dead_to_fifteen_percent_at_most(
    sizes: list[tuple[int, float]], cold: bool
) -> None:
    """So what is stored is bounded by what is live: 1 / 0.85 of it, and 64 KiB a cold file."""
    files = [
        FileFacts(n, size, 0, int(size * share), cold) for n, (size, share) in enumerate(sizes)
    ]
    moved = set(moving(*files, most=1 << 62))

    for file in files:
        if file.live_bytes and file.number not in moved:
            slack = 64 * 1024 if cold else 0
            assert file.allocated_bytes <= file.live_bytes / 0.85 + slack + 1


@pytest.mark.parametrize("live", [0, 1 << 30, 1 << 40])
def test_cold_files_are_few_and_no_small_disk_is_asked_for_long_ones(live: int) -> None:
    assert output_bytes_max(live, 16 * MIB, 60) >= min(64 * MIB, max(live // 32, 64 * MIB))
    assert output_bytes_max(live, 16 * MIB, 60) <= 256 * MIB
    assert output_bytes_max(0, 100_000, 0) == 400_000


@pytest.mark.parametrize("live", [0, 1 << 30, 1 << 40])
def test_a_bookie_that_is_killed_every_ten_seconds_gets_a_cold_file_done(live: int) -> None:
    """Read and written at the floor of the rate, after the first look and the second without work."""
    took_s = 2 * output_bytes_max(live, 16 * MIB, 0) / RATE_MIN

    assert FIRST_COMPACTION_S + BASELINE_S + took_s < 6
    assert output_bytes_max(live, 16 * MIB, 59) < output_bytes_max(live, 16 * MIB, 60)


def test_without_writers_the_rate_doubles_up_to_its_bound() -> None:
    pacer = Pacer()
    assert pacer.rate == RATE_MIN
    for _ in range(10):
        pacer.record_baseline_round([])
        pacer.record_work_round([])

    assert pacer.rate == RATE_MAX


def test_what_makes_commits_slow_is_halved_down_to_the_floor() -> None:
    pacer = Pacer()
    pacer.rate = RATE_MAX
    for _ in range(10):
        pacer.record_baseline_round([0.002] * 100)
        pacer.record_work_round([0.002] * 97 + [0.02] * 3)

    assert pacer.rate == RATE_MIN


def test_what_costs_nothing_grows_by_steps() -> None:
    pacer = Pacer()
    pacer.record_baseline_round([0.002] * 100)
    pacer.record_work_round([0.002] * 900)

    assert pacer.rate == RATE_MIN + 4 * MIB


def test_nothing_is_learnt_from_the_time_of_work() -> None:
    """H100: a bookie that got slow under its own work does not take that for usual."""
    pacer = Pacer()
    pacer.record_baseline_round([0.002] * 100)
    for _ in range(50):
        pacer.record_work_round([0.05] * 900)

    assert pacer.baseline_s == 0.002
    assert pacer.rate == RATE_MIN


def test_the_usual_is_the_median_of_the_last_quiet_seconds() -> None:
    """H100: one second in which somebody else had the disk does not let all through."""
    pacer = Pacer()
    for slow in (0.002, 0.002, 0.5, 0.002, 0.002):
        pacer.record_baseline_round([slow] * 100)

    assert pacer.baseline_s == 0.002


def test_other_writers_have_another_usual() -> None:
    pacer = Pacer()
    pacer.record_baseline_round([0.002] * 100)
    pacer.record_baseline_round([0.010] * 1000)

    assert pacer.baseline_s == 0.010


def test_a_writer_that_begins_in_the_midst_of_work_is_not_run_over() -> None:
    """What is usual for it is not known yet: no faster until a second without work has told."""
    pacer = Pacer()
    pacer.record_baseline_round([])
    pacer.record_work_round([0.05] * 900)

    assert pacer.rate == RATE_MIN


def test_a_round_begins_with_a_quiet_second_and_learns_from_the_rest() -> None:
    """Syncs that take longer during the work than without it halve the rate."""
    pace, now = BackgroundRate(), 100.0
    pace.pacer.rate = RATE_MAX
    rates = []
    for _ in range(3):
        assert pace.pause_s(now) == BASELINE_S
        for _ in range(100):
            pace.record_latency(0.002)
        assert pace.pause_s(now + BASELINE_S / 2) == BASELINE_S / 2
        now += BASELINE_S
        assert pace.pause_s(now) == 0.0
        for _ in range(900):
            pace.record_latency(0.05)
        now += WORK_S
        assert pace.pause_s(now - 0.01) == 0.0
        rates.append(pace.pacer.rate)
    assert rates == [RATE_MAX, RATE_MAX / 2, RATE_MAX / 4]
    pace.end_work()
    assert pace.pause_s(now) == BASELINE_S
    assert pace.pacer.rate == RATE_MAX / 4, "the last round was not whole"
