"""Deleted ledgers go away on every bookie, and their record with the last one (H21)."""

import pytest
import trio
import trio.testing

from distributedlog.cluster.coordination.reconcile_loop import BATCH_S
from distributedlog.cluster.repair.ledger_deletion import LedgerDeletion
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.metadata.local_metadata import LocalMetadata

BOOKIES = ("b1", "b2", "b3")


async def _deleted_ledger(metadata: LocalMetadata, ledger_id: int) -> None:
    ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16)).deleting()
    marks = tuple(Put(keys.delete_key(bookie, ledger_id), b"") for bookie in BOOKIES)
    record = Put(keys.ledger_key(ledger_id), ledger.encode())
    await metadata.transact(Transaction((), (record, *marks)))


class _Store:
    """What a bookie holds."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)

    async def delete_ledger(self, ledger_id: int) -> None:
        await trio.lowlevel.checkpoint()
        self.ledgers.discard(ledger_id)


async def test_the_record_stays_until_the_last_bookie_has_done_its_part() -> None:
    metadata = LocalMetadata()
    await _deleted_ledger(metadata, 7)
    stores = {bookie: _Store(7, 8) for bookie in BOOKIES}
    workers = [LedgerDeletion(metadata, bookie, stores[bookie].delete_ledger) for bookie in BOOKIES]

    await workers[0].run_pass()
    await workers[1].run_pass()
    assert await metadata.get(keys.ledger_key(7)) is not None  # b3 is down and must learn of it
    await workers[2].run_pass()

    assert await metadata.get(keys.ledger_key(7)) is None
    assert all(store.ledgers == {8} for store in stores.values())
    assert not (await metadata.range(b"delete/", b"delete0")).items


async def test_two_who_tick_off_at_once_do_not_leave_the_record_behind() -> None:
    metadata = LocalMetadata()
    await _deleted_ledger(metadata, 7)
    workers = [LedgerDeletion(metadata, bookie, _Store().delete_ledger) for bookie in BOOKIES]

    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(worker.run_pass)

    assert not (await metadata.range(b"", b"\xff")).items


async def test_a_ledger_that_fails_unexpectedly_keeps_no_other_from_its_deletion(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Faults 1b: it is tried again, shown meanwhile, and the pass goes on."""
    metadata, failures, store = LocalMetadata(), WorkFailures(), _Store(7, 8)
    await _deleted_ledger(metadata, 7)
    await _deleted_ledger(metadata, 8)
    broken = True

    async def delete(ledger_id: int) -> None:
        if ledger_id == 7 and broken:
            raise KeyError(ledger_id)
        await store.delete_ledger(ledger_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(LedgerDeletion(metadata, "b1", delete, failures).run)
        await trio.sleep(100)
        assert store.ledgers == {7}
        [failed] = failures.failed()
        assert failed.error == "KeyError"
        assert 2 < failed.tries < 10

        broken = False
        await trio.sleep(100)
        assert store.ledgers == set()
        assert failures.failed() == ()
        nursery.cancel_scope.cancel()


async def _open_ledger(metadata: LocalMetadata, ledger_id: int) -> None:
    ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
    put = Put(keys.ledger_key(ledger_id), ledger.encode())
    await metadata.transact(Transaction((), (put,)))


async def test_a_key_alone_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever wrote ``delete/<bookie>/<ledger>``: a ledger that lives, and its record, stay as they are."""
    metadata, store = LocalMetadata(), _Store(7, 8)
    await _open_ledger(metadata, 7)
    for bookie in BOOKIES:
        forged = (Put(keys.delete_key(bookie, 7), b""), Put(keys.delete_key(bookie, 8), b""))
        await metadata.transact(Transaction((), forged))

    for bookie in BOOKIES:
        await LedgerDeletion(metadata, bookie, store.delete_ledger).run_pass()

    assert store.ledgers == {7, 8}, "neither the one that lives nor one without any record"
    assert await metadata.get(keys.ledger_key(7)) is not None
    assert not (await metadata.range(b"delete/", b"delete0")).items, "ticked off"
    assert "ledger 7 is kept on this bookie: it is open" in caplog.text


async def test_a_record_goes_only_as_it_was_read() -> None:
    """Somebody put it back while this bookie removed its part: it stays, for the other two have theirs."""
    metadata = LocalMetadata()
    await _deleted_ledger(metadata, 7)

    async def put_back(ledger_id: int) -> None:
        await _open_ledger(metadata, ledger_id)
        gone = tuple(Delete(keys.delete_key(bookie, ledger_id)) for bookie in ("b2", "b3"))
        await metadata.transact(Transaction((), gone))

    await LedgerDeletion(metadata, "b1", put_back).run_pass()

    assert await metadata.get(keys.ledger_key(7)) is not None
    assert not (await metadata.range(b"delete/", b"delete0")).items, "ticked off"


async def test_what_cannot_be_read_is_passed_over_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A key that ends with no id, a record that is none: the next one on the list is worked off."""
    metadata, store = LocalMetadata(), _Store(6, 7)
    poison = [b"delete/b1/x", b"delete/b1/\xff\x00", b"delete/b1/a/b", b"delete/b1/" + b"0_" * 8]
    broken = (Put(keys.delete_key("b1", 6), b""), Put(keys.ledger_key(6), b"\xc1 no record"))
    puts = (*(Put(key, b"") for key in poison), *broken)
    await metadata.transact(Transaction((), puts))
    await _deleted_ledger(metadata, 7)
    worker = LedgerDeletion(metadata, "b1", store.delete_ledger)

    await worker.run_pass()
    await worker.run_pass()

    assert store.ledgers == {6}, "what cannot be proved is not removed"
    named = [line for line in caplog.messages if "is unreadable" in line]
    assert len(named) == len(poison) + 1


async def test_a_deletion_is_seen_when_it_happens(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata, store = LocalMetadata(), _Store(7)
    nursery.start_soon(LedgerDeletion(metadata, "b1", store.delete_ledger).run)
    await trio.sleep(1)
    await _deleted_ledger(metadata, 7)

    await trio.sleep(2 * BATCH_S)

    assert store.ledgers == set()
    nursery.cancel_scope.cancel()
