"""Merged segments: every position, id, txid and byte as before, whoever reads by whatever coordinates (H157);
nothing is given up before its copies are certain (H158)."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import (
    REPLACED_PREFIX,
    replaced_ledger_key,
    segment_key,
    state_key,
)
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_view import view_log
from distributedlog.log.segments import log_deletion as deletion
from distributedlog.log.segments import segment_purge as purge
from distributedlog.log.segments.replaced_ledgers import delete_replaced
from distributedlog.log.segments.segment_merge import MergeCandidate, merge_segments
from distributedlog.log.segments.segment_purge import last_purgeable_segment
from distributedlog.log.segments.segment_purge import purge as remove
from distributedlog.metadata.model.interface import Scan
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LogTruncated,
    OutcomeUnknown,
)
from tests.examples import examples, few
from tests.log.conftest import World
from tests.log.records import control_entry, everything, put, rec
from tests.log.segments.test_segment_link import segment, without_txids


async def records_of(world: World, ns: Namespace, name: str = "l") -> list[SegmentRecord]:
    return await ns.open_log(name).segments()


async def forget_old(world: World) -> int:
    """What merges have left is deleted, as the elected bookie does in time; how many ledgers."""
    gone = 0
    async for item in Scan(world.metadata, REPLACED_PREFIX):
        gone += await delete_replaced(world.metadata, world.ledgers, world.ledgers.delete_ops, item)
    return gone


async def filled(world: World, ns: Namespace, name: str = "l") -> Log:
    """Seven closed segments of every kind: written, empty, recovered with control entries, linked."""
    await ns.create_log(name, txids="count")
    log = ns.open_log(name)
    await put(log, 1, 2, 3)
    async with log.open_writer():
        pass
    writer = await log.open_writer()
    await writer.write_bulk([rec(4), rec(5)])
    ledger = next(w for w in world.ledgers.writers if not w.over and not w.closing)
    ledger.add(*control_entry(5, records_before=2))
    await trio.sleep(0.1)
    await writer.write(rec(6, bytes(300)))
    await writer.abort()
    async with log.open_writer() as writer:  # closes what was left
        await writer.write_bulk([rec(n) for n in range(7, 12)])
    await log.link_segments(
        [await segment(log, 12, 13, app="etl", version=1)], app="etl", version=1
    )
    tokens = [await without_txids(log, b"a", b"bc", b"d", app="etl", version=2)]
    await log.link_segments(tokens, app="etl", version=2)
    await put(log, 20, 21)
    return log


async def told(log: Log) -> list[Any]:
    """All that can be asked of a log, as far as it must stay."""
    found: list[Any] = [
        (r.dlsn, r.sequence_id, r.txid, r.payload, r.time_ms, r.written_ms)
        for r in await everything(log)
    ]
    dlsns = [one[0] for one in found]
    for dlsn, _, txid, _, time_ms, _ in list(found):
        async with log.open_reader(dlsn=dlsn, to="end") as reader:
            found.append([r.sequence_id async for r in reader])
        found.append((await log.find(txid=txid), await log.find(since=time_ms)))
        found.append((await log.count(dlsn), await log.count(None, dlsn)))
    first, last = await log.first_record(), await log.last_record()
    found += [first.payload, last.payload, await log.last_dlsn()]
    snapshot = await log.snapshot()
    found += [replace(one, ledger_id=0, base_entry=0) for one in snapshot.segments]
    described = await log.describe()
    found += [described.size_bytes, described.records]
    view = await view_log(
        log._context.metadata, log._context.ledgers, log.name, await log._resolve_log_id()
    )
    found += [await view.totals_between(one, other) for one in dlsns for other in dlsns]
    view.close()
    return found


async def test_nothing_that_anybody_can_ask_changes(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = await filled(world, ns)
        before = await told(log)
        assert len(before) > 100

        assert await log.merge_segments() == 7

        merged = await records_of(world, ns)
        assert len({one.ledger_id for one in merged}) == 1
        assert [one.base_entry for one in merged] == [0, 3, 3, 6, 7, 9, 12]
        assert await told(log) == before
        assert await forget_old(world) == 7
        assert await told(log) == before
        assert await log.merge_segments() == 0
        await put(log, 30)
        assert [r.txid for r in await everything(log)][-2:] == [21, 30]


@pytest.mark.properties
@settings(max_examples=examples(20))
@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=2, max_size=5), st.integers(0, 4))
def test_any_log_reads_the_same(steps: list[list[int]], truncated: int) -> None:
    """Segments of any length, also empty ones, truncated anywhere, merged twice."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            async with world.process() as ns:
                log, last, places = ns.open_log("l"), 0, []
                for segment in steps:
                    async with log.open_writer() as writer:
                        for step in segment:
                            last += step
                            many = [rec(last, b"%d" % last * step)] * (step + 1)
                            places += await writer.write_bulk(many)
                if not places:
                    return nursery.cancel_scope.cancel()
                await log.truncate(places[min(truncated, len(places) - 1)])
                before = await told(log)
                await log.merge_segments()
                await forget_old(world)
                assert await told(log) == before
            nursery.cancel_scope.cancel()

    trio.run(body, clock=MockClock(autojump_threshold=0))


# --- old coordinates, at every step (H157) --------------------------------------------------------


@pytest.mark.parametrize("step", range(9))
async def test_a_reader_that_is_open_goes_on(
    world: World, autojump_clock: MockClock, step: int
) -> None:
    """Merged when it has so many records, and the old ledgers deleted, all at once."""
    async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
        log = await filled(world, ns)
        expected = [(r.dlsn, r.payload) for r in await everything(log)]
        async with log.open_reader() as reader, log.open_reader(at="latest") as tail:
            found = await reader.read_bulk(step, wait_s=1.0) if step else []
            assert await tail.read_next(wait_s=1.0) is None
            await log.merge_segments()
            await forget_old(world)
            found += await reader.read_bulk(100, wait_s=1.0)
            await put(log, 40)
            found += await reader.read_bulk(100, wait_s=1.0)
            assert [(r.dlsn, r.payload) for r in found[:-1]] == expected
            last = await tail.read_next(wait_s=1.0)
            assert last is not None
            assert (found[-1].txid, last.txid) == (40, 40)


@pytest.mark.parametrize("step", range(5))
async def test_a_plan_is_read_wherever_its_segments_lie(
    world: World, autojump_clock: MockClock, step: int
) -> None:
    """Made before, opened before or after; its ledgers' ids are a hint."""
    async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
        log = await filled(world, ns)
        expected = [r.payload for r in await everything(log)]
        plan = [one.range() for one in (await log.snapshot()).segments]
        found: list[bytes] = []
        async with log.open_ranges(plan) as reader:
            for _ in range(step):
                columns = await reader.read_columns()
                assert columns is not None
                found += [r.payload for r in columns.records()]
            await log.merge_segments()
            await forget_old(world)
            async for columns in reader:
                found += [r.payload for r in columns.records()]
        assert found == expected
        async with log.open_ranges(plan) as reader:
            assert [r.payload async for c in reader for r in c.records()] == expected
        again = [one.range() for one in (await log.snapshot()).segments]
        assert [one.base_entry for one in again] != [0] * len(again)
        async with log.open_ranges(again) as reader:
            assert [r.payload async for c in reader for r in c.records()] == expected


async def test_a_view_that_is_kept_looks_anew(world: World, autojump_clock: MockClock) -> None:
    """A driver keeps it for hours; what it counts, finds and plans stays right."""
    async with world.process() as ns:
        log = await filled(world, ns)
        view = await view_log(ns.metadata, ns.ledgers, "l", await ns.resolve_name("l"))
        dlsns = [r.dlsn for r in await everything(log)]
        before = [await view.totals_between(view.earliest, dlsn) for dlsn in dlsns]
        found = [await view.first_with_txid(txid) for txid in range(1, 22)]
        fresh = await view_log(ns.metadata, ns.ledgers, "l", await ns.resolve_name("l"))
        await log.merge_segments()
        await forget_old(world)

        assert [await fresh.first_with_txid(txid) for txid in range(1, 22)] == found
        assert [await view.totals_between(view.earliest, dlsn) for dlsn in dlsns] == before
        assert [await view.first_with_txid(txid) for txid in range(1, 22)] == found
        view.close()
        fresh.close()


@pytest.mark.parametrize("step", range(4))
async def test_a_work_queue_goes_on(world: World, autojump_clock: MockClock, step: int) -> None:
    """With claims that were made before, by what it knew of the segments then, and new ones."""
    async with world.process() as ns:
        log = await filled(world, ns)
        expected = [(r.dlsn, r.payload) for r in await everything(log)]
        await log.seal()
        found = []
        with trio.fail_after(60):
            async with log.work_queue("q") as queue:
                held = [await queue.claim(bytes_max=1) for _ in range(step)]
                assert await log.merge_segments() == 7
                await forget_old(world)
                while (one := held.pop() if held else await queue.claim(bytes_max=1)) is not None:
                    async with one, one.open_reader() as reader:
                        found += [(r.dlsn, r.payload) async for c in reader for r in c.records()]
        assert sorted(found) == expected


async def test_a_log_of_bytes_is_read_at_every_offset(
    world: World, autojump_clock: MockClock
) -> None:
    """An open one over its old ledgers too."""
    async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
        await ns.create_log("l", txids="bytes")
        log, whole = ns.open_log("l"), b""
        for number in range(1, 4):
            async with log.open_byte_writer() as writer:
                await writer.write(bytes([number]) * number)
                whole += bytes([number]) * number
        async with log.open_byte_reader() as begun:
            first = await begun.read(1)
            assert await log.merge_segments() == 3
            await forget_old(world)
            assert first + await begun.read() == whole
        for offset in range(len(whole)):
            async with log.open_byte_reader(offset=offset) as reader:
                assert await reader.read() == whole[offset:]


Between = Callable[[int], Awaitable[None]]


class Stepped:
    """``transact`` of a world: before the ``nth`` from now on, something else is done."""

    def __init__(self, world: World, nth: int, do: Callable[[], Awaitable[object]]) -> None:
        self._world = world
        self._left = nth
        self._do = do
        self._original = world.metadata.transact
        self.done = False
        world.metadata.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> TransactionReply:
        self._left -= 1
        if self._left == 0:
            self.end()
            self.done = True
            await self._do()
        return await self._original(transaction)

    def end(self) -> None:
        self._world.metadata.transact = self._original  # type: ignore[method-assign]


async def roll(log: Log) -> None:
    await put(log, 50, 51)


async def cut(log: Log) -> None:
    await log.truncate(DLSN(4, 0, 2))


async def remove_front(world: World, log: Log) -> None:
    """A truncation, and its bytes."""
    await cut(log)
    log_id = await log._resolve_log_id()
    found = await world.metadata.get(state_key(log_id))
    assert found is not None
    upto = await last_purgeable_segment(world.metadata, LogState.decode(found.value))
    await remove(world.metadata, log_id, upto, world.ledgers.delete_ops)


async def link(log: Log) -> None:
    token = await segment(log, 60, 61, app="other", version=1)
    await log.link_segments([token], app="other", version=1)
    await log.link_segments([token], app="other", version=1)


OTHERS: dict[str, tuple[Callable[[World, Log], Awaitable[None]], list[int]]] = {
    "roll": (lambda world, log: roll(log), [*range(1, 14), 13, 13, 20, 21, 50, 51]),
    "truncate": (lambda world, log: cut(log), [*range(9, 14), 13, 13, 20, 21]),
    "purge": (remove_front, [*range(9, 14), 13, 13, 20, 21]),
    "link": (lambda world, log: link(log), [*range(1, 14), 13, 13, 20, 21, 60, 61]),
    "merge": (lambda world, log: _compact(log), [*range(1, 14), 13, 13, 20, 21]),
}


async def _compact(log: Log) -> None:
    await log.merge_segments()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("nth", few(range(1, 6), 1))
@pytest.mark.parametrize("merge_first", [True, False])
async def test_merging_beside_what_else_changes_a_log(
    world: World, autojump_clock: MockClock, name: str, nth: int, merge_first: bool
) -> None:
    """One of the two comes in before each transaction of the other: both are whole, or one says no."""
    other, expected = OTHERS[name]
    async with world.process() as ns:
        log = await filled(world, ns)
        txids = [r.txid for r in await everything(log)]
        assert txids == [*range(1, 17), 20, 21]
        expected = [*expected[: expected.index(13)], *txids[12:16], *expected[expected.index(20) :]]

        async def merge_it() -> None:
            await log.merge_segments()
            await forget_old(world)

        async def do_other() -> None:
            await other(world, log)

        inner, outer = (do_other, merge_it) if merge_first else (merge_it, do_other)
        stepped = Stepped(world, nth, inner)
        await outer()
        stepped.end()
        if not stepped.done:
            await inner()

        assert [r.txid for r in await everything(log)] == expected
        await log.merge_segments()
        await forget_old(world)
        assert [r.txid for r in await everything(log)] == expected
        await ns.delete_log("l")
        assert [item.key async for item in Scan(world.metadata, b"retired/")] == []
        left = [one.key async for one in Scan(world.metadata, b"ledger/")]
        assert not left or all([await _deleting(world, key) for key in left])


async def _deleting(world: World, key: bytes) -> bool:
    found = await world.metadata.get(key)
    return found is not None and found.value[1:].startswith(b"\xa8deleting")


async def test_a_deletion_meets_a_merge(world: World, autojump_clock: MockClock) -> None:
    """Before each transaction of it: nothing is left over, nobody is in the other's way for long."""
    for nth in range(1, 8):
        async with world.process() as ns:
            log = await filled(world, ns, f"l{nth}")
            log_id = await ns.resolve_name(f"l{nth}")

            async def merge_it(log: Log = log) -> None:
                with suppress(DistributedLogError):  # it is being deleted
                    await log.merge_segments()

            stepped = Stepped(world, nth, merge_it)
            await ns.delete_log(f"l{nth}")
            stepped.end()

            prefix = segment_key(log_id, 0)[:-16]
            assert [item async for item in Scan(world.metadata, prefix)] == []
            assert [item async for item in Scan(world.metadata, REPLACED_PREFIX)] == []
            left = [one.key async for one in Scan(world.metadata, b"ledger/")]
            assert all([await _deleting(world, key) for key in left])


async def test_a_shared_ledger_goes_with_its_last_segment(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By truncation step by step, and by a deletion in steps."""
    monkeypatch.setattr(purge, "SEGMENTS_AT_ONCE", 2)
    monkeypatch.setattr(deletion, "SEGMENTS_AT_ONCE", 2)
    async with world.process() as ns:
        log = await filled(world, ns)
        await log.merge_segments()
        await forget_old(world)
        await put(log, 50)
        shared = (await records_of(world, ns))[0].ledger_id
        log_id = await ns.resolve_name("l")
        for number in (2, 4, 6, 7):
            await log.truncate(DLSN(number + 1, 0, 0))
            await remove(world.metadata, log_id, number, world.ledgers.delete_ops)
            assert await _deleting(world, b"ledger/%016x" % shared) == (number == 7)
        assert [r.txid for r in await everything(log)] == [50]

        log = await filled(world, ns, "other")
        await log.merge_segments()
        await ns.delete_log("other")
        left = [one.key async for one in Scan(world.metadata, b"ledger/")]
        live = [key for key in left if not await _deleting(world, key)]
        assert len(live) == 1, "of the first log's last segment"


async def test_a_swap_whose_answer_is_lost_was_done_once(
    world: World, autojump_clock: MockClock
) -> None:
    """And one that was not done is done then."""
    for applied in (True, False):
        async with world.process() as ns:
            name = f"l{applied}"
            log = await filled(world, ns, name)
            expected = [r.payload for r in await everything(log)]
            original = world.metadata.transact
            lost: list[int] = []

            async def transact(
                transaction: Transaction,
                original: Any = original,
                lost: list[int] = lost,
                applied: bool = applied,
            ) -> TransactionReply:
                swap = any(one.key.startswith(REPLACED_PREFIX) for one in transaction.operations)
                if swap and not lost:
                    lost.append(1)
                    if applied:
                        await original(transaction)
                    raise OutcomeUnknown("no answer")
                return await original(transaction)  # type: ignore[no-any-return]

            world.metadata.transact = transact  # type: ignore[method-assign]
            assert await log.merge_segments() == 7
            world.metadata.transact = original  # type: ignore[method-assign]
            await forget_old(world)
            assert lost
            assert [r.payload for r in await everything(log)] == expected


# --- rot, replicas (H158) -------------------------------------------------------------------------


async def test_what_cannot_be_read_is_not_merged(world: World, autojump_clock: MockClock) -> None:
    """A flipped bit at the source, on all its replicas: an error, and all is as it was."""
    async with world.process() as ns:
        log = await filled(world, ns)
        before = await records_of(world, ns)
        world.ledgers.broken[before[3].ledger_id, 0] = "b1: its copy is damaged"

        with pytest.raises(CorruptData):
            await log.merge_segments()

        assert await records_of(world, ns) == before
        world.ledgers.broken.clear()
        assert await log.merge_segments() == 7


async def test_a_copy_that_is_not_what_was_read_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    """A flipped bit at the target, after it was durable and before it is looked at."""
    async with world.process() as ns:
        log = await filled(world, ns)
        before, expected = await records_of(world, ns), await everything(log)
        original = world.ledgers.different_copy

        async def flipped(ledger_id: int, digests: Any) -> str:
            entries = world.ledgers.stores[ledger_id].entries
            entries[4] = entries[4][:-1] + bytes([entries[4][-1] ^ 1])
            return await original(ledger_id, digests)

        world.ledgers.different_copy = flipped  # type: ignore[method-assign]
        with pytest.raises(CorruptData, match="They are not merged"):
            await log.merge_segments()
        world.ledgers.different_copy = original  # type: ignore[method-assign]

        assert await records_of(world, ns) == before
        assert await everything(log) == expected
        assert [item.key async for item in Scan(world.metadata, b"loose/")] == []
        assert await log.merge_segments() == 7


async def test_a_kill_at_any_step_leaves_the_log_whole(
    world: World, autojump_clock: MockClock
) -> None:
    """Whoever merges dies before each of its transactions: the next one does it."""
    async with world.process() as ns:
        log = await filled(world, ns)
        expected = [r.payload for r in await everything(log)]
        for nth in range(1, 4):
            async with world.process("dies") as other:
                scope = trio.CancelScope()

                async def die(scope: trio.CancelScope = scope) -> None:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

                stepped = Stepped(world, nth, die)
                with scope:
                    await other.open_log("l").merge_segments()
                stepped.end()
                assert scope.cancelled_caught
            assert [r.payload for r in await everything(log)] == expected
        assert await log.merge_segments() == 7
        assert [r.payload for r in await everything(log)] == expected


async def test_a_note_of_what_was_left_proves_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    """Whoever wrote it: a ledger in which a segment lies stays, and another log's too."""
    async with world.process() as ns:
        log = await filled(world, ns)
        await put(ns.open_log("other"), 1)
        ids = [one.ledger_id for one in await records_of(world, ns)]
        other = (await records_of(world, ns, "other"))[0].ledger_id
        log_id = await ns.resolve_name("l")
        forged = [Put(replaced_ledger_key(log_id, one), b"") for one in (*ids, other, 9999)]
        await world.metadata.transact(Transaction((), tuple(forged)))

        assert await forget_old(world) == 1, "the one that does not exist"

        assert len(await everything(log)) == 18
        assert len(await everything(ns.open_log("other"))) == 1
        assert [item async for item in Scan(world.metadata, REPLACED_PREFIX)] == []


# --- what is chosen -------------------------------------------------------------------------------


async def test_what_a_link_may_be_asked_for_again_stays_where_it_is(
    world: World, autojump_clock: MockClock
) -> None:
    """Linked without an application, the ledgers themselves say that they are in."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1)
        await put(log, 2)
        tokens = [await segment(log, 3), await segment(log, 4)]
        await log.link_segments(tokens)
        await put(log, 5)
        await put(log, 6)

        assert await log.merge_segments() == 4

        assert (await log.link_segments(tokens)).already
        assert [one.shares_ledger for one in await records_of(world, ns)] == [
            True, True, False, False, True, True,
        ]  # fmt: skip
        assert [r.txid for r in await everything(log)] == [1, 2, 3, 4, 5, 6]


async def test_a_few_and_the_newest_are_left_alone(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        for txid in range(10):
            await put(log, txid)
        log_id = await ns.resolve_name("l")

        assert await merge_segments(ns.context, log_id, newest_kept=3, segments_min=8) == 0
        assert await merge_segments(ns.context, log_id, newest_kept=3, segments_min=7) == 7
        await put(log, 10)
        assert [one.shares_ledger for one in await records_of(world, ns)] == [True] * 7 + [
            False
        ] * 4


def test_a_run_ends_where_it_would_grow_too_large_or_too_old() -> None:
    one = SegmentRecord(1, 1, 1, 0, 0, True, 1000, 1, 1, 1, 100, 0, 0, 0)

    def after(run: MergeCandidate, **different: Any) -> bool:
        last = run.members[-1]
        return run.accepts(replace(last, segment=last.segment + 1, **different))

    run = MergeCandidate(span_ms=500)
    run.add(one)
    assert after(run)
    assert after(run, closed_ms=1500)
    assert not after(run, closed_ms=1501)
    assert not after(run, closed=False)
    assert not after(run, size_bytes=65 << 20)
    assert not after(run, base_bytes=0)
    assert not after(run, unknown_fields=(1,))
    assert not run.accepts(replace(one, segment=3))
    for number in range(2, 257):
        run.add(replace(one, segment=number))
    assert not after(run)
    large = MergeCandidate()
    for number in range(1, 17):
        large.add(replace(one, segment=number, size_bytes=64 << 20))
    assert not after(large, size_bytes=1)


async def test_who_is_truncated_behind_a_merge_is_told(
    world: World, autojump_clock: MockClock
) -> None:
    """The point in the middle of a shared ledger: what is before it is refused, what is after it is there."""
    async with world.process() as ns:
        log = await filled(world, ns)
        await log.merge_segments()
        await forget_old(world)
        await log.truncate(DLSN(4, 0, 2))

        with pytest.raises(LogTruncated):
            await log.open_reader(dlsn=DLSN(4, 0, 1))
        assert [r.txid for r in await everything(log)] == [*range(9, 17), 20, 21]
        async with log.open_writer() as writer:
            await writer.write(LogRecord(30, b"x"))
        assert await log.count() == 11
