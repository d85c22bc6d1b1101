"""Transactions that are answered by nobody and applied later: each change is computed anew from what stands.

The store here is the model's; one transaction is kept back, its caller told that the outcome is unknown, and
it is applied just before a later one. Whatever is written then must be of the state as it is.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentEnd
from distributedlog.log.model.writer_log_state import WriterLogState
from distributedlog.log.namespace import Namespace
from distributedlog.log.takeover.takeover import SegmentOpening, close_segment, read_segment
from distributedlog.metadata.model.transaction import Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    EndOfStream,
    OutcomeUnknown,
    WriteFailed,
)
from tests.log.conftest import World
from tests.log.records import everything, keeper_of


class LateStore:
    """``transact`` of a world: the ``n``-th from now on is kept back until ``wait`` more have been asked."""

    def __init__(self, world: World, nth: int, wait: int) -> None:
        self.asked = 0
        self.kept: Transaction | None = None
        self._world = world
        self._nth = nth
        self._wait = wait
        self._original = world.metadata.transact
        world.metadata.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> TransactionReply:
        self.asked += 1
        if self.asked == self._nth:
            self.kept = transaction
            raise OutcomeUnknown("no answer")
        if self.kept is not None and self.asked > self._nth + self._wait:
            await self._arrive()
        return await self._original(transaction)

    async def end(self) -> None:
        """The late one arrives, if it has not; from here on nothing is kept back."""
        self._world.metadata.transact = self._original  # type: ignore[method-assign]
        await self._arrive()

    async def _arrive(self) -> None:
        kept, self.kept = self.kept, None
        if kept is not None:
            with suppress(DistributedLogError):  # refused, and nobody hears of it
                await self._original(kept)


async def check_whole(log: Log, acked: list[int]) -> None:
    """All that was acknowledged, in order; sequence ids from 0 without a gap, by reader and by snapshot."""
    found = await everything(log)
    assert [r.sequence_id for r in found] == list(range(len(found)))
    txids = [r.txid for r in found]
    assert txids == sorted(set(txids))
    assert set(acked) <= set(txids)
    snapshot = await log.snapshot()
    assert snapshot.records == len(found)
    assert [one.start_sequence_id for one in snapshot.segments] == sorted(
        one.start_sequence_id for one in snapshot.segments
    )


async def rolls_and_errors(failing: int, world: World, ns: Namespace, acked: list[int]) -> None:
    """Writers whose ledger fails after one of their records, before, in or after a roll; each takes over."""
    log = ns.open_log("l", config={"segment_bytes_max": 300})
    number = 0
    for session in range(3):
        try:
            async with log.open_writer(takeover=True) as writer:
                for i in range(8):
                    await writer.write(LogRecord(number := number + 1, bytes(60)))
                    acked.append(number)
                    await trio.sleep(0.01)
                    if i == failing and session < 2:
                        keeper_of(writer).current_target.ledger.fail(WriteFailed("a bookie went"))  # type: ignore[attr-defined]
                    await trio.sleep(0.3 * (i % 2))  # a roll ends, or is met under way
                    if i >= 5:
                        await writer.commit()
                        await check_whole(log, acked)
        except DistributedLogError:
            await trio.sleep(0.5)


async def links(world: World, ns: Namespace, acked: list[int]) -> None:
    """A writer that leaves its segment open, then two links."""
    log = ns.open_log("l")
    with suppress(OutcomeUnknown):
        writer = await log.open_writer()
        await writer.write(LogRecord(1, b"x"))
        acked.append(1)
        await writer.abort()
    for version in (1, 2):
        try:
            async with log.open_segment_writer() as segment:
                await segment.write(LogRecord(10 * version, b"y"))
                token = await segment.aclose()
            result = await log.link_segments([token], app="a", version=version)
            assert result.first_segment == result.last_segment
            acked.append(10 * version)
            found = (await log.snapshot()).segments[-1]
            assert (found.segment, found.ledger_id) == (result.last_segment, token.ledger_id)
        except OutcomeUnknown:
            return  # given up: it may be in, or not


Story = Callable[[World, Namespace, list[int]], Awaitable[None]]


@pytest.mark.properties
@pytest.mark.parametrize("wait", [0, 1, 2])
@pytest.mark.parametrize(
    ("story", "transactions"),
    [
        (partial(rolls_and_errors, 2), 20),
        (partial(rolls_and_errors, 3), 20),
        (links, 9),
    ],
)
async def test_any_transaction_that_is_applied_late(
    autojump_clock: MockClock, story: Story, transactions: int, wait: int
) -> None:
    """Of each roll, close, takeover and link, kept back until after one, two or three more."""
    for nth in count(1):
        async with trio.open_nursery() as nursery:
            fresh = World(nursery)
            acked: list[int] = []
            async with fresh.process("alpha") as ns:
                await ns.create_log("l")
                store = LateStore(fresh, nth, wait)
                await story(fresh, ns, acked)
                await store.end()
            async with fresh.process("beta") as ns:
                log = ns.open_log("l")
                async with log.open_writer(takeover=True) as writer:
                    await writer.write(LogRecord(1000, b""))
                await check_whole(log, [*acked, 1000])
                shown = await log.describe()
                assert not shown.state.in_progress, nth
            nursery.cancel_scope.cancel()
        if store.asked < nth:
            break  # the story has no more
    assert nth > transactions


async def test_a_registration_that_is_applied_late_gets_its_number_at_the_close_before_it(
    world: World, autojump_clock: MockClock
) -> None:
    """The roll's registration is unknown, the segment's ledger fails, and the registration comes in between:
    the close that meets it numbers it. (Sequence ids went 0, 1, 2, 3, -1, 0, 1.)"""
    async with world.process() as ns:
        await ns.create_log("l", txids="given")
        log = ns.open_log("l", config={"segment_bytes_max": 200})
        async with log.open_writer() as writer:
            store = LateStore(world, 1, 1)
            for txid in range(4):
                await writer.write(LogRecord(txid, bytes(60)))
            await trio.sleep(0.05)
            assert store.kept is not None  # the registration of segment 2
            keeper_of(writer).current_target.ledger.fail(WriteFailed("a bookie went"))  # type: ignore[attr-defined]
            for txid in range(4, 6):
                await writer.write(LogRecord(txid, bytes(60)))
            assert store.kept is None
            await writer.commit()
            await check_whole(log, list(range(6)))


@pytest.mark.parametrize("wait", [0, 1, 2, 3])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_log_that_is_said_to_be_sealed_is_sealed(
    world: World, autojump_clock: MockClock, nth: int, wait: int
) -> None:
    """`mark_end_of_stream` while a roll, or the close after an error, is known to nobody: that one's late
    success is not taken for the seal's."""
    async with world.process() as ns:
        log = ns.open_log("l", config={"segment_bytes_max": 200})
        writer = await log.open_writer()
        await writer.write(LogRecord(0, bytes(60)))
        store = LateStore(world, nth, wait)
        if nth % 2:
            keeper_of(writer).current_target.ledger.fail(WriteFailed("a bookie went"))  # type: ignore[attr-defined]
        else:
            for txid in range(1, 4):
                await writer.write(LogRecord(txid, bytes(60)))
        await trio.sleep(0.01)
        await writer.mark_end_of_stream()
        await store.end()

        state = (await log.describe()).state
        assert state.sealed
        assert not state.in_progress
        assert not state.owner
        with pytest.raises(EndOfStream):
            await log.open_writer()


async def test_a_position_is_said_to_be_gone_when_it_is(
    world: World, autojump_clock: MockClock
) -> None:
    """An unknown outcome is not "done": it is looked at."""
    async with world.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        await log.positions.advance("cold", (await log.snapshot()).end_dlsn)
        store = LateStore(world, 1, 99)

        assert await log.positions.delete("cold")

        assert await log.positions.list() == {}
        await store.end()


async def owned_by_nobody(world: World, ns: Namespace, name: str) -> WriterLogState:
    found = await world.metadata.get(state_key(await ns.resolve_name(name)))
    assert found is not None
    return WriterLogState(world.metadata, LogState.decode(found.value), found.version)


async def test_the_ledger_that_was_registered_is_the_one_that_is_written(
    world: World, autojump_clock: MockClock
) -> None:
    """A first choice is answered by nobody, then refused, for a bookie of it is away; it is applied late, as
    the second choice is asked. Whoever wrote to the latter would acknowledge what is in no segment."""
    async with world.process() as ns:
        await ns.create_log("l")
        owned = await owned_by_nobody(world, ns, "l")
        opening = SegmentOpening(owned, world.ledgers, 0)
        original = world.metadata.transact
        asked: list[Transaction] = []

        async def transact(transaction: Transaction) -> TransactionReply:
            asked.append(transaction)
            if len(asked) == 1:
                raise OutcomeUnknown("no answer")
            if len(asked) == 2:
                found = [await world.metadata.get(one.key) for one in transaction.compares]
                return TransactionReply(False, 0, tuple(found))
            if len(asked) == 3:
                assert (await original(asked[0])).succeeded
            return await original(transaction)

        world.metadata.transact = transact  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await opening.open()
        record, ledger = await opening.open()
        world.metadata.transact = original  # type: ignore[method-assign]

        assert len(asked) == 3
        assert ledger.ledger_id == record.ledger_id


async def test_a_close_that_was_done_is_not_written_again_with_what_follows_it(
    world: World, autojump_clock: MockClock
) -> None:
    """Its first try was done, unseen; what is left is that the writer goes. The segment keeps its number."""
    async with world.process() as ns:
        await ns.create_log("l")
        owned = await owned_by_nobody(world, ns, "l")
        record, _ = await SegmentOpening(owned, world.ledgers, 0).open()
        end = SegmentEnd(0, 10, 3, 1, 3, 0, 2)
        await close_segment(owned, record, end, closed_ms=1)
        before = await read_segment(world.metadata, owned.state, 1)

        def goes(state: LogState) -> LogState:
            return replace(state, owner="gone")

        await close_segment(owned, record, end, closed_ms=2, final_change=goes)

        assert owned.state.owner == "gone"
        assert owned.state.next_sequence_id == 3
        assert await read_segment(world.metadata, owned.state, 1) == before
