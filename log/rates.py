"""How much of something a second: a bucket of one second's worth (pure)."""


class Rate:
    """What may go by is counted in tokens. They come back with time, one second's worth are kept."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._at_s = 0.0

    def wait_s(self, number: int, per_s: int, now_s: float) -> float:
        """How long until so many may go by; 0: now. ``per_s`` 0: no limit; it may change at any time.

        More than a second's worth goes when the bucket is full, and is paid for afterwards.
        """
        if not per_s:
            return 0.0
        self._tokens = min(self._tokens + max(0.0, now_s - self._at_s) * per_s, per_s)
        self._at_s = now_s
        missing = min(number, per_s) - self._tokens
        return missing / per_s if missing > 1e-6 else 0.0

    def take(self, number: int, per_s: int) -> None:
        """So many went by."""
        if per_s:
            self._tokens -= number
