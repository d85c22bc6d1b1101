"""The minimal repair against real bookies on loopback (H22, H22b)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from distributedlog.bookie.client import BookieClient
from distributedlog.bookie.entry import encode, records
from distributedlog.bookie.options import BookieOptions
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.store import Store
from distributedlog.cluster.copying import Copier
from distributedlog.cluster.repair import ELECTION_KEY, Election, Repair
from distributedlog.ledger import holes as notes
from distributedlog.ledger import keys
from distributedlog.ledger.holes import Hole
from distributedlog.ledger.metadata import Fragment, LedgerMetadata
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import KeyValue, Put, Transaction
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.memory import MemoryDisk
from distributedlog.runtime.rpc import Endpoint, Hello

BOOKIES = ("b1", "b2", "b3")
KEY = bytes(range(16))
LEDGER = 7
OPTIONS = BookieOptions(journal_file_bytes=4 << 20, gather_bytes=1 << 20)


class _Pool:
    """Connections by bookie id; who is not here is down."""

    def __init__(self) -> None:
        self.clients: dict[str, BookieClient] = {}

    def get(self, bookie_id: str) -> BookieClient | None:
        return self.clients.get(bookie_id)


class _World:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.metadata = LocalMetadata()
        self.pool = _Pool()
        self.copier = Copier(self.pool)
        self.election = Election(self.metadata, "r", lambda: 1)
        self.repair = Repair(self.metadata, self.pool, self.election, self.copier)

    async def start_bookie(self, name: str) -> None:
        host = real_host(name, disks={"journal": MemoryDisk(), "index": MemoryDisk()})
        endpoint = Endpoint(host, lambda: Hello("c", name, "bookie", name, "memory"))
        store = await Store.open(host, OPTIONS, bookie_id=name)
        listener = await host.listen(("127.0.0.1", 0))
        await self.nursery.start(store.run)
        await self.nursery.start(partial(serve_bookie_protocol, endpoint, {"": listener}, store))
        link = await endpoint.dial(listener.address, nursery=self.nursery, expected_node_id=name)
        self.pool.clients[name] = BookieClient(link, name)

    async def write(self, bookie: str, entries: range) -> None:
        done = trio.Event()
        stream = self.pool.clients[bookie].open_stream(
            LEDGER,
            KEY,
            recovery=False,
            fragment_epoch=0,
            on_acked=lambda count: done.set() if count == len(entries) else None,
            on_refused=lambda position, error: pytest.fail(str(error)),
        )
        for entry in entries:
            payload = b"entry %d" % entry
            stream.send(
                encode(LEDGER, entry, 10 * (entry + 1), entry - 1, (payload,), len(payload))
            )
        with trio.fail_after(5):
            await done.wait()
        stream.close()

    async def ledger(self, last_entry: int | None) -> None:
        ledger = LedgerMetadata(LEDGER, 3, 3, 2, (Fragment(0, BOOKIES, 0),), KEY)
        if last_entry is not None:
            ledger = ledger.close_by_writer(last_entry, 10 * (last_entry + 1))
        put = Put(keys.ledger_key(LEDGER), ledger.encode())
        await self.metadata.transact(Transaction((), (put,)))

    async def note(self, *holes: Hole) -> KeyValue:
        put = Put(keys.under_key(LEDGER), notes.encode(holes))
        await self.metadata.transact(Transaction((), (put,)))
        found = await self.metadata.get(keys.under_key(LEDGER))
        assert found is not None
        return found

    async def held(self, bookie: str, last: int) -> list[bytes]:
        answer = await self.pool.clients[bookie].read(
            LEDGER, KEY, 0, last, 1 << 20, past_lac=True, timeout_s=5
        )
        return [bytes(record.raw) for record in records(answer.body)]


@asynccontextmanager
async def _world() -> AsyncIterator[_World]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            world = _World(nursery)
            for name in BOOKIES:
                await world.start_bookie(name)
            yield world
            nursery.cancel_scope.cancel()


async def test_a_bookie_that_was_away_gets_the_same_bytes_and_the_note_goes() -> None:
    """H2: what is copied is the record as its writer made it."""
    async with _world() as world:
        for bookie in ("b1", "b2"):
            await world.write(bookie, range(100))
        await world.write("b3", range(30))
        await world.ledger(99)
        note = await world.note(Hole("b3", 25, None))

        assert await world.repair.fill(note)

        assert await world.held("b3", 99) == await world.held("b1", 99)
        assert len(await world.held("b3", 99)) == 100
        assert world.copier.copied_entries == 70  # 25 to 29 were there
        assert await world.metadata.get(keys.under_key(LEDGER)) is None


async def test_a_bookie_that_fenced_the_ledger_takes_the_copies() -> None:
    """H2: the record does not say how it is added; on a fenced ledger a copy is a recovery add."""
    async with _world() as world:
        for bookie in ("b1", "b2"):
            await world.write(bookie, range(10))
        for bookie in BOOKIES:
            await world.pool.clients[bookie].fence(LEDGER, KEY, 5)
        await world.ledger(9)
        note = await world.note(Hole("b3", 0, None))

        assert await world.repair.fill(note)

        assert await world.held("b3", 9) == await world.held("b1", 9)
        assert len(await world.held("b3", 9)) == 10


async def test_an_open_ledger_is_left_to_its_writer() -> None:
    """H22b: the repair fences nobody; the writer goes on."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(None)
        note = await world.note(Hole("b3", 0, None))

        assert not await world.repair.fill(note)

        await world.write("b1", range(10, 20))
        assert await world.metadata.get(keys.under_key(LEDGER)) is not None


async def test_what_is_down_stays_in_the_note_and_the_rest_is_done() -> None:
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        note = await world.note(Hole("b2", 0, None), Hole("b3", 0, None))
        away = world.pool.clients.pop("b3")

        assert not await world.repair.fill(note)

        left = await world.metadata.get(keys.under_key(LEDGER))
        assert left is not None
        assert [hole.bookie for hole in notes.decode(left.value)] == ["b3"]
        assert len(await world.held("b2", 9)) == 10
        world.pool.clients["b3"] = away
        assert await world.repair.fill(left)
        assert await world.metadata.get(keys.under_key(LEDGER)) is None


async def test_a_note_that_grew_meanwhile_is_not_removed() -> None:
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        stale = await world.note(Hole("b3", 0, 5))
        await world.note(Hole("b3", 0, None))

        assert not await world.repair.fill(stale)

        assert await world.metadata.get(keys.under_key(LEDGER)) is not None


async def test_without_any_source_nothing_is_lost_from_the_note() -> None:
    async with _world() as world:
        await world.ledger(9)
        note = await world.note(Hole("b3", 0, None))

        assert not await world.repair.fill(note)

        assert await world.metadata.get(keys.under_key(LEDGER)) is not None


async def test_a_note_without_a_ledger_is_swept_up() -> None:
    async with _world() as world:
        assert await world.repair.fill(await world.note(Hole("b3", 0, None)))
        assert await world.metadata.get(keys.under_key(LEDGER)) is None


async def test_one_bookie_is_elected_and_another_follows_when_its_lease_ends() -> None:
    metadata = LocalMetadata()
    leases = [await metadata.grant_lease(6000), await metadata.grant_lease(6000)]
    one = Election(metadata, "b1", lambda: leases[0])
    two = Election(metadata, "b2", lambda: leases[1])

    assert await one.elected()
    assert not await two.elected()
    await metadata.revoke_lease(leases[0])
    assert await two.elected()
    holder = await metadata.get(ELECTION_KEY)
    assert holder is not None
    assert holder.value == b"b2"
