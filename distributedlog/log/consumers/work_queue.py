"""WorkQueue: many workers handle one log, each stretch of it at least once.

All workers of a process go through one coordinator, whose task makes what they ask for one compare-and-set
of the queue's state (`work_state.py`): what is done and what is claimed next, of all of them. A process shows
that it lives by a key under its lease; what one that is gone had claimed is claimed anew in a transaction
that finds its key absent. A stretch is a plan, as `LogSnapshot` gives one: what it holds could be read when
it was cut, and is read as ranges, by entry ids (H156).
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
from ..model.segment_expiry import UNHELD
from ..model.segment_ranges import LogSnapshot, SegmentInfo, ranges_between
from ..model.segment_record import SegmentRecord
from ..read.log_snapshot import take_snapshot
from ..read.position_search import segments_page
from ..read.range_reader import RangeReader, open_ranges
from ..read.segment_reader import open_segment
from ..read.state_watch import StateWatch
from ..services.ephemeral_key import EphemeralKey, show
from ..services.lease_session import GOODBYE_S
from ..services.log_context import LogContext
from ..services.named_positions import check_position_name, clock_now, hold_share
from .work_state import WorkItem, WorkState, end_of_next

STRETCH_BYTES = 8 * 1024 * 1024
TRIES_MAX = 5
CLAIM_S = 600.0
LOOK_S = 1.0
"""How often those who wait look whether others have given something back, or died."""
REST_S = 0.05
"""Between two looks that found nothing."""
SEGMENTS_PLANNED = 64
"""Looked at in one go, to cut stretches from."""
WORKER_BITS = 62

Change = Callable[[WorkState], WorkState | None]
"""Gives the state after it; None: refused."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A change of the state, and who waits for it."""

    change: Change
    refused: Callable[[], DistributedLogError]
    told: trio.Event = field(default_factory=trio.Event)
    error: DistributedLogError | None = None


@dataclass(slots=True, eq=False)
class _Wanted:
    """Somebody who waits for a stretch."""

    bytes_max: int
    until: float
    told: trio.Event = field(default_factory=trio.Event)
    got: WorkItem | None = None
    error: DistributedLogError | None = None


class WorkClaim:
    """A stretch of the log that is this process's to handle. Made by `WorkQueue.claim`.

    ``async with`` says it is done at the end, or gives it back where an exception leaves the block.
    """

    def __init__(self, queue: "WorkQueue", stretch: WorkItem) -> None:
        self.number = stretch.number
        """Of this claim: no other one of the queue ever has it."""
        self.first = stretch.first
        self.end = stretch.end
        """It goes up to here, and without."""
        self.tries = stretch.tries
        """How often it was claimed, this time included."""
        self._queue = queue
        self._stretch = stretch
        self._settled = False

    def __repr__(self) -> str:
        return f"WorkClaim({self.number}, {self.first} to {self.end}, try {self.tries})"

    def open_reader(self, *, rest: bool = False) -> Opening[RangeReader]:
        """What it holds, entry by entry as columns; ``async with`` or ``await`` it. May hold no record.

        Raises `LogTruncated` where some of it is not left: `done` accepts that. With ``rest`` what is left.
        `CorruptData` where the queue's stored value names places that the log does not have.

        Raises: LogNotFound, LogTruncated, CorruptData, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        return Opening(lambda: self._queue.open_stretch(self._stretch, rest))

    async def done(self) -> None:
        """It was handled, for good. Raises `ClaimLost` where it is another one's by now, or was given back.

        After `OutcomeUnknown` it is done, or handled again by somebody.

        Raises: ClaimLost, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await self._settle(self._queue.finish(self.number, lambda state: state.done(self.number)))

    async def give_back(self, delay_s: float = 0.0) -> None:
        """It was not handled: somebody else may, ``delay_s`` from now. Raises `ClaimLost` as `done`.

        Until then it stays this process's claim; it goes back at once when the process ends.

        Raises: ClaimLost, LogNotFound, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_seconds("delay_s", delay_s)
        await self._settle(self._queue.put_back(self.number, delay_s))

    async def _settle(self, call: Awaitable[None]) -> None:
        try:
            await call
        except (ClaimLost, OutcomeUnknown):
            self._settled = True
            raise
        self._settled = True

    async def extend(self) -> None:
        """It takes longer: ``claim_s`` counts anew from now. Raises `ClaimLost` where that was over.

        Raises: ClaimLost, AlreadyClosed.
        """
        self._queue.extend(self.number)
        await trio.lowlevel.checkpoint()

    def ungiven(self) -> None:
        """For a face, whose caller did not get it."""
        self._queue.ungiven(self.number)

    async def __aenter__(self) -> "WorkClaim":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.leave(kind is not None)

    async def leave(self, failed: bool) -> None:
        """The end of a block: it is done, or given back, unless that was said."""
        if self._settled:
            await trio.lowlevel.checkpoint()
        elif not failed:
            await self.done()
        else:
            goodbye = trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S)
            with goodbye, suppress(DistributedLogError):
                await self.give_back()


class WorkQueue:
    """A log as many workers handle it, this process's among them. Made by `Log.work_queue`.

    Any number of tasks may use it at once: what they ask for goes together.
    """

    def __init__(
        self,
        context: LogContext,
        follower: StateWatch,
        name: str,
        worker: int,
        presence: EphemeralKey,
        *,
        hold: bool,
        tries_max: int,
        claim_s: float,
    ) -> None:
        self.name = name
        self.log = follower.state.name
        self._context = context
        self._metadata: Metadata = context.metadata
        self._follower = follower
        self._log_id = follower.state.log_id
        self._key = work_key(self._log_id, name)
        self._worker = worker
        self._presence = presence
        self._hold = hold
        self._tries_max = tries_max
        self._claim_s = claim_s
        self._asked: list[_Asked] = []
        self._wanted: list[_Wanted] = []
        self._mine: dict[int, float] = {}
        """Claims that somebody here handles, and when they are given back."""
        self._later: dict[int, float] = {}
        """Claims that nobody handles, and when they are given back."""
        self._spare: dict[int, float] = {}
        """Claims that nobody was given: the next one here who asks has them, or they go back, and when."""
        self._unsure = False
        """May the state have claims that are not known here? It is looked at."""
        self._known: tuple[WorkState, int] | None = None
        """The state and the revision that wrote it, as last seen. (A version begins anew with a queue.)"""
        self._segments: tuple[SegmentInfo, ...] = ()
        self._readable_to = DLSN.INITIAL
        """Up to here the log could be read, when its bookies were asked last by this process."""
        self._unheld = hold
        """Is it still to be written that the floor holds?"""
        self._starved = False
        """Was nothing there to give, when somebody wanted something last?"""
        self._at_end = False
        """Is the log sealed, and was all of it given out?"""
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._over: DistributedLogError | None = None

    def __repr__(self) -> str:
        over = "" if self._over is None else f", {type(self._over).__name__}: {self._over}"
        return f'WorkQueue("{self.name}" of log "{self.log}", {len(self._mine)} claims{over})'

    # --- for the caller ---------------------------------------------------------------------------

    async def claim(
        self, *, bytes_max: int = STRETCH_BYTES, wait_s: float | None = None
    ) -> WorkClaim | None:
        """The next stretch, of about ``bytes_max``; None when ``wait_s`` is over (None: no limit; 0: what is
        here), or when a sealed log was handled to its end.

        What was given back comes first, then what a process that is gone had claimed. At most 128 claims of
        a queue are open at a time: more wait. A claim that is not done within ``claim_s`` is given back.

        Raises: LogNotFound, InvalidRequest, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        check_whole("bytes_max", bytes_max, 1)
        check_wait(wait_s)
        self._check_open()
        until = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        wanted = _Wanted(bytes_max, until)
        self._wanted.append(wanted)
        self._wake.set()
        try:
            await wanted.told.wait()
        except BaseException:
            if wanted in self._wanted:
                self._wanted.remove(wanted)
            if wanted.got is not None:
                self.ungiven(wanted.got.number)
            raise
        if wanted.error is not None:
            raise wanted.error.again()
        return None if wanted.got is None else WorkClaim(self, wanted.got)

    async def state(self) -> WorkState:
        """How far the queue is handled: its floor, its claims, what is parked.

        Raises: LogNotFound, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return (await self._read())[0]

    async def retry(self, number: int) -> None:
        """What was parked under this number is to be tried again.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("number", number, 1)
        await self._ask(lambda state: state.retried(number), lambda: self._not_parked(number))

    async def drop(self, number: int) -> None:
        """What was parked under this number is given up.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("number", number, 1)
        await self._ask(lambda state: state.dropped(number), lambda: self._not_parked(number))

    def __aiter__(self) -> "WorkQueue":
        return self

    async def __anext__(self) -> WorkClaim:
        claim = await self.claim()
        if claim is None:
            raise StopAsyncIteration
        return claim

    async def aclose(self) -> None:
        """Give back what is claimed here and not done. Idempotent.

        Raises: nothing.
        """
        if self._over is None:
            goodbye = trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S)
            with goodbye, suppress(DistributedLogError):
                await self._ask(self._all_back, lambda: self._lost(0))
        # However that went: while its key is there nobody else is given what it had.
        self._end(AlreadyClosed(f'work queue "{self.name}" of log "{self.log}" is closed'))
        self._scope.cancel()
        await self._presence.give_back()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "WorkQueue":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()

    async def begin(self) -> None:
        """Before it is used: its floor holds retention up from here on, if it is to."""
        if self._hold:
            await self._ask(lambda state: state, lambda: self._lost(0))

    # --- for its claims ---------------------------------------------------------------------------

    async def finish(self, number: int, change: Change) -> None:
        """Write what became of a claim."""
        try:
            await self._ask(change, lambda: self._lost(number))
        except (ClaimLost, OutcomeUnknown):
            self._mine.pop(number, None)
            raise
        self._mine.pop(number, None)

    def ungiven(self, number: int) -> None:
        """Nobody got it, and so nobody handles it: the next one here who asks does, or somebody else."""
        if self._mine.pop(number, None) is not None:
            self._spare[number] = trio.current_time() + LOOK_S
            self._wake.set()

    async def put_back(self, number: int, delay_s: float) -> None:
        """Give a claim back, later."""
        if delay_s == 0:
            return await self.finish(number, lambda state: self._back(state, number))
        self.extend(number)
        del self._mine[number]
        self._later[number] = trio.current_time() + delay_s
        self._wake.set()
        await trio.lowlevel.checkpoint()

    def extend(self, number: int) -> None:
        """A claim's time counts anew. Raises `ClaimLost`, by what is known here."""
        self._check_open()
        if number not in self._mine:
            raise self._lost(number)
        self._mine[number] = trio.current_time() + self._claim_s

    async def open_stretch(self, stretch: WorkItem, rest: bool) -> RangeReader:
        """Read a stretch as the ranges of its segments."""
        self._check_open()
        context, follower = self._context, self._follower
        await follower.load()
        first, end = stretch.first, stretch.end
        if end > self._readable_to:
            # Cut by another process. A value that somebody wrote by hand proves nothing (H141).
            snapshot = await self._look(first.segment, 1)
            if end > self._readable_to:
                raise CorruptData(
                    f'work queue "{self.name}" of log "{self.log}": a stretch goes up to {end}, the log can '
                    f"be read up to {snapshot.end_dlsn}"
                )
        records = await segments_page(
            self._metadata, follower.state, first.segment, end.segment - first.segment + 1
        )
        await follower.load()  # after: what is missing among them was truncated by now
        if rest:
            first = max(first, min(follower.state.earliest, end))
        else:
            follower.check_position(*first)
        ranges = ranges_between(
            self.log,
            incarnation_text(self._log_id),
            [_up_to(one, end) for one in records],
            first,
            end,
        )
        return await open_ranges(context, self.log, self._log_id, ranges)

    # --- the coordinator --------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer what is asked until closed. A task of the namespace."""
        what = f'work queue "{self.name}" of log "{self.log}"'
        try:
            with self._scope, error_boundary(what, self._end):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follower.run)
                    while self._over is None:
                        await self._work()
                    nursery.cancel_scope.cancel()
        finally:
            self._end(AlreadyClosed(f"{what}: the namespace was closed"))

    async def _work(self) -> None:
        now = trio.current_time()
        late = [
            number for of in (self._mine, self._later) for number, at in of.items() if at <= now
        ]
        for number in late:
            self._mine.pop(number, None)
            self._later.pop(number, None)
            self._asked.append(self._late(number))
        spare = [number for number, at in self._spare.items() if at <= now]
        for number in spare:
            del self._spare[number]
            self._asked.append(self._unclaimed(number))
        asked, self._asked = self._asked, []
        if asked or self._wanted or self._unsure:
            try:
                await self._answer(asked)
            except DistributedLogError as error:
                for one in asked:
                    one.error = error
                    one.told.set()
                self._give_nothing(error)
                # Nobody asks for these again.
                again_at = trio.current_time() + LOOK_S
                self._later.update(dict.fromkeys(late, again_at))
                self._spare.update(dict.fromkeys(spare, again_at))
                self._unsure = not isinstance(error, LogNotFound)
            except BaseException:
                self._asked[:0] = asked  # `_end` tells them
                raise
        if not self._asked:
            await self._rest()

    async def _answer(self, asked: list[_Asked]) -> None:
        """Make all that is asked one change, and tell those who asked."""
        known = None if self._wanted or self._unsure else self._known
        refused: list[_Asked] = []
        looked: list[_Wanted] = []
        granted: list[tuple[_Wanted, WorkItem]] = []
        put: WorkState | None = None  # of which nobody knows whether it was
        while True:
            try:
                state, revision = known or await self._read()
            except DistributedLogError as error:
                if put is None:
                    raise
                raise OutcomeUnknown(f"{self!r}: {error}") from error
            if state == put:
                break
            changed, refused, granted, gone = state, [], [], frozenset[int]()
            looked = self._wanted.copy()  # whoever comes during what follows was not looked for
            for one in asked:
                after = one.change(changed)
                if after is None:
                    refused.append(one)
                else:
                    changed = after
            if looked:
                try:
                    changed, granted, gone = await self._grant(changed, looked)
                except (
                    DistributedLogError
                ) as error:  # theirs who want something: what is done is done
                    self._give_nothing(error)
            if changed == state and not self._unheld:
                break
            changed, told = await self._held(replace(changed, moved_ms=self._context.wall_ms()))
            absent = [Compare.version(worker_key(self._log_id, self.name, one), 0) for one in gone]
            own = Transaction(
                (Compare.mod_revision(self._key, revision), *absent),
                (Put(self._key, changed.encode()),),
            )
            try:
                reply = await self._metadata.transact(own + told)
            except OutcomeUnknown:
                put, known = changed, None
                continue
            if reply.succeeded:
                state, revision = changed, reply.revision
                self._unheld = False
                break
            known = self._seen(reply.current[0])
        self._known, self._unsure = (state, revision), False
        for one in refused:
            one.error = one.refused()
            if put is not None and state != put:
                one.error = OutcomeUnknown(f"{one.error}; or it was done, and the answer was lost")
        for one in asked:
            one.told.set()
        self._hand_out(granted)
        self._note_spare(state)
        self._tell_in_vain(looked, state)

    def _hand_out(self, granted: "list[tuple[_Wanted, WorkItem]]") -> None:
        """Tell the callers that wait which stretch each has."""
        for wanted, stretch in granted:
            if wanted in self._wanted:  # else it gave up: the next one who asks has it
                self._mine[stretch.number] = trio.current_time() + self._claim_s
                self._spare.pop(stretch.number, None)
                wanted.got = stretch
                self._wanted.remove(wanted)
                wanted.told.set()

    def _tell_in_vain(self, looked: "list[_Wanted]", state: WorkState) -> None:
        """Tell those that got nothing, if all is handled or their time is over."""
        handled = self._at_end and not state.line and len(state.parked) == len(state.aside)
        for wanted in looked:
            late = wanted.until <= trio.current_time()
            if wanted in self._wanted and (handled or late):
                self._wanted.remove(wanted)
                wanted.told.set()

    def _note_spare(self, state: WorkState) -> None:
        """Claims that nobody here has: of answers that were lost, of tasks that gave up."""
        mine = {one.number for one in state.claims if one.worker == self._worker}
        self._spare = {number: at for number, at in self._spare.items() if number in mine}
        at = trio.current_time() + LOOK_S
        for number in mine - self._mine.keys() - self._later.keys():
            self._spare.setdefault(number, at)

    async def _grant(
        self, state: WorkState, looked: list[_Wanted]
    ) -> tuple[WorkState, list[tuple[_Wanted, WorkItem]], frozenset[int]]:
        """Give those who want something what there is: the state then, what each gets, who is gone."""
        others = {one.worker for one in state.claims} - {self._worker}
        gone = frozenset(others - await self._alive() if others else ())
        state = state.without_workers(gone, tries_max=self._tries_max)
        # Of answers that were lost, and of tasks that gave up.
        spare = [
            one
            for one in state.claims
            if one.worker == self._worker and one.number not in {*self._mine, *self._later}
        ]
        granted: list[tuple[_Wanted, WorkItem]] = []
        self._starved = False
        for wanted in looked:
            if spare:
                granted.append((wanted, spare.pop()))
                continue
            found = None
            stretch = state.waiting
            if stretch is not None:
                found = state.claimed(stretch, self._worker)
            elif (end := await self._next_end(state.cursor, wanted.bytes_max)) is not None:
                longer = state.extended(end)
                found = longer.claimed(longer.line[-1], self._worker)
            else:
                self._starved = True
            if found is None:
                break
            state, mine = found
            granted.append((wanted, mine))
        return state, granted, gone

    async def _alive(self) -> set[int]:
        """The workers whose keys are there."""
        prefix = workers_prefix(self._log_id, self.name)
        found: set[int] = set()
        async for item in Scan(self._metadata, prefix):
            with suppress(ValueError):  # of a queue whose name begins with this one's
                found.add(int(item.key[len(prefix) :], 16))
        return found

    async def _next_end(self, cursor: DLSN, bytes_max: int) -> DLSN | None:
        """Where a stretch ends that begins at the cursor; None: nothing is there yet."""
        first = self._follower.state.earliest
        if cursor < first:
            return first  # what was truncated is a stretch of its own, told once
        end = end_of_next(self._segments, cursor, bytes_max)
        page: int | None = cursor.segment
        while end is None and page is not None:
            await self._follower.load()
            snapshot = await self._look(page, SEGMENTS_PLANNED)
            self._segments, page = snapshot.segments, snapshot.next_segment
            if cursor < snapshot.first_dlsn:
                return snapshot.first_dlsn
            end = end_of_next(self._segments, cursor, bytes_max)
            self._at_end = end is None and page is None and snapshot.sealed
        return end

    async def _look(self, first: int, limit: int) -> LogSnapshot:
        """The log's end, and some of its segments. Its state has just been loaded."""
        snapshot = await take_snapshot(
            self._metadata, self._context.ledgers, self._follower, first=first, limit=limit
        )
        self._readable_to = max(self._readable_to, snapshot.end_dlsn)
        return snapshot

    async def _held(self, state: WorkState) -> tuple[WorkState, Transaction]:
        """The state as it holds retention, and what retention must see of it."""
        if not self._hold:
            return replace(state, held_ms=UNHELD), Transaction()
        now_ms = await clock_now(self._metadata)
        held_ms, told = await hold_share(self._metadata, self._log_id, state.held_ms, now_ms)
        return replace(state, held_ms=held_ms), told

    async def _rest(self) -> None:
        """Until somebody asks, or there may be something to give, or a claim is late."""
        now = trio.current_time()
        due = min(
            (
                *self._mine.values(),
                *self._later.values(),
                *self._spare.values(),
                *(one.until for one in self._wanted),
            ),
            default=float("inf"),
        )
        if self._wanted or self._unsure:
            due = min(due, now + LOOK_S)
        with trio.move_on_at(due):
            if self._wanted and self._starved:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._news, nursery.cancel_scope)
                    await self._wake.wait()
                    nursery.cancel_scope.cancel()
            else:
                await self._wake.wait()
        if self._wake.is_set():
            self._wake = trio.Event()

    async def _news(self, scope: trio.CancelScope) -> None:
        """Until something may have been written after the cursor; then nothing else is waited for."""
        await trio.sleep(REST_S)
        state = self._follower.state
        cursor = DLSN.INITIAL if self._known is None else self._known[0].cursor
        if not state.in_progress:
            last = state.last_segment
            with suppress(DistributedLogError):
                await self._follower.until(lambda now: now.last_segment > last or now.sealed)
            if state.sealed:
                await trio.sleep(LOOK_S)  # its end is here, and not all of it is handled
        else:
            with suppress(DistributedLogError):
                record = await self._follower.segment(state.open_from)
                after = cursor.entry - 1 if record.segment == cursor.segment else -1
                ledger = await open_segment(self._context.ledgers, record)
                try:
                    await ledger.wait(after, wait_s=LOOK_S)
                finally:
                    ledger.close()
        scope.cancel()

    # --- what is asked ----------------------------------------------------------------------------

    async def _ask(self, change: Change, refused: Callable[[], DistributedLogError]) -> None:
        self._check_open()
        one = _Asked(change, refused)
        self._asked.append(one)
        self._wake.set()
        await one.told.wait()
        if one.error is not None:
            raise one.error.again()

    async def _read(self) -> tuple[WorkState, int]:
        return self._seen(await self._metadata.get(self._key))

    def _seen(self, found: KeyValue | None) -> tuple[WorkState, int]:
        if found is None:
            raise LogNotFound(f'log "{self.log}" or its work queue "{self.name}" was deleted')
        return WorkState.decode(found.value), found.mod_revision

    def _back(self, state: WorkState, number: int) -> WorkState | None:
        return state.given_back(number, tries_max=self._tries_max)

    def _late(self, number: int) -> _Asked:
        """It is given back, and nobody waits for that."""
        return _Asked(lambda state: self._back(state, number), lambda: self._lost(number))

    def _unclaimed(self, number: int) -> _Asked:
        """As `_late`, of what nobody was given."""
        return _Asked(lambda state: state.unclaimed(number), lambda: self._lost(number))

    def _all_back(self, state: WorkState) -> WorkState:
        return state.without_workers({self._worker}, tries_max=self._tries_max)

    def _lost(self, number: int) -> ClaimLost:
        return ClaimLost(
            f'work queue "{self.name}" of log "{self.log}": claim {number} is not ours any more: it was'
            " done or given back, or took too long, or we were taken for dead"
        )

    def _not_parked(self, number: int) -> InvalidRequest:
        return InvalidRequest(
            f'work queue "{self.name}" of log "{self.log}" has parked nothing under {number}'
        )

    # --- the end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._over is not None:
            raise self._over.again()

    def _give_nothing(self, error: DistributedLogError) -> None:
        for wanted in self._wanted:
            wanted.error = error
            wanted.told.set()
        self._wanted.clear()

    def _end(self, error: DistributedLogError) -> None:
        if self._over is None:
            self._over = error
        for one in self._asked:
            one.error = self._over
            one.told.set()
        self._asked.clear()
        self._give_nothing(self._over)
        self._wake.set()


async def open_work_queue(
    context: LogContext,
    follower: StateWatch,
    name: str,
    *,
    at: Literal["earliest", "latest"],
    hold: bool,
    tries_max: int,
    claim_s: float,
) -> WorkQueue:
    """See `Log.work_queue`."""
    metadata, state = context.metadata, follower.state
    key = work_key(state.log_id, check_position_name(name))
    if await metadata.get(key) is None:
        floor = state.earliest
        if at == "latest":
            end = await take_snapshot(metadata, context.ledgers, follower, limit=1)
            floor = end.end_dlsn
        made = await metadata.transact(
            Transaction(
                (Compare.version(key, 0), Compare.exists(state_key(state.log_id))),
                (Put(key, WorkState(floor, context.wall_ms()).encode()),),
            )
        )
        if not made.succeeded and made.current[1] is None:
            raise LogNotFound(f'log "{state.name}" was deleted')
    worker = 1 + context.random.getrandbits(WORKER_BITS)
    presence = await show(
        context.locks,
        int(context.options.lock_lease_s * 1000),
        worker_key(state.log_id, name, worker),
        LockRecord.drawn(context.owner, context.random.getrandbits(64), context.wall_ms()).encode(),
        Compare.exists(key),
    )
    queue = WorkQueue(
        context,
        follower,
        name,
        worker,
        presence,
        hold=hold,
        tries_max=tries_max,
        claim_s=claim_s,
    )
    try:
        context.start(queue.run)
        await queue.begin()
    except BaseException:
        await queue.aclose()
        raise
    return queue


async def list_work_queues(metadata: Metadata, log_id: int) -> dict[str, WorkState]:
    """The work queues of a log, by name. Raises `CorruptData`, `UnsupportedFormat`."""
    prefix = work_key(log_id, "")
    return {
        item.key[len(prefix) :].decode(): WorkState.decode(item.value)
        async for item in Scan(metadata, prefix)
    }


async def delete_work_queue(metadata: Metadata, log_id: int, name: str) -> bool:
    """Forget a work queue; was there one? Its workers are told `LogNotFound`."""
    key = work_key(log_id, check_position_name(name))
    found = await metadata.get(key)
    await metadata.transact(Transaction((), (Delete(key),)))
    return found is not None


def _up_to(record: SegmentRecord, end: DLSN) -> SegmentRecord:
    """A segment as it was planned: of one in progress its record does not say how far it goes."""
    if record.closed or record.segment != end.segment:
        return record
    return replace(record, last_entry=end.entry - 1)
