"""Work queues: who gets what, what becomes of it when a worker dies or fails (H156); what it costs."""

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.consumers.work_queue import WorkClaim, WorkQueue
from distributedlog.log.consumers.work_state import WorkState
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import work_key, worker_key
from distributedlog.log.read.log_snapshot import take_snapshot
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    ClaimLost,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    LogTruncated,
    OutcomeUnknown,
    QuorumUnreachable,
)
from tests.examples import few
from tests.log.conftest import World
from tests.log.records import put, rec

ENTRY = 100  # bytes, so that a stretch of so many has one entry


async def txids_of(claim: WorkClaim) -> list[int]:
    async with claim.open_reader() as reader:
        return [record.txid async for columns in reader for record in columns.records()]


async def some_log(world: World, namespace: Any, count: int = 10) -> Log:
    """Records of 100 bytes, an entry each, in two segments and one that is open for as long as the world."""
    log: Log = namespace.open_log("orders")
    await namespace.create_log("orders")
    for first in (0, count // 2):
        async with log.open_writer() as writer:
            for txid in range(first, first + count // 2):
                await writer.write(LogRecord(txid, bytes(ENTRY)))
    return log


async def claimed(queue: WorkQueue, *, wait_s: float | None = 0) -> WorkClaim:
    claim = await queue.claim(bytes_max=ENTRY, wait_s=wait_s)
    assert claim is not None
    return claim


def work_puts(world: World) -> list[Sequence[Any]]:
    """From now on: the transactions that write a work queue."""
    found: list[Sequence[Any]] = []
    original = world.metadata.transact

    async def call(transaction: Transaction) -> TransactionReply:
        if any(isinstance(one, Put) and b"/work/" in one.key for one in transaction.operations):
            found.append(transaction.operations)
        return await original(transaction)

    world.metadata.transact = call  # type: ignore[method-assign]
    return found


async def test_workers_share_a_log_and_each_record_is_handled(
    world: World, autojump_clock: MockClock
) -> None:
    """Over segments, with what is written meanwhile, up to the end of a sealed log."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        handled: list[int] = []

        async def work(namespace: Any, tasks: int) -> None:
            async with namespace.open_log("orders").work_queue("q") as queue:

                async def one() -> None:
                    while (claim := await queue.claim(bytes_max=3 * ENTRY)) is not None:
                        async with claim:
                            handled.extend(await txids_of(claim))
                            await trio.sleep(0.3)

                async with trio.open_nursery() as nursery:
                    for _ in range(tasks):
                        nursery.start_soon(one)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, a, 3)
                nursery.start_soon(work, b, 2)
                await trio.sleep(5)
                assert sorted(handled) == list(range(10))
                async with log.open_writer() as writer:
                    for txid in range(10, 20):
                        await writer.write(LogRecord(txid, bytes(ENTRY)))
                        await trio.sleep(0.2)
                await log.seal()
        assert sorted(handled) == list(range(20))
        state = (await log.work_queues())["q"]
        assert (state.items, state.set_aside_items) == ((), ())
        assert state.floor >= DLSN(3, 10, 0)
        log_id = await a.resolve_name("orders")
        prefix = b"log/%016x/worker/" % log_id
        assert (await world.metadata.range(prefix, prefix_end(prefix))).items == ()


async def test_what_a_dead_worker_had_is_another_ones(
    world: World, autojump_clock: MockClock
) -> None:
    """Not before its key is gone (H156)."""
    async with world.process("beta") as b:
        log = await some_log(world, b)
        async with log.work_queue("q") as queue:
            async with world.process("alpha", lock_lease_s=9.0) as a:
                theirs = await a.open_log("orders").work_queue("q")
                first, second = await claimed(theirs), await claimed(theirs)
                await first.done()
                mine = await claimed(queue)
                assert (mine.number, mine.tries) == (3, 1)
            assert await queue.claim(bytes_max=10**6, wait_s=0) is not None
            assert await queue.claim(wait_s=0) is None
            began = trio.current_time()
            again = await claimed(queue, wait_s=60)
            assert 5 < trio.current_time() - began < 12
            assert (again.first, again.end, again.tries) == (second.first, second.end, 2)
            assert again.number > second.number
            assert await txids_of(again) == [1]


async def test_a_worker_that_was_taken_for_dead_finishes_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    """H156: its key was gone for a moment, as after a pause."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        async with log.work_queue("q") as slow, b.open_log("orders").work_queue("q") as quick:
            taken, other = await claimed(slow), await claimed(slow)
            key = await world.metadata.get(
                worker_key(await a.resolve_name("orders"), "q", slow._worker_id)
            )
            assert key is not None
            await world.metadata.revoke_lease(key.lease)
            again = await claimed(quick)
            assert again.first == taken.first
            await trio.sleep(20)  # it has its key again
            await again.done()
            with pytest.raises(ClaimLost):
                await taken.done()
            with pytest.raises(ClaimLost):
                await taken.extend()
            with pytest.raises(ClaimLost):
                await taken.release()
            with pytest.raises(ClaimLost):
                await other.done()
            again = await claimed(slow)
            assert (again.first, again.tries) == (other.first, 2)
            await again.done()
            await quick.aclose()


async def test_claims_are_given_back_late_or_by_an_exception(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = await some_log(world, ns)
        async with log.work_queue("q", claim_s=10) as queue:
            slow, kept = await claimed(queue), await claimed(queue)
            await trio.sleep(7)
            await kept.extend()
            await trio.sleep(7)
            with pytest.raises(ClaimLost):
                await slow.done()
            with pytest.raises(ClaimLost):
                await slow.extend()
            await kept.done()
            first = await claimed(queue)
            assert (first.first, first.tries) == (slow.first, 2)
            await first.release(delay_s=5)
            other = await claimed(queue)
            assert other.first != first.first
            await trio.sleep(6)
            with pytest.raises(ValueError, match="mine"):  # noqa: PT012
                async with await claimed(queue) as last:
                    assert (last.first, last.tries) == (first.first, 3)
                    raise ValueError("mine")
            async with await claimed(queue) as last:
                assert (last.first, last.tries) == (first.first, 4)
            with pytest.raises(ClaimLost):
                await last.done()
            for bad in (-1.0, float("inf"), float("nan")):
                with pytest.raises(InvalidRequest):
                    await other.release(bad)
        with pytest.raises(AlreadyClosed):
            await queue.claim()
        async with log.work_queue("q") as queue:
            assert (await claimed(queue)).first == other.first, (
                "given back by the end of the process"
            )


async def test_what_always_fails_is_parked_and_holds_nothing_up(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = await some_log(world, ns)
        async with log.work_queue("q", tries_max=3) as queue:
            for _ in range(3):
                await (await claimed(queue)).release()
            while (claim := await queue.claim(wait_s=0)) is not None:
                await claim.done()
            state = await queue.state()
            assert state.floor == state.next_unclaimed == DLSN(3, 0, 0)
            (parked,) = state.dead_lettered
            assert (parked.first, parked.tries) == (DLSN(1, 0, 0), 3)
            for call in (queue.retry, queue.drop):
                with pytest.raises(InvalidRequest, match="dead-lettered"):
                    await call(parked.number + 1)
            await queue.retry(parked.number)
            again = await claimed(queue)
            assert (again.tries, await txids_of(again)) == (1, [0])
            for _ in range(2):
                await again.release()
                again = await claimed(queue)
            await again.release()
            (parked,) = (await queue.state()).dead_lettered
            await queue.drop(parked.number)
            assert (await log.work_queues())["q"].set_aside_items == ()


async def test_what_is_asked_at_once_is_one_write(world: World, autojump_clock: MockClock) -> None:
    """Ten workers' claims, then their ends and next claims."""
    async with world.process() as ns:
        log = await some_log(world, ns, 100)
        async with log.work_queue("q") as queue:
            writes = work_puts(world)
            claims: list[WorkClaim] = []

            async def claim() -> None:
                claims.append(await claimed(queue))

            async def finish(one: WorkClaim) -> None:
                await one.done()

            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(claim)
            assert len(writes) <= 2
            assert len({one.first for one in claims}) == 10
            async with trio.open_nursery() as nursery:
                for one in claims:
                    nursery.start_soon(finish, one)
                for _ in range(10):
                    nursery.start_soon(claim)
            assert len(writes) <= 4


async def test_at_most_128_claims_are_open(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = await some_log(world, ns, 140)
        async with log.work_queue("q") as queue:
            claims = [await claimed(queue) for _ in range(128)]
            assert await queue.claim(wait_s=0) is None
            await claims[50].done()
            assert (await claimed(queue)).first == DLSN(2, 58, 0)


@pytest.mark.parametrize("fate", ["lost", "done, and lost", "away"])
async def test_an_answer_that_is_lost_loses_no_stretch(
    world: World, autojump_clock: MockClock, fate: str
) -> None:
    async with world.process() as ns:
        log = await some_log(world, ns)
        async with log.work_queue("q") as queue:
            original = world.metadata.transact
            fates: list[str] = []

            async def flaky(transaction: Transaction) -> TransactionReply:
                now = fates.pop() if fates else ""
                if now == "away":
                    raise QuorumUnreachable("nobody answers")
                reply = None if now == "lost" else await original(transaction)
                if now or reply is None:
                    raise OutcomeUnknown("no answer")
                return reply

            world.metadata.transact = flaky  # type: ignore[method-assign]
            seen: set[DLSN] = set()
            for number in range(10):
                fates.append(fate)
                try:
                    claim = await claimed(queue)
                except QuorumUnreachable:
                    claim = await claimed(queue)
                assert (claim.first, claim.tries) == (DLSN(1 + number // 5, number % 5, 0), 1)
                seen.add(claim.first)
                fates.append(fate)
                try:
                    await claim.done()
                except QuorumUnreachable:
                    await claim.done()
            assert len(seen) == 10
            assert await queue.claim(wait_s=0) is None
            assert (await queue.state()).floor == DLSN(3, 0, 0)


async def test_a_claim_that_nobody_takes_is_the_next_ones(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = await some_log(world, ns)
        for steps in range(1, 30):
            async with log.work_queue(f"q{steps}") as queue:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:

                        async def cancel(
                            count: int = steps, scope: trio.CancelScope = scope
                        ) -> None:
                            for _ in range(count):
                                await trio.lowlevel.checkpoint()
                            scope.cancel()

                        nursery.start_soon(cancel)
                        await claimed(queue)
                        nursery.cancel_scope.cancel()
                if scope.cancelled_caught:
                    assert (await claimed(queue)).first == DLSN(1, 0, 0)


async def test_what_was_truncated_is_told_once_and_not_passed_over(
    world: World, autojump_clock: MockClock
) -> None:
    """G6: as a stretch of its own, which its worker accepts."""
    async with world.process() as ns:
        log = await some_log(world, ns)
        async with log.work_queue("q") as queue:
            first = await claimed(queue)
            await log.truncate(DLSN(2, 1, 0))
            with pytest.raises(LogTruncated):
                await txids_of(first)
            async with first.open_reader(rest=True) as reader:
                assert [columns async for columns in reader] == []
            await first.done()
            lost = await queue.claim(wait_s=0)
            assert lost is not None
            assert (lost.first, lost.end) == (DLSN(1, 1, 0), DLSN(2, 1, 0))
            with pytest.raises(LogTruncated):
                await txids_of(lost)
            await lost.done()
            rest = await queue.claim(wait_s=0)
            assert rest is not None
            assert await txids_of(rest) == [6, 7, 8, 9]
            await log.truncate(DLSN(2, 3, 0))
            with pytest.raises(LogTruncated):
                await txids_of(rest)
            async with rest.open_reader(rest=True) as reader:
                left = [record.txid async for one in reader for record in one.records()]
            assert left == [8, 9]


async def test_where_a_queue_begins_and_how_it_ends(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        with pytest.raises(LogNotFound):
            await log.work_queue("q")
        await some_log(world, ns)
        for bad in ({"at": "middle"}, {"tries_max": 0}, {"claim_s": 0}, {"name": ""}):
            with pytest.raises(InvalidRequest):
                await log.work_queue(**{"name": "q", **bad})  # type: ignore[arg-type]
        async with log.work_queue("late", at="latest") as queue:
            with pytest.raises(InvalidRequest):
                await queue.claim(bytes_max=0)
            assert await queue.claim(wait_s=1) is None
            async with log.open_writer() as writer:
                await writer.write(rec(77))
                await writer.commit()
                with trio.fail_after(3):
                    claim = await queue.claim()
                assert claim is not None
                assert await txids_of(claim) == [77]
                await claim.done()
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:

                    async def until_the_end() -> None:
                        assert [one async for one in queue] == []

                    nursery.start_soon(until_the_end)
                    await trio.sleep(3)
                    await log.seal()
        assert set(await log.work_queues()) == {"late"}
        async with log.work_queue("gone") as queue:
            assert await log.delete_work_queue("gone") is True
            assert await log.delete_work_queue("gone") is False
            for call in (queue.claim(wait_s=0), queue.state()):
                with pytest.raises(LogNotFound, match="gone"):
                    await call
        await put(ns.open_log("other"), 1)
        async with ns.open_log("other").work_queue("q") as queue:
            await ns.delete_log("other")
            with trio.fail_after(10), pytest.raises(LogNotFound):
                await queue.claim()


async def test_a_worker_that_shows_again_before_its_work_is_given_away_keeps_it(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H156: that it is gone is a condition of the transaction, not a look before it."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        async with log.work_queue("q") as slow, b.open_log("orders").work_queue("q") as quick:
            mine = await claimed(slow)
            key = worker_key(await a.resolve_name("orders"), "q", slow._worker_id)
            shown = await world.metadata.get(key)
            assert shown is not None
            original = world.metadata.transact

            async def late(transaction: Transaction) -> TransactionReply:
                if any(
                    isinstance(one, Put) and b"/work/" in one.key for one in transaction.operations
                ):
                    world.metadata.transact = original  # type: ignore[method-assign]
                    await original(Transaction((), (Put(key, shown.value),)))
                return await original(transaction)

            monkeypatch.setattr(slow._presence, "reacquire", trio.lowlevel.checkpoint)
            await world.metadata.revoke_lease(shown.lease)
            world.metadata.transact = late  # type: ignore[method-assign]
            assert (await claimed(quick)).first == DLSN(1, 1, 0)
            await mine.done()


async def test_a_worker_of_a_queue_that_is_gone_shows_no_more(
    world: World, autojump_clock: MockClock
) -> None:
    """Whose lease was lost meanwhile: else its key lies there for ever, for nobody reads it."""
    async with world.process("alpha") as ns:
        log = await some_log(world, ns)
        async with log.work_queue("q") as queue:
            key = worker_key(await ns.resolve_name("orders"), "q", queue._worker_id)
            shown = await world.metadata.get(key)
            assert shown is not None
            await log.delete_work_queue("q")
            await world.metadata.revoke_lease(shown.lease)
            await trio.sleep(10)
            assert await world.metadata.get(key) is None


class Flaky:
    """A store of which some answers are lost, of what was done and of what was not, until it heals."""

    def __init__(self, world: World, chance: Random) -> None:
        self._original = world.metadata.transact
        self._chance = chance
        self.heals_at = float("inf")
        world.metadata.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> TransactionReply:
        fate = self._chance.random()
        await trio.sleep(self._chance.choice([0.0, 0.01, 0.2]))
        if trio.current_time() < self.heals_at:
            if fate < 0.08:
                raise OutcomeUnknown("no answer")
            if fate < 0.16:
                raise QuorumUnreachable("nobody answers")
        reply = await self._original(transaction)
        if fate > 0.92 and trio.current_time() < self.heals_at:
            raise OutcomeUnknown("no answer")
        return reply


@pytest.mark.parametrize("seed", few(range(4), 1))
async def test_workers_that_die_under_lost_answers_handle_every_record(
    world: World, autojump_clock: MockClock, seed: int
) -> None:
    """H156: at least once, to the end; what is tried in vain is parked and tried again by hand."""
    chance = Random(seed)
    handled: list[int] = []
    async with world.process("main") as main:
        log = await some_log(world, main, 40)
        await log.seal()
        flaky = Flaky(world, chance)

        async def work(claim: WorkClaim) -> None:
            txids = await txids_of(claim)
            await trio.sleep(chance.choice([0.1, 1.0, 3.0]))
            if chance.random() < 0.15:
                await claim.release(chance.choice([0.0, 2.0]))
                return
            handled.extend(txids)
            await claim.done()

        async def worker(namespace: Any) -> None:
            async with namespace.open_log("orders").work_queue("q", claim_s=20) as queue:

                async def one() -> None:
                    ended = False
                    while not ended:
                        try:
                            claim = await queue.claim(bytes_max=3 * ENTRY)
                            ended = claim is None
                            if claim is not None:
                                await work(claim)
                        except DistributedLogError:
                            await trio.sleep(0.1)

                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(one)

        async def lives(number: int) -> None:
            """Processes one after the other, each killed after a while; the last one is not."""
            for _ in range(3):
                with trio.move_on_after(chance.uniform(0.5, 6)):
                    async with world.process(f"p{number}", lock_lease_s=3.0) as namespace:
                        while True:
                            with suppress(DistributedLogError):
                                await worker(namespace)
                                break
            async with world.process(f"p{number}", lock_lease_s=3.0) as namespace:
                with trio.fail_after(600):
                    flaky.heals_at = min(flaky.heals_at, trio.current_time() + 20)
                    while True:
                        with suppress(DistributedLogError):
                            await worker(namespace)
                            break

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(lives, number)
        flaky.heals_at = 0.0
        state = (await log.work_queues())["q"]
        for parked in state.dead_lettered:
            async with log.work_queue("q") as queue:
                await queue.retry(parked.number)
                claim = await queue.claim(wait_s=0)
                assert claim is not None
                handled.extend(await txids_of(claim))
                await claim.done()
        assert set(handled) == set(range(40))
        assert (state.items, state.claims) == ((), [])
        assert state.floor == DLSN(3, 0, 0)


async def test_a_stretch_beyond_the_logs_end_is_not_read(
    world: World, autojump_clock: MockClock
) -> None:
    """H141: what somebody wrote into the queue's value by hand shows no entry that is not confirmed."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        async with b.open_log("orders").open_writer() as writer, log.work_queue("q") as queue:
            for txid in (10, 11):
                await writer.write(LogRecord(txid, bytes(ENTRY)))
            key = work_key(await a.resolve_name("orders"), "q")
            for lie, count in ((DLSN(3, 3, 0), 0), (DLSN(4, 0, 0), 0), (DLSN(3, 2, 0), 2)):
                state = WorkState(DLSN(3, 0, 0), 0).with_item_to(lie)
                await world.metadata.transact(Transaction((), (Put(key, state.encode()),)))
                world.ledgers.held = True
                await writer.submit(LogRecord(12, bytes(ENTRY)))  # sent, and nowhere yet
                await trio.sleep(1)
                claim = await claimed(queue)
                assert claim.end == lie
                if count:
                    assert await txids_of(claim) == [10, 11]
                else:
                    with pytest.raises(CorruptData, match=f"ends at {lie}, .* up to 3.2.0"):
                        await txids_of(claim)
                await claim.done()
            world.ledgers.release()


async def test_a_stretch_of_ones_own_asks_no_bookie_how_far_the_log_goes(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked when the stretch was cut."""
    async with world.process("alpha") as a:
        log = await some_log(world, a)
        async with log.work_queue("q") as queue:
            await (await claimed(queue)).done()
            looks: list[int] = []

            async def counted(*given: Any, **more: Any) -> Any:
                looks.append(1)
                return await take_snapshot(*given, **more)

            monkeypatch.setattr("distributedlog.log.consumers.work_queue.take_snapshot", counted)
            for txid in range(1, 5):
                async with await claimed(queue) as claim:
                    assert await txids_of(claim) == [txid]
            assert looks == []


async def test_a_claim_that_nobody_takes_goes_back_to_others(
    world: World, autojump_clock: MockClock
) -> None:
    """Of who gave up while it was granted, and asks no more: within a second, as if never claimed."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        cancelled = 0
        for steps in range(1, 30):
            name = f"q{steps}"
            async with (
                log.work_queue(name) as mine,
                b.open_log("orders").work_queue(name) as theirs,
            ):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:

                        async def cancel(
                            count: int = steps, scope: trio.CancelScope = scope
                        ) -> None:
                            for _ in range(count):
                                await trio.lowlevel.checkpoint()
                            scope.cancel()

                        nursery.start_soon(cancel)
                        await claimed(mine)
                        nursery.cancel_scope.cancel()
                if scope.cancelled_caught:
                    cancelled += 1
                    await trio.sleep(3)
                    again = await claimed(theirs)
                    assert (again.first, again.tries) == (DLSN(1, 0, 0), 1)
        assert cancelled > 3


async def test_what_is_late_goes_back_though_the_store_was_away(
    world: World, autojump_clock: MockClock
) -> None:
    """Nobody asks for it a second time: the queue does, when somebody answers again."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        theirs = await b.open_log("orders").work_queue("q")
        async with log.work_queue("q", claim_s=10.0) as queue:
            late, delayed = await claimed(queue), await claimed(queue)
            await delayed.release(delay_s=12.0)
            original = world.metadata.transact

            async def away(transaction: Transaction) -> TransactionReply:
                raise QuorumUnreachable("nobody answers")

            world.metadata.transact = away  # type: ignore[method-assign]
            with pytest.raises(QuorumUnreachable):
                await claimed(queue)
            await trio.sleep(30)
            world.metadata.transact = original  # type: ignore[method-assign]
            await trio.sleep(5)
            again = {(await claimed(theirs)).first for _ in range(2)}
            assert again == {late.first, delayed.first}


async def test_a_queue_that_is_closed_while_nobody_answers_is_gone(
    world: World, autojump_clock: MockClock
) -> None:
    """Its task ends, and its key goes: what it had claimed is another one's."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = await some_log(world, a)
        theirs = await b.open_log("orders").work_queue("q")
        original = world.metadata.transact

        async def silent(transaction: Transaction) -> TransactionReply:
            await trio.sleep(20)
            return await original(transaction)

        queue = await log.work_queue("q")
        mine = await claimed(queue)
        world.metadata.transact = silent  # type: ignore[method-assign]
        await queue.aclose()
        world.metadata.transact = original  # type: ignore[method-assign]
        with pytest.raises(AlreadyClosed):
            await queue.claim(wait_s=0)
        await trio.sleep(30)
        assert (await claimed(theirs)).first == mine.first
