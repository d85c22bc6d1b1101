"""The lag page: rows of logs with consumers, their owners, and limits of its size."""

import json

import trio
from trio.testing import MockClock

from distributedlog.console.lag_list import (
    CLAIMS_SHOWN,
    LOGS_AT_ONCE,
    LOGS_CHECKED,
    ROWS_BYTES_MAX,
    ROWS_PER_LOG,
    LagList,
    shown_overview,
    within_limit,
)
from distributedlog.console.server import STATE_BYTES_MAX
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import position_key
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.model.transaction import Put, Transaction
from tests.log.conftest import World
from tests.log.records import put


async def _write(namespace: Namespace, name: str) -> None:
    await namespace.create_log(name)
    await put(namespace.open_log(name), *range(10))


async def test_logs_with_consumers_have_rows_and_others_are_counted(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process("app-1") as namespace:
            for name in ("a/idle", "a/read", "a/work", "b"):
                await _write(namespace, name)
            log = namespace.open_log("a/read")
            await log.positions.advance("billing", DLSN(1, 4, 0))
            async with (
                log.open_writer(),
                log.subscribe("audit"),
                namespace.open_log("a/work").work_queue("resize") as queue,
            ):
                await queue.claim(bytes_max=1)
                state = await LagList(namespace, "a/", "").poll()

        assert (state["checked"], state["unanswered"], state["next"]) == (3, 0, None)
        read, work = state["logs"]
        assert (read["name"], read["writer"]["owner"]) == ("a/read", "app-1")
        audit, billing = read["positions"]
        assert (audit["position"], audit["subscriber"]["owner"]) == ("audit", "app-1")
        assert (audit["lag"]["records"], billing["lag"]["records"]) == (10, 6)
        assert billing["subscriber"] is None
        [row] = work["queues"]
        assert (row["queue"], row["lag"]["records"]) == ("resize", 10)
        assert [claim["worker"]["owner"] for claim in row["claims"]] == ["app-1"]
        nursery.cancel_scope.cancel()


async def test_a_damaged_position_is_one_row_of_its_log(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process() as namespace:
            for name in ("broken", "sound"):
                await _write(namespace, name)
                await namespace.open_log(name).positions.advance("p", DLSN(1, 0, 0))
            key = position_key(await namespace.resolve_name("broken"), "q")
            await world.metadata.transact(Transaction((), (Put(key, b"\xc1"),)))
            broken, sound = (await LagList(namespace, "", "").poll())["logs"]

        whole, damaged = broken["positions"]
        assert (whole["damage"], whole["lag"]["records"]) == ("", 10)
        assert (damaged["position"], damaged["damage"], damaged["dlsn"]) == ("q", "corrupt", None)
        assert sound["positions"][0]["lag"]["records"] == 10
        nursery.cancel_scope.cancel()


async def test_while_bookies_do_not_answer_the_rows_have_owners_and_an_unknown_lag(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process() as namespace:
            for number in range(LOGS_AT_ONCE + 1):
                await _write(namespace, f"l{number}")
                await namespace.open_log(f"l{number}").positions.advance("p", DLSN(1, 4, 0))
            world.ledgers.read_s = 60.0
            state = await LagList(namespace, "", "").poll()

        assert state["unanswered"] == 0
        assert [log["positions"][0]["lag"] for log in state["logs"]] == [None] * (LOGS_AT_ONCE + 1)
        nursery.cancel_scope.cancel()


async def test_pages_follow_each_other(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process() as namespace:
            for number in range(LOGS_CHECKED + 1):
                await namespace.create_log(f"l{number:03d}")
            first = await LagList(namespace, "l", "").poll()
            rest = await LagList(namespace, "l", first["next"]).poll()

        assert (first["checked"], rest["checked"], rest["next"]) == (LOGS_CHECKED, 1, None)
        nursery.cancel_scope.cancel()


def test_the_largest_page_fits_into_a_state() -> None:
    owner = {"owner": "o" * 65_536, "since_ms": 10**13, "damage": ""}
    lag = {"records": 10**15, "bytes": 10**18, "seconds": 10.0**9, "lost": 10**15}
    item = {"number": 10**9, "first": "9" * 30, "end": "9" * 30, "tries": 10**6}
    position = {
        "dlsn": "9" * 30,
        "moved_ms": 10**13,
        "subscriber": owner,
        "lag": lag,
        "damage": "unsupported",
    }
    queue = {
        "floor": "9" * 30,
        "moved_ms": 10**13,
        "lag": lag,
        "problem": "x" * 9999,
        "damage": "unsupported",
    }
    overview = {
        "name": "n" * 255,
        "writer": owner,
        "positions": [{"position": "p" * 255, "problem": "x" * 9999, **position}] * ROWS_PER_LOG,
        "queues": [
            {
                "queue": "q" * 255,
                "claims": [{**item, "worker": owner}] * 128,
                "dead_lettered": [item] * 64,
                **queue,
            }
        ] * ROWS_PER_LOG,
        "left_out": True,
    }  # fmt: skip
    shown = shown_overview(overview)
    row = shown["queues"][0]

    assert len(row["claims"]) + row["claims_left_out"] == 128
    assert len(row["dead_lettered"]) == CLAIMS_SHOWN
    assert len(json.dumps(shown)) + ROWS_BYTES_MAX < STATE_BYTES_MAX
    kept = within_limit([shown] * LOGS_CHECKED)
    assert 0 < len(kept) < LOGS_CHECKED
    assert len(json.dumps(kept)) < STATE_BYTES_MAX
