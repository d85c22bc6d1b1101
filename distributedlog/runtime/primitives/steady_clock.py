"""Wall time that no jump moves at once: what ends by the clock goes by it (H237).

It goes on with the monotonic clock and never back, and follows the wall clock by at most `CATCH_UP_RATE` of
what has passed: where that jumps by an hour, in either direction, this one is wrong by five minutes after an
hour, and whoever sets the clock right before has lost nothing. A clock that is wrong at the start is
believed.
"""

from collections.abc import Callable

import trio

from ..interfaces.host import Host

CATCH_UP_RATE = 1 / 12
STEP_S_MAX = 60.0
"""Who looks less often follows more slowly, or a jump just before a look would be taken in at once."""


class SteadyClock:
    """Of one node (pure). Times are seconds."""

    def __init__(self, wall_s: float, now: float) -> None:
        self._time_s = wall_s
        self._updated_at = now

    def time_s(self, wall_s: float, now: float) -> float:
        """Seconds since 1970; ``now`` is the monotonic clock's, and does not go back."""
        elapsed_s = now - self._updated_at
        self._updated_at = now
        unadjusted_s = self._time_s + elapsed_s
        adjustment_s_max = min(elapsed_s, STEP_S_MAX) * CATCH_UP_RATE
        self._time_s = unadjusted_s + min(
            max(wall_s - unadjusted_s, -adjustment_s_max), adjustment_s_max
        )
        return self._time_s


def steady_time(host: Host) -> Callable[[], float]:
    """Such a clock of that host, from now on; it wants to be asked once in `STEP_S_MAX`."""
    clock = SteadyClock(host.wall_ms() / 1000, trio.current_time())
    return lambda: clock.time_s(host.wall_ms() / 1000, trio.current_time())
