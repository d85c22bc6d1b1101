"""Log time: it never goes back, whatever the clocks do, and a search by it equals a scan (H148)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.log_clock import LogClock, to_epoch_ms, to_iso_time
from distributedlog.log.format.record import LogRecord, Origin, ReadRecord
from distributedlog.log.log import Log
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import InvalidRequest
from tests.examples import few
from tests.log.conftest import World
from tests.log.records import everything

START_MS = 1_700_000_000_000
YEAR_MS = 365 * 24 * 3600 * 1000


class Wall:
    """A machine's clock, which jumps."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ms = START_MS

    def __call__(self) -> int:
        self._ms += self._random.choice((0, 1, 7, 100))
        if self._random.random() < 0.2:
            self._ms = START_MS + self._random.choice((-YEAR_MS, -5000, 0, 3000, 60_000, YEAR_MS))
        return self._ms


@asynccontextmanager
async def machine(world: World, random: Random) -> AsyncIterator[Namespace]:
    async with world.process(segment_bytes_max=600) as namespace:
        namespace.context = replace(namespace.context, clock_ms=Wall(random))
        yield namespace


async def write(log: Log, random: Random) -> None:
    """As a writer that closes or dies, or as a segment that is linked."""
    if random.random() < 0.3:
        tokens = []
        for _ in range(random.randint(1, 2)):
            async with log.open_segment_writer() as segment:
                for _ in range(random.randint(1, 3)):
                    await segment.write(b"linked")
                    await segment.flush()
            assert segment.token is not None
            tokens.append(segment.token)
        await log.link_segments(tokens, takeover=True)
        return
    writer = await log.open_writer(takeover=True)
    for _ in range(random.randint(0, 8)):
        await writer.write_bulk([bytes(random.randint(0, 90))] * random.randint(1, 2))
    await (writer.aclose() if random.random() < 0.7 else writer.abort())


@pytest.mark.parametrize("seed", few(range(12), 4))
async def test_time_never_goes_back_and_a_search_equals_a_scan(
    world: World, autojump_clock: MockClock, seed: int
) -> None:
    """H148: clocks a year off, before, between and within writers, recoveries, rolls and links."""
    random = Random(seed)
    async with machine(world, random) as one, machine(world, random) as other:
        await one.create_log("l", txids="count")
        for _ in range(6):
            await write(random.choice((one, other)).open_log("l"), random)
        log = one.open_log("l")
        records = await everything(log)
        times = [record.time_ms for record in records]
        assert times == sorted(times)
        assert all(record.time_ms >= record.written_ms for record in records)
        assert [record.txid for record in records] == list(range(len(records)))

        end = (await log.snapshot()).end_dlsn
        for ms in sorted({time + by for time in times for by in (-1, 0, 1)}):
            scan = next((one.dlsn for one in records if one.time_ms >= ms), end)
            found = await log.find(since=ms)
            assert found == scan or (scan == end and found > records[-1].dlsn), (ms, found, scan)
        state = (await log.describe()).state
        # What a writer that died left open is added to it when it is closed.
        closed = [one.time_ms for one in records if one.dlsn.segment < state.first_open_segment]
        assert state.time_ms >= max(closed, default=0)
        for ms in random.sample(times, min(3, len(times))):
            async with log.open_reader(since=ms, to="end") as reader:
                assert [r.txid async for r in reader] == [
                    r.txid for r in records if r.time_ms >= ms
                ]
        middle = times[len(times) // 2] if times else START_MS
        await log.truncate(before=middle)
        assert [r.txid for r in await everything(log)] == [
            r.txid for r in records if r.time_ms >= middle
        ]


async def test_a_reader_from_a_time_to_come_waits_for_it(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"before"))
            later = ns.wall_ms() + 5000
            async with log.open_reader(since=later) as reader:
                assert await reader.read_next(wait_s=1) is None
                await writer.write(LogRecord(2, b"too early"))
                assert await reader.read_next(wait_s=6) is None
                await writer.write(LogRecord(3, b"then"))
                record = await reader.read_next(wait_s=1)
                assert record is not None
                assert (record.txid, record.time_ms >= later) == (3, True)
                columns = await read_columns_of(log)
                assert columns[-1] == record.time_ms


async def read_columns_of(log: Log) -> list[int]:
    async with log.open_reader(to="end") as reader:
        found = []
        while (columns := await reader.read_columns()) is not None:
            found.append(columns.time_ms)
        return found


async def test_times_are_said_as_datetimes_or_ms(world: World, autojump_clock: MockClock) -> None:
    """A naive datetime is somebody's midnight, and nobody knows whose."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            place = await writer.write(LogRecord(1, b"x"))
        (record,) = await everything(log)
        when = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        assert await log.find(since=when) == await log.find(wall_ms=record.time_ms) == place
        assert await log.find(since=when.astimezone(timezone(timedelta(hours=5)))) == place
        for wrong in (when.replace(tzinfo=None), "yesterday", 1.5, True):
            with pytest.raises(InvalidRequest):
                await log.find(since=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                log.open_reader(since=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await log.truncate(before=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await log.find(since=1, txid=1)
        with pytest.raises(InvalidRequest):
            log.open_reader(since=1, at="latest", dlsn=place)


def test_a_clock_that_goes_back_is_waited_for() -> None:
    wall = iter([5, 9, 3, 8, 12])
    clock = LogClock(lambda: next(wall), "l", min_ms=7)

    assert [clock.now_ms() for _ in range(5)] == [7, 9, 9, 9, 12]


def test_a_clock_that_is_behind_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """H148, the event ``clock.off``: not for each entry, and not for the jitter of clocks."""
    wall = iter([100, 5000, 4500, 3000, 2000, 3999, 5001, 4999, 4002, 4000, 4000])
    clock = LogClock(lambda: next(wall), "l", min_ms=1000)

    assert [clock.now_ms() for _ in range(11)] == [1000] + [5000] * 5 + [5001] * 5
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, told
    assert all(one.startswith('clock.off: log "l"') for one in told)
    assert "2.0 s less" in told[0]
    assert "1970-01-01T00:00:05.001Z" in told[1]


async def test_a_writer_whose_clock_is_behind_the_log_says_so(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.process() as ahead, world.process() as right:
        ahead.context = replace(ahead.context, clock_ms=lambda: START_MS + YEAR_MS)
        for ns, txids in ((ahead, (1, 2)), (right, (3, 4))):
            async with ns.open_log("l").open_writer() as writer:
                for txid in txids:
                    await writer.write(LogRecord(txid, b"x"))
        (told,) = [one.getMessage() for one in caplog.records if "clock.off" in one.getMessage()]
        assert told.startswith('clock.off: log "l"')


def test_a_time_as_text_and_as_ms() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC)
    assert to_epoch_ms(when, "since") == 1_767_323_045_678
    assert to_iso_time(1_767_323_045_678) == "2026-01-02T03:04:05.678Z"
    assert to_iso_time(2**62) == f"{2**62}ms"
    assert to_epoch_ms(datetime(1960, 1, 1, tzinfo=UTC), "since") < 0


def test_a_record_shows_where_it_is_and_never_all_of_itself() -> None:
    """A payload is cut at 32 bytes: it may be a megabyte, or a secret."""
    origin = Origin(1, 12, 0, time_ms=1_767_323_045_678)
    read = ReadRecord(7, b'{"id": 7, "user": "somebody", "pass": "secret"}' * 9, origin, 3)
    assert repr(read) == (
        "LogRecord(1.12.3, txid=7, time=2026-01-02T03:04:05.678Z, 423 B "
        'b\'{"id": 7, "user": "somebody", "p\'…)'
    )
    assert repr(LogRecord(7, b"short")) == "LogRecord(txid=7, 5 B b'short')"
    assert repr(LogRecord(payload=b"\x00")) == "LogRecord(1 B b'\\x00')"
    assert len(repr(LogRecord(1, "x" * 999))) < 100  # type: ignore[arg-type]
    assert repr(DLSN(1, 2, 3)) == "DLSN(1, 2, 3)"
    with pytest.raises(InvalidRequest, match="5 B"):
        _ = LogRecord(7, b"short").time_ms
