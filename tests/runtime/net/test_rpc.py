"""Links, requests and served sessions, over pipes that split and merge at any byte."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    NotLeader,
    ProtocolError,
    RequestTimeout,
    TooBusy,
    WrongPeer,
)
from distributedlog.runtime.interfaces.host import Address, Connection
from distributedlog.runtime.net.client_link import ClientLink, Reply
from distributedlog.runtime.net.connection_limiter import IDLE_S_MIN, UNAUTHENTICATED_MAX
from distributedlog.runtime.net.link import ALL_UNREAD_BYTES_MAX, UNREAD_BYTES_MIN, Link
from distributedlog.runtime.net.rejection_log import LINES_PER_MINUTE_MAX, RejectionLog
from distributedlog.runtime.net.rpc import PARTIAL_BYTES_MAX, SERVER_SILENCE_TIMEOUT_S, Endpoint
from distributedlog.runtime.protocol.frames import (
    ENVELOPE_BYTES,
    FRAME_BYTES_MAX,
    HTTP_REPLY,
    REPLY_MORE,
    Op,
    envelope,
    pack,
    unpack,
)
from distributedlog.runtime.protocol.handshake import (
    FEATURE_LACS,
    FEATURES,
    Hello,
    decode_hello,
    encode_hello,
)

from ..pipe import PipeNetwork

ECHO, DROP, FAIL, LEADER, PUSH, REPEAT, BREAK, ASSERT, CLOSE = range(100, 109)


async def say(connection: Connection, op: int, body: bytes) -> None:
    """A frame by hand; what is not taken any more is not sent."""
    rest = envelope(op, len(body)) + body
    with suppress(ConnectionLost):
        while rest:
            rest = rest[connection.try_send([rest]) :]
            await connection.wait_writable()


class EchoSession:
    """Answers ECHO with its body, FAIL and LEADER with errors, DROP not at all, PUSH with a frame.

    REPEAT is answered for each byte of its body; a zero byte is an error.
    """

    def __init__(self, link: Link, ended: list[str]) -> None:
        self.link = link
        self.ended = ended
        self.heard: list[int | None] = []
        """The operations; None at the end of each batch."""

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        self.heard.append(op)
        if op == ECHO:
            self.link.reply(ident, bytes(body), flags=flags)
        elif op == FAIL:
            self.link.reply_error(ident, TooBusy("no room: 9 of 8 bytes"))
        elif op == LEADER:
            self.link.reply_error(ident, NotLeader("ask n2", "n2"))
        elif op == REPEAT:
            for n, byte in enumerate(bytes(body)):
                more = REPLY_MORE if n + 1 < len(body) else 0
                if byte:
                    self.link.reply(ident, bytes([byte]) * 9000, flags=more)
                else:
                    self.link.reply_error(ident, TooBusy("zero"))
        elif op == PUSH:
            self.link.send(envelope(PUSH, len(body), ident=7), bytes(body))
        elif op == BREAK:
            raise KeyError(bytes(body).decode())
        elif op == CLOSE:
            self.link.close(ConnectionLost("enough of it"))
        elif op == ASSERT:
            raise AssertionError("a rule of our own")
        elif op != DROP:
            raise ProtocolError(f"operation {op} is not known here")

    def on_batch_end(self) -> None:
        self.heard.append(None)

    def on_closed(self) -> None:
        self.ended.append(self.link.peer.label)


SERVER = Hello(cluster_id="c1", node_id="n1", kind="bookie", durability="fdatasync")
CLIENT = Hello(cluster_id="", label="tester")


class Served:
    def __init__(self, network: PipeNetwork, address: Address, nursery: trio.Nursery) -> None:
        self.network = network
        self.address = address
        self.nursery = nursery
        self.server: Endpoint
        self.sessions: list[EchoSession] = []
        self.ended: list[str] = []
        self.client = Endpoint(network.host("client"), lambda: CLIENT, receive_bytes=4096)

    async def dial(self, **options: Any) -> ClientLink:
        return await self.client.dial(self.address, nursery=self.nursery, **options)

    async def raw(self) -> Connection:
        return await self.network.host("stranger").dial(self.address)


@asynccontextmanager
async def served(
    seed: int = 1, *, hello: Callable[[], Hello] = lambda: SERVER, partial_bytes_max: int = 64 << 20
) -> AsyncIterator[Served]:
    network = PipeNetwork(seed)
    server = Endpoint(
        network.host("server"), hello, receive_bytes=4096, partial_bytes_max=partial_bytes_max
    )
    async with trio.open_nursery() as nursery:
        listener = await server.host.listen(("server", 0))
        there = Served(network, listener.address, nursery)
        there.server = server

        def session(link: Link) -> EchoSession:
            there.sessions.append(EchoSession(link, there.ended))
            return there.sessions[-1]

        nursery.start_soon(server.serve, {"inside": listener}, session)
        yield there
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_frames_of_any_size_survive_any_cut(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """H36: frames above the shared buffer, cut anywhere, come out whole and in order."""
    chance = random.Random(seed)
    async with served(seed) as there:
        link = await there.dial()
        for size in [
            0,
            1,
            23,
            24,
            25,
            4000,
            4096,
            5000,
            70_000,
            700_000,
            FRAME_BYTES_MAX - ENVELOPE_BYTES,
        ]:
            content = chance.randbytes(size)
            reply = await link.request(
                ECHO, content[: size // 3], content[size // 3 :], flags=3, timeout_s=60
            )
            assert bytes(reply.body) == content
            assert reply.flags == 3


async def test_many_requests_are_answered_each_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as there:
        link = await there.dial()
        got: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            reply = await link.request(ECHO, b"%d" % number, timeout_s=5)
            got[number] = bytes(reply.body)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, number)

        assert got == {n: b"%d" % n for n in range(200)}


async def test_replies_are_the_receivers_own_memory(autojump_clock: trio.testing.MockClock) -> None:
    """H17: a reply that is kept is not overwritten by what comes after it."""
    async with served() as there:
        link = await there.dial()
        kept = [await link.request(ECHO, bytes([n]) * 300, timeout_s=5) for n in range(50)]

        assert [bytes(reply.body) for reply in kept] == [bytes([n]) * 300 for n in range(50)]


async def test_errors_keep_class_and_detail(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as there:
        link = await there.dial()
        with pytest.raises(TooBusy, match="9 of 8"):
            await link.request(FAIL, timeout_s=5)
        with pytest.raises(NotLeader) as caught:
            await link.request(LEADER, timeout_s=5)
        assert caught.value.leader == "n2"


async def test_silence_is_a_timeout_with_unknown_outcome(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """G7: a timed-out request is unknown, and says so."""
    async with served() as there:
        link = await there.dial()
        with pytest.raises(RequestTimeout) as caught:
            await link.request(DROP, timeout_s=1.5)
        assert not caught.value.definite
        assert bytes((await link.request(ECHO, b"still there", timeout_s=5)).body) == b"still there"


async def test_a_closed_connection_is_news_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as there:
        link = await there.dial()
        told: list[DistributedLogError] = []
        link.on_closed.append(told.append)
        before = trio.current_time()

        async def ask() -> None:
            with pytest.raises(ConnectionLost):
                await link.request(DROP, timeout_s=30)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            link.send(
                envelope(99, 0)
            )  # an operation that the session does not know: it ends the link

        assert trio.current_time() - before < 0.1
        assert told == [link.closed]
        with pytest.raises(DistributedLogError):
            await link.request(ECHO, timeout_s=1)


@pytest.mark.parametrize(
    ("asked", "heard"),
    [(b"abc", "abc"), (b"a", "a"), (b"ab\x00c", "ab!"), (b"", "!")],
)
async def test_a_standing_request_hears_all_its_answers(
    asked: bytes, heard: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Also the end of the link; nothing after the last one, which is forgotten."""
    async with served() as there:
        link = await there.dial()
        answers: list[str] = []

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if isinstance(reply, Reply):
                assert len(set(bytes(reply.body))) == 1
                answers.append(chr(reply.body[0]))
            else:
                answers.append("!")

        link.start_repeated_request(REPEAT, asked, timeout_s=5, on_reply=on_reply)
        await link.request(ECHO, timeout_s=5)
        await trio.sleep(0.1)
        link.close(ConnectionLost("enough"))
        await trio.sleep(0.1)
        assert "".join(answers) == heard
        assert link._pending == {}


async def test_frames_without_request_reach_the_subscriber(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as there:
        link = await there.dial()
        seen: list[tuple[int, int, bytes]] = []
        turns: list[int] = []
        link.subscribe(
            lambda op, flags, status, ident, body: seen.append((op, ident, bytes(body))),
            before_send=lambda: turns.append(1),
        )
        link.send(envelope(PUSH, 3), b"abc")
        await link.request(ECHO, timeout_s=5)

        assert seen == [(PUSH, 7, b"abc")]
        link.request_send()
        await link.request(ECHO, timeout_s=5)
        assert turns, "called before the sender's turn"


async def test_hello_tells_who_is_there(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as there:
        link = await there.dial(expected_node_id="n1")
        assert link.peer == SERVER
        assert link.listener == "inside"


def test_who_names_no_features_has_none() -> None:
    """A HELLO as programs wrote it before there were features; and one of a newer program."""
    old = unpack(encode_hello(SERVER), "a HELLO")
    new = {**old, "features": 1 << 31 | FEATURES}
    del old["features"]

    assert decode_hello(pack(old), "peer").hello == replace(SERVER, features=0)
    assert decode_hello(pack(new), "peer").hello.features & FEATURES == FEATURES
    for wrong in (-1, 1 << 32, "1", None):
        with pytest.raises(ProtocolError, match="features"):
            decode_hello(pack({**new, "features": wrong}), "peer")


async def test_peers_use_the_features_that_both_hosts_support(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as there:
        host = replace(there.network.host("older"), features=FEATURE_LACS)
        there.client = Endpoint(host, lambda: CLIENT)

        link = await there.dial()

        assert link.peer == replace(SERVER, features=FEATURE_LACS)
        assert there.sessions[0].link.peer == replace(CLIENT, features=FEATURE_LACS)


async def test_the_wrong_node_at_an_address_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H6: B1's address was taken by B5; an answer from B5 must not count for B1."""
    async with served() as there:
        with pytest.raises(WrongPeer, match="n1"):
            await there.dial(expected_node_id="n0")


async def test_the_wrong_cluster_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as there:
        there.client = Endpoint(there.network.host("x"), lambda: Hello(cluster_id="c2"))
        with pytest.raises(WrongPeer, match="c1"):
            await there.dial()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x40" + bytes(100),  # a length prefix of 1 GiB
        b"\xff" * 64,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # a TLS hello
        envelope(ECHO, 3) + b"abc",  # a good frame, but no HELLO
        envelope(Op.HELLO, 3) + b"abc",
        envelope(Op.HELLO, 70_000),  # too long for a stranger
        random.Random(3).randbytes(5000),
    ],
)
async def test_garbage_ends_its_connection_and_nothing_else(
    garbage: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Bad input: refused at once, nothing allocated, the others undisturbed."""
    async with served() as there:
        good = await there.dial()
        bad = await there.raw()
        bad.try_send([garbage])
        buffer = bytearray(65_536)
        with trio.fail_after(10):
            while True:
                try:
                    if not await bad.receive_into(memoryview(buffer)):
                        break
                    bad.try_send([garbage])
                except ConnectionLost:
                    break
        assert bytes((await good.request(ECHO, b"fine", timeout_s=5)).body) == b"fine"


async def test_http_on_this_port_is_told_so(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as there:
        bad = await there.raw()
        request = b"GET / HTTP/1.1\r\n\r\n"
        while request:
            request = request[bad.try_send([request]) :]
        buffer, got = bytearray(4096), b""
        with trio.fail_after(10):
            while size := await bad.receive_into(memoryview(buffer)):
                got += buffer[:size]
        assert got.startswith(HTTP_REPLY)


async def test_slow_bytes_and_idle_strangers_are_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Slowloris: a frame that does not become complete, and a stranger that says nothing."""
    async with served() as there:
        slow, idle = await there.raw(), await there.raw()
        begun = trio.current_time()
        frame = envelope(Op.HELLO, 1000) + bytes(1000)

        async def drip() -> None:
            for place in range(len(frame)):
                slow.try_send([frame[place : place + 1]])
                await trio.sleep(0.5)

        with pytest.raises(ConnectionLost):
            await drip()
        assert trio.current_time() - begun < 12
        assert await idle.receive_into(memoryview(bytearray(100))) == 0


async def test_both_sides_are_told_the_end_of_what_came_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """There they do what is done once for many frames. After a frame that closed the link comes nothing."""
    async with served() as there:
        link = await there.dial()
        told: list[int] = []
        link.subscribe(lambda *frame: None, on_batch=lambda: told.append(1))
        await link.request(ECHO, timeout_s=5)
        session = there.sessions[0]
        assert session.heard[-2:] == [ECHO, None]
        assert told

        frames = [envelope(op, 0, ident=9) for op in (DROP, CLOSE, ECHO)]
        session.heard.clear()
        link.send(b"".join(frames))
        await trio.sleep(1)
        assert link.closed is not None
        assert [op for op in session.heard if op is not None] == [DROP, CLOSE]
        assert session.heard[-1] == CLOSE


async def test_who_is_read_no_further_is_neither_silent_nor_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server that is full holds its clients within a frame: that is its own delay, not theirs."""
    async with served() as there:
        connection = await there.raw()
        await say(connection, Op.HELLO, encode_hello(CLIENT))
        await say(connection, Op.AUTH, pack({"method": "none"}))
        frame = envelope(ECHO, 1000, ident=1) + bytes(1000)
        await say_rest(connection, frame[:500])
        await trio.sleep(0.5)
        link = there.sessions[0].link
        link.pause_reading()
        await say_rest(connection, frame[500:501])  # the last that it reads
        await trio.sleep(2 * SERVER_SILENCE_TIMEOUT_S)
        link.resume_reading()
        await trio.sleep(2)
        assert link.closed is None
        await say_rest(connection, frame[501:])
        got, buffer = 0, memoryview(bytearray(5000))
        with trio.fail_after(5):
            while got < len(frame):
                got += await connection.receive_into(buffer)


async def test_each_who_meets_a_closed_link_has_an_error_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The one object would grow by the traceback of each."""
    async with served() as there:
        link = await there.dial()
        waiting = [link.start_request(DROP, b"", timeout_s=9) for _ in range(2)]
        link.close(ConnectionLost("cut"))
        met: list[BaseException] = []
        for pending in waiting:
            await pending.finished.wait()
            assert pending.error is not None
            met.append(pending.error)
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="cut") as caught:
                await link.wait_capacity(1)
            met.append(caught.value)
            with pytest.raises(ConnectionLost, match="cut") as caught:
                link.start_request(DROP, b"", timeout_s=9)
            met.append(caught.value)
        assert len({id(error) for error in (*met, link.closed)}) == len(met) + 1


async def test_incomplete_frames_are_bounded_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H36: beyond the budget a link is refused as busy; the others go on."""
    async with served(partial_bytes_max=5_000_000) as there:
        links = [await there.dial() for _ in range(4)]
        for link in links:
            link.send(envelope(ECHO, 4_000_000), bytes(1_200_000))
        await trio.sleep(1)

        refused = [link.closed for link in links if link.closed is not None]
        assert 1 <= len(refused) <= 3
        fresh = await there.dial()
        assert bytes((await fresh.request(ECHO, b"fine", timeout_s=5)).body) == b"fine"


async def test_frames_that_hardly_move_take_no_room_from_those_that_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A hundred who announce much and send little cost a writer of 900 KB not one connection."""
    async with served(partial_bytes_max=5_000_000) as there:
        writer = await there.dial()
        idle = [await there.dial() for _ in range(100)]
        for link in idle:
            link.send(envelope(ECHO, 4_000_000), bytes(300_000))
        await trio.sleep(0.2)

        for _ in range(20):
            body = bytes(900_000)
            assert len((await writer.request(ECHO, body, timeout_s=0.5)).body) == len(body)
            await trio.sleep(0.05)

        assert writer.closed is None
        assert there.server.rejection_log.counts_by_reason["too much at once"] > 0
        for link in idle:
            link.close(ConnectionLost("the test is over"))
        await trio.sleep(0.1)
        assert there.server._receive_space.partial_bytes == 0
        assert not there.server._receive_space.partials


async def test_a_fault_while_serving_ends_that_connection_and_is_told_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that did what nobody foresaw: its link ends, the others and the node go on."""
    async with served() as there:
        good = await there.dial()
        for _ in range(3):
            bad = await there.dial()
            with pytest.raises(ConnectionLost):
                await bad.request(BREAK, b"a secret of the peer", timeout_s=5)

        assert bytes((await good.request(ECHO, b"fine", timeout_s=5)).body) == b"fine"
        assert there.server.rejection_log.counts_by_reason["fault while serving"] == 3
        told = [record.getMessage() for record in caplog.records]
        assert sum("fault while serving: KeyError" in line for line in told) == 1
        assert any("on_frame" in line for line in told), "it says where"
        assert not any("secret" in line for line in told)


async def test_a_core_that_breaks_its_own_rule_ends_the_node(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What is wrong in a core is not contained: it must not acknowledge anything any more."""
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with served() as there:
            link = await there.dial()
            with pytest.raises(ConnectionLost):
                await link.request(ASSERT, timeout_s=5)
            await trio.sleep_forever()


async def test_hostile_words_before_the_greeting_end_their_connection(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nested 900 deep in any field, in HELLO and AUTH: refused, one line, nobody else hears of it."""
    nested: object = None
    for _ in range(900):
        nested = [nested]
    hello = unpack(encode_hello(CLIENT), "a HELLO")
    bodies = [(pack({**hello, name: nested}), b"") for name in hello]
    auths = [nested, {"method": nested}, {"method": "none" * 2000}, ["none"] * 70]
    bodies += [(encode_hello(CLIENT), pack(auth)) for auth in auths]
    async with served() as there:
        good = await there.dial()
        for body, auth in bodies:
            bad = await there.raw()
            await say(bad, Op.HELLO, body)
            await say(bad, Op.AUTH, auth)
            with trio.fail_after(1), suppress(ConnectionLost):
                while await bad.receive_into(memoryview(bytearray(4096))):
                    pass
        await trio.sleep(0.1)

        assert bytes((await good.request(ECHO, b"fine", timeout_s=5)).body) == b"fine"
        assert there.server.rejection_log.counts_by_reason == {"malformed": len(bodies)}
        assert sum("malformed" in record.getMessage() for record in caplog.records) == 1


async def test_a_flood_from_many_addresses_is_counted_and_hardly_told(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A line an address and reason, and so many a minute: the log is no target either."""
    refusals = RejectionLog()
    for n in range(1000):
        refusals.record(f"10.0.{n // 250}.{n % 250}:7", "malformed", "a frame of 9 bytes")
    assert len(caplog.records) == LINES_PER_MINUTE_MAX
    assert refusals.counts_by_reason == {"malformed": 1000}

    await trio.sleep(61)
    refusals.record("10.9.9.9:7", "malformed", "a frame of 9 bytes")

    assert len(caplog.records) == LINES_PER_MINUTE_MAX + 1


async def test_silent_strangers_make_room_for_who_speaks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """3,000 connections that say nothing: they keep their few places, a client is greeted at once."""
    async with served() as there:
        kept = [await there.raw() for _ in range(3000)]
        began = trio.current_time()
        link = await there.dial()

        assert trio.current_time() - began < 2.0
        assert bytes((await link.request(ECHO, b"fine", timeout_s=5)).body) == b"fine"
        await trio.sleep(0.1)
        assert there.server.connections <= UNAUTHENTICATED_MAX + 1
        del kept


async def test_idle_clients_lock_out_neither_nodes_nor_health_nor_those_who_speak(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """All places of clients are taken, by some who said hello and nothing after."""
    async with served() as there:
        body, auth = encode_hello(CLIENT), pack({"method": "none"})
        kept = []
        for _ in range(1000):
            connection = await there.raw()
            await say(connection, Op.HELLO, body)
            await say(connection, Op.AUTH, auth)
            kept.append(connection)
            await trio.sleep(0.001)

        node = Hello(cluster_id="c1", node_id="n2", kind="metadata")
        peer = Endpoint(there.network.host("peer"), lambda: node)
        assert (await peer.dial(there.address, nursery=there.nursery)).closed is None
        asks = Endpoint(there.network.host("server"), lambda: Hello(kind="health"))
        assert (await asks.dial(there.address, nursery=there.nursery)).closed is None
        assert (await there.dial()).closed is None, "one address does not take all places"
        same = Endpoint(there.network.host("stranger"), lambda: CLIENT)
        with pytest.raises(TooBusy):  # who is there may still have something to say
            await same.dial(there.address, nursery=there.nursery)
        await trio.sleep(IDLE_S_MIN)
        assert (await same.dial(there.address, nursery=there.nursery)).closed is None
        del kept


async def test_forty_half_sent_frames_hold_no_more_than_the_processs_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H36, with the bounds of production: 40 frames of 5 MiB under way are 200 MiB announced."""
    begun = bytes(512 * 1024)
    async with served(partial_bytes_max=PARTIAL_BYTES_MAX) as there:
        space = there.server._receive_space
        links = [await there.dial() for _ in range(40)]
        most = 0
        for link in links:
            link.send(envelope(ECHO, FRAME_BYTES_MAX - ENVELOPE_BYTES), begun)
        for _ in range(8):
            for link in links:
                if link.closed is None:
                    link.send(begun)
            await trio.sleep(0.3)
            most = max(most, space.partial_bytes)

        alive = [link for link in links if link.closed is None]
        assert most <= PARTIAL_BYTES_MAX
        assert space.partial_bytes_max == PARTIAL_BYTES_MAX == 32 << 20
        assert 4 <= len(alive) <= 10, "some get through, the others were told to come again"
        for link in links:
            link.close(ConnectionLost("the test is over"))
        await trio.sleep(1)
        assert space.partial_bytes == 0


async def test_a_silent_server_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    """A half-open connection: pings go unanswered, the link ends within seconds."""
    network = PipeNetwork()
    listener = await network.host("s").listen(("s", 0))
    client = Endpoint(network.host("c"), lambda: CLIENT)

    async def half_open() -> None:
        connection = await listener.accept()
        session_endpoint = Endpoint(network.host("s"), lambda: SERVER)
        link = Link(
            connection,
            session_endpoint._receive_space,
            outgoing_bytes_max=1 << 20,
            frame_bytes_max=65_536,
        )
        body = encode_hello(SERVER)
        link.send(envelope(Op.HELLO, len(body)), body, envelope(Op.AUTH, 0))
        while link.outgoing_bytes:
            link.flush()
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(half_open)
        link = await client.dial(listener.address, nursery=nursery)
        begun = trio.current_time()
        told = trio.Event()
        link.on_closed.append(lambda reason: told.set())
        await told.wait()
        assert trio.current_time() - begun < 9
        assert isinstance(link.closed, ConnectionLost)


async def test_a_peer_that_does_not_read_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    """Every queue has a bound in bytes."""
    network = PipeNetwork(bytes_max=1000)
    listener = await network.host("s").listen(("s", 0))
    connection = await network.host("c").dial(listener.address)
    space = Endpoint(network.host("c"), lambda: CLIENT)._receive_space
    link = Link(connection, space, outgoing_bytes_max=100_000, frame_bytes_max=65_536)
    for _ in range(200):
        link.send(bytes(1000))
        link.flush()
    assert isinstance(link.closed, TooBusy)
    assert link.outgoing_bytes == 0


async def flood(connection: Connection, body_bytes: int) -> None:
    """Ask for more and more, and read nothing."""
    await say(connection, Op.HELLO, encode_hello(CLIENT))
    await say(connection, Op.AUTH, pack({"method": "none"}))
    while True:
        frame = envelope(ECHO, body_bytes, ident=1) + bytes(body_bytes)
        sent = connection.try_send([frame * 16])
        if sent % len(frame):
            await say_rest(connection, frame[sent % len(frame) :])
        await connection.wait_writable()


async def say_rest(connection: Connection, rest: bytes) -> None:
    while rest:
        await connection.wait_writable()
        rest = rest[connection.try_send([rest]) :]


async def test_who_does_not_read_his_answers_is_read_no_further(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What waits for all peers together has a bound, others are served, and the silent ones end."""
    async with served() as there:
        space, most = there.server._receive_space, 0
        async with trio.open_nursery() as flooding:
            for _ in range(30):
                flooding.start_soon(drop_lost, flood, await there.raw(), 64 * 1024)
            began = trio.current_time()
            while there.server.connections > 1 or trio.current_time() - began < 5:
                link = await there.dial()
                assert bytes((await link.request(ECHO, b"x", timeout_s=5)).body) == b"x"
                link.close(ConnectionLost("asked and answered"))
                most = max(most, space.outgoing_bytes)
                assert most <= ALL_UNREAD_BYTES_MAX
                await trio.sleep(0.5)
                if not flooding.child_tasks:
                    break
        assert most > UNREAD_BYTES_MIN
        assert trio.current_time() - began < 2 * SERVER_SILENCE_TIMEOUT_S
        assert space.outgoing_bytes == 0


async def drop_lost(
    speak: Callable[[Connection, int], Awaitable[None]], connection: Connection, size: int
) -> None:
    with suppress(ConnectionLost):
        await speak(connection, size)


async def test_a_slow_reader_gets_all_its_answers(autojump_clock: trio.testing.MockClock) -> None:
    """It is read no further while it does not read, and loses nothing by it."""
    async with served() as there:
        there.server._receive_space.outgoing_bytes = (
            ALL_UNREAD_BYTES_MAX  # others leave theirs unread
        )
        connection = await there.raw()
        await say(connection, Op.HELLO, encode_hello(CLIENT))
        await say(connection, Op.AUTH, pack({"method": "none"}))
        size, count, buffer = 10_000, 200, memoryview(bytearray(5000))
        answered, got = ENVELOPE_BYTES + size, 0

        async def ask() -> None:
            for n in range(count):
                await say_rest(connection, envelope(ECHO, size, ident=n + 1) + bytes(size))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while got < count * answered:
                got += await connection.receive_into(buffer)
                await trio.sleep(0.05)
        assert got >= count * answered


async def test_an_empty_part_of_a_frame_is_no_work_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection takes 0 bytes of an empty buffer: left in the queue it would spin the sender."""
    async with served() as there:
        link = await there.dial()

        reply = await link.request(ECHO, b"", b"x", b"", timeout_s=5)

        await trio.sleep(1.0)

        assert bytes(reply.body) == b"x"

        assert not link._queue
