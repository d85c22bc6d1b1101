"""Several sources are asked only by who waited for one nearly all the time."""

from distributedlog.log.read.entry_queue import LOOK_S, STARVED, StarvationDetector


def looked_at(
    starvation: StarvationDetector, waited_s: list[float], *, since: float, before_s: float
) -> list[bool]:
    """Asked after each quarter of a look, of which so much was waited."""
    found, now = [], since
    for one in waited_s:
        now += LOOK_S / 4
        before_s += one * LOOK_S / 4
        found.append(starvation.is_seen(before_s, now))
    return found


def test_who_waits_nearly_all_of_the_time() -> None:
    starvation = StarvationDetector()

    assert not starvation.is_seen(7.0, 100.0), "what was before it was looked is not counted"
    found = looked_at(starvation, [1.0, 1.0, 1.0, STARVED], since=100.0, before_s=7.0)

    assert found == [False, False, False, True]


def test_who_has_something_else_to_do() -> None:
    starvation = StarvationDetector()

    assert not starvation.is_seen(7.0, 100.0)
    found = looked_at(
        starvation, [1.0, 1.0, 1.0, 1.0 - 5 * (1 - STARVED)], since=100.0, before_s=7.0
    )

    assert found == [False] * 4


def test_each_look_stands_for_itself() -> None:
    """Who waits later is seen then; who was busy at the beginning is not thought busy for ever."""
    starvation = StarvationDetector()
    starvation.is_seen(0.0, 0.0)
    busy = looked_at(starvation, [0.0] * 4, since=0.0, before_s=0.0)
    waiting = looked_at(starvation, [1.0] * 5, since=LOOK_S, before_s=0.0)

    assert busy == [False] * 4
    assert waiting == [False, False, False, False, True]


def test_what_was_looked_at_is_forgotten() -> None:
    starvation = StarvationDetector()
    starvation.is_seen(0.0, 0.0)
    starvation.forget()

    assert not starvation.is_seen(LOOK_S, LOOK_S)
    assert starvation.is_seen(2 * LOOK_S, 2 * LOOK_S)
