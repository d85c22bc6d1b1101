"""The lag of open readers in the metrics of their namespace."""

import gc
import random
import threading
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import Columns, LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.multi_reader import LogBatch
from distributedlog.log.services.log_metrics import register, unregister
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.runtime.interfaces.errors import ConnectionLost, CorruptData, EndOfStream
from distributedlog.runtime.schedule.background_loop import Background
from distributedlog.thread_bridge import Inbox, ReadCursor
from tests.examples import few
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader
from tests.log.read.test_log_view import fill

READER_OPTIONS: dict[str, Any] = {"read_ahead_bytes": 400, "read_bytes": 200}
"""A reader that fetches some entries of one small record ahead."""
ENTRY_BYTES = 64 + 12 + 4 + 20
"""The size of an entry with one record of 20 bytes."""


def lag(namespace: Namespace, unit: str = "records") -> float:
    return namespace.metrics.snapshot()[f"dlog_client_reader_lag_{unit}"]


async def write(writer: LogWriter, count: int) -> None:
    """Write entries of one record each, which are readable afterwards."""
    for _ in range(count):
        await writer.write(LogRecord(payload=bytes(20)))
    await writer.commit()


def let_only_lookups_open_ledgers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader itself receives an error that it retries, except for the first ledger."""
    original, first = world.ledgers.open, min(world.ledgers.stores)

    async def open_in_lookup(ledger_id: int, *, replica_offset: int = 0) -> Any:
        is_lookup = "_look_up_end" in trio.lowlevel.current_task().name
        if not is_lookup and ledger_id != first:
            raise ConnectionLost("the script")
        return await original(ledger_id, replica_offset=replica_offset)

    monkeypatch.setattr(world.ledgers, "open", open_in_lookup)


async def lose_connection(*_: Any, **__: Any) -> Any:
    raise ConnectionLost("the script")


async def test_unread_records_are_counted_until_the_reader_returns_them(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            assert lag(ns) == lag(ns, "bytes") == lag(ns, "seconds") == 0
            await writer.write_bulk([LogRecord(payload=bytes(20)) for _ in range(10)])
            await writer.commit()
            await trio.sleep(5)
            assert lag(ns) == 10
            assert lag(ns, "bytes") == pytest.approx(10 * 32, rel=0.1)
            assert lag(ns, "seconds") == pytest.approx(5, abs=0.1)

            for _ in range(3):
                await reader.read_next()
            assert lag(ns) == 7  # of the same entry
            await reader.read_bulk(7)
            assert lag(ns) == lag(ns, "bytes") == lag(ns, "seconds") == 0


async def test_a_closed_or_dropped_reader_has_no_lag(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 10)
        async with log.open_reader():
            await trio.sleep(1)
            assert lag(ns) == 10
        assert lag(ns) == lag(ns, "seconds") == 0

        await log.open_reader()
        gc.collect()
        await trio.sleep(1)
        assert lag(ns) == 0
        assert not ns.context.meters.open_readers


@pytest.mark.parametrize("to", ["end", DLSN(1, 8, 0)])
async def test_a_reader_that_stops_before_the_end_has_no_lag(
    world: World, autojump_clock: MockClock, to: Any
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 10)
            async with log.open_reader(to=to):
                await trio.sleep(1)
                assert lag(ns) == 0


async def test_entries_that_are_not_fetched_count_in_the_open_segment(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 100)
            async with log.open_reader() as reader:
                await trio.sleep(3)
                assert lag(ns) == 100
                assert lag(ns, "bytes") == pytest.approx(100 * ENTRY_BYTES, rel=0.3)
                for number in range(100):
                    assert lag(ns) == 100 - number
                    await reader.read_next()
                assert lag(ns) == lag(ns, "bytes") == lag(ns, "seconds") == 0


async def test_the_lag_does_not_change_while_reads_fail(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            await write(writer, 100)
            await reader.read_bulk(10, wait_s=1)
            monkeypatch.setattr(ModelReader, "read", lose_connection)
            left = 90 - len(await reader.read_bulk(50, wait_s=1))
            assert left > 0
            for _ in range(200):
                assert lag(ns) == left
                assert lag(ns, "seconds") > 0
                await trio.sleep(0.05)


async def test_the_end_is_looked_up_while_the_open_segment_cannot_be_opened(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(ns, [1] * 10)
        let_only_lookups_open_ledgers(world, monkeypatch)
        async with log.open_writer() as writer:
            await write(writer, 30)
            async with log.open_reader() as reader:
                await reader.read_bulk(10)
                await trio.sleep(1)
                lag(ns)
                await trio.sleep(10)
                assert lag(ns) == 30


async def test_the_end_is_looked_up_after_an_error_at_the_end_of_the_log(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(ns, [1])
        async with log.open_writer() as writer, log.open_reader() as reader:
            await write(writer, 10)
            await reader.read_bulk(11, wait_s=1)
            monkeypatch.setattr(ModelReader, "wait", lose_connection)
            let_only_lookups_open_ledgers(world, monkeypatch)
            await trio.sleep(5)
            assert lag(ns) == 0
            await write(writer, 20)
            await trio.sleep(
                20
            )  # a lookup that found the end before the write is not repeated sooner
            assert lag(ns) == 20
            assert 20 <= lag(ns, "seconds") < 30


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("dlsn", [DLSN(1, 20, 0), None])
async def test_a_reader_that_receives_nothing_has_a_lag_since_its_opening(
    world: World, autojump_clock: MockClock, dlsn: DLSN | None, is_closed: bool
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await write(writer, 100)
        if is_closed:
            await writer.aclose()
        async with log.open_reader(dlsn=dlsn):
            world.ledgers.read_s = 1000.0
            await trio.sleep(7)
            assert lag(ns) == (80 if dlsn else 100)
            assert lag(ns, "seconds") == pytest.approx(7, abs=0.1)
        await writer.abort()


async def test_the_last_records_of_a_sealed_log_are_unread(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 10)
        await log.seal()
        reader = await log.open_reader()
        for unread in range(10, 0, -1):
            await trio.sleep(1)
            assert lag(ns) == unread
            assert lag(ns, "bytes") == pytest.approx(unread * 32, rel=0.1)
            await reader.read_next()
        with pytest.raises(EndOfStream):
            await reader.read_next()
        assert lag(ns) == lag(ns, "bytes") == lag(ns, "seconds") == 0


async def test_records_before_an_error_are_unread_until_the_reader_is_closed(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write_bulk([LogRecord(payload=bytes(20)) for _ in range(5)])
            await write(writer, 5)
        (ledger_id,) = world.ledgers.stores
        world.ledgers.broken[ledger_id, 3] = "lost"
        async with log.open_reader() as reader:
            await trio.sleep(1)
            assert lag(ns) == 7
            await reader.read_next()
            assert lag(ns) == 6
        assert lag(ns) == lag(ns, "seconds") == 0
        with pytest.raises(CorruptData):
            await reader.read_bulk(20)


async def test_the_open_segment_counts_soon_for_a_reader_of_older_ones(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        for _ in range(2):
            async with log.open_writer() as writer:
                await write(writer, 50)
        async with log.open_writer() as writer, log.open_reader() as reader:
            await write(writer, 30)
            await trio.sleep(1)
            assert lag(ns) == 100  # this measurement requests the end of the open segment
            await reader.read_bulk(10, wait_s=1)
            await trio.sleep(1)
            assert lag(ns) == 120


async def test_the_end_is_looked_up_only_for_a_measured_lag_and_not_often(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        await fill(ns, [1] * 200)
        async with log.open_writer() as writer:
            await write(writer, 1)
            opened: list[int] = []
            original = world.ledgers.open

            async def count_open(ledger_id: int, *, replica_offset: int = 0) -> Any:
                opened.append(ledger_id)
                return await original(ledger_id, replica_offset=replica_offset)

            monkeypatch.setattr(world.ledgers, "open", count_open)
            async with log.open_reader() as reader:
                await reader.read_bulk(50, wait_s=1)
                assert len(opened) == 1  # the first segment
                for _ in range(20):
                    assert lag(ns) > 0
                    await reader.read_bulk(2, wait_s=1)
                assert len(opened) == 2
                await trio.sleep(11)
                await reader.read_bulk(20, wait_s=1)
                await trio.sleep(1)
                assert len(opened) == 3


async def test_the_age_is_that_of_the_oldest_unread_record(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            for _ in range(20):
                await write(writer, 1)
                await trio.sleep(10)
            for unread in range(20, 0, -1):
                assert lag(ns, "seconds") == pytest.approx(10 * unread, abs=0.5)
                await reader.read_next()
                await trio.sleep(0.001)  # of an entry that is not fetched, the age is not known
            assert lag(ns, "seconds") == 0


async def test_a_reader_that_was_idle_for_long_is_not_late(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            await write(writer, 1)
            await reader.read_next()
            await trio.sleep(200)
            world.ledgers.read_s = 2.0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, writer, 1)
                largest = 0.0
                for _ in range(40):
                    largest = max(largest, lag(ns, "seconds"))
                    await trio.sleep(0.1)
            assert largest < 10  # the last poll at the end of the log was a second ago
            await reader.read_next()


async def test_a_reader_of_several_logs_has_the_lag_of_the_slowest_one(
    world: World, autojump_clock: MockClock
) -> None:
    left = {"a": 3, "b": 8}
    async with world.process() as ns:
        for name, count in left.items():
            async with ns.open_log(name).open_writer() as writer:
                await write(writer, count)
        async with ns.open_reader(logs=[*left]) as reader:
            await trio.sleep(1)
            assert lag(ns) == 8
            while any(left.values()):
                item = await reader.next()
                if isinstance(item, LogBatch):
                    left[item.log] -= item.columns.count
                    assert lag(ns) == max(left.values())
        assert lag(ns) == 0


async def test_entries_that_an_api_variant_buffers_are_unread(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 10)
            async with log.open_reader() as reader:
                await trio.sleep(1)
                buffered = await reader.read_columns_many()
                assert (len(buffered), lag(ns)) == (10, 0)
                inbox = Inbox[Columns]()
                inbox.items.extend(buffered)
                reader.count_buffered(inbox.to_list)
                assert lag(ns) == 10
                for _ in range(4):
                    inbox.items.popleft()
                assert lag(ns) == 6
                assert lag(ns, "bytes") == 6 * 32


async def test_a_dropped_reader_of_an_api_variant_is_freed_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    """Without the garbage collector, which a program may have disabled."""
    async with world.process() as ns:
        async with ns.open_log("l").open_writer() as writer:
            await write(writer, 10)
        cursor = ReadCursor(Background("never started"), await ns.open_log("l").open_reader())
        await cursor.fetch(1)
        assert lag(ns) == 10
        gc.disable()
        try:
            del cursor
            assert lag(ns) == 0
            assert not ns.context.meters.open_readers
        finally:
            gc.enable()


async def test_namespaces_of_one_path_show_the_largest_lag(
    world: World, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    async with world.process() as one, world.process() as other:
        log = one.open_log("l")
        async with log.open_writer() as writer:
            await write(writer, 10)
        for namespace in (one, other):
            register(registry, namespace.metrics)
        async with log.open_reader() as reader, other.open_log("l").open_reader():
            await reader.read_bulk(4, wait_s=1)
            await trio.sleep(1)
            text = generate_latest(registry).decode()
        for namespace in (one, other):
            unregister(registry, namespace.metrics)
    assert 'dlog_client_reader_lag_records{namespace="ns"} 10.0' in text


@pytest.mark.parametrize("seed", few(range(10), 3))
async def test_the_lag_is_never_above_the_unread_records_and_exact_at_rest(
    world: World, autojump_clock: MockClock, seed: int
) -> None:
    """Entries of one record, so that the mean is exact. Segments, slow reads and pauses are random."""
    chance = random.Random(seed)
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        written = returned = 0
        writer = await log.open_writer()
        async with log.open_reader() as reader:
            for _ in range(60):
                world.ledgers.read_s = chance.choice((0.0, 0.01, 0.5))
                match chance.randrange(4):
                    case 0:
                        await writer.aclose()
                        writer = await log.open_writer()
                    case 1:
                        count = chance.randrange(1, 20)
                        await write(writer, count)
                        written += count
                    case 2:
                        found = await reader.read_bulk(chance.randrange(1, 15), wait_s=0)
                        returned += len(found)
                    case 3:
                        await trio.sleep(chance.choice((0.01, 1.0, 20.0)))
                assert 0 <= lag(ns) <= written - returned
            while returned < written:
                found = await reader.read_bulk(written - returned)
                returned += len(found)
            await trio.sleep(1)
            assert lag(ns) == lag(ns, "bytes") == lag(ns, "seconds") == 0
            await write(writer, 7)
            await trio.sleep(30)
            assert lag(ns) == 7
        await writer.aclose()


async def test_another_thread_may_measure_while_the_reader_reads(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**READER_OPTIONS) as ns:
        log = ns.open_log("l")
        stop, errors = threading.Event(), list[Exception]()

        def measure() -> None:
            while not stop.is_set():
                try:
                    assert all(found.records >= 0 for found in ns.context.meters.reader_lags())
                except Exception as error:
                    errors.append(error)

        thread = threading.Thread(target=measure)
        thread.start()
        try:
            async with log.open_writer() as writer:
                for _ in range(5):
                    await write(writer, 20)
                    async with log.open_reader() as reader:
                        await reader.read_bulk(20)
        finally:
            stop.set()
            thread.join()
        assert errors == []
