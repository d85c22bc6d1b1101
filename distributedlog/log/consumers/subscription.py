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
from ..model.segment_expiry import UNHELD
from ..read.entry_queue import EntryQueue
from ..read.fetcher import open_fetcher
from ..read.log_reader import LogReader
from ..read.log_snapshot import take_snapshot
from ..read.state_watch import follow
from ..services.ephemeral_key import EphemeralKey
from ..services.lease_session import GOODBYE_S, LeaseSession, PendingDelete
from ..services.log_context import LogContext
from ..services.named_positions import (
    UNPROVEN,
    PositionRecord,
    check_position_name,
    clock_now,
    hold_share,
)
from ..services.position_commits import Committed, PositionCommits
from ..takeover.log_lock import WAIT_BEYOND_LEASE_S, changed


class Subscription:
    """A log as one subscriber reads it. Made by `Log.subscribe`; for one task at a time."""

    def __init__(
        self,
        name: str,
        commits: PositionCommits,
        committed: Committed,
        presence: EphemeralKey,
        queue: EntryQueue,
    ) -> None:
        self.name = name
        self.reader = LogReader(queue)
        """From the named position on. It ends with `SubscriptionLost` when that is known to be lost."""
        self._commits = commits
        self._committed = committed
        self._presence = presence
        self._closed = False
        committed.when_lost(queue.fail)

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
            raise AlreadyClosed(f"{self._committed.what} is closed")
        if position is not None:
            if not isinstance(position, Position):
                raise InvalidRequest(
                    f"a subscriber commits a Position, as its reader gives it, not {quoted(position)}"
                )
            if position.incarnation != self.reader.incarnation:
                raise LogRecreated(f"{position} is a position of another log than {self.reader!r}")
            self._commits.note(self._committed, position)
        if now:
            if not await self._commits.write([self._committed]):
                await self._commits.look(self._committed)
            self._raise_if_lost()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Write what was committed, and let the next holder in. Idempotent.

        Raises: SubscriptionLost, QuorumUnreachable, AlreadyClosed.
        """
        if self._closed:
            await self._presence.give_back()  # whoever closes it may be about to
            return
        self._closed = True
        try:
            await self.reader.aclose()
            await self._commits.write([self._committed])
            self._raise_if_lost()
        finally:
            self._commits.forget(self._committed)
            await self._presence.give_back()

    async def abort(self) -> None:
        """As `aclose`, for at most 2 s, whatever becomes of it. Idempotent.

        Raises: nothing.
        """
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S):
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
    taking = _Taking(context, log_id, log_name, check_position_name(name), hold)
    committed, presence = await taking.take(at, takeover, wait_s)
    try:
        follower = await follow(context.metadata, log_id, log_name, context.namespace)
        record = committed.written
        start: Position | DLSN = record.dlsn
        if record.sequence_id != UNPROVEN:
            start = Position(incarnation_text(log_id), record.dlsn, record.sequence_id)
        fetcher = await open_fetcher(context, follower, start)
        context.start(fetcher.run)
    except BaseException:
        await presence.give_back()
        raise
    return Subscription(name, context.commits, committed, presence, fetcher.out)


class _Taking:
    """One subscriber's way to the position that is its own from then on."""

    def __init__(
        self, context: LogContext, log_id: int, log_name: str, name: str, hold: bool
    ) -> None:
        self._context = context
        self._log_id = log_id
        self._log_name = log_name
        self._hold = hold
        self._what = f'subscription "{name}" of log "{log_name}"'
        self._key = position_key(log_id, name)
        self._lock_key = subscriber_key(log_id, name)
        self._record = LockRecord.drawn(
            context.owner, context.random.getrandbits(64), context.wall_ms()
        )

    async def take(
        self, at: Literal["earliest", "latest"], takeover: bool, wait_s: float | None
    ) -> tuple[Committed, EphemeralKey]:
        """Raise the generation, put the lock, in one transaction; first make the position if there is none.

        While another one's lock lives: waits, then raises `OwnershipAcquireFailed`; not with ``takeover``.
        """
        metadata, lease_s = self._context.metadata, self._context.options.lock_lease_s
        patience_s = lease_s + WAIT_BEYOND_LEASE_S if wait_s is None else wait_s
        deadline = trio.current_time() + patience_s
        while True:
            found = await metadata.get(self._key)
            if found is None:
                await self._make(at)
                continue
            lock = await metadata.get(self._lock_key)
            if lock is not None and not takeover:
                if trio.current_time() >= deadline:
                    holder = LockRecord.decode(lock.value).owner
                    raise OwnershipAcquireFailed(
                        f"{self._what} is held by {holder}; it was not free within {patience_s:g} s. Wait, or"
                        " take over",
                        holder,
                    )
                await changed(metadata, lock, deadline)
                continue
            taken = await self._try(found, lock, int(lease_s * 1000))
            if taken is not None:
                return taken

    async def _make(self, at: Literal["earliest", "latest"]) -> None:
        context = self._context
        follower = await follow(context.metadata, self._log_id, self._log_name)
        state = follower.state
        dlsn, sequence_id = state.earliest, state.truncated_sequence_id
        if at == "latest":
            end = await take_snapshot(context.metadata, context.ledgers, follower, limit=1)
            dlsn, sequence_id = end.end_dlsn, end.end_sequence_id
        record = PositionRecord(dlsn, context.wall_ms(), sequence_id)
        made = await context.metadata.transact(
            Transaction(
                (Compare.version(self._key, 0), Compare.exists(state_key(self._log_id))),
                (Put(self._key, record.encode()),),
            )
        )
        if not made.succeeded and made.current[1] is None:
            raise LogNotFound(f'log "{self._log_name}" was deleted while it was subscribed to')

    async def _try(
        self, found: KeyValue, lock: KeyValue | None, ttl_ms: int
    ) -> tuple[Committed, EphemeralKey] | None:
        context, metadata = self._context, self._context.metadata
        before = PositionRecord.decode(found.value)
        held_ms, told = UNHELD, Transaction()
        if self._hold:
            now_ms = await clock_now(metadata)
            held_ms, told = await hold_share(metadata, self._log_id, before.held_ms, now_ms)
        raised = PositionRecord(
            before.dlsn, context.wall_ms(), before.sequence_id, held_ms, before.generation + 1
        )
        value = self._record.encode()
        session = await context.locks.enter(ttl_ms)
        lease = session.lease
        revision, held_at = 0, 0
        # By its revision: a position that is deleted and made again counts its versions anew.
        unmoved = Compare.mod_revision(self._key, found.mod_revision)
        left: PendingDelete | None = PendingDelete(self._lock_key, value, unmoved)
        own = Transaction(
            (unmoved, Compare.version(self._lock_key, 0 if lock is None else lock.version)),
            (Put(self._key, raised.encode()), Put(self._lock_key, value, lease)),
        )
        try:
            try:
                reply = await metadata.transact(own + told)
            except LeaseExpired:  # the store was away for longer than that: again, with another one
                left = None
                await session.ended(lease)
                return None
            except DistributedLogError:
                # Unknown, perhaps: the lock's value, which is drawn, says that it was this very transaction.
                now, lock = await metadata.get(self._key), await metadata.get(self._lock_key)
                if now is None or lock is None or lock.value != value:
                    raise
                if PositionRecord.decode(now.value).generation != raised.generation:
                    raise
                revision = now.mod_revision
            else:
                left = None
                if not reply.succeeded:
                    return None
                revision = reply.revision
                held_at = reply.revision if lease == session.lease else 0
        finally:
            if not revision:
                await session.leave(left)
        committed = Committed(
            self._what,
            self._log_id,
            self._key,
            revision,
            found.create_revision,
            raised,
            self._hold,
            context.options.commit_interval_s,
        )
        return committed, self._presence(committed, session, held_at)

    def _presence(self, committed: Committed, session: LeaseSession, held_at: int) -> EphemeralKey:
        """Return the lock of the subscriber that has just raised the generation."""
        metadata = self._context.metadata

        async def still_ours() -> Compare:
            committed.look(await metadata.get(self._key))
            if committed.error is not None:
                raise committed.error.again()
            return Compare.mod_revision(self._key, committed.revision)

        return EphemeralKey(
            session,
            self._lock_key,
            self._record.encode(),
            held_at=held_at,
            still_ours=still_ours,
            on_lost=committed.fail,
        )
