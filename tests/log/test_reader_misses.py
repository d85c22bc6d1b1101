"""H30: a reader's miss is judged by the log's state as it is now, not as the reader last saw it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import state_key
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.runtime.interfaces.errors import LogNotFound, LogTruncated, NoSuchLedger
from tests.log.conftest import World
from tests.log.read.test_log_reader import change_state, fill


class SilentWatch:
    """A watch whose news are late: the reader's picture of the log stays as it was."""

    async def next_batch(self) -> None:
        await trio.sleep_forever()


@asynccontextmanager
async def silent(*_: object, **__: object) -> AsyncIterator[SilentWatch]:
    yield SilentWatch()


@pytest.mark.parametrize("ledger_goes", [True, False])
async def test_a_purge_between_planning_and_reading(
    world: World, autojump_clock: MockClock, ledger_goes: bool
) -> None:
    """Truncation took the segment's ledger away, or moved on behind the reader's back."""
    async with world.process(read_ahead_bytes=1) as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        world.metadata.watch = silent  # type: ignore[method-assign,assignment]
        async with log.open_reader() as reader:
            await trio.sleep(1)
            await change_state(
                world,
                await ns.resolve_name("l"),
                truncated_to=DLSN(3, 0, 0),
                truncated_sequence_id=6,
                first_segment=3,
            )
            if ledger_goes:
                original = world.ledgers.open

                async def without(ledger_id: int, *, replica_offset: int = 0):  # type: ignore[no-untyped-def]
                    raise NoSuchLedger(f"ledger {ledger_id} does not exist")

                world.ledgers.open = without  # type: ignore[method-assign]
                assert [r.txid for r in await reader.read_bulk(3)] == [1, 2, 3]
                with pytest.raises(LogTruncated, match=r"first position is 3\.0\.0"):
                    await reader.read_next()
                world.ledgers.open = original  # type: ignore[method-assign]
            else:  # what it can still read is what was there; nothing is skipped
                assert [r.txid for r in await reader.read_bulk(9, wait_s=5)] == list(range(1, 10))


@pytest.mark.parametrize(
    ("begins", "to", "expected"),
    [
        (DLSN(1, 2, 1), None, [4, 5, 6]),
        (DLSN(1, 3, 0), None, [4, 5, 6]),
        (DLSN(1, 2, 1), DLSN(1, 9, 0), []),
    ],
    ids=["after the last record", "after its entry", "to a place in it"],
)
async def test_a_purge_of_what_lies_before_a_reader_cuts_nothing_off(
    world: World,
    autojump_clock: MockClock,
    begins: DLSN,
    to: DLSN | None,
    expected: list[int],
) -> None:
    """G6, seed 8 of the pipelines: an archiver stands after the last record of a segment that goes."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3], [4, 5, 6]])
        await change_state(world, await ns.resolve_name("l"), truncated_to=DLSN(1, 2, 1))
        original = world.ledgers.open
        gone: list[int] = []

        async def purged(ledger_id: int, *, replica_offset: int = 0):  # type: ignore[no-untyped-def]
            if not gone:
                gone.append(ledger_id)
                await change_state(world, await ns.resolve_name("l"), first_segment=2)
            if ledger_id in gone:
                raise NoSuchLedger(f"ledger {ledger_id} does not exist")
            return await original(ledger_id)

        async with log.open_reader(dlsn=begins, to=to) as reader:
            world.ledgers.open = purged  # type: ignore[method-assign]
            assert [r.txid for r in await reader.read_bulk(9, wait_s=5)] == expected


async def test_a_deletion_between_planning_and_reading(
    world: World, autojump_clock: MockClock
) -> None:
    """The log is gone, and its ledgers: that is `LogNotFound`, not data loss."""
    async with world.process(read_ahead_bytes=1) as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3], [4, 5, 6]])
        world.metadata.watch = silent  # type: ignore[method-assign,assignment]
        async with log.open_reader() as reader:
            await trio.sleep(1)
            key = state_key(await ns.resolve_name("l"))
            await world.metadata.transact(Transaction((), (Delete(key),)))

            async def without(ledger_id: int, *, replica_offset: int = 0):  # type: ignore[no-untyped-def]
                raise NoSuchLedger(f"ledger {ledger_id} does not exist")

            world.ledgers.open = without  # type: ignore[method-assign]
            assert [r.txid for r in await reader.read_bulk(3)] == [1, 2, 3]
            with pytest.raises(LogNotFound):
                await reader.read_next()
