"""The delay before the next attempt, which grows with each failure (pure). The caller sleeps."""


class Backoff:
    """Delays that grow by ``factor`` from ``first_s`` to ``longest_s``, both in seconds.

    The defaults are meant for clients that retry while the cluster recovers.
    """

    __slots__ = ("_factor", "_first_s", "_longest_s", "_wait_s")

    def __init__(
        self, first_s: float = 0.1, longest_s: float = 2.0, *, factor: float = 2.0
    ) -> None:
        assert 0.0 < first_s <= longest_s, f"delays from {first_s:g} to {longest_s:g} s"
        assert factor >= 1.0, f"delays that shrink by {factor:g}"
        self._first_s = self._wait_s = first_s
        self._longest_s = longest_s
        self._factor = factor

    def next_s(self, draw: float = 0.5) -> float:
        """Return the present delay in seconds, and increase the next one.

        ``draw`` is a random number from 0 to 1. It changes the delay to between half and one and a half times
        its value, so that many clients do not retry at the same time.
        """
        wait_s = self._wait_s
        self._wait_s = min(self._longest_s, wait_s * self._factor)
        return wait_s * (0.5 + draw)

    def reset(self) -> None:
        """Restart with the first delay, after a success."""
        self._wait_s = self._first_s
