"""The clock by which the segments of a log age, and which segments are old enough to delete (pure).

    clock/retention        -> the retention clock: ms that elected bookies have counted
    log/<log id>/stamps    -> SegmentCloseTimes: which segments were closed by which time on that clock

Only the elected bookie advances the clock. It adds its own monotonic time since its last step, at most
`STEP_MAX_MS` per step. Therefore the clock lags after elections and outages, and it is never ahead. No wall
clock of a writer or a bookie has an effect (H152). The age of a segment counts from the first check that
finds it closed.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    NUMBER_MAX,
    check_stored,
    number,
    row,
    rows,
    verify_round_trip,
)
from .log_state import decode_fields

FORMAT = 1
CLOCK_KEY = b"clock/retention"
STEP_MAX_MS = 60_000
STAMP_MARKS_MAX = 64
HOLD_MAX_S_MIN = 60.0
"""Minimum of the option ``hold_max_s``. A hold that was renewed less than half of it ago is renewed without a
change of the log's stamps, because it cannot have expired yet."""
NO_HOLD = -1
"""Value for the time of the last hold if there is none."""


@dataclass(frozen=True, slots=True)
class SegmentCloseTimes:
    """The value of ``log/<id>/stamps``."""

    marks: tuple[tuple[int, int], ...] = ()
    """Pairs (segment, clock): the segment and all before it were closed by then. Both numbers ascend."""
    open_segment: int = 0
    """The oldest segment in progress at the last check, or 0."""
    open_since_ms: int = 0
    """The clock when this segment was first found in progress."""

    def after_check(
        self, last_closed: int, open_segment: int, clock_ms: int, *, mark_interval_ms: int
    ) -> "SegmentCloseTimes":
        """Return the stamps after a check of the log.

        Args:
            last_closed: All segments up to this one are closed.
            open_segment: The oldest segment in progress, or 0.
            clock_ms: The retention clock.
            mark_interval_ms: Minimum interval between two marks. A segment that is closed between them gets
                the clock of the next mark.
        """
        updated = self
        if open_segment != self.open_segment:
            updated = replace(updated, open_segment=open_segment, open_since_ms=clock_ms)
        marked_segment, mark_clock_ms = self.marks[-1] if self.marks else (0, -mark_interval_ms)
        if last_closed <= marked_segment or clock_ms < mark_clock_ms + mark_interval_ms:
            return updated
        marks = (*self.marks, (last_closed, clock_ms))
        # If there are too many marks, drop every second one. Its segments then get the later clock of the
        # next mark, so no segment counts as older than it is.
        return replace(updated, marks=marks[::2] if len(marks) > STAMP_MARKS_MAX else marks)

    def last_older_than(self, clock_ms: int, retention_ms: int) -> int:
        """Return the last segment that was closed at least ``retention_ms`` before ``clock_ms``, or 0."""
        return max(
            (
                segment
                for segment, mark_clock_ms in self.marks
                if clock_ms - mark_clock_ms >= retention_ms
            ),
            default=0,
        )

    def without_segments_to(self, segment: int) -> "SegmentCloseTimes":
        """Return the stamps without the segments up to and including this one."""
        return replace(self, marks=tuple(mark for mark in self.marks if mark[0] > segment))

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the stamps as a packed list with a format number."""
        marks = [list(mark) for mark in self.marks]
        return pack([FORMAT, marks, self.open_segment, self.open_since_ms])

    @classmethod
    def decode(cls, value: bytes) -> "SegmentCloseTimes":
        """Decode the stamps.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
        what = "a log's stamps"
        stamps = cls(*check_stored(decode_fields(value, FORMAT, 4, what)[:3], _STAMPS, what))
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(stamps.marks)):
            raise CorruptData(f"{what} do not ascend")
        return stamps


_STAMPS = row(rows(row(number(), number()), STAMP_MARKS_MAX), number(), number())
_CLOCK = row(number())


def encode_clock(clock_ms: int) -> bytes:
    """Encode the retention clock as a packed list with a format number."""
    assert 0 <= clock_ms <= NUMBER_MAX
    return pack([FORMAT, clock_ms])


def decode_clock(value: bytes) -> int:
    """Decode the retention clock.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    what = "the retention clock"
    (clock_ms,) = check_stored(decode_fields(value, FORMAT, 2, what)[:1], _CLOCK, what)
    return int(clock_ms)


def stamps_key(log_id: int) -> bytes:
    """Return the key of a log's stamps.

    It sorts directly before the key of the log's state: one range has both.
    """
    return b"log/%016x/stamps" % log_id
