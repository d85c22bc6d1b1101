"""Where a value is first reached, in something long that ascends and costs a read a look (pure).

Guesses by interpolation, for txids, times and counts grow about evenly; where a guess left more than a half,
the next look is in the middle. So it is a few looks as a rule, and never more than 2 log2 of the length + 1.
"""

from collections.abc import Generator

Looks = Generator[int, int, int]
"""Gives a place to look at, takes the value there; returns the first place that reaches what is wanted."""


def first_reaching(wanted: int, low: int, high: int, low_value: int, high_value: int) -> Looks:
    """The first place from ``low`` to ``high`` whose value is at least ``wanted``; ``high`` where none is.

    The two values are about those at ``low`` and at ``high``: wrong ones cost looks, and nothing else.
    """
    past = 1
    """How far beyond a guess it looks, so that what is wanted lies on the short side."""
    halve = False
    while low < high:
        before = high - low
        middle = place = low + before // 2
        if not halve:
            if wanted <= low_value:
                place = low
            elif wanted >= high_value:
                place = high
            else:
                place = low + before * (wanted - low_value) // (high_value - low_value)
            place += past if place < middle else -past
            place = min(max(place, low), high - 1)
        value = yield place
        if value < wanted:
            low, low_value = place + 1, value
        else:
            high, high_value = place, value
        if 2 * (high - low) <= before:
            halve = False
        else:
            halve, past = not halve, 4 * past
    return low
