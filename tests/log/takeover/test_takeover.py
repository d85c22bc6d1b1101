"""Two writers on one log: refusal, takeover, and what a stopped writer can still do (nothing)."""

import contextlib
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from distributedlog.log.format.control_record import build_control_entry
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.log import open_writer_after_dead_holder
from distributedlog.log.model.lock_record import LockRecord, lock_holder
from distributedlog.log.model.log_keys import lock_key, segment_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    EntriesLost,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    RecoveryIncomplete,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader
from tests.log.records import everything, keeper_of, rec


async def test_a_second_writer_is_refused_and_told_who_writes(
    world: World, autojump_clock: MockClock
) -> None:
    """At once with wait_s=0, after the wait else; the first goes on undisturbed."""
    async with world.process("alpha") as a, world.process("beta") as b:  # noqa: SIM117
        async with a.open_log("l").open_writer() as writer:
            for wait_s, waited in ((0, 0), (3, 3), (None, 12)):
                began = trio.current_time()
                with pytest.raises(OwnershipAcquireFailed, match="alpha") as caught:
                    await b.open_log("l").open_writer(wait_s=wait_s)
                assert caught.value.owner == "alpha"
                assert trio.current_time() == pytest.approx(began + waited, abs=0.1)
            await writer.write(rec(1))
            assert writer.segment == 1


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_log_is_written_on_where_its_first_entries_were_declared_lost(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """docs/operate/accept-data-loss.md: then the log can be written again."""
    async with world.process("alpha") as a:
        writer = await a.open_log("l").open_writer()
        for txid in range(1, 6):
            await writer.write(rec(txid))
        log_id = await a.resolve_name("l")
    read = ModelReader.read

    async def read_what_is_left(reader: ModelReader, first: int, last: int, **kw: int) -> Any:
        if reader._ledger_id == writer_ledger and first < lost:
            raise EntriesLost("declared lost by op: two disks")
        return await read(reader, first, last, **kw)

    writer_ledger = max(world.ledgers.stores)
    monkeypatch.setattr(ModelReader, "read", read_what_is_left)
    async with world.process("beta") as b:
        async with b.open_log("l").open_writer(takeover=True) as second:
            await second.write(rec(6))
        found = await world.metadata.get(segment_key(log_id, 1))
        assert found is not None
        end = SegmentRecord.decode(found.value)
        assert (end.records, end.last_txid, end.last_entry) == (5, 5, 4)
        assert 1 < end.first_txid <= lost + 1


async def test_a_waiting_writer_gets_the_lock_when_it_is_free(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l").open_writer()
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                await trio.sleep(2)
                await first.write(rec(1))
                await first.aclose()

            nursery.start_soon(leave)
            began = trio.current_time()
            async with b.open_log("l").open_writer() as second:
                assert trio.current_time() == pytest.approx(began + 2, abs=0.1)
                assert await second.write(rec(1)) == DLSN(2, 0, 0)


async def test_an_opening_that_comes_too_late_leaves_no_ledger_open(
    world: World, autojump_clock: MockClock
) -> None:
    """The namespace is closed while a writer is opened: nothing of it goes on, and the log is free."""
    late = 0
    for steps in range(60):
        before = len(world.ledgers.writers)
        async with world.process() as ns, trio.open_nursery() as nursery:
            opened: list[LogWriter] = []

            async def open_it(ns: Namespace, opened: list[LogWriter]) -> None:
                with contextlib.suppress(AlreadyClosed):
                    opened.append(await ns.open_log("l").open_writer())

            nursery.start_soon(open_it, ns, opened)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            ns.close()
            await trio.sleep(1)
            if not opened:
                made = world.ledgers.writers[before:]
                late += len(made)
                assert [one.ledger_id for one in made if one.error is None] == [], steps
            for writer in opened:
                await writer.aclose()
        assert await world.metadata.get(lock_key(1)) is None
    assert late, "some of them had a ledger"


@pytest.mark.parametrize("first", [1, 2])
async def test_a_segment_whose_entries_count_differently_is_not_closed(
    world: World, autojump_clock: MockClock, first: int
) -> None:
    """Its last entry is a control entry of an old version, without the position of the last record.

    It counts two records. The entry before it has one, or is a control entry as well and counts two.
    """
    async with world.process("alpha") as ns:
        writer = await ns.open_log("l").open_writer()
        await writer.write(rec(1))
        log_id = await ns.resolve_name("l")
        (ledger_id,) = world.ledgers.stores
    control, _ = build_control_entry(None, 1, records_before=2, written_ms=9)
    stored = world.ledgers.stores[ledger_id].entries
    if first == 2:
        stored[0] = b"".join(control)
    stored.append(b"".join(control))
    async with world.process("beta") as ns:
        with pytest.raises(CorruptData, match=f"ledger {ledger_id}: entry 1 counts 2 records"):
            await ns.open_log("l").open_writer(takeover=True)
    found = await world.metadata.get(segment_key(log_id, 1))
    assert found is not None
    assert not SegmentRecord.decode(found.value).closed


async def test_takeover_fences_the_owner(world: World, autojump_clock: MockClock) -> None:
    """G4: A's later writes fail; a reader sees A's acknowledged records, then B's, nothing else."""
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l").open_writer()
        for i in range(3):
            await first.write(rec(i, b"a"))
        async with b.open_log("l").open_writer(takeover=True) as second:
            await second.write(rec(3, b"b"))
            with pytest.raises(WriterFenced, match="taken over by beta"):
                await first.write(rec(4, b"never"))
            with pytest.raises(WriterFenced) as again:
                await first.write(rec(4, b"never"))
            assert again.value.fatal_to_writer
            with pytest.raises(WriterFenced):
                await first.commit()
            with pytest.raises(WriterFenced):
                await first.aclose()
            await second.write(rec(5, b"b"))
        assert [(r.payload, r.sequence_id) for r in await everything(b.open_log("l"))] == [
            (b"a", 0), (b"a", 1), (b"a", 2), (b"b", 3), (b"b", 4),
        ]  # fmt: skip


async def test_who_takes_a_log_from_a_dead_writer_waits_for_one_that_came_between(
    world: World, autojump_clock: MockClock
) -> None:
    """H182: a proxy has looked at a dead owner's lock; by the time it takes it, it may be a living one's."""
    async with world.process("alpha") as a, world.process("beta") as b, world.process("gamma") as c:
        await a.open_log("l").open_writer()
        dead = await lock_holder(world.metadata, await a.resolve_name("l"))
        between = await b.open_log("l").open_writer(takeover=True)
        lives = await lock_holder(world.metadata, await a.resolve_name("l"))
        assert dead is not None
        assert lives is not None

        with pytest.raises(OwnershipAcquireFailed, match="beta"):
            await open_writer_after_dead_holder(c.open_log("l"), dead.writer_id, 0.0)
        await between.write(rec(1))
        async with await open_writer_after_dead_holder(
            c.open_log("l"), lives.writer_id, 0.0
        ) as last:
            with pytest.raises(WriterFenced, match="gamma"):
                await between.write(rec(2))
            await last.write(rec(3))


@pytest.mark.parametrize("kept", [0, 1, 5])
async def test_a_paused_writer_wakes_fenced(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """A stops past its lease, B opens and writes; what A acknowledged comes before B's, what
    it had in flight is there once or not at all (G7), and nothing of A's comes after."""
    async with world.process("beta") as b:
        log = b.open_log("l")
        async with world.process("alpha") as a:
            first = await a.open_log("l").open_writer()
            acked = [await first.write(rec(i, b"acked")) for i in range(3)]
            world.ledgers.held = True
            pending = [await first.submit(rec(9, b"in flight"))]
            await trio.sleep(0.1)
            # From here on A does nothing: its tasks end without any goodbye, as under SIGSTOP.
            first._scope.cancel()
            await trio.lowlevel.checkpoint()
            original, world.metadata.revoke_lease = world.metadata.revoke_lease, _nothing  # type: ignore[method-assign]
        world.metadata.revoke_lease = original  # type: ignore[method-assign]
        world.ledgers.held = False
        world.ledgers.keep_in_flight = kept

        async with log.open_writer() as second:  # waits for the lease to end
            await second.write(rec(10, b"b"))
        assert pending[0].done()
        found = await everything(log)
        assert [r.dlsn for r in found[:3]] == acked
        assert [r.payload for r in found[3:]] == [b"in flight"] * min(kept, 1) + [b"b"]
        assert [r.sequence_id for r in found] == list(range(len(found)))


async def _nothing(lease: int) -> None:
    await trio.lowlevel.checkpoint()


async def test_a_fenced_writer_can_neither_roll_nor_close(
    world: World, autojump_clock: MockClock
) -> None:
    """H12, a zombie: its change meets another epoch at every step."""
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l", config={"segment_bytes_max": 100}).open_writer()
        await first.write(rec(1))
        second = await b.open_log("l").open_writer(takeover=True)
        before = world.metadata.state.revision

        keeper_of(first)._roll_reason = "the test wants it"
        keeper_of(first).wake()
        await trio.sleep(1)

        assert isinstance(first.error, WriterFenced)
        assert world.metadata.state.revision == before
        await second.aclose()


async def test_a_writer_that_does_nothing_learns_that_it_lost_the_log(
    world: World, autojump_clock: MockClock
) -> None:
    """Its lock goes to the other one; its next look at its lease tells."""
    async with world.process("alpha") as a, world.process("beta") as b:
        first = await a.open_log("l").open_writer()
        async with b.open_log("l").open_writer(takeover=True):
            await trio.sleep(30)
            assert isinstance(first.error, WriterFenced)


async def test_a_lost_lease_alone_stops_no_writer(world: World, autojump_clock: MockClock) -> None:
    """The lock is a courtesy; it is taken again when nobody else has it."""
    async with world.process("alpha") as a:
        async with a.open_log("l").open_writer() as writer:
            log_id = await a.resolve_name("l")
            await world.metadata.revoke_lease(writer._log_lock.lease)
            assert await world.metadata.get(lock_key(log_id)) is None
            await writer.write(rec(1))
            await trio.sleep(10)
            taken_again = await world.metadata.get(lock_key(log_id))
            assert taken_again is not None
            assert LockRecord.decode(taken_again.value).owner == "alpha"
            await writer.write(rec(2))
            await trio.sleep(60)  # and renewed
            assert await world.metadata.get(lock_key(log_id)) == taken_again
        assert await world.metadata.get(lock_key(log_id)) is None


async def test_a_janitor_at_the_state_disturbs_no_writer(
    world: World, autojump_clock: MockClock
) -> None:
    """H12: the version of the state is not ownership. A rolling writer lives with a busy janitor."""
    async with world.process("alpha") as ns:
        log = ns.open_log("l", config={"segment_bytes_max": 300})
        async with log.open_writer() as writer, trio.open_nursery() as nursery:
            key = state_key(await ns.resolve_name("l"))

            async def bump() -> None:
                while True:
                    found = await world.metadata.get(key)
                    assert found is not None
                    await world.metadata.transact(Transaction((), (Put(key, found.value),)))
                    await trio.sleep(0.0003)

            nursery.start_soon(bump)
            for i in range(60):
                await writer.write(rec(i, bytes(50)))
            nursery.cancel_scope.cancel()
        assert [r.txid for r in await everything(log)] == list(range(60))
        assert (await log.describe()).state.last_segment >= 5


async def test_recovery_waits_for_bookies_and_gives_up_in_time(
    world: World, autojump_clock: MockClock
) -> None:
    """G3: it may wait, it never guesses. The lock is free again afterwards, and nothing was decided."""
    async with world.process("alpha") as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write(rec(1))
        await writer.abort()
        world.ledgers.away = True
        began = trio.current_time()
        with pytest.raises(RecoveryIncomplete, match="30 s"):
            await log.open_writer()
        assert trio.current_time() - began == pytest.approx(30, abs=1)
        world.ledgers.away = False
        async with log.open_writer(wait_s=0) as writer:
            await writer.write(rec(2))
        assert [r.txid for r in await everything(log)] == [1, 2]


@pytest.mark.parametrize("applied", [False, True])
async def test_an_unknown_claim_is_looked_at_again(
    world: World, autojump_clock: MockClock, applied: bool
) -> None:
    """The random id of the writer in the state says whose transaction it was."""
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        original = world.metadata.transact

        async def unknown(transaction: Transaction):  # type: ignore[no-untyped-def]
            world.metadata.transact = original  # type: ignore[method-assign]
            if applied:
                await original(transaction)
            raise OutcomeUnknown("no answer")

        world.metadata.transact = unknown  # type: ignore[method-assign]
        opening = ns.open_log("l").open_writer()
        if applied:
            async with opening as writer:
                await writer.write(rec(1))
        else:
            with pytest.raises(OutcomeUnknown):
                await opening


async def test_many_takeovers_in_a_row(world: World, autojump_clock: MockClock) -> None:
    """G1, G4: each writer's acknowledged records, in the order of the epochs."""
    async with world.process("p") as ns:
        log = ns.open_log("l")
        expected, writers = [], []
        for epoch in range(6):
            writer = await log.open_writer(takeover=True)
            writers.append(writer)
            for i in range(4):
                await writer.write(rec(epoch, b"%d.%d" % (epoch, i)))
                expected.append(b"%d.%d" % (epoch, i))
        await writers[-1].aclose()
        assert [r.payload for r in await everything(log)] == expected
        state = (await log.describe()).state
        assert (state.epoch, state.first_open_segment, state.last_segment) == (6, 7, 6)
        for segment in range(1, 7):
            found = await world.metadata.get(segment_key(state.log_id, segment))
            assert found is not None
            record = SegmentRecord.decode(found.value)
            assert (record.epoch, record.closed, record.records) == (segment, True, 4)
            assert record.start_sequence_id == 4 * (segment - 1)
        assert LogState.decode(state.encode()) == state
