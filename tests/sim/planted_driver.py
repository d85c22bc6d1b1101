"""Bugs that seeds of the ledger drivers are to find (`tests/ledger/driver_world.py`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from distributedlog.bookie.format.entry import EntryRecord, records
from distributedlog.cluster.repair import copier as copying
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.recovery.ledger_recovery import LedgerRecovery
from distributedlog.ledger.recovery.quorum_coverage import QuorumCoverage
from distributedlog.ledger.recovery.recovery_driver import RecoveryDriver
from distributedlog.ledger.write import ensemble_monitor as slot_care
from distributedlog.ledger.write import missing_range_recorder as hole_note
from distributedlog.ledger.write.pending_adds import PendingAdds
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.runtime.interfaces.errors import CorruptData, OutcomeUnknown
from distributedlog.testing.sim.ledger.ledger_injected_bugs import (
    _confirm_while_changing,
    _no_unset,
    _silence,
)
from tests.sim.planting import bug, patch


class Overridden:
    """A store whose transactions go another way."""

    def __init__(self, store: Any, transact: Callable[[Transaction], Any]) -> None:
        self._store = store
        self.transact = transact

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def taking_unknown_for_done(driver: Any) -> Iterator[None]:
    """Whose store, for so long, says of an unknown outcome that it was done."""
    store = driver._store

    async def transact(transaction: Transaction) -> Any:
        try:
            return await store.transact(transaction)
        except OutcomeUnknown:
            return type("Reply", (), {"succeeded": True, "current": ()})()

    driver._store = Overridden(store, transact)
    try:
        yield
    finally:
        driver._store = store


@bug("driver")
def an_unknown_ensemble_change_is_taken_for_done() -> None:
    """G7: acks count on an ensemble that the store may not have."""
    original = slot_care.EnsembleMonitor._propose

    async def propose(self: Any, round_: Any) -> None:
        with taking_unknown_for_done(self):
            await original(self, round_)

    patch(slot_care.EnsembleMonitor, "_propose", propose)


@bug("driver")
def an_unknown_close_of_a_recovery_is_taken_for_done() -> None:
    """G7: the end is reported, and the store may not have it."""
    original = RecoveryDriver._close

    async def close(self: Any, action: Any) -> None:
        with taking_unknown_for_done(self):
            await original(self, action)

    patch(RecoveryDriver, "_close", close)


@bug("driver")
def damage_in_a_reply_is_not_said() -> None:
    """Inv. 16: what stands after a damaged record counts as absent."""
    original = RecoveryDriver._parse

    def parse(self: Any, body: memoryview) -> Any:
        return original(self, body)[0], False

    patch(RecoveryDriver, "_parse", parse)


@bug("driver")
def a_change_counts_before_the_metadata_has_it() -> None:
    """D4."""

    async def propose(self: Any, round_: Any) -> None:
        change, version = self._change, round_.version
        share = transactions.change_ops(change.metadata, round_.proposed, version)
        self._decided(version + 1)
        try:
            await self._store.transact(share)
        except Exception:
            return

    patch(slot_care.EnsembleMonitor, "_propose", propose)


@bug("driver", directed="tests/ledger/write/test_ledger_writer.py")
def the_writer_closes_whatever_the_version() -> None:
    """Inv. 19."""
    original = transactions.close_ops

    def closing_share(*args: Any) -> Transaction:
        return Transaction((), original(*args).operations)

    patch(transactions, "close_ops", closing_share)


@bug("driver", directed="tests/ledger/recovery/test_recovery_driver.py")
def a_recovery_closes_whatever_the_version() -> None:
    """Inv. 19."""
    original = transactions.recovery_ops

    def recovered_share(*args: Any) -> Transaction:
        return Transaction((), original(*args).operations)

    patch(transactions, "recovery_ops", recovered_share)


@bug("driver")
def silence_is_absence() -> None:
    """Inv. 16."""
    patch(QuorumCoverage, "absence", _silence)


@bug("driver")
def one_negative_is_enough() -> None:
    """Inv. 16."""
    patch(Striping, "absent_quorum", property(lambda self: 1))


@bug("driver", directed="tests/cluster/repair/test_copier.py")
def the_first_ack_counts_for_the_batch() -> None:
    """Inv. 28: the rest of a copied batch may not be there."""
    original = copying._store

    async def store(ledger: Any, target: Any, batch: list[EntryRecord]) -> None:
        class Early:
            def __getattr__(self, name: str) -> Any:
                return getattr(target, name)

            def open_stream(self, *args: Any, on_acked: Any, **kwargs: Any) -> Any:
                return target.open_stream(*args, on_acked=lambda _: on_acked(len(batch)), **kwargs)

        await original(ledger, Early(), batch)  # type: ignore[arg-type]

    patch(copying, "_store", store)


@bug("driver")
def a_copy_is_of_whatever_came() -> None:
    """Inv. 28: entries out of sequence are taken for those that were asked for."""

    def consecutive(body: Any, ledger_id: int, first: int) -> list[EntryRecord]:
        try:
            return list(records(body))
        except CorruptData:
            return []

    patch(copying, "consecutive_records", consecutive)


@bug("driver")
def a_record_is_swapped_and_nothing_was_copied() -> None:
    """Inv. 28."""

    async def copy(self: Any, *args: Any) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    patch(copying.Copier, "copy", copy)


@bug("driver")
def a_writer_notes_no_holes() -> None:
    """H22b: an audit would hide it."""
    patch(hole_note.MissingRangeRecorder, "store_if_changed", lambda self, spawn: None)
    original = transactions.close_ops
    patch(transactions, "close_ops", lambda closed, version, holes: original(closed, version, ()))


@bug("driver", directed="tests/ledger/test_recovery_holes.py")
def a_recovery_notes_no_holes() -> None:
    """H22b; the world audits before it asks for these copies."""
    original = transactions.recovery_ops
    patch(
        transactions,
        "recovery_ops",
        lambda b, c, version, holes, n: original(b, c, version, (), n),
    )


@bug("driver", directed="tests/ledger/recovery/test_recovery_driver.py")
def limbo_counts_as_absence() -> None:
    """Inv. 22."""
    original = LedgerRecovery.on_read

    def on_read(self: Any, request: int, to: int, known: bool, found: Any, **kwargs: Any) -> Any:
        return original(self, request, to, True, found, **kwargs)

    patch(LedgerRecovery, "on_read", on_read)


@bug("driver")
def nobody_fences() -> None:
    """D1, G4."""
    from tests.ledger.model_bookie import ModelClient

    original = ModelClient.read

    async def fence(self: Any, ledger: int, key: bytes, timeout_s: float) -> Any:
        return await self.read_lac(ledger, key, timeout_s)

    async def read(self: Any, *args: Any, fence: bool = False, **kwargs: Any) -> Any:
        return await original(self, *args, **kwargs)

    patch(ModelClient, "fence", fence)
    patch(ModelClient, "read", read)


@bug("driver")
def replaced_slots_keep_their_acks() -> None:
    """D5."""
    patch(PendingAdds, "end_change", _no_unset)


@bug("driver")
def acks_confirm_while_a_change_is_undecided() -> None:
    """Inv. 7."""
    patch(PendingAdds, "_confirm", _confirm_while_changing)


@bug("driver", directed="tests/ledger/read/test_ledger_reader.py")
def an_lac_comes_from_a_minority() -> None:
    """G5: too few answered to know."""
    patch(Striping, "covered", lambda self, known: bool(known))
