"""A node looks for garbage among all that lives when it has grown, not because it is busy."""

import gc
import sys

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.process import process_memory as full_collections
from distributedlog.runtime.process.process_memory import (
    BLOCKS_MIN,
    BLOCKS_MIN_IDLE,
    CHECK_INTERVAL_S,
    FULL_COLLECTION_NEVER,
    RESIDENT_KIB_MIN,
    GrowthThresholds,
    collect_when_grown,
    freeze_existing_objects,
)


def test_half_as_much_again_is_worth_a_look() -> None:
    small, large = (
        GrowthThresholds(1000, 1000),
        GrowthThresholds(10 * BLOCKS_MIN, 10 * RESIDENT_KIB_MIN),
    )

    assert not small.is_exceeded(1000 + BLOCKS_MIN, 1000 + RESIDENT_KIB_MIN, idle=False)
    assert small.is_exceeded(1001 + BLOCKS_MIN, 0, idle=False)
    assert small.is_exceeded(0, 1001 + RESIDENT_KIB_MIN, idle=False)
    assert not large.is_exceeded(15 * BLOCKS_MIN, 15 * RESIDENT_KIB_MIN, idle=False)
    assert large.is_exceeded(15 * BLOCKS_MIN + 1, 0, idle=False)
    assert large.is_exceeded(0, 15 * RESIDENT_KIB_MIN + 1, idle=False)


def test_an_idle_node_looks_sooner_and_still_not_at_nothing() -> None:
    small, large = GrowthThresholds(1000, 1000), GrowthThresholds(10 * BLOCKS_MIN, 1000)

    assert not small.is_exceeded(1000 + BLOCKS_MIN_IDLE, 0, idle=True)
    assert small.is_exceeded(1001 + BLOCKS_MIN_IDLE, 0, idle=True)
    assert not large.is_exceeded(12 * BLOCKS_MIN, 0, idle=True)
    assert large.is_exceeded(12 * BLOCKS_MIN + 1, 0, idle=True)


async def test_all_is_looked_at_when_the_process_has_grown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycles that somebody leaves do not stay for ever; a process that only works is let be."""
    looks: list[float] = []
    size = [1000, 1000]

    def collect() -> int:
        looks.append(trio.current_time())
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr(full_collections, "_process_size", lambda: tuple(size))
    monkeypatch.setattr(full_collections, "_cpu_used_s", trio.current_time)  # it uses all of a core
    before = gc.get_threshold()
    async with trio.open_nursery() as node:
        node.start_soon(collect_when_grown)
        await trio.sleep(100 * CHECK_INTERVAL_S)
        assert looks == []
        assert gc.get_threshold() == (before[0], before[1], FULL_COLLECTION_NEVER)

        size[0] += BLOCKS_MIN + 1
        began = trio.current_time()
        await trio.sleep(100 * CHECK_INTERVAL_S)
        assert len(looks) == 1  # it stays as large as it is now
        assert looks[0] <= began + CHECK_INTERVAL_S

        size[1] += RESIDENT_KIB_MIN + 1
        await trio.sleep(2 * CHECK_INTERVAL_S)
        assert len(looks) == 2
        node.cancel_scope.cancel()
    assert gc.get_threshold() == before


def test_the_size_is_of_this_process() -> None:
    gc.collect()
    gc.disable()  # else what other tests left goes meanwhile
    try:
        blocks, resident_kib = full_collections._process_size()
        kept = [[n] for n in range(50_000)]
        more, now = full_collections._process_size()[0], sys.getallocatedblocks()
    finally:
        gc.enable()

    assert more >= blocks + len(kept)
    assert blocks <= now
    assert 10_000 < resident_kib < 100_000_000


async def test_only_a_process_that_is_a_node_keeps_for_ever_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[float] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1.0))

    freeze_existing_objects()  # in a program, or in a simulator that plays one world after another
    assert frozen == []
    async with trio.open_nursery() as node:
        node.start_soon(collect_when_grown)
        await trio.testing.wait_all_tasks_blocked()
        freeze_existing_objects()
        assert len(frozen) == 1
        node.cancel_scope.cancel()
    freeze_existing_objects()
    assert len(frozen) == 1
