"""Frames: what a proxy hands to a log's writer for its producers, whole and in one call."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.log.write.sequenced_batch import SequencedBatch
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    RecordTooLarge,
    TooBusy,
    TransactionIdOutOfOrder,
    WriteFailed,
)
from tests.log.conftest import World
from tests.log.records import everything, rec


async def taken(
    writer: LogWriter, payloads: list[bytes], done: list[SequencedBatch]
) -> SequencedBatch:
    """As a proxy does: at once, or when there is room."""
    while True:
        frame = writer.sequenced_writer.append_batch(payloads, done.append)
        if frame is not None:
            return frame
        await writer.sequenced_writer.wait_capacity(len(payloads), sum(map(len, payloads)))


async def test_frames_of_many_lie_whole_in_shared_entries(
    world: World, autojump_clock: MockClock
) -> None:
    """Also over rolls and a ledger that fails; among other records; one call each, when it is durable."""
    async with world.process(entry_bytes_max=600, segment_bytes_max=1500) as ns:
        log = ns.open_log("l")
        done: list[SequencedBatch] = []
        async with log.open_writer() as writer:
            frames = []
            for n in range(60):
                payloads = [b"%d.%d" % (n, k) for k in range(n % 7 + 1)]
                frames.append((await taken(writer, payloads, done), payloads))
                if n % 10 == 3:
                    await writer.submit(b"another's")
                    await trio.sleep(0.2)
                if n == 30:
                    await trio.sleep(0.01)
                    world.ledgers.writers[-1].fail(WriteFailed("no acks"))
            await writer.commit()
        assert done == [frame for frame, _ in frames]
        found = {one.dlsn: one for one in await everything(log)}
        for frame, payloads in frames:
            assert frame.is_done
            assert frame.error is None
            assert not frame.is_duplicate
            first = frame.first_dlsn
            assert first is not None
            places = [first._replace(slot=first.slot + k) for k in range(frame.records)]
            assert [found[one].payload for one in places] == payloads
            assert found[first].txid == frame.first_txid
        assert len({frame.first_dlsn[:2] for frame, _ in frames if frame.first_dlsn}) < len(frames)
        assert len({frame.first_dlsn[0] for frame, _ in frames if frame.first_dlsn}) > 2


async def test_where_there_is_no_room_a_frame_is_not_taken(
    world: World, autojump_clock: MockClock
) -> None:
    """And passes nobody who waits; where the log refuses, who asks for room is told."""
    async with world.process(in_flight_bytes_max=64 * 1024, entry_bytes_max=4096) as ns:
        await ns.create_log("l", txids="count")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            world.ledgers.held = True
            done: list[SequencedBatch] = []
            payloads, number = [bytes(100)] * 10, 0
            while writer.sequenced_writer.append_batch(payloads, done.append) is not None:
                number += 1
            assert 64 * 1024 <= writer.send_queue.unacked_bytes < 80 * 1024
            with trio.move_on_after(1) as scope:
                await writer.sequenced_writer.wait_capacity(10, 1000)
            assert scope.cancelled_caught
            world.ledgers.release()
            await writer.sequenced_writer.wait_capacity(10, 1000)
            assert writer.sequenced_writer.append_batch(payloads, done.append) is not None
            await writer.commit()
            assert len(done) == number + 1
        await log.set({"at_limit": "reject"})
        async with log.open_writer() as writer:
            world.ledgers.held = True
            while writer.sequenced_writer.append_batch(payloads, done.append) is not None:
                pass
            with pytest.raises(TooBusy):
                await writer.sequenced_writer.wait_capacity(10, 1000)
            world.ledgers.release()


async def test_a_frame_that_would_fit_passes_nobody_who_waits(
    world: World, autojump_clock: MockClock
) -> None:
    """Also where the open entry has room for it."""
    async with world.process(in_flight_bytes_max=64 * 1024, entry_bytes_max=4096) as ns:
        await ns.create_log("l", txids="count")
        async with ns.open_log("l").open_writer() as writer, trio.open_nursery() as nursery:
            world.ledgers.held = True
            done: list[SequencedBatch] = []
            while writer.send_queue._closed_bytes < 64 * 1024:
                await writer.submit(bytes(100))
            nursery.start_soon(writer.submit, bytes(100))
            await trio.sleep(1)
            batch = writer.send_queue.batch
            assert batch.size_bytes + 100 + RECORD_COLUMN_BYTES <= batch.bytes_max

            assert writer.sequenced_writer.append_batch([bytes(100)], done.append) is None
            world.ledgers.release()
            await writer.sequenced_writer.wait_capacity(1, 100)
            assert writer.sequenced_writer.append_batch([bytes(100)], done.append) is not None


async def test_a_frame_at_a_rate_is_charged_once(world: World, autojump_clock: MockClock) -> None:
    async with world.process(records_per_s_max=100) as ns:
        await ns.create_log("l", txids="ms")
        async with ns.open_log("l").open_writer() as writer:
            done: list[SequencedBatch] = []
            before = trio.current_time()
            for _ in range(100):
                await taken(writer, [b"x"] * 10, done)
            assert 8 < trio.current_time() - before < 11


async def test_what_is_no_frame_is_refused_and_the_writer_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    full = RECORD_BYTES_MAX
    async with world.process() as ns:
        done: list[SequencedBatch] = []
        await ns.create_log("strict", txids="strict")
        async with ns.open_log("strict").open_writer() as writer:
            await writer.write(rec(5))
            wrong: list[tuple[list[bytes], list[int] | None, type[DistributedLogError], str]] = [
                ([], [], InvalidRequest, "at least one"),
                ([b"x", bytearray(b"y")], [5, 5], InvalidRequest, "of type bytes"),  # type: ignore[list-item]
                ([b"x"], [5, 6], InvalidRequest, "2 txids and 1 payloads"),
                ([b"x", b"y"], [6, 5], TransactionIdOutOfOrder, "lower than 6"),
                ([b"x"], [4], TransactionIdOutOfOrder, "lower than 5"),
                ([bytes(full + 1)], [5], RecordTooLarge, "1 records"),
                ([b"", bytes(full)], [5, 5], RecordTooLarge, "2 records"),
            ]
            for payloads, txids, error, says in wrong:
                with pytest.raises(error, match=says):
                    writer.sequenced_writer.append_batch(payloads, done.append, txids=txids)
            most = [bytes(full - RECORD_COLUMN_BYTES), b""]
            for payloads in ([bytes(full)], most):
                await writer.sequenced_writer.wait_capacity(len(payloads), full)
                assert writer.sequenced_writer.append_batch(
                    payloads, done.append, txids=[6] * len(payloads)
                )
            await writer.commit()
            assert [frame.error for frame in done] == [None, None]
            assert writer.last_txid == 6
        await ns.create_log("stream", txids="bytes")
        async with ns.open_log("stream").open_writer() as writer:
            with pytest.raises(InvalidRequest, match="byte stream"):
                writer.sequenced_writer.append_batch([b"x"], done.append, txids=[1])


async def test_what_ends_the_writer_is_every_frames_outcome(
    world: World, autojump_clock: MockClock
) -> None:
    """Unknown of what may be stored (G7), once each; nothing is taken afterwards."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        writer = await ns.open_log("l").open_writer()
        world.ledgers.held = True
        done: list[SequencedBatch] = []
        for _ in range(5):
            writer.sequenced_writer.append_batch([b"x", b"y"], done.append)
            await trio.sleep(0.01)
        await writer.abort()
        assert len(done) == 5
        assert {type(frame.error) for frame in done} == {WriteFailed}
        assert not any(frame.error.definite for frame in done if frame.error)
        with pytest.raises(AlreadyClosed):
            writer.sequenced_writer.append_batch([b"x"], done.append)
        with pytest.raises(AlreadyClosed):
            await writer.sequenced_writer.wait_capacity(1, 1)
        assert len(done) == 5
