"""One lease for the locks of a process: a thousand writers renew one lease, not a thousand (H35).

A lock stays a key of its own, bound to the lease of its process. Who takes a log over puts the key under
its own lease, which touches no other key of this one; who closes deletes its key alone. The lease is granted
with the first lock and revoked with the last. One that ended while its process was paused or cut off is
followed by another, and each lock is taken again where the log is still ours: a lost lease alone ends no
writer; one whose log was taken over is told so.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LeaseExpired,
    LogNotFound,
    SubscriptionLost,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..interfaces.error_boundary import to_internal_error
from ..model.log_keys import lock_key, state_key
from ..model.writer_log_state import WriterLogState

LOCKS_MAX = 2000
"""Of one lease, claims under way included; the next lock gets another lease. A lease holds 4,096 keys."""
RELEASE_TIMEOUT_S = 2.0
"""How long whoever ends tries to give a lock back at once; then the session does, or the lease's end."""

LOCK_LOST = -1

log = get_logger("distributedlog.log")

Start = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task as long as its process uses the logs."""


class LogLock:
    """A log that was claimed: its state under our epoch, and the lock on it. Whoever claims gives back."""

    def __init__(
        self,
        writer_state: WriterLogState,
        session: "LeaseSession | None",
        value: bytes = b"",
        lock_revision: int = 0,
    ) -> None:
        """Without a session there is no lock: the epoch alone is claimed, and nothing is given back."""
        self.writer_state = writer_state
        self.lock_revision = lock_revision
        """The revision that put the key; 0: whether it is there is not known; `LOCK_LOST`: it is another
        one's."""
        self._session = session
        self._value = value
        self._lost_error: DistributedLogError | None = None
        self._on_lost: Callable[[DistributedLogError], None] | None = None
        self._released = trio.Event()
        if session is not None:
            session.add_lock(self)

    @property
    def lease(self) -> int:
        """The lease under the lock, which this process's other locks share."""
        return self._require_session.lease

    def set_on_lost(self, on_lost: Callable[[DistributedLogError], None]) -> None:
        """Have it told, once, when the log turns out to be another one's, or gone, or has already."""
        self._on_lost = on_lost
        if self._lost_error is not None:
            on_lost(self._lost_error)

    async def release(self) -> None:
        """Free the log for its next writer. Raises nothing; who asks again waits for the first."""
        if self._session is None:
            await trio.lowlevel.checkpoint()
            return
        if not self._session.has_lock(self):
            await self._released.wait()
            return
        self._session.remove_lock(self)
        lock_revision = self.lock_revision
        try:
            if lock_revision == LOCK_LOST:
                await self._session.release_use()
            else:
                # Not known to be there: a try to take it again may be under way, for the version we know.
                log_id, version = self.writer_state.log_id, self.writer_state.version
                guard = None if lock_revision else Compare.version(state_key(log_id), version)
                pending_delete = PendingDelete(lock_key(log_id), self._value, guard)
                await self._session.release_use(pending_delete, lock_revision)
        finally:
            self._released.set()

    @property
    def _require_session(self) -> "LeaseSession":
        assert self._session is not None, "asked of a lock"
        return self._session

    # --- for its session --------------------------------------------------------------------------

    async def reacquire(self) -> None:
        """Put the key under the session's lease, if the log is still ours.

        The log's state is a condition: nobody locks a log that is not theirs. Raises `WriterFenced`,
        `LogNotFound`, and whatever the metadata client raises.
        """
        writer_state, session = self.writer_state, self._require_session
        await writer_state.refresh()
        key = lock_key(writer_state.log_id)
        lease = session.lease
        reply = await writer_state.metadata.transact(
            Transaction(
                (
                    Compare.version(state_key(writer_state.log_id), writer_state.version),
                    Compare.version(key, 0),
                ),
                (Put(key, self._value, lease),),
            )
        )
        lock_revision = reply.revision if reply.succeeded else 0
        if not reply.succeeded:
            existing = reply.current[1]  # of an earlier try, perhaps, that was not answered
            if existing is not None and existing.value == self._value and existing.lease == lease:
                lock_revision = existing.mod_revision
        if lease == session.lease:
            self.lock_revision = lock_revision

    def mark_lost(self, error: DistributedLogError) -> None:
        """The log is another one's."""
        self.lock_revision = LOCK_LOST
        self._lost_error = error
        if self._on_lost is not None:
            self._on_lost(error)


class LeasedKey(Protocol):
    """A key under a session's lease, as its session knows it: a `LogLock`, or a `Presence`."""

    lock_revision: int

    async def reacquire(self) -> None:
        """Put the key under the session's lease. Raises `LogNotFound`, and what says that it is lost."""
        ...

    def mark_lost(self, error: DistributedLogError) -> None:
        """It is another one's."""
        ...


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """A key that nobody wants any more and that may be there, or may still come."""

    key: bytes
    value: bytes
    """Of the key; a random number in it says whose it is."""
    guard: Compare | None = None
    """What a transaction whose outcome nobody knows asks for: while it holds, the key may still come."""


class LeaseSession:
    """One lease, and the locks under it. Made by `LeaseSessions.acquire`."""

    def __init__(
        self,
        metadata: Metadata,
        lease: int,
        ttl_ms: int,
        on_end: Callable[["LeaseSession"], None],
        failures: WorkFailures,
    ) -> None:
        self._failures = failures
        self.metadata = metadata
        self.lease = lease
        """Of the moment: after one that ended there is another."""
        self.ttl_ms = ttl_ms
        self.users = 1
        """Locks, and claims under way. With the last one the session ends."""
        self._on_end = on_end
        self._locks: dict[LeasedKey, None] = {}
        self._pending_deletes: list[PendingDelete] = []
        self._replacing = trio.Lock()
        self._has_work = trio.Event()
        self._scope = trio.CancelScope()

    def add_lock(self, lock: LeasedKey) -> None:
        """What was entered for is held."""
        self._locks[lock] = None

    def has_lock(self, lock: LeasedKey) -> bool:
        """Was it added, and not taken out?"""
        return lock in self._locks

    def remove_lock(self, lock: LeasedKey) -> None:
        """From here on it is not taken again; `leave` follows."""
        del self._locks[lock]

    async def release_use(
        self, pending_delete: PendingDelete | None = None, lock_revision: int = 0
    ) -> None:
        """One user less. ``left``: its key is deleted, here or later; ``held_at``: the revision that put it.

        Raises nothing: the session, or the end of the lease, does what could not be done within
        `RELEASE_TIMEOUT_S`.
        """
        self.users -= 1
        assert self.users >= 0, "each user leaves once"
        close_scope = trio.CancelScope(
            shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S
        )
        if not self.users:
            self._scope.cancel()
            self._on_end(self)
            with close_scope, suppress(DistributedLogError):
                await self.metadata.revoke_lease(self.lease)
        elif pending_delete is not None:
            self._pending_deletes.append(pending_delete)
            with close_scope, suppress(DistributedLogError):
                if lock_revision:
                    unchanged = Compare.mod_revision(pending_delete.key, lock_revision)
                    await self.metadata.transact(
                        Transaction((unchanged,), (Delete(pending_delete.key),))
                    )
                    self._drop_pending(pending_delete)  # deleted, or another one's by now
                else:
                    await self._delete_pending(pending_delete)

    async def replace_lease(self, lease: int) -> None:
        """``lease`` was seen to be gone: have another one, and take all locks again."""
        async with self._replacing:
            if lease != self.lease:
                return
            self.lease = await self.metadata.grant_lease(self.ttl_ms)
            log.info("lease %d of %d locks ended, %d follows", lease, len(self._locks), self.lease)
            for lock in self._locks:
                lock.lock_revision = 0
            self._has_work.set()

    # --- its tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease until the last lock is given back. A task of the namespace."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                keep_running = self._failures.keep_running
                nursery.start_soon(
                    keep_running, "log locks that are taken again", self._reacquire_and_clean
                )
                await keep_running("the renewal of log locks", self._renew)

    async def _renew(self) -> None:
        while True:
            await trio.sleep(self.ttl_ms / 3000)
            with suppress(DistributedLogError):  # the store is away: writers go on without it
                lease = self.lease
                try:
                    await self.metadata.renew_lease(lease)
                except LeaseExpired:
                    await self.replace_lease(lease)
                if self._pending_deletes or any(not lock.lock_revision for lock in self._locks):
                    self._has_work.set()

    async def _reacquire_and_clean(self) -> None:
        """Take locks again, clear leftovers; apart from the renewals, which must not wait for it."""
        while True:
            await self._has_work.wait()
            self._has_work = trio.Event()
            with suppress(DistributedLogError):  # what is left is tried at the next renewal
                for pending_delete in self._pending_deletes.copy():
                    await self._delete_pending(pending_delete)
                for lock in list(self._locks):
                    if not lock.lock_revision and lock in self._locks:
                        await self._reacquire(lock)

    async def _reacquire(self, lock: LeasedKey) -> None:
        try:
            await lock.reacquire()
        except Exception as raised:  # of one log: the lease is everybody's
            error = to_internal_error("a lock that was taken again", raised)
            if not (error.fatal_to_writer or isinstance(error, LogNotFound | SubscriptionLost)):
                raise error from raised
            if lock in self._locks:
                lock.mark_lost(error)

    async def _delete_pending(self, pending_delete: PendingDelete) -> None:
        """Delete the leftover's key; what may still come is looked for at each renewal."""
        guard_value = (
            None
            if pending_delete.guard is None
            else await self.metadata.get(pending_delete.guard.key)
        )
        existing = await self.metadata.get(pending_delete.key)
        if existing is not None and existing.value == pending_delete.value:
            unchanged = Compare.mod_revision(existing.key, existing.mod_revision)
            await self.metadata.transact(Transaction((unchanged,), (Delete(existing.key),)))
        elif pending_delete.guard is not None and pending_delete.guard.holds(guard_value):
            return  # its transaction may still be on its way
        self._drop_pending(pending_delete)

    def _drop_pending(self, pending_delete: PendingDelete) -> None:
        """Its key is gone. Two may find that out: whoever left, and `_reacquire_and_clean` meanwhile."""
        if pending_delete in self._pending_deletes:
            self._pending_deletes.remove(pending_delete)


class LeaseSessions:
    """The sessions of one process: one for each length of leases, and for each `LOCKS_MAX` locks."""

    def __init__(
        self, metadata: Metadata, start: Start, failures: WorkFailures | None = None
    ) -> None:
        self._failures = failures or WorkFailures()
        self.metadata = metadata
        self._start = start
        self._sessions: list[LeaseSession] = []
        self._granting = trio.Lock()

    async def acquire(self, ttl_ms: int) -> LeaseSession:
        """A session with room for one more, who is counted as its user from here on."""
        session = self._find_with_capacity(ttl_ms)
        if session is not None:
            return session
        async with self._granting:  # a thousand that open at once share what the first one gets
            session = self._find_with_capacity(ttl_ms)
            if session is None:
                lease = await self.metadata.grant_lease(ttl_ms)
                session = LeaseSession(
                    self.metadata, lease, ttl_ms, self._sessions.remove, self._failures
                )
                self._start(session.run)
                self._sessions.append(session)
            return session

    def _find_with_capacity(self, ttl_ms: int) -> LeaseSession | None:
        for session in self._sessions:
            if session.ttl_ms == ttl_ms and session.users < LOCKS_MAX:
                session.users += 1
                return session
        return None
