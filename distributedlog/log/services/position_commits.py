"""Commit the positions of subscriptions: recorded in memory immediately, stored together at intervals.

One task per namespace stores the positions that have moved, up to `POSITIONS_PER_WRITE` in a transaction.
Each key is compared by its revision. If that has changed, the key is read again. A later subscriber has
raised the generation, so a late commit of the former subscriber is refused (H155).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import DistributedLogError, OutcomeUnknown, SubscriptionLost
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ..interfaces.error_boundary import error_boundary
from ..model.position import Position
from ..model.segment_expiry import NO_HOLD
from .lease_session import Start
from .named_positions import PositionRecord, clock_now, prepare_hold

POSITIONS_PER_WRITE = 500

log = get_logger("distributedlog.log")


@dataclass(slots=True, eq=False)
class SubscriberPosition:
    """A named position of a subscription in this process."""

    description: str
    """The subscription, for errors."""
    log_id: int
    key: bytes
    revision: int
    """The last known revision that changed the key. (Its version restarts if the key is created again.)"""
    create_revision: int
    """The revision that created the key. A position that is deleted and created again counts its
    generations from the start."""
    written: PositionRecord
    hold: bool
    """Whether the position prevents retention from deleting records at and after it."""
    interval_s: float
    pending: Position | None = None
    """The position to store. It never moves backwards."""
    due_at: float = float("inf")
    error: DistributedLogError | None = None
    """The reason why nothing more is stored."""
    _on_lost: Callable[[DistributedLogError], None] | None = None

    def set_on_lost(self, on_lost: Callable[[DistributedLogError], None]) -> None:
        """Set a callback that receives `error` once: when it is set, or now if it is set already."""
        self._on_lost = on_lost
        if self.error is not None:
            on_lost(self.error)

    def set_pending(self, position: Position) -> bool:
        """Record that all records before a position were processed.

        Return whether it is after the recorded position.
        """
        current_dlsn = self.written.dlsn if self.pending is None else self.pending.dlsn
        if position.dlsn <= current_dlsn:
            return False
        self.pending = position
        return True

    def check_holder(self, stored_item: KeyValue | None) -> None:
        """Update the position from its stored key, and set `error` if that belongs to another subscriber."""
        if self.error is not None:
            return
        record = None if stored_item is None else PositionRecord.decode(stored_item.value)
        if (
            stored_item is None
            or record is None
            or (stored_item.create_revision, record.generation)
            != (self.create_revision, self.written.generation)
        ):
            reason = "has no position any more: it was deleted, alone or with its log"
            if record is not None:
                reason = (
                    f"has another holder: this one has generation {self.written.generation}, the present "
                    f"one {record.generation}; the position is {record.dlsn}"
                )
            self.fail(SubscriptionLost(f"{self.description} {reason}"))
        elif stored_item.mod_revision >= self.revision:
            self.revision, self.written = stored_item.mod_revision, record

    def fail(self, error: DistributedLogError) -> None:
        """Stop storing this position."""
        if self.error is None:
            self.error = error
            if self._on_lost is not None:
                self._on_lost(error)


class PositionCommits:
    """The positions of one namespace's subscriptions that have moved and are not stored yet."""

    def __init__(self, metadata: Metadata, clock_ms: Callable[[], int], start: Start) -> None:
        self._metadata = metadata
        self._clock_ms = clock_ms
        self._start = start
        self._unwritten: dict[SubscriberPosition, None] = {}
        self._is_running = False
        self._wake = trio.Event()
        self._writing = trio.Lock()

    def schedule(self, subscriber: SubscriberPosition, position: Position) -> None:
        """Store a position within the subscription's interval.

        Raises:
            DistributedLogError: The subscription has ended by this error.
        """
        if subscriber.error is not None:
            raise subscriber.error.again()
        if subscriber.set_pending(position) and subscriber not in self._unwritten:
            self._unwritten[subscriber] = None
            subscriber.due_at = trio.current_time() + subscriber.interval_s
            if not self._is_running:
                self._start(self._run)
                self._is_running = True
            self._wake.set()

    async def write(self, subscribers: Sequence[SubscriberPosition]) -> int:
        """Store the changed positions of these subscriptions now, and return their number.

        The error of a single subscription is set as its `error`.

        Raises:
            DistributedLogError: The metadata client failed.
        """
        async with self._writing:
            unwritten = [subscriber for subscriber in subscribers if subscriber in self._unwritten]
            for offset in range(0, len(unwritten), POSITIONS_PER_WRITE):
                await self._write_batch(unwritten[offset : offset + POSITIONS_PER_WRITE])
            return len(unwritten)

    async def check_holder(self, subscriber: SubscriberPosition) -> None:
        """Read a subscription's key, and set its `error` if it belongs to another subscriber.

        Raises:
            CorruptData: The stored value is invalid.
            DistributedLogError: The metadata client failed.
        """
        subscriber.check_holder(await self._metadata.get(subscriber.key))

    def discard(self, subscriber: SubscriberPosition) -> None:
        """Store nothing more of a closed subscription."""
        self._unwritten.pop(subscriber, None)

    async def _run(self) -> None:
        """Store all changed positions whenever one is due. Runs as a task of the namespace."""
        backoff = Backoff()
        with error_boundary("the task that commits positions", self._fail):
            while True:
                due_at = min(
                    (subscriber.due_at for subscriber in self._unwritten), default=float("inf")
                )
                with trio.move_on_at(due_at):
                    await self._wake.wait()
                    self._wake = trio.Event()
                    continue
                try:
                    await self.write(list(self._unwritten))
                    backoff.reset()
                except DistributedLogError as error:
                    log.info("positions are not committed yet: %s", error)
                    again_at = trio.current_time() + backoff.next_s()
                    for subscriber in self._unwritten:
                        subscriber.due_at = again_at

    def _fail(self, error: DistributedLogError) -> None:
        self._is_running = False
        for subscriber in list(self._unwritten):
            subscriber.fail(error)
        self._unwritten.clear()

    async def _write_batch(self, remaining: list[SubscriberPosition]) -> None:
        now_ms = (
            await clock_now(self._metadata)
            if any(subscriber.hold for subscriber in remaining)
            else 0
        )
        while remaining := [
            subscriber for subscriber in remaining if self._needs_write(subscriber)
        ]:
            updates: list[tuple[SubscriberPosition, int, Position, PositionRecord]] = []
            hold_ops_by_log: dict[int, Transaction] = {}
            for subscriber in remaining:
                position, hold_renewed_ms = subscriber.pending, NO_HOLD
                assert position is not None, "a position to store is recorded"
                if subscriber.hold:
                    hold_renewed_ms, hold_ops = await prepare_hold(
                        self._metadata,
                        subscriber.log_id,
                        subscriber.written.hold_renewed_ms,
                        now_ms,
                    )
                    if hold_ops.operations:
                        hold_ops_by_log[subscriber.log_id] = (
                            hold_ops  # the operations of two positions of one log are the same
                        )
                record = PositionRecord(
                    position.dlsn,
                    self._clock_ms(),
                    position.sequence_id,
                    hold_renewed_ms,
                    subscriber.written.generation,
                )
                updates.append((subscriber, subscriber.revision, position, record))
            change = Transaction(
                tuple(
                    Compare.mod_revision(subscriber.key, known_revision)
                    for subscriber, known_revision, _, _ in updates
                ),
                tuple(Put(subscriber.key, record.encode()) for subscriber, _, _, record in updates),
            )
            current_items: Sequence[KeyValue | None]
            try:
                reply = await self._metadata.transact(sum(hold_ops_by_log.values(), change))
            except OutcomeUnknown:
                current_items = [
                    await self._metadata.get(subscriber.key) for subscriber in remaining
                ]
            else:
                if reply.succeeded:
                    for subscriber, known_revision, position, record in updates:
                        if (
                            subscriber.revision == known_revision
                        ):  # otherwise `check_holder` has read a newer one
                            subscriber.revision, subscriber.written = reply.revision, record
                        if subscriber.pending is position:
                            self._unwritten.pop(subscriber, None)
                        else:  # it was moved during the transaction
                            subscriber.due_at = trio.current_time() + subscriber.interval_s
                    return
                current_items = reply.current
            for subscriber, item in zip(remaining, current_items, strict=False):
                try:
                    subscriber.check_holder(item)
                except (
                    DistributedLogError
                ) as error:  # the record is corrupt: an error of this subscription only
                    subscriber.fail(error)

    def _needs_write(self, subscriber: SubscriberPosition) -> bool:
        """Return whether a position must be stored. A user may have moved it further by hand."""
        if (
            subscriber.error is None
            and subscriber.pending is not None
            and subscriber.pending.dlsn > subscriber.written.dlsn
        ):
            return True
        self._unwritten.pop(subscriber, None)
        return False
