"""Filters leave out what none of them can want, and never more (S25)."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.spark.options.filter_pushdown import ValueRange, filter_bounds


@dataclass
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class GreaterThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class In(EqualTo):
    pass


class StringContains(EqualTo):
    pass


SEGMENT = SegmentRecord(
    4, 9, 1, 0, 200, True, first_txid=70, last_txid=90, records=50, size_bytes=1_000, last_entry=10
)


def test_bounds_meet() -> None:
    found = filter_bounds(
        [
            GreaterThan(("txid",), 5),
            LessThanOrEqual(("txid",), 9),
            In(("log",), ("a", "b")),
            EqualTo(("log",), "b"),
        ],
        None,
    )

    assert found.bound("txid") == ValueRange(5, 9)
    assert found.allows("b")
    assert not found.allows("a")
    assert found.bound("entry") == ValueRange()


def test_what_is_not_understood_leaves_everything() -> None:
    found = filter_bounds(
        [StringContains(("log",), "a"), EqualTo(("payload",), b"x"), EqualTo(("dlsn", "entry"), 3),
         In(("txid",), (3, "x")), EqualTo(("timestamp",), datetime(2020, 1, 1))],  # without a zone
        None,
    )  # fmt: skip

    assert found.allows("z")
    assert found.may_match(SEGMENT)


def test_a_segment_is_left_out_by_number_by_sequence_id_and_by_txid() -> None:
    for out in (
        EqualTo(("segment",), 3), EqualTo(("sequence_id",), 250), LessThanOrEqual(("txid",), 69),
        In(("segment",), (1, 3)),
    ):  # fmt: skip
        assert not filter_bounds([out], None).may_match(SEGMENT)
    for wanted in (
        EqualTo(("segment",), 4),
        EqualTo(("sequence_id",), 249),
        EqualTo(("txid",), 70),
    ):
        assert filter_bounds([wanted], None).may_match(SEGMENT)


def test_a_time_is_rounded_to_the_txids_it_can_be() -> None:
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)

    assert filter_bounds([GreaterThan(("timestamp",), at)], 1_000_000).bound("txid") == ValueRange(
        low=2
    )
    assert filter_bounds([LessThanOrEqual(("timestamp",), at)], 1_000_000).bound(
        "txid"
    ) == ValueRange(high=1)


def test_without_a_unit_a_time_is_log_time_in_milliseconds() -> None:
    """And a segment whose times are not exactly known is never left out."""
    at = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)
    found = filter_bounds([GreaterThan(("timestamp",), at)], None)
    before = replace(SEGMENT, time_floor_ms=500, last_time_ms=1_000)

    assert found.bound("timestamp") == ValueRange(low=1_001)
    assert found.bound("txid") == ValueRange()
    assert not found.may_match(before)
    assert found.may_match(replace(before, last_time_ms=1_001))
    assert found.may_match(replace(before, last_time_ms=0))
    assert found.without_column("timestamp").may_match(before)
