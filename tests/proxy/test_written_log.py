"""One log at its proxy, over a writer whose every answer is the test's."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.dlsn import DLSN
from distributedlog.proxy.streams import ProducerStream
from distributedlog.proxy.wire import ProducedFrame, Refusal
from distributedlog.proxy.written_log import WrittenLog
from distributedlog.runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    Moved,
    ProducerFenced,
    ProducerForgotten,
    WriterFenced,
)


class Writer:
    """Takes what comes, in the order in which it comes."""

    over = None

    def __init__(self, rule: str) -> None:
        self.position = SimpleNamespace(incarnation="0" * 16)
        self.txid_rule = rule
        self.taken: list[int] = []
        self.go_on = trio.Event()
        self.refuses: DistributedLogError | None = None
        self.lost: DistributedLogError | None = None

    def fail(self, error: DistributedLogError) -> None:
        raise AssertionError(error)

    def take_frame(self, payloads: Any, on_done: Any, *, sequence: int, **rest: Any) -> object:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append(sequence)
        return object()

    async def decide_txids(self, given: bool) -> None:
        self.txid_rule = "count"
        await self.go_on.wait()

    async def check_owner(self) -> None:
        await self.go_on.wait()
        if self.lost is not None:
            raise self.lost

    async def frame_after(self, expect: DLSN, payloads: Any, *, sequence: int, **rest: Any) -> None:
        await self.go_on.wait()
        self.taken.append(sequence)


@pytest.mark.parametrize("why", ["nobody has decided who gives txids", "a frame expects a record"])
async def test_a_frame_passes_none_that_waits(
    nursery: trio.Nursery, autojump_clock: MockClock, why: str
) -> None:
    """G1: also where there is room for it at once."""
    expects = "expects" in why
    writer = Writer("count" if expects else "auto")
    storage: Any = writer
    log = WrittenLog("default", "orders", storage)
    stream = ProducerStream(
        1, 1 << 20, ack=lambda _: None, refuse=lambda *_: None, on_bytes=lambda _: None
    )
    log.join(stream, nursery)
    for first in range(4):
        expect = (1, 0, 0) if expects and not first else None
        stream.take(first, 1, 100)
        log.take(stream, ProducedFrame(first, 0, None, [b"x"], None, expect, 100))
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
    writer, told = Writer("count"), list[Refusal]()
    writer.refuses, writer.lost = error, lost
    storage: Any = writer
    log = WrittenLog("default", "orders", storage)
    stream = ProducerStream(
        1,
        1 << 20,
        ack=lambda _: None,
        refuse=lambda _, refusal: told.append(refusal),
        on_bytes=lambda _: None,
        producer=7,
    )
    log.join(stream, nursery)
    stream.take(0, 1, 100)
    log.take(stream, ProducedFrame(0, 0, None, [b"x"], None, None, 100))
    await trio.sleep(1)
    assert told == [], "before the metadata have said whose the log is"
    writer.go_on.set()
    await trio.sleep(1)

    (refusal,) = told
    assert isinstance(refusal.error, type(error) if lost is None else Moved)
