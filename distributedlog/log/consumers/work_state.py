"""How far a work queue is handled, and by whom (pure): a value, and what becomes of it.

From ``floor``, before which everything was handled, to ``cursor``, after which nothing was given out, the
log is cut into stretches without a gap, in order: each waits, is claimed, or is done. What was tried too
often is set aside, *parked*, and counts as done there, so that the floor moves on. A stretch gets a new
number with each claim: who was paused and finishes what another one has claimed since names a number that is
not there any more (H156).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import NUMBER_MAX, fit, number, reads_back, row, rows
from ..format.dlsn import DLSN
from ..model.log_state import decode_fields
from ..model.segment_expiry import UNHELD
from ..model.segment_ranges import SegmentInfo

FORMAT = 1
CLAIMS_MAX = 128
PARKED_MAX = 64
BYTES_MAX = 16 * 1024
COUNTED_MAX = NUMBER_MAX // 2
"""Of claims and tries. Nobody counts so far; read from a value that lies, the next one would not fit."""
NOBODY = 0


class Status(IntEnum):
    """Of a stretch."""

    WAITS = 0
    CLAIMED = 1
    DONE = 2
    PARKED = 3


@dataclass(frozen=True, slots=True)
class WorkItem:
    """What lies from ``first`` up to, and without, ``end``."""

    number: int
    """Of its last claim, from 1; none was ever given twice. 0: nobody claimed it yet, or it is done."""
    first: DLSN
    end: DLSN
    status: Status = Status.WAITS
    worker: int = NOBODY
    """Who has claimed it: a number that a process has drawn."""
    tries: int = 0
    """How often it was claimed."""


@dataclass(frozen=True, slots=True)
class WorkState:
    """The value of ``log/<id>/work/<name>``."""

    floor: DLSN
    moved_ms: int
    """Wall clock of who wrote it; for people."""
    next_number: int = 1
    line: tuple[WorkItem, ...] = ()
    """From the floor to the cursor, each beginning where the one before it ends."""
    aside: tuple[WorkItem, ...] = ()
    """Parked, or parked once and to be tried again; in the order of parking."""
    held_ms: int = UNHELD
    """The clock of retention when it was last written, while the floor holds it up; -1: it does not."""

    def __post_init__(self) -> None:
        at = self.floor
        for one in self.line:
            assert one.first == at < one.end, "stretches follow each other without a gap"
            assert one.status != Status.PARKED, "what is parked is set aside"
            at = one.end
        for one in self.aside:
            assert one.first < one.end, "a stretch holds something"
            assert one.status != Status.DONE, "what is done is forgotten"
        for one in (*self.line, *self.aside):
            claimed = one.status == Status.CLAIMED
            assert claimed == (one.worker != NOBODY), "a claim, and only that, is somebody's"
            assert one.number < self.next_number, "numbers ascend"
            assert one.number or one.status in (Status.WAITS, Status.DONE), "a claim has a number"

    @property
    def cursor(self) -> DLSN:
        """What is from here on was not given to anybody."""
        return self.line[-1].end if self.line else self.floor

    @property
    def claims(self) -> list[WorkItem]:
        """That are open, in no order."""
        return [one for one in (*self.line, *self.aside) if one.status == Status.CLAIMED]

    @property
    def parked(self) -> list[WorkItem]:
        """That nobody tries any more."""
        return [one for one in self.aside if one.status == Status.PARKED]

    @property
    def waiting(self) -> WorkItem | None:
        """What comes next of what was claimed before, or is to be tried again."""
        for one in (*self.line, *self.aside):
            if one.status == Status.WAITS:
                return one
        return None

    # --- what becomes of it -----------------------------------------------------------------------

    def claimed(self, stretch: WorkItem, worker: int) -> "tuple[WorkState, WorkItem] | None":
        """``stretch`` waits, and is this worker's now; None where there are too many claims already."""
        assert stretch.status == Status.WAITS
        assert worker != NOBODY
        mine = replace(
            stretch,
            number=self.next_number,
            status=Status.CLAIMED,
            worker=worker,
            tries=stretch.tries + 1,
        )
        changed = replace(self, next_number=self.next_number + 1)._with(stretch, mine)
        return None if changed._too_much() else (changed, mine)

    def extended(self, end: DLSN) -> "WorkState":
        """What lies from the cursor to ``end`` waits too."""
        return replace(self, line=(*self.line, WorkItem(0, self.cursor, end)))

    def done(self, number: int) -> "WorkState | None":
        """The claim of this number was handled; None: it is not there (any more)."""
        found = self._claim(number)
        return None if found is None else self._with(found, None)

    def given_back(self, number: int, *, tries_max: int) -> "WorkState | None":
        """It was not handled: it waits, or is parked after so many tries; None as `done`."""
        found = self._claim(number)
        if found is None:
            return None
        back = replace(found, status=Status.WAITS, worker=NOBODY)
        if found.tries >= tries_max:
            parked = replace(back, status=Status.PARKED)
            if found in self.aside:
                return self._with(found, parked)
            changed = self._with(found, None)
            changed = replace(changed, aside=(*changed.aside, parked))
            if len(changed.parked) <= PARKED_MAX and len(changed.encode()) <= BYTES_MAX:
                return changed  # else it holds the floor up, and is tried on
        return self._with(found, back)

    def unclaimed(self, number: int) -> "WorkState | None":
        """Nobody ever began with it: it waits as before its claim; None as `done`."""
        found = self._claim(number)
        if found is None:
            return None
        tries = max(0, found.tries - 1)
        return self._with(found, replace(found, status=Status.WAITS, worker=NOBODY, tries=tries))

    def without_workers(self, gone: Iterable[int], *, tries_max: int) -> "WorkState":
        """These have died: what they had claimed is given back."""
        state, dead = self, frozenset(gone)
        for one in self.claims:
            if one.worker in dead:
                given = state.given_back(one.number, tries_max=tries_max)
                assert given is not None, "a claim that is there is given back"
                state = given
        return state

    def retried(self, number: int) -> "WorkState | None":
        """What is parked under this number is tried again, from its first try on; None: nothing is."""
        found = self._parked(number)
        if found is None:
            return None
        return self._with(found, replace(found, status=Status.WAITS, tries=0))

    def dropped(self, number: int) -> "WorkState | None":
        """What is parked under this number is given up; None: nothing is."""
        found = self._parked(number)
        return None if found is None else self._with(found, None)

    def _claim(self, number: int) -> WorkItem | None:
        return next((one for one in self.claims if one.number == number), None)

    def _parked(self, number: int) -> WorkItem | None:
        return next((one for one in self.parked if one.number == number), None)

    def _with(self, old: WorkItem, new: WorkItem | None) -> "WorkState":
        """``old`` replaced; by None it is done."""
        if old in self.aside:
            aside = [new if one == old else one for one in self.aside]
            return replace(self, aside=tuple(one for one in aside if one is not None))
        assert old in self.line
        floor, line = self.floor, list[WorkItem]()
        for one in self.line:
            if one == old:
                one = new or WorkItem(0, old.first, old.end, Status.DONE)
            if one.status == Status.DONE and not line:
                floor = one.end
            elif line and one.status == line[-1].status == Status.DONE:
                line[-1] = replace(line[-1], end=one.end)
            else:
                line.append(one)
        return replace(self, floor=floor, line=tuple(line))

    def _too_much(self) -> bool:
        return len(self.claims) > CLAIMS_MAX or len(self.encode()) > BYTES_MAX

    # --- as it is stored --------------------------------------------------------------------------

    @reads_back(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number, `BYTES_MAX` at most."""
        line = [
            [*one.end, one.number, one.status.value, one.worker, one.tries] for one in self.line
        ]
        aside = [
            [*one.first, *one.end, one.number, one.status.value, one.worker, one.tries]
            for one in self.aside
        ]
        return pack(
            [FORMAT, list(self.floor), self.moved_ms, self.next_number, line, aside, self.held_ms]
        )

    @classmethod
    def decode(cls, value: Buffer) -> "WorkState":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        what = "the state of a work queue"
        fields: list[Any] = decode_fields(value, FORMAT, 7, what)[:6]
        floor, moved_ms, next_number, ends, aside, held_ms = fit(fields, _STATE, what)
        at, line = DLSN(*floor), list[WorkItem]()
        for segment, entry, slot, *rest in ends:
            line.append(_stretch(at, DLSN(segment, entry, slot), *rest))
            at = line[-1].end
        parked = [_stretch(DLSN(*one[:3]), DLSN(*one[3:6]), *one[6:]) for one in aside]
        try:
            return cls(DLSN(*floor), moved_ms, next_number, tuple(line), tuple(parked), held_ms)
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


def _stretch(
    first: DLSN, end: DLSN, number_: int, status: int, worker: int, tries: int
) -> WorkItem:
    return WorkItem(number_, first, end, Status(status), worker, tries)


_NUMBER = number()
_STATUS = number(0, max(Status).value)
_REST = (_NUMBER, _STATUS, _NUMBER, number(0, COUNTED_MAX))
_LINE = row(_NUMBER, _NUMBER, _NUMBER, *_REST)
_ASIDE = row(*[_NUMBER] * 6, *_REST)
_STATE = row(
    row(_NUMBER, _NUMBER, _NUMBER),
    _NUMBER,
    number(1, COUNTED_MAX),
    rows(_LINE, BYTES_MAX // 8),
    rows(_ASIDE, BYTES_MAX // 8),
    number(UNHELD),
)


def end_of_next(segments: Sequence[SegmentInfo], cursor: DLSN, bytes_max: int) -> DLSN | None:
    """Where a stretch ends that begins at ``cursor`` and holds about ``bytes_max``, an entry at least.

    None: nothing can be read there. ``segments`` ascend, and have something after the cursor, or not.
    """
    end, left = None, bytes_max
    for one in segments:
        if one.segment < cursor.segment:
            continue
        first = cursor.entry if one.segment == cursor.segment else 0
        entries = one.last_entry + 1 - first
        if entries <= 0:
            continue
        mean_bytes = max(1, one.size_bytes // (one.last_entry + 1))
        count = left // mean_bytes if end else max(1, left // mean_bytes)
        if count < entries:
            return DLSN(one.segment, first + count, 0) if count else end
        end = DLSN(one.segment, one.last_entry + 1, 0)
        if not one.closed:
            return end
        end = DLSN(one.segment + 1, 0, 0)
        left -= entries * mean_bytes
        if left <= 0:
            return end
    return end
