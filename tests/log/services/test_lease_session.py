"""The lease that the locks of one process share: what it costs, what the end of one lock does (H35)."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log import namespace
from distributedlog.log.model.lock_record import LockRecord
from distributedlog.log.model.log_keys import lock_key, state_key
from distributedlog.log.namespace import Namespace
from distributedlog.log.services import lease_session as lock_session
from distributedlog.log.takeover.log_lock import acquire_log_lock
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.metadata.model.transaction import (
    Compare,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    QuorumUnreachable,
    TooBusy,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.records import rec

LEASE_S = 9.0


async def open_all(namespace: Namespace, count: int) -> list[LogWriter]:
    """Writers of logs l0, l1, ..., opened at once."""
    writers: dict[int, LogWriter] = {}

    async def open_one(number: int) -> None:
        writers[number] = await namespace.open_log(f"l{number}").open_writer()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(open_one, number)
    return [writers[number] for number in range(count)]


async def lock_of(world: World, writer: LogWriter) -> KeyValue | None:
    return await world.metadata.get(lock_key(writer._log_lock.writer_state.log_id))


async def owner_of(world: World, writer: LogWriter) -> str:
    found = await lock_of(world, writer)
    return "" if found is None else LockRecord.decode(found.value).owner


def counted(world: World, *names: str) -> Counter[str]:
    """Count calls of the metadata."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        original: Callable[..., Awaitable[Any]] = getattr(world.metadata, name)

        async def call(*arguments: Any) -> Any:
            calls[name] += 1
            return await original(*arguments)

        setattr(world.metadata, name, call)

    for name in names:
        count(name)
    return calls


async def test_many_writers_renew_one_lease(world: World, autojump_clock: MockClock) -> None:
    """One grant and one renewal an interval, whatever the number of logs; the last one ends the lease."""
    calls = counted(world, "grant_lease", "renew_lease", "revoke_lease", "transact")
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        writers = await open_all(a, 40)
        assert len(world.metadata.state.leases) == 1
        calls["transact"] = 0

        await trio.sleep(100 * LEASE_S / 3 + 0.1)

        assert (calls["grant_lease"], calls["renew_lease"], calls["transact"]) == (1, 100, 0)
        assert {await owner_of(world, writer) for writer in writers} == {"alpha"}
        for writer in writers:
            await writer.aclose()
        assert world.metadata.state.leases == {}
        assert calls["revoke_lease"] == 1
        await trio.sleep(60)
        assert calls["renew_lease"] == 100


async def test_a_writer_that_closes_frees_its_own_log_alone(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as a, world.process("beta") as b:
        first, second, third = await open_all(a, 3)
        before = [await lock_of(world, one) for one in (first, third)]

        await second.aclose()

        assert await lock_of(world, second) is None
        assert [await lock_of(world, one) for one in (first, third)] == before
        async with b.open_log("l1").open_writer(wait_s=0):
            pass
        with pytest.raises(OwnershipAcquireFailed):
            await b.open_log("l0").open_writer(wait_s=0)
        await first.write(rec(1))


async def test_a_takeover_of_one_log_leaves_the_others_alone(
    world: World, autojump_clock: MockClock
) -> None:
    """The taker's key is its own: the process that lost the log neither keeps it alive nor deletes it."""
    async with world.process("beta") as b:
        async with world.process("alpha") as a:
            first, second = await open_all(a, 2)
            kept = await lock_of(world, first)
            taker = await b.open_log("l1").open_writer(takeover=True)
            with pytest.raises(WriterFenced):
                await second.write(rec(1))
            await second.abort()
            await trio.sleep(30)

            assert await owner_of(world, taker) == "beta"
            assert await lock_of(world, first) == kept
            await first.write(rec(1))
        await trio.sleep(30)  # alpha is killed: what it held is free, beta's is not
        assert await owner_of(world, taker) == "beta"
        assert await lock_of(world, first) is None
        await taker.write(rec(1))
        await taker.aclose()


async def test_a_lost_lease_ends_only_the_writers_whose_logs_were_taken(
    world: World, autojump_clock: MockClock
) -> None:
    """A process that was cut off for longer than its lease: G4. Readers read on."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        writers = await open_all(a, 5)
        for writer in writers:
            await writer.write(rec(1))
        reader = await a.open_log("l2").open_reader()
        lease = writers[0]._log_lock.lease
        original, world.metadata.renew_lease = world.metadata.renew_lease, _unreachable  # type: ignore[method-assign]
        await trio.sleep(2 * LEASE_S)
        assert await lock_of(world, writers[0]) is None

        taker = await b.open_log("l2").open_writer(wait_s=0)
        world.metadata.renew_lease = original  # type: ignore[method-assign]
        await trio.sleep(LEASE_S)

        assert isinstance(writers[2].error, WriterFenced)
        for number in (0, 1, 3, 4):
            found = await lock_of(world, writers[number])
            assert found is not None
            assert found.lease == writers[number]._log_lock.lease != lease
            assert await owner_of(world, writers[number]) == "alpha"
            await writers[number].write(rec(2))
        assert await owner_of(world, taker) == "beta"
        await taker.write(rec(2))
        read = [await reader.read_next() for _ in range(2)]
        assert [one.txid for one in read if one is not None] == [1, 2]
        assert len(world.metadata.state.leases) == 2
        await trio.sleep(60)  # and kept
        assert await owner_of(world, writers[0]) == "alpha"


async def test_who_claimed_a_log_that_was_taken_meanwhile_is_told_once(
    world: World, autojump_clock: MockClock
) -> None:
    """Also where it writes nothing, and no bookie tells it."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        await a.create_log("l")
        claimed = await acquire_log_lock(
            a.context, await a.resolve_name("l"), takeover=False, wait_s=0
        )
        told: list[DistributedLogError] = []
        claimed.set_on_lost(told.append)
        await world.metadata.revoke_lease(claimed.lease)
        async with b.open_log("l").open_writer(wait_s=0):
            await trio.sleep(60)
        assert [type(error) for error in told] == [WriterFenced]
        late: list[DistributedLogError] = []
        claimed.set_on_lost(late.append)
        assert late == told
        await claimed.release()
        assert world.metadata.state.leases == {}


async def test_a_writer_is_told_by_its_lock_that_its_log_was_taken(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes nothing, does not look by itself, and its ledger is not fenced yet."""
    monkeypatch.setattr(namespace, "ROLL_CHECK_INTERVAL_S", 3600.0)
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer()
        await world.metadata.revoke_lease(writer._log_lock.lease)
        taken = await acquire_log_lock(
            b.context, await b.resolve_name("l"), takeover=False, wait_s=0
        )
        await trio.sleep(60)
        assert isinstance(writer.error, WriterFenced)
        await taken.release()


async def test_a_store_that_is_too_busy_is_asked_for_seconds_and_no_longer(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.process() as ns:
        await ns.create_log("l")

        async def busy(transaction: Transaction) -> TransactionReply:
            await trio.lowlevel.checkpoint()
            raise TooBusy("many others")

        monkeypatch.setattr(world.metadata, "transact", busy)
        began = trio.current_time()
        with pytest.raises(TooBusy), trio.fail_after(60):
            await ns.open_log("l").open_writer(wait_s=0)
        assert 3 < trio.current_time() - began <= 5


async def _unreachable(lease: int) -> None:
    await trio.lowlevel.checkpoint()
    raise QuorumUnreachable("nobody answers")


async def test_the_next_open_after_a_lost_lease_gets_another_one(
    world: World, autojump_clock: MockClock
) -> None:
    """Nobody has noticed yet: the claim itself does, and the locks that were there are taken again."""
    async with world.process("alpha") as a:
        (first,) = await open_all(a, 1)
        await world.metadata.revoke_lease(first._log_lock.lease)

        async with a.open_log("other").open_writer(wait_s=0) as second:
            await second.write(rec(1))
            await trio.sleep(0.1)
            assert await owner_of(world, first) == "alpha"
            assert await owner_of(world, second) == "alpha"
            assert len(world.metadata.state.leases) == 1


async def test_a_log_that_is_not_ours_any_more_is_never_locked_again(
    world: World, autojump_clock: MockClock
) -> None:
    """Between our look at the state and our put another one came, wrote and closed: its epoch refuses us."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        first, second = await open_all(a, 2)
        refresh = first._log_lock.writer_state.refresh

        async def overtaken() -> None:
            await refresh()
            async with b.open_log("l0").open_writer(wait_s=0) as taker:
                await taker.write(rec(1))

        first._log_lock.writer_state.refresh = overtaken  # type: ignore[method-assign]
        await world.metadata.revoke_lease(first._log_lock.lease)
        await trio.sleep(LEASE_S / 2)
        assert await lock_of(world, first) is None
        first._log_lock.writer_state.refresh = refresh  # type: ignore[method-assign]
        await trio.sleep(LEASE_S)

        assert isinstance(first.error, WriterFenced)
        assert await lock_of(world, first) is None
        assert await owner_of(world, second) == "alpha"


def puts_of_locks(world: World) -> list[bytes]:
    """The lock keys that are put from now on, in order."""
    found: list[bytes] = []
    original = world.metadata.transact

    async def transact(transaction: Transaction) -> TransactionReply:
        found.extend(_locks_put(transaction))
        return await original(transaction)

    world.metadata.transact = transact  # type: ignore[method-assign]
    return found


def _locks_put(transaction: Transaction) -> list[bytes]:
    return [
        one.key
        for one in transaction.operations
        if isinstance(one, Put) and one.key.endswith(b"/lock")
    ]


async def test_only_a_lock_that_may_be_gone_is_taken_again(
    world: World, autojump_clock: MockClock
) -> None:
    """A thousand locks, one of them in doubt: one put, not a thousand."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        first, second = await open_all(a, 2)
        puts = puts_of_locks(world)
        first._log_lock.lock_revision = 0

        await trio.sleep(LEASE_S)

        assert puts == [lock_key(first._log_lock.writer_state.log_id)]
        assert first._log_lock.lock_revision
        assert await owner_of(world, second) == "alpha"


async def test_a_lock_that_is_given_back_meanwhile_is_not_taken_again(
    world: World, autojump_clock: MockClock
) -> None:
    """It would lock others out until the next renewal finds it."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        first = await a.open_log("l0").open_writer()  # one after the other: that is their turn, too
        second = await a.open_log("l1").open_writer()
        refresh, puts = first._log_lock.writer_state.refresh, puts_of_locks(world)

        async def slow() -> None:
            first._log_lock.writer_state.refresh = refresh  # type: ignore[method-assign]
            await second.abort()
            await refresh()

        first._log_lock.writer_state.refresh = slow  # type: ignore[method-assign]
        await world.metadata.revoke_lease(first._log_lock.lease)
        await trio.sleep(2 * LEASE_S)

        assert puts == [lock_key(first._log_lock.writer_state.log_id)]
        assert await lock_of(world, second) is None
        assert await owner_of(world, first) == "alpha"


async def test_a_lock_that_was_taken_under_a_lease_that_is_over_is_taken_once_more(
    world: World, autojump_clock: MockClock
) -> None:
    """The answer to the first try comes after the second lease's end: that lock is gone again."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        (first,) = await open_all(a, 1)
        original = world.metadata.transact
        late = True

        async def transact(transaction: Transaction) -> TransactionReply:
            nonlocal late
            reply = await original(transaction)
            if late and _locks_put(transaction):
                late = False
                await world.metadata.revoke_lease(first._log_lock.lease)
                await trio.sleep(LEASE_S)
            return reply

        world.metadata.transact = transact  # type: ignore[method-assign]
        await world.metadata.revoke_lease(first._log_lock.lease)
        await trio.sleep(4 * LEASE_S)

        assert not late
        assert await owner_of(world, first) == "alpha"


async def test_a_lock_that_could_not_be_given_back_is_freed_later(
    world: World, autojump_clock: MockClock
) -> None:
    """The session lives on with other logs: the lease's end would never come."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        first, second = await open_all(a, 2)
        original = world.metadata.transact

        async def away(transaction: Transaction) -> TransactionReply:
            await trio.lowlevel.checkpoint()
            raise QuorumUnreachable("nobody answers")

        world.metadata.transact = away  # type: ignore[method-assign]
        await first.abort()
        world.metadata.transact = original  # type: ignore[method-assign]
        assert await owner_of(world, first) == "alpha"

        await trio.sleep(LEASE_S / 2)

        assert await lock_of(world, first) is None
        assert await owner_of(world, second) == "alpha"
        async with b.open_log("l0").open_writer(wait_s=0):
            pass


async def test_a_lock_that_is_cleared_while_it_is_given_back_is_gone_once(
    world: World, autojump_clock: MockClock
) -> None:
    """The goodbye is slow, and a renewal finds what it left: a ValueError came out of `abort`."""
    async with world.process("alpha", lock_lease_s=3.0) as a:
        first, second = await open_all(a, 2)
        original = world.metadata.transact
        slow_s = [1.5]

        async def slow(transaction: Transaction) -> TransactionReply:
            if slow_s:
                await trio.sleep(slow_s.pop())
            return await original(transaction)

        world.metadata.transact = slow  # type: ignore[method-assign]
        await first.abort()  # while it waits, the lease is renewed and the session tidied

        assert await lock_of(world, first) is None
        assert await owner_of(world, second) == "alpha"


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_claim_that_is_done_late_leaves_no_lock(
    world: World, autojump_clock: MockClock, overtaken: bool
) -> None:
    """Its outcome was not known, and it was not done when its caller looked. It must not stay locked for as
    long as the process has other logs; and what came of it later must not be looked for for ever."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a, world.process("beta") as b:
        (other,) = await open_all(a, 1)
        await a.create_log("late")
        log_id = await a.resolve_name("late")
        original = world.metadata.transact
        late: list[Transaction] = []

        async def delayed(transaction: Transaction) -> TransactionReply:
            world.metadata.transact = original  # type: ignore[method-assign]
            late.append(transaction)
            await trio.lowlevel.checkpoint()
            raise OutcomeUnknown("no answer")

        world.metadata.transact = delayed  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await a.open_log("late").open_writer()
        await trio.sleep(2 * LEASE_S)
        if overtaken:
            async with b.open_log("late").open_writer(wait_s=0):
                pass
        assert (await original(late[0])).succeeded is not overtaken

        await trio.sleep(LEASE_S / 2)

        assert await world.metadata.get(lock_key(log_id)) is None
        async with b.open_log("late").open_writer(wait_s=0):
            pass
        await trio.sleep(LEASE_S)  # the settings of open logs are read once
        calls = counted(world, "get")
        await trio.sleep(10 * LEASE_S)
        assert calls["get"] == 0
        assert await owner_of(world, other) == "alpha"


async def test_a_claim_that_was_cancelled_leaves_no_lock(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        (other,) = await open_all(a, 1)
        await a.create_log("l")
        log_id = await a.resolve_name("l")
        original = world.metadata.transact

        async def slow(transaction: Transaction) -> TransactionReply:
            reply = await original(transaction)
            if any(c.key == state_key(log_id) for c in transaction.compares):
                await trio.sleep(5)
            return reply

        world.metadata.transact = slow  # type: ignore[method-assign]
        with trio.move_on_after(1) as scope:
            await a.open_log("l").open_writer()
        assert scope.cancelled_caught
        assert await world.metadata.get(lock_key(log_id)) is None
        assert await owner_of(world, other) == "alpha"


async def test_a_lease_holds_so_many_locks_and_no_more(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of a lease are bounded, and its end is one change: more logs, another lease."""
    monkeypatch.setattr(lock_session, "LOCKS_MAX", 3)
    async with world.process("alpha") as a:
        writers = await open_all(a, 7)
        assert sorted(len(lease.keys) for lease in world.metadata.state.leases.values()) == [
            1,
            3,
            3,
        ]
        await trio.sleep(60)
        assert {await owner_of(world, writer) for writer in writers} == {"alpha"}
        for writer in writers:
            await writer.aclose()
        assert world.metadata.state.leases == {}


async def test_locks_with_other_lease_times_have_other_leases(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as a:
        await a.open_log("l").open_writer()
        await a.open_log("m", config={"lock_lease_s": 30.0}).open_writer()
        assert sorted(lease.ttl_ms for lease in world.metadata.state.leases.values()) == [
            10_000,
            30_000,
        ]


async def test_a_janitor_delays_no_lock_for_good(world: World, autojump_clock: MockClock) -> None:
    """The state's version is a condition of taking a lock again, and not ownership (H12)."""
    async with world.process("alpha", lock_lease_s=LEASE_S) as a:
        (writer,) = await open_all(a, 1)
        key = state_key(writer._log_lock.writer_state.log_id)
        refresh = writer._log_lock.writer_state.refresh
        bumps = 0

        async def bumped() -> None:
            nonlocal bumps
            await refresh()
            if bumps < 2:
                bumps += 1
                found = await world.metadata.get(key)
                assert found is not None
                same = Compare.version(key, found.version)
                await world.metadata.transact(Transaction((same,), (Put(key, found.value),)))

        writer._log_lock.writer_state.refresh = bumped  # type: ignore[method-assign]
        await world.metadata.revoke_lease(writer._log_lock.lease)
        await trio.sleep(LEASE_S)
        assert await lock_of(world, writer) is None
        await trio.sleep(LEASE_S)
        assert bumps == 2
        assert await owner_of(world, writer) == "alpha"


async def test_who_gives_back_again_waits_for_the_first(
    world: World, autojump_clock: MockClock
) -> None:
    """A writer that failed says goodbye in its own task; its caller closes it meanwhile and then ends the
    process: found with a fenced `dlog log write`, whose client was gone before the goodbye."""
    async with world.process("alpha") as a:
        (writer,) = await open_all(a, 1)
        original = world.metadata.revoke_lease

        async def slow(lease: int) -> None:
            await trio.sleep(1)
            await original(lease)

        world.metadata.revoke_lease = slow  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer._log_lock.release)
            await trio.sleep(0.5)
            await writer.abort()
            assert await lock_of(world, writer) is None


@pytest.mark.parametrize("how", ["known", "not known", "taken between look and deletion"])
async def test_who_gives_back_never_deletes_the_next_ones_lock(
    world: World, autojump_clock: MockClock, how: str
) -> None:
    """The log was taken over before, or in the middle of it: what is deleted is one's own key, or nothing."""
    async with (
        world.process("alpha", lock_lease_s=LEASE_S) as a,
        world.process("beta", lock_lease_s=LEASE_S) as b,
    ):
        first, _ = await open_all(a, 2)  # the other log keeps the session
        taken: list[LogWriter] = []

        async def take_over() -> None:
            taken.append(await b.open_log("l0").open_writer(takeover=True))

        if how != "known":
            first._log_lock.lock_revision = 0
        if how == "taken between look and deletion":
            original = world.metadata.transact

            async def transact(transaction: Transaction) -> TransactionReply:
                world.metadata.transact = original  # type: ignore[method-assign]
                await take_over()
                return await original(transaction)

            world.metadata.transact = transact  # type: ignore[method-assign]
        else:
            await take_over()

        await first.abort()
        await trio.sleep(2 * LEASE_S)

        assert await owner_of(world, taken[0]) == "beta"
        await taken[0].write(rec(1))
