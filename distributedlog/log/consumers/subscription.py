"""Subscription: one holder that reads a log from a named position on, and says how far it has got.

The lock is a courtesy, as a writer's is: a key under the process's lease that refuses a second holder early
and names the first. What is safe is the *generation* in the position's own value: whoever subscribes raises
it, each commit compares it (`position_commits.py`), so a holder that was paused and is another one's by now
moves nothing (H155). Nothing commits by itself: what was read and not committed is read again.
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
    """A log as one subscriber reads it. Made by `Log.subscribe`; for one task at a time."""

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
        """From the named position on. It ends with `SubscriptionLost` when that is known to be lost."""
        self._position_commits = commits
        self._committed = committed
        self._lock_key_holder = presence
        self._closed = False
        committed.set_on_lost(queue.fail)

    def __repr__(self) -> str:
        return f'Subscription("{self.name}", {self.reader!r})'

    @property
    def committed(self) -> DLSN:
        """The position as it was last written."""
        return self._committed.written.dlsn

    async def commit(self, position: Position | None = None, *, now: bool = False) -> None:
        """Everything before ``position`` was handled (None: what the reader has given). It never goes back.

        Noted, and written within ``commit_interval_s`` with those of this process's other subscriptions, or
        when this one is closed; with ``now`` written when this returns, and where there is nothing to write
        looked at: is it still this holder's? What was not written is given again to whoever subscribes next.
        Raises `SubscriptionLost`, of what was noted before too.

        Raises: SubscriptionLost, InvalidRequest, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        await self.commit_at(self.reader.position if position is None else position, now)

    async def commit_at(self, position: Position | None, now: bool) -> None:
        """As `commit`; None notes nothing. For whoever hands on what the reader gives, later."""
        if self._closed:
            raise AlreadyClosed(f"{self._committed.description} is closed")
        if position is not None:
            if not isinstance(position, Position):
                raise InvalidRequest(
                    f"a subscriber commits a Position, as its reader gives it, not {quoted(position)}"
                )
            if position.incarnation != self.reader.incarnation:
                raise LogRecreated(f"{position} is a position of another log than {self.reader!r}")
            self._position_commits.schedule(self._committed, position)
        if now:
            if not await self._position_commits.write([self._committed]):
                await self._position_commits.check_holder(self._committed)
            self._raise_if_lost()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Write what was committed, and let the next holder in. Idempotent.

        Raises: SubscriptionLost, QuorumUnreachable, AlreadyClosed.
        """
        if self._closed:
            await self._lock_key_holder.release()  # whoever closes it may be about to
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
        """As `aclose`, for at most 2 s, whatever becomes of it. Idempotent.

        Raises: nothing.
        """
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S):
                await self.aclose()
        except DistributedLogError:
            pass  # what was not written is read again

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
    """See `Log.subscribe`."""
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
    """One subscriber's way to the position that is its own from then on."""

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
        """Raise the generation, put the lock, in one transaction; first make the position if there is none.

        While another one's lock lives: waits, then raises `OwnershipAcquireFailed`; not with ``takeover``.
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
                        f"{self._description} is held by {holder}; it was not free within {timeout_s:g} "
                        "s. Wait, or"
                        " take over",
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
        # By its revision: a position that is deleted and made again counts its versions anew.
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
            except LeaseExpired:  # the store was away for longer than that: again, with another one
                pending_delete = None
                await session.replace_lease(lease)
                return None
            except DistributedLogError:
                # Unknown, perhaps: the lock's value, which is drawn, says that it was this very transaction.
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
        held_ms, hold_ops = NO_HOLD, Transaction()
        if self._hold:
            now_ms = await clock_now(metadata)
            held_ms, hold_ops = await prepare_hold(
                metadata, self._log_id, old_position.held_ms, now_ms
            )
        new_position = PositionRecord(
            old_position.dlsn,
            context.clock_ms(),
            old_position.sequence_id,
            held_ms,
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
