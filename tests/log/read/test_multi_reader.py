"""Several logs read as one: fairness, order by time, what is told of each log (H172)."""

import json
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.position import Position
from distributedlog.log.namespace import Namespace
from distributedlog.log.read import fetcher, multi_reader
from distributedlog.log.read.multi_reader import LogBatch, LogEvent, MultiReader
from distributedlog.runtime.interfaces.errors import AlreadyClosed, InvalidRequest
from tests.log.conftest import World
from tests.log.records import put, rec


def txids(items: list[LogBatch | LogEvent], log: str | None = None) -> list[int]:
    return [
        txid
        for one in items
        if isinstance(one, LogBatch) and log in (None, one.log)
        for txid in one.columns.txids
    ]


def events(items: list[LogBatch | LogEvent]) -> list[tuple[str, str]]:
    return [
        (one.log, one.kind) for one in items if isinstance(one, LogEvent) and one.kind != "joined"
    ]


async def collected(ns: Namespace, **options: Any) -> list[LogBatch | LogEvent]:
    async with ns.open_reader(to="end", **options) as reader:
        return [item async for item in reader]


async def available(reader: MultiReader, wait_s: float = 2.0) -> list[LogBatch | LogEvent]:
    """All that comes until nothing does for so long."""
    found = []
    while (item := await reader.next(wait_s)) is not None:
        found.append(item)
    return found


async def test_each_log_is_whole_in_order_and_told_to_end(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        for name, start in (("a", 0), ("b", 100), ("c", 200)):
            await put(ns.open_log(name), *range(start, start + 5))
            await put(ns.open_log(name), *range(start + 5, start + 9))
        await ns.create_log("empty")
        await ns.open_log("c").seal()

        found = await collected(ns, logs=["a", "b", "c", "empty", "nobody"])

        for name, start in (("a", 0), ("b", 100), ("c", 200)):
            assert txids(found, name) == [*range(start, start + 9)]
        assert sorted(events(found)) == [
            ("a", "ended"), ("b", "ended"), ("c", "ended"), ("empty", "ended"), ("nobody", "deleted"),
        ]  # fmt: skip
        joined = [one for one in found if isinstance(one, LogEvent) and one.kind == "joined"]
        assert {one.position.sequence_id for one in joined if one.position} == {0}
        async with ns.open_reader(logs=["c"]) as reader:
            found = [item async for item in reader]
            assert events(found) == [("c", "sealed")]
            assert reader.ended


async def test_who_takes_many_at_once_goes_on_after_the_last_of_them(
    world: World, autojump_clock: MockClock
) -> None:
    """A call that gives several entries of several logs moves the position of each (G6)."""
    async with world.process() as ns:
        for name, start in (("a", 0), ("b", 100)):
            for at in range(start, start + 3):
                await put(ns.open_log(name), at)
        async with ns.open_reader(logs=["a", "b"]) as reader:
            await trio.sleep(1.0)
            first = await reader.next_many(bytes_max=1 << 20)
            assert txids(first, "a") == [0, 1, 2]
            assert txids(first, "b") == [100, 101, 102]
            positions = reader.positions
        for name, start in (("a", 3), ("b", 103)):
            await put(ns.open_log(name), start)

        found = await collected(ns, logs=["a", "b"], positions=positions)

        assert (txids(found, "a"), txids(found, "b")) == ([3], [103])


async def test_who_goes_on_at_its_positions_has_each_record_once(
    world: World, autojump_clock: MockClock
) -> None:
    """After any number of items; the positions go through JSON."""
    async with world.process() as ns:
        for name in ("a", "b"):
            async with ns.open_log(name).open_writer() as writer:
                for n in range(4):
                    await writer.write_bulk([rec(2 * n), rec(2 * n + 1)])
        for taken in range(12):
            async with ns.open_reader(logs=["a", "b"], to="end") as reader:
                first = []
                for _ in range(taken):
                    if (item := await reader.next()) is not None:
                        first.append(item)
                text = json.dumps({k: v.to_json() for k, v in reader.positions.items()})
            positions = {k: Position.from_json(v) for k, v in json.loads(text).items()}
            rest = await collected(ns, logs=["a", "b"], positions=positions)
            for name in ("a", "b"):
                assert txids(first, name) + txids(rest, name) == [*range(8)]


async def test_logs_take_turns_by_bytes_and_one_bound_holds_for_all(
    world: World, autojump_clock: MockClock
) -> None:
    """A log of large records gives no more bytes in a row than one of small ones; what is held is bounded."""
    async with world.process() as ns:
        for name, size, number in (("large", 64_000, 20), ("small", 16_000, 80)):
            async with ns.open_log(name).open_writer() as writer:
                for n in range(number):
                    await writer.write(rec(n, bytes(size)))
        async with ns.open_reader(logs=["large", "small"], to="end", bytes_max=800_000) as reader:
            await trio.sleep(5)
            held = [member.queue.buffered_bytes for member in reader._members]
            assert sum(held) <= 800_000
            assert min(held) > 100_000
            given: Counter[str] = Counter()
            apart = 0
            while given.total() < 2_000_000:
                await trio.sleep(0.01)  # what is fetched meanwhile is fast
                item = await reader.next()
                if isinstance(item, LogBatch):
                    given[item.log] += item.columns.payload_bytes
                    apart = max(apart, abs(given["large"] - given["small"]))
            assert apart < 200_000


async def test_by_time_the_oldest_comes_next(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        names = ["a", "b", "c"]
        number = 0
        for turn in range(12):
            await put(ns.open_log(names[turn * 7 % 3]), number, number + 1)
            number += 2
            await trio.sleep(1)

        found = await collected(ns, logs=names, order="time")

        assert txids(found) == [*range(number)]
        assert not any(one.late for one in found if isinstance(one, LogBatch))


async def test_one_log_that_is_silent_gone_or_broken_holds_no_merge_up(
    world: World, autojump_clock: MockClock
) -> None:
    """H172: 50 logs, one paused, one deleted, one unreadable."""
    async with world.process(read_retry_s=1) as ns:
        names = [f"log-{n:02}" for n in range(50)]
        writers = {name: await ns.open_log(name).open_writer() for name in names}
        async with ns.open_reader(logs=names, order="time", time_wait_s=1.0) as reader:
            await available(reader)
            await writers["log-01"].aclose()
            await ns.delete_log("log-01")
            alive = [name for name in names if name not in ("log-00", "log-01")]
            txid = 0
            for _ in range(3):
                for name in alive:
                    txid += 1
                    await writers[name].write(rec(txid))
                    await trio.sleep(0.01)
            written_s = trio.current_time()
            found = await available(reader, 3)
            assert sorted(txids(found)) == [*range(1, txid + 1)]
            assert events(found) == [("log-01", "deleted")]
            assert trio.current_time() - written_s < 5, "nobody waits for log-00 again and again"

            await writers["log-00"].write(rec(1000))
            (late,) = (one for one in await available(reader) if isinstance(one, LogBatch))
            assert not late.late
            world.ledgers.stores[1].entries[-1] = b"nonsense" * 20
        async with ns.open_reader(logs=[*names[:1], *names[2:]], order="time") as reader:
            again = await available(reader, 3)
            assert events(again) == [("log-00", "failed")]
            assert sorted(txids(again)) == [*range(1, txid + 1)]
        for name in alive:
            await writers[name].aclose()


async def test_a_late_record_is_given_and_marked(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        a, b = [await ns.open_log(name).open_writer() for name in ("a", "b")]
        async with ns.open_reader(logs=["a", "b"], order="time", time_wait_s=1.0) as reader:
            world.ledgers.held = True
            await a.submit(rec(1))  # its entry has its time, and is on no disk
            await trio.sleep(0.5)
            flushing = world.ledgers._sent
            world.ledgers._sent = []
            world.ledgers.held = False
            await b.write(rec(2))
            found = await available(reader)
            assert txids(found) == [2]
            world.ledgers._sent = flushing
            world.ledgers.release()
            (late,) = (one for one in await available(reader) if isinstance(one, LogBatch))
            assert (late.log, late.late) == ("a", True)


async def test_a_pattern_takes_in_what_is_made_later(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await put(ns.open_log("orders/1"), 1)
        await put(ns.open_log("other"), 9)
        async with ns.open_reader(pattern="orders/*") as reader:
            assert txids(await available(reader)) == [1]
            await put(ns.open_log("orders/2"), 2)
            await put(ns.open_log("order"), 9)
            found = await available(reader)
            assert txids(found) == [2]
            await ns.delete_log("orders/1")
            assert events(await available(reader)) == [("orders/1", "deleted")]
            await put(ns.open_log("orders/1"), 3)
            assert txids(await available(reader)) == [3]
            assert not reader.ended


async def test_positions_of_another_log_and_below_the_truncation_are_told(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await put(ns.open_log("a"), 1, 2, 3)
        await put(ns.open_log("b"), 4, 5)
        async with ns.open_reader(logs=["a", "b"], to="end") as reader:
            starts = {
                one.log: one.position
                async for one in reader
                if isinstance(one, LogEvent) and one.position is not None
            }
        await ns.open_log("a").truncate(DLSN(1, 1, 0))
        await ns.delete_log("b")
        await put(ns.open_log("b"), 6)

        found = await collected(ns, logs=["a", "b"], positions=starts)

        assert sorted(events(found)) == [("a", "truncated"), ("b", "recreated")]
        assert all(one.error is not None for one in found if isinstance(one, LogEvent))


async def test_what_cannot_be_meant_and_the_end(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        await put(ns.open_log("a"), 1)
        for bad in ({}, {"logs": ["a"], "pattern": "a"}, {"logs": ["a"], "order": "size"},
                    {"logs": ["a"], "at": "middle"}, {"pattern": "a", "to": "end"}):  # fmt: skip
            with pytest.raises(InvalidRequest):
                ns.open_reader(**bad)
        reader = await ns.open_reader(logs=["a"])
        assert len(await available(reader)) == 2
        assert await reader.next(0) is None
        await reader.aclose()
        with pytest.raises(AlreadyClosed):
            await reader.next()


async def test_a_log_that_was_being_opened_joins_no_closed_reader(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is to go on in the very turn in which the reader is closed: no cancellation meets it there."""
    opened, go_on = fetcher.open_fetcher, trio.Event()

    async def late(*args: Any, **options: Any) -> Any:
        await go_on.wait()
        return await opened(*args, **options)

    async with world.process() as ns:
        await put(ns.open_log("a"), 1)
        monkeypatch.setattr(multi_reader, "open_fetcher", late)
        reader = await ns.open_reader(logs=["a"])
        await trio.sleep(1)
        go_on.set()
        await reader.aclose()

        with pytest.raises(AlreadyClosed):
            await reader.next()


async def test_by_time_is_by_log_time(world: World, autojump_clock: MockClock) -> None:
    """H148, H172: what was written long before it was linked counts from the link on, in every reader."""
    async with world.process() as ns:
        await ns.create_log("linked", txids="given")
        async with ns.open_log("linked").open_segment_writer() as segment:
            await segment.write(rec(2))
        assert segment.token is not None
        await trio.sleep(50)
        await put(ns.open_log("plain"), 1)
        await trio.sleep(50)
        await ns.open_log("linked").link_segments([segment.token])
        await trio.sleep(50)
        await put(ns.open_log("plain"), 3)

        found = await collected(ns, logs=["linked", "plain"], order="time")

        assert txids(found) == [1, 2, 3]
        times = [one.columns.time_ms for one in found if isinstance(one, LogBatch)]
        assert times == sorted(times)
        assert not any(one.late for one in found if isinstance(one, LogBatch))


async def test_a_name_that_another_log_had_is_two_logs(
    world: World, autojump_clock: MockClock
) -> None:
    """What is left of the older one does not move the position of the newer one."""
    async with world.process() as ns:
        await put(ns.open_log("orders/1"), 1, 2, 3)
        async with ns.open_reader(pattern="orders/*") as reader:
            for _ in range(2):
                assert isinstance(await reader.next(), LogEvent | LogBatch)
            await trio.sleep(1)
            await ns.delete_log("orders/1")
            await put(ns.open_log("orders/1"), 4, 5)
            await trio.sleep(1)

            found = await available(reader)

            assert sorted(txids(found)) == [2, 3, 4, 5]
            assert events(found) == [("orders/1", "deleted")]
            joined = [one for one in found if isinstance(one, LogEvent) and one.kind == "joined"]
            assert len(joined) == 1
            ours = {one.incarnation for one in found if isinstance(one, LogBatch)}
            assert len(ours) == 2
            (at,) = reader.positions.values()
            assert (at.incarnation, at.sequence_id) == (joined[0].incarnation, 2)
            await ns.delete_log("orders/1")
            assert events(await available(reader)) == [("orders/1", "deleted")]
            assert reader.positions == {}


async def test_a_renamed_log_is_followed_by_its_name_and_taken_in_once(
    world: World, autojump_clock: MockClock
) -> None:
    """Within the pattern, out of it, and back; a new log under its old name is another one."""
    async with world.process() as ns:
        await put(ns.open_log("a/1"), 1)
        async with ns.open_reader(pattern="a/*") as reader:
            assert txids(await available(reader)) == [1]
            for old, new in (("a/1", "a/2"), ("a/2", "b/2"), ("b/2", "a/3")):
                await ns.rename_log(old, new)
                await put(ns.open_log(new), 2)
                if old == "a/1":
                    await put(ns.open_log("a/1"), 9)
                found = await available(reader)
                assert txids(found, new) == [2]
                assert events(found) == [(new, "renamed")]
                assert reader.positions[new].sequence_id > 0
            assert sorted(reader.positions) == ["a/1", "a/3"]
            assert reader.positions["a/3"].sequence_id == 4
            positions = reader.positions
        async with ns.open_reader(pattern="a/*", positions=positions) as reader:
            assert txids(await available(reader)) == []


async def test_a_log_that_comes_and_goes_at_once_is_read_once(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id: a name would find the next log of that name, once for each time it was made."""
    opened, go_on = fetcher.open_fetcher, trio.Event()

    async def late(*args: Any, **options: Any) -> Any:
        await go_on.wait()
        return await opened(*args, **options)

    async with world.process() as ns, ns.open_reader(pattern="a/*") as reader:
        monkeypatch.setattr(multi_reader, "open_fetcher", late)
        for txid in range(3):
            await put(ns.open_log("a/1"), txid)
            await trio.sleep(1)
            if txid < 2:
                await ns.delete_log("a/1")
        go_on.set()

        found = await available(reader)

        assert txids(found) == [2]
        assert sum(kind == "deleted" for _, kind in events(found)) == 2


async def test_bad_arguments_are_refused_at_once(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        for bad in (
            {"pattern": ""}, {"pattern": 7}, {"logs": ["a"], "positions": {"a": DLSN(1, 0, 0)}},
            {"logs": ["a"], "positions": ["a"]}, {"logs": ["a"], "time_wait_s": -1.0},
            {"logs": ["a"], "time_wait_s": float("inf")}, {"logs": ["a"], "time_wait_s": "1"},
            {"logs": ["a"], "bytes_max": 0}, {"logs": ["a"], "bytes_max": 1e6},
        ):  # fmt: skip
            with pytest.raises(InvalidRequest):
                ns.open_reader(**bad)
