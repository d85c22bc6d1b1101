"""What the tests of repair share: real bookies on loopback beside a metadata store in memory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from distributedlog.bookie.client.bookie_client import BookieClient
from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format.entry import encode, records
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.cluster.repair.auditor_election import RepairLeaderElection
from distributedlog.cluster.repair.copier import Copier
from distributedlog.cluster.repair.replication_worker import ReplicationWorker
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import (
    MissingRange,
    decode_missing_ranges,
    encode_missing_ranges,
)
from distributedlog.ledger.placement.ensemble_placement import Candidate
from distributedlog.ledger.placement.placement_policy import PlacementPolicy
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.metadata.local_metadata import LocalMetadata

BOOKIES = ("b1", "b2", "b3")
KEY = bytes(range(16))
LEDGER = 7
OPTIONS = BookieOptions(journal_file_bytes=4 << 20, gather_bytes=1 << 20)


class Pool:
    """Connections by bookie id; who is not here is down."""

    def __init__(self) -> None:
        self.clients: dict[str, BookieClient] = {}
        self.placement = PlacementPolicy()

    def get(self, bookie_id: str) -> BookieClient | None:
        return self.clients.get(bookie_id)

    def labels(self, bookie_id: str) -> dict[str, str]:
        return {"host": "h1" if bookie_id in ("b1", "b2") else "h2"}


class World:
    """Bookies, their stores, and one who repairs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.metadata = LocalMetadata()
        self.pool = Pool()
        self.stores: dict[str, BookieStore] = {}
        self.copier = Copier(self.pool)
        self.election = RepairLeaderElection(self.metadata, "r", lambda: 1)
        self.repair = ReplicationWorker(self.metadata, self.pool, self.election, self.copier)

    async def start_bookie(self, name: str) -> None:
        host = real_host(name, disks={"journal": MemoryDisk(), "index": MemoryDisk()})
        endpoint = Endpoint(host, lambda: Hello("c", name, "bookie", name, "memory"))
        store = self.stores[name] = await open_store(host, OPTIONS, bookie_id=name)
        listener = await host.listen(("127.0.0.1", 0))
        await self.nursery.start(store.run)
        await self.nursery.start(partial(serve_bookie_protocol, endpoint, {"": listener}, store))
        link = await endpoint.dial(listener.address, nursery=self.nursery, expected_node_id=name)
        self.pool.clients[name] = BookieClient(link, name)
        await self.register(name)

    async def register(self, name: str) -> None:
        """Cookie and registration, as far as repair looks at them."""
        said = BookieRegistration(name, {"": ("127.0.0.1", 1)})
        puts = (Put(keys.cookie_key(name), b"c"), Put(keys.bookie_key(name), said.encode()))
        await self.metadata.transact(Transaction((), puts))

    def candidates(self) -> list[Candidate]:
        return [Candidate(name) for name in sorted(self.pool.clients)]

    async def write(self, bookie: str, entries: Sequence[int], *, recovery: bool = False) -> None:
        done = trio.Event()
        stream = self.pool.clients[bookie].open_stream(
            LEDGER,
            KEY,
            recovery=recovery,
            fragment_epoch=0,
            on_acked=lambda count: done.set() if count == len(entries) else None,
            on_refused=lambda position, error: pytest.fail(str(error)),
        )
        for entry in entries:
            stream.send(_record(entry))
        with trio.fail_after(5):
            await done.wait()
        stream.close()

    async def refused(
        self, bookie: str, entry: int, *, recovery: bool = False
    ) -> DistributedLogError:
        """Why a bookie does not take an entry."""
        why: list[DistributedLogError] = []
        told = trio.Event()

        def on_refused(position: int, error: DistributedLogError) -> None:
            why.append(error)
            told.set()

        stream = self.pool.clients[bookie].open_stream(
            LEDGER,
            KEY,
            recovery=recovery,
            fragment_epoch=0,
            on_acked=lambda count: pytest.fail("it was taken"),
            on_refused=on_refused,
        )
        stream.send(_record(entry))
        with trio.fail_after(5):
            await told.wait()
        stream.close()
        return why[0]

    async def begin_recovery(self) -> None:
        """The record says that the ledger's writer is gone."""
        opened = await self.record()
        await self.metadata.transact(transactions.change_ops(opened, opened.in_recovery(), 1))

    async def ledger(
        self,
        last_entry: int | None,
        *,
        sizes: tuple[int, int, int] = (3, 3, 2),
        ensembles: tuple[Fragment, ...] = (Fragment(0, BOOKIES, 0),),
    ) -> None:
        """Create the ledger's record, closed where ``last_entry`` is given."""
        ledger = LedgerMetadata(LEDGER, *sizes, ensembles, KEY)
        await self.metadata.transact(transactions.creation_ops(ledger, ()))
        if last_entry is not None:
            closed = ledger.close_by_writer(last_entry, 10 * (last_entry + 1))
            await self.metadata.transact(transactions.close_ops(closed, 1, ()))

    async def record(self) -> LedgerMetadata:
        found = await self.metadata.get(keys.ledger_key(LEDGER))
        assert found is not None
        return LedgerMetadata.decode(found.key, found.value)

    async def note(self, *holes: MissingRange) -> KeyValue:
        put = Put(keys.missing_ranges_key(LEDGER), encode_missing_ranges(holes))
        await self.metadata.transact(Transaction((), (put,)))
        found = await self.metadata.get(keys.missing_ranges_key(LEDGER))
        assert found is not None
        return found

    async def noted(self) -> tuple[MissingRange, ...]:
        found = await self.metadata.get(keys.missing_ranges_key(LEDGER))
        return () if found is None else decode_missing_ranges(found.value)

    async def held(self, bookie: str, last: int) -> list[bytes]:
        answer = await self.pool.clients[bookie].read(
            LEDGER, KEY, 0, last, 1 << 20, past_lac=True, timeout_s=5
        )
        return [bytes(record.record) for record in records(answer.body)]

    async def ids(self, bookie: str) -> list[int]:
        listed = await self.pool.clients[bookie].list_entries(LEDGER, KEY, timeout_s=5)
        return [entry for first, n in listed.ranges for entry in range(first, first + n)]


def _record(entry: int) -> bytearray:
    payload = b"entry %d" % entry
    return encode(LEDGER, entry, 10 * (entry + 1), entry - 1, (payload,), len(payload))


@asynccontextmanager
async def world(*names: str) -> AsyncIterator[World]:
    """Three bookies, or the ones that are named."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            made = World(nursery)
            for name in names or BOOKIES:
                await made.start_bookie(name)
            yield made
            nursery.cancel_scope.cancel()
