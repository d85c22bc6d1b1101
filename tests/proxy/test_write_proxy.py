"""A write proxy, spoken to in frames: shared entries, one owner, streams that end at their first refusal."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import lock_key
from distributedlog.log.write import producer_state_manager as producing
from distributedlog.proxy.declarations.options import ProxyOptions
from distributedlog.proxy.membership.proxy_registration import ProxyRegistration
from distributedlog.proxy.membership.rendezvous_hash import rank_proxies
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.proxy.write import log_manager as owner_module
from distributedlog.proxy.write import produce_session
from distributedlog.proxy.write.hosted_log import HostedLog
from distributedlog.proxy.write.log_manager import (
    HANDOVER_TIME_FRACTION,
    HANDOVER_WAIT_S,
    PARALLEL_RELEASES_MAX,
    SWEEP_INTERVAL_S,
    LogManager,
)
from distributedlog.proxy.write.produce_session import ProduceSession
from distributedlog.proxy.write.producer_stream import ProducerStream
from distributedlog.runtime.declarations.options import KIB
from distributedlog.runtime.interfaces.errors import (
    REFUSED,
    AlreadyClosed,
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    InvalidUri,
    LogRecreated,
    Moved,
    OwnershipAcquireFailed,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    ProtocolError,
    TooBusy,
    TransactionIdOutOfOrder,
    WrongPeer,
)
from distributedlog.runtime.net import link as links
from distributedlog.runtime.net.connection_limiter import HEALTH
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.protocol.frames import Op, unpack
from distributedlog.testing.sim.bugs.proxy_injected_bugs import INJECTED_BUGS
from distributedlog.testing.sim.world.bug_injection import patched

from .proxy_world import world
from .raw_producer import RawProducer


async def test_commit_through_a_proxy_is_answered_when_readers_see_the_records() -> None:
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        await producer.open(1, "orders")
        for number in range(20):
            producer.send(1, number, b"%d" % number)
            await producer.acked(number + 1)
            await producer.commit(1)
            assert await it.stored("orders") == [b"%d" % n for n in range(number + 1)]

        with pytest.raises(AlreadyClosed):
            await producer.commit(2)


async def test_frames_of_many_producers_share_entries_and_keep_their_order() -> None:
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        opened = [await producer.open(number, "orders") for number in range(1, 21)]
        assert {one.incarnation for one in opened} == {opened[0].incarnation}

        for round_number in range(5):
            for stream in range(1, 21):
                producer.send(
                    stream, 2 * round_number, b"%d.%d" % (stream, round_number), b"and another"
                )
        acks = await producer.acked(100)

        assert len({(ack.segment, ack.entry) for ack in acks}) < 60
        assert producer.ack_frames < 60, "one frame a turn, not one a frame"
        for stream in range(1, 21):
            mine = [ack for ack in acks if ack.stream == stream]
            assert [ack.first_sequence for ack in mine] == [0, 2, 4, 6, 8]
            places = [(ack.segment, ack.entry, ack.slot) for ack in mine]
            assert places == sorted(places)
        producer.publish(1)
        await producer.open(21, "orders")  # answered after it
        stored = await it.stored("orders")
        assert len(stored) == 200
        for stream in range(1, 21):
            mine_stored = [one for one in stored if one.startswith(b"%d." % stream)]
            assert mine_stored == [b"%d.%d" % (stream, n) for n in range(5)]


async def test_a_log_has_one_owner_and_others_say_who() -> None:
    """Scenario 29; a direct writer is never fenced by a proxy."""
    async with world() as it:
        first, second = await it.proxy("w1"), await it.proxy("w2", open_wait_s=0.5)
        owner, other = await it.producer(first), await it.producer(second)
        await owner.open(1, "orders")

        with pytest.raises(Moved) as moved:
            await other.open(1, "orders")
        assert moved.value.detail == first.node_id
        with pytest.raises(Moved) as moved:  # it is there, whoever suspects it
            await other.open(2, "orders", suspect=first.node_id)
        assert moved.value.detail == first.node_id

        async with it.namespace.open_log("mine").open_writer() as writer:
            with pytest.raises(OwnershipAcquireFailed):
                await other.open(3, "mine")
            await writer.write(b"still mine")


async def test_a_stream_ends_at_its_first_refused_frame() -> None:
    """H65, H66, scenario 31: what comes after a refused frame is dropped, whatever it is."""
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        for stream in (1, 2, 3):
            await producer.open(stream, "orders")
        await it.namespace.create_log("given", txids="given")
        await producer.open(4, "given")

        producer.send(1, 0, b"one")
        broken = bytearray(wire.encode_produce(1, 1, 0, None, [b"two"]))
        broken[-1] ^= 1
        producer.link.send(bytes(broken))
        producer.send(1, 1, b"three")
        producer.send(2, 5, b"a gap")
        producer.send(2, 0, b"too late")
        producer.send(3, 0, b"another's")
        producer.send(4, 0, b"g", txids=[9])
        producer.send(4, 1, b"goes back", txids=[8])
        producer.send(4, 2, b"after it", txids=[10])

        changed, gap, back = [await producer.refused(stream) for stream in (1, 2, 4)]
        assert isinstance(changed.error, CorruptData)
        assert (changed.unknown_from, changed.refused_from) == (1, 1)
        assert isinstance(gap.error, InvalidRequest)
        assert gap.refused_from == 0
        assert isinstance(back.error, TransactionIdOutOfOrder)
        assert (back.unknown_from, back.refused_from) == (1, 1)
        await producer.acked(3)
        producer.publish(3)
        await producer.open(5, "given")
        producer.publish(5)
        await producer.open(6, "given")
        assert sorted(await it.stored("orders")) == [b"another's", b"one"]
        assert await it.stored("given") == [b"g"]


async def test_a_proxy_that_stops_gives_its_logs_to_others() -> None:
    """Scenario 30, H76: all that was taken is acknowledged before anybody is told to go elsewhere."""
    async with world() as it:
        first, second = await it.proxy("w1"), await it.proxy("w2")
        leaving, staying = await it.producer(first), await it.producer(second)
        for number in range(1, 6):
            await leaving.open(number, f"log{number}")
        for number in range(1, 6):
            for at in range(10):
                leaving.send(number, at, b"%d" % at)
        await leaving.acked(1)

        it.scopes["w1"].cancel()
        ends = [await leaving.refused(number) for number in range(1, 6)]

        for number, end in enumerate(ends, 1):
            assert isinstance(end.error, Moved)
            assert end.unknown_from == end.refused_from, "nothing is unknown"
            acked = sum(ack.records for ack in leaving.acks if ack.stream == number)
            assert acked == end.refused_from
            await staying.open(number, f"log{number}", through=end.refused_from)
            staying.send(number, end.refused_from, b"after")
        await staying.acked(5)
        for number in range(1, 6):
            staying.publish(number)
        await staying.open(6, "log1")
        for number, end in enumerate(ends, 1):
            stored = await it.stored(f"log{number}")
            assert stored == [b"%d" % at for at in range(end.refused_from)] + [b"after"]


async def test_a_producer_is_told_what_became_of_what_it_sent_before() -> None:
    """G9, H62–H64: outcomes are pushed on the next stream; a no is said only while the log is ours."""
    async with world() as it:
        node = await it.proxy("w1")
        before, after = await it.producer(node), await it.producer(node)
        opened = await before.open(1, "orders", producer="me")
        assert (opened.has_stored_records, opened.next_sequence) == (False, 0)
        before.send(1, 0, b"one", b"two")
        before.send(1, 2, b"three")
        told = await before.acked(2)

        again = await after.open(1, "orders", producer="me", number=opened.producer_number)
        assert (again.producer_number, again.has_stored_records, again.next_sequence) == (
            opened.producer_number,
            True,
            3,
        )
        pushed = await after.acked(2)
        assert [(a.first_sequence, a.records, a.segment, a.entry, a.slot) for a in pushed] == [
            (a.first_sequence, a.records, a.segment, a.entry, a.slot) for a in told
        ]
        assert all(ack.flags == wire.ACK_STORED_BEFORE for ack in pushed)
        after.send(1, 3, b"four")
        await after.acked(3)

        taken = await before.open(2, "orders", producer="me")
        assert (taken.has_stored_records, taken.next_sequence) == (True, 4)
        after.send(1, 4, b"of who lost the name")
        assert isinstance((await after.refused(1)).error, ProducerFenced)
        with pytest.raises(ProducerForgotten):
            await after.open(2, "orders", producer="you", number=77)

        async with it.namespace.open_log("orders").open_writer(takeover=True):
            with pytest.raises(Moved):  # it knows nothing of what was stored since
                await after.open(3, "orders", producer="me", number=taken.producer_number)
        assert await it.stored("orders") == [b"one", b"two", b"three", b"four"]


async def test_a_log_that_is_lost_is_named_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """For who is woken by `DlogProxyLosesLogs`: the counter does not say which."""
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        await producer.open(1, "orders")
        producer.send(1, 0, b"one")
        await producer.acked(1)

        async with it.namespace.open_log("orders").open_writer(takeover=True):
            producer.send(1, 1, b"two")
            await producer.refused(1)
            with pytest.raises(OwnershipAcquireFailed):
                await producer.open(2, "orders")

    assert any(
        'log "orders" is lost, because its writer failed with WriterFenced' in one
        for one in caplog.messages
    )


async def test_who_goes_while_his_frames_wait_leaves_nothing_behind() -> None:
    """H185: what is held is bounded in sum, so it must come back, however a stream ends."""
    async with world() as it:
        node = await it.proxy("w1")
        staying, going = await it.producer(node), await it.producer(node)
        for stream in range(1, 4):
            await staying.open(stream, "undecided")
        await going.open(1, "undecided")

        for stream in range(1, 4):  # they wait until it is stored who gives the log's txids
            staying.send(stream, 0, b"x" * 1000)
        going.send(1, 0, b"y" * 1000)
        staying.link.send(wire.encode_stream_notice(Op.PRODUCE_CLOSE, 2))
        going.link.close(ConnectionLost("the test wants it"))
        staying.send(1, 1, b"last")

        async def info() -> dict[str, int]:
            reply = await staying.link.request(Op.INFO, timeout_s=10)
            found: dict[str, int] = unpack(reply.body, "INFO")
            return found

        with trio.fail_after(30):
            while (now := await info())["held_bytes"] or now["streams"] != 2:
                pass
        assert now["windows_bytes"] == 2 * 1024 * 1024
        assert {ack.stream for ack in staying.acks} >= {1, 3}


async def test_a_connection_asks_for_so_much_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: openings and orders without end."""
    monkeypatch.setattr(produce_session, "OPENINGS_MAX", 8)
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        link = producer.link
        openings = [
            link.start_request(
                Op.PRODUCE_OPEN, wire.ProduceOpen(n, "default", f"log{n}").encode(), timeout_s=30
            )
            for n in range(1, 13)
        ]
        orders = [
            link.start_request(
                Op.PROXY_CALL, wire.ProxyCall("owned", ["", 9]).encode(), timeout_s=30
            )
            for _ in range(9)
        ]

        refused = 0
        for one in openings[8:] + orders[8:]:
            with pytest.raises(TooBusy):
                await link.wait_reply(one, 30)
            refused += 1
        assert refused == 4 + 1


async def test_above_its_limit_a_proxy_says_when_to_come_again() -> None:
    """Scenario 31."""
    async with world() as it:
        producer = await it.producer(await it.proxy("w1", records_per_s_max=10))
        await producer.open(1, "orders")

        for at in range(20):
            producer.send(1, at, b"x")
        refusal = await producer.refused(1)

        assert isinstance(refusal.error, TooBusy)
        assert 10 <= refusal.refused_from < 20
        assert 0 < refusal.retry_ms <= 1000
        await producer.acked(refusal.refused_from)


async def test_who_sends_beyond_its_window_ends_its_own_connection() -> None:
    """H185: what a proxy holds has a bound, whatever a producer keeps to; another one goes on."""
    async with world() as it:
        proxy = await it.proxy("w1", window_bytes=64 * KIB)
        greedy, other = await it.producer(proxy), await it.producer(proxy)
        opened = await greedy.open(1, "orders")
        assert opened.window_bytes == 64 * KIB

        for at in range(3):
            greedy.send(1, at, bytes(60 * KIB))
        with trio.fail_after(20):
            while greedy.link.closed is None:  # noqa: ASYNC110 - the other side's doing
                await trio.sleep(0.01)
        await other.open(1, "orders")
        other.send(1, 0, b"goes on")

        assert (await other.acked(1))[0].records == 1


async def test_a_proxy_that_holds_too_much_takes_no_more_for_now() -> None:
    """H185: a first frame may go beyond its stream's window, all of them in sum not beyond the process's."""
    async with world() as it:
        producer = await it.producer(await it.proxy("w1", windows_bytes=128 * KIB))
        await producer.open(1, "orders")

        producer.send(1, 0, bytes(250 * KIB))
        with trio.fail_after(20):
            refusal = await producer.refused(1)

        assert isinstance(refusal.error, TooBusy)
        assert refusal.refused_from == 0
        assert refusal.retry_ms > 0
        await producer.open(2, "orders")
        producer.send(2, 0, bytes(100 * KIB))
        assert (await producer.acked(1))[0].records == 1


async def test_a_stream_names_a_namespace_as_a_call_does() -> None:
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        for number, path in enumerate(("", "../x", "a//b", "<x>", "a b"), 1):
            request = wire.ProduceOpen(number, path, "orders")
            with pytest.raises(InvalidUri):
                await producer.link.request(Op.PRODUCE_OPEN, request.encode(), timeout_s=20)
        request = wire.ProduceOpen(9, "/default/", "orders")
        await producer.link.request(Op.PRODUCE_OPEN, request.encode(), timeout_s=20)
        producer.send(9, 0, b"in the one namespace")
        await producer.acked(1)
        await producer.open(10, "orders")
        info = unpack((await producer.link.request(Op.INFO, timeout_s=9)).body, "INFO")
        assert info["logs"] == 1


async def test_a_log_that_is_used_is_not_idle(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its use is noted by the sweep: a frame looks at no clock."""
    given_up: list[float] = []

    async def give_up(self: LogManager, key: Any, target: str) -> bool:
        given_up.append(trio.current_time())
        del self.logs[key]
        return True

    monkeypatch.setattr(LogManager, "hand_off", give_up)
    nothing: Any = None
    owner = LogManager("me", nothing, nothing, ProxyOptions(), nothing)
    await nursery.start(owner.run)
    one: Any = SimpleNamespace(
        is_releasing=False, writer=SimpleNamespace(end_error=None), has_new_frames=False
    )
    one.used_at = trio.current_time()
    owner.logs["default", "orders"] = one
    idle_s = owner.options.idle_s
    while trio.current_time() < 3 * idle_s:
        one.has_new_frames = True
        await trio.sleep(idle_s / 2)
    assert given_up == []

    last = trio.current_time() - idle_s / 2
    await trio.sleep(2 * idle_s)
    assert len(given_up) == 1
    assert idle_s <= given_up[0] - last <= idle_s + 3 * SWEEP_INTERVAL_S


def test_a_proxy_has_windows_for_as_many_streams_as_it_says() -> None:
    nothing: Any = None
    owner = LogManager("me", nothing, nothing, ProxyOptions(), nothing)
    windows: list[int] = []
    for _ in range(3100):
        windows.append(owner.new_window_bytes(0))
        owner.stats.windows_bytes += windows[-1]
    assert windows[0] == 1024 * 1024
    assert sum(windows) <= ProxyOptions().windows_bytes


async def test_who_never_reads_its_acknowledgements_is_held_to_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H185: what waits for it at the proxy has a bound in bytes, it is read no further, and others go on.

    Planted: gathered without `ACKS_MAX` they are counted by nobody, and there is no end to them.
    """
    ends: list[Link] = []
    made = ProduceSession.__init__

    def noting(self: ProduceSession, link: Link, *rest: Any) -> None:
        if link.peer.kind != HEALTH:  # the proxy's check of its own address
            ends.append(link)
        made(self, link, *rest)

    monkeypatch.setattr(ProduceSession, "__init__", noting)
    monkeypatch.setattr(links, "UNREAD_BYTES_MAX", links.UNREAD_BYTES_MIN)
    async with world() as it:
        proxy = await it.proxy("w1", window_bytes=64 * KIB)
        deaf, other = await it.producer(proxy), await it.producer(proxy)
        await deaf.open(1, "orders")
        await other.open(1, "orders")
        end = ends[0]
        for side, name in ((deaf.link, "SO_RCVBUF"), (end, "SO_SNDBUF")):
            sock = side._connection._sock  # type: ignore[attr-defined]
            sock.setsockopt(trio.socket.SOL_SOCKET, getattr(trio.socket, name), 4096)
        deaf.link.pause_reading()

        most, sent, stored = 0, 0, 0
        with trio.fail_after(60):
            while not end._peer_lags or sent == stored:
                for _ in range(50):
                    deaf.send(1, sent, b"x")
                    sent += 1
                await trio.sleep(0.005)
                most = max(most, end.outgoing_bytes)
                stored = len(await it.stored("orders")) if end._peer_lags else 0
        other.send(1, 0, b"goes on")
        await other.acked(1)

        assert stored < sent, "it is read no further"
        # What makes it unread, and the answers to what one receive had: 256 KiB of frames of 61 bytes.
        assert most <= links.UNREAD_BYTES_MIN + 300 * KIB
        deaf.link.resume_reading()
        with trio.fail_after(60):
            await deaf.acked(sent)  # and nothing of it is lost


async def test_a_frame_that_expects_a_record_comes_directly_after_it_or_not_at_all() -> None:
    """G10 through a proxy, H75: of a counter that two raise by compare and append no step is lost."""
    async with world() as it:
        proxy = await it.proxy("w1")

        async def raise_it(producer: RawProducer, by: int) -> None:
            last, value, stream = DLSN.NONE, 0, 0
            for _ in range(by):
                while True:
                    stream += 1
                    await producer.open(stream, "counter")
                    acked = len(producer.acks)
                    producer.send(stream, 0, b"%d" % (value + 1), expect=last)
                    while len(producer.acks) == acked and stream not in producer.refusals:
                        await producer.news()
                    if stream not in producer.refusals:
                        break
                    error = producer.refusals[stream].error
                    assert isinstance(error, PositionConflict)
                    last = DLSN.parse(error.last)
                    async with it.namespace.open_log("counter").open_reader(dlsn=last) as reader:
                        found = await reader.read_next()
                    assert found is not None
                    value = int(found.payload)
                ack = producer.acks[-1]
                last, value = DLSN(ack.segment, ack.entry, ack.slot), value + 1

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(raise_it, await it.producer(proxy), 5)

        assert await it.stored("counter") == [b"%d" % n for n in range(1, 11)]


async def test_others_keep_their_order_beside_one_that_expects() -> None:
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        for stream in (1, 2, 3):
            await producer.open(stream, "orders")
        producer.send(1, 0, b"a0")
        producer.send(2, 0, b"never", expect=DLSN(7, 0, 0))
        producer.send(1, 1, b"a1")
        producer.send(2, 1, b"nor this")
        producer.send(3, 0, b"c0")
        with trio.fail_after(30):
            refusal = await producer.refused(2)
            await producer.acked(3)

        assert isinstance(refusal.error, PositionConflict)
        assert (refusal.unknown_from, refusal.refused_from) == (0, 0)
        producer.publish(1)
        await producer.open(4, "orders")
        assert await it.stored("orders") == [b"a0", b"a1", b"c0"]


async def test_who_goes_while_a_frame_of_it_expects_leaves_the_others_in_order() -> None:
    """It may be stored, and nobody is told; nothing of it is answered to another one."""
    async with world() as it:
        proxy = await it.proxy("w1")
        going, staying = await it.producer(proxy), await it.producer(proxy)
        await going.open(1, "orders")
        await staying.open(1, "orders")
        staying.send(1, 0, b"s0")
        going.send(1, 0, b"g0", expect=DLSN(1, 0, 0))
        going.link.send(wire.encode_stream_notice(Op.PRODUCE_CLOSE, 1))
        staying.send(1, 1, b"s1")
        with trio.fail_after(30):
            acks = await staying.acked(2)
            assert [ack.first_sequence for ack in acks] == [0, 1]
        staying.publish(1)
        await staying.open(2, "orders")
        stored = await it.stored("orders")
        assert [one for one in stored if one != b"g0"] == [b"s0", b"s1"]
        assert not going.acks


async def forgotten_while_it_is_away() -> None:
    """H67: a name is forgotten for others' while its last answer is on its way to nobody."""
    async with world() as it:
        node = await it.proxy("w1")
        lost, after, others = [await it.producer(node) for _ in range(3)]
        opened = await lost.open(1, "orders", producer="me")
        lost.send(1, 0, b"stored, and its producer does not know")
        await lost.acked(1)
        lost.link.close(ConnectionLost("the test wants it"))
        for stream in range(1, 4):
            await others.open(stream, "orders", producer=f"other {stream}")

        with pytest.raises(ProducerForgotten):
            await after.open(1, "orders", producer="me", number=opened.producer_number)
        again = await after.open(2, "orders", producer="me")
        assert (again.has_stored_records, again.next_sequence) == (False, 0)
        after.publish(2)
        assert len(await it.stored("orders")) == 1


async def test_who_was_forgotten_is_told_and_stores_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H67, with the bug of its kind that seeds hardly meet: it must be away for as long as a name is kept."""
    monkeypatch.setattr(producing, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(producing, "IDLE_MS", 0)
    await forgotten_while_it_is_away()
    (bug,) = [patches for name, patches in INJECTED_BUGS.items() if "H67" in name]
    with patched(bug), pytest.RaisesGroup(pytest.fail.Exception, flatten_subgroups=True):
        await forgotten_while_it_is_away()


async def test_a_log_that_is_being_opened_holds_up_no_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H79: its bookies do not answer; the others are given up meanwhile."""
    acquire = LogManager._acquire

    async def stuck(self: LogManager, namespace: Any, key: tuple[str, str], *rest: Any) -> Any:
        if key[1] == "stuck":
            await trio.sleep_forever()
        return await acquire(self, namespace, key, *rest)

    monkeypatch.setattr(LogManager, "_acquire", stuck)
    async with world() as it:
        node = await it.proxy("w1", drain_s=1)
        producer, other = await it.producer(node), await it.producer(node)
        await producer.open(1, "orders")
        producer.send(1, 0, b"x")
        await producer.acked(1)
        request = wire.ProduceOpen(1, "default", "stuck").encode()
        other.link.start_request(Op.PRODUCE_OPEN, request, timeout_s=60)
        await other.link.request(Op.INFO, timeout_s=10)

        other.link.start_request(Op.PROXY_CALL, wire.ProxyCall("drain", []).encode(), timeout_s=60)
        with trio.fail_after(20):
            refusal = await producer.refused(1)

        assert isinstance(refusal.error, Moved)


class Ending:
    """A writer that takes its time to end."""

    end_error = None

    def __init__(
        self, log_id: int = 0, close_s: float = math.inf, abort_s: float = 60, name: str = "orders"
    ) -> None:
        self.sequenced_writer = SimpleNamespace(log_name=name)
        self.position = SimpleNamespace(incarnation=f"{log_id:016x}")
        self._close_s, self._abort_s = close_s, abort_s

    async def aclose(self) -> None:
        await trio.sleep(self._close_s)

    async def abort(self) -> None:
        await trio.sleep(self._abort_s)


async def test_a_log_that_is_slowly_given_up_leaves_its_namespace_all_the_same(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for it meanwhile may have it again before: its namespace counts them both."""
    using: list[str] = []

    class Counting:
        async def acquire(self, path: str) -> None:
            using.append(path)

        def release(self, path: str) -> None:
            using.remove(path)

    async def acquire(self: LogManager, *args: Any) -> Any:
        return Ending()

    monkeypatch.setattr(LogManager, "_acquire", acquire)
    nothing: Any = None
    namespaces: Any = Counting()
    owner = LogManager("me", namespaces, nothing, ProxyOptions(), nothing)
    await nursery.start(owner.run)
    request = wire.ProduceOpen(1, "default", "orders")
    first = await owner.find_or_open(request)
    nursery.start_soon(owner.hand_off, ("default", "orders"), "")
    await trio.sleep(1)
    second = await owner.find_or_open(request)
    assert second is not first

    await trio.sleep(120)
    assert using == ["default"]
    assert await owner.hand_off(("default", "orders"), "")
    assert using == []


class Next:
    """Other proxies, which take logs one after the other, twenty a second."""

    def __init__(self, take_s: float = 0.05, error: DistributedLogError | None = None) -> None:
        self.taken: dict[str, tuple[float, str]] = {}
        self._take_s, self._error = take_s, error
        self._one_by_one = trio.Lock()

    async def ask_to_open(
        self, there: ProxyRegistration, path: str, name: str, incarnation: str
    ) -> None:
        async with self._one_by_one:
            await trio.sleep(self._take_s)
        if self._error is not None:
            raise self._error
        self.taken[name] = (trio.current_time(), there.id)


def gives_up(peers: Any, logs: int) -> tuple[LogManager, dict[str, float]]:
    """An owner of so many logs with a producer each, and when these are told."""
    storage: Any = SimpleNamespace(release=lambda path: None)
    members: Any = SimpleNamespace(
        write={
            one: ProxyRegistration(one, "write", {}, accepting=one != "w4")
            for one in ("me", "w2", "w3", "w4")
        }
    )
    owner = LogManager("me", storage, members, ProxyOptions(), peers)
    told: dict[str, float] = {}
    for number in range(logs):
        writer: Any = Ending(number + 1, 0.01, 0, f"log{number}")
        one = owner.logs["default", f"log{number}"] = HostedLog("default", f"log{number}", writer)

        def release(target: str, name: str = one.name) -> None:
            told[name] = trio.current_time()

        one.notify_released = release  # type: ignore[method-assign]
        stream = ProducerStream(
            1, 1 << 20, ack=lambda _: None, refuse=lambda *_: None, on_bytes=lambda _: None
        )
        one.streams[stream] = None
    return owner, told


async def test_logs_are_given_up_no_faster_than_another_proxy_takes_them(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H79: while a proxy drains a log's producers wait for those given up beside it, however many it has.

    Also those who send nothing in the very moment, and come a second later.
    """
    peers = Next()
    owner, told = gives_up(peers, 300)
    await nursery.start(owner.run)
    began = trio.current_time()
    await owner.drain()

    assert len(told) == len(peers.taken) == 300
    for name, at in told.items():
        taken_at, who = peers.taken[name]
        assert who == rank_proxies("default", name, ("w2", "w3"))[0], "as clients ask"
        assert taken_at - at <= (PARALLEL_RELEASES_MAX + 1) * 0.05
    assert trio.current_time() - began < 300 * 0.05 + 1


@pytest.mark.parametrize(
    ("peers", "most_s"),
    [
        (Next(math.inf), HANDOVER_TIME_FRACTION * ProxyOptions().drain_s + HANDOVER_WAIT_S + 1),
        (Next(0, ConnectionLost("it is gone")), 2),
        (Next(0, TooBusy("it has enough")), 2),
        (Next(0, Moved("it is here", "w3")), 2),
    ],
    ids=["hangs", "is gone", "is full", "is somewhere else"],
)
async def test_a_drain_ends_whatever_becomes_of_who_is_next(
    nursery: trio.Nursery, autojump_clock: MockClock, peers: Next, most_s: float
) -> None:
    """H79: what is left after a part of its time is given up at once, and its producers find who takes it."""
    owner, told = gives_up(peers, 500)
    await nursery.start(owner.run)
    began = trio.current_time()
    await owner.drain()

    assert len(told) == 500
    assert trio.current_time() - began < most_s


async def test_a_log_that_nobody_has_open_is_taken_by_nobody(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peers = Next()
    owner, told = gives_up(peers, 2)
    await nursery.start(owner.run)
    for one in owner.logs.values():
        one.streams.clear()
    await owner.drain()
    assert len(told) == 2
    assert not peers.taken


@pytest.mark.parametrize(
    ("met", "early"),
    [
        (ConnectionLost("nobody listens there", REFUSED), True),
        (WrongPeer("another process answers"), True),
        (ProtocolError("so does who speaks something else"), True),
        (ConnectionLost("no route to host"), False),
        (ConnectionLost("too many open files"), False),
        (ConnectionLost("it closed the connection"), False),
    ],
    ids=str,
)
async def test_only_who_is_certainly_gone_loses_a_log_before_its_lease_ends(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    met: DistributedLogError,
    early: bool,
) -> None:
    """H182: a proxy that had no descriptor for a dial took each log that it was asked for from who lived."""
    tries: list[tuple[str, float]] = []
    taken: Any = object()

    async def take(one: Any, dead: str, wait_s: float) -> Any:
        tries.append((dead, wait_s))
        if dead or wait_s > 0:
            return taken
        raise OwnershipAcquireFailed("it has an owner")

    async def holder(*args: Any) -> Any:
        return SimpleNamespace(proxy="w2", writer_id="w")

    async def knock(there: ProxyRegistration) -> None:
        raise met

    async def find(name: str) -> int:
        return 1

    monkeypatch.setattr(owner_module, "open_writer_after_dead_holder", take)
    monkeypatch.setattr(owner_module, "lock_holder", holder)
    members: Any = SimpleNamespace(write={"w2": ProxyRegistration("w2", "write", {})})
    storage: Any = SimpleNamespace(
        metadata=None, resolve_name=find, open_log=lambda name, **rest: None
    )
    nothing: Any = None
    peers: Any = SimpleNamespace(probe=knock)
    owner = LogManager("w1", nothing, members, ProxyOptions(), peers)
    request = wire.ProduceOpen(1, "default", "orders", suspect_proxy_id="w2")
    deadline = trio.current_time() + 10

    assert await owner._acquire(storage, ("default", "orders"), request, deadline) is taken
    assert tries == [("", 0.0), ("w" if early else "", 10.0)]


async def test_a_log_is_taken_by_its_incarnation_for_a_proxy_that_drains() -> None:
    """Never a log that was made since under its name (H72)."""
    async with world() as it:
        first, second = await it.proxy("w1"), await it.proxy("w2")
        one, other = await it.producer(first), await it.producer(second)
        opened = await one.open(1, "orders")
        drain = wire.ProxyCall("drain", []).encode()
        await one.link.request(Op.PROXY_CALL, drain, timeout_s=20)

        owned = wire.ProxyCall("owned", ["", 9]).encode()
        there = await other.link.request(Op.PROXY_CALL, owned, timeout_s=20)
        assert [row[1] for row in wire.decode_owned(there.body)] == ["orders"]
        call = wire.ProxyCall("take", ["default", "orders", opened.incarnation]).encode()
        await other.link.request(Op.PROXY_CALL, call, timeout_s=20)
        call = wire.ProxyCall("take", ["default", "orders", "0" * 16]).encode()
        with pytest.raises(LogRecreated):
            await other.link.request(Op.PROXY_CALL, call, timeout_s=20)


async def test_a_stream_has_its_number_for_itself() -> None:
    """H63: an answer to a frame of one must never be taken for that of another."""
    async with world() as it:
        node = await it.proxy("w1")
        producer = await it.producer(node)
        await producer.open(1, "orders")
        with pytest.raises(DistributedLogError):
            await producer.open(1, "orders")
        assert isinstance(producer.link.closed, ProtocolError)


@pytest.mark.parametrize("producer", ["", "me"])
async def test_who_meant_a_log_that_was_deleted_writes_nothing_to_the_next_one(
    producer: str,
) -> None:
    """H72: of the same name, at the proxy that has it."""
    async with world() as it:
        one = await it.producer(await it.proxy("w1"))
        before = (await one.open(1, "orders")).incarnation
        one.link.send(wire.encode_stream_notice(Op.PRODUCE_CLOSE, 1))
        gone = wire.LogCall("default", "delete", "orders", "", [0.0])
        await one.link.request(Op.LOG_CALL, gone.encode(), timeout_s=20)
        assert (await one.open(2, "orders")).incarnation != before
        request = wire.ProduceOpen(3, "default", "orders", before, producer)

        with pytest.raises(LogRecreated):
            await one.link.request(Op.PRODUCE_OPEN, request.encode(), timeout_s=20)


async def test_a_log_that_was_renamed_has_nothing_of_who_asks_for_its_old_name() -> None:
    """H72: a proxy whose lock lapses while it is paused hears of it when it takes the lock again."""
    async with world() as it:
        producer = await it.producer(await it.proxy("w1"))
        before = await producer.open(1, "orders")
        producer.send(1, 0, b"before")
        await producer.acked(1)
        metadata, log_id = it.namespace.metadata, int(before.incarnation, 16)
        lock = await metadata.get(lock_key(log_id))
        assert lock is not None
        await metadata.revoke_lease(lock.lease)
        await it.namespace.rename_log("orders", "orders-of-May")
        await it.namespace.create_log("orders")
        with trio.fail_after(20):
            while await metadata.get(lock_key(log_id)) is None:  # noqa: ASYNC110 - the proxy puts it
                await trio.sleep(0.05)

        after = await producer.open(2, "orders")
        assert after.incarnation != before.incarnation
        producer.send(1, 1, b"goes on")
        producer.send(2, 0, b"of another log")
        await producer.acked(3)
        again = await producer.open(3, "orders-of-May")
        assert again.incarnation == before.incarnation
        for stream in (1, 2):
            producer.publish(stream)
        await producer.open(4, "orders")
        assert await it.stored("orders") == [b"of another log"]
        assert await it.stored("orders-of-May") == [b"before", b"goes on"]


@pytest.mark.parametrize(("suspect", "knocked"), [("", []), ("another", []), ("w2", ["w2"])])
async def test_an_owner_is_knocked_at_where_somebody_suspects_it(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    suspect: str,
    knocked: list[str],
) -> None:
    """H182: who asks at the wrong proxy is sent on at once, and costs the owner nothing."""
    found: list[str] = []

    async def taken(*args: Any) -> Any:
        raise OwnershipAcquireFailed("it has an owner")

    async def holder(*args: Any) -> Any:
        return SimpleNamespace(proxy="w2", writer_id="w")

    async def knock(there: ProxyRegistration) -> None:
        found.append(there.id)

    async def find(name: str) -> int:
        return 1

    monkeypatch.setattr(owner_module, "open_writer_after_dead_holder", taken)
    monkeypatch.setattr(owner_module, "lock_holder", holder)
    members: Any = SimpleNamespace(write={"w2": ProxyRegistration("w2", "write", {})})
    storage: Any = SimpleNamespace(
        metadata=None, resolve_name=find, open_log=lambda name, **rest: None
    )
    nothing: Any = None
    peers: Any = SimpleNamespace(probe=knock)
    owner = LogManager("w1", nothing, members, ProxyOptions(), peers)
    request = wire.ProduceOpen(1, "default", "orders", suspect_proxy_id=suspect)

    with pytest.raises(Moved) as moved:
        await owner._acquire(storage, ("default", "orders"), request, trio.current_time() + 10)

    assert moved.value.detail == "w2"
    assert found == knocked
