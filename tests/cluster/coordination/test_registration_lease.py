"""A registration lives with its node, and comes back after a lost lease (H19)."""

import pytest
import trio
import trio.testing

from distributedlog.cluster.coordination.registration_lease import REFRESH_S, RegistrationLease
from distributedlog.cluster.node.bookie_assembly import EXACT_LEDGERS_MAX, urgent_parts
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.metadata.model.transaction import Compare, Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import ForeignData, OutcomeUnknown, QuorumUnreachable
from tests.metadata.local_metadata import LocalMetadata

KEY = b"bookie/b1"
COOKIE = b"cookie/b1"


def _membership(metadata: LocalMetadata, said: list[bytes]) -> RegistrationLease:
    return RegistrationLease(
        metadata, KEY, lambda: said[-1], Compare.version(COOKIE, 0), lease_s=6.0
    )


async def _registered(metadata: LocalMetadata, nursery: trio.Nursery) -> RegistrationLease:
    membership = _membership(metadata, [b"here"])
    await membership.register()
    nursery.start_soon(membership.run)
    return membership


async def test_it_outlives_many_leases_and_says_goodbye(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    membership = await _registered(metadata, nursery)

    await trio.sleep(60)
    found = await metadata.get(KEY)
    assert found is not None
    assert found.value == b"here"

    await membership.deregister()
    assert await metadata.get(KEY) is None
    nursery.cancel_scope.cancel()


async def test_it_registers_again_after_the_lease_was_lost(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    membership = await _registered(metadata, nursery)
    await metadata.revoke_lease(membership.lease)  # as its end would

    await trio.sleep(3)

    assert await metadata.get(KEY) is not None
    nursery.cancel_scope.cancel()


class _Away(LocalMetadata):
    """A quorum that answers no renewal while it is away."""

    away = False

    async def renew_lease(self, lease: int) -> None:
        if self.away:
            raise QuorumUnreachable("nobody answers")
        await super().renew_lease(lease)


async def test_who_is_cut_off_for_a_leases_time_holds_it_no_more(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Nobody tells it: it said "registered" as long as it was cut off, and no alert was raised."""
    metadata = _Away()
    membership = await _registered(metadata, nursery)
    await trio.sleep(30)
    assert membership.is_held
    metadata.away = True
    await trio.sleep(3)
    assert membership.is_held  # it may be
    await trio.sleep(4)
    assert not membership.is_held
    metadata.away = False
    await trio.sleep(3)
    assert membership.is_held
    await membership.deregister()
    assert not membership.is_held
    nursery.cancel_scope.cancel()


class _Stalled(LocalMetadata):
    """Whose caller is away for longer than a lease, once, before it can put anything under one."""

    async def transact(self, transaction: Transaction) -> TransactionReply:
        if self.state.leases == {1: self.state.leases.get(1)}:
            await self.revoke_lease(1)
        return await super().transact(transaction)


async def test_a_lease_that_ends_before_it_was_used_is_taken_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A node that was stalled while it started is no failed node (simulator seed 520, as it was then)."""
    metadata = _Stalled()
    membership = _membership(metadata, [b"here"])

    await membership.register()

    found = await metadata.get(KEY)
    assert found is not None
    assert found.lease == membership.lease == 2


class _Silent(LocalMetadata):
    """Does what it is asked, and answers nobody."""

    async def grant_lease(self, ttl_ms: int) -> int:
        await super().grant_lease(ttl_ms)
        raise OutcomeUnknown("no leader answered; the change may have been made")


async def test_a_start_without_a_quorum_is_one_that_may_be_tried_again() -> None:
    """Granted or not: nobody renews that lease. A proxy that started so ended with an error for good."""
    with pytest.raises(QuorumUnreachable):
        await _membership(_Silent(), [b"here"]).register()


class _Counting(LocalMetadata):
    """Counts what is written, and may be away."""

    transactions = 0
    away = False

    async def transact(self, transaction: Transaction) -> TransactionReply:
        self.transactions += 1
        if self.away:
            raise QuorumUnreachable("nobody answers")
        return await super().transact(transaction)


async def test_what_somebody_waits_for_is_told_at_once(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A bookie with room again was not chosen before its next renewal: up to two seconds, and then up to
    three of a writer's that had asked in vain meanwhile."""
    metadata = _Counting()
    said, events = [b"writable"], [trio.Event()]
    membership = RegistrationLease(
        metadata,
        KEY,
        lambda: said[-1],
        Compare.version(COOKIE, 0),
        lease_s=600.0,
        get_urgent=lambda: said[-1],
    )

    def change(to: bytes) -> None:
        said.append(to)
        events[-1].set()
        events.append(trio.Event())

    async def told(wanted: bytes, within_s: float) -> None:
        await trio.sleep(within_s)
        found = await metadata.get(KEY)
        assert found is not None
        assert found.value == wanted

    await membership.register()
    nursery.start_soon(membership.update_on_change, lambda: events[-1].wait())
    await trio.sleep(1)
    change(b"read-only")
    await told(b"read-only", 0.01)
    change(b"writable")
    await told(b"writable", 0.6)

    before = metadata.transactions
    for _ in range(100):  # what flutters is told twice a second
        change(b"read-only")
        await trio.sleep(0.01)
        change(b"writable")
        await trio.sleep(0.01)
    assert metadata.transactions <= before + 5
    await told(b"writable", 1)

    metadata.away = True
    change(b"read-only")
    await told(b"writable", 1)
    metadata.away = False
    await told(b"read-only", 1)
    nursery.cancel_scope.cancel()


async def test_a_change_is_told_after_a_while(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    said = [b"10 GB free"]
    membership = _membership(metadata, said)
    await membership.register()
    nursery.start_soon(membership.run)
    said.append(b"9 GB free")

    await trio.sleep(REFRESH_S + 3)

    found = await metadata.get(KEY)
    assert found is not None
    assert found.value == b"9 GB free"
    nursery.cancel_scope.cancel()


async def test_what_is_urgent_is_told_with_the_next_renewal(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    await metadata.transact(Transaction((), (Put(COOKIE, b""),)))
    said = [b"well"]
    guard = Compare.version(COOKIE, 1)
    membership = RegistrationLease(
        metadata,
        KEY,
        lambda: said[-1],
        guard,
        lease_s=6.0,
        get_urgent=lambda: said[-1].startswith(b"ill"),
    )
    await membership.register()
    nursery.start_soon(membership.run)

    async def told_after_a_renewal(value: bytes) -> bytes:
        said.append(value)
        await trio.sleep(2.5)
        found = await metadata.get(KEY)
        assert found is not None
        return bytes(found.value)

    assert await told_after_a_renewal(b"ill") == b"ill"
    assert await told_after_a_renewal(b"ill, 2 GB") == b"ill"
    assert await told_after_a_renewal(b"well again") == b"well again"
    nursery.cancel_scope.cancel()


async def test_two_processes_with_one_directory_cannot_both_register() -> None:
    """H6: the second start moved the cookie; the first one ends at its next registration."""
    metadata = LocalMetadata()
    membership = _membership(metadata, [b"here"])
    await metadata.transact(Transaction((), (Put(COOKIE, b"2"),)))

    with pytest.raises(ForeignData):
        await membership.register()


def test_the_first_ledgers_are_told_soon_and_many_are_not_told_one_by_one() -> None:
    """`dlog status` said for ten seconds that there are no ledgers to who had just written a first log."""

    def urgent(ledgers: int, free_bytes: int = 1) -> object:
        return urgent_parts(BookieRegistration("b1", {}, ledgers=ledgers, free_bytes=free_bytes))

    assert len({repr(urgent(ledgers)) for ledgers in (0, 1, 2, EXACT_LEDGERS_MAX)}) == 4
    assert urgent(EXACT_LEDGERS_MAX) == urgent(EXACT_LEDGERS_MAX + 1) == urgent(1_000_000)
    assert urgent(1, free_bytes=1) == urgent(1, free_bytes=2)
