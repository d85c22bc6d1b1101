"""A producer's frames over streams that break, at proxies whose every word is the test's."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.producer_table import FRAMES_KEPT
from distributedlog.log.write.entry_batch import PendingWrite
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.proxy.client.proxied_namespace import ProxiedNamespace
from distributedlog.proxy.client.proxy_client import (
    GATHERED_BYTES_MAX,
    ProxyLink,
    ProxyStream,
    StreamHandlers,
)
from distributedlog.proxy.protocol.proxy_messages import (
    Ack,
    ProducedFrame,
    ProduceOpen,
    ProduceOpened,
    Refusal,
    decode_produce,
)
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    EndOfStream,
    Moved,
    PositionConflict,
    ProtocolError,
    WriteFailed,
)
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, Op

KIB = 1024
LOG_ID = "0000000000000007"


@dataclass
class ScriptedLink:
    """What a connection is to those who send on it; what they sent."""

    closed: ConnectionLost | None = None
    peer_address: str = "the script"
    frames: list[ProducedFrame] = field(default_factory=list)

    @property
    def received_at(self) -> float:
        return trio.current_time()

    def send(self, *buffers: bytes) -> None:
        whole = b"".join(buffers)
        if whole[4] == Op.PRODUCE:
            self.frames.append(decode_produce(memoryview(whole)[ENVELOPE_BYTES:]))


class ScriptedProxy:
    """One stream on a connection of its own."""

    proxy_id = "w1"

    def __init__(self, end: StreamHandlers) -> None:
        self.link = ScriptedLink()
        self.streams = {1: end}
        self._end = end

    def remove_stream(self, number: int) -> None:
        self.streams.pop(number, None)

    close_stream = remove_stream

    def produce(self, frame: bytes) -> None:
        self.link.send(frame)

    send_notice = produce

    @property
    def sent(self) -> list[tuple[int, int]]:
        """First sequence and records of each frame."""
        return [(one.first_sequence, len(one.payloads)) for one in self.link.frames]

    def ack(self, first: int, records: int) -> None:
        """Raises what the one who sends makes of it."""
        self._end.on_ack(Ack(1, records, first, 1, first, 0, 0, -1))

    def refuse(self, error: DistributedLogError, first: int) -> None:
        """The frame from ``first`` on is refused; the stream ends with that."""
        self.streams.clear()
        self._end.on_refused(Refusal(error, first, first, 0))

    def break_off(self) -> None:
        self.streams.clear()
        self.link.closed = ConnectionLost("it broke")
        self._end.on_lost(self.link.closed)


class ScriptedClient:
    """Gives a stream for each opening, as the test says what the log's owner has by then."""

    endpoint: Any = None

    def __init__(self) -> None:
        self.opened: list[ScriptedProxy] = []
        self.has: list[tuple[int, int]] = []
        """Next sequence and window of the openings to come."""
        self.sealed = False

    async def open_stream(
        self, request: Any, path: str, name: str, end: StreamHandlers, **rest: Any
    ) -> ProxyStream:
        while not self.has:
            await trio.sleep(0.01)
            if self.sealed:
                raise EndOfStream("sealed")
        proxy: Any = ScriptedProxy(end)
        assert isinstance(request(1, ""), ProduceOpen)
        next_sequence, window = self.has.pop(0)
        self.opened.append(proxy)
        opened = ProduceOpened(LOG_ID, 5, bool(next_sequence), next_sequence, window, "count", -1)
        return ProxyStream(proxy, 1, opened)

    def read_proxies(self, path: str, name: str) -> list[Any]:
        return []

    def defer_sends(self) -> None:
        """All leaves at once."""

    send_deferred = defer_sends


@dataclass
class Story:
    """A writer of a producer, two frames of which are on the first stream; the first one alone was taken."""

    client: ScriptedClient
    writer: LogWriter
    first: PendingWrite
    second: PendingWrite

    async def goes_on(self, next_sequence: int, window: int = 1024 * KIB) -> ScriptedProxy:
        """The next stream, once it is entered."""
        before = len(self.client.opened)
        self.client.has.append((next_sequence, window))
        while len(self.client.opened) == before:  # noqa: ASYNC110 - the writer's doing
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        return self.client.opened[-1]


async def opened_writer(client: Any, nursery: trio.Nursery) -> Any:
    """Of a producer, through what this client opens."""
    namespace = ProxiedNamespace(
        "default",
        client,
        nursery=nursery,
        random=random.Random(1),
        wall_ms=lambda: 1,
        owner="test",
        options=LogOptions(),
    )
    return await namespace.open_log("orders").open_writer(producer="me")


@pytest.fixture
async def story(nursery: trio.Nursery, autojump_clock: MockClock) -> Story:
    client: Any = ScriptedClient()
    client.has.append((0, 1024 * KIB))
    writer = await opened_writer(client, nursery)
    first = await writer.submit(bytes(40 * KIB))
    await trio.sleep(0.1)
    second = await writer.submit(b"second")
    await trio.sleep(0.1)
    assert client.opened[0].sent == [(0, 1), (1, 1)]
    return Story(client, writer, first, second)


async def test_what_a_broken_connection_still_had_is_not_missed_when_the_next_one_breaks(
    story: Story,
) -> None:
    """G9: the owner took the second frame after it was asked, and before that was sent to it again."""
    story.client.opened[0].break_off()
    small = await story.goes_on(1, window=32 * KIB)
    assert small.sent == [], "the first frame fills its window"
    small.break_off()

    last = await story.goes_on(2)
    last.ack(0, 1)
    last.ack(1, 1)

    assert (await story.first, await story.second) == ((1, 0, 0), (1, 1, 0))
    assert last.sent == []
    third = await story.writer.submit(b"third")
    await trio.sleep(0.1)
    assert last.sent == [(2, 1)]
    last.ack(2, 1)
    assert (await third).entry == 2


async def test_what_was_sent_once_is_never_said_not_to_be_there(story: Story) -> None:
    """G7: the log is sealed before it is sent again; the connection that broke may have brought it before."""
    story.client.opened[0].break_off()
    small = await story.goes_on(1, window=32 * KIB)
    small.break_off()
    story.client.sealed = True

    for pending in (story.first, story.second):
        with pytest.raises(WriteFailed, match="may be stored"):
            await pending
    with pytest.raises(EndOfStream):
        await story.writer.write(b"third")


async def test_what_the_owner_has_not_is_sent_again_as_the_window_opens(story: Story) -> None:
    story.client.opened[0].break_off()
    small = await story.goes_on(1, window=32 * KIB)
    later = [await story.writer.submit(b"later") for _ in range(2)]
    await trio.sleep(0.1)
    assert small.sent == []
    small.ack(0, 1)
    await trio.sleep(0.1)

    assert small.sent == [(1, 1), (2, 2)]
    small.ack(1, 1)
    small.ack(2, 2)
    assert [(await one).entry for one in (story.second, *later)] == [1, 2, 2]


async def test_of_several_that_are_ready_no_more_go_than_the_window_takes(story: Story) -> None:
    """Each would be in the proxy's memory; it ends the connection of who sends more."""
    story.client.opened[0].ack(0, 1)
    story.client.opened[0].ack(1, 1)
    story.client.opened[0].break_off()
    for _ in range(3):
        await story.writer.submit(bytes(600 * KIB))
    small = await story.goes_on(2, window=32 * KIB)

    for sequence in (2, 3, 4):
        assert small.sent[-1] == (sequence, 1)
        assert len(small.sent) == sequence - 1
        small.ack(sequence, 1)
        await trio.sleep(0.1)
    assert len(small.sent) == 3


async def test_what_is_answered_while_a_stream_is_opened_counts(story: Story) -> None:
    """The owner answers what it has as soon as it has answered the opening."""
    story.client.opened[0].break_off()
    small = await story.goes_on(1, window=32 * KIB)
    small.break_off()
    open_stream = story.client.open_stream

    async def answers_at_once(*args: Any, **rest: Any) -> ProxyStream:
        found = await open_stream(*args, **rest)
        proxy: Any = found.proxy
        proxy.ack(0, 1)
        proxy.ack(1, 1)
        return found

    story.client.open_stream = answers_at_once  # type: ignore[method-assign]
    last = await story.goes_on(2)

    assert (await story.second).entry == 1
    third = await story.writer.submit(b"third")
    await trio.sleep(0.1)
    assert last.sent == [(2, 1)]
    last.ack(2, 1)
    await third


async def test_a_log_that_has_fewer_records_than_were_acknowledged_ends_the_writer(
    story: Story,
) -> None:
    """G2: what was acknowledged is not sent again as if nobody had been told."""
    first = story.client.opened[0]
    first.ack(0, 1)
    await story.first
    first.break_off()
    await story.goes_on(0)

    with pytest.raises(WriteFailed, match="1 were acknowledged"):
        await story.writer.write(b"third")
    with pytest.raises(WriteFailed):
        await story.second


@pytest.mark.parametrize(("first", "records"), [(1, 1), (0, 2)])
async def test_an_answer_to_another_frame_is_nobodys(
    story: Story, first: int, records: int
) -> None:
    """H63: the connection ends by it."""
    with pytest.raises(ProtocolError):
        story.client.opened[0].ack(first, records)
    assert not story.first.done()


async def test_no_more_frames_are_under_way_than_the_log_remembers(
    story: Story, nursery: trio.Nursery
) -> None:
    """G9: of each that is sent again the log must know where it is."""
    story.client.opened[0].break_off()
    wide = await story.goes_on(2, window=64 * 1024 * KIB)

    async def write() -> None:
        for _ in range(40):
            await story.writer.submit(bytes(250 * KIB))

    nursery.start_soon(write)
    await trio.sleep(1)

    assert len(wide.sent) + 2 == FRAMES_KEPT


async def test_what_was_lost_with_a_connection_takes_no_room_of_the_next_ones(
    story: Story,
) -> None:
    last = story.client.opened[0]
    for _ in range(30):
        last.break_off()
        last = await story.goes_on(0)

    assert last.sent == [(0, 1), (1, 1)]


@dataclass
class Append:
    """A conditional append of the scripted writer, and its result."""

    result: DLSN | DistributedLogError | None = None


async def started_append(story: Story, nursery: trio.Nursery, expect: DLSN) -> Append:
    """Begin a conditional append after the story's first two frames, which are acknowledged now."""
    append = Append()

    async def write() -> None:
        try:
            append.result = await story.writer.write(b"conditional", expect=expect)
        except DistributedLogError as error:
            append.result = error

    nursery.start_soon(write)
    await trio.sleep(0.1)
    for sequence in (0, 1):
        story.client.opened[0].ack(sequence, 1)
    await trio.sleep(0.1)
    return append


async def test_conditional_append_is_the_only_frame_in_flight(
    story: Story, nursery: trio.Nursery
) -> None:
    """G10: a record behind it would have the sequence of a record that may be refused."""
    stream = story.client.opened[0]
    append = await started_append(story, nursery, DLSN(1, 1, 0))
    later = await story.writer.submit(b"later")
    await trio.sleep(0.1)

    assert (stream.sent[2:], stream.link.frames[2].expect) == ([(2, 1)], (1, 1, 0))
    stream.ack(2, 1)
    await trio.sleep(0.1)
    assert append.result == DLSN(1, 2, 0)
    assert stream.sent[3:] == [(3, 1)]
    stream.ack(3, 1)
    assert (await later).entry == 3


async def test_position_conflict_leaves_the_writer_usable_and_frees_the_sequence(
    story: Story, nursery: trio.Nursery
) -> None:
    append = await started_append(story, nursery, DLSN(1, 1, 0))
    later = await story.writer.submit(b"later")
    story.client.opened[0].refuse(PositionConflict("another", "1.7.0"), 2)
    last = await story.goes_on(2)

    assert isinstance(append.result, PositionConflict)
    assert last.sent == [(2, 1)]
    last.ack(2, 1)
    assert (await later).entry == 2


async def test_conflict_after_a_lost_connection_is_certain_if_the_log_is_past_the_position(
    story: Story, nursery: trio.Nursery
) -> None:
    append = await started_append(story, nursery, DLSN(1, 1, 0))
    story.client.opened[0].break_off()
    second = await story.goes_on(2)
    assert second.sent == [(2, 1)]
    second.refuse(PositionConflict("another", "1.7.0"), 2)
    await trio.sleep(0.1)

    assert isinstance(append.result, PositionConflict)


async def test_conflict_before_the_position_is_unknown_after_a_lost_connection(
    story: Story, nursery: trio.Nursery
) -> None:
    """G9: the frame of the lost connection may be read later, when the log has reached the position."""
    append = await started_append(story, nursery, DLSN(1, 9, 0))
    story.client.opened[0].break_off()
    second = await story.goes_on(2)
    second.refuse(PositionConflict("another", "1.7.0"), 2)
    await trio.sleep(0.1)

    assert isinstance(append.result, WriteFailed)
    with pytest.raises(WriteFailed):
        await story.writer.write(b"no more")


async def test_conditional_append_in_flight_is_unknown_when_the_writer_is_aborted(
    story: Story, nursery: trio.Nursery
) -> None:
    append = await started_append(story, nursery, DLSN(1, 1, 0))
    await story.writer.abort()
    await trio.sleep(0.1)

    assert isinstance(append.result, WriteFailed)


async def test_conditional_append_before_its_turn_ends_with_the_writer(
    story: Story, nursery: trio.Nursery
) -> None:
    """Frames before it are in flight: it was not sent."""
    append = Append()

    async def write() -> None:
        try:
            await story.writer.write(b"conditional", expect=DLSN(1, 1, 0))
        except DistributedLogError as error:
            append.result = error

    nursery.start_soon(write)
    await trio.sleep(0.1)
    await story.writer.abort()
    await trio.sleep(0.1)
    assert isinstance(append.result, WriteFailed)


class BusyLink:
    """What a connection is to its `ProxyLink`, which is told when its turn comes."""

    def __init__(self) -> None:
        self.will_send = False
        self.closed = None
        self.sent: list[bytes] = []
        self.turns = 0
        self.before_send: Callable[[], None] | None = None

    def send(self, *buffers: bytes) -> None:
        self.sent.append(b"".join(buffers))

    def subscribe(
        self, on_frame: object, *, before_send: Callable[[], None], on_closed: object
    ) -> None:
        self.before_send = before_send

    def request_send(self) -> None:
        self.turns += 1

    def turn(self) -> None:
        assert self.before_send is not None
        self.before_send()


def test_frames_of_many_streams_leave_as_one_and_nothing_passes_them() -> None:
    """On an idle connection each goes at once; what is told of a stream comes after its records."""
    link: Any = BusyLink()
    proxy = ProxyLink(link, "w1")
    proxy.produce(b"alone")
    assert link.sent == [b"alone"]

    link.will_send = True
    proxy.produce(b"one,")
    proxy.produce(b"two")
    assert (link.sent, link.turns) == ([b"alone"], 1)
    link.turn()
    assert link.sent == [b"alone", b"one,two"]
    link.turn()
    proxy.produce(b"three")
    proxy.send_notice(b"publish")
    proxy.produce(b"four")
    proxy.close_stream(1)
    assert link.sent[2:5] == [b"three", b"publish", b"four"]
    assert len(link.sent) == 6
    large = bytes(GATHERED_BYTES_MAX // 2)
    proxy.produce(large)
    proxy.produce(large)  # the connection counts what its peer does not take
    assert link.sent[6:] == [large + large]
    link.turn()
    assert len(link.sent) == 7


class AskedClient(ScriptedClient):
    """Another proxy is asked for the log, and has taken it when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.found = trio.Event(), trio.Event()
        self.goes_on = -1
        """Next sequence there; -1: as it was asked for."""

    def record_owner(self, path: str, name: str, proxy_id: str) -> None:
        """Nobody looks at it."""

    async def probe(
        self, request: Any, path: str, name: str, end: StreamHandlers, owner: str
    ) -> ProxyStream:
        opened = request(1, owner)
        assert isinstance(opened, ProduceOpen)
        self.asked.set()
        await self.found.wait()
        proxy: Any = ScriptedProxy(end)
        self.opened.append(proxy)
        goes_on = opened.acked_through if self.goes_on < 0 else self.goes_on
        answer = ProduceOpened(LOG_ID, 5, False, goes_on, 1024 * KIB, "count", -1)
        return ProxyStream(proxy, 1, answer)


@pytest.mark.parametrize("word", ["acknowledged", "refused", "refused later"])
async def test_a_plain_writer_goes_on_at_a_proxy_as_that_counts(
    nursery: trio.Nursery, autojump_clock: MockClock, word: str
) -> None:
    """Its owner was slow, another one was asked meanwhile and has the log, and all is known after all.

    The next frame began where the first stream was, and ended the writer: "a frame begins with record 2,
    wanted is 0".
    """
    client: Any = AskedClient()
    client.has.append((0, 1024 * KIB))
    namespace = ProxiedNamespace(
        "default",
        client,
        nursery=nursery,
        random=random.Random(1),
        wall_ms=lambda: 1,
        owner="test",
        options=LogOptions(),
    )
    writer = await namespace.open_log("orders").open_writer()
    pending = [await writer.submit(b"first")]
    await trio.sleep(0.1)
    pending.append(await writer.submit(b"second"))
    await trio.sleep(0.1)
    old = client.opened[0]
    assert old.sent == [(0, 1), (1, 1)]
    await trio.sleep(2)
    old._end.on_sweep(trio.current_time())
    await client.asked.wait()
    old.ack(0, 1)
    if word == "acknowledged":
        old.ack(1, 1)
    if word == "refused later":  # its owner has given it up, and is slow to say so
        client.found.set()
        await trio.sleep(0.3)
    if word != "acknowledged":
        old.streams.clear()
        old._end.on_refused(Refusal(Moved("it moved"), 1, 1))
    client.found.set()
    await trio.sleep(0.1)
    pending.append(await writer.submit(b"third"))
    await trio.sleep(0.1)

    new = client.opened[1]
    rest = 1 if word == "acknowledged" else 2
    assert [payload for frame in new.link.frames for payload in frame.payloads] == [
        b"second", b"third"
    ][-rest:]  # fmt: skip
    assert new.sent[0][0] == 0, "as the stream was opened"
    for first, records in new.sent:
        new.ack(first, records)
    with trio.fail_after(10):
        for one in pending:
            await one


async def test_plain_frame_that_was_not_answered_before_a_refusal_is_unknown(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The proxy refuses from the second frame on and may have stored the first: sending it again could
    store it twice (G7)."""
    client: Any = AskedClient()
    client.has.append((0, 1024 * KIB))
    namespace = ProxiedNamespace(
        "default",
        client,
        nursery=nursery,
        random=random.Random(1),
        wall_ms=lambda: 1,
        owner="test",
        options=LogOptions(),
    )
    writer = await namespace.open_log("orders").open_writer()
    pending = [await writer.submit(b"first")]
    await trio.sleep(0.1)
    pending.append(await writer.submit(b"second"))
    await trio.sleep(0.1)
    proxy = client.opened[0]
    assert proxy.sent == [(0, 1), (1, 1)]

    client.has.append((0, 1024 * KIB))
    proxy.streams.clear()
    proxy._end.on_refused(Refusal(Moved("it moved"), 0, 1))
    await trio.sleep(1)

    assert all(one.done() for one in pending)
    for one in pending:
        with pytest.raises(WriteFailed):
            await one
    assert [frame for other in client.opened[1:] for frame in other.sent] == []


async def test_what_both_owners_answer_counts_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The next owner tells all that the writer did not know when it was asked."""
    client: Any = AskedClient()
    client.has.append((0, 1024 * KIB))
    writer = await opened_writer(client, nursery)
    pending = [await writer.submit(b"first")]
    await trio.sleep(0.1)
    pending.append(await writer.submit(b"second"))
    await trio.sleep(2)
    old = client.opened[0]
    old._end.on_sweep(trio.current_time())
    await client.asked.wait()
    old.ack(0, 1)
    client.goes_on = 2
    client.found.set()
    await trio.sleep(0.1)
    new = client.opened[1]
    new.ack(0, 1)
    assert not pending[1].done()
    new.ack(1, 1)
    for one in pending:
        await one
    assert new.sent == []
