"""The progress of a work queue and its claims, as an immutable value with its changes (pure).

The log is divided into consecutive items from ``floor``, before which everything is finished, to
``next_unclaimed``, after which nothing was claimed. Each item is waiting, claimed or done. An item that was
tried too often is *dead-lettered*: it moves to a separate list and counts as done here, so that the floor
advances.

An item gets a new number with each claim. A worker that was paused, and finishes an item that another worker
has claimed in the meantime, uses a number that no longer exists (H156).
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
"""The limit of claim numbers and tries in stored values. No real queue reaches it. A damaged value at the
limit of the format would leave no space for the next number."""
NO_WORKER = 0


class WorkItemStatus(IntEnum):
    """The status of an item."""

    WAITING = 0
    CLAIMED = 1
    DONE = 2
    DEAD_LETTERED = 3


@dataclass(frozen=True, slots=True)
class WorkItem:
    """The records from ``first`` up to ``end``, exclusive."""

    number: int
    """The number of its last claim, from 1, never reused. 0 if it was never claimed or is done."""
    first: DLSN
    end: DLSN
    status: WorkItemStatus = WorkItemStatus.WAITING
    worker: int = NO_WORKER
    """The process that has claimed it: a random number of that process."""
    tries: int = 0
    """How often it was claimed."""


@dataclass(frozen=True, slots=True)
class WorkState:
    """The progress of a work queue, stored as the value of ``log/<id>/work/<name>``."""

    floor: DLSN
    """The lowest unfinished position. Every earlier record is done, dead-lettered, or retried after that."""
    moved_ms: int
    """The wall clock of the last change, only for display."""
    next_number: int = 1
    items: tuple[WorkItem, ...] = ()
    """The items from the floor to `next_unclaimed`. Each starts at the end of the one before."""
    set_aside_items: tuple[WorkItem, ...] = ()
    """The dead-lettered items, and those that are retried after that, in the order of dead-lettering.

    In `items`, their ranges count as done. The unfinished records are those of both that are not done, and
    those from `next_unclaimed` to the end of the log (`Log.count`).
    """
    hold_renewed_ms: int = NO_HOLD
    """The retention clock of the last change, while the floor holds retention back. -1 if it does not."""

    def __post_init__(self) -> None:
        expected_first = self.floor
        for item in self.items:
            assert item.first == expected_first < item.end, "items follow each other without a gap"
            assert item.status != WorkItemStatus.DEAD_LETTERED, "it is set aside"
            expected_first = item.end
        for item in self.set_aside_items:
            assert item.first < item.end, "an item is not empty"
            assert item.status != WorkItemStatus.DONE, "a finished item is removed"
        for item in (*self.items, *self.set_aside_items):
            claimed = item.status == WorkItemStatus.CLAIMED
            assert claimed == (item.worker != NO_WORKER), "exactly the claimed items have a worker"
            assert item.number < self.next_number, "numbers ascend"
            assert item.number or item.status in (WorkItemStatus.WAITING, WorkItemStatus.DONE), (
                "a claim has a number"
            )

    @property
    def next_unclaimed(self) -> DLSN:
        """The position from which on nothing was claimed."""
        return self.items[-1].end if self.items else self.floor

    @property
    def claims(self) -> list[WorkItem]:
        """The open claims, in no order."""
        return [
            item
            for item in (*self.items, *self.set_aside_items)
            if item.status == WorkItemStatus.CLAIMED
        ]

    @property
    def dead_lettered(self) -> list[WorkItem]:
        """The dead-lettered items."""
        return [
            item for item in self.set_aside_items if item.status == WorkItemStatus.DEAD_LETTERED
        ]

    @property
    def next_waiting(self) -> WorkItem | None:
        """The next waiting item that was claimed before or is retried. None if there is none."""
        for item in (*self.items, *self.set_aside_items):
            if item.status == WorkItemStatus.WAITING:
                return item
        return None

    # --- changes ----------------------------------------------------------------------------------

    def with_claim(self, item: WorkItem, worker: int) -> "tuple[WorkState, WorkItem] | None":
        """Return the state with the waiting item claimed by this worker, and the claimed item.

        None if there are too many claims.
        """
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
        """Return the state with a new waiting item from `next_unclaimed` to ``end``."""
        return replace(self, items=(*self.items, WorkItem(0, self.next_unclaimed, end)))

    def with_done(self, number: int) -> "WorkState | None":
        """Return the state with this claim finished. None if the claim does not exist any more."""
        claim = self._find_claim(number)
        return None if claim is None else self._with_replaced(claim, None)

    def with_claim_returned(self, number: int, *, tries_max: int) -> "WorkState | None":
        """Return the state with this claim failed. The item waits, or is dead-lettered after ``tries_max``
        tries.

        None if the claim does not exist any more.
        """
        claim = self._find_claim(number)
        if claim is None:
            return None
        returned = replace(claim, status=WorkItemStatus.WAITING, worker=NO_WORKER)
        if claim.tries >= tries_max:
            dead_lettered = replace(returned, status=WorkItemStatus.DEAD_LETTERED)
            if claim in self.set_aside_items:
                return self._with_replaced(claim, dead_lettered)
            changed = self._with_replaced(claim, None)
            changed = replace(changed, set_aside_items=(*changed.set_aside_items, dead_lettered))
            if (
                len(changed.dead_lettered) <= DEAD_LETTERED_MAX
                and len(changed.encode()) <= BYTES_MAX
            ):
                return changed  # otherwise it stays in the items and is retried
        return self._with_replaced(claim, returned)

    def with_claim_undone(self, number: int) -> "WorkState | None":
        """Return the state without this claim, whose work was not started, so it does not count as a try.

        None as for `with_done`.
        """
        claim = self._find_claim(number)
        if claim is None:
            return None
        tries = max(0, claim.tries - 1)
        return self._with_replaced(
            claim, replace(claim, status=WorkItemStatus.WAITING, worker=NO_WORKER, tries=tries)
        )

    def without_workers(self, dead_workers: Iterable[int], *, tries_max: int) -> "WorkState":
        """Return the state with the claims of dead workers returned."""
        state, dead_set = self, frozenset(dead_workers)
        for claim in self.claims:
            if claim.worker in dead_set:
                next_state = state.with_claim_returned(claim.number, tries_max=tries_max)
                assert next_state is not None, "an existing claim is returned"
                state = next_state
        return state

    def with_retry(self, number: int) -> "WorkState | None":
        """Return the state with this dead-lettered item waiting, with no tries.

        None if there is no such item.
        """
        item = self._find_dead_lettered(number)
        if item is None:
            return None
        return self._with_replaced(item, replace(item, status=WorkItemStatus.WAITING, tries=0))

    def with_dropped(self, number: int) -> "WorkState | None":
        """Return the state without this dead-lettered item. None if there is no such item."""
        item = self._find_dead_lettered(number)
        return None if item is None else self._with_replaced(item, None)

    def _find_claim(self, number: int) -> WorkItem | None:
        return next((claim for claim in self.claims if claim.number == number), None)

    def _find_dead_lettered(self, number: int) -> WorkItem | None:
        return next((item for item in self.dead_lettered if item.number == number), None)

    def _with_replaced(self, old: WorkItem, new: WorkItem | None) -> "WorkState":
        """Replace an item. None for ``new`` marks it as done."""
        if old in self.set_aside_items:
            set_aside_items = [new if item == old else item for item in self.set_aside_items]
            return replace(
                self, set_aside_items=tuple(item for item in set_aside_items if item is not None)
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

    # --- storage format ---------------------------------------------------------------------------

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode it as a packed list with a format number, at most `BYTES_MAX`."""
        items = [
            [*item.end, item.number, item.status.value, item.worker, item.tries]
            for item in self.items
        ]
        set_aside_items = [
            [*item.first, *item.end, item.number, item.status.value, item.worker, item.tries]
            for item in self.set_aside_items
        ]
        return pack(
            [
                FORMAT,
                list(self.floor),
                self.moved_ms,
                self.next_number,
                items,
                set_aside_items,
                self.hold_renewed_ms,
            ]
        )

    @classmethod
    def decode(cls, value: Buffer) -> "WorkState":
        """Decode a stored value.

        Raises:
            CorruptData: The value is damaged.
            UnsupportedFormat: A newer program wrote the value.
        """
        what = "the state of a work queue"
        fields: list[Any] = decode_fields(value, FORMAT, 7, what)[:6]
        lowest_unfinished, moved_ms, next_number, ends, stored_items, hold_renewed_ms = (
            check_stored(fields, _STATE, what)
        )
        item_first, items = DLSN(*lowest_unfinished), list[WorkItem]()
        for segment, entry, slot, *other_fields in ends:
            items.append(_decode_item(item_first, DLSN(segment, entry, slot), *other_fields))
            item_first = items[-1].end
        set_aside_items = [
            _decode_item(DLSN(*stored_item[:3]), DLSN(*stored_item[3:6]), *stored_item[6:])
            for stored_item in stored_items
        ]
        try:
            return cls(
                DLSN(*lowest_unfinished),
                moved_ms,
                next_number,
                tuple(items),
                tuple(set_aside_items),
                hold_renewed_ms,
            )
        except AssertionError as error:  # the fields contradict each other
            raise CorruptData(f"{what} is inconsistent: {error}") from None


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
    """Return the end of an item that starts at ``next_unclaimed`` and has about ``bytes_max`` bytes.

    The item has at least one entry.

    Args:
        segments: The log's segments, in ascending order.
    Returns:
        The end. None if no entry is readable there.
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
