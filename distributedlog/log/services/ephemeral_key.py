"""A key under the process's lease that says: I am here. Of who holds a subscription, or works on a queue.

As a writer's lock it protects nothing. The one refuses a second holder early and names the first; by the
other the death of a worker is seen, in the very transaction that gives its work to somebody else.
"""

from collections.abc import Awaitable, Callable

import trio

from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import DistributedLogError, LeaseExpired, LogNotFound
from .lease_session import LOST, LeaseSession, LeaseSessions, PendingDelete


class EphemeralKey:
    """One such key, from when it was put to `give_back`."""

    def __init__(
        self,
        session: LeaseSession,
        key: bytes,
        value: bytes,
        *,
        held_at: int,
        still_ours: Callable[[], Awaitable[Compare]],
        on_lost: Callable[[DistributedLogError], None],
    ) -> None:
        self.held_at = held_at
        """As `Claim.held_at`."""
        self._session = session
        self._key = key
        self._value = value
        self._still_ours = still_ours
        self._on_lost = on_lost
        self._given_back = trio.Event()
        session.add(self)

    async def give_back(self) -> None:
        """Take the key away. Raises nothing; who asks again waits for the first."""
        session = self._session
        if not session.holds(self):
            await self._given_back.wait()
            return
        session.take_out(self)
        try:
            if self.held_at == LOST:
                await session.leave()
            else:
                await session.leave(PendingDelete(self._key, self._value), self.held_at)
        finally:
            self._given_back.set()

    # --- for its session --------------------------------------------------------------------------

    async def take_again(self) -> None:
        """Put the key under the session's lease, on the condition that says it is still ours."""
        session = self._session
        lease = session.lease
        ours = await self._still_ours()
        reply = await session.metadata.transact(
            Transaction(
                (ours, Compare.version(self._key, 0)), (Put(self._key, self._value, lease),)
            )
        )
        held = reply.revision if reply.succeeded else 0
        if not reply.succeeded:
            found = reply.current[1]  # of an earlier try, perhaps, that was not answered
            if found is not None and found.value == self._value and found.lease == lease:
                held = found.mod_revision
        if lease == session.lease and self.held_at != LOST:
            self.held_at = held

    def lost(self, error: DistributedLogError) -> None:
        """What it stood for is another one's."""
        self.held_at = LOST
        self._on_lost(error)


async def show(
    locks: LeaseSessions, ttl_ms: int, key: bytes, value: bytes, condition: Compare
) -> EphemeralKey:
    """Put a key that nobody else puts, as long as the condition holds. Raises `LogNotFound` else.

    It protects nothing that could be lost.
    """

    async def still_ours() -> Compare:
        return condition

    while True:
        session = await locks.enter(ttl_ms)
        lease = session.lease
        left: PendingDelete | None = PendingDelete(key, value)
        held_at = 0
        try:
            reply = await session.metadata.transact(
                Transaction((condition, Compare.version(key, 0)), (Put(key, value, lease),))
            )
            left = None
            if not reply.succeeded:
                raise LogNotFound("the log was deleted meanwhile")
            held_at = reply.revision
        except LeaseExpired:  # the store was away for longer than that: again, with another one
            left = None
            await session.ended(lease)
            continue
        finally:
            if not held_at:
                await session.leave(left)
        return EphemeralKey(
            session,
            key,
            value,
            held_at=held_at if lease == session.lease else 0,
            still_ours=still_ours,
            on_lost=_unmoved,
        )


def _unmoved(_: DistributedLogError) -> None:
    """Whoever works on asks the store."""
