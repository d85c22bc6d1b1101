"""Reading through proxies: the same records, positions and errors as without one (G11)."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.log import Log
from distributedlog.log.read.log_reader import LogReader
from distributedlog.metadata.model.transaction import KeyValue
from distributedlog.proxy.read import history_reads as cold
from distributedlog.proxy.read import read_server
from distributedlog.proxy.read.push_loop import BLOCKED_CHECK_INTERVAL_S
from distributedlog.proxy.read.read_server import ReadServer
from distributedlog.proxy.read.tail_feed import LINK_BYTES_MAX, Subscriber, TailFeed
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    EndOfStream,
    LogDeleted,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from distributedlog.runtime.net.link import Link
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader
from tests.log.records import put, rec
from tests.log.segments.test_segment_merge import filled, forget_old
from tests.proxy.read_kit import Proxies, proxies

Read = list[tuple[DLSN, int, int, bytes]]


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: MockClock) -> World:
    return World(nursery)


async def read(reader: LogReader, number: int, wait_s: float = 60.0) -> Read:
    """So many records; fewer where it ends before."""
    found: Read = []
    while len(found) < number:
        record = await reader.read_next(wait_s=wait_s)
        if record is None:
            break
        found.append((record.dlsn, record.sequence_id, record.txid, bytes(record.payload)))
    return found


async def directly(log: Log, **where: Any) -> Read:
    async with log.open_reader(to="end", **where) as reader:
        return await read(reader, 1 << 30)


async def test_a_reader_through_a_proxy_has_what_a_direct_one_has(
    world: World, autojump_clock: MockClock
) -> None:
    """From wherever it begins, across segments, control entries and records in the middle of an entry."""
    async with world.process(segment_bytes_max=900) as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for txid in range(0, 300, 10):
                await writer.write_bulk([rec(txid + k, b"%d" % (txid + k)) for k in range(3)])
            await writer.commit()
        every = await directly(log)
        assert len({dlsn.segment for dlsn, *_ in every}) > 2
        async with log.open_reader() as reader:
            await reader.read_bulk(32)
            position = reader.position
        assert position is not None

        resumed = {"dlsn": position.dlsn, "sequence_id": position.sequence_id, "proven": True}
        asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {}),
            ({"dlsn": every[31][0]}, {}),
            ({"txid": 105}, {}),
            ({"since_ms": 1_700_000_000_000}, {"since": 1_700_000_000_000}),
            ({"incarnation": position.incarnation, **resumed}, {"position": position}),
        ]
        for through_proxy, direct in asked:
            reader = await through.reader("l", to_end=True, **through_proxy)
            wanted = await directly(log, **(direct or through_proxy))
            assert await read(reader, 1000) == wanted != []
            assert reader.ended

        latest = await through.reader("l", at="latest")
        await put(log, 1000, 1001)
        assert [txid for _, _, txid, _ in await read(latest, 2)] == [1000, 1001]
        some = await through.reader("l", to=every[10][0])
        assert await read(some, 1000) == every[:11]


async def test_ledgers_that_were_read_below_the_ring_are_closed(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a segment, too: what reads an open ledger follows its record until it is closed."""
    opened: list[ModelReader] = []
    original = world.ledgers.open

    async def counted(ledger_id: int, *, replica_offset: int = 0) -> ModelReader:
        opened.append(await original(ledger_id, replica_offset=replica_offset))
        return opened[-1]

    monkeypatch.setattr(world.ledgers, "open", counted)
    async with world.process(segment_bytes_max=900) as ns, proxies(world) as through:
        log = ns.open_log("l")
        await put(log, *range(100))
        every = await directly(log)
        assert len({dlsn.segment for dlsn, *_ in every}) > 2
        opened.clear()
        reader = await through.reader("l", to_end=True)
        assert await read(reader, 1000) == every
        await trio.sleep(2 * (read_server.IDLE_FEED_S + read_server.SWEEP_INTERVAL_S))
        assert through.running[0].server.info()["ranges_read"] > 2
        assert len(opened) > 2
        assert all(one.over for one in opened)


async def test_a_segment_below_the_ring_is_looked_up_once(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ranges it is read in: what the metadata say of a closed one is known by then."""
    asked = Counter[bytes]()
    original = world.metadata.get

    async def counted(key: bytes) -> KeyValue | None:
        asked[key] += 1
        return await original(key)

    monkeypatch.setattr(world.metadata, "get", counted)
    monkeypatch.setattr(cold, "RANGE_BYTES", 500)
    async with world.process(segment_bytes_max=3000) as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for txid in range(100):
                await writer.write(rec(txid, bytes(60)))
        every = await directly(log)
        segments = {dlsn.segment for dlsn, *_ in every}
        assert len(segments) > 3
        reader = await through.reader("l")
        asked.clear()

        assert await read(reader, len(every)) == every
        assert through.running[0].server.info()["ranges_read"] > 2 * len(segments)
        found = {key: times for key, times in asked.items() if b"/segment/" in key}
        assert len(found) >= len(segments) - 1, "the first one perhaps while the reader was opened"
        assert set(found.values()) == {1}


async def test_all_who_read_at_the_end_cost_the_storage_one_reader(
    world: World, autojump_clock: MockClock
) -> None:
    """Scenario 32, small: 40 readers through two proxies, and entries are sent in few frames."""
    async with world.process() as ns, proxies(world, 2) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        readers = [await through.reader("l") for _ in range(40)]
        reads = world.ledgers.entries_read
        async with log.open_writer() as writer:
            for txid in range(50):
                await writer.write(rec(txid))
            await writer.commit()
            every = await directly(log)
            direct, reads = world.ledgers.entries_read - reads, world.ledgers.entries_read
            async with log.open_reader() as alone:
                await read(alone, 50)
            one = world.ledgers.entries_read - reads
            for reader in readers:
                assert await read(reader, 50) == every

        assert direct <= 1.2 * 2 * one + one  # those of two feeds, and of `directly`
        for proxy in through.running:
            assert proxy.server.info()["subscriptions"] == 20
            assert proxy.server.info()["ranges_read"] == 0


@pytest.mark.parametrize("ring_bytes", [1, 700])
async def test_readers_fast_and_slow_miss_nothing_however_small_the_ring(
    world: World, autojump_clock: MockClock, ring_bytes: int
) -> None:
    """H189: from the ring to ranges and back, at every place; a ring of 1 byte holds one entry."""
    async with (
        world.process(segment_bytes_max=2000) as ns,
        proxies(world, ring_bytes_max=ring_bytes, read_bytes=300) as through,
    ):
        log = ns.open_log("l")
        await ns.create_log("l")
        kept: dict[int, Read] = {}

        async def follow(number: int, pause_s: float) -> None:
            reader = await through.reader("l", options={"read_ahead_bytes": 64 * 1024})
            kept[number] = []
            while len(kept[number]) < 200:
                kept[number] += await read(reader, 7)
                await trio.sleep(pause_s)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(follow, number, 0.01 * number)
            async with log.open_writer() as writer:
                for txid in range(200):
                    await writer.write(rec(txid, bytes(3000 if txid % 7 == 0 else 30)))
                    await trio.sleep(0.002)
                await writer.commit()
                every = await directly(log)

        assert [found[:200] for found in kept.values()] == [every[:200]] * 8


async def test_a_reader_goes_on_elsewhere_without_a_gap_when_its_proxy_dies(
    world: World, autojump_clock: MockClock
) -> None:
    """H192: by its own place; the next proxy has never heard of the log before, or is behind."""
    async with world.process(segment_bytes_max=2000) as ns, proxies(world, 2) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        kept: list[Read] = []

        async def follow() -> None:
            reader, found = await through.reader("l"), Read()
            kept.append(found)
            while len(found) < 300:
                came = await read(reader, 300 - len(found))
                assert came, f"nothing after {len(found)} records"
                found += came

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(follow)
            async with log.open_writer() as writer:
                for txid in range(300):
                    await writer.write(rec(txid, bytes(40)))
                    if txid in (100, 200):
                        through.running[txid // 100 - 1].kill()
                        del through.known[0]
                        await through.start()
                    await trio.sleep(0.01)
                await writer.commit()
                every = await directly(log)

        assert kept == [every] * 10


async def failing(reader: LogReader) -> tuple[int, DistributedLogError]:
    """What ends it, after so many records."""
    for number in range(100):
        try:
            assert await reader.read_next(wait_s=120) is not None, "it waits for more"
        except DistributedLogError as error:
            return number, error
    raise AssertionError("it has no end")


@pytest.mark.parametrize("what", ["truncated", "deleted", "recreated", "sealed"])
@pytest.mark.parametrize("at", [0, 10])
async def test_the_end_of_a_log_is_told_as_to_a_direct_reader(
    world: World, autojump_clock: MockClock, what: str, at: int
) -> None:
    """H188: after everything that came before it, with the same words and numbers.

    What was fetched is given, here and there; so a reader may have some records more, and lose some less.
    """
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        places = []
        for first in (0, 5):
            async with log.open_writer() as writer:
                for txid in range(first, first + 5):
                    places.append(await writer.write(rec(txid, bytes(100_000))))
        where: dict[str, Any] = {"dlsn": places[at]} if at < 10 else {"at": "latest"}
        small = {"read_ahead_bytes": 1, "read_bytes": 1}
        direct = await ns.open_log("l", config=small).open_reader(**where)
        proxied = await through.reader("l", options=small, **where)
        if at < 10:
            assert await read(direct, 1) == await read(proxied, 1)
        if what == "truncated":
            await log.truncate(DLSN(99, 0, 0))
        elif what == "sealed":
            await log.seal()
        else:
            await ns.delete_log("l")
        if what == "recreated":
            await ns.create_log("l")
        await trio.sleep(3)
        if (what, at) == ("truncated", 10):
            await put(log, 10)
            assert await read(direct, 1) == await read(proxied, 1) != []
            return
        had, error = await failing(direct)
        proxied_had, proxied_error = await failing(proxied)

        wanted = {"truncated": LogTruncated, "sealed": EndOfStream}.get(what, LogDeleted)
        assert type(error) is type(proxied_error) is wanted
        if had == proxied_had:
            assert (str(error), error.detail) == (str(proxied_error), proxied_error.detail)
        if isinstance(error, LogTruncated | LogDeleted):
            assert isinstance(proxied_error, LogTruncated | LogDeleted)
            assert error.lost is not None
            assert proxied_error.lost is not None
            assert had + error.lost == proxied_had + proxied_error.lost == 10 - at - 1 + (at == 10)
        if what == "deleted":
            with pytest.raises(LogNotFound):
                await through.reader("l")
        if what == "recreated":
            with pytest.raises(LogRecreated):
                await through.reader("l", incarnation=direct.incarnation)
            again = await through.reader("l")
            await put(log, 77)
            assert [txid for _, _, txid, _ in await read(again, 1)] == [77]


async def test_nothing_that_was_truncated_is_given_from_the_ring(
    world: World, autojump_clock: MockClock
) -> None:
    """H188: what the proxy still holds, to who has been slow and to who comes anew."""
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        slow = await through.reader("l", options={"read_ahead_bytes": 1})
        async with log.open_writer() as writer:
            places = [await writer.write(rec(txid, bytes(100_000))) for txid in range(10)]
            await writer.commit()
            assert len(await read(slow, 1)) == 1
            await trio.sleep(1)
            assert len(next(iter(through.running[0].server._all_feeds)).ring) == 10
            await writer.truncate(places[6])
            await trio.sleep(1)
            had, error = await failing(slow)
            assert isinstance(error, LogTruncated)
            assert had <= 2
            assert error.lost == 6 - 1 - had
            with pytest.raises(LogTruncated):
                await through.reader("l", dlsn=places[3])
            anew = await through.reader("l")
            assert [txid for _, _, txid, _ in await read(anew, 4)] == [6, 7, 8, 9]


async def test_a_typed_place_proves_nothing_and_a_delivered_one_does(
    world: World, autojump_clock: MockClock
) -> None:
    """H24, H141: what one subscriber says must not show another one what is not confirmed."""
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            places = [await writer.write(rec(txid)) for txid in range(4)]
            await writer.commit()
            store = world.ledgers.stores[1]
            store.lac = 1  # all bookies have forgotten the rest
            watching = await through.reader("l")
            assert len(await read(watching, 4, wait_s=5)) == 2
            state = await log.describe()
            incarnation = f"{state.state.log_id:016x}"

            await through.reader("l", dlsn=places[3])
            assert await watching.read_next(wait_s=5) is None
            await through.reader(
                "l", dlsn=places[3], sequence_id=3, incarnation=incarnation, proven=True
            )
            assert [txid for _, _, txid, _ in await read(watching, 1, wait_s=5)] == [2]


async def test_what_a_reader_says_falsely_harms_no_other_one(
    world: World, autojump_clock: MockClock
) -> None:
    """A place that nobody was ever given, said to be delivered: the feed that all share goes on."""
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            await writer.commit()
            watching = await through.reader("l")
            assert len(await read(watching, 1)) == 1
            incarnation = f"{(await log.describe()).state.log_id:016x}"
            for entry in (1, 2, 1000):
                await through.reader(
                    "l",
                    dlsn=DLSN(1, entry, 1),
                    sequence_id=entry,
                    incarnation=incarnation,
                    proven=True,
                )
            await trio.sleep(5)
            await writer.write(rec(1))
            await writer.commit()
            assert [txid for _, _, txid, _ in await read(watching, 1)] == [1]


async def test_a_connection_that_is_full_is_looked_at_now_and_then(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in each turn of the loop; and its readers go on when it is not full any more."""
    full = True
    has_room = ReadServer._has_capacity
    monkeypatch.setattr(
        ReadServer, "_has_capacity", lambda self, link: not full and has_room(self, link)
    )
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        reader = await through.reader("l")
        await put(log, 1, 2, 3)
        await trio.sleep(10)
        assert (
            100 <= through.running[0].server.push_loop.rounds <= 10 / BLOCKED_CHECK_INTERVAL_S + 50
        )
        assert await reader.read_next(wait_s=0) is None

        full = False
        assert len(await read(reader, 3, wait_s=2 * BLOCKED_CHECK_INTERVAL_S)) == 3


async def test_who_never_reads_costs_a_look_at_its_connection_and_not_at_each_subscription(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H187: 5,000 subscriptions of one peer that had stopped reading took half of a proxy's time."""
    attached, full, attach, takes_more = 0, True, TailFeed.attach, ReadServer._may_send

    def counted(self: TailFeed, subscriber: Subscriber) -> None:
        nonlocal attached
        attached += 1
        attach(self, subscriber)

    monkeypatch.setattr(TailFeed, "attach", counted)
    monkeypatch.setattr(
        ReadServer, "_may_send", lambda self, link: not full and takes_more(self, link)
    )
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        readers = [await through.reader("l") for _ in range(20)]
        await put(log, 1, 2, 3)
        await trio.sleep(10)
        assert attached <= 2 * 20

        full = False
        for reader in readers:
            assert len(await read(reader, 3, wait_s=2 * BLOCKED_CHECK_INTERVAL_S)) == 3


async def test_readers_of_a_connection_that_is_always_full_are_served_in_turn(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is written than it can carry: those in front were served again and again, and the rest never."""

    def takes_a_frame_an_entry(self: ReadServer, link: Link) -> bool:
        return self.sent.frames < self.sent.entries_read

    monkeypatch.setattr(ReadServer, "_may_send", takes_a_frame_an_entry)
    async with world.process() as ns, proxies(world) as through, trio.open_nursery() as nursery:
        log = ns.open_log("l")
        await ns.create_log("l")
        readers = [await through.reader("l") for _ in range(10)]
        found = [0] * len(readers)

        async def follow(number: int) -> None:
            while True:
                found[number] += len(await read(readers[number], 1))

        for number in range(len(readers)):
            nursery.start_soon(follow, number)
        async with log.open_writer() as writer:
            for txid in range(2000):
                await writer.write(rec(txid))
                await trio.sleep(0.003)
        nursery.cancel_scope.cancel()

    assert min(found) > 0.8 * max(found) > 300, found


async def test_of_what_all_connections_wait_for_there_is_so_much_and_a_frame_each() -> None:
    """H187: thousands of connections that read nothing have not 8 MiB each."""
    credit = {"a": True, "b": False}
    endpoint: Any = SimpleNamespace(has_credit=lambda link: credit[link.name])
    nothing: Any = None
    server = ReadServer(endpoint, nothing)

    def link(name: str, waits: int) -> Any:
        return SimpleNamespace(name=name, outgoing_bytes=waits)

    assert server._may_send(link("a", LINK_BYTES_MAX - 1))
    assert not server._may_send(link("a", LINK_BYTES_MAX))
    assert not server._may_send(link("b", 1))
    assert server._may_send(link("b", 0)), "whoever reads nothing takes no other one's room"


async def test_readers_that_never_read_hold_up_nobody(
    world: World, autojump_clock: MockClock
) -> None:
    """H187: what waits for them is bounded by their credit, and by the ring."""
    async with world.process() as ns, proxies(world, ring_bytes_max=200_000) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        small = {"read_ahead_bytes": 64 * 1024}
        for _ in range(20):
            await through.reader("l", options=small)
        good = await through.reader("l", options=small)
        async with log.open_writer() as writer:
            for txid in range(100):
                await writer.write(rec(txid, bytes(20_000)))
                got = await read(good, 1)
                assert got[0][2] == txid
            await writer.commit()

        server = through.running[0].server
        assert server.rings.total_bytes <= 200_000 + 21_000
        assert server.sent.bytes <= 20 * (64 * 1024 + 150_000) + 100 * 21_000


async def test_what_a_proxy_changes_or_leaves_out_is_not_given(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader checks digests and sequence ids, and reads on elsewhere."""
    taken = TailFeed._on_stored_entry

    def spoilt(self: TailFeed, *entry: Any) -> None:
        taken(self, *entry)
        places = self.ring._positions
        head, whole, next_id = self.ring._entries[-1]
        if places[-1][1] == 3:  # a bit is flipped
            self.ring._entries[-1] = (
                head,
                whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
                next_id,
            )
        if places[-1][1] == 7:  # an entry is left out
            del places[-1], self.ring._entries[-1]

    async with world.process() as ns, proxies(world, 2) as through:
        log = ns.open_log("l")
        await ns.create_log("l")
        reader = await through.reader("l")
        bad = through.running[0 if through.running[0].server.open_subscriptions else 1]
        feed = next(iter(bad.server._all_feeds))
        monkeypatch.setattr(feed._fetcher, "_on_stored_entry", lambda *got: spoilt(feed, *got))
        async with log.open_writer() as writer:
            for txid in range(10):
                await writer.write(rec(txid, b"%d" % txid))
                await trio.sleep(0.01)
            await writer.commit()

            assert await read(reader, 10) == await directly(log)


@pytest.mark.parametrize("of", ["the process", "a connection"])
async def test_a_proxy_that_is_full_sends_readers_to_another_one(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    limits = {"subscriptions_max": 2} if of == "the process" else {}
    async with world.process() as ns, proxies(world, 1, **limits) as through:
        await put(ns.open_log("l"), 1)
        await through.start()
        if of == "a connection":
            monkeypatch.setattr(read_server, "LINK_SUBSCRIPTIONS_MAX", 4)
        readers = [await through.reader("l") for _ in range(6)]

        assert [len(await read(reader, 1)) for reader in readers] == [1] * 6
        first, second = [proxy.server.open_subscriptions for proxy in through.running]
        assert first + second == 6
        assert (first == 2) if limits else (max(first, second) <= 4)


async def test_a_log_without_readers_is_followed_no_more(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns, proxies(world) as through:
        await put(ns.open_log("l"), 1)
        reader = await through.reader("l")
        assert len(await read(reader, 1)) == 1
        server = through.running[0].server
        assert server.info()["feeds"] == 1

        await reader.aclose()
        await trio.sleep(60)

        assert server.info()["feeds"] == server.info()["subscriptions"] == 0
        assert server.rings.total_bytes == 0


async def test_many_who_read_from_one_place_cost_one_read_of_it(
    world: World, autojump_clock: MockClock
) -> None:
    """H190: 40 replays of a log that is not in the ring."""
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for txid in range(40):
                await writer.write(rec(txid, bytes(10_000)))
        every = await directly(log)
        reads = world.ledgers.entries_read
        found: list[Read] = []

        async def replay(through: Proxies) -> None:
            reader = await through.reader("l", to_end=True)
            found.append(await read(reader, 1000))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(replay, through)

        assert found == [every] * 40
        assert world.ledgers.entries_read - reads <= 2 * len(every) + 100  # and where each one ends


@pytest.mark.parametrize("step", [0, 1, 4, 9])
async def test_segments_that_are_merged_are_read_on(
    world: World, autojump_clock: MockClock, step: int
) -> None:
    """H157: segments of every kind, merged while a reader has so many records, the old ledgers deleted.

    What decodes an entry and is in its segment's record alone (txids, log time, the number in its ledger)
    goes along with it.
    """
    async with world.process() as ns, proxies(world, read_bytes=1) as through:
        log = await filled(world, ns)
        every = await directly(log)
        reader = await through.reader("l", options={"read_ahead_bytes": 1})
        found = await read(reader, step)
        assert await log.merge_segments() == 7
        await forget_old(world)
        found += await read(reader, len(every) - step)
        anew = await read(await through.reader("l", to_end=True), 1000)
        await put(log, 40)

        assert found == anew == every
        assert (await read(reader, 1))[0][2] == 40


async def test_readers_that_come_and_go_at_an_idle_log_leave_nothing(world: World) -> None:
    """While one reader stays: who waits at the end of the log is who is there."""
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        await put(log, 3)
        stays = await through.reader("l", at="latest")
        for _ in range(10):
            await (await through.reader("l", at="latest")).aclose()
            await trio.sleep(0.1)
        (feed,) = through.running[0].server._all_feeds
        assert feed.subscribers == 1
        assert len(feed._awaiting_sequence_id) <= 1
        await stays.aclose()
