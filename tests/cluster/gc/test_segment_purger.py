"""The purger: only what is wholly below the point, only after the grace, beside writers (H12, H13, H18)."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.gc.segment_purger import SegmentPurger
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.ledger.model.ledger_transactions import creation_ops
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import PURGE_PREFIX, purge_key, segment_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentEnd, SegmentRecord
from distributedlog.log.segments.segment_purge import last_purgeable_segment, purge
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from tests.metadata.local_metadata import LocalMetadata

LOG = 7


class Elected:
    """An election that is always won, or never."""

    won = True

    async def is_elected(self) -> bool:
        return self.won


async def a_log(metadata: LocalMetadata, closed: int, *, open_: int = 0) -> None:
    """Segments of three entries of one record each, as their writers leave them."""
    state = LogState(LOG, "orders", 0, last_segment=closed + open_, first_open_segment=closed + 1)
    share = Transaction((), (Put(state_key(LOG), state.encode()),))
    for number in range(1, closed + open_ + 1):
        record = SegmentRecord(number, 100 + number, 1, 0, start_sequence_id=3 * (number - 1))
        made = LedgerMetadata(
            100 + number, 1, 1, 1, (Fragment(0, ("b1",), 0),), bytes(16), owner=(LOG, number)
        )
        if number <= closed:
            before = replace(state, next_sequence_id=record.start_sequence_id)
            record = record.with_end(SegmentEnd(2, 300, 3, 1, 1, 2, 0), before, closed_ms=0)
        share += creation_ops(made, ())
        share += Transaction((), (Put(segment_key(LOG, number), record.encode()),))
    assert (await metadata.transact(share)).succeeded


async def change(metadata: LocalMetadata, apply: Callable[[LogState], LogState]) -> None:
    found = await metadata.get(state_key(LOG))
    assert found is not None
    state = apply(LogState.decode(found.value))
    await metadata.transact(
        Transaction((), (Put(state_key(LOG), state.encode()), Put(purge_key(LOG), b"")))
    )


async def truncate(metadata: LocalMetadata, to: DLSN) -> None:
    await change(metadata, lambda state: state.with_truncation(to, 0))


async def left(metadata: LocalMetadata) -> list[int]:
    prefix = segment_key(LOG, 0)[:-16]
    page = await metadata.range(prefix, prefix_end(prefix))
    segments = [int(item.key[-16:], 16) for item in page.items]
    for number in range(1, 7):
        found = await metadata.get(keys.ledger_key(100 + number))
        if found is not None:
            state = LedgerMetadata.decode(found.key, found.value).state
            assert (state is LedgerState.DELETING) == (number not in segments)
    return segments


async def test_only_what_is_wholly_below_the_point_goes(autojump_clock: MockClock) -> None:
    for point, first_left in (
        (DLSN(1, 0, 0), 1),
        (DLSN(2, 2, 0), 2),
        (DLSN(3, 0, 0), 3),
        (DLSN(3, 2, 1), 4),  # after the last record of segment 3
        (DLSN(3, 3, 0), 4),
        (DLSN(5, 1, 0), 5),  # inside the one in progress
    ):
        metadata = LocalMetadata()
        await a_log(metadata, 4, open_=1)
        await truncate(metadata, point)
        purger = SegmentPurger(metadata, Elected(), grace_s=10)
        await purger.run_pass()
        assert await left(metadata) == [1, 2, 3, 4, 5]  # the grace has only begun
        await trio.sleep(11)
        await purger.run_pass()
        assert await left(metadata) == list(range(first_left, 6)), point
        found = await metadata.get(state_key(LOG))
        assert found is not None
        assert LogState.decode(found.value).first_segment == first_left


async def test_the_grace_counts_from_when_a_segment_was_seen_below(
    autojump_clock: MockClock,
) -> None:
    metadata = LocalMetadata()
    await a_log(metadata, 4)
    purger = SegmentPurger(metadata, Elected(), grace_s=10)
    for second in range(40):
        if second == 5:
            await truncate(metadata, DLSN(2, 0, 0))
        if second == 12:
            await truncate(metadata, DLSN(4, 0, 0))
        await purger.run_pass()
        expected = [1, 2, 3, 4] if second < 15 else [2, 3, 4] if second < 22 else [4]
        assert await left(metadata) == expected, second
        await trio.sleep(1)
    assert (await metadata.range(PURGE_PREFIX, prefix_end(PURGE_PREFIX))).items == ()


async def test_it_does_nothing_unless_elected(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    await a_log(metadata, 2)
    await truncate(metadata, DLSN(2, 0, 0))
    election = Elected()
    election.won = False
    nursery.start_soon(SegmentPurger(metadata, election, grace_s=4).run)
    await trio.sleep(30)
    assert await left(metadata) == [1, 2]
    election.won = True
    await trio.sleep(30)
    assert await left(metadata) == [2]


@pytest.mark.parametrize("seed", range(30))
async def test_who_changes_the_log_in_between_keeps_what_he_wrote(
    seed: int, autojump_clock: MockClock
) -> None:
    """H12: at any step a writer may claim the log; it stays claimed, and the segments go all the same."""
    metadata = Meddled(Random(seed))
    await a_log(metadata, 4)
    await truncate(metadata, DLSN(3, 1, 0))
    metadata.meddling = True
    purger = SegmentPurger(metadata, Elected(), grace_s=0)
    removed = await purge(metadata, LOG, 2, purger.deletion_ops_of)
    found = await metadata.get(state_key(LOG))
    assert found is not None
    state = LogState.decode(found.value)
    assert (removed, state.first_segment, state.epoch) == (2, 3, metadata.epochs)
    assert await last_purgeable_segment(metadata, state) == 0
    assert await left(metadata) == [3, 4]


class Meddled(LocalMetadata):
    """Now and then a writer claims the log just before a transaction."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.meddling = False
        self.epochs = 0
        self._chance = chance

    async def transact(self, transaction: Transaction) -> TransactionReply:
        if self.meddling and self.epochs < 3 and self._chance.random() < 0.5:
            self.epochs += 1
            found = await self.get(state_key(LOG))
            assert found is not None
            state = LogState.decode(found.value).with_writer("w", "x")
            await super().transact(Transaction((), (Put(state_key(LOG), state.encode()),)))
        return await super().transact(transaction)
