"""Readers that are far behind: from several bookies at once, in order, bounded; and what they are told."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.read import entry_queue, fetcher, range_reader
from distributedlog.log.read.log_reader import LogReader
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    LogNotFound,
    LogTruncated,
    ReaderIdle,
)
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader

PART = 2000
RECORDS = 400
BYTES = 100


@pytest.fixture(autouse=True)
def _far_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is far with 4 KB, and read in parts of 2 KB."""
    monkeypatch.setattr(fetcher, "PARALLEL_READ_MIN_BYTES", 2 * PART)
    monkeypatch.setattr(fetcher, "PARALLEL_READ_AHEAD_BYTES", 2 * PART)
    monkeypatch.setattr(entry_queue, "STARVATION_WINDOW_S", 0.0)
    monkeypatch.setattr(entry_queue, "STARVED_FRACTION", 0.0)
    monkeypatch.setattr(range_reader, "PART_BYTES", PART)


OPTIONS: dict[str, Any] = {"read_bytes": 500, "read_ahead_bytes": 1000}


async def a_log(namespace: Any) -> tuple[Log, Any]:
    """Three segments, the last one open; a record of 100 bytes an entry. And its writer."""
    log: Log = namespace.open_log("orders")
    await namespace.create_log("orders")
    txid = 0
    for count in (RECORDS // 4, RECORDS // 4):
        async with log.open_writer() as writer:
            for _ in range(count):
                await writer.write(LogRecord(txid, bytes(BYTES)))
                txid += 1
    writer = await log.open_writer()
    while txid < RECORDS:
        await writer.write(LogRecord(txid, bytes(BYTES)))
        txid += 1
    await writer.commit()
    return log, writer


async def txids(reader: LogReader) -> list[int]:
    return [record.txid async for record in reader]


async def test_a_reader_far_behind_reads_all_in_order_and_goes_on_at_the_end(
    world: World, autojump_clock: MockClock, turns: list[int]
) -> None:
    """From wherever it begins, to wherever it goes; over closed segments and into the open one."""
    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        async with log.open_reader() as reader:
            found = [record.txid for record in await reader.read_bulk(RECORDS, wait_s=60)]
            assert found == list(range(RECORDS))
            assert len(set(turns)) >= 3, "each part of a ledger is another bookie's"
            await writer.write(LogRecord(RECORDS, b"new"))
            record = await reader.read_next(wait_s=5)
            assert record is not None
            assert record.txid == RECORDS
            position = reader.position
        before = len(turns)
        async with log.open_reader(position=position) as reader:
            assert await reader.read_next(wait_s=1) is None
        assert set(turns[before:]) <= {0}, "at the end one bookie is asked"
        for begin in (0, 50, 150, 399):
            for to in (60, 199, 210, RECORDS):
                last = await log.find(txid=to)
                async with log.open_reader(txid=begin, to=last) as reader:
                    assert await txids(reader) == list(range(begin, to + 1))
        await writer.aclose()


async def test_what_is_fetched_and_not_taken_is_bounded(
    world: World, autojump_clock: MockClock, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        await writer.aclose()
        fetched = 0
        original = ModelReader.read

        async def counted(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
            nonlocal fetched
            found = await original(self, first, last, bytes_max=bytes_max)
            fetched += len(found)
            return found

        async with log.open_reader() as reader:
            monkeypatch.setattr(ModelReader, "read", counted)
            for taken in range(RECORDS):
                await reader.read_next()
                await trio.sleep(0.01)
                # The queue, what waits for its turn, a read of each part beyond; and the plan.
                assert fetched - taken < (1000 + 500 + 2 * PART + 4 * 500) // BYTES + 15
        assert len(set(turns)) >= 3


async def test_a_parallel_read_does_not_hide_the_lag(
    world: World, autojump_clock: MockClock, turns: list[int]
) -> None:
    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        async with log.open_reader() as reader:
            for taken in range(RECORDS):
                if taken >= RECORDS // 2:  # in the open segment
                    lag = ns.metrics.snapshot()["dlog_client_reader_lag_records"]
                    assert lag == RECORDS - taken
                await reader.read_next()
        assert len(set(turns)) >= 3, "it was read from several bookies"
        await writer.aclose()


@pytest.mark.parametrize("waits", [True, False], ids=["for its bookie", "for nobody"])
async def test_only_who_waits_for_one_bookie_asks_several(
    world: World,
    autojump_clock: MockClock,
    turns: list[int],
    monkeypatch: pytest.MonkeyPatch,
    waits: bool,
) -> None:
    """A second one costs a reader that is busy with what it has, and gives it nothing."""
    monkeypatch.setattr(entry_queue, "STARVATION_WINDOW_S", 0.5)
    monkeypatch.setattr(entry_queue, "STARVED_FRACTION", 0.9)
    original = ModelReader.read

    async def slow(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
        await trio.sleep(0.1 if waits else 0.001)
        return await original(self, first, last, bytes_max=bytes_max)

    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        await writer.aclose()
        monkeypatch.setattr(ModelReader, "read", slow)
        async with log.open_reader() as reader:
            for _ in range(RECORDS):
                await reader.read_next()
                await trio.sleep(0.001 if waits else 0.02)
    assert (len(set(turns)) >= 3) == waits


@pytest.mark.parametrize("what", ["truncated", "deleted", "damaged"])
async def test_a_reader_far_behind_is_told_as_any_other(
    world: World, autojump_clock: MockClock, turns: list[int], what: str
) -> None:
    """Everything before it comes first, without a gap (G6)."""
    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        await writer.aclose()
        snapshot = await log.snapshot()
        if what == "damaged":
            world.ledgers.broken[snapshot.segments[1].ledger_id, 30] = "all copies are damaged"
        error = {"truncated": LogTruncated, "deleted": LogNotFound, "damaged": CorruptData}[what]
        found: list[int] = []
        async with log.open_reader() as reader:
            with pytest.raises(error):  # noqa: PT012
                while len(found) < RECORDS:
                    record = await reader.read_next(wait_s=60)
                    assert record is not None
                    found.append(record.txid)
                    if len(found) == 20 and what == "truncated":
                        await log.truncate(DLSN(3, 100, 0))
                    if len(found) == 20 and what == "deleted":
                        await ns.delete_log("orders")
                    await trio.sleep(0.01)
        assert found == list(range(len(found)))
        if what == "damaged":
            assert len(found) == RECORDS // 4 + 30


async def test_several_bookies_are_not_asked_for_what_may_be_passed_over_or_is_shared_out(
    world: World, autojump_clock: MockClock, turns: list[int]
) -> None:
    async with world.process(**OPTIONS) as ns:
        log, writer = await a_log(ns)
        await writer.aclose()
        snapshot = await log.snapshot()
        world.ledgers.broken[snapshot.segments[1].ledger_id, 30] = "all copies are damaged"
        turns.clear()
        async with log.open_reader(broken="skip", to="end", idle_error_s=5) as reader:
            found = await txids(reader)
            assert len(found) == RECORDS - 1
            assert reader.skipped.records == 1
        del world.ledgers.broken[snapshot.segments[1].ledger_id, 30]
        count = 0
        async with ns.open_reader(logs=["orders"], to="end", bytes_max=600) as several:
            async for item in several:
                count += item.columns.count if hasattr(item, "columns") else 0
        assert count == RECORDS
        assert set(turns) == {0}
        async with log.open_reader(idle_error_s=5) as reader:
            await reader.read_bulk(RECORDS, wait_s=60)
            with pytest.raises(ReaderIdle):
                await reader.read_next()
        assert len(set(turns)) >= 3
