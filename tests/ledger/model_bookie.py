"""Bookies in memory that speak the `BookieClient` API, with hooks to delay, drop and refuse; and their pool.

The rules are those of `testing/sim/ledger/ledger_model.py`; here they get trio's time. Each message takes
`LATENCY_S`.
"""

import heapq
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio

from distributedlog.bookie.client.bookie_client import (
    EntryList,
    FenceResponse,
    LongPollResponse,
    ReadResponse,
    raise_error,
)
from distributedlog.bookie.format.bookie_messages import ReadEntriesRequest, WaitLacRequest
from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_keys import ledger_key, missing_ranges_key
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange, decode_missing_ranges
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import Buffer, Host
from distributedlog.runtime.schedule.work_failures import WorkFailures
from distributedlog.testing.sim.ledger.ledger_model import ModelBookie, ModelStream, header_of
from tests.metadata.local_metadata import LocalMetadata

LATENCY_S = 0.001


def no_endpoint() -> Any:
    """An endpoint for clients of model bookies, who dial nobody: its failed work alone."""
    return SimpleNamespace(failures=WorkFailures())


class ModelClient:
    """A connection to one model bookie."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.closed: DistributedLogError | None = None
        self.streams: list[ModelAddStream] = []
        self.send_progress = (0, 0)

    def open_stream(
        self,
        ledger: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None] = lambda: None,
        on_broken: Callable[[Exception], None] = raise_error,
    ) -> "ModelAddStream":
        stream = ModelAddStream(
            self, ledger, key, recovery, on_acked, on_refused, on_progress, on_broken
        )
        self.streams.append(stream)
        return stream

    def close(self) -> None:
        if self.closed is None:
            self.closed = ConnectionLost(f"the connection to {self.node.id} broke")
            streams, self.streams = self.streams, []
            for stream in streams:
                stream.lose(self.closed)

    async def _ask(self, timeout_s: float) -> None:
        """Reach the bookie, or do not."""
        if self.node.asking >= self.node.asking_max:
            self.node.busy += 1
            await trio.sleep(LATENCY_S)
            raise TooBusy(f"{self.node.asking} requests wait at {self.node.id}")
        self.node.asking += 1
        try:
            with trio.move_on_after(timeout_s) as scope:
                await trio.sleep(LATENCY_S + self.node.read_delay_s)
                while self.node.hung:
                    await self.node.changed.wait()
        finally:
            self.node.asking -= 1
        if scope.cancelled_caught:
            raise RequestTimeout(f"{self.node.id} did not answer")
        if self.closed is not None:
            raise self.closed
        if self.node.refuse_reads is not None:
            raise self.node.refuse_reads

    async def fence(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        self.node.asked["fence"] = self.node.asked.get("fence", 0) + 1
        await self._ask(timeout_s)
        if self.node.loses_fences:
            raise RequestTimeout(f"{self.node.id}: the fence was lost")
        lac, last, known = self.node.model.fence(ledger, key)
        self.node.news()
        return FenceResponse(lac, last, known)

    async def read_lac(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        await self._ask(timeout_s)
        held = self.node.model.ledger(ledger, key)
        return FenceResponse(held.lac, max(held.entries, default=-1), not held.limbo)

    def begin_read(self, request: ReadEntriesRequest, timeout_s: float) -> ReadEntriesRequest:
        return request

    async def finish_read(self, pending: ReadEntriesRequest, timeout_s: float) -> ReadResponse:
        return await self.read(
            pending.ledger,
            pending.key,
            pending.first,
            pending.last,
            pending.bytes_max,
            fence=pending.fence,
            past_lac=pending.past_lac,
            timeout_s=timeout_s,
        )

    def cancel(self, pending: ReadEntriesRequest | trio.CancelScope) -> None:
        if isinstance(pending, trio.CancelScope):
            pending.cancel()

    async def read(
        self,
        ledger: int,
        key: bytes,
        first: int,
        last: int,
        bytes_max: int,
        *,
        fence: bool = False,
        past_lac: bool = False,
        timeout_s: float,
    ) -> ReadResponse:
        self.node.asked["read"] = self.node.asked.get("read", 0) + 1
        await self._ask(timeout_s)
        complete_to, lac, known, records = self.node.model.read(
            ledger, key, first, last, self.node.entries_max, fence=fence
        )
        if self.node.garbles is not None:
            records = self.node.garbles([bytes(one) for one in records])
        return ReadResponse(complete_to, lac, known, memoryview(b"".join(records)))

    async def wait_lac(
        self,
        ledger: int,
        key: bytes,
        previous_lac: int,
        *,
        wait_s: float,
        bytes_max: int = 0,
        timeout_s: float,
    ) -> LongPollResponse:
        await self._ask(timeout_s)
        held = self.node.model.ledger(ledger, key)
        with trio.move_on_after(wait_s):
            while held.lac <= previous_lac and not held.fenced:
                await self.node.changed.wait()
        ids = [e for e in sorted(held.entries) if previous_lac < e <= held.lac][:2]
        body = b"".join(held.entries[e] for e in ids) if bytes_max else b""
        return LongPollResponse(held.lac, held.fenced, memoryview(body))

    def long_poll_lac(
        self,
        request: WaitLacRequest,
        on_response: Callable[[LongPollResponse | DistributedLogError, bool], None],
        *,
        persistent: bool,
    ) -> trio.CancelScope:
        if self.closed is not None:
            raise self.closed
        scope = trio.CancelScope()
        kind = "stand" if persistent else "wait"
        self.node.asked[kind] = self.node.asked.get(kind, 0) + 1

        async def answer() -> None:
            with scope:
                end = trio.current_time() + request.wait_ms / 1000
                after, more = request.previous_lac, True
                while more:
                    left = max(0.0, end - trio.current_time())
                    try:
                        found = await self.wait_lac(
                            request.ledger,
                            request.key,
                            after,
                            wait_s=left,
                            bytes_max=request.bytes_max,
                            timeout_s=1e9,
                        )
                    except DistributedLogError as error:
                        on_response(error, False)
                        return
                    more = persistent and found.lac > after
                    after = found.lac
                    on_response(found, more)

        trio.lowlevel.spawn_system_task(answer)
        return scope

    async def wait_for_capability(self, *asked: object) -> None:
        """Stored keys alone are shown here."""

    async def list_entries(self, ledger: int, key: bytes, timeout_s: float) -> EntryList:
        await self._ask(timeout_s)
        held = self.node.model.ledger(ledger, key)
        return EntryList([(e, 1) for e in sorted(held.entries)], not held.limbo)


class ModelAddStream:
    """One add stream."""

    def __init__(
        self,
        client: ModelClient,
        ledger: int,
        key: bytes,
        recovery: bool,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._node = client.node
        self._on_acked = on_acked
        self._on_refused = on_refused
        self._on_progress = on_progress
        self._on_broken = on_broken
        self._stream = ModelStream(client.node.model, ledger, key, recovery=recovery)
        self._recovery = recovery
        self.acked = 0
        self.told = False
        self.has_lac_waiters = False

    def send(self, record: Buffer) -> None:
        self._node.post(lambda: self._arrive(record))

    def shared_sender(self, streams: Sequence[object]) -> None:
        """Model connections share nothing."""

    def shared_lac_sender(self, streams: Sequence[object]) -> None:
        """Each by itself."""

    def send_lac(self, lac: int) -> None:
        def arrive() -> None:
            self._stream.write_lac(lac)
            self._node.news()

        self._node.post(arrive)

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        self._node.post(lambda: self._reply(on_processed))

    def close(self) -> None:
        if self in self._client.streams:
            self._client.streams.remove(self)

    def lose(self, error: DistributedLogError) -> None:
        self._refuse(self.acked, error)

    def _refuse(self, position: int, error: DistributedLogError) -> None:
        try:
            self._on_refused(position, error)
        except Exception as fault:
            self._on_broken(fault)

    def _arrive(self, record: Buffer) -> None:
        node = self._node
        if node.swallow is not None and node.swallow(header_of(record).entry):
            return
        if node.refuse_adds is not None and not self._recovery:
            if self._stream.refusal is None:
                self._stream.refusal = node.refuse_adds
                self._reply(
                    lambda: self._refuse(self._stream.count, node.refuse_adds or ConnectionLost(""))
                )
            return
        if self._stream.add(record):
            node.news()
            count = self._stream.count
            if not node.mute:
                self._reply(lambda: self._ack(count))
        elif self._stream.refusal is not None and not self.told:
            self.told = True
            error = self._stream.refusal
            self._reply(lambda: self._refuse(self._stream.count, error))

    def _ack(self, count: int) -> None:
        self.acked = count
        try:
            if self._on_acked(count):
                self._on_progress()
        except ProtocolError as error:
            self.lose(error)
        except Exception as error:
            self._on_broken(error)

    def _reply(self, action: Callable[[], None]) -> None:
        def told() -> None:
            if self in self._client.streams and self._client.closed is None:
                action()

        self._node.later(told)


class Node:
    """One bookie and its misfortunes."""

    def __init__(self, bookie_id: str, cluster: "ModelCluster") -> None:
        self.id = bookie_id
        self.cluster = cluster
        self.model = ModelBookie(bookie_id)
        self.client: ModelClient | None = ModelClient(self)
        self.registered = True
        self.hung = False
        """Reads nothing: what is sent to it waits."""
        self.mute = False
        """Stores adds and acks none."""
        self.garbles: Callable[[list[bytes]], list[bytes]] | None = None
        """What a read's records become on their way."""
        self.swallow: Callable[[int], bool] | None = None
        """Adds of these entries never arrive."""
        self.refuse_adds: DistributedLogError | None = None
        self.refuse_reads: DistributedLogError | None = None
        self.loses_fences = False
        self.entries_max = 100
        self.read_delay_s = 0.0
        self.add_delay_s = 0.0
        self.asked: dict[str, int] = {}
        self.asking = 0
        self.asking_max = 1_000_000
        """Above so many questions at once it is too busy; ``busy`` counts how often."""
        self.busy = 0
        self.changed = trio.Event()
        self._inbox: list[Callable[[], None]] = []
        self._arrives = 0.0

    def news(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def later(self, action: Callable[[], None], delay_s: float = LATENCY_S) -> None:
        self.cluster.later(delay_s, action)

    def post(self, action: Callable[[], None]) -> None:
        """A message on its way to the bookie; order is kept."""

        def arrive() -> None:
            self._inbox.append(action)
            self.drain()

        self._arrives = max(self._arrives, trio.current_time() + LATENCY_S + self.add_delay_s)
        self.later(arrive, self._arrives - trio.current_time())

    def drain(self) -> None:
        while self._inbox and not self.hung:
            self._inbox.pop(0)()

    def hang(self, on: bool = True) -> None:
        self.hung = on
        self.news()
        self.drain()

    def disconnect(self) -> None:
        """The connection breaks and cannot be made again until `reconnect`."""
        client, self.client = self.client, None
        if client is not None:
            client.close()
        self.cluster.pool.tell()

    def reconnect(self) -> None:
        self.client = ModelClient(self)
        self.cluster.pool.tell()

    def stop(self) -> None:
        """Gone from the registry as well."""
        self.registered = False
        self.disconnect()

    def start(self) -> None:
        self.registered = True
        self.reconnect()


class ModelPool(BookiePool):
    """Over model bookies: who is there and connected is theirs to say."""

    def __init__(self) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self._placement_error = None  # what nobody lists was listed
        self.nodes: dict[str, Node] = {}

    def get(self, bookie_id: str) -> Any:
        node = self.nodes.get(bookie_id)
        return None if node is None else node.client

    def live(self) -> list[BookieRegistration]:
        return [
            BookieRegistration(one, {}, read_only=node.model.read_only)
            for one, node in sorted(self.nodes.items())
            if node.registered and node.client is not None
        ]

    def known_ids(self) -> list[str]:
        return sorted(self.nodes)

    def registration(self, bookie_id: str) -> BookieRegistration | None:
        return next((one for one in self.live() if one.id == bookie_id), None)

    def tell(self) -> None:
        self._notify_change()


class FrozenMetadata(LocalMetadata):
    """Can stand still, and counts what changes ledgers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False
        self.thawed = trio.Event()
        self.writes: list[Transaction] = []
        self.loses: Callable[[Transaction], bool | None] | None = None
        """Whose outcome is lost on the way: True, it was done; False, it was not; None, it is told."""

    def freeze(self, on: bool = True) -> None:
        self.frozen = on
        self.thawed.set()
        self.thawed = trio.Event()

    async def transact(self, transaction: Transaction) -> TransactionReply:
        while self.frozen:
            await self.thawed.wait()
        lost = None if self.loses is None else self.loses(transaction)
        if lost is False:
            raise OutcomeUnknown("the answer was lost, and so was the request")
        reply = await super().transact(transaction)
        if reply.succeeded:
            self.writes.append(transaction)
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return reply


class ModelCluster:
    """Model bookies, a metadata store in process, and ledger clients over them."""

    def __init__(self, bookies: int, nursery: trio.Nursery) -> None:
        self.store = FrozenMetadata()
        self.pool = ModelPool()
        self._nursery = nursery
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._sooner = trio.Event()
        nursery.start_soon(self._deliver)
        for n in range(bookies):
            self.add(f"b{n}")

    def __getitem__(self, bookie_id: str) -> Node:
        return self.pool.nodes[bookie_id]

    def add(self, bookie_id: str) -> Node:
        node = self.pool.nodes[bookie_id] = Node(bookie_id, self)
        self.pool.tell()
        return node

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then; what is due at the same time keeps its order."""
        self._sequence += 1
        heapq.heappush(self._due, (trio.current_time() + delay_s, self._sequence, action))
        if self._due[0][1] == self._sequence:
            self._sooner.set()

    async def _deliver(self) -> None:
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else float("inf")):
                await self._sooner.wait()
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()

    async def client(self, **options: object) -> LedgerClient:
        host = Host(
            name="client",
            dial=None,  # type: ignore[arg-type]
            listen=None,  # type: ignore[arg-type]
            disks={},
            random=random.Random(7),
            wall_ms=lambda: 1_700_000_000_000,
        )
        client = LedgerClient(
            host,
            no_endpoint(),
            self.store,
            self.pool,
            LedgerOptions(**options),  # type: ignore[arg-type]
        )
        await self._nursery.start(client.run)
        return client


@asynccontextmanager
async def model_cluster(bookies: int = 3) -> AsyncIterator[ModelCluster]:
    """For the length of a test."""
    async with trio.open_nursery() as nursery:
        yield ModelCluster(bookies, nursery)
        nursery.cancel_scope.cancel()


async def confirmed(writer: LedgerWriter) -> None:
    """All that was added, and a moment more for the bookies to hear of it."""
    with trio.fail_after(30):
        while writer.lac < writer.last_entry:  # noqa: ASYNC110 (virtual time)
            await trio.sleep(0.01)
    await trio.sleep(0.05)


async def record_of(cluster: ModelCluster, ledger_id: int) -> LedgerMetadata:
    """A ledger's record, as the store holds it."""
    found = await cluster.store.get(ledger_key(ledger_id))
    assert found is not None
    return LedgerMetadata.decode(found.key, found.value)


async def put_record(cluster: ModelCluster, record: LedgerMetadata, after_s: float = 0.0) -> None:
    """Store a ledger's record, whatever is there."""
    await trio.sleep(after_s)
    value = Put(ledger_key(record.ledger_id), record.encode())
    await LocalMetadata.transact(cluster.store, Transaction(operations=(value,)))


async def holes_of(cluster: ModelCluster, ledger_id: int) -> tuple[MissingRange, ...]:
    """What is noted that its bookies miss."""
    note = await cluster.store.get(missing_ranges_key(ledger_id))
    return () if note is None else decode_missing_ranges(note.value)


def add(writer: LedgerWriter, count: int, payload: bytes = b"x" * 10) -> int:
    """Add so many entries; the last one's id."""
    for _ in range(count):
        last = writer.add([payload], len(payload))
    return last


async def written(
    cluster: ModelCluster,
    entries: int,
    *,
    payload: Callable[[int], bytes] = lambda entry: b"x" * 10,
    **options: object,
) -> tuple[LedgerClient, LedgerWriter]:
    """A ledger with that many confirmed entries, and its writer."""
    client = await cluster.client(**options)
    writer = await client.create()
    for entry in range(entries):
        add(writer, 1, payload(entry))
    await confirmed(writer)
    return client, writer
