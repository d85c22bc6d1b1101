"""A log as a stream of bytes, against a bytearray."""

import random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.byte_stream import RECORD_BYTES, ByteReader
from distributedlog.log.log import Log
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LogDeleted,
    LogNotFound,
    LogTruncated,
    TooBusy,
    WriteFailed,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import everything, rec


async def stream(ns: Namespace, name: str = "l") -> Log:
    await ns.create_log(name, txids="bytes")
    return ns.open_log(name)


async def all_of(log: Log, offset: int = 0) -> bytes:
    async with log.open_byte_reader(offset=offset) as reader:
        return await reader.read()


async def test_bytes_are_read_as_they_were_written(world: World, autojump_clock: MockClock) -> None:
    """Whatever their pieces: records of at most 255 KiB, whose txid is the offset after them."""
    chance = random.Random(1)
    pieces: list[bytes | bytearray] = [
        b"a",
        b"",
        b"bc",
        chance.randbytes(3 * RECORD_BYTES + 7),
        bytearray(b"d"),
        b"e" * 1000,
    ]
    whole = b"".join(pieces)
    async with world.process() as ns:
        log = await stream(ns)
        async with log.open_byte_writer() as writer:
            assert await writer.tell() == 0
            for piece in pieces:
                assert await writer.write(piece) == len(piece)
            assert await writer.flush() == await writer.tell() == len(whole)

        assert await all_of(log) == whole
        records = await everything(log)
        assert max(len(one.payload) for one in records) == RECORD_BYTES
        at = 0
        for one in records:
            at += len(one.payload)
            assert one.txid == at
        async with log.open_byte_reader(offset=5) as reader:
            assert await reader.tell() == 5
            assert await reader.read(0) == b""
            some = await reader.read(10)
            assert 1 <= len(some) <= 10
            assert some == whole[5 : 5 + len(some)]
            assert await reader.seek(-10, 2) == len(whole) - 10
            assert await reader.read() == whole[-10:]
            assert await reader.seek(RECORD_BYTES + 1) == RECORD_BYTES + 1
            assert await reader.read(1) == whole[RECORD_BYTES + 1 : RECORD_BYTES + 2]
            assert await reader.seek(3, 1) == RECORD_BYTES + 5
            assert await reader.read(1) == whole[RECORD_BYTES + 5 : RECORD_BYTES + 6]
            assert await reader.seek(100, 2) == len(whole) + 100
            assert await reader.read(1) == b""
            for wrong in ((-1, 0), (0, 3), (0.5, 0)):
                with pytest.raises(InvalidRequest):
                    await reader.seek(*wrong)
        with pytest.raises(AlreadyClosed):
            await reader.read()


async def test_at_the_end_there_is_nothing_until_there_is_more(
    world: World, autojump_clock: MockClock
) -> None:
    """As of a file; a reader that follows waits, and ends with the log."""
    async with world.process() as ns:
        log = await stream(ns)
        writer = await log.open_byte_writer()
        async with log.open_byte_reader() as reader, log.open_byte_reader(follow=True) as follower:
            for piece in (b"abc", b"d", b"efg" * 100):
                assert await reader.read(5) == await reader.read() == b""
                got: list[bytes] = []

                async def follow(piece: bytes = piece, got: list[bytes] = got) -> None:
                    while sum(map(len, got)) < len(piece):
                        got.append(await follower.read(50))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow)
                    await trio.sleep(1)
                    assert got == []
                    await writer.write(piece)
                    await writer.flush()
                assert b"".join(got) == piece
                assert await reader.read() == piece
            await writer.aclose()
            await log.seal()
            assert await follower.read() == b""
            assert await reader.read() == b""


async def test_bytes_that_failed_leave_no_gap(world: World, autojump_clock: MockClock) -> None:
    """The next writer goes on where the recovered log ends, whatever was found of the rest."""
    for kept in (0, 1, 3):
        async with world.process() as ns:
            log = await stream(ns, f"l{kept}")
            writer = await log.open_byte_writer()
            await writer.write(b"first")
            await writer.flush()
            world.ledgers.held = True
            world.ledgers.keep_in_flight = kept
            for _ in range(3):
                await writer.write(b"lost?")
                await trio.sleep(0.01)
            assert await writer.tell() == 5
            await writer.abort()
            with pytest.raises((AlreadyClosed, WriteFailed)):
                await writer.flush()
            with pytest.raises((AlreadyClosed, WriteFailed)):
                await writer.write(b"x")
            assert await writer.tell() == 5
            world.ledgers.held = False
            async with log.open_byte_writer() as after:
                at = await after.tell()
                assert at in range(5, 21, 5)
                await after.write(b"after")
                assert await after.flush() == at + 5
            assert await all_of(log) == b"first" + b"lost?" * (at // 5 - 1) + b"after"


async def test_what_is_refused_leaves_no_gap(world: World, autojump_clock: MockClock) -> None:
    """``at_limit``: a write takes what there is room for, as of a raw file."""
    async with world.process(process_bytes_max=4 << 20, at_limit="reject") as ns:
        log = await stream(ns)
        data = random.Random(2).randbytes(6 << 20)
        async with log.open_byte_writer() as writer:
            world.ledgers.held = True
            taken = await writer.write(data)
            assert 3 << 20 <= taken < 6 << 20
            with pytest.raises(TooBusy):
                await writer.write(data[taken:])
            world.ledgers.release()
            assert await writer.flush() == taken
            while taken < len(data):
                taken += await writer.write(data[taken : taken + (1 << 20)])
                await writer.flush()
        assert await all_of(log) == data


async def test_other_logs_are_no_streams_and_truncated_bytes_are_said(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(segment_bytes_max=300) as ns:
        with pytest.raises(LogNotFound):
            await ns.open_log("none").open_byte_writer()
        assert not await ns.log_exists("none")
        await ns.create_log("records")
        for opening in (
            ns.open_log("records").open_byte_writer(),
            ns.open_log("records").open_byte_reader(),
        ):
            with pytest.raises(InvalidRequest, match='policy is "auto", not "bytes"'):
                await opening
        log = await stream(ns)
        with pytest.raises(InvalidRequest):
            log.open_byte_reader(offset=-1)
        async with log.open_byte_writer() as writer:
            for n in range(10):
                await writer.write(b"%d" % n * 100)
                await writer.flush()
        await log.truncate(txid=350)
        assert await all_of(log, 300) == b"".join(b"%d" % n * 100 for n in range(3, 10))
        with pytest.raises(LogTruncated, match="first available one is 300") as caught:
            await all_of(log, 299)
        assert caught.value.first == "300"
        async with log.open_writer() as records:
            with pytest.raises(InvalidRequest):
                await records.write(rec(7))


step = st.one_of(
    st.tuples(st.just("write"), st.binary(max_size=700)),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 3)),
    st.tuples(st.just("seek"), st.integers(0, 3000)),
    st.tuples(st.just("read"), st.integers(-1, 900)),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(step, max_size=25))
def test_random_writes_crashes_and_seeks_against_a_bytearray(
    steps: list[tuple[str, object]],
) -> None:
    """What was flushed is there for good; what was not is a prefix of it, without a gap."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            options: dict[str, Any] = {"entry_bytes_max": 400, "segment_bytes_max": 1500}
            async with world.process(**options) as ns:
                log = await stream(ns)
                writer, reader = await log.open_byte_writer(), await log.open_byte_reader()
                taken, durable = bytearray(), 0
                for what, value in steps:
                    if what == "write":
                        assert isinstance(value, bytes)
                        taken += value
                        await writer.write(value)
                    elif what == "flush":
                        durable = await writer.flush()
                        assert durable == len(taken)
                    elif what == "crash":
                        world.ledgers.keep_in_flight = value  # type: ignore[assignment]
                        durable = max(durable, await writer.tell())
                        await writer.abort()
                        writer = await log.open_byte_writer()
                        at = await writer.tell()
                        assert durable <= at <= len(taken)
                        del taken[at:]
                        durable = at
                    elif what == "seek":
                        assert isinstance(value, int)
                        assert await reader.seek(value) == value
                    else:
                        assert isinstance(value, int)
                        at = await reader.tell()
                        found = await reader.read(value)
                        assert found == taken[at : at + len(found)]
                        if value:
                            assert found or at >= durable
                        if value < 0:
                            assert at + len(found) >= durable or at > durable
                await writer.aclose()
                assert await all_of(log) == taken
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_byte_reader_stays_with_its_log(world: World, autojump_clock: MockClock) -> None:
    """It opens a reader at each seek: never another log's that has the name now; a rename it does not see."""
    async with world.process() as ns:
        for follow in (False, True):
            log = await stream(ns)
            async with log.open_byte_writer() as writer:
                await writer.write(b"old" * 10)
            reader = await log.open_byte_reader(follow=follow)
            assert await reader.read(3) == b"old"
            await ns.rename_log("l", "m")
            assert await reader.seek(6) == 6
            assert await reader.seek(0) == 0
            assert await reader.read(30) == b"old" * 10

            await ns.delete_log("m")
            log = await stream(ns)
            async with log.open_byte_writer() as writer:
                await writer.write(b"new" * 20)
            for whence in (0, 2):
                with pytest.raises(LogDeleted):
                    await seek_and_read(reader, whence)
            await reader.aclose()
            await ns.delete_log("l")


async def seek_and_read(reader: ByteReader, whence: int) -> None:
    await reader.seek(30, whence)
    await reader.read(3)


async def read_on(reader: ByteReader) -> None:
    while await reader.read(1000):
        pass


async def test_a_byte_reader_that_is_open_is_told_of_offsets(
    world: World, autojump_clock: MockClock
) -> None:
    """``first`` of `LogTruncated` is an offset for it, also where the log was truncated meanwhile."""
    async with world.process(segment_bytes_max=300, read_ahead_bytes=150, read_bytes=50) as ns:
        log = await stream(ns)
        async with log.open_byte_writer() as writer:
            for n in range(10):
                await writer.write(b"%d" % n * 100)
                await writer.flush()
        async with log.open_byte_reader(follow=True) as follower, log.open_byte_reader() as reader:
            assert await follower.read(50) == await reader.read(50) == b"0" * 50
            await log.truncate(txid=950)
            await trio.sleep(1)
            for one in (follower, reader):
                with pytest.raises(LogTruncated) as caught:
                    await read_on(one)
                assert caught.value.first == "900"
                assert await one.seek(900) == 900
                assert await one.read(1000) == b"9" * 100


async def test_cancelled_reads_lose_no_byte(world: World, autojump_clock: MockClock) -> None:
    """Cancelled at the n-th step, n = 1, 2, 3 …: the next call begins where this one did."""
    whole = random.Random(2).randbytes(3 * RECORD_BYTES)
    async with world.process() as ns:
        log = await stream(ns)
        async with log.open_byte_writer() as writer:
            for at in range(0, len(whole), RECORD_BYTES // 2):
                await writer.write(whole[at : at + RECORD_BYTES // 2])
                await writer.flush()
        for size in (-1, 100_000):
            cancelled = 0
            for steps in range(1, 60):
                async with log.open_byte_reader() as reader:
                    found = b""
                    with trio.CancelScope() as scope:
                        async with trio.open_nursery() as nursery:

                            async def cancel(
                                count: int = steps, scope: trio.CancelScope = scope
                            ) -> None:
                                for _ in range(count):
                                    await trio.lowlevel.checkpoint()
                                scope.cancel()

                            nursery.start_soon(cancel)
                            while some := await reader.read(size):
                                found += some
                            nursery.cancel_scope.cancel()
                    cancelled += scope.cancelled_caught
                    assert await reader.tell() == len(found)
                    assert found + await reader.read() == whole
            assert cancelled > 3
