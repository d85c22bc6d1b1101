"""Log time: when a record was written, as clocks can tell, and never less than what was before it.

A writer stamps each entry with its machine's clock, and never below the entry before (`LogClock`). A
segment's floor lifts what was stamped elsewhere and linked. So log time never goes back (H148): a search by
it is binary. A writer whose clock shows less says so once, as the event ``clock.off``: either this clock is
behind, or one that wrote before it was ahead.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from ...runtime.declarations.options import check_whole, quoted
from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.schema import NUMBER_MAX
from ..declarations.events import CLOCK_OFF

TOLERATED_LAG_MS = 1000
"""A clock that is less behind the log's time is as right as clocks are."""

log = get_logger("distributedlog.log")


class LogClock:
    """What one writer stamps its entries with."""

    __slots__ = ("_clock_ms", "_last_ms", "_name", "_reported_ms")

    def __init__(self, clock_ms: Callable[[], int], name: str, min_ms: int = 0) -> None:
        """``floor_ms``: the time so far of the log ``name``."""
        self._clock_ms = clock_ms
        self._name = name
        self._last_ms = min_ms
        self._reported_ms = -1
        """The time for which a clock that is behind was told of."""

    def now_ms(self) -> int:
        """The clock of this machine, or what was given last while that is greater."""
        now = self._clock_ms()
        last = self._last_ms
        if now < last:
            if now < last - TOLERATED_LAG_MS and self._reported_ms != last:
                self._report_lag(now)
            return last
        self._last_ms = now
        return now

    def _report_lag(self, now_ms: int) -> None:
        """Once, until the clock has caught up."""
        self._reported_ms = self._last_ms
        ahead_s = (self._last_ms - now_ms) / 1000
        CLOCK_OFF.emit(
            log,
            'clock.off: log "%s": its time is %s, the clock of this machine %s, %.1f s less; what is written '
            "until then has that time",
            self._name,
            to_iso_time(self._last_ms),
            to_iso_time(now_ms),
            ahead_s,
            log_name=self._name,
            ahead_s=ahead_s,
        )


def to_epoch_ms(when: datetime | int, description: str) -> int:
    """Ms since 1970, of a time as callers say it. Raises `InvalidRequest`, also for one without a zone."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest(
                f"{description} is a datetime with a time zone, such as {when.isoformat()}+00:00; {when} "
                "has none"
            )
        # In whole numbers: a float has no room for the ms of a far time.
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
        return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if not isinstance(when, int | float):
        raise InvalidRequest(f"{description} is a datetime or ms since 1970, not {quoted(when)}")
    check_whole(description, when, -NUMBER_MAX, NUMBER_MAX)
    return when


def to_iso_time(time_ms: int) -> str:
    """``2026-01-02T03:04:05.678Z``; of what no calendar has, the number and ``ms``."""
    try:
        when = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms}ms"
    return f"{when:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
