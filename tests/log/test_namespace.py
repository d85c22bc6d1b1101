"""Names to logs: made, listed, deleted."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import state_key
from distributedlog.runtime.interfaces.errors import (
    InvalidLogName,
    InvalidRequest,
    LogEmpty,
    LogExists,
    LogNotFound,
    NoSuchLedger,
    OwnershipAcquireFailed,
)
from tests.log.conftest import World
from tests.log.records import everything


async def test_a_log_is_created_once_and_listed_once(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("orders")
        with pytest.raises(LogExists):
            await ns.create_log("orders")
        before = world.metadata.state.revision
        with pytest.raises(InvalidLogName):
            await ns.create_log(" bad<name")

        assert world.metadata.state.revision == before  # it leaves no key
        assert await ns.log_exists("orders")
        assert not await ns.log_exists("order")
        assert [name async for name in ns.logs()] == ["orders"]


async def test_logs_are_listed_in_order_and_by_prefix(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        for name in ("b/2", "a", "b/1", "c", "Ünï"):
            await ns.create_log(name)

        assert [name async for name in ns.logs()] == ["a", "b/1", "b/2", "c", "Ünï"]
        assert [name async for name in ns.logs("b/")] == ["b/1", "b/2"]


async def test_a_missing_log_is_made_only_if_wanted(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        strict = ns.open_log("missing", config={"create_if_missing": False})
        before = world.metadata.state.revision
        with pytest.raises(LogNotFound):
            await strict.open_writer()
        with pytest.raises(LogNotFound):
            await ns.open_log("missing").open_reader()
        assert world.metadata.state.revision == before

        async with ns.open_log("missing").open_writer():
            assert await ns.log_exists("missing")


async def test_what_cannot_be_meant_is_refused_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        with pytest.raises(InvalidRequest, match="unknown option"):
            ns.open_log("a", config={"nope": 1})
        log = ns.open_log("a")
        with pytest.raises(InvalidRequest):
            log.open_reader(txid=1, at="now")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            log.open_writer(wait_s=-1)
        with pytest.raises(InvalidRequest):
            await ns.create_log("a", durability="most")  # type: ignore[arg-type]


async def test_a_log_with_a_living_writer_is_not_deleted(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            with pytest.raises(OwnershipAcquireFailed, match="alpha") as caught:
                await ns.delete_log("orders")
            assert caught.value.owner == "alpha"
            await writer.write(LogRecord(1, b"undisturbed"))


async def test_a_deleted_log_is_gone_for_everybody(world: World, autojump_clock: MockClock) -> None:
    """H13: segments and ledgers go together; H30: open readers get a definite error."""
    async with world.process() as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"old"))
        tail = await log.open_reader(at="latest")
        await ns.delete_log("orders")

        with trio.fail_after(5), pytest.raises(LogNotFound):
            await tail.read_next()
        with pytest.raises(LogNotFound):
            await log.open_reader()
        with pytest.raises(LogNotFound):
            await ns.delete_log("orders")
        keys = [item.key for item in (await world.metadata.range(b"log/", b"name0")).items]
        assert keys == []
        with pytest.raises(NoSuchLedger):
            await world.ledgers.open(1)

        async with log.open_writer() as writer:  # the same name, another log
            await writer.write(LogRecord(1, b"new"))
        with pytest.raises(LogNotFound):
            await tail.read_next()
        assert [r.payload for r in await everything(log)] == [b"new"]


async def test_a_deletion_that_was_cut_short_is_finished_by_asking_again(
    world: World, autojump_clock: MockClock
) -> None:
    """Repeatable. Meanwhile nobody opens the log for writing."""
    async with world.process("alpha") as ns:
        log = ns.open_log("orders")
        async with log.open_writer():
            pass
        log_id = await ns.resolve_name("orders")
        found = await world.metadata.get(state_key(log_id))
        assert found is not None

        original = world.ledgers.delete_ops

        with trio.CancelScope() as scope:

            async def cut(ledger_id: int):  # type: ignore[no-untyped-def]
                scope.cancel()
                await trio.lowlevel.checkpoint()

            world.ledgers.delete_ops = cut  # type: ignore[method-assign]
            await ns.delete_log("orders")
        world.ledgers.delete_ops = original  # type: ignore[method-assign]

        with pytest.raises(LogNotFound, match="being deleted"):
            await log.open_writer()
        await ns.delete_log("orders")
        assert not await ns.log_exists("orders")


async def test_a_log_describes_itself(world: World, autojump_clock: MockClock) -> None:
    """What `dlog log show` prints."""
    async with world.process("alpha") as ns:
        log = ns.open_log("orders")
        with pytest.raises(LogNotFound):
            await log.describe()
        await ns.create_log("orders")
        with pytest.raises(LogEmpty):
            await log.last_dlsn()
        async with log.open_writer() as writer:
            for i in range(3):
                await writer.write(LogRecord(i, b"x"))
        async with log.open_writer() as writer:
            last = await writer.write(LogRecord(9, b"y"))
            await writer.commit()

            shown = await log.describe()

            assert (shown.owner, shown.state.epoch) == ("alpha", 2)
            assert shown.last_dlsn == last == await log.last_dlsn()
            assert [(s.closed, s.records, s.start_sequence_id) for s in shown.segments] == [
                (True, 3, 0),
                (False, 0, 3),
            ]
        closed = await log.describe()
        assert (closed.owner, closed.records) == ("", 4)
        assert closed.state.last_txid == 9
