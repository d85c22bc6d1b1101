"""Moments are known by what is asked of the metadata: a fault by state is only as good as its ear."""

from dataclasses import replace

import pytest

from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.log.model import log_keys
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.testing.sim.faults.targeted_faults import WORST
from distributedlog.testing.sim.faults.trigger_points import KINDS, kinds_of

LEDGER = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3"), 0),), b"0123456789abcdef")
CHANGED = replace(LEDGER, ensembles=(*LEDGER.ensembles, Fragment(5, ("b1", "b2", "b4"), 1)))
CLOSED = CHANGED.close_by_writer(9, 90)

SHARES = {
    "ledger created": transactions.creation_ops(LEDGER, ()),
    "ensemble change": transactions.change_ops(LEDGER, CHANGED, 1),
    "recovery begun": transactions.change_ops(CHANGED, CHANGED.in_recovery(), 2),
    "close": transactions.close_ops(CLOSED, 3, ()),
    "hole noted": transactions.missing_range_ops(7, 3, (MissingRange("b3", 1, 2),)),
    "hole filled": Transaction((), (Delete(b"under/0000000000000007"),)),
    "ledger deleted": transactions.deletion_ops(CLOSED, 4),
    "deletion done": Transaction((), (Delete(b"delete/b1/0000000000000007"),)),
    "segment registered": Transaction((), (Put(log_keys.segment_key(1, 2), b""),)),
    "lock taken": Transaction((), (Put(log_keys.lock_key(1), b""),)),
    "log created": Transaction((), (Put(log_keys.name_key("a", "b"), b""),)),
    "link": Transaction((), (Put(log_keys.app_version_key(1, "app"), b""),)),
    "purge noted": Transaction((), (Put(log_keys.purge_key(1), b""),)),
    "bookie registered": Transaction((), (Put(b"bookie/b1", b""),)),
}


@pytest.mark.parametrize("kind", SHARES)
def test_a_transaction_is_known_for_what_it_does(kind: str) -> None:
    assert kind in KINDS
    assert next(kinds_of(SHARES[kind], by_node=False)) == kind


def test_a_node_that_changes_a_closed_record_swaps_a_bookie() -> None:
    swapped = CLOSED.with_bookie_replaced(0, 2, "b5")

    assert list(kinds_of(transactions.change_ops(CLOSED, swapped, 4), by_node=True)) == ["swap"]


def test_a_read_or_a_lease_is_no_moment() -> None:
    assert list(kinds_of(Transaction(), by_node=False)) == []


def test_what_is_worst_is_a_kind() -> None:
    assert {*WORST} <= {*KINDS}
