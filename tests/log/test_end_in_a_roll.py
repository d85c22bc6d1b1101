"""What `commit` has made readable is before the end, also while a roll is not yet through (G4)."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.log import Log
from distributedlog.log.read.position_search import ROLL_WAIT_S
from tests.log.conftest import World
from tests.log.read.test_next_segment import ONE_EACH, send
from tests.log.test_crossing import ALL, READY, rolled

ASKS: dict[str, Callable[[Log], Awaitable[int]]] = {
    "a reader to the end": lambda log: _read(log),
    "count": lambda log: log.count(),
    "last_dlsn": lambda log: _last(log),
    "last_record": lambda log: _last_record(log),
    "snapshot": lambda log: _planned(log),
}
"""Each says how many records there are, if they are numbered."""


async def _read(log: Log) -> int:
    async with log.open_reader(to="end") as reader:
        return len([record async for record in reader])


async def _last(log: Log) -> int:
    at = await log.last_dlsn()
    return ALL if at.segment == 2 else -1


async def _last_record(log: Log) -> int:
    return (await log.last_record()).txid + 1


async def _planned(log: Log) -> int:
    found = await log.snapshot()
    return sum(one.records for one in found.segments)


@pytest.mark.parametrize("ask", ASKS)
async def test_what_was_committed_is_before_the_end(
    world: World, autojump_clock: MockClock, ask: str
) -> None:
    async with rolled(world) as (_, writer, _tail, closes):
        closes.shut()
        await send(writer, range(READY, ALL))
        await writer.commit()
        async with world.process(**ONE_EACH) as other, trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(0.3)
                closes.open()

            nursery.start_soon(later)
            assert await ASKS[ask](other.open_log("l")) == ALL


@pytest.mark.parametrize("ask", ["count", "snapshot"])
async def test_a_roll_that_does_not_go_on_is_not_waited_for_long(
    world: World, autojump_clock: MockClock, ask: str
) -> None:
    """Its writer has died, or the metadata are slow: what can be read without it is there."""
    async with rolled(world) as (_, writer, _tail, closes):
        closes.shut()
        await send(writer, range(READY, ALL))
        async with world.process(**ONE_EACH) as other:
            began = trio.current_time()
            assert 0 < await ASKS[ask](other.open_log("l")) < ALL
            assert trio.current_time() - began < 2 * ROLL_WAIT_S


async def test_a_segment_that_was_only_made_ready_is_not_waited_for(
    world: World, autojump_clock: MockClock
) -> None:
    async with rolled(world) as (_, writer, _tail, _closes):
        await writer.commit()
        async with world.process(**ONE_EACH) as other:
            began = trio.current_time()
            assert await other.open_log("l").count() == READY
            assert trio.current_time() - began < 0.5
