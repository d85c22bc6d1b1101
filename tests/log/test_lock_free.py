"""Writers without a lock: the epoch alone says who owns the log, and the last opener wins (H12)."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.model.log_keys import lock_key
from distributedlog.metadata.model.transaction import Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    EndOfStream,
    InvalidRequest,
    LogNotFound,
    OutcomeUnknown,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.records import everything, rec


async def test_the_last_one_that_opens_wins_and_the_one_before_is_told_at_its_next_add(
    world: World, autojump_clock: MockClock
) -> None:
    """G4: by the epoch and the fence; no key is put, nothing is renewed, nobody waits."""
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l").open_writer(lock=False)
        key = lock_key(await a.resolve_name("l"))
        await first.write(rec(0))
        began = trio.current_time()
        async with b.open_log("l").open_writer(lock=False) as second:
            assert trio.current_time() - began < 1
            with pytest.raises(WriterFenced, match="beta"):
                await first.write(rec(9))
            await second.write(rec(1))
            assert await world.metadata.get(key) is None
            assert world.metadata.state.leases == {}
        with pytest.raises(WriterFenced):
            await first.aclose()
        state = (await b.open_log("l").describe()).state
        assert (state.owner, list(state.in_progress)) == ("", [])
        assert [one.txid for one in await everything(b.open_log("l"))] == [0, 1]


async def test_a_writer_with_a_lock_is_fenced_by_one_without_and_its_lock_goes(
    world: World, autojump_clock: MockClock
) -> None:
    """Else it would keep others out who wait for locks, for as long as it does not know."""
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l").open_writer()
        key = lock_key(await a.resolve_name("l"))
        await first.write(rec(0))
        # As by bookies, it is told at its next add.
        world.ledgers.writers[-1].on_failed = lambda _: None
        second = await b.open_log("l").open_writer(lock=False)
        assert await world.metadata.get(key) is None
        await second.write(rec(1))
        async with a.open_log("l").open_writer(wait_s=0) as third:  # with a lock, which nobody has
            with pytest.raises(WriterFenced):
                await second.write(rec(9))
            with pytest.raises(WriterFenced):
                await first.write(rec(9))
            await first.abort()  # gives back what it has not
            assert await world.metadata.get(key) is not None
            await third.write(rec(2))
        assert [one.txid for one in await everything(a.open_log("l"))] == [0, 1, 2]


@pytest.mark.parametrize("applied", [False, True])
async def test_an_unknown_claim_is_looked_at_again(
    world: World, autojump_clock: MockClock, applied: bool
) -> None:
    async with world.process("alpha") as a:
        await a.create_log("l")
        original = world.metadata.transact

        async def unknown(transaction: Transaction) -> TransactionReply:
            world.metadata.transact = original  # type: ignore[method-assign]
            if applied:
                await original(transaction)
            raise OutcomeUnknown("no answer")

        world.metadata.transact = unknown  # type: ignore[method-assign]
        opening = a.open_log("l").open_writer(lock=False)
        if applied:
            async with opening as writer:
                await writer.write(rec(0))
        else:
            with pytest.raises(OutcomeUnknown):
                await opening


async def test_two_that_open_at_one_moment(world: World, autojump_clock: MockClock) -> None:
    """All claims compare the state: one is the last, the others are fenced; what was acknowledged stays."""
    async with world.process("alpha") as a, world.process("beta") as b:
        await a.create_log("l")
        acked: list[int] = []

        async def write(number: int, log_of: str) -> None:
            log = (a if log_of == "a" else b).open_log("l")
            try:
                async with log.open_writer(lock=False) as writer:
                    await writer.write(rec(0, b"%d" % number))
                    acked.append(number)
            except WriterFenced:
                pass

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(write, number, "ab"[number % 2])
        found = [int(one.payload) for one in await everything(a.open_log("l"))]
        assert acked
        assert set(acked) <= set(found)
        assert len(found) == len(set(found))


async def test_a_deletion_needs_no_leave_of_it(world: World, autojump_clock: MockClock) -> None:
    async with world.process("alpha") as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer(lock=False)
        await writer.write(rec(0))
        await b.delete_log("l")
        with pytest.raises((LogNotFound, WriterFenced)):
            await writer.write(rec(1))
        assert writer.error is not None
        assert not await b.log_exists("l")
        await writer.abort()
        assert not await b.log_exists("l")


async def test_a_link_fences_it(world: World, autojump_clock: MockClock) -> None:
    async with world.process("alpha") as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer(lock=False)
        await writer.write(rec(0))
        log = b.open_log("l")
        async with log.open_segment_writer() as segment:
            await segment.write(rec(5))
            token = await segment.aclose()
        assert (await log.link_segments([token], wait_s=0)).first_segment == 2
        with pytest.raises(WriterFenced):
            await writer.write(rec(6))
        assert [one.txid for one in await everything(log)] == [0, 5]


async def test_a_rename_is_nothing_to_it(world: World, autojump_clock: MockClock) -> None:
    async with world.process("alpha", segment_bytes_max=200) as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer(lock=False)
        await writer.write(rec(0))
        await b.rename_log("l", "m")
        for txid in range(1, 10):  # and it rolls
            await writer.write(rec(txid, bytes(50)))
        await writer.aclose()
        assert [one.txid for one in await everything(b.open_log("m"))] == list(range(10))
        assert not await b.log_exists("l")


async def test_a_seal_fences_it_and_it_seals_itself(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer(lock=False)
        await writer.write(rec(0))
        assert await b.open_log("l").seal(wait_s=0)
        with pytest.raises(WriterFenced):
            await writer.write(rec(1))
        with pytest.raises(EndOfStream):
            await b.open_log("l").open_writer(lock=False)

        async with a.open_log("own").open_writer(lock=False) as own:
            await own.write(rec(0))
            await own.mark_end_of_stream()
        assert [one.txid for one in await everything(b.open_log("own"))] == [0]
        with pytest.raises(EndOfStream):
            await b.open_log("own").open_writer(lock=False)


async def test_nothing_is_waited_for(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        with pytest.raises(InvalidRequest, match="wait_s"):
            ns.open_log("l").open_writer(lock=False, wait_s=1)
