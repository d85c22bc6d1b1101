"""Retention by age and size: nothing before its time, all of it a pass later (H18, H152).

The logs are written by real writers over the model of ledgers; the bytes go by the purger's own code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.gc import retention as module
from distributedlog.cluster.gc.retention import CloseOrphaned, Retention, RetentionClock, Superseded
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.lock_record import lock_owner
from distributedlog.log.model.log_keys import PURGE_PREFIX, parse_purge_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_expiry import (
    CLOCK_KEY,
    SegmentCloseTimes,
    decode_clock,
    stamps_key,
)
from distributedlog.log.model.stored_settings import RetentionOptions, bind_key, conf_key
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.segments.segment_purge import purge
from distributedlog.log.services.lease_session import LeaseSessions
from distributedlog.log.takeover.orphaned_segment import close_orphaned
from distributedlog.metadata.model.interface import Scan
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import LogTruncated, QuorumUnreachable
from distributedlog.runtime.protocol.frames import pack
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.log.conftest import World
from tests.log.records import everything
from tests.metadata.local_metadata import LocalMetadata
from tests.plant import plant

INF = float("inf")


class Elected:
    """An election that is won while ``won``."""

    def __init__(self) -> None:
        self.won = True

    async def is_elected(self) -> bool:
        return self.won


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: MockClock) -> World:
    return World(nursery)


async def roll(ns: Namespace, name: str, records: int = 1, size: int = 10) -> None:
    """One more closed segment of a log."""
    log = ns.open_log(name)
    async with log.open_writer() as writer:
        for _ in range(records):
            await writer.write(LogRecord(writer.last_txid + 1, bytes(size)))


async def read_on(reader: LogReader) -> None:
    while True:
        await reader.read_next()


async def state_of(world: World, ns: Namespace, name: str) -> LogState:
    found = await world.metadata.get(state_key(await ns.resolve_name(name)))
    assert found is not None
    return LogState.decode(found.value)


async def first_of(world: World, ns: Namespace, name: str) -> int:
    return (await state_of(world, ns, name)).earliest.segment


async def purge_all(world: World) -> None:
    """As the purger does, without its grace."""
    async for item in Scan(world.metadata, PURGE_PREFIX):
        await purge(world.metadata, parse_purge_key(item.key), 1 << 40, world.ledgers.delete_ops)


async def test_a_log_that_fails_unexpectedly_keeps_no_other_from_its_retention(
    world: World,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    nursery: trio.Nursery,
) -> None:
    """Faults 1b: one stored number ended every bookie, one after another."""
    failures = WorkFailures()
    async with world.process() as ns:
        for name in ("bad", "good"):
            for _ in range(4):
                await roll(ns, name)
            await ns.open_log(name).set({"retention_bytes": 1})
        bad = await ns.resolve_name("bad")
        retention = Retention(world.metadata, Elected(), failures=failures)
        original, broken = retention._check_log, True

        async def look_at(log_id: int, one: Any) -> None:
            if log_id == bad and broken:
                raise OverflowError("cannot convert float infinity to integer")
            await original(log_id, one)

        plant(retention, "_check_log", look_at)
        nursery.start_soon(retention.run)
        await trio.sleep(600)
        assert await first_of(world, ns, "good") > 1
        assert await first_of(world, ns, "bad") == 1
        [failed] = failures.failed()
        assert (failed.unit, failed.error) == (f"the retention of log {bad:016x}", "OverflowError")
        assert 5 < failed.tries < 25
        assert sum("failed, and is tried again" in one.getMessage() for one in caplog.records) == 1

        broken = False
        await trio.sleep(120)
        assert await first_of(world, ns, "bad") > 1
        assert failures.failed() == ()


# --- the clock ------------------------------------------------------------------------------------


async def test_the_clock_lags_and_never_leads(autojump_clock: MockClock) -> None:
    """H152, corrections of the design: two that are elected for a moment do not make it run double."""
    metadata = LocalMetadata()
    chance = Random(3)
    began = trio.current_time()
    clocks = [RetentionClock(metadata) for _ in range(3)]
    last = 0
    for _ in range(500):
        await trio.sleep(chance.choice([0.1, 1, 5, 300]))
        clock = chance.choice(clocks)
        if chance.random() < 0.05:
            clock.reset()
        try:
            await clock.advance()
        except Superseded:
            clock.reset()
        found = await metadata.get(CLOCK_KEY)
        now = 0 if found is None else decode_clock(found.value)
        assert last <= now <= (trio.current_time() - began) * 1000
        last = now
    assert last > 100_000


async def test_a_step_is_a_minute_at_most_and_one_janitor_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    clock = RetentionClock(LocalMetadata())
    for pause_s, expected_ms in ((0, 0), (5, 5000), (59, 64_000), (3600, 124_000)):
        await trio.sleep(pause_s)
        await clock.advance()
        assert clock.now_ms == expected_ms


# --- by age ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("years", [-1, 0, 1])
async def test_nothing_goes_before_its_time_whatever_clocks_say(
    world: World, autojump_clock: MockClock, years: int, nursery: trio.Nursery
) -> None:
    """H152: writers a year off, a janitor that is killed and elected anew, a quorum that is away."""
    async with world.process() as ns:
        ns.context = replace(
            ns.context,
            clock_ms=lambda: 1_700_000_000_000 + years * 31_536_000_000 + int(trio.current_time()),
        )
        await ns.create_log("l", config={"retention_s": 600.0})
        closed_at: dict[int, float] = {}
        chance = Random(years)
        janitor = Retention(world.metadata, Elected())
        for step in range(120):
            if step < 80:
                await roll(ns, "l")
                closed_at[(await state_of(world, ns, "l")).first_open_segment - 1] = (
                    trio.current_time()
                )
            if chance.random() < 0.1:
                janitor = Retention(world.metadata, Elected())
            await janitor.run_pass()
            first = await first_of(world, ns, "l")
            for segment in range(1, first):
                assert trio.current_time() - closed_at[segment] >= 600
            pause_s = 3600.0 if chance.random() < 0.02 else 10.0
            await trio.sleep(pause_s)
        for _ in range(100):
            await trio.sleep(10)
            await janitor.run_pass()
        # One stays, whatever its age: `retention_segments_min`.
        state = await state_of(world, ns, "l")
        assert state.earliest == DLSN(state.last_segment, 0, 0)
        assert state.truncated_sequence_id == state.next_sequence_id - 1


async def test_with_one_janitor_all_goes_a_pass_after_its_time(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_s": 640.0, "retention_segments_min": 0})
        await roll(ns, "l")
        closed_at = trio.current_time()
        janitor = Retention(world.metadata, Elected())
        while await first_of(world, ns, "l") == 1:
            await janitor.run_pass()
            await trio.sleep(5)
        # A look sees it closed, a look sees it old: each at most a 64th of its age late, and the pass.
        assert 640 <= trio.current_time() - closed_at <= 640 + 2 * (10 + 5) + 5
        assert await everything(ns.open_log("l")) == []
        await roll(ns, "l")
        assert len(await everything(ns.open_log("l"))) == 1


async def test_a_reader_behind_is_told_once_and_one_that_has_read_is_not(
    world: World, autojump_clock: MockClock
) -> None:
    """G6, beside a writer that goes on (H12)."""
    async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
        await ns.create_log("l", config={"retention_s": 60.0})
        for _ in range(5):
            await roll(ns, "l", records=3)
        janitor = Retention(world.metadata, Elected())
        async with (
            ns.open_log("l").open_reader() as behind,
            ns.open_log("l").open_reader() as ahead,
            ns.open_log("l").open_writer() as writer,
        ):
            assert (await behind.read_next()).txid == 0  # type: ignore[union-attr]
            for txid in range(15):
                assert (await ahead.read_next()).txid == txid  # type: ignore[union-attr]
            for _ in range(30):
                await janitor.run_pass()
                await trio.sleep(5)
            await purge_all(world)
            await writer.write(LogRecord(15, b"on"))
            await writer.commit()
            assert (await ahead.read_next()).txid == 15  # type: ignore[union-attr]
            with pytest.raises(LogTruncated) as caught:
                await read_on(behind)
            assert caught.value.first == str((await state_of(world, ns, "l")).earliest)


# --- by size --------------------------------------------------------------------------------------


async def test_the_oldest_go_while_the_rest_is_enough(
    world: World, autojump_clock: MockClock
) -> None:
    """Counted on from look to look, over what a purge or a truncation took meanwhile."""
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_bytes": 5000})
        chance, janitor = Random(1), Retention(world.metadata, Elected())
        for _ in range(60):
            for _ in range(chance.randrange(4)):
                await roll(ns, "l", size=chance.randrange(100, 900))
            if chance.random() < 0.1:
                state = await state_of(world, ns, "l")
                await ns.open_log("l").truncate(DLSN(state.first_open_segment, 0, 0))
            before = (await ns.open_log("l").describe()).segments
            first = await first_of(world, ns, "l")
            sizes = [one.size_bytes for one in before if one.segment >= first]
            while len(sizes) > 1 and sum(sizes[1:]) >= 5000:
                sizes.pop(0)
            await trio.sleep(61)
            await janitor.run_pass()
            first = await first_of(world, ns, "l")
            after = (await ns.open_log("l").describe()).segments
            assert [one.size_bytes for one in after if one.segment >= first] == sizes
            if chance.random() < 0.3:
                await purge_all(world)


# --- whose rule -----------------------------------------------------------------------------------


async def test_a_logs_own_rule_stands_over_its_namespaces(
    world: World, autojump_clock: MockClock
) -> None:
    """Also one that was set, or made, while the janitor works; switched off, nothing goes."""
    async with world.process() as ns:
        await ns.set({"retention_s": 60.0, "retention_segments_min": 0})
        await ns.create_log("short")
        await ns.create_log("long", config={"retention_s": 100_000.0})
        await ns.create_log("never", config={"retention_s": 0.0})
        await ns.create_log("off", config={"retention": False})
        for name in ("short", "long", "never", "off"):
            await roll(ns, name)
        janitor = Retention(world.metadata, Elected())

        async def pass_s(seconds: int) -> list[int]:
            for _ in range(seconds // 5):
                await trio.sleep(5)
                await janitor.run_pass()
            return [await first_of(world, ns, one) for one in ("short", "long", "never", "off")]

        assert await pass_s(200) == [2, 1, 1, 1]
        await ns.open_log("long").set({"retention_s": None})
        await ns.open_log("off").set({"retention": None})
        assert await pass_s(200) == [2, 2, 1, 2]
        await ns.set({"retention": False})
        await roll(ns, "short")
        assert await pass_s(300) == [2, 2, 1, 2]
        await ns.delete_log("short")
        await ns.set({"retention": None})
        await roll(ns, "short")
        assert (await pass_s(300))[0] == 2  # of the new one


async def test_settings_that_cannot_be_read_give_nothing_up(
    world: World, autojump_clock: MockClock
) -> None:
    """H169: the last good ones stay; a janitor that never saw any does nothing with these logs."""
    async with world.process() as ns:
        await ns.create_log("own", config={"retention_s": 1e6})
        await ns.create_log("all")
        await ns.set({"retention_s": 60.0, "retention_segments_min": 0})
        ids = {name: await ns.resolve_name(name) for name in ("own", "all")}
        for name in ids:
            await roll(ns, name)

        async def garble(key: bytes) -> None:
            await world.metadata.transact(Transaction((), (Put(key, b"\x93\x63"),)))

        async def later(janitor: Retention) -> list[int]:
            for _ in range(40):
                await trio.sleep(5)
                await janitor.run_pass()
            return [await first_of(world, ns, one) for one in ("own", "all")]

        await garble(conf_key(ids["own"]))  # its namespace's minute is not meant for it
        janitor = Retention(world.metadata, Elected())
        assert await later(janitor) == [1, 2]
        await garble(bind_key("ns"))
        await roll(ns, "all")
        assert await later(Retention(world.metadata, Elected())) == [1, 2]
        assert await later(janitor) == [1, 3]  # it knows what was meant


@pytest.mark.parametrize("value", [INF, -INF, float("nan"), 1e306, -1.0])
@pytest.mark.parametrize("name", ["retention_s", "hold_max_s", "segment_age_max_s"])
async def test_a_stored_number_out_of_range_does_not_end_retention(
    world: World,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: float,
) -> None:
    """Its log keeps its records, whatever its namespace says; others lose theirs in time."""
    async with world.process() as ns:
        await ns.set({"retention_s": 60.0, "retention_segments_min": 0})
        for log in ("odd", "other"):
            await ns.create_log(log)
            await roll(ns, log)
        await ns.open_log("odd").positions.advance("p", DLSN(1, 0, 0), hold=True)
        key = conf_key(await ns.resolve_name("odd"))
        await world.metadata.transact(Transaction((), (Put(key, pack([1, {name: value}, {}])),)))
        janitor = Retention(world.metadata, Elected())

        for _ in range(40):
            await trio.sleep(5)
            await janitor.run_pass()

        assert await first_of(world, ns, "odd") == 1
        assert await first_of(world, ns, "other") == 2
        told = [one.message for one in caplog.records if "out of range" in one.message]
        meant = value == INF and name != "segment_age_max_s"
        assert len(told) == (0 if meant else 1)


async def test_stamps_that_are_damaged_begin_anew(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_s": 600.0, "retention_segments_min": 0})
        await roll(ns, "l")
        key = stamps_key(await ns.resolve_name("l"))
        await world.metadata.transact(Transaction((), (Put(key, b"\xc1"),)))
        janitor = Retention(world.metadata, Elected())
        for _ in range(150):
            await janitor.run_pass()
            await trio.sleep(5)
        assert await first_of(world, ns, "l") == 2


async def test_two_janitors_at_once_take_nothing_early(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Both believe that they are elected: one of them yields at each pass."""
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_s": 300.0, "retention_segments_min": 0})
        for _ in range(2):
            nursery.start_soon(Retention(world.metadata, Elected()).run)
        closed_at = {}
        for number in range(1, 40):
            await roll(ns, "l")
            closed_at[number] = trio.current_time()
            await trio.sleep(11)
            for gone in range(1, await first_of(world, ns, "l")):
                assert trio.current_time() - closed_at[gone] >= 300
        await trio.sleep(3000)
        assert await first_of(world, ns, "l") == 40


async def test_it_does_nothing_unless_elected(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_s": 60.0, "retention_segments_min": 0})
        await roll(ns, "l")
        election = Elected()
        election.won = False
        nursery.start_soon(Retention(world.metadata, election).run)
        await trio.sleep(300)
        assert await world.metadata.get(CLOCK_KEY) is None
        election.won = True
        await trio.sleep(300)
        assert await first_of(world, ns, "l") == 2


# --- positions that hold ---------------------------------------------------------------------------


async def test_a_position_that_holds_stops_retention_and_no_truncation(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H153: until it moves on, or does not hold any more, or ``hold_max_s`` is over."""
    config = {"retention_s": 60.0, "retention_segments_min": 0, "hold_max_s": 1000.0}
    async with world.process() as ns:
        nursery.start_soon(Retention(world.metadata, Elected()).run)
        for name in ("moves", "lets-go", "is-truncated", "is-forgotten", "by-size"):
            own = (
                {**config, "retention_s": 0.0, "retention_bytes": 1}
                if name == "by-size"
                else config
            )
            await ns.create_log(name, config=own)
            await trio.sleep(1)
            for _ in range(6):
                await roll(ns, name)
            positions = ns.open_log(name).positions
            await positions.advance("free", DLSN(1, 0, 0))
            await positions.advance("cold", DLSN(3, 0, 0), hold=True)
        await trio.sleep(300)
        for name in ("moves", "lets-go", "is-truncated", "is-forgotten", "by-size"):
            assert await first_of(world, ns, name) == 3
        moves = ns.open_log("moves").positions
        assert 200 < (await moves.holds())["cold"] < 400
        await moves.advance("cold", DLSN(5, 0, 0), hold=True)
        assert (await moves.holds())["cold"] < 10
        await ns.open_log("lets-go").positions.advance("cold", DLSN(3, 0, 0))
        assert await ns.open_log("lets-go").positions.holds() == {}
        await ns.open_log("is-truncated").truncate(DLSN(4, 0, 0))
        await trio.sleep(300)
        assert await first_of(world, ns, "moves") == 5
        assert await first_of(world, ns, "lets-go") == 7
        assert await first_of(world, ns, "is-truncated") == 4
        assert await first_of(world, ns, "is-forgotten") == 3
        await moves.advance("cold", DLSN(5, 0, 0), hold=True)  # the same place: it is alive
        await trio.sleep(700)
        assert await first_of(world, ns, "moves") == 5
        assert await first_of(world, ns, "is-forgotten") == 7
        assert await first_of(world, ns, "by-size") == 6  # a byte is to stay
        await trio.sleep(600)
        assert await first_of(world, ns, "moves") == 7


async def test_subscribers_and_work_queues_hold_as_positions_do(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H153: by what is committed, and by the floor; what they let go of goes."""
    config = {"retention_s": 60.0, "retention_segments_min": 0, "hold_max_s": 1000.0}
    async with world.process() as ns:
        nursery.start_soon(Retention(world.metadata, Elected()).run)
        for name in ("read", "worked", "free"):
            await ns.create_log(name, config=config)
            await trio.sleep(1)
            for _ in range(6):
                await roll(ns, name)
        async with (
            ns.open_log("read").subscribe("a", hold=True) as subscription,
            ns.open_log("worked").work_queue("q", hold=True) as queue,
            ns.open_log("free").subscribe("a"),
            ns.open_log("free").work_queue("q"),
        ):
            await trio.sleep(300)
            assert [await first_of(world, ns, name) for name in ("read", "worked")] == [1, 1]
            assert await first_of(world, ns, "free") == 7
            for _ in range(3):
                claim = await queue.claim(bytes_max=1, wait_s=0)
                assert claim is not None
                await claim.done()
            segment = 0
            while segment < 4:
                record = await subscription.reader.read_next()
                assert record is not None
                segment = record.dlsn.segment
            await subscription.commit()
            await trio.sleep(100)
            floor = (await queue.state()).floor.segment
            assert floor > 1
            assert await first_of(world, ns, "worked") == floor
            assert await first_of(world, ns, "read") == 4
        await trio.sleep(1100)
        assert [await first_of(world, ns, name) for name in ("read", "worked")] == [7, 7]


@pytest.mark.parametrize("before", ["never", "not any more", "long ago"])
async def test_no_retention_passes_a_hold_that_was_promised(
    world: World, autojump_clock: MockClock, before: str
) -> None:
    """H153: it begins between the look of retention and its change."""
    async with world.process() as ns:
        await ns.create_log(
            "l", config={"retention_s": 600.0, "retention_segments_min": 0, "hold_max_s": 60.0}
        )
        for _ in range(3):
            await roll(ns, "l")
        positions = ns.open_log("l").positions
        if before != "never":
            await positions.advance("cold", DLSN(2, 0, 0), hold=True)
        if before == "not any more":
            await positions.advance("cold", DLSN(2, 0, 0))

        async def hold() -> None:
            await positions.advance("cold", DLSN(2, 0, 0), hold=True)

        between = Between(world.metadata, state_key(await ns.resolve_name("l")), hold)
        janitor = Retention(between, Elected())
        while not between.came:
            await janitor.run_pass()
            await trio.sleep(5)
        for _ in range(5):
            await janitor.run_pass()
            await trio.sleep(5)
        assert await first_of(world, ns, "l") == 2


class Between:
    """A store in which something happens right before a key is changed for the first time."""

    def __init__(
        self, metadata: LocalMetadata, key: bytes, act: Callable[[], Awaitable[None]]
    ) -> None:
        self._metadata = metadata
        self._key = key
        self._act = act
        self.came = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    async def transact(self, change: Transaction) -> Any:
        if not self.came and self._key in [one.key for one in change.operations]:
            self.came = True
            await self._act()
        return await self._metadata.transact(change)


# --- segments that were left open -----------------------------------------------------------------


def closing(ns: Namespace) -> Callable[[], Any]:
    @asynccontextmanager
    async def clients() -> AsyncIterator[CloseOrphaned]:
        yield partial(close_orphaned, ns.context)

    return clients


async def test_a_segment_of_a_dead_writer_is_closed_and_ages(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Nobody writes the log any more: what it acknowledged goes in its time all the same."""
    async with world.process("alpha") as ns:
        config = {"retention_s": 60.0, "segment_age_max_s": 100.0, "retention_segments_min": 0}
        await ns.create_log("l", config=config)
        writer = await ns.open_log("l").open_writer()
        await writer.write(LogRecord(1, b"acknowledged"))
    async with world.process("beta") as ns:
        janitor = Retention(world.metadata, Elected(), open_closer=closing(ns))
        nursery.start_soon(janitor.run)
        await trio.sleep(120)
        assert len((await state_of(world, ns, "l")).in_progress) == 1
        assert [record.txid for record in await everything(ns.open_log("l"))] == [1]
        await trio.sleep(60)
        state = await state_of(world, ns, "l")
        assert (state.first_open_segment, state.next_sequence_id, state.owner) == (2, 1, "")
        assert janitor.closed_orphaned_segments == 1
        await trio.sleep(120)
        assert await first_of(world, ns, "l") == 2
        async with ns.open_log("l").open_writer() as writer:  # nobody was locked out
            await writer.write(LogRecord(2, b"new"))


async def test_a_log_whose_open_segment_breaks_a_rule_ends_no_bookie(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one log's affair: those of the others are closed."""
    async with world.process("alpha") as ns:
        config = {"retention_s": 1e6, "segment_age_max_s": 100.0}
        for name in ("bad", "good"):
            await ns.create_log(name, config=config)
            writer = await ns.open_log(name).open_writer()
            await writer.write(LogRecord(1, b""))
        bad = await ns.resolve_name("bad")
    async with world.process("beta") as ns:

        @asynccontextmanager
        async def clients() -> AsyncIterator[CloseOrphaned]:
            async def close(log_id: int, segment: int) -> bool:
                if log_id == bad:
                    raise AssertionError("planted")
                return await close_orphaned(ns.context, log_id, segment)

            yield close

        nursery.start_soon(Retention(world.metadata, Elected(), open_closer=clients).run)
        await trio.sleep(240)

        assert not (await state_of(world, ns, "good")).in_progress
        assert (await state_of(world, ns, "bad")).in_progress
        assert "planted" in caplog.text


async def test_a_writer_that_holds_its_lock_or_writes_on_is_left_in_peace(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """One that is idle, and one whose lock is lost; an idle one without a lock may be fenced."""
    async with trio.open_nursery() as inner, world.process("alpha") as ns:
        cut_off = world.namespace(inner, "beta", {})
        reach = Reach(world.metadata)
        sessions = LeaseSessions(reach, inner.start_soon)
        cut_off.context = replace(cut_off.context, metadata=reach, lease_sessions=sessions)
        config = {"retention_s": 1e6, "segment_age_max_s": 100.0, "rolling": False}
        writers = {}
        for name, by in (("holds", ns), ("busy", cut_off), ("idle", cut_off)):
            await ns.create_log(name, config=config)
            writers[name] = await by.open_log(name).open_writer()
            await writers[name].write(LogRecord(1, b""))
        inner.start_soon(Retention(world.metadata, Elected(), open_closer=closing(ns)).run)
        reach.cut = True
        for txid in range(2, 80):
            await writers["busy"].write(LogRecord(txid, b""))
            await trio.sleep(5)
        await writers["holds"].write(LogRecord(2, b""))
        assert [(await state_of(world, ns, name)).epoch for name in writers] == [1, 1, 2]
        assert await lock_owner(world.metadata, await ns.resolve_name("busy")) is None
        inner.cancel_scope.cancel()


class Reach:
    """The store, from a process that may be cut off from it."""

    def __init__(self, metadata: LocalMetadata) -> None:
        self._metadata = metadata
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._metadata, name)
        if not self.cut or name == "watch":
            return call

        async def unreachable(*_: Any, **__: Any) -> None:
            await trio.sleep(1)
            raise QuorumUnreachable("cut off")

        return unreachable


async def test_stamps_and_settings_go_with_their_log(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("l", config={"retention_s": 60.0})
        await roll(ns, "l")
        await Retention(world.metadata, Elected()).run_pass()
        log_id = await ns.resolve_name("l")
        stamped = await world.metadata.get(stamps_key(log_id))
        assert stamped is not None
        assert SegmentCloseTimes.decode(stamped.value).marks == ((1, 0),)
        await ns.delete_log("l")
        left = [
            item.key for item in (await world.metadata.range(b"log", b"loh")).items if item.key[:4]
        ]
        assert [key for key in left if b"%016x" % log_id in key] == []


def test_the_looks_at_a_log_are_as_many_as_its_rule_needs() -> None:
    rule = RetentionOptions(retention_s=64 * 100.0)
    assert module._WatchedLog(rule, 7200.0).check_interval_s() == 100
    assert module._WatchedLog(rule, 200.0).check_interval_s() == 50
    assert (
        module._WatchedLog(replace(rule, retention_s=1.0), 7200.0).check_interval_s()
        == module.EVERY_S
    )
    assert (
        module._WatchedLog(replace(rule, retention_s=1e8), 7200.0).check_interval_s()
        == module.CHECK_S_MAX
    )
    assert (
        module._WatchedLog(replace(rule, retention_bytes=1), 7200.0).check_interval_s()
        == module.SIZE_CHECK_S
    )
