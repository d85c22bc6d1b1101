"""A bookie over real connections: streams, reads, long polls, back-pressure, junk."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from distributedlog.bookie.client.bookie_client import AddStream, BookieClient, LongPollResponse
from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import bookie_messages as m
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.session.bookie_session import BookieSession
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    EntryConflict,
    LedgerFenced,
    NoSuchLedger,
    TooBusy,
    WrongLedgerKey,
)
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope
from distributedlog.runtime.protocol.handshake import FEATURES, Hello

from .kit import KEY, OPTIONS, CutDisk, ids, record

T = 10.0
BOOKIE = Hello("c1", "b1", "bookie", "b1", "memory")
CLIENT = Hello("c1", "", "client")


class Bookie:
    """A served store and a way to dial it."""

    def __init__(self, store: BookieStore, endpoint: Endpoint, address: tuple[str, int]) -> None:
        self.store = store
        self.endpoint = endpoint
        self.address = address

    async def dial(self, nursery: trio.Nursery) -> BookieClient:
        link = await self.endpoint.dial(self.address, nursery=nursery, expected_node_id="b1")
        return BookieClient(link, "b1")


@asynccontextmanager
async def served(
    options: BookieOptions = OPTIONS,
    disk: MemoryDisk | None = None,
    hello: Hello = BOOKIE,
    **more: object,
) -> AsyncIterator[tuple[Bookie, trio.Nursery]]:
    disk = disk or MemoryDisk()
    host = real_host("b1", disks={"journal": disk, "index": disk})
    store = await open_store(host, options, bookie_id="b1")
    listener = await host.listen(("127.0.0.1", 0))
    with trio.fail_after(T):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            server = Endpoint(host, lambda: hello)

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                await serve_bookie_protocol(
                    server,
                    {"": listener},
                    store,
                    task_status=task_status,
                    **more,  # type: ignore[arg-type]
                )

            await nursery.start(serve)
            client = Endpoint(host, lambda: CLIENT)
            yield Bookie(store, client, listener.address), nursery
            nursery.cancel_scope.cancel()


class Writing:
    """A stream and what was heard of it."""

    def __init__(self, client: BookieClient, ledger: int, *, recovery: bool = False) -> None:
        self.acked = 0
        self.refused: tuple[int, DistributedLogError] | None = None
        self.changed = trio.Event()
        self.stream: AddStream = client.open_stream(
            ledger,
            KEY,
            recovery=recovery,
            fragment_epoch=0,
            on_acked=self._on_acked,
            on_refused=self._on_refused,
        )

    def _on_acked(self, count: int) -> None:
        self.acked = count
        self._change()

    def _on_refused(self, position: int, error: DistributedLogError) -> None:
        self.refused = (position, error)
        self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until_acked(self, count: int) -> None:
        while self.acked < count:
            assert self.refused is None, self.refused
            await self.changed.wait()

    async def until_acked_though_refused(self, count: int) -> None:
        while self.acked < count:
            await self.changed.wait()

    async def until_refused(self) -> tuple[int, DistributedLogError]:
        while self.refused is None:
            await self.changed.wait()
        return self.refused


async def test_entries_go_in_and_come_out() -> None:
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        sent = [record(7, n, b"x" * (n * 100)) for n in range(50)]
        for each in sent:
            writing.stream.send(each)
        await writing.until_acked(50)

        answer = await client.read(7, KEY, 0, 48, 1 << 20, timeout_s=T)

        assert [bytes(r.record) for r in entries.records(answer.body)] == sent[:49]
        assert (answer.complete_to, answer.lac, answer.proves_absence) == (48, 48, True)
        listed = await client.list_entries(7, KEY, T)
        assert (listed.ranges, listed.proves_absence) == ([(0, 50)], True)
        assert (await client.info(T))["entries"] == 50


async def test_a_read_by_the_byte_says_how_far_it_is_complete() -> None:
    """H9: byte limits of one entry; what a reply does not hold is not said to be absent."""
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        here = [0, 1, 2, 5, 6, 9]
        for n in here:
            writing.stream.send(record(7, n))
        await writing.until_acked(len(here))

        found, first = [], 0
        while first <= 12:
            answer = await client.read(7, KEY, first, 12, 1, past_lac=True, timeout_s=T)
            ids = [each.entry for each in entries.records(answer.body)]
            assert len(ids) <= 1
            assert all(first <= n <= answer.complete_to for n in ids)
            assert answer.complete_to >= first
            found += ids
            first = answer.complete_to + 1

        assert found == here


async def test_a_fence_stops_the_writer_and_not_the_recovery() -> None:
    """Inv. 11 and 13."""
    async with served() as (bookie, nursery):
        writer, recoverer = await bookie.dial(nursery), await bookie.dial(nursery)
        writing = Writing(writer, 7)
        for n in range(10):
            writing.stream.send(record(7, n))
        await writing.until_acked(10)

        answer = await recoverer.fence(7, KEY, T)
        writing.stream.send(record(7, 10))
        position, error = await writing.until_refused()
        rewriting = Writing(recoverer, 7, recovery=True)
        rewriting.stream.send(record(7, 10))
        await rewriting.until_acked(1)

        assert (answer.lac, answer.last_entry, answer.proves_absence) == (8, 9, True)
        assert (position, type(error)) == (10, LedgerFenced)
        read = await recoverer.read(7, KEY, 0, 99, 1 << 20, past_lac=True, timeout_s=T)
        assert [r.entry for r in entries.records(read.body)] == list(range(11))


async def test_a_fencing_read_of_an_unknown_ledger_fences_it() -> None:
    """Inv. 12."""
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)

        answer = await client.read(9, KEY, 0, 9, 1000, fence=True, past_lac=True, timeout_s=T)
        writing = Writing(client, 9)
        writing.stream.send(record(9, 0))
        _, error = await writing.until_refused()

        assert (answer.complete_to, answer.lac, answer.proves_absence, len(answer.body)) == (
            9,
            -1,
            True,
            0,
        )
        assert isinstance(error, LedgerFenced)


async def test_wrong_keys_and_unknown_ledgers_are_told() -> None:
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        writing.stream.send(record(7, 0))
        await writing.until_acked(1)

        for call in (client.fence, client.read_lac, client.list_entries):
            with pytest.raises(WrongLedgerKey):
                await call(7, b"another key 1234", T)
        with pytest.raises(NoSuchLedger):
            await client.read(8, KEY, 0, 0, 10, timeout_s=T)


async def _next_lac(client: BookieClient, previous: int, bytes_max: int = 0) -> LongPollResponse:
    """One long poll at ledger 7."""
    answers: list[LongPollResponse | DistributedLogError] = []
    done = trio.Event()

    def on_answer(answer: LongPollResponse | DistributedLogError, more: bool) -> None:
        assert not more
        answers.append(answer)
        done.set()

    request = m.WaitLacRequest(7, KEY, previous, 60_000, bytes_max)
    client.long_poll_lac(request, on_answer, persistent=False)
    await done.wait()
    answer = answers[0]
    if isinstance(answer, DistributedLogError):
        raise answer
    return answer


async def test_long_polls_are_woken_by_the_next_entry_and_by_a_fence() -> None:
    """The replies carry the entries."""
    async with served() as (bookie, nursery):
        writer, reader = await bookie.dial(nursery), await bookie.dial(nursery)
        answers = []

        async def poll(previous: int) -> None:
            answers.append(await _next_lac(reader, previous, bytes_max=1 << 20))

        async with trio.open_nursery() as polls:
            polls.start_soon(poll, -1)
            await reader.info(T)  # the poll is parked now, on a ledger nobody knows yet
            writing = Writing(writer, 7)
            writing.stream.send(record(7, 0))
            writing.stream.send(record(7, 1))
        writing.stream.send_lac(1)
        assert (await _next_lac(reader, 0)).lac == 1
        async with trio.open_nursery() as polls:
            polls.start_soon(poll, 1)
            await reader.info(T)
            await writer.fence(7, KEY, T)

        assert [(a.lac, a.fenced) for a in answers] == [(0, False), (1, True)]
        assert [r.entry for r in entries.records(answers[0].body)] == [0]


async def test_a_standing_poll_brings_each_entry_once_when_it_is_durable_and_confirmed() -> None:
    """The LAC of an entry that is still on its way to the disk is told with the entry."""
    async with served(disk=CutDisk(sync_s=0.02)) as (bookie, nursery):
        writer, reader = await bookie.dial(nursery), await bookie.dial(nursery)
        answers: list[tuple[int, list[int], bool]] = []
        writing = Writing(writer, 7)

        def on_answer(answer: DistributedLogError | LongPollResponse, more: bool) -> None:
            assert isinstance(answer, LongPollResponse)
            answers.append((answer.lac, [r.entry for r in entries.records(answer.body)], more))

        poll = m.WaitLacRequest(7, KEY, -1, 2000, 10 * len(record(7, 0)))
        reader.long_poll_lac(poll, on_answer, persistent=True)
        await reader.info(T)  # it is parked, on a ledger nobody knows yet
        for entry in range(4):
            writing.stream.send(record(7, entry))
            writing.stream.send_lac(entry)  # ahead of this bookie's own sync
            await writing.until_acked(entry + 1)
            assert writing.stream.has_lac_waiters
        await reader.info(T)
        assert [entry for _, found, _ in answers for entry in found] == [0, 1, 2, 3]
        assert all(found == [lac] and more for lac, found, more in answers)
        assert bookie.store.long_polls.waiting_count == 1

        for entry in range(4, 12):  # more than the poll's bytes
            writing.stream.send(record(7, entry))
        writing.stream.send_lac(11)
        await writing.until_acked(12)
        await reader.info(T)
        assert [more for _, _, more in answers][-1] is False
        assert sum(len(found) for _, found, _ in answers) <= 10
        assert bookie.store.long_polls.waiting_count == 0
        writing.stream.send(record(7, 12))
        await writing.until_acked(13)
        assert not writing.stream.has_lac_waiters


@pytest.mark.parametrize("features", [0, FEATURES])
async def test_lacs_of_many_streams_share_a_frame(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the bookie says that it takes such a frame; of one stream the newest counts."""
    ops: list[int] = []
    on_frame = BookieSession.on_frame

    def noted(self: BookieSession, op: int, *rest: Any) -> None:
        ops.append(op)
        on_frame(self, op, *rest)

    monkeypatch.setattr(BookieSession, "on_frame", noted)
    async with served(hello=replace(BOOKIE, features=features)) as (bookie, nursery):
        client = await bookie.dial(nursery)
        writings = [Writing(client, ledger) for ledger in range(1, 31)]
        for writing, ledger in zip(writings, range(1, 31), strict=True):
            writing.stream.send(record(ledger, 0))
            writing.stream.send(record(ledger, 1))
        for writing in writings:
            await writing.until_acked(2)
        await trio.sleep(0.01)

        ops.clear()
        for lac in (0, 1):
            for writing in writings:
                writing.stream.send_lac(lac)
        writings[3].stream.close()  # what was given to it before goes before

        for ledger in range(1, 31):
            assert (await client.read_lac(ledger, KEY, T)).lac == 1
        lac_ops = [op for op in ops if op in (Op.WRITE_LAC, Op.WRITE_LACS)]
        if features:
            assert len(lac_ops) <= 4
            assert Op.WRITE_LACS in lac_ops
        else:
            assert lac_ops == [Op.WRITE_LAC] * 60


async def test_a_broken_connection_refuses_its_streams_at_once() -> None:
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        writing.stream.send(record(7, 0))
        await writing.until_acked(1)
        writing.stream.send(record(7, 1))

        client.link.close(ConnectionLost("cut"))
        position, error = await writing.until_refused()

        assert (position, type(error)) == (1, ConnectionLost)
        with pytest.raises(ConnectionLost):
            Writing(client, 8)


async def test_other_bytes_under_an_id_poison_the_stream() -> None:
    """Inv. 30, H1: all later adds of the stream are dropped."""
    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        for sent in (record(7, 0), record(7, 1), record(7, 1, b"other"), record(7, 2)):
            writing.stream.send(sent)
        writing.stream.send(record(7, 3))

        position, error = await writing.until_refused()
        await writing.until_acked_though_refused(2)

        assert (position, type(error)) == (2, EntryConflict)
        assert (await client.list_entries(7, KEY, T)).ranges == [(0, 2)]


async def test_more_than_the_ring_holds_goes_through_many_connections() -> None:
    """Back-pressure holds connections, refuses nobody, loses nothing."""
    async with served() as (bookie, nursery):
        writings = []
        for ledger in range(1, 9):
            writings.append(Writing(await bookie.dial(nursery), ledger))
        payload = random.Random(1).randbytes(20_000)
        for n in range(40):
            for ledger, writing in enumerate(writings, 1):
                writing.stream.send(record(ledger, n, payload))
        for writing in writings:
            await writing.until_acked(40)

        assert bookie.store.info()["unsynced_bytes"] == 0


async def test_a_slow_reader_holds_nothing_and_the_writer_goes_on() -> None:
    """H16: replies are not made while the peer does not take them."""
    async with served() as (bookie, nursery):
        writer, reader = await bookie.dial(nursery), await bookie.dial(nursery)
        writing = Writing(writer, 7)
        for n in range(20):
            writing.stream.send(record(7, n, bytes(50_000)))
        await writing.until_acked(20)

        request = m.ReadEntriesRequest(7, KEY, 0, 19, 1 << 20, past_lac=True).encode()
        reader.link.pause_reading()  # reads nothing from now on
        for ident in range(1000, 1100):
            reader.link.send(envelope(Op.READ, len(request), ident=ident), request)
        for n in range(20, 40):
            writing.stream.send(record(7, n, bytes(50_000)))
        await writing.until_acked(40)
        reader.link.resume_reading()

        answer = await reader.read(7, KEY, 3, 3, 1, past_lac=True, timeout_s=T)
        assert [each.entry for each in entries.records(answer.body)] == [3]


@pytest.mark.parametrize("seed", range(20))
async def test_junk_ends_the_connection_and_nothing_else(seed: int) -> None:
    """Garbage frames: random bytes, random operations with random bodies."""
    draw = random.Random(seed)
    async with served() as (bookie, nursery):
        good = await bookie.dial(nursery)
        writing = Writing(good, 7)
        for _ in range(5):
            bad = await bookie.dial(nursery)
            for _ in range(10):
                body = draw.randbytes(draw.randrange(200))
                op = draw.choice((*range(16, 26), draw.randrange(256)))
                bad.link.send(
                    envelope(op, len(body), ident=draw.randrange(5), flags=draw.randrange(256)),
                    body,
                )
            bad.link.send(draw.randbytes(100))
            with trio.move_on_after(2):
                while bad.close_error is None:
                    await trio.lowlevel.checkpoint()
        writing.stream.send(record(7, 0))

        await writing.until_acked(1)
        assert [
            bytes(p)
            for p in bookie.store.collect(bookie.store.ledgers.get_known(7, KEY), 0, 9, 9999).parts
        ] == [record(7, 0)]


async def test_a_ledger_that_does_not_exist_is_removed_again() -> None:
    """H21: on proof only."""
    asked: list[int] = []

    async def missing(ledgers: Sequence[int]) -> set[int]:
        asked.extend(ledgers)
        return {8} & set(ledgers)

    async with served(missing_ledgers=missing) as (bookie, nursery):
        client = await bookie.dial(nursery)
        ghost, real = Writing(client, 8), Writing(client, 7)
        ghost.stream.send(record(8, 0))
        real.stream.send(record(7, 0))
        while await ids(bookie.store) != [7] or len(asked) < 2:
            await trio.lowlevel.checkpoint()
        ghost.stream.send(record(8, 1))

        _, error = await ghost.until_refused()

        assert isinstance(error, NoSuchLedger)
        assert asked == [7, 8]


async def test_a_busy_device_refuses_one_stream_and_the_connection_goes_on() -> None:
    """The answer "too busy" comes while the add is looked at: nothing of the connection is lost or held."""
    options = replace(OPTIONS, reads_waiting_max=0, gather_bytes=128 << 10)
    disk = CutDisk()
    async with served(options, disk) as (bookie, nursery):
        writing = Writing(await bookie.dial(nursery), 7)
        for n in range(30):
            writing.stream.send(record(7, n, bytes(40_000)))
            await writing.until_acked(n + 1)
        disk.hot = False
        client = await bookie.dial(nursery)
        again, other = Writing(client, 7), Writing(client, 8)
        again.stream.send(record(7, 0, bytes(40_000)))  # is it the same? only the device knows
        for n in range(10):
            other.stream.send(record(8, n))

        await other.until_acked(10)
        position, error = await again.until_refused()
        assert (position, type(error)) == (0, TooBusy)
        other.stream.send(record(8, 10))
        await other.until_acked(11)
        assert (await client.info(T))["deferred_bytes"] == 0
        with pytest.raises(TooBusy):
            await client.read(7, KEY, 0, 0, 1000, past_lac=True, timeout_s=T)


async def test_cold_reads_come_from_the_device_and_replies_stay_bounded() -> None:
    """H37, H42b: many readers that take nothing hold no more than the bound of all replies."""
    options = replace(
        OPTIONS, outgoing_bytes_sum_max=1 << 20, gather_bytes=128 << 10, cold_read_bytes=64 << 10
    )
    disk = CutDisk()
    async with served(options, disk) as (bookie, nursery):
        writing = Writing(await bookie.dial(nursery), 7)
        for n in range(100):
            writing.stream.send(record(7, n, bytes([n]) * 40_000))
            await writing.until_acked(n + 1)
        disk.hot = False
        readers = [await bookie.dial(nursery) for _ in range(8)]
        for reader in readers:
            reader.link.pause_reading()
        request = m.ReadEntriesRequest(7, KEY, 0, 99, 1 << 20, past_lac=True).encode()
        for ident in range(1000, 1020):
            for reader in readers:
                reader.link.send(envelope(Op.READ, len(request), ident=ident), request)
        live = await bookie.dial(nursery)
        for n in range(100):
            answer = await live.read(7, KEY, n, n, 1, past_lac=True, timeout_s=T)
            assert [bytes(r.payload) for r in entries.records(answer.body)] == [bytes([n]) * 40_000]

        assert bookie.store.stats.reads_cold > 50
        assert int(str((await live.info(T))["outgoing_bytes"])) < 3 << 20
        for reader in readers:
            reader.link.resume_reading()


async def test_a_connection_has_streams_max_add_streams_at_most() -> None:
    async with served(replace(OPTIONS, streams_max=1)) as (bookie, nursery):
        client = await bookie.dial(nursery)
        first, second = Writing(client, 7), Writing(client, 8)

        assert isinstance((await second.until_refused())[1], TooBusy)

        first.stream.send(record(7, 0))
        await first.until_acked(1)


async def test_a_bookie_holds_waiters_max_long_polls_at_most() -> None:
    async with served(replace(OPTIONS, waiters_max=1)) as (bookie, nursery):
        writer, reader = await bookie.dial(nursery), await bookie.dial(nursery)
        writing = Writing(writer, 7)
        writing.stream.send(record(7, 0))
        await writing.until_acked(1)
        async with trio.open_nursery() as polls:
            polls.start_soon(_next_lac, reader, -1)
            await reader.info(T)  # the first poll waits at the bookie now

            with pytest.raises(TooBusy):
                await _next_lac(reader, -1)
            polls.cancel_scope.cancel()
