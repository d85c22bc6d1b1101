"""One lease for the locks of a process: a thousand writers renew one lease, not a thousand (H35).

Each lock is a separate key, bound to the lease of its process. A client that takes a log over stores the key
under its own lease, which affects no other key of the previous owner. A client that closes deletes only its
own key. The lease is granted with the first lock and revoked with the last one.

If a lease expires while its process is paused or disconnected, the session gets a new one, and takes each
lock again if the log still belongs to this process. An expired lease alone ends no writer. If another writer
has taken the log over, the former writer receives an error.
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
"""Maximum number of locks per lease, including claims in progress. Further locks get another lease. The
metadata quorum permits 4,096 keys per lease."""
RELEASE_TIMEOUT_S = 2.0
"""How long a release tries to delete its lock immediately. Afterwards the session retries, or the lease
expires."""

LOCK_LOST = -1

log = get_logger("distributedlog.log")

Start = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task as long as its process uses the logs."""


class LogLock:
    """A claimed log: its state under this process's epoch, and the lock on it. The owner must release it."""

    def __init__(
        self,
        writer_state: WriterLogState,
        session: "LeaseSession | None",
        value: bytes = b"",
        lock_revision: int = 0,
    ) -> None:
        """Create the lock.

        Without a session only the epoch is claimed: there is no lock, and nothing to release.
        """
        self.writer_state = writer_state
        self.lock_revision = lock_revision
        """The revision that stored the key. 0 means that it is not known whether the key is stored.
        `LOCK_LOST` means that the lock belongs to another owner."""
        self._session = session
        self._value = value
        self._lost_error: DistributedLogError | None = None
        self._on_lost: Callable[[DistributedLogError], None] | None = None
        self._released = trio.Event()
        if session is not None:
            session.add_key(self)

    @property
    def lease(self) -> int:
        """The lease of the lock, which the process's other locks share."""
        return self._require_session.lease

    def set_on_lost(self, on_lost: Callable[[DistributedLogError], None]) -> None:
        """Set a callback for the loss of the lock.

        It is called once, when the log belongs to another owner or was deleted. If that was detected already,
        it is called immediately.
        """
        self._on_lost = on_lost
        if self._lost_error is not None:
            on_lost(self._lost_error)

    async def release(self) -> None:
        """Release the log for its next writer. Never raises. A concurrent second call waits for the first."""
        if self._session is None:
            await trio.lowlevel.checkpoint()
            return
        if not self._session.has_key(self):
            await self._released.wait()
            return
        self._session.remove_key(self)
        lock_revision = self.lock_revision
        try:
            if lock_revision == LOCK_LOST:
                await self._session.release_use()
            else:
                # If the key is not known to be stored, an attempt to acquire it again may be under way. That
                # attempt requires the version of the state in `writer_state`.
                log_id, version = self.writer_state.log_id, self.writer_state.version
                guard = None if lock_revision else Compare.version(state_key(log_id), version)
                pending_delete = PendingDelete(lock_key(log_id), self._value, guard)
                await self._session.release_use(pending_delete, lock_revision)
        finally:
            self._released.set()

    @property
    def _require_session(self) -> "LeaseSession":
        assert self._session is not None, "only a lock has a session"
        return self._session

    # --- for its session --------------------------------------------------------------------------

    async def reacquire(self) -> None:
        """Store the key under the session's lease, if the log still belongs to this process.

        The transaction requires an unchanged state of the log, so no client locks a log of another owner.

        Raises:
            WriterFenced: Another writer owns the log.
            LogNotFound: The log was deleted.
            DistributedLogError: The metadata client failed.
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
            existing = reply.current[1]  # perhaps from an earlier attempt with an unknown outcome
            if existing is not None and existing.value == self._value and existing.lease == lease:
                lock_revision = existing.mod_revision
        if lease == session.lease:
            self.lock_revision = lock_revision

    def mark_lost(self, error: DistributedLogError) -> None:
        """Record that the log belongs to another owner."""
        self.lock_revision = LOCK_LOST
        self._lost_error = error
        if self._on_lost is not None:
            self._on_lost(error)


class LeasedKey(Protocol):
    """The interface of a key under a session's lease: a `LogLock` or an `EphemeralKey`."""

    lock_revision: int

    async def reacquire(self) -> None:
        """Store the key under the session's lease.

        Raises:
            LogNotFound: The log was deleted.
            DistributedLogError: The key belongs to another owner.
        """
        ...

    def mark_lost(self, error: DistributedLogError) -> None:
        """Record that the key belongs to another owner."""
        ...


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """A key to delete, which may be stored, or may still be stored by a transaction that is under way."""

    key: bytes
    value: bytes
    """The value of the key. A random number in it identifies its owner."""
    guard: Compare | None = None
    """The condition of a transaction with an unknown outcome. As long as it holds, the key may still be
    stored."""


class LeaseSession:
    """One lease and the locks under it. `LeaseSessions.acquire` creates it."""

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
        """The present lease. When it expires, another one follows."""
        self.ttl_ms = ttl_ms
        self.users = 1
        """The number of locks and of claims in progress. The session ends with the last one."""
        self._on_end = on_end
        self._keys: dict[LeasedKey, None] = {}
        self._pending_deletes: list[PendingDelete] = []
        self._replacing = trio.Lock()
        self._has_work = trio.Event()
        self._scope = trio.CancelScope()

    def add_key(self, key: LeasedKey) -> None:
        """Add a key that was acquired."""
        self._keys[key] = None

    def has_key(self, key: LeasedKey) -> bool:
        """Return whether a key was added and not removed."""
        return key in self._keys

    def remove_key(self, key: LeasedKey) -> None:
        """Remove a key, so that it is not acquired again. The caller then calls `release_use`."""
        del self._keys[key]

    async def release_use(
        self, pending_delete: PendingDelete | None = None, lock_revision: int = 0
    ) -> None:
        """Remove one user of the session. Never raises.

        If this does not succeed within `RELEASE_TIMEOUT_S`, the session or the end of the lease deletes the
        key later.

        Args:
            pending_delete: The user's key, which is deleted now or later.
            lock_revision: The revision that stored the key, or 0 if it is not known.
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
                    self._drop_pending(pending_delete)  # it is deleted, or belongs to another owner
                else:
                    await self._delete_pending(pending_delete)

    async def replace_lease(self, lease: int) -> None:
        """Get another lease after ``lease`` was found expired, and acquire all locks again."""
        async with self._replacing:
            if lease != self.lease:
                return
            self.lease = await self.metadata.grant_lease(self.ttl_ms)
            log.info("lease %d of %d locks ended, %d follows", lease, len(self._keys), self.lease)
            for lock in self._keys:
                lock.lock_revision = 0
            self._has_work.set()

    # --- its tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease until the last lock is released. Runs as a task of the namespace."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                keep_running = self._failures.keep_running
                nursery.start_soon(
                    keep_running, "the reacquisition of log locks", self._reacquire_and_clean
                )
                await keep_running("the renewal of log locks", self._renew)

    async def _renew(self) -> None:
        while True:
            await trio.sleep(self.ttl_ms / 3000)
            with suppress(
                DistributedLogError
            ):  # the metadata store is unavailable; writers continue without it
                lease = self.lease
                try:
                    await self.metadata.renew_lease(lease)
                except LeaseExpired:
                    await self.replace_lease(lease)
                if self._pending_deletes or any(not lock.lock_revision for lock in self._keys):
                    self._has_work.set()

    async def _reacquire_and_clean(self) -> None:
        """Acquire lost locks again, and delete pending keys.

        Renewals run separately, because they must not wait for it.
        """
        while True:
            await self._has_work.wait()
            self._has_work = trio.Event()
            with suppress(DistributedLogError):  # the rest is retried at the next renewal
                for pending_delete in self._pending_deletes.copy():
                    await self._delete_pending(pending_delete)
                for lock in list(self._keys):
                    if not lock.lock_revision and lock in self._keys:
                        await self._reacquire(lock)

    async def _reacquire(self, lock: LeasedKey) -> None:
        try:
            await lock.reacquire()
        except Exception as raised:  # an error of one log must not end the shared lease
            error = to_internal_error("the reacquisition of a log lock", raised)
            if not (error.fatal_to_writer or isinstance(error, LogNotFound | SubscriptionLost)):
                raise error from raised
            if lock in self._keys:
                lock.mark_lost(error)

    async def _delete_pending(self, pending_delete: PendingDelete) -> None:
        """Delete a pending key. One that may still be stored is checked again at each renewal."""
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
            return  # its transaction may still be under way
        self._drop_pending(pending_delete)

    def _drop_pending(self, pending_delete: PendingDelete) -> None:
        """Forget a key that was deleted. `release_use` and `_reacquire_and_clean` may both call this."""
        if pending_delete in self._pending_deletes:
            self._pending_deletes.remove(pending_delete)


class LeaseSessions:
    """The sessions of one process, one per lease duration and per `LOCKS_MAX` locks."""

    def __init__(
        self, metadata: Metadata, start: Start, failures: WorkFailures | None = None
    ) -> None:
        self._failures = failures or WorkFailures()
        self.metadata = metadata
        self._start = start
        self._sessions: list[LeaseSession] = []
        self._granting = trio.Lock()

    async def acquire(self, ttl_ms: int) -> LeaseSession:
        """Return a session with capacity, in which the caller counts as a user from now on."""
        session = self._find_with_capacity(ttl_ms)
        if session is not None:
            return session
        async with self._granting:  # concurrent calls share the lease that the first one gets
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
