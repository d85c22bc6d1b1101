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
GOODBYE_S = 2.0
"""How long whoever ends tries to give a lock back at once; then the session does, or the lease's end."""

LOST = -1

log = get_logger("distributedlog.log")

Start = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task as long as its process uses the logs."""


class LogLock:
    """A log that was claimed: its state under our epoch, and the lock on it. Whoever claims gives back."""

    def __init__(
        self,
        owned: WriterLogState,
        session: "LeaseSession | None",
        value: bytes = b"",
        held_at: int = 0,
    ) -> None:
        """Without a session there is no lock: the epoch alone is claimed, and nothing is given back."""
        self.owned = owned
        self.held_at = held_at
        """The revision that put the key; 0: whether it is there is not known; `LOST`: it is another one's."""
        self._session = session
        self._value = value
        self._lost: DistributedLogError | None = None
        self._on_lost: Callable[[DistributedLogError], None] | None = None
        self._given_back = trio.Event()
        if session is not None:
            session.add(self)

    @property
    def lease(self) -> int:
        """The lease under the lock, which this process's other locks share."""
        return self._locked.lease

    def when_lost(self, call: Callable[[DistributedLogError], None]) -> None:
        """Have it told, once, when the log turns out to be another one's, or gone, or has already."""
        self._on_lost = call
        if self._lost is not None:
            call(self._lost)

    async def give_back(self) -> None:
        """Free the log for its next writer. Raises nothing; who asks again waits for the first."""
        if self._session is None:
            await trio.lowlevel.checkpoint()
            return
        if not self._session.holds(self):
            await self._given_back.wait()
            return
        self._session.take_out(self)
        held_at = self.held_at
        try:
            if held_at == LOST:
                await self._session.leave()
            else:
                # Not known to be there: a try to take it again may be under way, for the version we know.
                log_id, version = self.owned.log_id, self.owned.version
                guard = None if held_at else Compare.version(state_key(log_id), version)
                left = PendingDelete(lock_key(log_id), self._value, guard)
                await self._session.leave(left, held_at)
        finally:
            self._given_back.set()

    @property
    def _locked(self) -> "LeaseSession":
        assert self._session is not None, "asked of a lock"
        return self._session

    # --- for its session --------------------------------------------------------------------------

    async def take_again(self) -> None:
        """Put the key under the session's lease, if the log is still ours.

        The log's state is a condition: nobody locks a log that is not theirs. Raises `WriterFenced`,
        `LogNotFound`, and whatever the metadata client raises.
        """
        owned, session = self.owned, self._locked
        await owned.refresh()
        key = lock_key(owned.log_id)
        lease = session.lease
        reply = await owned.metadata.transact(
            Transaction(
                (Compare.version(state_key(owned.log_id), owned.version), Compare.version(key, 0)),
                (Put(key, self._value, lease),),
            )
        )
        held = reply.revision if reply.succeeded else 0
        if not reply.succeeded:
            found = reply.current[1]  # of an earlier try, perhaps, that was not answered
            if found is not None and found.value == self._value and found.lease == lease:
                held = found.mod_revision
        if lease == session.lease:
            self.held_at = held

    def lost(self, error: DistributedLogError) -> None:
        """The log is another one's."""
        self.held_at = LOST
        self._lost = error
        if self._on_lost is not None:
            self._on_lost(error)


class LeasedKey(Protocol):
    """A key under a session's lease, as its session knows it: a `LogLock`, or a `Presence`."""

    held_at: int

    async def take_again(self) -> None:
        """Put the key under the session's lease. Raises `LogNotFound`, and what says that it is lost."""
        ...

    def lost(self, error: DistributedLogError) -> None:
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
    """One lease, and the locks under it. Made by `LeaseSessions.enter`."""

    def __init__(
        self,
        metadata: Metadata,
        lease: int,
        ttl_ms: int,
        on_over: Callable[["LeaseSession"], None],
        failures: WorkFailures,
    ) -> None:
        self._failures = failures
        self.metadata = metadata
        self.lease = lease
        """Of the moment: after one that ended there is another."""
        self.ttl_ms = ttl_ms
        self.users = 1
        """Locks, and claims under way. With the last one the session ends."""
        self._on_over = on_over
        self._locks: dict[LeasedKey, None] = {}
        self._leftovers: list[PendingDelete] = []
        self._replacing = trio.Lock()
        self._untidy = trio.Event()
        self._scope = trio.CancelScope()

    def add(self, lock: LeasedKey) -> None:
        """What was entered for is held."""
        self._locks[lock] = None

    def holds(self, lock: LeasedKey) -> bool:
        """Was it added, and not taken out?"""
        return lock in self._locks

    def take_out(self, lock: LeasedKey) -> None:
        """From here on it is not taken again; `leave` follows."""
        del self._locks[lock]

    async def leave(self, left: PendingDelete | None = None, held_at: int = 0) -> None:
        """One user less. ``left``: its key is deleted, here or later; ``held_at``: the revision that put it.

        Raises nothing: the session, or the end of the lease, does what could not be done within `GOODBYE_S`.
        """
        self.users -= 1
        assert self.users >= 0, "each user leaves once"
        goodbye = trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S)
        if not self.users:
            self._scope.cancel()
            self._on_over(self)
            with goodbye, suppress(DistributedLogError):
                await self.metadata.revoke_lease(self.lease)
        elif left is not None:
            self._leftovers.append(left)
            with goodbye, suppress(DistributedLogError):
                if held_at:
                    mine = Compare.mod_revision(left.key, held_at)
                    await self.metadata.transact(Transaction((mine,), (Delete(left.key),)))
                    self._forget(left)  # deleted, or another one's by now
                else:
                    await self._clear(left)

    async def ended(self, lease: int) -> None:
        """``lease`` was seen to be gone: have another one, and take all locks again."""
        async with self._replacing:
            if lease != self.lease:
                return
            self.lease = await self.metadata.grant_lease(self.ttl_ms)
            log.info("lease %d of %d locks ended, %d follows", lease, len(self._locks), self.lease)
            for lock in self._locks:
                lock.held_at = 0
            self._untidy.set()

    # --- its tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease until the last lock is given back. A task of the namespace."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                keep = self._failures.keep
                nursery.start_soon(keep, "log locks that are taken again", self._tidy)
                await keep("the renewal of log locks", self._renew)

    async def _renew(self) -> None:
        while True:
            await trio.sleep(self.ttl_ms / 3000)
            with suppress(DistributedLogError):  # the store is away: writers go on without it
                lease = self.lease
                try:
                    await self.metadata.renew_lease(lease)
                except LeaseExpired:
                    await self.ended(lease)
                if self._leftovers or any(not lock.held_at for lock in self._locks):
                    self._untidy.set()

    async def _tidy(self) -> None:
        """Take locks again, clear leftovers; apart from the renewals, which must not wait for it."""
        while True:
            await self._untidy.wait()
            self._untidy = trio.Event()
            with suppress(DistributedLogError):  # what is left is tried at the next renewal
                for left in self._leftovers.copy():
                    await self._clear(left)
                for lock in list(self._locks):
                    if not lock.held_at and lock in self._locks:
                        await self._take_again(lock)

    async def _take_again(self, lock: LeasedKey) -> None:
        try:
            await lock.take_again()
        except Exception as raised:  # of one log: the lease is everybody's
            error = to_internal_error("a lock that was taken again", raised)
            if not (error.fatal_to_writer or isinstance(error, LogNotFound | SubscriptionLost)):
                raise error from raised
            if lock in self._locks:
                lock.lost(error)

    async def _clear(self, left: PendingDelete) -> None:
        """Delete the leftover's key; what may still come is looked for at each renewal."""
        guard = None if left.guard is None else await self.metadata.get(left.guard.key)
        found = await self.metadata.get(left.key)
        if found is not None and found.value == left.value:
            mine = Compare.mod_revision(found.key, found.mod_revision)
            await self.metadata.transact(Transaction((mine,), (Delete(found.key),)))
        elif left.guard is not None and left.guard.holds(guard):
            return  # its transaction may still be on its way
        self._forget(left)

    def _forget(self, left: PendingDelete) -> None:
        """Its key is gone. Two may find that out: whoever left, and `_tidy` meanwhile."""
        if left in self._leftovers:
            self._leftovers.remove(left)


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

    async def enter(self, ttl_ms: int) -> LeaseSession:
        """A session with room for one more, who is counted as its user from here on."""
        session = self._with_room(ttl_ms)
        if session is not None:
            return session
        async with self._granting:  # a thousand that open at once share what the first one gets
            session = self._with_room(ttl_ms)
            if session is None:
                lease = await self.metadata.grant_lease(ttl_ms)
                session = LeaseSession(
                    self.metadata, lease, ttl_ms, self._sessions.remove, self._failures
                )
                self._start(session.run)
                self._sessions.append(session)
            return session

    def _with_room(self, ttl_ms: int) -> LeaseSession | None:
        for session in self._sessions:
            if session.ttl_ms == ttl_ms and session.users < LOCKS_MAX:
                session.users += 1
                return session
        return None
