"""Wall time that follows jumps of the wall clock only slowly, for expiration times (H237).

It advances with the monotonic clock and never decreases. It approaches the wall clock by at most
`CATCH_UP_RATE` of the elapsed time. If the wall clock jumps by an hour in either direction, this clock is
wrong by five minutes after an hour, so an operator has time to correct the wall clock. A wrong wall clock at
the start is accepted.
"""

from collections.abc import Callable

import trio

from ..interfaces.host import Host

CATCH_UP_RATE = 1 / 12
STEP_S_MAX = 60.0
"""A clock that is read less often follows more slowly. Otherwise, it would accept a jump shortly before a
read at once."""


class SteadyClock:
    """The clock of one node (pure). Times are in seconds."""

    def __init__(self, wall_s: float, now: float) -> None:
        self._time_s = wall_s
        self._updated_at = now

    def time_s(self, wall_s: float, now: float) -> float:
        """Return the seconds since 1970. ``now`` is the time of the monotonic clock."""
        elapsed_s = now - self._updated_at
        self._updated_at = now
        unadjusted_s = self._time_s + elapsed_s
        adjustment_s_max = min(elapsed_s, STEP_S_MAX) * CATCH_UP_RATE
        self._time_s = unadjusted_s + min(
            max(wall_s - unadjusted_s, -adjustment_s_max), adjustment_s_max
        )
        return self._time_s


def steady_time(host: Host) -> Callable[[], float]:
    """Return a function that reads such a clock of a host. Call it at least once per `STEP_S_MAX`."""
    clock = SteadyClock(host.wall_ms() / 1000, trio.current_time())
    return lambda: clock.time_s(host.wall_ms() / 1000, trio.current_time())
