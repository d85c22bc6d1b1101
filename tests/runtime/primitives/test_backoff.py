"""Waits between tries."""

import pytest

from distributedlog.runtime.primitives.backoff import Backoff


def test_waits_double_up_to_the_longest_one() -> None:
    backoff = Backoff(0.5, 3.0)

    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_waits_grow_by_another_factor() -> None:
    backoff = Backoff(1.0, 2.0, factor=1.5)

    assert [backoff.next_s() for _ in range(3)] == [1.0, 1.5, 2.0]


def test_after_a_success_the_first_wait_comes_again() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.next_s()
    backoff.next_s()

    backoff.reset()

    assert [backoff.next_s(), backoff.next_s()] == [0.5, 1.0]


def test_a_draw_spreads_one_wait_and_leaves_the_next() -> None:
    backoff = Backoff(1.0, 8.0)

    assert backoff.next_s(draw=0.0) == 0.5
    assert backoff.next_s(draw=1.0) == 3.0
    assert backoff.next_s() == 4.0


@pytest.mark.parametrize(("first_s", "longest_s", "factor"), [(0, 1, 2), (2, 1, 2), (1, 2, 0.5)])
def test_waits_that_do_not_grow_are_a_broken_rule(
    first_s: float, longest_s: float, factor: float
) -> None:
    with pytest.raises(AssertionError):
        Backoff(first_s, longest_s, factor=factor)
