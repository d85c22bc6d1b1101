"""A key under the process's lease that proves that its owner is alive: a subscriber, or a worker of a queue.

Like a writer's lock, it protects no data. A subscriber's key rejects a second subscriber early, and names the
first one. A worker's key shows the failure of the worker, in the same transaction that gives its claims to
another worker.
"""

from collections.abc import Awaitable, Callable

import trio

from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import DistributedLogError, LeaseExpired, LogNotFound
from .lease_session import LOCK_LOST, LeaseSession, LeaseSessions, PendingDelete


class EphemeralKey:
    """A key that was stored under the process's lease and is deleted by `release`."""

    def __init__(
        self,
        session: LeaseSession,
        key: bytes,
        value: bytes,
        *,
        lock_revision: int,
        ownership_condition: Callable[[], Awaitable[Compare]],
        on_lost: Callable[[DistributedLogError], None],
    ) -> None:
        self.lock_revision = lock_revision
        """As `LogLock.lock_revision`."""
        self._session = session
        self._key = key
        self._value = value
        self._ownership_condition = ownership_condition
        self._on_lost = on_lost
        self._released = trio.Event()
        session.add_key(self)

    async def release(self) -> None:
        """Delete the key. Never raises. A concurrent second call waits for the first."""
        session = self._session
        if not session.has_key(self):
            await self._released.wait()
            return
        session.remove_key(self)
        try:
            if self.lock_revision == LOCK_LOST:
                await session.release_use()
            else:
                await session.release_use(PendingDelete(self._key, self._value), self.lock_revision)
        finally:
            self._released.set()

    # --- for its session --------------------------------------------------------------------------

    async def reacquire(self) -> None:
        """Store the key under the session's lease, on the condition that it still belongs to this owner."""
        session = self._session
        lease = session.lease
        ownership = await self._ownership_condition()
        reply = await session.metadata.transact(
            Transaction(
                (ownership, Compare.version(self._key, 0)), (Put(self._key, self._value, lease),)
            )
        )
        lock_revision = reply.revision if reply.succeeded else 0
        if not reply.succeeded:
            existing = reply.current[1]  # perhaps from an earlier attempt with an unknown outcome
            if existing is not None and existing.value == self._value and existing.lease == lease:
                lock_revision = existing.mod_revision
        if lease == session.lease and self.lock_revision != LOCK_LOST:
            self.lock_revision = lock_revision

    def mark_lost(self, error: DistributedLogError) -> None:
        """Record that the key belongs to another owner."""
        self.lock_revision = LOCK_LOST
        self._on_lost(error)


async def put_ephemeral_key(
    locks: LeaseSessions, ttl_ms: int, key: bytes, value: bytes, condition: Compare
) -> EphemeralKey:
    """Store a key that no other client stores, for owners without state that could be lost to another one.

    Raises:
        LogNotFound: The condition does not hold.
    """

    async def still_ours() -> Compare:
        return condition

    while True:
        session = await locks.acquire(ttl_ms)
        lease = session.lease
        pending_delete: PendingDelete | None = PendingDelete(key, value)
        lock_revision = 0
        try:
            reply = await session.metadata.transact(
                Transaction((condition, Compare.version(key, 0)), (Put(key, value, lease),))
            )
            pending_delete = None
            if not reply.succeeded:
                raise LogNotFound("the log was deleted meanwhile")
            lock_revision = reply.revision
        except (
            LeaseExpired
        ):  # the metadata store was unreachable for too long: retry with a new lease
            pending_delete = None
            await session.replace_lease(lease)
            continue
        finally:
            if not lock_revision:
                await session.release_use(pending_delete)
        return EphemeralKey(
            session,
            key,
            value,
            lock_revision=lock_revision if lease == session.lease else 0,
            ownership_condition=still_ours,
            on_lost=_ignore_loss,
        )


def _ignore_loss(_: DistributedLogError) -> None:
    """Do nothing, because the worker detects the loss in the metadata store."""
