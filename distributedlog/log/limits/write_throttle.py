"""The rate limits of one log at its writer, and the calls that wait for free space.

A record above a rate waits, is rejected, or is only counted, as the option ``at_limit`` of the log states.
"""

import trio

from ..declarations.options import LogOptions


class Rate:
    """A token bucket. It refills with time and holds the tokens of at most one second."""

    __slots__ = ("_tokens", "_updated_s")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._updated_s = 0.0

    def wait_s(self, count: int, per_s: int, now_s: float) -> float:
        """Return the seconds until ``count`` tokens are available. 0 if they are now.

        More than one second's worth is allowed once the bucket is full, and is paid off afterwards.

        Args:
            per_s: The rate, which can change at any time. 0 for no limit.
            now_s: The present time in seconds.
        """
        if not per_s:
            return 0.0
        self._tokens = min(self._tokens + max(0.0, now_s - self._updated_s) * per_s, per_s)
        self._updated_s = now_s
        missing = min(count, per_s) - self._tokens
        return missing / per_s if missing > 1e-6 else 0.0

    def consume(self, count: int, per_s: int) -> None:
        """Take ``count`` tokens, or return them if it is negative."""
        if per_s:
            self._tokens -= count


class WriteThrottle:
    """Compares the records of one writer with its log's rates, and holds the calls that wait for free
    space."""

    __slots__ = ("_byte_rate", "_limits", "_record_rate", "has_rate", "over_rate", "space")

    def __init__(self, limits: LogOptions) -> None:
        self.over_rate = 0
        """The number of records accepted above a rate that is only counted."""
        self.has_rate = False
        """Whether the log has a rate, so that each call must be compared."""
        self._byte_rate, self._record_rate = Rate(), Rate()
        self.space: trio.Event | None = None
        """The event of the waiting calls. None if no call waits."""
        self.set_limits(limits)

    def set_limits(self, limits: LogOptions) -> None:
        """Use these limits from now on, and let waiting calls compare again."""
        self._limits = limits
        self.has_rate = bool(limits.bytes_per_s_max or limits.records_per_s_max)
        self.wake_waiters()

    def charge(self, records: int, size: int, *, divisible: bool) -> float:
        """Charge records that are to be accepted now.

        Args:
            divisible: Whether the caller can ask for fewer records. Then more than one second's worth is
                refused.
        Returns:
            0 if they are charged. Otherwise the seconds until the next attempt, and nothing is charged.
        """
        limits = self._limits
        if divisible and records > 1 and self._is_above_a_second(records, size):
            return float("inf")
        wait_s = self.wait_s(records, size)
        if wait_s > 0:
            if limits.at_limit != "count":
                return wait_s
            self.over_rate += records
            return 0.0
        self._byte_rate.consume(size, limits.bytes_per_s_max)
        self._record_rate.consume(records, limits.records_per_s_max)
        return 0.0

    def refund(self, records: int, size: int, *, is_over: bool = False) -> None:
        """Take back the charge of records that were refused.

        Args:
            is_over: Whether the charge only counted them in `over_rate`.
        """
        if is_over:
            self.over_rate -= records
        else:
            self._byte_rate.consume(-size, self._limits.bytes_per_s_max)
            self._record_rate.consume(-records, self._limits.records_per_s_max)
        self.wake_waiters()

    def _is_above_a_second(self, records: int, size: int) -> bool:
        limits = self._limits
        return (0 < limits.records_per_s_max < records) or (0 < limits.bytes_per_s_max < size)

    def wait_s(self, records: int, size: int) -> float:
        """Return the seconds until this many records and bytes are within the log's rates."""
        limits, now = self._limits, trio.current_time()
        return max(
            self._byte_rate.wait_s(size, limits.bytes_per_s_max, now),
            self._record_rate.wait_s(records, limits.records_per_s_max, now),
        )

    async def wait_space(self) -> None:
        """Wait until `wake_waiters` is called."""
        if self.space is None:
            self.space = trio.Event()
        await self.space.wait()

    def wake_waiters(self) -> None:
        """Let all calls that wait for free space compare again."""
        if self.space is not None:
            self.space.set()
            self.space = None
