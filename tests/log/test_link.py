"""Segments that are written outside the log and linked: once or not at all (H13, H14; spark.md section 5)."""

import json
import pickle

from trio.testing import MockClock

from distributedlog.log.dlsn import DLSN
from distributedlog.log.handle import Log
from distributedlog.log.keys import loose_prefix
from distributedlog.log.ranges import SegmentRange, SegmentToken
from distributedlog.log.record import LogRecord
from distributedlog.metadata.interface import prefix_end
from tests.log.conftest import World


async def segment(log: Log, *txids: int, **named: object) -> SegmentToken:
    """A segment with one record a txid, in two entries where it has two."""
    async with log.open_segment_writer(**named) as writer:  # type: ignore[arg-type]
        for txid in txids:
            await writer.write(LogRecord(txid, b"%d" % txid))
            await writer.flush()
    assert writer.token is not None
    return writer.token


async def payloads(log: Log) -> list[bytes]:
    async with log.open_reader(to="end") as reader:
        return [record.payload async for record in reader]


async def test_linked_segments_are_read_as_if_they_had_been_written_there(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"1"))
        first, second = await segment(log, 5, 6), await segment(log, 6, 7)
        assert await payloads(log) == [b"1"]  # nobody reads what is not linked

        linked = await log.link_segments([first, second], app="etl", version=3)
        assert (linked.already, linked.first_segment, linked.last_segment) == (False, 2, 3)
        async with log.open_writer() as writer:
            await writer.write(LogRecord(8, b"8"))

        async with log.open_reader(to="end") as reader:
            found = [record async for record in reader]
        assert [r.payload for r in found] == [b"1", b"5", b"6", b"6", b"7", b"8"]
        assert [r.sequence_id for r in found] == list(range(6))
        assert found[1].dlsn == DLSN(2, 0, 0)
        loose = loose_prefix(int(first.incarnation, 16))
        assert (await world.metadata.range(loose, prefix_end(loose))).items == ()


async def test_a_snapshot_is_read_by_ranges_in_another_process(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("planner") as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            await writer.write_bulk([LogRecord(n, b"%d" % n) for n in range(5)])
        await log.link_segments([await segment(log, 10, 11)])
        async with log.open_writer() as writer:
            await writer.write(LogRecord(12, b"12"))
            snapshot = await log.snapshot()
        assert [(s.segment, s.state, s.records) for s in snapshot.segments] == [
            (1, "closed", 5),
            (2, "closed", 2),
            (3, "open", 1),
        ]
        assert (snapshot.end_dlsn, snapshot.records, snapshot.last_txid) == (DLSN(3, 1, 0), 8, 12)
        ranges = [s.range() for s in snapshot.segments]
        ranges[1] = snapshot.segments[1].range(first_entry=1)
        shipped = pickle.dumps(ranges)
        as_text = json.dumps([r.to_json() for r in ranges])
    async with world.process("task") as ns:
        ranges = pickle.loads(shipped)
        assert ranges == [SegmentRange.from_json(r) for r in json.loads(as_text)]
        async with ns.open_log("orders").open_ranges(ranges) as reader:
            found = [record async for columns in reader for record in columns.records()]
        assert [r.txid for r in found] == [0, 1, 2, 3, 4, 11, 12]
        assert [r.sequence_id for r in found] == [0, 1, 2, 3, 4, 6, 7]
