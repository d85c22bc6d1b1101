"""The search for an order: agrees with the one over all orders, and with the register checker."""

import random

import pytest

from distributedlog.testing.verify.checks.history_check import Violation
from distributedlog.testing.verify.checks.linearizability import check_linearizable
from distributedlog.testing.verify.history.run_history import RegisterCall
from tests.verify.checks.test_register_check import cas, get, linearizable, random_history, unknown


def holds(calls: list[RegisterCall]) -> bool:
    try:
        check_linearizable(calls)
    except Violation:
        return False
    return True


def test_a_stale_read_is_found_and_named() -> None:
    """M5: a reading that began after a change was answered sees it."""
    stale = [cas(0, "a", 0, 1), get(0, "", 2, 3)]

    with pytest.raises(Violation, match=r"get at t=3\.0000: version 0"):
        check_linearizable(stale)


def test_a_reading_that_overlaps_a_change_may_see_either() -> None:
    assert holds([cas(0, "a", 0, 10), get(0, "", 1, 2), get(1, "a", 3, 4)])
    assert not holds([cas(0, "a", 0, 10), get(1, "a", 1, 2), get(0, "", 3, 4)])


def test_an_unknown_change_happens_at_most_once_at_any_later_time() -> None:
    assert holds([unknown(0, "a", 0), get(0, "", 5, 6), get(1, "a", 7, 8)])
    assert not holds([unknown(0, "a", 0), get(1, "a", 5, 6), get(0, "", 7, 8)])
    assert not holds([get(1, "a", 0, 1), unknown(0, "a", 2)])


def test_it_agrees_with_a_search_over_all_orders() -> None:
    rng, verdicts = random.Random(11), []
    for _ in range(1500):
        calls = random_history(rng)
        wanted = linearizable(calls)
        assert holds(calls) == wanted, calls
        verdicts.append(wanted)

    assert 300 < sum(verdicts) < 1300


def test_thousands_of_calls_of_several_clients_are_judged() -> None:
    """Cost: calls overlap a few at a time; unknown ones die out when the version has moved on."""
    rng, calls, now = random.Random(2), list[RegisterCall](), 0.0
    version, value = 0, ""
    for n in range(4000):
        now += 1.0
        if rng.random() < 0.5:
            calls.append(get(version, value, now - rng.random() * 3, now + rng.random() * 3))
        elif rng.random() < 0.1:
            calls.append(unknown(version, f"lost{n}", now))
        else:
            calls.append(cas(version, f"v{n}", now - 0.4, now + 0.4))
            version, value = version + 1, f"v{n}"

    assert holds(calls)
    late = get(1, calls[0].value, now + 10, now + 11)
    assert not holds([*calls, late])
