"""Ids of new ledgers: no two the same, and none for long after they were taken."""

import trio
from trio.testing import MockClock

from distributedlog.ledger.model.ledger_ids import BLOCK_LIFETIME_S, LedgerIds, next_ledger
from distributedlog.ledger.model.ledger_keys import LEDGER_ID_BLOCK
from distributedlog.metadata.model.transaction import KeyValue
from tests.metadata.local_metadata import LocalMetadata


class SlowMetadata(LocalMetadata):
    """Each answer takes its time."""

    answer_s = 0.0

    async def get(self, key: bytes) -> KeyValue | None:
        await trio.sleep(self.answer_s)
        return await super().get(key)


async def test_ids_of_one_block_go_on_while_it_is_young(autojump_clock: MockClock) -> None:
    """The metadata is asked once for many."""
    metadata = LocalMetadata()
    ids = LedgerIds(metadata)

    taken = []
    for _ in range(10):
        taken.append(await ids.next())
        await trio.sleep(BLOCK_LIFETIME_S / 11)

    assert taken == list(range(1, 11))
    assert await next_ledger(metadata) == 1 + LEDGER_ID_BLOCK


async def test_a_ledger_that_is_made_long_after_a_loss_has_an_id_above_its_bound(
    autojump_clock: MockClock,
) -> None:
    """H7: the bound is ``next/ledger`` of when a bookie found its loss; below it limbo never ended."""
    metadata = LocalMetadata()
    busy, quiet = LedgerIds(metadata), LedgerIds(metadata)
    await quiet.next()
    await trio.sleep(BLOCK_LIFETIME_S / 2)
    await busy.next()

    bound = await next_ledger(metadata)
    assert await busy.next() < bound  # what it was for: it may be one of those
    await trio.sleep(BLOCK_LIFETIME_S)

    for ids in (quiet, busy, quiet, busy):
        assert await ids.next() >= bound


async def test_metadata_that_answers_late_gives_ids_for_many(autojump_clock: MockClock) -> None:
    """Who took a block for old that has just come would ask again for each."""
    metadata = SlowMetadata()
    metadata.answer_s = 2 * BLOCK_LIFETIME_S
    ids = LedgerIds(metadata)

    taken = [await ids.next() for _ in range(3)]

    assert taken == [1, 2, 3]


async def test_who_is_asked_by_many_at_once_takes_one_block(autojump_clock: MockClock) -> None:
    """Also when the one before has just become old: a thousand logs that roll together."""
    metadata = LocalMetadata()
    ids = LedgerIds(metadata)
    await ids.next()
    await trio.sleep(BLOCK_LIFETIME_S)
    taken: list[int] = []

    async def take() -> None:
        taken.append(await ids.next())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(take)

    assert sorted(taken) == list(range(1 + LEDGER_ID_BLOCK, 101 + LEDGER_ID_BLOCK))
    assert await next_ledger(metadata) == 1 + 2 * LEDGER_ID_BLOCK
