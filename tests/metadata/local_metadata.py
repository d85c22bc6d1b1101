"""The metadata quorum's state machine in this process: no Raft, no disk, the same contract.

It is a double for tests of the parts above `metadata`. `test_metadata_contract.py` runs it and a quorum
through the same tests. Leases end by trio's clock, which each call and each wait checks.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from distributedlog.metadata.model.cluster_version import CLUSTER_VERSION_KEY, ClusterVersion
from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.commands import (
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.interface import (
    MemberStatus,
    RangePage,
    Watch,
    WatchBatch,
    WatchEvent,
)
from distributedlog.metadata.model.transaction import (
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
    check_number,
)
from distributedlog.metadata.protocol.client_messages import WatchRequest
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.declarations.versions import CURRENT, Version
from distributedlog.runtime.interfaces.errors import LeaseExpired

WATCH_EVENTS_MAX = 10_000
"""Changes that wait for a slow watcher; above it, it resumes from the history, as over the network."""


class LocalMetadata:
    """Implements `interface.Metadata`."""

    def __init__(self, state: KeyValueState | None = None) -> None:
        self.state = state if state is not None else KeyValueState()
        self._changed = trio.Event()
        self._deadlines: dict[int, float] = {}
        self._watches: list[_LocalWatch] = []

    def finalize(self, version: Version = CURRENT) -> None:
        """Be a cluster that is finalized for this version, as a new one is."""
        record = Put(CLUSTER_VERSION_KEY, ClusterVersion(version).encode())
        self._do(Transact(transaction=Transaction((), (record,))))

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
        assert answer.transaction is not None, "a transaction is answered with its reply"
        return answer.transaction

    async def grant_lease(self, ttl_ms: int) -> int:
        """See `interface.Metadata`."""
        check_number(ttl_ms, "the ttl of a lease in ms")
        await self._turn()
        lease = self._do(GrantLease(ttl_ms=ttl_ms)).lease
        self._keep(lease)
        return lease

    async def renew_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        await self._turn()
        if lease not in self.state.leases:
            raise LeaseExpired(f"lease {lease} is gone")
        self._keep(lease)

    async def revoke_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        await self._turn()
        self._deadlines.pop(lease, None)
        self._do(RevokeLease(lease=lease))

    def watch(
        self, start: bytes, end: bytes, *, after_revision: int
    ) -> AbstractAsyncContextManager[Watch]:
        """See `interface.Metadata`."""
        return self._watch(start, end, after_revision)

    @asynccontextmanager
    async def _watch(self, start: bytes, end: bytes, after_revision: int) -> AsyncIterator[Watch]:
        WatchRequest(start, end, after_revision).check()
        watch = _LocalWatch(self, start, end, after_revision)
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    async def status(self) -> list[MemberStatus]:
        """See `interface.Metadata`."""
        await self._turn()
        return [MemberStatus("local", "local", "leader", 1, self.state.index, True, "local")]

    def _do(self, command: ReplicatedCommand) -> CommandResult:
        answer, events = self.state.apply(self.state.index + 1, encode_command(command))
        if answer.error is not None:
            raise answer.error
        if events:
            for watch in self._watches:
                watch.on_change(self.state.revision, events)
            self._changed.set()
            self._changed = trio.Event()
        return answer

    def _keep(self, lease: int) -> None:
        self._deadlines[lease] = trio.current_time() + self.state.leases[lease].ttl_ms / 1000

    async def _turn(self) -> None:
        await trio.lowlevel.checkpoint()
        self._expire()

    def _expire(self) -> None:
        now = trio.current_time()
        for lease, deadline in list(self._deadlines.items()):
            if deadline <= now:
                del self._deadlines[lease]
                self._do(ExpireLease(lease=lease))

    async def _change(self) -> None:
        """Wait until something changes, or a lease is due."""
        with trio.move_on_at(min(self._deadlines.values(), default=float("inf"))):
            await self._changed.wait()
        self._expire()


class _LocalWatch:
    """A watch; while it follows it is told of every change, as a connected client is by its node."""

    def __init__(self, metadata: LocalMetadata, start: bytes, end: bytes, revision: int) -> None:
        self._metadata = metadata
        self._start = start
        self._end = end
        self._revision = revision
        """Up to here everything was told to the consumer, or waits for it."""
        self._taken = revision
        """Up to here everything was told to the consumer."""
        self._follows = False
        self._waiting: deque[WatchEvent] = deque()

    def on_change(self, revision: int, events: tuple[WatchEvent, ...]) -> None:
        """The state has changed."""
        if not self._follows or revision <= self._revision:
            return
        self._revision = revision
        self._waiting += [e for e in events if self._start <= e.item.key < self._end]
        if len(self._waiting) > WATCH_EVENTS_MAX:
            self._waiting.clear()
            self._follows, self._revision = False, self._taken

    async def next_batch(self) -> WatchBatch:
        """See `interface.Watch`."""
        await self._metadata._turn()
        while not self._waiting:
            if not self._follows:
                state = self._metadata.state
                for _, changed in state.events_after(self._revision, self._start, self._end):
                    self._waiting += changed
                self._follows = True
                self._revision = max(self._revision, state.revision)
            else:
                self._taken = self._revision
                await self._metadata._change()
        self._taken = self._revision
        events = tuple(self._waiting)
        self._waiting.clear()
        return WatchBatch(self._revision, events)
