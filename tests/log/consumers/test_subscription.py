"""Subscriptions: where they go on, who holds them, which commits count (H155), and what these cost."""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.consumers.subscription import Subscription
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import position_key, subscriber_key
from distributedlog.log.model.position import Position
from distributedlog.log.services.named_positions import UNPROVEN, PositionRecord
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Delete, Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LogNotFound,
    LogRecreated,
    LogTruncated,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    QuorumUnreachable,
    SubscriptionLost,
)
from distributedlog.runtime.protocol.schema import NUMBER_MAX
from tests.log.conftest import World
from tests.log.records import put


async def take(subscription: Subscription, number: int) -> list[int]:
    """The txids of the next records."""
    found: list[int] = []
    for _ in range(number):
        record = await subscription.reader.read_next()
        assert record is not None
        found.append(record.txid)
    return found


def position_puts(world: World) -> list[int]:
    """From now on: how many positions each transaction wrote."""
    found: list[int] = []
    original = world.metadata.transact

    async def call(transaction: Transaction) -> TransactionReply:
        puts = [
            one
            for one in transaction.operations
            if isinstance(one, Put) and b"/position/" in one.key
        ]
        found.extend([len(puts)] * bool(puts))
        return await original(transaction)

    world.metadata.transact = call  # type: ignore[method-assign]
    return found


async def test_a_subscriber_goes_on_where_it_committed(
    world: World, autojump_clock: MockClock
) -> None:
    """Nothing commits by itself, least of all what was fetched and not given (H155)."""
    async with world.log("orders") as log:
        await put(log, *range(6))
        async with log.subscribe("a", wait_s=0) as subscription:
            assert await take(subscription, 2) == [0, 1]
        async with log.subscribe("a", wait_s=0) as subscription:
            assert await take(subscription, 2) == [0, 1]
            await subscription.commit()
            assert await take(subscription, 2) == [2, 3]
            assert await log.positions.holders() == {"a": "process"}
        assert await log.positions.holders() == {}
        async with log.subscribe("a", wait_s=0) as subscription:
            assert await take(subscription, 1) == [2]
            position = subscription.reader.position
            await subscription.commit(position, now=True)
            assert subscription.committed == await log.positions.get("a")
            assert await log.positions.proven("a") == position
            await subscription.commit()
            assert await take(subscription, 1) == [3]
        with pytest.raises(AlreadyClosed):
            await subscription.commit()
        await subscription.aclose()
        async with log.subscribe("b", at="latest") as late:
            await late.commit()
            await put(log, 9)
            assert await take(late, 1) == [9]


async def test_a_commit_that_says_nothing_new_tells_who_was_taken_over(
    world: World, autojump_clock: MockClock
) -> None:
    """H155: with ``now`` the answer is about this holder, also where there is nothing to write."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = a.open_log("orders")
        await a.create_log("orders")
        await put(log, *range(6))
        first = await log.subscribe("a")
        await take(first, 2)
        await first.commit(now=True)
        await first.commit(now=True)  # nothing new, and still its own
        async with b.open_log("orders").subscribe("a", takeover=True):
            with pytest.raises(SubscriptionLost, match="generation 1"):
                await first.commit(now=True)
            with pytest.raises(SubscriptionLost):  # noqa: PT012
                while True:
                    await first.reader.read_next(wait_s=0)
        second = await log.subscribe("a")
        await log.positions.delete("a")
        with pytest.raises(SubscriptionLost, match="deleted"):
            await second.commit(now=True)
        for one in (first, second):
            await one.abort()


async def test_a_subscribe_that_may_still_come_is_looked_for_while_it_may(
    world: World, autojump_clock: MockClock
) -> None:
    """Its position is deleted and made again: the version is as before, it is another one all the same."""
    async with world.process("alpha", lock_lease_s=3.0) as a:
        log = a.open_log("orders")
        await a.create_log("orders")
        await put(log, 1)
        kept = await log.subscribe("other")  # the session lives on
        await log.positions.advance("a", DLSN(1, 0, 0))
        original = world.metadata.transact
        late: list[Transaction] = []

        async def delayed(transaction: Transaction) -> TransactionReply:
            world.metadata.transact = original  # type: ignore[method-assign]
            late.append(transaction)
            await trio.lowlevel.checkpoint()
            raise OutcomeUnknown("no answer")

        world.metadata.transact = delayed  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await log.subscribe("a")
        await trio.sleep(5)
        await log.positions.delete("a")
        await log.positions.advance("a", DLSN(1, 0, 0))
        await trio.sleep(5)
        log_id = await a.resolve_name("orders")
        gets: list[bytes] = []
        get = world.metadata.get

        async def counted(key: bytes) -> Any:
            gets.append(key)
            return await get(key)

        world.metadata.get = counted  # type: ignore[method-assign]
        await trio.sleep(30)
        assert subscriber_key(log_id, "a") not in gets
        assert not (await original(late[0])).succeeded
        await kept.aclose()


async def test_what_was_committed_is_written_also_where_an_exception_ends_it(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        await put(log, 1, 2, 3)
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with log.subscribe("a") as subscription:
                await take(subscription, 1)
                await subscription.commit()
                await take(subscription, 1)
                raise ValueError("mine")
        async with log.subscribe("a", wait_s=0) as subscription:
            assert await take(subscription, 1) == [2]


async def test_a_subscription_has_one_holder(world: World, autojump_clock: MockClock) -> None:
    """A second one waits, is refused with a name, or takes over; the first one's commits count no more."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log, other = a.open_log("orders"), b.open_log("orders")
        await a.create_log("orders")
        await put(log, *range(6))
        first = await log.subscribe("a")
        await take(first, 2)
        await first.commit(now=True)
        with pytest.raises(OwnershipAcquireFailed, match="alpha"):
            await other.subscribe("a", wait_s=3)
        await take(first, 1)
        await first.commit()  # noted, and not written yet
        async with other.subscribe("a", takeover=True) as second:
            stands = await other.positions.get("a")
            with pytest.raises(SubscriptionLost, match="generation 1"):
                await first.commit(now=True)
            with pytest.raises(SubscriptionLost):
                await first.commit()
            with pytest.raises(SubscriptionLost):  # noqa: PT012
                while True:
                    await first.reader.read_next(wait_s=0)
            with pytest.raises(SubscriptionLost):
                await first.aclose()
            assert await other.positions.get("a") == stands
            assert await log.positions.holders() == {"a": "beta"}, (
                "the first one's end frees nothing"
            )
            assert await take(second, 2) == [2, 3]
            await second.commit()
        assert await log.positions.get("a") > stands  # type: ignore[operator]
        with trio.fail_after(3):
            await (await log.subscribe("a")).aclose()


async def test_a_holder_that_lost_its_lease_takes_its_lock_again_unless_another_has_it(
    world: World, autojump_clock: MockClock
) -> None:
    """H155: as after a pause longer than the lease; who was taken over learns it without a commit."""
    async with (
        world.process("alpha", lock_lease_s=3.0) as a,
        world.process("beta", lock_lease_s=3.0) as b,
    ):
        log = a.open_log("orders")
        await a.create_log("orders")
        await put(log, 1, 2)
        async with log.subscribe("mine"), log.subscribe("taken") as taken:
            log_id = await a.resolve_name("orders")
            lock = await world.metadata.get(subscriber_key(log_id, "mine"))
            assert lock is not None
            await world.metadata.revoke_lease(lock.lease)
            async with b.open_log("orders").subscribe("taken", wait_s=0):
                await trio.sleep(3)
                assert await log.positions.holders() == {"mine": "alpha", "taken": "beta"}
                with pytest.raises(SubscriptionLost):  # noqa: PT012
                    while True:
                        await taken.reader.read_next(wait_s=5)
                with pytest.raises(SubscriptionLost):
                    await taken.aclose()


async def test_a_lock_that_is_put_in_the_moment_of_a_subscribe_is_respected(
    world: World, autojump_clock: MockClock
) -> None:
    """As of a holder whose lease was gone, and who takes its lock again."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = a.open_log("orders")
        await a.create_log("orders")
        async with log.subscribe("s"):
            log_id = await a.resolve_name("orders")
            key = subscriber_key(log_id, "s")
            lock = await world.metadata.get(key)
            assert lock is not None
            await world.metadata.transact(Transaction((), (Delete(key),)))
            original = world.metadata.transact

            async def transact(transaction: Transaction) -> TransactionReply:
                world.metadata.transact = original  # type: ignore[method-assign]
                await original(Transaction((), (Put(key, lock.value, lock.lease),)))
                return await original(transaction)

            world.metadata.transact = transact  # type: ignore[method-assign]
            with pytest.raises(OwnershipAcquireFailed, match="alpha"):
                await b.open_log("orders").subscribe("s", wait_s=0)
            assert await log.positions.holders() == {"s": "alpha"}


async def test_a_subscribe_whose_answer_is_lost_is_not_taken_for_another_ones(
    world: World, autojump_clock: MockClock
) -> None:
    """H155: both have raised the same generation, and one of them was not done."""
    async with world.process("alpha") as a, world.process("beta") as b:
        await a.create_log("orders")
        await put(a.open_log("orders"), 1)
        async with a.open_log("orders").subscribe("s"):
            pass
        original = world.metadata.transact
        other: list[Subscription] = []

        async def transact(transaction: Transaction) -> TransactionReply:
            if any(b"/position/" in one.key for one in transaction.operations):
                world.metadata.transact = original  # type: ignore[method-assign]
                other.append(await b.open_log("orders").subscribe("s"))
                raise OutcomeUnknown("no answer")
            return await original(transaction)

        world.metadata.transact = transact  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await a.open_log("orders").subscribe("s")
        assert await a.open_log("orders").positions.holders() == {"s": "beta"}
        await take(other[0], 1)
        await other[0].commit(now=True)
        await other[0].aclose()


async def test_what_is_committed_while_it_is_written_is_written_too(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with world.log("orders") as log:
        await put(log, 1, 2)
        original = world.metadata.transact

        async def slow(transaction: Transaction) -> TransactionReply:
            await trio.sleep(1)
            return await original(transaction)

        for way in ("later", "close"):
            subscription = await log.subscribe(way)
            world.metadata.transact = slow  # type: ignore[method-assign]
            await take(subscription, 1)
            nursery.start_soon(partial(subscription.commit, now=True))
            await trio.sleep(0.5)
            await take(subscription, 1)
            await subscription.commit()
            if way == "later":
                await trio.sleep(4)
                assert await log.positions.get(way) == DLSN(1, 1, 1)
            await subscription.aclose()
            world.metadata.transact = original  # type: ignore[method-assign]
            assert await log.positions.get(way) == DLSN(1, 1, 1)


async def test_300_commits_cost_a_write_a_second(world: World, autojump_clock: MockClock) -> None:
    async with world.log("orders") as log:
        await put(log, *range(300))
        async with log.subscribe("a") as subscription:
            writes = position_puts(world)
            for _ in range(300):
                await take(subscription, 1)
                await subscription.commit()
                await trio.sleep(0.01)
            await trio.sleep(1)
            assert 3 <= len(writes) <= 4
            assert subscription.committed == await log.positions.get("a") == DLSN(1, 299, 1)


async def test_commits_are_written_once_per_commit_interval(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(commit_interval_s=5.0) as namespace:
        await namespace.create_log("orders")
        log = namespace.open_log("orders")
        await put(log, *range(100))
        async with log.subscribe("a") as subscription:
            writes = position_puts(world)
            for _ in range(100):
                await take(subscription, 1)
                await subscription.commit()
                await trio.sleep(0.1)
            assert 1 <= len(writes) <= 3


async def test_40_subscriptions_commit_in_one_write(
    world: World, autojump_clock: MockClock
) -> None:
    """One of them was taken over: the others' are written all the same."""
    async with world.process("alpha") as a, world.process("beta") as b:
        log = a.open_log("orders")
        await a.create_log("orders")
        await put(log, 1, 2)
        some = [await log.subscribe(f"s{n}") for n in range(40)]
        thief = await b.open_log("orders").subscribe("s7", takeover=True)
        writes = position_puts(world)
        for one in some:
            await take(one, 1)
            await one.commit()
        await trio.sleep(2)
        assert writes == [40, 39]  # the first is refused whole
        stand = await log.positions.list()
        assert stand.pop("s7") == DLSN(1, 0, 0)
        assert set(stand.values()) == {DLSN(1, 0, 1)}
        with pytest.raises(SubscriptionLost):
            await some[7].commit()
        for one in some:
            await one.abort()
        await thief.aclose()
        assert await log.positions.holders() == {}


async def test_a_commit_whose_answer_is_lost_or_late_is_written_once(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        await put(log, 1, 2, 3)
        original = world.metadata.transact
        fates = ["lost", "away", "done, and lost"]

        async def flaky(transaction: Transaction) -> TransactionReply:
            fate = fates.pop(0) if fates else ""
            if fate == "away":
                raise QuorumUnreachable("nobody answers")
            if fate == "lost":
                raise OutcomeUnknown("no answer")
            reply = await original(transaction)
            if fate:
                raise OutcomeUnknown("no answer")
            return reply

        async with log.subscribe("a") as subscription:
            await take(subscription, 2)
            world.metadata.transact = flaky  # type: ignore[method-assign]
            with pytest.raises(QuorumUnreachable):
                await subscription.commit(now=True)
            await trio.sleep(5)
            assert fates == []
            assert await log.positions.get("a") == subscription.committed == DLSN(1, 1, 1)
            await take(subscription, 1)
            await subscription.commit(now=True)
            assert await log.positions.get("a") == DLSN(1, 2, 1)


async def test_a_position_that_is_moved_by_hand_stays_and_one_that_is_deleted_ends_its_holder(
    world: World, autojump_clock: MockClock
) -> None:
    """Also where another one has subscribed to the new position of that name since."""
    async with world.process() as ns:
        log = ns.open_log("orders")
        await ns.create_log("orders")
        await put(log, *range(5))
        async with log.subscribe("a") as subscription:
            await take(subscription, 1)
            await log.positions.advance("a", DLSN(1, 3, 0))
            await subscription.commit(now=True)
            assert await log.positions.get("a") == DLSN(1, 3, 0)
            await take(subscription, 3)
            await subscription.commit(now=True)
            assert await log.positions.get("a") == DLSN(1, 3, 1)
        first = await log.subscribe("b")
        await log.positions.delete("b")
        second = await log.subscribe("b", takeover=True)
        await take(first, 1)
        with pytest.raises(SubscriptionLost):
            await first.commit(now=True)
        assert await log.positions.get("b") == DLSN(1, 0, 0)
        await second.aclose()
        await log.positions.delete("b")
        third = await log.subscribe("b")
        await log.positions.delete("b")
        await take(third, 1)
        with pytest.raises(SubscriptionLost, match="deleted"):
            await third.commit(now=True)
        await third.abort()
        await first.abort()


async def test_a_move_by_hand_that_is_late_is_of_the_position_that_it_saw(
    world: World, autojump_clock: MockClock
) -> None:
    """Not of one of the same name, made since and changed as often, which stands further (H155)."""
    async with world.log("orders") as log:
        await put(log, *range(9))
        first = await log.subscribe("a")
        transact, now = world.metadata.transact, trio.Event()

        async def late(transaction: Transaction) -> TransactionReply:
            world.metadata.transact = transact  # type: ignore[method-assign]
            now.set()
            await trio.sleep(5)
            return await transact(transaction)

        world.metadata.transact = late  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.positions.advance, "a", DLSN(1, 2, 0))
            await now.wait()
            await log.positions.delete("a")
            async with log.subscribe("a", at="latest", takeover=True) as second:
                stands = second.committed
                assert stands > DLSN(1, 2, 0)
                await trio.sleep(10)
                assert await log.positions.get("a") == stands
        await first.abort()


async def test_what_a_subscriber_is_told_of_its_log(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        with pytest.raises(LogNotFound):
            await log.subscribe("a")
        await ns.create_log("orders")
        await put(log, *range(5))
        for bad in ({"name": ""}, {"name": "a", "wait_s": -1}, {"name": "a", "at": "middle"}):
            with pytest.raises(InvalidRequest):
                await log.subscribe(**bad)
        async with log.subscribe("a") as subscription:
            with pytest.raises(InvalidRequest):
                await subscription.commit(DLSN(1, 0, 0))  # type: ignore[arg-type]
            with pytest.raises(LogRecreated):
                await subscription.commit(Position("0" * 16, DLSN(1, 0, 0), 3))
        await log.truncate(DLSN(1, 3, 0))
        with pytest.raises(LogTruncated, match="3 records"):
            await log.subscribe("a", wait_s=0)
        assert await log.positions.holders() == {}, "it was let go again"
        await log.positions.advance("a", DLSN(1, 3, 0))
        assert await log.positions.proven("a") is None
        async with log.subscribe("a", wait_s=0) as subscription:
            await subscription.commit(now=True)  # nothing was given: nothing is noted
            assert await take(subscription, 1) == [3]
            await subscription.commit(now=True)
            assert await log.positions.proven("a") is not None
            async with log.work_queue("q"):
                await ns.delete_log("orders")
        log_id = int(subscription.reader.incarnation, 16)
        prefix = b"log/%016x/" % log_id
        assert (await world.metadata.range(prefix, prefix_end(prefix))).items == ()


async def test_a_position_that_nobody_subscribed_to_is_written_as_before(
    world: World, autojump_clock: MockClock
) -> None:
    """H149: an older program reads it, and refuses one whose generation it would drop."""
    record = PositionRecord(DLSN(1, 2, 3), 9, 4, 5)

    assert record.encode().hex() == "950393010203090405"
    assert PositionRecord(DLSN(1, 2, 3), 9, 4, 5, 2).encode().hex() == "96049301020309040502"
    with pytest.raises(InvalidRequest, match="not stored"):  # from such a one there is no next
        PositionRecord(DLSN(1, 2, 3), 9, 4, 5, NUMBER_MAX).encode()
    async with world.log("orders") as log:
        await put(log, 1)
        async with log.subscribe("a"):
            await log.positions.advance("a", DLSN(1, 0, 1))
        log_id = int((await log.snapshot()).incarnation, 16)
        found = await world.metadata.get(position_key(log_id, "a"))
        assert found is not None
        assert PositionRecord.decode(found.value).generation == 1, "who moves it keeps the fence"
        assert PositionRecord.decode(found.value).sequence_id == UNPROVEN


async def test_a_cancelled_subscribe_leaves_no_lock(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with world.log("orders") as log:
        await put(log, 1)
        held = await log.subscribe("a")
        with trio.move_on_after(1):
            await log.subscribe("a")
        await held.aclose()
        for steps in range(1, 12):
            with trio.CancelScope() as scope:

                async def subscribe(scope: trio.CancelScope = scope) -> Any:
                    return await log.subscribe("a", wait_s=0)

                nursery.start_soon(_cancel_after, steps, scope)
                opened = await subscribe()
                scope.shield = True
                await opened.aclose()
            await trio.sleep(15)
            assert await log.positions.holders() == {}, steps


async def _cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    if not scope.shield:
        scope.cancel()
