"""How segments end and begin under a writer: order, errors, and metadata that is away."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.metadata.model.transaction import KeyValue, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    NamespaceFull,
    NotEnoughBookies,
    OutcomeUnknown,
    QuorumUnreachable,
    WriteFailed,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.records import everything, rec


async def test_rolls_by_size_under_tail_readers(world: World, autojump_clock: MockClock) -> None:
    """No reader stalls, all read equal sequences, many rolls, sequence ids gap-free."""
    async with world.process(segment_bytes_max=2000) as ns:
        log = ns.open_log("l")
        seen: list[list[tuple[DLSN, int]]] = [[] for _ in range(8)]
        stalls: list[float] = []
        async with trio.open_nursery() as nursery:

            async def tail(mine: list[tuple[DLSN, int]]) -> None:
                async with log.open_reader() as reader:
                    while len(mine) < 1500:
                        began = trio.current_time()
                        record = await reader.read_next()
                        assert record is not None
                        stalls.append(trio.current_time() - began)
                        mine.append((record.dlsn, record.sequence_id))

            async with log.open_writer() as writer:
                for mine in seen:
                    nursery.start_soon(tail, mine)
                for i in range(500):
                    await writer.write_bulk([rec(i, bytes(100))] * 3)
                await writer.commit()
                await trio.sleep(1)

        assert all(mine == seen[0] for mine in seen)
        assert [sequence_id for _, sequence_id in seen[0]] == list(range(1500))
        assert max(stalls) < 2
        assert (await log.describe()).state.last_segment >= 60


async def test_rolls_by_time_and_because_of_the_ledger(
    world: World, autojump_clock: MockClock
) -> None:
    """2 h; H22: within 60 s when a better ensemble is there, also when idle."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await trio.sleep(3 * 3600)
            assert writer.segment == 1  # empty: nothing to gain
            await writer.write(rec(1))
            await trio.sleep(10)
            assert writer.segment == 2
            await writer.write(rec(2))
            world.ledgers.writers[-1].needs_roll = True
            await trio.sleep(60)
            assert writer.segment == 3
            await writer.write(rec(3))
        assert [str(r.dlsn) for r in await everything(log)] == ["1.0.0", "2.0.0", "3.0.0"]


async def test_nothing_goes_to_the_next_segment_before_all_is_acknowledged(
    world: World, autojump_clock: MockClock
) -> None:
    """H11: also while much is in flight and more is submitted; the close comes after."""
    async with world.process(segment_bytes_max=500, entry_bytes_max=200) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            world.ledgers.held = True
            pending = [await writer.submit(rec(i, bytes(50))) for i in range(60)]
            await trio.sleep(5)
            assert len(world.ledgers.writers) == 2  # the next one is there,
            assert world.ledgers.writers[1].added == 0  # and got nothing
            state = (await log.describe()).state
            assert list(state.in_progress) == [1, 2]
            world.ledgers.release()
            dlsns = [await p for p in pending]
            assert dlsns == sorted(set(dlsns))
            assert dlsns[-1].segment >= 2
            await trio.sleep(1)
            assert (await log.describe()).state.first_open_segment == writer.segment
        assert [r.dlsn for r in await everything(log)] == dlsns


async def test_a_crash_in_the_middle_of_a_roll_leaves_a_prefix(
    world: World, autojump_clock: MockClock
) -> None:
    """H11: two segments in progress, the older recovered shorter: nothing is after the hole."""
    async with world.process("alpha") as a:
        writer = await a.open_log(
            "l", config={"segment_bytes_max": 500, "entry_bytes_max": 200}
        ).open_writer()
        await writer.write(rec(0))
        world.ledgers.held = True
        for i in range(1, 60):
            await writer.submit(rec(i, bytes(50)))
        await trio.sleep(5)
        world.ledgers.keep_in_flight = 2
    world.ledgers.held = False
    async with world.process("beta") as b:
        log = b.open_log("l")
        async with log.open_writer(takeover=True) as second:
            assert second.segment == 3
            await second.write(rec(100))
        found = [r.txid for r in await everything(log)]
        assert found[:-1] == list(range(len(found) - 1))
        assert found[-1] == 100
        assert (await log.describe()).segments[1].records == 0


@pytest.mark.parametrize("kept", [0, 1, 3, 100])
async def test_a_failed_ledger_is_replaced_and_each_record_is_there_once(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """H11: own segment recovered; what is in it is acknowledged there, the rest is sent again, once."""
    async with world.process(entry_bytes_max=200) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as tail:
            await writer.write(rec(0))
            world.ledgers.held = True
            world.ledgers.keep_in_flight = kept
            pending = [await writer.submit(rec(i, bytes(50))) for i in range(1, 40)]
            await trio.sleep(0.1)
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("entry 3: 1 of 2 acks after 5.0 s"))
            dlsns = [await p for p in pending]

            assert dlsns == sorted(set(dlsns))
            assert writer.segment == 2
            assert {dlsn.segment for dlsn in dlsns} == ({1, 2} if kept else {2})
            await writer.write(rec(99))
            assert len(await tail.read_bulk(41, wait_s=5)) == 41
        found = await everything(log)
        assert [r.txid for r in found] == [*range(40), 99]
        assert [r.dlsn for r in found[1:40]] == dlsns
        assert [r.sequence_id for r in found] == list(range(41))


async def test_an_error_in_the_middle_of_a_roll(world: World, autojump_clock: MockClock) -> None:
    """The next segment is registered already: it is used, none is left behind."""
    async with world.process(segment_bytes_max=500, entry_bytes_max=200) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            world.ledgers.held = True
            pending = [await writer.submit(rec(i, bytes(50))) for i in range(1, 30)]
            await trio.sleep(5)
            assert len(world.ledgers.writers) == 2
            world.ledgers.keep_in_flight = 2
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("no acks"))
            assert [await p for p in pending] == sorted({await p for p in pending})
        assert [r.txid for r in await everything(log)] == list(range(30))


async def test_bookies_that_stay_away_end_the_writer_in_time(
    world: World, autojump_clock: MockClock
) -> None:
    """G7: pending writes are unknown, the first error sticks, the log is recoverable."""
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write(rec(0))
        world.ledgers.held = world.ledgers.away = True
        pending = await writer.submit(rec(1))
        await trio.sleep(0.1)
        began = trio.current_time()
        world.ledgers.writers[0].fail(WriteFailed("no acks"))
        with pytest.raises(WriteFailed) as caught:
            await pending
        assert trio.current_time() - began == pytest.approx(30, abs=2)
        assert not caught.value.definite
        for _ in range(2):
            with pytest.raises(WriteFailed):
                await writer.submit(rec(2))
        with pytest.raises(WriteFailed):
            await writer.aclose()
        world.ledgers.held = world.ledgers.away = False
        async with log.open_writer(wait_s=0) as writer:
            await writer.write(rec(3))
        assert [r.txid for r in await everything(log)] == [0, 3]


async def test_a_fence_without_a_takeover_is_survived(
    world: World, autojump_clock: MockClock
) -> None:
    """An auditor recovered the open ledger (H22b): same epoch, so the writer goes on in the next one."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            await world.ledgers.recover(1)
            await writer.write(rec(1))
            assert writer.segment == 2
            await world.ledgers.recover(2)  # and nothing is written before the close
        assert [r.txid for r in await everything(log)] == [0, 1]


async def test_rolls_wait_while_the_metadata_is_away(
    world: World, autojump_clock: MockClock
) -> None:
    """Writes keep going to the old segment; afterwards rolling resumes."""
    async with world.process(segment_bytes_max=500) as ns:
        await ns.create_log("l", txids="given")
        log = ns.open_log("l")
        original = world.metadata.transact

        async def away(transaction: Transaction):  # type: ignore[no-untyped-def]
            await trio.sleep(0.1)
            raise QuorumUnreachable("no leader at 127.0.0.1:1")

        async with log.open_writer() as writer, log.open_reader() as tail:
            world.metadata.transact = away  # type: ignore[method-assign]
            for i in range(100):
                await writer.write(rec(i, bytes(50)))
                await trio.sleep(0.5)
            assert writer.segment == 1
            assert len(await tail.read_bulk(100, wait_s=1)) == 100
            world.metadata.transact = original  # type: ignore[method-assign]
            for i in range(100, 120):
                await writer.write(rec(i, bytes(50)))
                await trio.sleep(0.5)
            assert writer.segment >= 2
        assert [r.txid for r in await everything(log)] == list(range(120))


@pytest.mark.parametrize("applied", [False, True])
async def test_every_unknown_outcome_of_a_roll_is_looked_at_again(
    world: World, autojump_clock: MockClock, applied: bool
) -> None:
    """Opening and closing are each done once, however often the answer is lost."""
    async with world.process(segment_bytes_max=500) as ns:
        log = ns.open_log("l")
        original = world.metadata.transact
        calls = 0

        async def lossy(transaction: Transaction):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls % 2:
                if applied:
                    await original(transaction)
                raise OutcomeUnknown("the answer was lost")
            return await original(transaction)

        async with log.open_writer() as writer:
            world.metadata.transact = lossy  # type: ignore[method-assign]
            for i in range(100):
                await writer.write(rec(i, bytes(50)))
                await trio.sleep(0.05)
            assert writer.segment >= 3
        world.metadata.transact = original  # type: ignore[method-assign]
        shown = await log.describe()
        assert shown.state.first_open_segment == shown.state.last_segment + 1
        assert [s.segment for s in shown.segments] == list(range(1, shown.state.last_segment + 1))
        assert shown.records == 100
        assert [r.txid for r in await everything(log)] == list(range(100))


async def test_a_full_ledger_window_is_waited_for(world: World, autojump_clock: MockClock) -> None:
    world.ledgers.window = 2
    async with world.process(entry_bytes_max=100, eager_entries=50) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for i in range(200):
                await writer.submit(rec(i, bytes(50)))
        assert [r.txid for r in await everything(log)] == list(range(200))


async def test_closing_finishes_a_roll_that_is_under_way(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(segment_bytes_max=100) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for i in range(10):
                await writer.submit(rec(i, bytes(50)))
        shown = await log.describe()
        assert all(segment.closed for segment in shown.segments)
        assert shown.state.first_open_segment == shown.state.last_segment + 1
        assert shown.records == 10


async def test_what_the_writer_counted_is_what_recovery_counts(
    world: World, autojump_clock: MockClock
) -> None:
    """A segment's record is the same, whoever closes it."""

    async def last_segment(abort: bool) -> SegmentRecord:
        async with world.process() as ns:
            log = ns.open_log(f"l{abort}")
            writer = await log.open_writer()
            await writer.write_bulk([rec(3), rec(4)])
            await writer.write_bulk([rec(5)])
            await (writer.abort() if abort else writer.aclose())
            async with log.open_writer():
                pass
            return (await log.describe()).segments[0]

    closed, recovered = await last_segment(False), await last_segment(True)
    for name in ("first_txid", "last_txid", "records", "size_bytes", "last_dlsn", "last_entry"):
        assert getattr(closed, name) == getattr(recovered, name), name
    assert closed.records == 3


async def test_a_namespace_that_ends_ends_its_writers(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as ns:
        writer = await ns.open_log("l").open_writer()
        world.ledgers.held = True
        pending = await writer.submit(rec(1))
    with pytest.raises((WriteFailed, WriterFenced)):
        await pending


async def test_a_segment_that_comes_as_its_writer_ends_is_not_written(
    world: World, autojump_clock: MockClock
) -> None:
    """Its registration may be answered in the very turn in which the writer is given up."""
    async with world.process() as ns:
        writer = await ns.open_log("l").open_writer()
        await writer.write(rec(1))
        original = world.metadata.get

        async def get(key: bytes) -> KeyValue | None:
            found = await original(key)
            writer.send_queue.fail(WriteFailed("planted"))
            return found

        world.metadata.get = get  # type: ignore[method-assign]
        world.ledgers.writers[-1].needs_roll = True
        await trio.sleep(60)
        world.metadata.get = original  # type: ignore[method-assign]

        assert len(world.ledgers.writers) == 1
        await writer.abort()


async def test_a_writer_that_is_open_waits_where_its_namespace_is_full(
    world: World, autojump_clock: MockClock
) -> None:
    """To be told at once is for who opens one: this one has taken records, and room may be made."""
    transact = world.metadata.transact
    full = False

    async def refusing(transaction: Transaction) -> TransactionReply:
        wanted = [one.key for one in transaction.operations if b"/segment/" in one.key]
        if full and [key for key in wanted if await world.metadata.get(key) is None]:
            raise NamespaceFull("namespace ns has 80 keys in the metadata, allowed are 80")
        return await transact(transaction)

    world.metadata.transact = refusing  # type: ignore[method-assign]
    async with world.process(segment_bytes_max=500, entry_bytes_max=200) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            full = True
            began = trio.current_time()
            with pytest.raises(NamespaceFull):
                async with ns.open_log("m").open_writer():
                    pass
            assert trio.current_time() - began < 1
            pending = [await writer.submit(rec(i, bytes(50))) for i in range(1, 60)]
            await trio.sleep(600)
            full = False  # somebody has truncated, or an admin has raised it
            for one in pending:
                await one
            full = True
            world.ledgers.held = True
            pending = [await writer.submit(rec(60, b"x"))]
            await trio.sleep(1)
            world.ledgers.held = False
            world.ledgers.writers[-1].fail(NotEnoughBookies("two of three are gone"))
            await trio.sleep(10)  # its segment has ended, and it can have no other one
            full = False
            await pending[0]
        assert [one.txid for one in await everything(log)] == list(range(61))
