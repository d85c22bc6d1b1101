"""Log time: the time at which a record was written, which never decreases within a log.

A writer stamps each entry with the clock of its machine, and never below the previous entry (`LogClock`). The
record of a segment has a lower limit for entries that were stamped elsewhere and linked. Therefore log time
never decreases (H148), and a search by time can be binary. If a writer's clock is behind the log time, the
writer reports it once, as the event ``clock.off``. Either this clock is behind, or the clock of an earlier
writer was ahead.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from ...runtime.declarations.options import check_whole, quoted
from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.schema import NUMBER_MAX
from ..declarations.events import CLOCK_OFF

TOLERATED_LAG_MS = 1000
"""A clock that is behind the log time by at most this is not reported."""

log = get_logger("distributedlog.log")


class LogClock:
    """The source of the time stamps of one writer's entries."""

    __slots__ = ("_clock_ms", "_last_ms", "_name", "_reported_ms")

    def __init__(self, clock_ms: Callable[[], int], name: str, min_ms: int = 0) -> None:
        """Create the clock.

        Args:
            clock_ms: Returns the machine's time in ms since 1970.
            name: The name of the log.
            min_ms: The log time so far. No stamp is below it.
        """
        self._clock_ms = clock_ms
        self._name = name
        self._last_ms = min_ms
        self._reported_ms = -1
        """The log time for which a lagging clock was reported."""

    def now_ms(self) -> int:
        """Return the machine's time, or the previous result if that is greater, in ms since 1970."""
        now = self._clock_ms()
        last = self._last_ms
        if now < last:
            if now < last - TOLERATED_LAG_MS and self._reported_ms != last:
                self._report_lag(now)
            return last
        self._last_ms = now
        return now

    def _report_lag(self, now_ms: int) -> None:
        """Emit the event. `now_ms` calls this once until the clock has caught up."""
        self._reported_ms = self._last_ms
        ahead_s = (self._last_ms - now_ms) / 1000
        CLOCK_OFF.emit(
            log,
            'clock.off: log "%s": the log time is %s, the clock of this machine shows %s, %.1f s less; '
            "records that are written until then have the log time",
            self._name,
            to_iso_time(self._last_ms),
            to_iso_time(now_ms),
            ahead_s,
            log_name=self._name,
            ahead_s=ahead_s,
        )


def to_epoch_ms(when: datetime | int, description: str) -> int:
    """Return a time in ms since 1970.

    Args:
        when: A datetime with a time zone, or ms since 1970.
        description: The name of the value, for the error message.
    Raises:
        InvalidRequest: The datetime has no time zone, or the value is not a whole number in range.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest(
                f"{description} must be a datetime with a time zone, such as {when.isoformat()}+00:00; "
                f"{when} has none"
            )
        # With integers, because a float cannot represent the ms of a distant time.
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
        return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if not isinstance(when, int | float):
        raise InvalidRequest(
            f"{description} must be a datetime or ms since 1970, not {quoted(when)}"
        )
    check_whole(description, when, -NUMBER_MAX, NUMBER_MAX)
    return when


def to_iso_time(time_ms: int) -> str:
    """Return a time as ``2026-01-02T03:04:05.678Z``, or as ``<number>ms`` if no calendar date exists."""
    try:
        when = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms}ms"
    return f"{when:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
