"""Ledger records followed: what one reader does with them is nobody else's."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from distributedlog.ledger.model.ledger_keys import ledger_key
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.read.ledger_watch import LedgerWatch
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.metadata.local_metadata import LocalMetadata


async def test_a_reader_that_breaks_keeps_no_other_one_from_being_told(
    autojump_clock: MockClock,
) -> None:
    """Of the same ledger, or of another one: their tasks share a nursery."""
    metadata = LocalMetadata()
    told: list[LedgerMetadata | None] = []

    def breaks(_: LedgerMetadata | None) -> None:
        raise AssertionError("a rule of its own")

    async with trio.open_nursery() as nursery:
        records = LedgerWatch(metadata, WorkFailures())
        await nursery.start(records.run)
        records.subscribe(1, breaks)
        records.subscribe(1, told.append)
        records.subscribe(2, told.append)
        await wait_all_tasks_blocked()
        assert told == [None, None]

        await metadata.transact(Transaction((), (Put(ledger_key(1), b"not a record"),)))
        await trio.sleep(1)
        await metadata.transact(Transaction((), (Delete(ledger_key(1)),)))
        await trio.sleep(1)
        assert told == [None, None, None]
        nursery.cancel_scope.cancel()
