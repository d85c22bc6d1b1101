"""By what clock a log's segments age, and which of them may go (pure).

    clock/retention        -> ms that have passed, as far as elected bookies have counted them
    log/<log id>/stamps    -> Stamps: by when, on that clock, which segments were closed

The clock is moved by the elected bookie alone, by its own monotonic time since it last moved it, at most
`STEP_MAX_MS` a step: it lags, by elections and by outages, and it never leads. No wall clock has a say, a
writer's as little as a janitor's (H152). A segment's age counts from the first look that saw it closed.
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
"""Of the option ``hold_max_s``: one younger than half of it is renewed without a word to retention."""
NO_HOLD = -1
"""In the place of the clock at which a hold was made last: there is none."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """The value of ``log/<id>/stamps``."""

    marks: tuple[tuple[int, int], ...] = ()
    """(segment, clock): it and all before it were closed by then. Ascending in both."""
    open_segment: int = 0
    """The oldest segment in progress at the last look; 0 for none."""
    open_since_ms: int = 0
    """The clock when it was first seen so."""

    def after_check(
        self, last_closed: int, open_segment: int, clock_ms: int, *, mark_interval_ms: int
    ) -> "Stamps":
        """After a look: segments up to ``closed_to`` are closed, ``open_segment`` is not (0: none is).

        A mark is made every ``every_ms`` at most; what closes in between gets the next one's clock.
        """
        updated = self
        if open_segment != self.open_segment:
            updated = replace(updated, open_segment=open_segment, open_since_ms=clock_ms)
        marked_segment, mark_clock_ms = self.marks[-1] if self.marks else (0, -mark_interval_ms)
        if last_closed <= marked_segment or clock_ms < mark_clock_ms + mark_interval_ms:
            return updated
        marks = (*self.marks, (last_closed, clock_ms))
        # Every second one goes, and what it stood for gets the later clock of the next: nothing is younger.
        return replace(updated, marks=marks[::2] if len(marks) > STAMP_MARKS_MAX else marks)

    def last_older_than(self, clock_ms: int, retention_ms: int) -> int:
        """The number of the last segment that was closed so long ago; 0 for none."""
        return max(
            (
                segment
                for segment, mark_clock_ms in self.marks
                if clock_ms - mark_clock_ms >= retention_ms
            ),
            default=0,
        )

    def without_segments_to(self, segment: int) -> "Stamps":
        """The segments up to this one have been given up."""
        return replace(self, marks=tuple(mark for mark in self.marks if mark[0] > segment))

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        marks = [list(mark) for mark in self.marks]
        return pack([FORMAT, marks, self.open_segment, self.open_since_ms])

    @classmethod
    def decode(cls, value: bytes) -> "Stamps":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        what = "a log's stamps"
        stamps = cls(*check_stored(decode_fields(value, FORMAT, 4, what)[:3], _STAMPS, what))
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(stamps.marks)):
            raise CorruptData(f"{what} do not ascend")
        return stamps


_STAMPS = row(rows(row(number(), number()), STAMP_MARKS_MAX), number(), number())
_CLOCK = row(number())


def encode_clock(clock_ms: int) -> bytes:
    """As a packed list with a format number."""
    assert 0 <= clock_ms <= NUMBER_MAX
    return pack([FORMAT, clock_ms])


def decode_clock(value: bytes) -> int:
    """Raises `CorruptData`, or `UnsupportedFormat`."""
    what = "the retention clock"
    (clock_ms,) = check_stored(decode_fields(value, FORMAT, 2, what)[:1], _CLOCK, what)
    return int(clock_ms)


def stamps_key(log_id: int) -> bytes:
    """Comes right before the key of the log's state, so that both are read as one range."""
    return b"log/%016x/stamps" % log_id
