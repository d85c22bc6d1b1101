"""Which ledgers exist, asked for many at once (H21)."""

import trio
from trio.testing import MockClock

from distributedlog.bookie.ledgers.ledger_existence import LedgerStatus
from distributedlog.cluster.coordination.gc_hold import hold_deletions, resume_deletions
from distributedlog.cluster.gc.ledger_lookup import (
    NEIGHBOR_GAP_MAX,
    TOMBSTONES_EVERY_S,
    end_tombstones,
    ledger_statuses,
    missing_ledgers,
)
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.metadata.local_metadata import LocalMetadata

ID_MAX = (1 << 64) - 1


class _Counting(LocalMetadata):
    """How many questions it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.questions += 1
        return await super().range(start, end, limit=limit)

    async def hold(self, *ledgers: int, value: bytes = b"...") -> None:
        for ledger in ledgers:
            await self.transact(Transaction((), (Put(keys.ledger_key(ledger), value),)))


async def test_neighbours_are_asked_for_in_one_question() -> None:
    metadata = _Counting()
    await metadata.hold(*range(1000, 2000))

    assert await missing_ledgers(metadata, range(1000, 2000, 3)) == set()
    assert metadata.questions == 1


async def test_what_is_not_there_is_named_wherever_it_lies() -> None:
    """The first, the last, within and beside a range, and the highest id there can be."""
    metadata = _Counting()
    await metadata.hold(1, 2, 4, 900, 901, ID_MAX - 1)
    asked = [0, 1, 2, 3, 4, 5, 899, 900, 901, ID_MAX - 1, ID_MAX]

    assert await missing_ledgers(metadata, asked) == {0, 3, 5, 899, ID_MAX}
    assert await missing_ledgers(metadata, [7]) == {7}
    assert await missing_ledgers(metadata, []) == set()


async def test_what_lies_far_apart_is_not_read_across() -> None:
    metadata = _Counting()
    await metadata.hold(*range(100))

    assert await missing_ledgers(metadata, [1, 1 + NEIGHBOR_GAP_MAX + 1, 90]) == set()
    assert metadata.questions == 3


async def test_an_answer_in_pages_is_read_to_its_end() -> None:
    """A page ends at a megabyte; what lies after it is there all the same."""
    metadata = _Counting()
    await metadata.hold(*range(50), value=bytes(100_000))

    assert await missing_ledgers(metadata, range(51)) == {50}
    assert metadata.questions == 5


async def test_a_key_of_no_ledger_between_them_changes_nothing() -> None:
    metadata = _Counting()
    await metadata.hold(1, 3)
    await metadata.transact(Transaction((), (Put(b"ledger/0000000000000001x", b"?"),)))

    assert await missing_ledgers(metadata, [1, 2, 3]) == {2}


async def test_how_ledgers_stand_is_told_for_who_wants_to_add_to_them() -> None:
    """H89: none and one that is being deleted are gone; of what cannot be read nothing is told."""
    metadata = _Counting()
    fragments = (Fragment(0, ("b1", "b2", "b3"), 0),)
    for ledger, state in enumerate(LedgerState, 1):
        end = 4 if state in (LedgerState.CLOSED, LedgerState.DELETING) else None
        record = LedgerMetadata(ledger, 3, 3, 2, fragments, bytes(16), state, end, end)
        await metadata.hold(ledger, value=record.encode())
    await metadata.hold(9)

    assert await ledger_statuses(metadata, [1, 2, 3, 4, 5, 9]) == {
        1: LedgerStatus.OPEN,
        2: LedgerStatus.ENDED,
        3: LedgerStatus.ENDED,
        4: LedgerStatus.DELETED,
        5: LedgerStatus.DELETED,
    }


async def test_the_bound_of_tombstones_is_an_hour_old(autojump_clock: MockClock) -> None:
    """H89: what is created by writers that began since then lies above it; one that goes back is no harm."""
    metadata, moved = LocalMetadata(), list[int]()

    async def move(below: int) -> None:
        moved.append(below)

    async def say(value: bytes) -> None:
        await metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, value),)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_tombstones, metadata, move, WorkFailures())
        await trio.sleep(1)
        for value in (b"100", b"200", b"nonsense", b"300", b"400"):
            await say(value)
            await trio.sleep(TOMBSTONES_EVERY_S)
        nursery.cancel_scope.cancel()

    assert moved == [100, 200, 300]


async def test_the_bound_of_tombstones_stays_while_deletions_are_held(
    autojump_clock: MockClock,
) -> None:
    """A metadata that came from a save: what it says of old ledgers is looked at first (H104)."""
    metadata = LocalMetadata()
    moved: list[int] = []

    async def move(bound: int) -> None:
        await trio.lowlevel.checkpoint()
        moved.append(bound)

    await metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, b"100"),)))
    await hold_deletions(metadata, "looking")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_tombstones, metadata, move, WorkFailures())
        await trio.sleep(3.5 * TOMBSTONES_EVERY_S)
        assert moved == []
        await resume_deletions(metadata)
        await trio.sleep(TOMBSTONES_EVERY_S)
        nursery.cancel_scope.cancel()

    assert moved == [100]
