"""WorkQueue: several workers handle one log, each item of it at least once.

All workers of a process share one coordinator. Its task combines their requests into one compare-and-set of
the queue's state (`work_state.py`), with all finished items and all new claims.

A key under its lease shows that a process is alive. The claims of a dead process are claimed again in a
transaction that requires its key to be absent.

An item is a plan, as `LogSnapshot` has it. Its records were readable when the item was created, and they are
read as ranges, by entry IDs (H156).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal

import trio

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.declarations.options import check_seconds, check_wait, check_whole
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ClaimLost,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    OutcomeUnknown,
)
from ..format.dlsn import DLSN
from ..interfaces.error_boundary import error_boundary
from ..interfaces.open_call import Opening
from ..model.lock_record import LockRecord
from ..model.log_keys import incarnation_text, state_key, work_key, worker_key, workers_prefix
from ..model.segment_expiry import NO_HOLD
from ..model.segment_ranges import LogSnapshot, SegmentInfo, ranges_between
from ..model.segment_record import SegmentRecord
from ..read.log_snapshot import take_snapshot
from ..read.position_search import segments_page
from ..read.range_reader import RangeReader, open_ranges
from ..read.segment_reader import open_segment
from ..read.state_watch import StateWatch
from ..services.ephemeral_key import EphemeralKey, put_ephemeral_key
from ..services.lease_session import RELEASE_TIMEOUT_S
from ..services.log_context import LogContext
from ..services.named_positions import check_position_name, clock_now, prepare_hold
from .work_state import WorkItem, WorkState, next_item_end

ITEM_BYTES = 8 * 1024 * 1024
TRIES_MAX = 5
CLAIM_S = 600.0
POLL_INTERVAL_S = 1.0
"""How often waiting callers check whether other workers have returned an item or died."""
IDLE_DELAY_S = 0.05
"""The pause after a check that found no work."""
SEGMENTS_PLANNED = 64
"""The number of segments that are read at once to create items."""
WORKER_BITS = 62

Change = Callable[[WorkState], WorkState | None]
"""Returns the changed state, or None to refuse the change."""


@dataclass(slots=True, eq=False)
class _PendingChange:
    change: Change
    refusal_error: Callable[[], DistributedLogError]
    completed: trio.Event = field(default_factory=trio.Event)
    error: DistributedLogError | None = None


@dataclass(slots=True, eq=False)
class _ClaimRequest:
    bytes_max: int
    deadline: float
    answered: trio.Event = field(default_factory=trio.Event)
    item: WorkItem | None = None
    error: DistributedLogError | None = None


class WorkClaim:
    """An item of the log that this process has claimed. `WorkQueue.claim` creates it.

    At the normal end of its ``async with`` the item is done. After an exception it is returned.
    """

    def __init__(self, queue: "WorkQueue", item: WorkItem) -> None:
        self.number = item.number
        """The number of this claim, which no other claim of the queue has."""
        self.first = item.first
        self.end = item.end
        """The end of the item, exclusive."""
        self.tries = item.tries
        """How often the item was claimed, including this claim."""
        self._queue = queue
        self._item = item
        self._settled = False

    def __repr__(self) -> str:
        return f"WorkClaim({self.number}, {self.first} to {self.end}, try {self.tries})"

    def open_reader(self, *, rest: bool = False) -> Opening[RangeReader]:
        """Open a reader of the item's records. ``async for`` over it yields `Columns`, one per entry.

        The item can have no record.

        `LogTruncated` is raised if some of it is truncated, and `done` is still possible. `CorruptData` is
        also raised if the stored item is beyond the end of the log.

        Args:
            rest: Read only the part that is not truncated.
        Returns:
            The reader, for ``async with``.

        Raises: LogNotFound, LogTruncated, CorruptData, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        return Opening(lambda: self._queue.open_item(self._item, rest))

    async def done(self) -> None:
        """Record that the item is handled, for good.

        `ClaimLost` is raised if another worker has claimed the item, or if it was returned. After
        `OutcomeUnknown` the item is either done or will be handled again.

        Raises: ClaimLost, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await self._settle(
            self._queue.finish(self.number, lambda state: state.with_done(self.number))
        )

    async def release(self, delay_s: float = 0.0) -> None:
        """Return the item without handling it, so that another worker can claim it.

        Until ``delay_s`` has passed, the item stays claimed by this process. It is returned at once if the
        process ends.
        `ClaimLost` is raised as by `done`.

        Args:
            delay_s: The seconds after which the item can be claimed again.

        Raises: ClaimLost, LogNotFound, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_seconds("delay_s", delay_s)
        await self._settle(self._queue.return_to_queue(self.number, delay_s))

    async def _settle(self, completion: Awaitable[None]) -> None:
        try:
            await completion
        except (ClaimLost, OutcomeUnknown):
            self._settled = True
            raise
        self._settled = True

    async def extend(self) -> None:
        """Restart the time limit ``claim_s`` of this claim. `ClaimLost` is raised if it has expired.

        Raises: ClaimLost, AlreadyClosed.
        """
        self._queue.extend(self.number)
        await trio.lowlevel.checkpoint()

    def return_undelivered(self) -> None:
        """Return a claim that an API variant could not deliver to its caller."""
        self._queue.return_undelivered(self.number)

    async def __aenter__(self) -> "WorkClaim":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.exit_block(kind is not None)

    async def exit_block(self, failed: bool) -> None:
        """End an ``async with`` block: the item is done or returned, unless the block has done that."""
        if self._settled:
            await trio.lowlevel.checkpoint()
        elif not failed:
            await self.done()
        else:
            close_scope = trio.CancelScope(
                shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S
            )
            with close_scope, suppress(DistributedLogError):
                await self.release()


class WorkQueue:
    """A log that several workers handle, including this process. `Log.work_queue` creates it.

    Any number of tasks may use it concurrently. Their requests are combined.
    """

    def __init__(
        self,
        context: LogContext,
        state_watch: StateWatch,
        name: str,
        worker_id: int,
        presence: EphemeralKey,
        *,
        hold: bool,
        tries_max: int,
        claim_s: float,
    ) -> None:
        self.name = name
        self.log = state_watch.state.name
        self._context = context
        self._metadata: Metadata = context.metadata
        self._state_watch = state_watch
        self._log_id = state_watch.state.log_id
        self._key = work_key(self._log_id, name)
        self._worker_id = worker_id
        self._presence = presence
        self._hold = hold
        self._tries_max = tries_max
        self._claim_s = claim_s
        self._pending_changes: list[_PendingChange] = []
        self._claim_requests: list[_ClaimRequest] = []
        self._active_claims: dict[int, float] = {}
        """The claims that tasks of this process handle, and when they are returned."""
        self._delayed_returns: dict[int, float] = {}
        """The claims that no task handles, and when they are returned."""
        self._unassigned_claims: dict[int, float] = {}
        """The claims that were not delivered, and when they are returned. The next request here gets one
        of them."""
        self._has_unknown_claims = False
        """Whether the state may have claims of this process that are not recorded here. It is then read."""
        self._cached_state: tuple[WorkState, int] | None = None
        """The last seen state, and the revision that wrote it. (A version would restart if the queue were
        created again.)"""
        self._segments: tuple[SegmentInfo, ...] = ()
        self._readable_before = DLSN.INITIAL
        """The readable end of the log when this process last queried its bookies."""
        self._hold_unwritten = hold
        """Whether it is not written yet that the floor holds retention back."""
        self._nothing_available = False
        """Whether the last request found no item."""
        self._all_claimed = False
        """Whether the log is sealed and completely divided into items."""
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._end_error: DistributedLogError | None = None

    def __repr__(self) -> str:
        end_text = (
            ""
            if self._end_error is None
            else f", {type(self._end_error).__name__}: {self._end_error}"
        )
        return f'WorkQueue("{self.name}" of log "{self.log}", {len(self._active_claims)} claims{end_text})'

    # --- for the caller ---------------------------------------------------------------------------

    async def claim(
        self, *, bytes_max: int = ITEM_BYTES, wait_s: float | None = None
    ) -> WorkClaim | None:
        """Claim the next item, waiting for it if necessary.

        Items that were returned, or whose process died, are claimed before new ones. A queue has at most 128
        open claims, and further calls wait. A claim that is not done within ``claim_s`` is returned.

        Args:
            bytes_max: The approximate size of a new item in bytes. It has at least one entry.
            wait_s: The longest wait in seconds. None for no limit, 0 to claim only an available item.
        Returns:
            The claim. None after ``wait_s``, or if a sealed log is completely handled.

        Raises: LogNotFound, InvalidRequest, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        check_whole("bytes_max", bytes_max, 1)
        check_wait(wait_s)
        self._check_open()
        deadline = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        request = _ClaimRequest(bytes_max, deadline)
        self._claim_requests.append(request)
        self._wake.set()
        try:
            await request.answered.wait()
        except BaseException:
            if request in self._claim_requests:
                self._claim_requests.remove(request)
            if request.item is not None:
                self.return_undelivered(request.item.number)
            raise
        if request.error is not None:
            raise request.error.again()
        return None if request.item is None else WorkClaim(self, request.item)

    async def state(self) -> WorkState:
        """Return the state of the queue: its floor, its claims and its dead-lettered items.

        Raises: LogNotFound, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return (await self._read())[0]

    async def retry(self, number: int) -> None:
        """Let a dead-lettered item be claimed again.

        Args:
            number: The number of the item's last claim.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("number", number, 1)
        await self._request_change(
            lambda state: state.with_retry(number), lambda: self._not_dead_lettered_error(number)
        )

    async def drop(self, number: int) -> None:
        """Drop a dead-lettered item, so that it is never handled.

        Args:
            number: The number of the item's last claim.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("number", number, 1)
        await self._request_change(
            lambda state: state.with_dropped(number), lambda: self._not_dead_lettered_error(number)
        )

    def __aiter__(self) -> "WorkQueue":
        return self

    async def __anext__(self) -> WorkClaim:
        claim = await self.claim()
        if claim is None:
            raise StopAsyncIteration
        return claim

    async def aclose(self) -> None:
        """Return the claims of this process that are not done. Idempotent.

        Raises: nothing.
        """
        if self._end_error is None:
            close_scope = trio.CancelScope(
                shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S
            )
            with close_scope, suppress(DistributedLogError):
                await self._request_change(
                    self._with_own_claims_returned, lambda: self._claim_lost_error(0)
                )
        # Even if that failed, other workers can only get these claims once the key is deleted.
        self._end_with(AlreadyClosed(f'work queue "{self.name}" of log "{self.log}" is closed'))
        self._scope.cancel()
        await self._presence.release()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "WorkQueue":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()

    async def store_hold(self) -> None:
        """Store that the floor holds retention back, if requested. Called before the queue is used."""
        if self._hold:
            await self._request_change(lambda state: state, lambda: self._claim_lost_error(0))

    # --- for its claims ---------------------------------------------------------------------------

    async def finish(self, number: int, change: Change) -> None:
        """Write the outcome of a claim."""
        try:
            await self._request_change(change, lambda: self._claim_lost_error(number))
        except (ClaimLost, OutcomeUnknown):
            self._active_claims.pop(number, None)
            raise
        self._active_claims.pop(number, None)

    def return_undelivered(self, number: int) -> None:
        """Keep an undelivered claim for the next request of this process, or return it after a while."""
        if self._active_claims.pop(number, None) is not None:
            self._unassigned_claims[number] = trio.current_time() + POLL_INTERVAL_S
            self._wake.set()

    async def return_to_queue(self, number: int, delay_s: float) -> None:
        """Return a claim after a delay."""
        if delay_s == 0:
            return await self.finish(number, lambda state: self._with_claim_returned(state, number))
        self.extend(number)
        del self._active_claims[number]
        self._delayed_returns[number] = trio.current_time() + delay_s
        self._wake.set()
        await trio.lowlevel.checkpoint()

    def extend(self, number: int) -> None:
        """Restart the time limit of a claim.

        Raises:
            ClaimLost: The claim is not active here.
        """
        self._check_open()
        if number not in self._active_claims:
            raise self._claim_lost_error(number)
        self._active_claims[number] = trio.current_time() + self._claim_s

    async def open_item(self, item: WorkItem, rest: bool) -> RangeReader:
        """Open a reader of an item, as the ranges of its segments."""
        self._check_open()
        context, state_watch = self._context, self._state_watch
        await state_watch.load()
        first, end = item.first, item.end
        if end > self._readable_before:
            # Another process created the item. A value that was written by hand proves nothing (H141).
            snapshot = await self._load_snapshot(first.segment, 1)
            if end > self._readable_before:
                raise CorruptData(
                    f'work queue "{self.name}" of log "{self.log}": an item ends at {end}, but the log is '
                    f"readable only up to {snapshot.end_dlsn}"
                )
        records = await segments_page(
            self._metadata, state_watch.state, first.segment, end.segment - first.segment + 1
        )
        await (
            state_watch.load()
        )  # after the records, so that missing ones are known to be truncated
        if rest:
            first = max(first, min(state_watch.state.earliest, end))
        else:
            state_watch.check_position(*first)
        ranges = ranges_between(
            self.log,
            incarnation_text(self._log_id),
            [_limited_to(record, end) for record in records],
            first,
            end,
        )
        return await open_ranges(context, self.log, self._log_id, ranges)

    # --- the coordinator --------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle requests until closed. Runs in a task of the namespace."""
        what = f'work queue "{self.name}" of log "{self.log}"'
        try:
            with self._scope, error_boundary(what, self._end_with):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._state_watch.run)
                    while self._end_error is None:
                        await self._run_once()
                    nursery.cancel_scope.cancel()
        finally:
            self._end_with(AlreadyClosed(f"{what}: the namespace was closed"))

    async def _run_once(self) -> None:
        now = trio.current_time()
        expired = [
            number
            for claims in (self._active_claims, self._delayed_returns)
            for number, deadline in claims.items()
            if deadline <= now
        ]
        for number in expired:
            self._active_claims.pop(number, None)
            self._delayed_returns.pop(number, None)
            self._pending_changes.append(self._return_expired(number))
        unassigned = [
            number for number, deadline in self._unassigned_claims.items() if deadline <= now
        ]
        for number in unassigned:
            del self._unassigned_claims[number]
            self._pending_changes.append(self._undo_claim(number))
        changes, self._pending_changes = self._pending_changes, []
        if changes or self._claim_requests or self._has_unknown_claims:
            try:
                await self._apply_changes(changes)
            except DistributedLogError as error:
                for pending in changes:
                    pending.error = error
                    pending.completed.set()
                self._fail_claim_requests(error)
                # No call requests these again.
                again_at = trio.current_time() + POLL_INTERVAL_S
                self._delayed_returns.update(dict.fromkeys(expired, again_at))
                self._unassigned_claims.update(dict.fromkeys(unassigned, again_at))
                self._has_unknown_claims = not isinstance(error, LogNotFound)
            except BaseException:
                self._pending_changes[:0] = changes  # `_end_with` answers them
                raise
        if not self._pending_changes:
            await self._wait_for_work()

    async def _apply_changes(self, changes: list[_PendingChange]) -> None:
        """Combine all requests into one change of the state, write it, and answer the requests."""
        cached = None if self._claim_requests or self._has_unknown_claims else self._cached_state
        refused: list[_PendingChange] = []
        requests: list[_ClaimRequest] = []
        granted: list[tuple[_ClaimRequest, WorkItem]] = []
        uncertain_state: WorkState | None = None  # written with an unknown outcome
        while True:
            try:
                state, revision = cached or await self._read()
            except DistributedLogError as error:
                if uncertain_state is None:
                    raise
                raise OutcomeUnknown(f"{self!r}: {error}") from error
            if state == uncertain_state:
                break
            granted, dead_workers = [], frozenset[int]()
            requests = self._claim_requests.copy()  # later requests are left to the next call
            changed, refused = _change_state(state, changes)
            if requests:
                try:
                    changed, granted, dead_workers = await self._grant_claims(changed, requests)
                except (
                    DistributedLogError
                ) as error:  # fails only the claim requests, not the finished claims
                    self._fail_claim_requests(error)
            if changed == state and not self._hold_unwritten:
                break
            changed, hold_ops = await self._with_retention_hold(
                replace(changed, moved_ms=self._context.clock_ms())
            )
            absent = [
                Compare.version(worker_key(self._log_id, self.name, one), 0) for one in dead_workers
            ]
            update = Transaction(
                (Compare.mod_revision(self._key, revision), *absent),
                (Put(self._key, changed.encode()),),
            )
            try:
                reply = await self._metadata.transact(update + hold_ops)
            except OutcomeUnknown:
                uncertain_state, cached = changed, None
                continue
            if reply.succeeded:
                state, revision = changed, reply.revision
                self._hold_unwritten = False
                break
            cached = self._decode_state(reply.current[0])
        self._cached_state, self._has_unknown_claims = (state, revision), False
        is_uncertain = uncertain_state is not None and state != uncertain_state
        _complete_changes(changes, refused, is_uncertain=is_uncertain)
        self._deliver_claims(granted)
        self._record_unassigned(state)
        self._answer_unserved(requests, state)

    def _deliver_claims(self, granted: "list[tuple[_ClaimRequest, WorkItem]]") -> None:
        """Answer the requests that have got an item."""
        for request, item in granted:
            if request in self._claim_requests:  # otherwise it was cancelled
                self._active_claims[item.number] = trio.current_time() + self._claim_s
                self._unassigned_claims.pop(item.number, None)
                request.item = item
                self._claim_requests.remove(request)
                request.answered.set()

    def _answer_unserved(self, requests: "list[_ClaimRequest]", state: WorkState) -> None:
        """Answer the other requests if all is handled or they have timed out."""
        handled = (
            self._all_claimed
            and not state.items
            and len(state.dead_lettered) == len(state.set_aside_items)
        )
        for request in requests:
            timed_out = request.deadline <= trio.current_time()
            if request in self._claim_requests and (handled or timed_out):
                self._claim_requests.remove(request)
                request.answered.set()

    def _record_unassigned(self, state: WorkState) -> None:
        """Record claims that no task here has, because an answer was lost or a task was cancelled."""
        own_claims = {item.number for item in state.claims if item.worker == self._worker_id}
        self._unassigned_claims = {
            number: deadline
            for number, deadline in self._unassigned_claims.items()
            if number in own_claims
        }
        deadline = trio.current_time() + POLL_INTERVAL_S
        for number in own_claims - self._active_claims.keys() - self._delayed_returns.keys():
            self._unassigned_claims.setdefault(number, deadline)

    async def _grant_claims(
        self, state: WorkState, requests: list[_ClaimRequest]
    ) -> tuple[WorkState, list[tuple[_ClaimRequest, WorkItem]], frozenset[int]]:
        """Claim available items for the requests.

        Returns:
            The changed state, the items by request, and the dead workers.
        """
        other_workers = {item.worker for item in state.claims} - {self._worker_id}
        dead_workers = frozenset(
            other_workers - await self._live_workers() if other_workers else ()
        )
        state = state.without_workers(dead_workers, tries_max=self._tries_max)
        # Claims whose answer was lost, or whose task was cancelled.
        unassigned = [
            item
            for item in state.claims
            if item.worker == self._worker_id
            and item.number not in {*self._active_claims, *self._delayed_returns}
        ]
        granted: list[tuple[_ClaimRequest, WorkItem]] = []
        self._nothing_available = False
        for request in requests:
            if unassigned:
                granted.append((request, unassigned.pop()))
                continue
            claimed = None
            waiting_item = state.next_waiting
            if waiting_item is not None:
                claimed = state.with_claim(waiting_item, self._worker_id)
            elif (end := await self._next_end(state.next_unclaimed, request.bytes_max)) is not None:
                longer = state.with_item_to(end)
                claimed = longer.with_claim(longer.items[-1], self._worker_id)
            else:
                self._nothing_available = True
            if claimed is None:
                break
            state, claimed_item = claimed
            granted.append((request, claimed_item))
        return state, granted, dead_workers

    async def _live_workers(self) -> set[int]:
        prefix = workers_prefix(self._log_id, self.name)
        workers: set[int] = set()
        async for item in Scan(self._metadata, prefix):
            with suppress(ValueError):  # a key of a queue whose name starts with this one's
                workers.add(int(item.key[len(prefix) :], 16))
        return workers

    async def _next_end(self, first_unclaimed: DLSN, bytes_max: int) -> DLSN | None:
        """Return the end of a new item that starts at ``first_unclaimed``, exclusive.

        None if nothing is readable there. Sets `_all_claimed` if the log is also sealed, so that waiting
        callers can return.
        """
        earliest = self._state_watch.state.earliest
        if first_unclaimed < earliest:
            return earliest  # a truncated range is a separate item, which is reported once
        end = next_item_end(self._segments, first_unclaimed, bytes_max)
        page: int | None = first_unclaimed.segment
        while end is None and page is not None:
            await self._state_watch.load()  # `_load_snapshot` requires the newest state
            snapshot = await self._load_snapshot(page, SEGMENTS_PLANNED)
            self._segments, page = snapshot.segments, snapshot.next_segment
            if first_unclaimed < snapshot.first_dlsn:
                return snapshot.first_dlsn
            end = next_item_end(self._segments, first_unclaimed, bytes_max)
            self._all_claimed = end is None and page is None and snapshot.sealed
        return end

    async def _load_snapshot(self, first: int, limit: int) -> LogSnapshot:
        """Read the log's end and some of its segments. The state must have just been loaded."""
        snapshot = await take_snapshot(
            self._metadata, self._context.ledgers, self._state_watch, first=first, limit=limit
        )
        self._readable_before = max(self._readable_before, snapshot.end_dlsn)
        return snapshot

    async def _with_retention_hold(self, state: WorkState) -> tuple[WorkState, Transaction]:
        """Return the state with its hold on retention, and the operations that let retention see it."""
        if not self._hold:
            return replace(state, hold_renewed_ms=NO_HOLD), Transaction()
        now_ms = await clock_now(self._metadata)
        hold_renewed_ms, hold_ops = await prepare_hold(
            self._metadata, self._log_id, state.hold_renewed_ms, now_ms
        )
        return replace(state, hold_renewed_ms=hold_renewed_ms), hold_ops

    async def _wait_for_work(self) -> None:
        """Wait until there is a request, an item may be available, or a claim expires."""
        now = trio.current_time()
        due = min(
            (
                *self._active_claims.values(),
                *self._delayed_returns.values(),
                *self._unassigned_claims.values(),
                *(request.deadline for request in self._claim_requests),
            ),
            default=float("inf"),
        )
        if self._claim_requests or self._has_unknown_claims:
            due = min(due, now + POLL_INTERVAL_S)
        with trio.move_on_at(due):
            if self._claim_requests and self._nothing_available:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._wait_for_new_records, nursery.cancel_scope)
                    await self._wake.wait()
                    nursery.cancel_scope.cancel()
            else:
                await self._wake.wait()
        if self._wake.is_set():
            self._wake = trio.Event()

    async def _wait_for_new_records(self, scope: trio.CancelScope) -> None:
        """Wait until records may exist after the last item, then cancel ``scope``."""
        await trio.sleep(IDLE_DELAY_S)
        state = self._state_watch.state
        next_unclaimed = (
            DLSN.INITIAL if self._cached_state is None else self._cached_state[0].next_unclaimed
        )
        if not state.in_progress:
            last = state.last_segment
            with suppress(DistributedLogError):
                await self._state_watch.wait_until(
                    lambda now: now.last_segment > last or now.sealed
                )
            if state.sealed:
                await trio.sleep(POLL_INTERVAL_S)  # sealed, but not all is handled
        else:
            with suppress(DistributedLogError):
                record = await self._state_watch.segment(state.first_open_segment)
                after = next_unclaimed.entry - 1 if record.segment == next_unclaimed.segment else -1
                ledger = await open_segment(self._context.ledgers, record)
                try:
                    await ledger.wait(after, wait_s=POLL_INTERVAL_S)
                finally:
                    ledger.close()
        scope.cancel()

    # --- requests ---------------------------------------------------------------------------------

    async def _request_change(
        self, change: Change, refused: Callable[[], DistributedLogError]
    ) -> None:
        self._check_open()
        pending = _PendingChange(change, refused)
        self._pending_changes.append(pending)
        self._wake.set()
        await pending.completed.wait()
        if pending.error is not None:
            raise pending.error.again()

    async def _read(self) -> tuple[WorkState, int]:
        return self._decode_state(await self._metadata.get(self._key))

    def _decode_state(self, stored: KeyValue | None) -> tuple[WorkState, int]:
        if stored is None:
            raise LogNotFound(f'log "{self.log}" or its work queue "{self.name}" was deleted')
        return WorkState.decode(stored.value), stored.mod_revision

    def _with_claim_returned(self, state: WorkState, number: int) -> WorkState | None:
        return state.with_claim_returned(number, tries_max=self._tries_max)

    def _return_expired(self, number: int) -> _PendingChange:
        """Return the change that returns an expired claim. No call waits for it."""
        return _PendingChange(
            lambda state: self._with_claim_returned(state, number),
            lambda: self._claim_lost_error(number),
        )

    def _undo_claim(self, number: int) -> _PendingChange:
        """Return the change that undoes an undelivered claim. No call waits for it."""
        return _PendingChange(
            lambda state: state.with_claim_undone(number), lambda: self._claim_lost_error(number)
        )

    def _with_own_claims_returned(self, state: WorkState) -> WorkState:
        return state.without_workers({self._worker_id}, tries_max=self._tries_max)

    def _claim_lost_error(self, number: int) -> ClaimLost:
        return ClaimLost(
            f'work queue "{self.name}" of log "{self.log}": claim {number} is lost. It was'
            " done, returned or too slow, or this process was considered dead."
        )

    def _not_dead_lettered_error(self, number: int) -> InvalidRequest:
        return InvalidRequest(
            f'work queue "{self.name}" of log "{self.log}" has no dead-lettered item {number}'
        )

    # --- the end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._end_error is not None:
            raise self._end_error.again()

    def _fail_claim_requests(self, error: DistributedLogError) -> None:
        for request in self._claim_requests:
            request.error = error
            request.answered.set()
        self._claim_requests.clear()

    def _end_with(self, error: DistributedLogError) -> None:
        if self._end_error is None:
            self._end_error = error
        for pending in self._pending_changes:
            pending.error = self._end_error
            pending.completed.set()
        self._pending_changes.clear()
        self._fail_claim_requests(self._end_error)
        self._wake.set()


async def open_work_queue(
    context: LogContext,
    state_watch: StateWatch,
    name: str,
    *,
    at: Literal["earliest", "latest"],
    hold: bool,
    tries_max: int,
    claim_s: float,
) -> WorkQueue:
    """Open a work queue, as `Log.work_queue`."""
    metadata, state = context.metadata, state_watch.state
    key = work_key(state.log_id, check_position_name(name))
    if await metadata.get(key) is None:
        start = state.earliest
        if at == "latest":
            snapshot = await take_snapshot(metadata, context.ledgers, state_watch, limit=1)
            start = snapshot.end_dlsn
        reply = await metadata.transact(
            Transaction(
                (Compare.version(key, 0), Compare.exists(state_key(state.log_id))),
                (Put(key, WorkState(start, context.clock_ms()).encode()),),
            )
        )
        if not reply.succeeded and reply.current[1] is None:
            raise LogNotFound(f'log "{state.name}" was deleted')
    worker_id = 1 + context.random.getrandbits(WORKER_BITS)
    presence = await put_ephemeral_key(
        context.lease_sessions,
        int(context.options.lock_lease_s * 1000),
        worker_key(state.log_id, name, worker_id),
        LockRecord.create(
            context.owner, context.random.getrandbits(64), context.clock_ms()
        ).encode(),
        Compare.exists(key),
    )
    queue = WorkQueue(
        context,
        state_watch,
        name,
        worker_id,
        presence,
        hold=hold,
        tries_max=tries_max,
        claim_s=claim_s,
    )
    try:
        context.start(queue.run)
        await queue.store_hold()
    except BaseException:
        await queue.aclose()
        raise
    return queue


async def list_work_queues(metadata: Metadata, log_id: int) -> dict[str, WorkState]:
    """Return the work queues of a log by name.

    Raises:
        CorruptData, UnsupportedFormat: A stored state cannot be decoded.
    """
    prefix = work_key(log_id, "")
    return {
        item.key[len(prefix) :].decode(): WorkState.decode(item.value)
        async for item in Scan(metadata, prefix)
    }


async def delete_work_queue(metadata: Metadata, log_id: int, name: str) -> bool:
    """Delete a work queue. Its workers receive `LogNotFound`.

    Returns:
        Whether it existed.
    """
    key = work_key(log_id, check_position_name(name))
    existing = await metadata.get(key)
    await metadata.transact(Transaction((), (Delete(key),)))
    return existing is not None


def _change_state(
    state: WorkState, changes: list[_PendingChange]
) -> tuple[WorkState, list[_PendingChange]]:
    """Return the state after these changes, and the changes that it refuses."""
    refused: list[_PendingChange] = []
    for pending in changes:
        next_state = pending.change(state)
        if next_state is None:
            refused.append(pending)
        else:
            state = next_state
    return state, refused


def _complete_changes(
    changes: list[_PendingChange], refused: list[_PendingChange], *, is_uncertain: bool
) -> None:
    """Set the errors of refused changes, and wake the callers of all changes."""
    for pending in refused:
        pending.error = pending.refusal_error()
        if is_uncertain:
            pending.error = OutcomeUnknown(
                f"{pending.error}, or it was done and the answer was lost"
            )
    for pending in changes:
        pending.completed.set()


def _limited_to(record: SegmentRecord, end: DLSN) -> SegmentRecord:
    """Return a segment's record with the planned end, because the record of an open segment has none."""
    if record.closed or record.segment != end.segment:
        return record
    return replace(record, last_entry=end.entry - 1)
