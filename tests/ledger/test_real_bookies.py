"""The whole ledger part over real bookie stores, real frames and the real pool, in virtual time."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.session.bookie_authorizer import BookieAuthorizer
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.cluster.repair.manual_repair import ManualRepair
from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_ids import BLOCK_LIFETIME_S, next_ledger
from distributedlog.ledger.model.ledger_keys import (
    PLACEMENT,
    bookie_key,
    cookie_key,
    leaving_key,
    ledger_key,
    missing_ranges_key,
)
from distributedlog.ledger.model.ledger_metadata import DeclaredLoss, LedgerMetadata
from distributedlog.ledger.placement.bookie_pool import UNREGISTERED_S, BookiePool
from distributedlog.ledger.placement.placement_policy import PlacementPolicy
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    EntriesLost,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.principals import Credentials
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.metadata.local_metadata import LocalMetadata
from tests.runtime.pipe import PipeNetwork

OPTIONS = BookieOptions(
    journal_file_bytes=1 << 20,
    gather_bytes=256 << 10,
    gather_buffers=4,
    unsynced_bytes_max=512 << 10,
    free_bytes_min=0,
)


class RealCluster:
    """Bookies that can be stopped and started again on their disks."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.network = PipeNetwork(3)
        self.store = LocalMetadata()
        self.nursery = nursery
        self.disks: dict[str, MemoryDisk] = {}
        self.stores: dict[str, BookieStore] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.racks: dict[str, str] = {}
        self.gates: dict[str, BookieAuthorizer] = {}

    async def start(self, bookie_id: str, port: int = 0) -> None:
        disk = self.disks.setdefault(bookie_id, MemoryDisk())
        await self.nursery.start(self._serve, bookie_id, disk, port)

    async def _serve(
        self, bookie_id: str, disk: MemoryDisk, port: int, *, task_status: trio.TaskStatus[None]
    ) -> None:
        host = self.network.host(bookie_id, journal=disk, index=disk)
        endpoint = Endpoint(host, lambda: Hello("c1", bookie_id, "bookie"))
        with trio.CancelScope() as scope:
            self.scopes[bookie_id] = scope
            store = self.stores[bookie_id] = await open_store(host, OPTIONS, bookie_id=bookie_id)
            listener = await host.listen((bookie_id, port))
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(store.run)
                    gate = self.gates[bookie_id] = BookieAuthorizer(86_400.0, trio.current_time)
                    endpoint.methods["pass"] = lambda meeting, proof: gate.authenticate(proof)
                    serve = partial(
                        serve_bookie_protocol, endpoint, {"": listener}, store, authorizer=gate
                    )
                    nursery.start_soon(serve)
                    registration = BookieRegistration(
                        bookie_id, {"": listener.address}, rack=self.racks.get(bookie_id, "")
                    )
                    await self.put(Put(bookie_key(bookie_id), registration.encode()))
                    await self.put(Put(cookie_key(bookie_id), b""))
                    task_status.started()
            finally:
                listener.close()
                store.close()
                disk.unlock()

    async def stop(self, bookie_id: str) -> None:
        self.scopes[bookie_id].cancel()
        await self.put(Delete(bookie_key(bookie_id)))
        await trio.sleep(0.01)

    async def put(self, *operations: Put | Delete) -> None:
        await self.store.transact(Transaction(operations=operations))

    async def ask(self, principal: str, question: bytes) -> memoryview:
        """META_CAPS. (Where capabilities are tested this is another one.)"""
        raise QuorumUnreachable("nobody is asked here")

    async def client(
        self, *, principal: str = "", by: str = "token", **options: object
    ) -> LedgerClient:
        """``principal``: one that asks `ask` for capabilities; ``by``: how it proves who it is."""
        host = self.network.host(f"client{len(self.scopes)}")
        endpoint = Endpoint(host, lambda: Hello("c1", "", "client"))
        pool = BookiePool(endpoint, self.store)
        if principal:
            if by == "token":
                host = replace(
                    host, credentials=lambda address: Credentials("token", lambda meeting: b"")
                )
            endpoint = Endpoint(host, lambda: Hello("c1", "", "client"))
            pool = BookiePool(
                endpoint, self.store, request_capabilities=partial(self.ask, principal)
            )
        await self.nursery.start(pool.run)
        client = LedgerClient(host, endpoint, self.store, pool, LedgerOptions(**options))  # type: ignore[arg-type]
        await self.nursery.start(client.run)
        return client


@asynccontextmanager
async def real_cluster(
    bookies: int = 3,
    racks: Mapping[str, str] | None = None,
    made: type[RealCluster] = RealCluster,
) -> AsyncIterator[RealCluster]:
    async with trio.open_nursery() as nursery:
        cluster = made(nursery)
        cluster.racks.update(racks or {})
        for n in range(bookies):
            await cluster.start(f"b{n}")
        with trio.fail_after(600):
            yield cluster
        nursery.cancel_scope.cancel()


async def test_a_ledger_on_a_bookie_that_is_to_leave_or_gone_is_unwanted_where_there_are_others(
    autojump_clock: MockClock,
) -> None:
    """Also where it is empty. A moment of absence is none, and without enough others nothing is better."""
    async with real_cluster(5) as cluster:
        client = await cluster.client()
        writer = await client.create()
        one, other, third = (await record_of(cluster, writer)).last_fragment.bookies
        assert not writer.should_close_early

        await cluster.put(Put(leaving_key(one), b""))
        await trio.sleep(0.1)
        assert writer.should_close_early
        assert one not in [candidate.id for candidate in client.pool.candidates()]
        for _ in range(10):
            following = await client.create()
            assert one not in (await record_of(cluster, following)).bookies()
            assert not following.should_close_early
            following.abort()

        await cluster.put(Delete(leaving_key(one)))
        await trio.sleep(0.1)
        assert not writer.should_close_early
        await cluster.stop(other)
        await trio.sleep(UNREGISTERED_S - 1)
        assert not writer.should_close_early
        await trio.sleep(2)
        assert writer.should_close_early
        for bookie in ("b0", "b1", "b2", "b3", "b4"):
            if bookie not in (one, other, third):
                await cluster.stop(bookie)
        assert not writer.should_close_early
        writer.abort()


async def test_a_ledger_that_a_bookie_has_in_limbo_should_end_once_new_ones_are_not(
    autojump_clock: MockClock,
) -> None:
    """H7: what is open is healed when it has ended, and an idle log's segment ended never."""
    async with real_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await trio.sleep(2 * BLOCK_LIFETIME_S)
        said = client.pool.registration("b1")
        assert said is not None
        assert not writer.should_close_early

        await cluster.put(Delete(bookie_key("b1")))  # it was started again
        await trio.sleep(1)
        lost = replace(said, limbo_below=await next_ledger(cluster.store))
        await cluster.put(Put(bookie_key("b1"), lost.encode()))
        await trio.sleep(BLOCK_LIFETIME_S / 2)
        assert not writer.should_close_early
        await trio.sleep(BLOCK_LIFETIME_S / 2 + 1)
        assert writer.should_close_early

        following = await client.create()
        await trio.sleep(2 * BLOCK_LIFETIME_S)
        assert not following.should_close_early
        assert "b1" in (await record_of(cluster, following)).bookies()

        beyond = replace(said, limbo_below=1 << 60)  # that cannot be
        await cluster.put(Put(bookie_key("b1"), beyond.encode()))
        young = await client.create()
        await trio.sleep(BLOCK_LIFETIME_S - 1)
        assert not young.should_close_early  # else each would end as soon as it was made
        await trio.sleep(2)
        assert young.should_close_early

        await cluster.put(Put(bookie_key("b1"), said.encode()))
        await trio.sleep(1)
        assert not writer.should_close_early
        for one in (writer, following, young):
            one.abort()


async def test_a_writer_that_was_refused_for_limbo_leaves_as_well(
    autojump_clock: MockClock,
) -> None:
    """Its slot has failed on that connection, which counted against a new ledger, too."""
    async with real_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        said = client.pool.registration("b1")
        assert said is not None
        store = cluster.stores["b1"]
        store.ledgers.limbo_below = await next_ledger(cluster.store)
        await cluster.put(
            Put(bookie_key("b1"), replace(said, limbo_below=store.limbo.limbo_bound).encode())
        )
        writer.add([b"x"], 1)
        await trio.sleep(BLOCK_LIFETIME_S + 1)

        assert writer.lac == 0
        assert not writer.needs_roll
        assert writer.should_close_early
        following = await client.create()
        following.add([b"x"], 1)
        await trio.sleep(1)
        assert await cluster.store.get(missing_ranges_key(following.ledger_id)) is None  # no holes
        assert "b1" in (await record_of(cluster, following)).bookies()
        for one in (writer, following):
            one.abort()


async def test_an_enforced_policy_stops_new_ledgers_with_the_last_rack_but_one_and_a_preference_does_not(
    autojump_clock: MockClock,
) -> None:
    """H111: who writes goes on, and its bookies are replaced by those of another rack alone."""
    racks = {"b0": "r0", "b1": "r0", "b2": "r1", "b3": "r2", "b4": "r0"}
    async with real_cluster(3, racks) as cluster:
        await cluster.put(Put(PLACEMENT, PlacementPolicy("rack", 2, enforced=True).encode()))
        client = await cluster.client()
        writer = await client.create()
        await cluster.start("b3")
        await cluster.start("b4")

        await cluster.stop("b2")
        writer.add([b"x"], 1)
        await confirmed(writer)
        await trio.sleep(5)
        assert set((await record_of(cluster, writer)).last_fragment.bookies) == {"b0", "b1", "b3"}
        other = await client.create()
        assert "b3" in (await record_of(cluster, other)).last_fragment.bookies
        other.abort()

        await cluster.stop("b3")
        writer.add([b"x"], 1)
        await confirmed(writer)
        await trio.sleep(5)
        assert (await record_of(cluster, writer)).last_fragment.bookies.count("b4") == 0
        with pytest.raises(NotEnoughBookies, match=r"in 2 racks, enforced .there are .'r0'."):
            await client.create()

        await cluster.put(Delete(PLACEMENT))
        await trio.sleep(0.1)
        other = await client.create()
        other.add([b"x"], 1)
        await confirmed(other)
        other.abort()
        writer.abort()


async def test_who_never_could_read_the_policy_makes_no_ledger_and_who_could_goes_on(
    autojump_clock: MockClock,
) -> None:
    """H111: it may have been enforced; unknown is no preference."""
    async with real_cluster(3) as cluster:
        before = await cluster.client()
        await cluster.put(Put(PLACEMENT, b"rot"))
        after = await cluster.client()

        with pytest.raises(CorruptData, match="dlog placement"):
            await after.create()
        (await before.create()).abort()
        await cluster.put(Put(PLACEMENT, PlacementPolicy("host").encode()))
        await trio.sleep(0.1)
        (await after.create()).abort()
        await cluster.put(Put(PLACEMENT, b"rot"))
        await trio.sleep(0.1)
        (await after.create()).abort()


async def test_who_opened_a_ledger_before_a_loss_was_declared_is_given_nothing_of_it_after_a_return(
    autojump_clock: MockClock,
) -> None:
    """H103, G5: its bookies come back with the entries, and the reader has met no error meanwhile."""
    async with real_cluster() as cluster:
        client = await cluster.client()
        writer = await client.create()
        for n in range(10):
            assert writer.add([b"%d" % n], 1) == n
        await writer.close()
        before = await client.open(writer.ledger_id)
        assert [one.entry for one in await before.read(0, 2, bytes_max=1000)] == [0, 1, 2]
        for bookie in ("b0", "b1", "b2"):
            await cluster.stop(bookie)
        closed = await record_of(cluster, writer)
        lost = closed.with_loss(DeclaredLoss(4, 6, "op", 1, "three disks"))
        await cluster.put(Put(ledger_key(writer.ledger_id), lost.encode()))
        for bookie in ("b0", "b1", "b2"):
            await cluster.start(bookie)
        await trio.sleep(2)

        found = await before.read(3, 9, bytes_max=1000)
        assert [one.entry for one in found] == [3]
        with pytest.raises(EntriesLost):
            await before.read(5, 9, bytes_max=1000)
        assert [one.entry for one in await before.read(7, 9, bytes_max=1000)] == [7, 8, 9]


async def test_a_bookie_that_went_and_came_while_nothing_was_seen_has_come_anew(
    autojump_clock: MockClock,
) -> None:
    """H103: the client was cut off, and lists all again; one that only said more of itself was there."""
    store = LocalMetadata()
    pool = BookiePool(None, store)  # type: ignore[arg-type]

    async def put(*operations: Put | Delete) -> None:
        await trio.sleep(1)
        await store.transact(Transaction(operations=operations))

    async def came() -> list[float]:
        await pool._load(bookie_key(""), lambda key, value: None)
        return [pool.registered_since("b1"), pool.registered_since("b2")]

    assert pool.registered_since("b1") == float("-inf")
    await put(Put(bookie_key("b1"), b""), Put(bookie_key("b2"), b""))
    began = await came()
    await put(Put(bookie_key("b1"), b"read-only"))
    assert await came() == began
    await put(Delete(bookie_key("b1")))
    await put(Put(bookie_key("b1"), b""))
    assert await came() == [trio.current_time(), began[1]]


async def record_of(cluster: RealCluster, writer: LedgerWriter) -> LedgerMetadata:
    found = await cluster.store.get(ledger_key(writer.ledger_id))
    assert found is not None
    return LedgerMetadata.decode(found.key, found.value)


async def confirmed(writer: LedgerWriter) -> None:
    while writer.lac < writer.last_entry and writer.error is None:  # noqa: ASYNC110 (virtual time)
        await trio.sleep(0.01)
    if writer.error is not None:
        raise writer.error


async def read_all(client: LedgerClient, ledger_id: int) -> list[bytes]:
    found: list[bytes] = []
    with await client.open(ledger_id) as reader:
        while len(found) <= reader.lac:
            some = await reader.read(len(found), reader.lac, bytes_max=100_000)
            found += [bytes(one.payload) for one in some]
    return found


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2)])
async def test_write_tail_fail_over_recover_read(
    quorums: tuple[int, int, int], autojump_clock: MockClock
) -> None:
    """G1 to G5 once through, with a bookie that is stopped on the way."""
    async with real_cluster(5) as cluster:
        client = await cluster.client()
        other = await cluster.client()
        prepared = await client.prepare(quorums=quorums)
        assert (await cluster.store.transact(prepared.create_ops())).succeeded
        writer = client.writer(prepared)
        chance = random.Random(5)
        wanted: list[bytes] = []
        tailed: list[bytes] = []

        async def tail() -> None:
            with await other.open(prepared.ledger_id) as reader:
                while not reader.closed or len(tailed) <= reader.lac:
                    lac = await reader.wait(len(tailed) - 1, wait_s=5.0)
                    while len(tailed) <= lac:
                        some = await reader.read(len(tailed), lac, bytes_max=100_000)
                        tailed.extend(bytes(one.payload) for one in some)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail)
            for n in range(200):
                payload = chance.randbytes(chance.choice([0, 10, 1000, 20_000]))
                wanted.append(payload)
                await writer.wait_capacity()
                assert writer.add([payload[:7], payload[7:]], len(payload)) == n
                if n % 20 == 0:
                    await trio.sleep(0.005)
                if n == 100:
                    await cluster.stop(prepared.metadata.last_fragment.bookies[1])
            await confirmed(writer)
            writer.add([b"unknown"], 7)
            closed = await other.recover(prepared.ledger_id)
        assert closed.last_entry is not None
        assert closed.last_entry >= 199
        wanted += [b"unknown"] * (closed.last_entry - 199)
        assert closed.length == sum(map(len, wanted))
        assert tailed == wanted
        assert await read_all(client, prepared.ledger_id) == wanted
        await trio.sleep(0.1)
        with suppress(LedgerFenced, LedgerClosed):  # or it finds the end that it would have written
            assert await writer.close() == closed


async def test_all_copies_are_byte_equal_after_recovery(autojump_clock: MockClock) -> None:
    """H2: one encoding, whoever wrote the copy."""
    async with real_cluster(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        for n in range(30):
            writer.add([b"%d" % n * 50], len(b"%d" % n * 50))
            if n == 15:
                bookie = writer._change.metadata.last_fragment.bookies[0]
                await confirmed(writer)
                await cluster.stop(bookie)
        closed = await client.recover(writer.ledger_id)
        assert closed.last_entry is not None
        copies: dict[int, set[bytes]] = {}
        for bookie in closed.bookies():
            connection = client.pool.get(bookie)
            if connection is None:
                continue
            answer = await connection.read(
                writer.ledger_id, closed.key, 0, 100, 1 << 20, past_lac=True, timeout_s=5.0
            )
            for record in entries.records(answer.body):
                copies.setdefault(record.entry, set()).add(bytes(record.record))
        assert sorted(copies) == list(range(closed.last_entry + 1))
        assert all(len(one) == 1 for one in copies.values())


async def test_a_reader_that_was_open_before_all_its_bookies_were_replaced_reads_on(
    autojump_clock: MockClock,
) -> None:
    """One after the other dies, and what it held is stored elsewhere: the reader knows the first three."""
    async with real_cluster(6) as cluster:
        client = await cluster.client()
        writer = await client.create()
        for n in range(20):
            writer.add([b"%d" % n], len(b"%d" % n))
        await confirmed(writer)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert [bytes(one.payload) for one in await reader.read(0, 4, bytes_max=1 << 20)] == [
            b"%d" % n for n in range(5)
        ]
        old = (await record_of(cluster, writer)).bookies()
        now = ManualRepair(
            cluster.store, client.pool, client.pool.candidates, random.Random(1).random
        )

        for bookie in old:
            await cluster.stop(bookie)
            await now.load_bookies()
            assert (await now.work([writer.ledger_id])).left == {}

        assert not {*old} & {*(await record_of(cluster, writer)).bookies()}
        found: list[bytes] = []
        while len(found) < 15:
            found += [
                bytes(one.payload)
                for one in await reader.read(5 + len(found), 19, bytes_max=1 << 20)
            ]
        assert found == [b"%d" % n for n in range(5, 20)]
        reader.close()


async def test_two_bookies_swap_their_ports(autojump_clock: MockClock) -> None:
    """H6: the bookie that answers must be the one that was asked for; no ack from another."""
    async with real_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        writer.add([b"x"], 1)
        await confirmed(writer)
        await cluster.stop("b0")
        stolen = client.pool  # b0's registration says b1's address for a moment
        registration = stolen.registration("b1")
        assert registration is not None
        wrong = BookieRegistration("b0", registration.addresses)
        await cluster.put(Put(bookie_key("b0"), wrong.encode()))
        await trio.sleep(1)

        assert client.pool.get("b0") is None
        await cluster.start("b0")
        await trio.sleep(3)
        assert client.pool.get("b0") is not None
        writer.add([b"y"], 1)
        await confirmed(writer)
        closed = await writer.close()
        assert closed.last_entry == 1


async def test_recoveries_and_the_writer_race(autojump_clock: MockClock) -> None:
    async with real_cluster(3) as cluster:
        client = await cluster.client()
        others = [await cluster.client() for _ in range(3)]
        for round_ in range(5):
            writer = await client.create()
            ends: list[int | None] = []

            async def recover(one: LedgerClient, ends: list[int | None] = ends) -> None:
                ends.append((await one.recover(writer.ledger_id)).last_entry)  # noqa: B023

            async with trio.open_nursery() as nursery:
                for n in range(20):
                    if n == 5 + round_:
                        for one in others:
                            nursery.start_soon(recover, one)
                    if writer.error is None:
                        writer.add([b"z" * 100], 100)
                    await trio.sleep(0.001)
            with suppress(DistributedLogError):
                ends.append((await writer.close()).last_entry)
            assert len(set(ends)) == 1
            assert ends[0] is not None
            assert ends[0] >= writer.lac


async def test_a_deleted_ledger_leaves_to_dos(autojump_clock: MockClock) -> None:
    """H21: the record is DELETING, each of its bookies has a to-do instead of an index key."""
    async with real_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.close()
        await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id)
        listed = await cluster.store.range(b"\0", b"\xff")
        found = [item.key for item in listed.items if b"%016x" % writer.ledger_id in item.key]
        assert sorted(key.split(b"/")[0] for key in found) == [b"delete"] * 3 + [b"ledger"]


async def test_a_connection_is_waited_for_whatever_else_changes(autojump_clock: MockClock) -> None:
    """Other bookies come and go meanwhile; who does not come is `ConnectionLost` at the time limit."""
    async with real_cluster(2) as cluster:
        pool = (await cluster.client()).pool
        await cluster.stop("b1")
        with pytest.raises(ConnectionLost, match="b1"):
            await pool.connected("b1", 3.0)

        async def come() -> None:
            await cluster.stop("b0")
            await cluster.start("b0")
            await trio.sleep(2)
            await cluster.start("b1")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            began = trio.current_time()
            client = await pool.connected("b1", 10.0)
        assert client.close_error is None
        assert trio.current_time() - began < 5


async def test_an_entry_is_unreadable_when_all_bookies_have_it_damaged_on_their_disks(
    autojump_clock: MockClock,
) -> None:
    """H164: what real bookies say. One sound copy, or one bookie that is away, and nothing is certain."""
    async with real_cluster() as cluster:
        client = await cluster.client()
        writer, later = await client.create(), await client.create()
        for n in range(3):
            writer.add([b"entry %d!" % n * 1000], 8000)
        await confirmed(writer)
        await writer.close()
        for _ in range(20):  # so that nothing of it is in their memory
            later.add([bytes(200_000)], 200_000)
            await confirmed(later)
        reader = await client.open(writer.ledger_id)
        assert await reader.why_unreadable(1) == ""

        for n, disk in enumerate(cluster.disks.values()):
            ((data, place),) = [
                (content.data, at)
                for content in disk._files.values()
                if (at := content.data.find(b"entry 1!" * 100)) >= 0
            ]
            data[place + 4000] ^= 1
            why = await reader.why_unreadable(1)
            assert bool(why) == (n == 2)
        assert sorted(why.split("; ")) == [f"b{n}: its copy is damaged" for n in range(3)]
        with pytest.raises(CorruptData):
            await reader.read(1, 1, bytes_max=1)
        assert await reader.why_unreadable(2) == ""
        await cluster.stop("b1")
        assert await reader.why_unreadable(1) == ""
