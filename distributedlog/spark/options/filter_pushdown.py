"""Turn filters into limits of log, position, sequence ID, transaction ID and log time (pure).

Limits exclude only records that no filter can match, and Spark applies every filter again, exactly. Therefore
a filter that is not supported is neither an error nor a limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ...log.model.segment_record import SegmentRecord

LOW, HIGH = 0, 2**63 - 1
LOG_TIME_UNIT = 1_000
"""Microseconds per unit of log time."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Lowest and highest value that can match, both inclusive."""

    low: int = LOW
    high: int = HIGH

    def intersect(self, other: "ValueRange") -> "ValueRange":
        """Return the range that both allow."""
        return ValueRange(max(self.low, other.low), min(self.high, other.high))

    def overlaps(self, low: int, high: int) -> bool:
        """Whether a value from ``low`` to ``high`` can match."""
        return self.low <= high and low <= self.high


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """The limits of all filters together."""

    logs: frozenset[str] | None = None
    """The names that can match; None for all."""
    bounds: dict[str, ValueRange] = field(default_factory=dict)

    def bound(self, column: str) -> ValueRange:
        """Return the range of one column; unlimited if no filter names it."""
        return self.bounds.get(column, ValueRange())

    def allows(self, log: str) -> bool:
        """Whether a log can match."""
        return self.logs is None or log in self.logs

    def may_match(self, segment: SegmentRecord) -> bool:
        """Whether a segment can contain a matching record.

        Its transaction IDs and times are known only when it is closed.
        """
        if not self.bound("segment").overlaps(segment.segment, segment.segment):
            return False
        if not self.bound("sequence_id").overlaps(
            segment.start_sequence_id, max(segment.start_sequence_id, segment.end_sequence_id - 1)
        ):
            return False
        if not segment.closed or segment.records == 0:
            return True
        if segment.last_time_ms and not self.bound("timestamp").overlaps(
            segment.time_floor_ms, segment.last_time_ms
        ):
            return False
        return self.bound("txid").overlaps(segment.first_txid, segment.last_txid)

    def without_column(self, column: str) -> "FilterBounds":
        """Return the limits without those of one column."""
        return replace(self, bounds={k: v for k, v in self.bounds.items() if k != column})

    def entries(self, first: int, last: int) -> tuple[int, int]:
        """Limit the entries ``first`` to ``last`` by the filters on ``entry``."""
        bound = self.bound("entry")
        return max(first, bound.low), min(last, bound.high)


def filter_bounds(filters: Iterable[Any], txid_factor: int | None) -> FilterBounds:
    """Return the limits of Spark's filters.

    Args:
        filters: Filters of `pyspark.sql.datasource`.
        txid_factor: Microseconds per transaction ID if ``timestamp`` shows transaction IDs. None if it shows
            log
            time, which is limited in ms.
    """
    bounds_so_far = FilterBounds()
    for spark_filter in filters:
        kind = type(spark_filter).__name__
        path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
        if kind in ("And", "Not", "IsNull") or len(path) != 1:
            continue
        column, value = path[0], getattr(spark_filter, "value", None)
        if column == "log":
            names = _names(kind, value)
            if names is not None:
                common_logs = names if bounds_so_far.logs is None else bounds_so_far.logs & names
                bounds_so_far = replace(bounds_so_far, logs=common_logs)
            continue
        bound = _range_of_filter(kind, column, value, txid_factor or LOG_TIME_UNIT)
        if bound is not None:
            name = "txid" if column == "timestamp" and txid_factor else column
            bounds = {**bounds_so_far.bounds, name: bounds_so_far.bound(name).intersect(bound)}
            bounds_so_far = replace(bounds_so_far, bounds=bounds)
    return bounds_so_far


def _names(kind: str, value: Any) -> frozenset[str] | None:
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
        return frozenset([value])
    if kind == "In":
        return frozenset(name for name in value if isinstance(name, str))
    return None


def _range_of_filter(kind: str, column: str, value: Any, factor: int) -> ValueRange | None:
    if column not in ("segment", "entry", "sequence_id", "txid", "timestamp"):
        return None
    if kind == "In":
        ranges = [
            _range_of_filter("EqualTo", column, item, factor) for item in value if item is not None
        ]
        if not ranges or any(item is None for item in ranges):
            return None
        return ValueRange(
            min(item.low for item in ranges if item), max(item.high for item in ranges if item)
        )
    low = high = value
    if column == "timestamp":
        micros = _micros(value)
        if micros is None:
            return None
        # A number stands for the start of its unit: upper limits are rounded down, lower limits up.
        low, high = -(-micros // factor), micros // factor
    if isinstance(low, bool) or not isinstance(low, int):
        return None
    if kind in ("EqualTo", "EqualNullSafe"):
        return ValueRange(low, high)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return ValueRange(low=low)
    if kind in ("LessThan", "LessThanOrEqual"):
        return ValueRange(high=high)
    return None


def _micros(value: Any) -> int | None:
    """Return microseconds since 1970 of a datetime with a time zone; None for other values."""
    if getattr(value, "tzinfo", None) is None:
        return None
    offset = value.utcoffset()
    day = value.toordinal() - 719_163  # of 1970-01-01
    seconds = day * 86_400 + value.hour * 3_600 + value.minute * 60 + value.second
    return int(
        (seconds * 1_000_000 + value.microsecond) - round(offset.total_seconds() * 1_000_000)
    )
