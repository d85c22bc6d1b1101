"""The rates of one log at its writer, and the callers that wait until it may take more.

A writer whose record is above a rate waits, is refused, or is only counted; that is the log's ``at_limit``.
"""

import trio

from ..declarations.options import LogOptions


class Rate:
    """What may go by is counted in tokens. They come back with time, one second's worth are kept."""

    __slots__ = ("_tokens", "_updated_s")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._updated_s = 0.0

    def wait_s(self, count: int, per_s: int, now_s: float) -> float:
        """How long until so many may go by; 0: now. ``per_s`` 0: no limit; it may change at any time.

        More than a second's worth goes when the bucket is full, and is paid for afterwards.
        """
        if not per_s:
            return 0.0
        self._tokens = min(self._tokens + max(0.0, now_s - self._updated_s) * per_s, per_s)
        self._updated_s = now_s
        missing = min(count, per_s) - self._tokens
        return missing / per_s if missing > 1e-6 else 0.0

    def consume(self, count: int, per_s: int) -> None:
        """So many went by."""
        if per_s:
            self._tokens -= count


class WriteThrottle:
    """Compares what one writer takes with its log's rates, and has the callers that wait for free space."""

    __slots__ = ("_byte_rate", "_limits", "_record_rate", "has_rate", "over_rate", "space")

    def __init__(self, limits: LogOptions) -> None:
        self.over_rate = 0
        """Records that were taken above a rate that is only counted."""
        self.has_rate = False
        """Has the log a rate, so that each call must be compared?"""
        self._byte_rate, self._record_rate = Rate(), Rate()
        self.space: trio.Event | None = None
        """Of the callers that wait; None: no caller does."""
        self.set_limits(limits)

    def set_limits(self, limits: LogOptions) -> None:
        """Use these limits from now on; callers that wait compare again."""
        self._limits = limits
        self.has_rate = bool(limits.bytes_per_s_max or limits.records_per_s_max)
        self.wake_waiters()

    def charge(self, records: int, size: int, *, divisible: bool) -> float:
        """Charge records that are to be taken now; return 0, or in how many seconds to ask again.

        Nothing is charged then. ``divisible``: of more than a second's worth a part should be asked for.
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

    def _is_above_a_second(self, records: int, size: int) -> bool:
        limits = self._limits
        return (0 < limits.records_per_s_max < records) or (0 < limits.bytes_per_s_max < size)

    def wait_s(self, records: int, size: int) -> float:
        """Return in how many seconds so much is within the log's rates."""
        limits, now = self._limits, trio.current_time()
        return max(
            self._byte_rate.wait_s(size, limits.bytes_per_s_max, now),
            self._record_rate.wait_s(records, limits.records_per_s_max, now),
        )

    async def wait_space(self) -> None:
        """Wait until `wake_waiters`."""
        if self.space is None:
            self.space = trio.Event()
        await self.space.wait()

    def wake_waiters(self) -> None:
        """Have all callers that wait for free space compare again."""
        if self.space is not None:
            self.space.set()
            self.space = None
