"""One log at its proxy, over a writer whose every answer is the test's."""

import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.proxy.protocol.proxy_messages import ProducedFrame, Refusal
from distributedlog.proxy.write import hosted_log as written_log
from distributedlog.proxy.write.hosted_log import HostedLog
from distributedlog.proxy.write.producer_stream import ProducerStream
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    Moved,
    ProducerFenced,
    ProducerForgotten,
    WriterFenced,
)


class Writer:
    """Takes what comes, in the order in which it comes."""

    end_error = None

    def __init__(self, *, waits: bool = False) -> None:
        """``waits``: a frame is taken when `go_on` is set, as where its txids go back."""
        self.position = SimpleNamespace(incarnation="0" * 16)
        self.waits = waits
        self.taken: list[int] = []
        self.go_on = trio.Event()
        self.refuses: DistributedLogError | None = None
        self.lost: DistributedLogError | None = None
        self.send_queue = self.sequenced_writer = self

    def fail(self, error: DistributedLogError) -> None:
        raise AssertionError(error)

    def append_batch(self, payloads: Any, on_done: Any, *, sequence: int, **rest: Any) -> object:
        if self.refuses is not None:
            raise self.refuses
        if self.waits and not self.go_on.is_set():
            return None
        self.taken.append(sequence)
        return object()

    async def wait_capacity(self, *size: int) -> None:
        await self.go_on.wait()

    async def check_owner(self) -> None:
        await self.go_on.wait()
        if self.lost is not None:
            raise self.lost

    async def append_if_last(
        self, expect: DLSN, payloads: Any, *, sequence: int, **rest: Any
    ) -> None:
        await self.go_on.wait()
        self.taken.append(sequence)


@pytest.mark.parametrize("why", ["its txids go back", "a frame expects a record"])
async def test_a_frame_passes_none_that_waits(
    nursery: trio.Nursery, autojump_clock: MockClock, why: str
) -> None:
    """G1: also where there is room for it at once."""
    expects = "expects" in why
    writer = Writer(waits=not expects)
    storage: Any = writer
    log = HostedLog("default", "orders", storage)
    stream = ProducerStream(
        1, 1 << 20, ack=lambda _: None, refuse=lambda *_: None, on_bytes=lambda _: None
    )
    log.add_stream(stream, nursery)
    for first in range(4):
        expect = (1, 0, 0) if expects and not first else None
        stream.accept_frame(first, 1, 100)
        log.append(stream, ProducedFrame(first, 0, None, [b"x"], None, expect, 100))
        await trio.sleep(1)
    assert writer.taken == []
    writer.go_on.set()
    await trio.sleep(1)

    assert writer.taken == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "error", [ProducerFenced("a"), ProducerForgotten("b"), InvalidRequest("c")]
)
@pytest.mark.parametrize("lost", [None, WriterFenced("another one has the log")])
async def test_a_no_that_rests_on_what_is_known_of_producers_is_said_while_the_log_is_ours(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    error: DistributedLogError,
    lost: DistributedLogError | None,
) -> None:
    """H64: an owner that was paused knows less than was stored since; its no ends a producer for good."""
    writer, told = Writer(), list[Refusal]()
    writer.refuses, writer.lost = error, lost
    storage: Any = writer
    log = HostedLog("default", "orders", storage)
    stream = ProducerStream(
        1,
        1 << 20,
        ack=lambda _: None,
        refuse=lambda _, refusal: told.append(refusal),
        on_bytes=lambda _: None,
        producer=7,
    )
    log.add_stream(stream, nursery)
    stream.accept_frame(0, 1, 100)
    log.append(stream, ProducedFrame(0, 0, None, [b"x"], None, None, 100))
    await trio.sleep(1)
    assert told == [], "before the metadata have said whose the log is"
    writer.go_on.set()
    await trio.sleep(1)

    (refusal,) = told
    assert isinstance(refusal.error, type(error) if lost is None else Moved)


async def test_many_who_go_at_once_do_not_each_look_at_all_that_waits(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H185: a connection of 2,000 streams that ends while its log has no room stopped its proxy for a second
    and more, and one of frames without number for as long as its peer likes."""
    looked = 0

    class Looked(deque[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looked
            for one in super().__iter__():
                looked += 1
                yield one

    monkeypatch.setattr(written_log, "deque", Looked)
    writer = Writer(waits=True)
    storage: Any = writer
    log = HostedLog("default", "orders", storage)
    streams = [
        ProducerStream(
            number, 1 << 20, ack=lambda _: None, refuse=lambda *_: None, on_bytes=lambda _: None
        )
        for number in range(1, 101)
    ]
    for stream in streams:
        log.add_stream(stream, nursery)
    for first in range(10):
        for stream in streams:
            stream.accept_frame(first, 1, 100)
            log.append(stream, ProducedFrame(first, 0, None, [b"x"], None, None, 100))
    await trio.sleep(1)
    staying = streams.pop(50)
    for stream in streams:
        log.remove_stream(stream)
        assert not stream.unanswered_bytes
    writer.go_on.set()
    await trio.sleep(1)

    assert looked <= 4 * 1000
    assert writer.taken == list(range(10)), "of the one that stays, in its order"
    assert len(staying.unanswered) == 10


class Narrow(Writer):
    """Takes so many frames, and then none until there is more room."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 0
        self.payloads: list[bytes] = []
        self.more = trio.Event()

    def append_batch(self, payloads: Any, on_done: Any, **rest: Any) -> object:
        if not self.room:
            return None
        self.room -= 1
        self.payloads += payloads
        return object()

    async def wait_capacity(self, *size: int) -> None:
        await self.more.wait()


@pytest.mark.parametrize("seed", range(20))
async def test_of_all_that_waits_what_who_goes_sent_is_left_out_and_no_more(
    nursery: trio.Nursery, autojump_clock: MockClock, seed: int
) -> None:
    chance, writer = random.Random(seed), Narrow()
    storage: Any = writer
    log = HostedLog("default", "orders", storage)
    refused: dict[int, Refusal] = {}
    there: dict[int, ProducerStream] = {}
    sent: list[bytes] = []

    def payload(number: int, sequence: int) -> bytes:
        return b"%d.%d" % (number, sequence)

    for step in range(1, 200):
        what = chance.choice(["join", "send", "send", "send", "room", "leave", "turn away"])
        number = chance.choice([*there]) if there else 0
        if what == "join" or not number:
            stream = ProducerStream(
                step,
                1 << 20,
                ack=lambda _: None,
                refuse=refused.__setitem__,
                on_bytes=lambda _: None,
            )
            there[step] = stream
            log.add_stream(stream, nursery)
        elif what == "send":
            stream, records = there[number], chance.choice([1, 2])
            first, size = stream.next_sequence, chance.choice([70, 5000])
            some = [payload(number, first + n) for n in range(records)]
            stream.accept_frame(first, records, size)
            log.append(stream, ProducedFrame(first, 0, None, some, None, None, size))
            sent += some
        elif what == "room":
            writer.room += chance.choice([1, 3])
            writer.more.set()
            writer.more = trio.Event()
            await trio.sleep(1)
        else:
            stream = there.pop(number)
            gone = [payload(number, n) for n in range(stream.next_sequence)]
            waiting = [one for one in gone if one in sent and one not in writer.payloads]
            if what == "leave":
                log.remove_stream(stream)
            else:
                log.revoke_stream(stream, InvalidRequest("no more"))
            assert stream.refused_from in (-1, stream.next_sequence - len(waiting))
            assert stream.refused_from >= 0 or not waiting
            sent = [one for one in sent if one not in waiting]
    writer.room = 1000
    writer.more.set()
    await trio.sleep(1)

    assert writer.payloads == sent
    assert not log._inbox, "and nothing is left of who has gone"
    assert (log._waiting_streams, log._waiting_cost, log._dropped_cost) == ({}, 0, 0)
