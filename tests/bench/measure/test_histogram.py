"""Percentiles are never flattering, and never far off."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.testing.bench.measure.histogram import Histogram
from tests.examples import examples


@settings(max_examples=examples(100))
@given(st.lists(st.floats(min_value=1e-6, max_value=100.0), min_size=1, max_size=200))
def test_a_percentile_is_at_most_two_percent_above_the_true_one(durations: list[float]) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    durations.sort()

    for percent in (50.0, 99.0, 100.0):
        rank = max(1, -(-len(durations) * percent // 100))
        true = durations[int(rank) - 1]
        found = histogram.percentile_s(percent)
        assert true - 1e-7 <= found <= true * 1.017 + 1e-7


def test_a_histogram_of_another_process_says_the_same_here() -> None:
    there = Histogram()
    there.add(0.001, 99)
    there.add(0.5)

    here = Histogram.from_pairs(there.as_pairs(), there.max_s)

    assert here.count == 100
    assert here.percentile_s(50) < 0.0011
    assert here.summary_ms()["max"] == 500.0


def test_an_empty_histogram_says_zero() -> None:
    assert Histogram().summary_ms() == {"p50": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0}
