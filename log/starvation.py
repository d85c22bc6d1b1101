"""When one source is not enough: whoever takes from it waits nearly all the time (pure).

On one machine further bookies are no more hands, and what each costs more (a ledger's record, buffers that
no cache holds) makes reading slower. So several are asked only by who waits.
"""

LOOK_S = 0.5
"""For so long it is looked what one source is good for,"""
STARVED = 0.9
"""and this share of it was waited: who decodes most of the time needs no other."""


class Starvation:
    """Of one that takes. It counts how long it waited, by a clock of its own."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._waited_before_s = 0.0

    def is_seen(self, waited_s: float, now: float) -> bool:
        """Did it wait nearly all of the time that it was looked at? Asked whenever it was given something.

        ``waited_s``: since its beginning, in all.
        """
        since = self._since
        if since is None:
            self._since, self._waited_before_s = now, waited_s
            return False
        if now - since < LOOK_S:
            return False
        self._since = None
        return waited_s - self._waited_before_s >= STARVED * (now - since)

    def forget(self) -> None:
        """Look anew."""
        self._since = None
