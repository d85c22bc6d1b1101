"""Seal, named positions, look-ups, custom metadata, the watch of a namespace."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import name_key
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    EndOfStream,
    InvalidRequest,
    LogNotFound,
    OwnershipAcquireFailed,
    WriterFenced,
)
from tests.log.conftest import World
from tests.metadata.local_metadata import LocalMetadata


async def put(log: Log, *txids: int) -> list[DLSN]:
    async with log.open_writer() as writer:
        return [await writer.write(LogRecord(txid, b"%d" % txid)) for txid in txids]


async def test_a_sealed_log_ends_for_readers_and_takes_no_writer(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as ns:
        log = ns.open_log("orders")
        await ns.create_log("orders")
        tail = await log.open_reader()
        writer = await log.open_writer()
        await writer.write(LogRecord(1, b"1"))
        with pytest.raises(OwnershipAcquireFailed, match="alpha"):
            await log.seal(wait_s=0)
        assert await log.seal(takeover=True) is True
        assert await log.seal() is False
        with pytest.raises(WriterFenced):
            await writer.write(LogRecord(2, b"never"))
        await writer.abort()
        with trio.fail_after(30):
            assert [r.txid async for r in tail] == [1]
            with pytest.raises(EndOfStream):
                await tail.read_next()
        for takeover in (False, True):
            with pytest.raises(EndOfStream):
                await log.open_writer(takeover=takeover)
        snapshot = await log.snapshot()
        assert (snapshot.sealed, snapshot.owner, snapshot.records) == (True, "", 1)
        assert await log.truncate(DLSN(9, 0, 0)) == DLSN(2, 0, 0)  # what is there can still go
        await ns.delete_log("orders")


async def test_a_log_is_sealed_after_what_a_dead_writer_left(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha", lock_lease_s=3.0) as ns:
        writer = await ns.open_log("orders").open_writer()
        await writer.write(LogRecord(1, b"1"))
    async with world.process("beta", lock_lease_s=3.0) as ns:
        log = ns.open_log("orders")
        await log.seal()
        async with log.open_reader() as reader:
            assert [r.txid async for r in reader] == [1]


async def test_a_writer_ends_its_log_with_all_it_wrote(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(segment_bytes_max=300) as ns:
        log = ns.open_log("orders")
        await ns.create_log("orders")
        tail = await log.open_reader()
        writer = await log.open_writer()
        for txid in range(30):
            await writer.submit(LogRecord(txid, bytes(40)))
        await writer.mark_end_of_stream()
        with pytest.raises(AlreadyClosed):
            await writer.submit(LogRecord(99, b"never"))
        with trio.fail_after(30):
            assert [r.txid async for r in tail] == list(range(30))
        assert (await log.describe()).state.sealed


async def test_positions_go_forward_only_and_belong_to_one_incarnation(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        places = await put(log, 1, 2, 3)
        positions = log.positions
        assert await positions.advance("a", places[1]) == places[1]
        assert await positions.advance("a", places[0]) == places[1]
        assert await positions.advance("b", places[2].next()) == DLSN(2, 0, 0)  # one normal form
        assert await positions.list() == {"a": places[1], "b": DLSN(2, 0, 0)}
        assert await positions.delete("b") is True
        assert await positions.delete("b") is False
        for name, dlsn in (("", places[0]), ("a\n", places[0]), ("x" * 256, places[0]),
                           ("a", DLSN(9, 0, 0)), ("a", (1, 0, 0))):  # fmt: skip
            with pytest.raises(InvalidRequest):
                await positions.advance(name, dlsn)  # type: ignore[arg-type]

        async def race(dlsn: DLSN) -> None:
            await positions.advance("race", dlsn)

        async with trio.open_nursery() as nursery:
            for place in (places[1], places[2], places[0]) * 5:
                nursery.start_soon(race, place)
        assert await positions.get("race") == places[2]

        await ns.delete_log("orders")
        for call in (positions.get("a"), positions.advance("a", places[0]), positions.list()):
            with pytest.raises(LogNotFound):
                await call
        await ns.create_log("orders")
        assert await positions.get("a") is None


async def test_records_are_found_by_txid_and_by_time(
    world: World, autojump_clock: MockClock
) -> None:
    """Duplicates may span entries and segments; after the end is the next place."""
    async with world.process() as ns:
        log = ns.open_log("orders")
        await ns.create_log("orders")
        assert await log.find(txid=3) == DLSN(1, 0, 0)
        start_ms = ns.wall_ms()
        written: list[tuple[int, int, DLSN]] = []
        for txids in ([10, 20], [20], [], [20, 20, 30], [40]):
            async with log.open_writer() as writer:
                for txid in txids:
                    await trio.sleep(1)
                    at_ms = ns.wall_ms()
                    bulk = await writer.write_bulk([LogRecord(txid, b"a"), LogRecord(txid, b"b")])
                    written += [(txid, at_ms, place) for place in bulk]
                for txid in range(0, 60, 5):
                    expected = next((p for t, _, p in written if t >= txid), None)
                    await writer.commit()
                    found = await log.find(txid=txid)
                    assert found == expected or (expected is None and found > written[-1][2])
        for at_ms in range(start_ms - 500, ns.wall_ms(), 500):
            expected = next((p for _, t, p in written if t >= at_ms), DLSN(6, 0, 0))
            assert await log.find(wall_ms=at_ms) == expected
        await log.truncate(txid=25)
        assert await log.find(txid=0) == next(p for t, _, p in written if t == 30)
        with pytest.raises(InvalidRequest):
            await log.find(txid=1, wall_ms=1)


async def test_a_watch_tells_each_log_that_comes_or_goes(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        for name in ("a/1", "a/2", "b/1"):
            await ns.create_log(name)
        async with ns.watch_logs("a/") as watch:
            assert list(watch.logs) == ["a/1", "a/2"]
            await ns.create_log("b/2")
            await ns.create_log("a/3")
            await ns.delete_log("a/1")
            await trio.sleep(1)
            assert list(watch.logs) == ["a/1", "a/2"]  # as far as the changes were taken
            told = [await watch.next() for _ in range(2)]
            assert [(c.kind, c.name) for c in told if c] == [("created", "a/3"), ("deleted", "a/1")]
            assert list(watch.logs) == ["a/2", "a/3"]
            assert await watch.next(wait_s=0) is None
        with pytest.raises(AlreadyClosed):
            await watch.next()


async def test_a_watch_that_fell_behind_the_history_tells_the_difference(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H29: with a short history, and a watcher that takes nothing meanwhile."""
    world.metadata = LocalMetadata(KeyValueState(history_bytes_max=500))
    world.ledgers.metadata = world.metadata
    monkeypatch.setattr("distributedlog.log.services.log_watch.CHANGES_MAX", 1)
    async with world.process() as ns:
        await ns.create_log("stays")
        await ns.create_log("goes")
        async with ns.watch_logs() as watch:
            logs = dict(watch.logs)
            for n in range(30):
                await ns.create_log(f"new {n}".replace(" ", "-"))
            key = name_key("ns", "goes")
            await world.metadata.transact(Transaction((), (Delete(key),)))
            await ns.create_log("goes")
            with trio.fail_after(60):
                while (change := await watch.next(wait_s=5)) is not None:
                    if change.kind == "created":
                        assert change.name not in logs
                        logs[change.name] = change.incarnation
                    else:
                        assert logs.pop(change.name) == change.incarnation
            assert sorted(logs) == [name async for name in ns.logs()]
            assert logs["goes"] == f"{await ns.resolve_name('goes'):016x}"
