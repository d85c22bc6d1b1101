"""One of many takes not all of what they share: calls, openings, ranges, windows, bytes that are held."""

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.read import fetcher
from distributedlog.metadata.auth.acl_cache import AclCache
from distributedlog.proxy.declarations.options import ProxyOptions
from distributedlog.proxy.protocol.proxy_messages import (
    LogCall,
    ProduceOpen,
    ProxyCall,
    decode_owned,
    encode_stream_notice,
)
from distributedlog.proxy.protocol.read_messages import Subscribe
from distributedlog.proxy.read import read_server
from distributedlog.proxy.read.entry_ring import EntryPosition
from distributedlog.proxy.read.history_reads import HistoryReads
from distributedlog.proxy.read.tail_feed import TailFeed
from distributedlog.proxy.session import log_calls
from distributedlog.proxy.session.client_authorizer import ClientAuthorizer, ClientSession
from distributedlog.proxy.session.fair_queue import FairQueue, is_fair
from distributedlog.proxy.session.log_calls import LogCalls
from distributedlog.proxy.write.log_manager import HELD_BYTES_FACTOR, LogManager
from distributedlog.runtime.interfaces.errors import DistributedLogError, RequestTimeout, TooBusy
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from tests.log.conftest import World
from tests.log.records import put, rec
from tests.proxy.proxy_world import world
from tests.proxy.raw_producer import RawProducer
from tests.proxy.read_kit import Proxies, proxies

MIB = 1024 * 1024
NOTHING: Any = None


@given(st.integers(1, 4), st.integers(1, 300), st.lists(st.integers(0, 5), max_size=400))
def test_who_has_nothing_is_given_something_while_anything_is_left(
    part: int, places: int, asking: list[int]
) -> None:
    has = dict.fromkeys(range(6), 0)
    for one in asking:
        left = places - sum(has.values())
        given_one = is_fair(has[one], 1, left, share_factor=part)
        assert given_one or has[one] or not left
        has[one] += given_one
        assert has[one] <= max(1, part * (places - sum(has.values())))
    assert sum(has.values()) <= places


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["add", "add", "take", "back", "drop"]), st.integers(0, 3))),
)
def test_owners_take_turns_and_each_of_them_is_served_in_its_own_order(
    places: int, steps: list[tuple[str, int]]
) -> None:
    queue: FairQueue[int, int] = FairQueue(places)
    waiting: dict[int, list[int]] = {owner: [] for owner in range(4)}
    has: list[int] = []
    passed: dict[int, int] = dict.fromkeys(range(4), 0)
    for number, (step, owner) in enumerate(steps):
        if step == "add":
            queue.add(owner, number)
            waiting[owner].append(number)
        elif step == "drop" and waiting[owner]:
            queue.discard(owner, waiting[owner][-1])
            queue.discard(owner, waiting[owner].pop())
        elif step == "back" and has:
            queue.release(has.pop(0))
        elif step == "take":
            found = queue.acquire_next()
            if found is None:
                idle = [one for one, items in waiting.items() if items and one not in has]
                assert not idle or len(has) == places
                continue
            taken, item = found
            assert waiting[taken].pop(0) == item
            has.append(taken)
            passed[taken] = 0
            for one, items in waiting.items():
                if items and one != taken and one not in has:
                    passed[one] += 1
                    assert passed[one] <= 3 + places, "who has nothing is not passed over for ever"
        assert len(queue) == sum(map(len, waiting.values()))
        assert len(has) <= places


def test_owners_come_one_after_the_other_and_not_the_first_one_again_and_again() -> None:
    queue: FairQueue[str, int] = FairQueue(2)
    for owner in ("a", "b", "c"):
        for number in range(4):
            queue.add(owner, number)

    order = []
    while (found := queue.acquire_next()) is not None:
        order.append(found)
        queue.release(found[0])

    assert order == [(owner, number) for number in range(4) for owner in ("a", "b", "c")]


# --- calls ----------------------------------------------------------------------------------------


class Answers:
    """What a connection is told."""

    principal = "anonymous"
    identity = None
    token = None

    def __init__(self) -> None:
        self.errors: list[DistributedLogError] = []

    def reply(self, ident: int, *body: bytes) -> None:
        assert body == (pack(None),)

    def reply_error(self, ident: int, error: DistributedLogError) -> None:
        self.errors.append(error)


def client_of(link: Any) -> ClientSession:
    """One who is not judged."""
    return ClientAuthorizer(NOTHING, AclCache()).admit(link)


async def never(*args: Any) -> Any:
    await trio.sleep_forever()


async def test_one_connection_has_not_all_calls_and_none_when_it_has_ended(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogCalls, "_execute", never)
    calls = LogCalls(NOTHING, calls_max=8, is_live_proxy=lambda _: False)
    await nursery.start(calls.run)
    call = LogCall("default", "exists", "orders", "", [])
    links: list[Any] = [Answers() for _ in range(4)]
    for link in links:
        for ident in range(8):
            calls.start_call(client_of(link), link, ident, call)

    assert [8 - len(link.errors) for link in links] == [4, 2, 1, 1]
    assert all(isinstance(error, TooBusy) for link in links for error in link.errors)
    calls.cancel_calls(links[0])
    await trio.sleep(1)
    assert len(links[0].errors) == 8  # nobody hears the last four
    fresh: Any = Answers()
    calls.start_call(client_of(fresh), fresh, 1, call)
    assert fresh.errors == []


async def test_of_a_call_that_takes_too_long_it_is_not_said_that_it_did_nothing(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: who deletes or renames a log must not be told to try again as if nothing were done."""
    monkeypatch.setattr(LogCalls, "_execute", never)
    calls = LogCalls(NOTHING, calls_max=8, is_live_proxy=lambda _: False)
    await nursery.start(calls.run)
    link: Any = Answers()

    call = LogCall("default", "delete", "orders", "", [0.0])
    calls.start_call(client_of(link), link, 1, call)
    await trio.sleep(log_calls.CALL_TIMEOUT_S + 1)

    (error,) = link.errors
    assert isinstance(error, RequestTimeout)
    assert not error.definite


# --- windows and bytes ----------------------------------------------------------------------------


def test_streams_of_one_connection_leave_windows_to_others() -> None:
    owner = LogManager("me", NOTHING, NOTHING, ProxyOptions(), NOTHING)
    mine = streams = 0
    while streams < 2000 or mine < 95 * MIB:
        window = owner.new_window_bytes(mine)
        owner.stats.windows_bytes += window
        mine, streams = mine + window, streams + 1

    owner.new_window_bytes(mine)
    with pytest.raises(TooBusy):
        owner.new_window_bytes(mine + 8 * MIB)
    assert owner.new_window_bytes(0) >= 32 * 1024


def test_frames_of_one_connection_leave_bytes_to_others() -> None:
    owner = LogManager("me", NOTHING, NOTHING, ProxyOptions(), NOTHING)
    mine, frame = 0, 2 * MIB
    while owner.may_buffer(mine, frame):
        owner.stats.held_bytes += frame
        mine += frame

    assert mine >= ProxyOptions().windows_bytes
    assert owner.may_buffer(0, frame)
    owner.stats.held_bytes = int(HELD_BYTES_FACTOR * ProxyOptions().windows_bytes) - frame + 1
    assert not owner.may_buffer(0, frame)


async def test_one_connection_leaves_logs_to_others() -> None:
    """While it is alone it has three quarters of them, and nobody is shut out by who came first."""
    async with world() as it:
        proxy = await it.proxy("w1", logs_max=8, open_wait_s=1)
        greedy, other = await it.producer(proxy), await it.producer(proxy)

        async def takes(producer: RawProducer, letter: str) -> int:
            for stream in range(1, 10):
                try:
                    await producer.open(stream, f"{letter}{stream}")
                except TooBusy:
                    return stream - 1
            raise AssertionError("it has more than all of them")

        assert await takes(greedy, "a") == 6
        assert await takes(other, "b") == 1
        await greedy.open(20, "b1")  # one that is there costs none
        greedy.link.send(encode_stream_notice(Op.PRODUCE_CLOSE, 1))
        greedy.link.send(encode_stream_notice(Op.PRODUCE_CLOSE, 2))
        await greedy.link.request(Op.INFO, timeout_s=9)  # answered after them
        await other.open(20, "c")


async def test_a_log_that_somebody_writes_makes_no_room_for_another_one() -> None:
    async with world() as it:
        proxy = await it.proxy("w1", logs_max=3, open_wait_s=1)
        one, two, three, four = [await it.producer(proxy) for _ in range(4)]
        await one.open(1, "written")
        for number, name in enumerate(("idle longest", "idle"), 1):
            await two.open(number, name.replace(" ", "-"))
            two.link.send(encode_stream_notice(Op.PRODUCE_CLOSE, number))
            await two.link.request(Op.INFO, timeout_s=9)

        await three.open(1, "next")
        owned = ProxyCall("owned", ["", 9]).encode()

        async def there() -> list[str]:
            reply = await one.link.request(Op.PROXY_CALL, owned, timeout_s=9)
            return [row[1] for row in decode_owned(reply.body)]

        assert await there() == ["idle", "next", "written"]
        await two.open(9, "last")
        assert await there() == ["last", "next", "written"]
        with pytest.raises(TooBusy):
            await four.open(1, "no-more")
        one.send(1, 0, b"goes on")
        await one.acked(1)


async def test_one_connection_leaves_namespaces_to_others() -> None:
    async with world() as it:
        proxy = await it.proxy("w1", namespaces_max=8, open_wait_s=1)
        greedy, other = await it.producer(proxy), await it.producer(proxy)

        async def takes(producer: RawProducer, letter: str) -> int:
            for stream in range(1, 10):
                request = ProduceOpen(stream, f"{letter}{stream}", "orders").encode()
                try:
                    await producer.link.request(Op.PRODUCE_OPEN, request, timeout_s=20)
                except TooBusy:
                    return stream - 1
            raise AssertionError("it has more than all of them")

        assert await takes(greedy, "a") == 6
        assert await takes(other, "b") == 1
        there = ProduceOpen(20, "a1", "another").encode()
        await other.link.request(Op.PRODUCE_OPEN, there, timeout_s=20)


# --- subscriptions --------------------------------------------------------------------------------


def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a log begins that is called so is not found: its bookies do not answer."""
    find_beginning = fetcher.resolve_read_range

    async def find(context: Any, follower: Any, *where: Any) -> Any:
        if follower.state.name == "stuck":
            await trio.sleep_forever()
        return await find_beginning(context, follower, *where)

    monkeypatch.setattr(read_server, "resolve_read_range", find)


@pytest.mark.parametrize("number", [1, 200])
async def test_subscriptions_that_cannot_be_opened_hold_up_no_other_connection(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    world = World(nursery)
    stuck(monkeypatch)
    async with world.process() as ns, proxies(world) as through:
        await ns.create_log("stuck")
        await put(ns.open_log("l"), 1)
        greedy = await through.endpoint.dial(through.known[0], nursery=nursery)
        ask = Subscribe("ns", "stuck").encode()
        for _ in range(number):
            greedy.start_request(Op.SUBSCRIBE, ask, timeout_s=60)
        await trio.sleep(1)

        with trio.fail_after(5):
            reader = await through.reader("l")
            assert await reader.read_next() is not None


async def test_who_leaves_while_it_waits_takes_no_place(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(nursery)
    stuck(monkeypatch)
    async with world.process() as ns, proxies(world, subscriptions_max=100) as through:
        await ns.create_log("stuck")
        await put(ns.open_log("l"), 1)
        ask = Subscribe("ns", "stuck").encode()
        for _ in range(5):
            coming = await through.endpoint.dial(through.known[0], nursery=nursery)
            for _ in range(40):
                pending = coming.start_request(Op.SUBSCRIBE, ask, timeout_s=60)
            coming.send(_unsubscribe(pending.ident))
            await trio.sleep(0.1)
            coming.close(TooBusy("enough"))
            await trio.sleep(0.1)

        with trio.fail_after(5):
            reader = await through.reader("l")
            assert await reader.read_next() is not None
        server = through.running[0].server
        assert len(server._pending) == 0
        assert server._pending._free_places == read_server.PARALLEL_OPENS
        assert len(server.rings._rings) == len(server._all_feeds) == 1


def _unsubscribe(ident: int) -> bytes:
    return envelope(Op.UNSUBSCRIBE, 0, ident=ident)


async def test_a_log_whose_history_cannot_be_read_holds_up_no_other_log(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(nursery)
    read_range = HistoryReads._read_range

    async def read(self: HistoryReads, feed: TailFeed, at: EntryPosition, found: Any) -> None:
        if feed.name == "stuck":
            await trio.sleep_forever()
        await read_range(self, feed, at, found)

    monkeypatch.setattr(HistoryReads, "_read_range", read)
    async with world.process() as ns, proxies(world) as through:
        for name in ("stuck", "l"):
            await put(ns.open_log(name), *range(20))
        for _ in range(20):
            await through.reader("stuck")

        with trio.fail_after(5):
            reader = await through.reader("l")
            assert len(await reader.read_bulk(20, wait_s=4)) == 20


async def test_ranges_from_places_within_another_one_are_read_beside_it(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes longer than the other is kept: neither meets what the other left."""
    world = World(nursery)
    read_range = HistoryReads._read_range

    async def read(self: HistoryReads, feed: TailFeed, at: EntryPosition, found: Any) -> None:
        await read_range(self, feed, at, found)
        if at[1] > 1:
            await trio.sleep(3)

    monkeypatch.setattr(HistoryReads, "_read_range", read)
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            dlsns = [await writer.write(rec(txid, bytes(100_000))) for txid in range(8)]
        inner = [await through.reader("l", dlsn=dlsns[at]) for at in (2, 4)]
        whole = await through.reader("l")
        await _sweep_soon(through)

        assert len(await whole.read_bulk(8, wait_s=20)) == 8
        found = [len(await reader.read_bulk(8, wait_s=20)) for reader in inner]
        assert found == [6, 4]


async def _sweep_soon(through: Proxies) -> None:
    await trio.sleep(2)
    through.running[0].server.history_reads.sweep()
