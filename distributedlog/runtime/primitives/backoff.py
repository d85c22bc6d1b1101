"""How long to wait before the next try, longer each time in a row. Pure: the caller sleeps."""


class Backoff:
    """Waits that grow by ``factor`` from ``first_s`` to ``longest_s``, both in seconds.

    The defaults suit whoever reads or asks again while the cluster recovers.
    """

    __slots__ = ("_factor", "_first_s", "_longest_s", "_wait_s")

    def __init__(
        self, first_s: float = 0.1, longest_s: float = 2.0, *, factor: float = 2.0
    ) -> None:
        assert 0.0 < first_s <= longest_s, f"waits from {first_s:g} to {longest_s:g} s"
        assert factor >= 1.0, f"waits that shrink by {factor:g}"
        self._first_s = self._wait_s = first_s
        self._longest_s = longest_s
        self._factor = factor

    def next_s(self, draw: float = 0.5) -> float:
        """Return this wait in seconds, and make the next one longer.

        ``draw`` is a number from 0 to 1 by chance, for those who would else all try again at once: it
        spreads the wait from a half to one and a half of itself.
        """
        wait_s = self._wait_s
        self._wait_s = min(self._longest_s, wait_s * self._factor)
        return wait_s * (0.5 + draw)

    def reset(self) -> None:
        """It went well: the next wait is the first one again."""
        self._wait_s = self._first_s
