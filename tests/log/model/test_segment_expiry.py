"""The retention clock and what it makes of a log, as values (H152)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.segment_expiry import (
    STAMP_MARKS_MAX,
    SegmentCloseTimes,
    decode_clock,
    encode_clock,
    stamps_key,
)
from distributedlog.runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from tests.examples import examples


def test_a_segment_ages_from_the_first_look_that_saw_it_closed() -> None:
    stamps = SegmentCloseTimes().after_check(3, 4, 1000, mark_interval_ms=100)
    stamps = stamps.after_check(5, 6, 1050, mark_interval_ms=100)  # too soon for a mark of its own
    stamps = stamps.after_check(6, 7, 1100, mark_interval_ms=100)

    assert stamps.marks == ((3, 1000), (6, 1100))
    assert [stamps.last_older_than(clock, 500) for clock in (1499, 1500, 1599, 1600)] == [
        0,
        3,
        3,
        6,
    ]
    assert stamps.without_segments_to(3).last_older_than(2000, 500) == 6


def test_an_open_segment_is_dated_once() -> None:
    stamps = (
        SegmentCloseTimes()
        .after_check(3, 4, 1000, mark_interval_ms=0)
        .after_check(3, 4, 5000, mark_interval_ms=0)
    )

    assert (stamps.open_segment, stamps.open_since_ms) == (4, 1000)
    assert stamps.after_check(4, 5, 6000, mark_interval_ms=0).open_since_ms == 6000
    assert stamps.after_check(4, 0, 6000, mark_interval_ms=0).open_segment == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 300)), max_size=300),
    st.integers(0, 3000),
)
@hypothesis_settings(max_examples=examples(60))
def test_nothing_is_said_to_be_older_than_it_is(
    steps: list[tuple[int, int, int]], retention_ms: int
) -> None:
    """Against a model that knows each closing: also when marks are thinned out."""
    stamps, clock, closed = SegmentCloseTimes(), 0, 0
    closed_at: dict[int, int] = {}
    for segments, passed, every in steps:
        clock += passed
        for _ in range(segments):
            closed += 1
            closed_at[closed] = clock
        stamps = stamps.after_check(closed, closed + 1, clock, mark_interval_ms=every)
        last = stamps.last_older_than(clock, retention_ms)
        assert all(clock - closed_at[one] >= retention_ms for one in range(1, last + 1))
        assert len(stamps.marks) <= STAMP_MARKS_MAX
        assert SegmentCloseTimes.decode(stamps.encode()) == stamps
    # All goes in the end: the marks that are left stand for everything before them.
    stamps = stamps.after_check(closed, 0, clock + 10_000, mark_interval_ms=1)
    assert stamps.last_older_than(clock + 20_000, 10_000) == closed


@given(st.binary(max_size=60))
def test_what_is_damaged_is_corrupt_data_and_nothing_else(value: bytes) -> None:
    for decode in (SegmentCloseTimes.decode, decode_clock):
        with suppress(CorruptData, UnsupportedFormat):
            decode(value)


def test_marks_that_go_back_are_damage() -> None:
    for marks in (((3, 10), (3, 20)), ((3, 20), (4, 10))):
        with pytest.raises(InvalidRequest, match="do not ascend"):  # nobody stores them either
            SegmentCloseTimes(marks).encode()
    assert decode_clock(encode_clock(77)) == 77


def test_stamps_are_read_in_one_range_with_the_state() -> None:
    assert stamps_key(7) < state_key(7)
    assert state_key(7) == b"log/%016x/state" % 7
