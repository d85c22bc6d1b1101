"""The metadata quorum's state machine in this process: no Raft, no disk, the same contract.

For tests of the parts above, and for whoever wants the semantics without the machines. Leases end by trio's
clock, looked at whenever somebody asks or waits.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from ..runtime.errors import LeaseExpired
from .commands import Command, Expire, Grant, Revoke, Transact, encode_command
from .interface import Event, MemberStatus, RangePage, Watch, WatchBatch
from .kv import Answer, KeyValueState
from .transaction import KeyValue, Transaction, TransactionReply


class LocalMetadata:
    """Implements `interface.Metadata`."""

    def __init__(self, state: KeyValueState | None = None) -> None:
        self.state = state if state is not None else KeyValueState()
        self._changed = trio.Event()
        self._deadlines: dict[int, float] = {}

    async def get(self, key: bytes) -> KeyValue | None:
        """See `interface.Metadata`."""
        await self._turn()
        return self.state.get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        """See `interface.Metadata`."""
        await self._turn()
        return self.state.range(start, end, limit)

    async def transact(self, transaction: Transaction) -> TransactionReply:
        """See `interface.Metadata`."""
        transaction.check()
        await self._turn()
        answer = self._do(Transact(transaction=transaction))
        if answer.error is not None:
            raise answer.error
        assert answer.transaction is not None
        return answer.transaction

    async def grant_lease(self, ttl_ms: int) -> int:
        """See `interface.Metadata`."""
        await self._turn()
        lease = self._do(Grant(ttl_ms=ttl_ms)).lease
        self._deadlines[lease] = trio.current_time() + self.state.leases[lease].ttl_ms / 1000
        return lease

    async def renew_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        await self._turn()
        if lease not in self.state.leases:
            raise LeaseExpired(f"lease {lease} is gone")
        self._deadlines[lease] = trio.current_time() + self.state.leases[lease].ttl_ms / 1000

    async def revoke_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        await self._turn()
        self._deadlines.pop(lease, None)
        self._do(Revoke(lease=lease))

    def watch(
        self, start: bytes, end: bytes, *, after_revision: int
    ) -> AbstractAsyncContextManager[Watch]:
        """See `interface.Metadata`."""
        return self._watch(start, end, after_revision)

    @asynccontextmanager
    async def _watch(self, start: bytes, end: bytes, after_revision: int) -> AsyncIterator[Watch]:
        yield _LocalWatch(self, start, end, after_revision)

    async def status(self) -> list[MemberStatus]:
        """See `interface.Metadata`."""
        return [MemberStatus("local", "local", "leader", 1, self.state.index, True, "local")]

    def _do(self, command: Command) -> Answer:
        answer, events = self.state.apply(self.state.index + 1, encode_command(command))
        if events:
            self._changed.set()
            self._changed = trio.Event()
        return answer

    async def _turn(self) -> None:
        await trio.lowlevel.checkpoint()
        self._expire()

    def _expire(self) -> None:
        now = trio.current_time()
        for lease, deadline in list(self._deadlines.items()):
            if deadline <= now:
                del self._deadlines[lease]
                self._do(Expire(lease=lease))

    async def _change(self) -> None:
        """Wait until something changes, or a lease is due."""
        with trio.move_on_at(min(self._deadlines.values(), default=float("inf"))):
            await self._changed.wait()
        self._expire()


class _LocalWatch:
    def __init__(self, metadata: LocalMetadata, start: bytes, end: bytes, revision: int) -> None:
        self._metadata = metadata
        self._start = start
        self._end = end
        self._revision = revision

    async def next(self) -> WatchBatch:
        await self._metadata._turn()
        while True:
            found = self._metadata.state.events_after(self._revision, self._start, self._end)
            if found:
                events: list[Event] = [event for _, changed in found for event in changed]
                self._revision = self._metadata.state.revision
                return WatchBatch(self._revision, tuple(events))
            await self._metadata._change()
