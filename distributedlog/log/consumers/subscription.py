"""Subscription: one subscriber that reads a log from a named position on, and commits its progress.

The lock is only advisory, as a writer's is: a key under the process's lease that rejects a second subscriber
early and has the name of the first. Safety comes from the *generation* in the value of the position. Each new
subscriber increases it, and each commit compares it (`position_commits.py`). So a subscriber that was paused
and replaced cannot move the position (H155). Nothing is committed automatically: records that were read but
not committed are read again.
"""

from types import TracebackType
from typing import Literal

import trio

from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    LeaseExpired,
    LogNotFound,
    LogRecreated,
    OwnershipAcquireFailed,
)
from ..format.dlsn import DLSN
from ..model.lock_record import LockRecord
from ..model.log_keys import incarnation_text, position_key, state_key, subscriber_key
from ..model.position import Position
from ..model.segment_expiry import NO_HOLD
from ..read.entry_queue import EntryQueue
from ..read.fetcher import open_fetcher
from ..read.log_reader import LogReader
from ..read.log_snapshot import take_snapshot
from ..read.state_watch import open_state_watch
from ..services.ephemeral_key import EphemeralKey
from ..services.lease_session import RELEASE_TIMEOUT_S, LeaseSession, PendingDelete
from ..services.log_context import LogContext
from ..services.named_positions import (
    UNPROVEN,
    PositionRecord,
    check_position_name,
    clock_now,
    prepare_hold,
)
from ..services.position_commits import PositionCommits, SubscriberPosition
from ..takeover.log_lock import WAIT_BEYOND_LEASE_S, wait_until_changed


class Subscription:
    """A log as one subscriber reads it. `Log.subscribe` creates it. Only one task may use it at a time.

    Leaving its ``async with`` writes the commits. After an exception it does so for at most 2 s.
    """

    def __init__(
        self,
        name: str,
        commits: PositionCommits,
        committed: SubscriberPosition,
        presence: EphemeralKey,
        queue: EntryQueue,
    ) -> None:
        self.name = name
        self.reader = LogReader(queue)
        """Starts at the named position. It ends with `SubscriptionLost` when another subscriber has taken
        over the position."""
        self._position_commits = commits
        self._committed = committed
        self._lock_key_holder = presence
        self._closed = False
        committed.set_on_lost(queue.fail)

    def __repr__(self) -> str:
        return f'Subscription("{self.name}", {self.reader!r})'

    @property
    def committed(self) -> DLSN:
        """The position as last written."""
        return self._committed.written.dlsn

    async def commit(self, position: Position | None = None, *, now: bool = False) -> None:
        """Commit that all records before ``position`` are handled. The position never decreases.

        The commit is recorded here and written within ``commit_interval_s``, together with those of this
        process's other subscriptions, or when this one is closed. Records whose commit was not written are
        delivered again to the next subscriber. `SubscriptionLost` also applies to commits that were recorded
        earlier.

        Args:
            position: The next position to handle. None for the position after the records that the reader has
                returned.
            now: Return only after the commit is written. If there is nothing to write, check that this
                subscriber still owns the position.

        Raises: SubscriptionLost, InvalidRequest, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        await self.commit_at(self.reader.position if position is None else position, now)

    async def commit_at(self, position: Position | None, now: bool) -> None:
        """Commit as `commit`, but None records nothing.

        For callers that pass the records on and handle them later.
        """
        if self._closed:
            raise AlreadyClosed(f"{self._committed.description} is closed")
        if position is not None:
            if not isinstance(position, Position):
                raise InvalidRequest(
                    f"position must be a Position of the subscription's reader, got {quoted(position)}"
                )
            if position.incarnation != self.reader.incarnation:
                raise LogRecreated(f"{position} is not a position of the log of {self.reader!r}")
            self._position_commits.schedule(self._committed, position)
        if now:
            if not await self._position_commits.write([self._committed]):
                await self._position_commits.check_holder(self._committed)
            self._raise_if_lost()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Write the commits, and release the position for the next subscriber. Idempotent.

        Raises: SubscriptionLost, QuorumUnreachable, AlreadyClosed.
        """
        if self._closed:
            await self._lock_key_holder.release()  # waits for a concurrent `aclose`
            return
        self._closed = True
        try:
            await self.reader.aclose()
            await self._position_commits.write([self._committed])
            self._raise_if_lost()
        finally:
            self._position_commits.discard(self._committed)
            await self._lock_key_holder.release()

    async def abort(self) -> None:
        """Close the subscription as `aclose`, for at most 2 s and without an error. Idempotent.

        Raises: nothing.
        """
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S):
                await self.aclose()
        except DistributedLogError:
            pass  # records whose commit was not written are read again

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()

    def _raise_if_lost(self) -> None:
        if self._committed.error is not None:
            raise self._committed.error.again()


async def subscribe(
    context: LogContext,
    log_id: int,
    log_name: str,
    name: str,
    *,
    at: Literal["earliest", "latest"],
    hold: bool,
    takeover: bool,
    wait_s: float | None,
) -> Subscription:
    """Open a subscription, as `Log.subscribe`."""
    acquisition = _Acquisition(context, log_id, log_name, check_position_name(name), hold)
    committed, presence = await acquisition.acquire(at, takeover, wait_s)
    try:
        state_watch = await open_state_watch(context.metadata, log_id, log_name, context.namespace)
        record = committed.written
        start: Position | DLSN = record.dlsn
        if record.sequence_id != UNPROVEN:
            start = Position(incarnation_text(log_id), record.dlsn, record.sequence_id)
        fetcher = await open_fetcher(context, state_watch, start)
        context.start(fetcher.run)
    except BaseException:
        await presence.release()
        raise
    return Subscription(name, context.position_commits, committed, presence, fetcher.queue)


class _Acquisition:
    def __init__(
        self, context: LogContext, log_id: int, log_name: str, name: str, hold: bool
    ) -> None:
        self._context = context
        self._log_id = log_id
        self._log_name = log_name
        self._hold = hold
        self._description = f'subscription "{name}" of log "{log_name}"'
        self._key = position_key(log_id, name)
        self._lock_key = subscriber_key(log_id, name)
        self._record = LockRecord.create(
            context.owner, context.random.getrandbits(64), context.clock_ms()
        )

    async def acquire(
        self, at: Literal["earliest", "latest"], takeover: bool, wait_s: float | None
    ) -> tuple[SubscriberPosition, EphemeralKey]:
        """Raise the generation and put the lock in one transaction. Create the position if it does not exist.

        While another subscriber holds the lock, the call waits, unless ``takeover`` is True.

        Raises:
            OwnershipAcquireFailed: The lock was held for the whole wait.
        """
        metadata, lease_s = self._context.metadata, self._context.options.lock_lease_s
        timeout_s = lease_s + WAIT_BEYOND_LEASE_S if wait_s is None else wait_s
        deadline = trio.current_time() + timeout_s
        while True:
            stored_position = await metadata.get(self._key)
            if stored_position is None:
                await self._create_position(at)
                continue
            lock = await metadata.get(self._lock_key)
            if lock is not None and not takeover:
                if trio.current_time() >= deadline:
                    holder = LockRecord.decode(lock.value).owner
                    raise OwnershipAcquireFailed(
                        f"{self._description} is held by {holder} and was not free within {timeout_s:g} "
                        "s. Wait, or"
                        " take it over.",
                        holder,
                    )
                await wait_until_changed(metadata, lock, deadline)
                continue
            acquired = await self._try_acquire(stored_position, lock, int(lease_s * 1000))
            if acquired is not None:
                return acquired

    async def _create_position(self, at: Literal["earliest", "latest"]) -> None:
        context = self._context
        state_watch = await open_state_watch(context.metadata, self._log_id, self._log_name)
        state = state_watch.state
        dlsn, sequence_id = state.earliest, state.truncated_sequence_id
        if at == "latest":
            snapshot = await take_snapshot(context.metadata, context.ledgers, state_watch, limit=1)
            dlsn, sequence_id = snapshot.end_dlsn, snapshot.end_sequence_id
        record = PositionRecord(dlsn, context.clock_ms(), sequence_id)
        reply = await context.metadata.transact(
            Transaction(
                (Compare.version(self._key, 0), Compare.exists(state_key(self._log_id))),
                (Put(self._key, record.encode()),),
            )
        )
        if not reply.succeeded and reply.current[1] is None:
            raise LogNotFound(f'log "{self._log_name}" was deleted while it was subscribed to')

    async def _try_acquire(
        self, stored_position: KeyValue, lock: KeyValue | None, ttl_ms: int
    ) -> tuple[SubscriberPosition, EphemeralKey] | None:
        context, metadata = self._context, self._context.metadata
        new_position, hold_ops = await self._next_generation(stored_position)
        value = self._record.encode()
        session = await context.lease_sessions.acquire(ttl_ms)
        lease = session.lease
        revision, lock_revision = 0, 0
        # Compared by revision, because a position that is deleted and created again restarts its versions.
        position_unchanged = Compare.mod_revision(self._key, stored_position.mod_revision)
        pending_delete: PendingDelete | None = PendingDelete(
            self._lock_key, value, position_unchanged
        )
        update = Transaction(
            (
                position_unchanged,
                Compare.version(self._lock_key, 0 if lock is None else lock.version),
            ),
            (Put(self._key, new_position.encode()), Put(self._lock_key, value, lease)),
        )
        try:
            try:
                reply = await metadata.transact(update + hold_ops)
            except LeaseExpired:  # unreachable for longer than that: retry with a new lease
                pending_delete = None
                await session.replace_lease(lease)
                return None
            except DistributedLogError:
                # The outcome may be unknown. The lock's random value proves that the transaction took effect.
                revision = await self._acquired_revision(value, new_position.generation)
                if not revision:
                    raise
            else:
                pending_delete = None
                if not reply.succeeded:
                    return None
                revision = reply.revision
                lock_revision = reply.revision if lease == session.lease else 0
        finally:
            if not revision:
                await session.release_use(pending_delete)
        committed = SubscriberPosition(
            self._description,
            self._log_id,
            self._key,
            revision,
            stored_position.create_revision,
            new_position,
            self._hold,
            context.options.commit_interval_s,
        )
        return committed, self._lock_holder(committed, session, lock_revision)

    async def _next_generation(
        self, stored_position: KeyValue
    ) -> tuple[PositionRecord, Transaction]:
        """Return the position with the next generation, and the operations of its retention hold."""
        context, metadata = self._context, self._context.metadata
        old_position = PositionRecord.decode(stored_position.value)
        hold_renewed_ms, hold_ops = NO_HOLD, Transaction()
        if self._hold:
            now_ms = await clock_now(metadata)
            hold_renewed_ms, hold_ops = await prepare_hold(
                metadata, self._log_id, old_position.hold_renewed_ms, now_ms
            )
        new_position = PositionRecord(
            old_position.dlsn,
            context.clock_ms(),
            old_position.sequence_id,
            hold_renewed_ms,
            old_position.generation + 1,
        )
        return new_position, hold_ops

    async def _acquired_revision(self, lock_value: bytes, generation: int) -> int:
        """Return the position's revision if the lock and the generation are those given, otherwise 0."""
        metadata = self._context.metadata
        current, lock = await metadata.get(self._key), await metadata.get(self._lock_key)
        if current is None or lock is None or lock.value != lock_value:
            return 0
        if PositionRecord.decode(current.value).generation != generation:
            return 0
        return current.mod_revision

    def _lock_holder(
        self, committed: SubscriberPosition, session: LeaseSession, lock_revision: int
    ) -> EphemeralKey:
        """Return the lock of the subscriber that has just raised the generation."""
        metadata = self._context.metadata

        async def still_ours() -> Compare:
            committed.check_holder(await metadata.get(self._key))
            if committed.error is not None:
                raise committed.error.again()
            return Compare.mod_revision(self._key, committed.revision)

        return EphemeralKey(
            session,
            self._lock_key,
            self._record.encode(),
            lock_revision=lock_revision,
            ownership_condition=still_ours,
            on_lost=committed.fail,
        )
