"""Who may have which capability of which ledger, by grants, cookies and records."""

from dataclasses import replace

import pytest

from distributedlog.cluster.repair.auditor_election import ELECTION_KEY
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerState
from distributedlog.metadata.auth.capability_issuer import may_have_capability
from distributedlog.metadata.model.commands import GrantLease, Transact
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.protocol.capabilities import CapabilityKind

from ..state.test_kv_state import do
from .test_authorizer import ORDERS, OWNER, READER, WRITER, record, world

LIST, READ, ADD, RECOVER = CapabilityKind


@pytest.mark.parametrize(
    ("principal", "ledger", "kinds"),
    [
        ("user/ann", 1, {LIST, READ}),
        ("user/etl", 1, {LIST, READ, ADD, RECOVER}),
        ("user/own", 1, {LIST, READ, ADD, RECOVER}),
        ("user/etl", 2, set()),
        ("user/etl", 99, set()),
        ("user/none", 1, set()),
        ("anonymous", 1, set()),
        ("user/local", 2, {LIST, READ, ADD, RECOVER}),
        ("proxy/p1", 2, {LIST, READ, ADD, RECOVER}),
        ("metadata/m1", 1, set()),
        ("bookie/b1", 1, {LIST, READ}),
        ("bookie/b3", 1, {LIST}),
    ],
)
def test_what_each_may_have(principal: str, ledger: int, kinds: set[CapabilityKind]) -> None:
    """Threats 2 and 4: a user has what its grants say, a bookie nothing of what it does not hold."""
    judge, _ = world(READER, WRITER, OWNER)

    assert {
        kind
        for kind in CapabilityKind
        if may_have_capability(judge, principal, kind, ledger, ["i1", "i2"])
    } == kinds


def test_a_bookie_writes_copies_to_itself_alone_and_only_where_it_is_named() -> None:
    """H229: those that it holds, and those that it is to take."""
    judge, state = world()

    assert may_have_capability(judge, "bookie/b1", RECOVER, 1, ["i1"])
    assert not may_have_capability(judge, "bookie/b1", RECOVER, 1, ["i2"])
    assert not may_have_capability(judge, "bookie/b3", RECOVER, 1, ["i3"])
    move = Put(keys.move_key("i3", 1), b"")
    do(state, Transact("c", 9, 0, Transaction((), (move,))))
    judge.refresh(state)
    assert may_have_capability(judge, "bookie/b3", RECOVER, 1, ["i3"])
    assert may_have_capability(judge, "bookie/b3", READ, 1, ["i1"])


def test_nobody_recovers_a_closed_ledger_but_the_bookie_that_repairs() -> None:
    """H231: recovery adds pass where a copy lacks an entry."""
    judge, state = world(WRITER)
    closed = replace(record(1, ORDERS), state=LedgerState.CLOSED, last_entry=4, length=9)
    do(state, Transact("c", 9, 0, Transaction((), (Put(keys.ledger_key(1), closed.encode()),))))
    judge.refresh(state)

    assert not may_have_capability(judge, "user/etl", RECOVER, 1, ["i1"])
    assert may_have_capability(judge, "user/etl", READ, 1, ["i1"])
    assert not may_have_capability(judge, "bookie/b3", RECOVER, 1, ["i1"])
    lease = state.next_lease
    do(state, GrantLease("bookie/b3/c", 1, 0, 1000))
    do(state, Transact("c", 10, 0, Transaction((), (Put(ELECTION_KEY, b"", lease),))))
    judge.refresh(state)
    assert may_have_capability(judge, "bookie/b3", RECOVER, 1, ["i1"])
