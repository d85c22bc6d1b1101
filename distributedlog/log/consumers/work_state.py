"""How far a work queue is handled, and by whom (pure): a value, and what becomes of it.

From ``floor``, before which everything was handled, to ``next_unclaimed``, after which nothing was given out,
the log is cut into stretches without a gap, in order: each waits, is claimed, or is done. What was tried too
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
from ...runtime.protocol.schema import (
    NUMBER_MAX,
    check_stored,
    number,
    row,
    rows,
    verify_round_trip,
)
from ..format.dlsn import DLSN
from ..model.log_state import decode_fields
from ..model.segment_expiry import NO_HOLD
from ..model.segment_ranges import SegmentInfo

FORMAT = 1
CLAIMS_MAX = 128
DEAD_LETTERED_MAX = 64
BYTES_MAX = 16 * 1024
COUNTER_MAX = NUMBER_MAX // 2
"""Of claims and tries. Nobody counts so far; read from a value that lies, the next one would not fit."""
NO_WORKER = 0


class WorkItemStatus(IntEnum):
    """Of a stretch."""

    WAITING = 0
    CLAIMED = 1
    DONE = 2
    DEAD_LETTERED = 3


@dataclass(frozen=True, slots=True)
class WorkItem:
    """What lies from ``first`` up to, and without, ``end``."""

    number: int
    """Of its last claim, from 1; none was ever given twice. 0: nobody claimed it yet, or it is done."""
    first: DLSN
    end: DLSN
    status: WorkItemStatus = WorkItemStatus.WAITING
    worker: int = NO_WORKER
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
    items: tuple[WorkItem, ...] = ()
    """From the floor to the cursor, each beginning where the one before it ends."""
    retry_queue: tuple[WorkItem, ...] = ()
    """Parked, or parked once and to be tried again; in the order of parking."""
    held_ms: int = NO_HOLD
    """The clock of retention when it was last written, while the floor holds it up; -1: it does not."""

    def __post_init__(self) -> None:
        expected_first = self.floor
        for item in self.items:
            assert item.first == expected_first < item.end, (
                "stretches follow each other without a gap"
            )
            assert item.status != WorkItemStatus.DEAD_LETTERED, "what is parked is set aside"
            expected_first = item.end
        for item in self.retry_queue:
            assert item.first < item.end, "a stretch holds something"
            assert item.status != WorkItemStatus.DONE, "what is done is forgotten"
        for item in (*self.items, *self.retry_queue):
            claimed = item.status == WorkItemStatus.CLAIMED
            assert claimed == (item.worker != NO_WORKER), "a claim, and only that, is somebody's"
            assert item.number < self.next_number, "numbers ascend"
            assert item.number or item.status in (WorkItemStatus.WAITING, WorkItemStatus.DONE), (
                "a claim has a number"
            )

    @property
    def next_unclaimed(self) -> DLSN:
        """What is from here on was not given to anybody."""
        return self.items[-1].end if self.items else self.floor

    @property
    def claims(self) -> list[WorkItem]:
        """That are open, in no order."""
        return [
            item
            for item in (*self.items, *self.retry_queue)
            if item.status == WorkItemStatus.CLAIMED
        ]

    @property
    def parked(self) -> list[WorkItem]:
        """That nobody tries any more."""
        return [item for item in self.retry_queue if item.status == WorkItemStatus.DEAD_LETTERED]

    @property
    def next_waiting(self) -> WorkItem | None:
        """What comes next of what was claimed before, or is to be tried again."""
        for item in (*self.items, *self.retry_queue):
            if item.status == WorkItemStatus.WAITING:
                return item
        return None

    # --- what becomes of it -----------------------------------------------------------------------

    def with_claim(self, item: WorkItem, worker: int) -> "tuple[WorkState, WorkItem] | None":
        """``stretch`` waits, and is this worker's now; None where there are too many claims already."""
        assert item.status == WorkItemStatus.WAITING
        assert worker != NO_WORKER
        claimed_item = replace(
            item,
            number=self.next_number,
            status=WorkItemStatus.CLAIMED,
            worker=worker,
            tries=item.tries + 1,
        )
        changed = replace(self, next_number=self.next_number + 1)._with_replaced(item, claimed_item)
        return None if changed._is_too_large() else (changed, claimed_item)

    def with_item_to(self, end: DLSN) -> "WorkState":
        """What lies from the cursor to ``end`` waits too."""
        return replace(self, items=(*self.items, WorkItem(0, self.next_unclaimed, end)))

    def with_done(self, number: int) -> "WorkState | None":
        """The claim of this number was handled; None: it is not there (any more)."""
        claim = self._find_claim(number)
        return None if claim is None else self._with_replaced(claim, None)

    def with_claim_returned(self, number: int, *, tries_max: int) -> "WorkState | None":
        """It was not handled: it waits, or is parked after so many tries; None as `with_done`."""
        claim = self._find_claim(number)
        if claim is None:
            return None
        returned = replace(claim, status=WorkItemStatus.WAITING, worker=NO_WORKER)
        if claim.tries >= tries_max:
            parked = replace(returned, status=WorkItemStatus.DEAD_LETTERED)
            if claim in self.retry_queue:
                return self._with_replaced(claim, parked)
            changed = self._with_replaced(claim, None)
            changed = replace(changed, retry_queue=(*changed.retry_queue, parked))
            if len(changed.parked) <= DEAD_LETTERED_MAX and len(changed.encode()) <= BYTES_MAX:
                return changed  # else it holds the floor up, and is tried on
        return self._with_replaced(claim, returned)

    def with_claim_undone(self, number: int) -> "WorkState | None":
        """Nobody ever began with it: it waits as before its claim; None as `with_done`."""
        claim = self._find_claim(number)
        if claim is None:
            return None
        tries = max(0, claim.tries - 1)
        return self._with_replaced(
            claim, replace(claim, status=WorkItemStatus.WAITING, worker=NO_WORKER, tries=tries)
        )

    def without_workers(self, dead_workers: Iterable[int], *, tries_max: int) -> "WorkState":
        """These have died: what they had claimed is given back."""
        state, dead_set = self, frozenset(dead_workers)
        for claim in self.claims:
            if claim.worker in dead_set:
                next_state = state.with_claim_returned(claim.number, tries_max=tries_max)
                assert next_state is not None, "a claim that is there is given back"
                state = next_state
        return state

    def with_retry(self, number: int) -> "WorkState | None":
        """What is parked under this number is tried again, from its first try on; None: nothing is."""
        item = self._find_dead_lettered(number)
        if item is None:
            return None
        return self._with_replaced(item, replace(item, status=WorkItemStatus.WAITING, tries=0))

    def with_dropped(self, number: int) -> "WorkState | None":
        """What is parked under this number is given up; None: nothing is."""
        item = self._find_dead_lettered(number)
        return None if item is None else self._with_replaced(item, None)

    def _find_claim(self, number: int) -> WorkItem | None:
        return next((claim for claim in self.claims if claim.number == number), None)

    def _find_dead_lettered(self, number: int) -> WorkItem | None:
        return next((item for item in self.parked if item.number == number), None)

    def _with_replaced(self, old: WorkItem, new: WorkItem | None) -> "WorkState":
        """``old`` replaced; by None it is done."""
        if old in self.retry_queue:
            retry_queue = [new if item == old else item for item in self.retry_queue]
            return replace(
                self, retry_queue=tuple(item for item in retry_queue if item is not None)
            )
        assert old in self.items
        lowest_unfinished, items = self.floor, list[WorkItem]()
        for item in self.items:
            if item == old:
                item = new or WorkItem(0, old.first, old.end, WorkItemStatus.DONE)
            if item.status == WorkItemStatus.DONE and not items:
                lowest_unfinished = item.end
            elif items and item.status == items[-1].status == WorkItemStatus.DONE:
                items[-1] = replace(items[-1], end=item.end)
            else:
                items.append(item)
        return replace(self, floor=lowest_unfinished, items=tuple(items))

    def _is_too_large(self) -> bool:
        return len(self.claims) > CLAIMS_MAX or len(self.encode()) > BYTES_MAX

    # --- as it is stored --------------------------------------------------------------------------

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number, `BYTES_MAX` at most."""
        items = [
            [*item.end, item.number, item.status.value, item.worker, item.tries]
            for item in self.items
        ]
        retry_queue = [
            [*item.first, *item.end, item.number, item.status.value, item.worker, item.tries]
            for item in self.retry_queue
        ]
        return pack(
            [
                FORMAT,
                list(self.floor),
                self.moved_ms,
                self.next_number,
                items,
                retry_queue,
                self.held_ms,
            ]
        )

    @classmethod
    def decode(cls, value: Buffer) -> "WorkState":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        what = "the state of a work queue"
        fields: list[Any] = decode_fields(value, FORMAT, 7, what)[:6]
        lowest_unfinished, moved_ms, next_number, ends, retry_queue, held_ms = check_stored(
            fields, _STATE, what
        )
        item_first, items = DLSN(*lowest_unfinished), list[WorkItem]()
        for segment, entry, slot, *other_fields in ends:
            items.append(_decode_item(item_first, DLSN(segment, entry, slot), *other_fields))
            item_first = items[-1].end
        retry_items = [
            _decode_item(DLSN(*stored_item[:3]), DLSN(*stored_item[3:6]), *stored_item[6:])
            for stored_item in retry_queue
        ]
        try:
            return cls(
                DLSN(*lowest_unfinished),
                moved_ms,
                next_number,
                tuple(items),
                tuple(retry_items),
                held_ms,
            )
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


def _decode_item(
    first: DLSN, end: DLSN, number_: int, status: int, worker: int, tries: int
) -> WorkItem:
    return WorkItem(number_, first, end, WorkItemStatus(status), worker, tries)


_NUMBER = number()
_STATUS = number(0, max(WorkItemStatus).value)
_CLAIM_FIELDS = (_NUMBER, _STATUS, _NUMBER, number(0, COUNTER_MAX))
_ITEM = row(_NUMBER, _NUMBER, _NUMBER, *_CLAIM_FIELDS)
_RETRY_ITEM = row(*[_NUMBER] * 6, *_CLAIM_FIELDS)
_STATE = row(
    row(_NUMBER, _NUMBER, _NUMBER),
    _NUMBER,
    number(1, COUNTER_MAX),
    rows(_ITEM, BYTES_MAX // 8),
    rows(_RETRY_ITEM, BYTES_MAX // 8),
    number(NO_HOLD),
)


def next_item_end(
    segments: Sequence[SegmentInfo], next_unclaimed: DLSN, bytes_max: int
) -> DLSN | None:
    """Where a stretch ends that begins at ``next_unclaimed`` and holds about ``bytes_max``, an entry at
    least.

    None: nothing can be read there. ``segments`` ascend, and have something after the cursor, or not.
    """
    end, bytes_left = None, bytes_max
    for segment in segments:
        if segment.segment < next_unclaimed.segment:
            continue
        first_entry = next_unclaimed.entry if segment.segment == next_unclaimed.segment else 0
        entries = segment.last_entry + 1 - first_entry
        if entries <= 0:
            continue
        mean_bytes = max(1, segment.size_bytes // (segment.last_entry + 1))
        count = bytes_left // mean_bytes if end else max(1, bytes_left // mean_bytes)
        if count < entries:
            return DLSN(segment.segment, first_entry + count, 0) if count else end
        end = DLSN(segment.segment, segment.last_entry + 1, 0)
        if not segment.closed:
            return end
        end = DLSN(segment.segment + 1, 0, 0)
        bytes_left -= entries * mean_bytes
        if bytes_left <= 0:
            return end
    return end
