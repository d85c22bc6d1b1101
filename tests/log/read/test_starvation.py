"""Several sources are asked only by who waited for one nearly all the time."""

from distributedlog.log.read.entry_queue import (
    STARVATION_WINDOW_S,
    STARVED_FRACTION,
    StarvationDetector,
)


def looked_at(
    starvation: StarvationDetector, waited_s: list[float], *, since: float, before_s: float
) -> list[bool]:
    """Asked after each quarter of a look, of which so much was waited."""
    found, now = [], since
    for one in waited_s:
        now += STARVATION_WINDOW_S / 4
        before_s += one * STARVATION_WINDOW_S / 4
        found.append(starvation.is_starved(before_s, now))
    return found


def test_who_waits_nearly_all_of_the_time() -> None:
    starvation = StarvationDetector()

    assert not starvation.is_starved(7.0, 100.0), "what was before it was looked is not counted"
    found = looked_at(starvation, [1.0, 1.0, 1.0, STARVED_FRACTION], since=100.0, before_s=7.0)

    assert found == [False, False, False, True]


def test_who_has_something_else_to_do() -> None:
    starvation = StarvationDetector()

    assert not starvation.is_starved(7.0, 100.0)
    found = looked_at(
        starvation, [1.0, 1.0, 1.0, 1.0 - 5 * (1 - STARVED_FRACTION)], since=100.0, before_s=7.0
    )

    assert found == [False] * 4


def test_each_look_stands_for_itself() -> None:
    """Who waits later is seen then; who was busy at the beginning is not thought busy for ever."""
    starvation = StarvationDetector()
    starvation.is_starved(0.0, 0.0)
    busy = looked_at(starvation, [0.0] * 4, since=0.0, before_s=0.0)
    waiting = looked_at(starvation, [1.0] * 5, since=STARVATION_WINDOW_S, before_s=0.0)

    assert busy == [False] * 4
    assert waiting == [False, False, False, False, True]


def test_what_was_looked_at_is_forgotten() -> None:
    starvation = StarvationDetector()
    starvation.is_starved(0.0, 0.0)
    starvation.reset()

    assert not starvation.is_starved(STARVATION_WINDOW_S, STARVATION_WINDOW_S)
    assert starvation.is_starved(2 * STARVATION_WINDOW_S, 2 * STARVATION_WINDOW_S)
