"""The ledger's record: round trip, and every transition that must not be."""

from dataclasses import replace

import pytest

from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_keys import (
    bookie_id_of,
    bookie_ledger_key,
    delete_key,
    ledger_id_of,
    ledger_key,
)
from distributedlog.ledger.model.ledger_metadata import (
    DeclaredLoss,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.interfaces.errors import CorruptData, UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack, unpack


def ledger(**changes: object) -> LedgerMetadata:
    base = LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        ensembles=(Fragment(0, ("a", "b", "c"), 0),),
        key=bytes(range(16)),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_record_survives_its_bytes() -> None:
    full = ledger(
        owner=(4, 9), custom={"x": b"\x00\xff"}, creation_token=2**63, created_ms=17, incarnation=3
    ).with_fragment(5, ("a", "d", "c"))
    closed = full.in_recovery().close_by_recovery(9, 1234, full.ensembles)

    lost = closed.with_loss(DeclaredLoss(2, 3, "op", 1, "gone"))
    for one in (ledger(), full, closed, lost):
        assert LedgerMetadata.decode(ledger_key(one.ledger_id), one.encode()) == one


def test_a_cut_or_newer_record_is_refused() -> None:
    value = ledger().encode()
    for length in range(len(value)):
        with pytest.raises(CorruptData):
            LedgerMetadata.decode(ledger_key(7), value[:length])
    fields = unpack(value, "")
    fields["format"] = 3
    with pytest.raises(UnsupportedFormat):
        LedgerMetadata.decode(ledger_key(7), pack(fields))
    fields["format"], fields["quorums"] = 1, [3, 2, 3]
    with pytest.raises(CorruptData):
        LedgerMetadata.decode(ledger_key(7), pack(fields))


def test_what_was_given_up_is_a_newer_format_and_no_other_record_is() -> None:
    """A program of before refuses it in words, and would give out what is not to be given (H103)."""
    closed = ledger().close_by_writer(9, 100)

    assert unpack(closed.encode(), "")["format"] == 1
    assert "lost" not in unpack(closed.encode(), "")
    assert unpack(closed.with_loss(DeclaredLoss(0, 0, "op", 1, "")).encode(), "")["format"] == 2


def test_what_is_given_up_twice_stays_as_it_was_said_first() -> None:
    closed = ledger().close_by_writer(9, 100)
    first, second = DeclaredLoss(3, 5, "a", 1, "x"), DeclaredLoss(1, 7, "b", 2, "y")

    lost = closed.with_loss(first).with_loss(second)

    assert [(one.first, one.last, one.declared_by) for one in lost.lost] == [
        (1, 2, "b"),
        (3, 5, "a"),
        (6, 7, "b"),
    ]
    assert lost.with_loss(second) == lost
    assert [lost.loss_at(entry) is not None for entry in (0, 1, 7, 8)] == [False, True, True, False]
    assert (lost.last_before_loss(8, 9), lost.last_before_loss(0, 9)) == (9, 0)
    with pytest.raises(AssertionError):
        ledger().with_loss(first)
    with pytest.raises(AssertionError):
        closed.with_loss(DeclaredLoss(9, 10, "a", 1, ""))


def test_a_fragment_at_the_same_entry_replaces_the_last_one() -> None:
    """Invariant 6."""
    changed = ledger().with_fragment(5, ("a", "d", "c")).with_fragment(5, ("a", "e", "c"))

    assert [(f.first_entry, f.bookies, f.epoch) for f in changed.ensembles] == [
        (0, ("a", "b", "c"), 0),
        (5, ("a", "e", "c"), 2),
    ]
    assert changed.fragment_of(4).epoch == 0
    assert changed.fragment_of(5).epoch == 2
    assert changed.fragment_of(10**9).epoch == 2
    assert changed.bookies() == ("a", "b", "c", "e")
    assert changed.fragment_end(0) == 5
    assert changed.fragment_end(1) is None


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("inv. 6", lambda one: one.with_fragment(5, "ade").with_fragment(4, "adf")),
        ("inv. 1", lambda one: one.with_fragment(5, "aad")),
        ("inv. 1", lambda one: one.with_fragment(5, "ad")),
        ("inv. 10", lambda one: one.in_recovery().with_fragment(5, "ade")),
        ("open", lambda one: one.in_recovery().close_by_writer(5, 10)),
        ("inv. 19", lambda one: one.close_by_recovery(5, 10, one.ensembles)),
        ("recovery", lambda one: one.close_by_writer(5, 10).in_recovery()),
        ("H13", lambda one: one.owned_by((1, 1)).deleting()),
        ("inv. 2", lambda one: replace(one, last_entry=3)),
        ("inv. 1", lambda one: replace(one, ack_quorum=4)),
        ("inv. 28", lambda one: one.with_bookie_replaced(0, 1, "d")),
        (
            "inv. 21",
            lambda one: (
                one.with_fragment(5, "ade")
                .in_recovery()
                .close_by_recovery(
                    9, 9, (Fragment(0, ("x", "y", "z"), 0), Fragment(5, ("a", "d", "e"), 1))
                )
            ),
        ),
    ],
)
def test_what_must_not_happen_is_an_assert(what: str, change: object) -> None:
    with pytest.raises(AssertionError, match=what):
        change(ledger())  # type: ignore[operator]


def test_closing_ends_the_ledger() -> None:
    closed = ledger().close_by_writer(41, 1000)

    assert closed.closed
    assert (closed.last_entry, closed.length) == (41, 1000)
    assert closed.fragment_end(0) == 42
    assert closed.with_bookie_replaced(0, 1, "z").ensembles[0].bookies == ("a", "z", "c")
    assert closed.deleting().state is LedgerState.DELETING


def test_keys_sort_as_their_ids_and_read_back() -> None:
    assert sorted([ledger_key(300), ledger_key(7), ledger_key(2**40)]) == [
        ledger_key(7), ledger_key(300), ledger_key(2**40),
    ]  # fmt: skip
    assert ledger_id_of(bookie_ledger_key("b1", 77)) == 77
    assert bookie_id_of(delete_key("b1", 77)) == "b1"


def test_a_registration_survives_its_bytes() -> None:
    one = BookieRegistration(
        "b1",
        {"": ("h", 1), "out": ("o", 2)},
        3,
        "r",
        {"k": "v"},
        True,
        5,
        6,
        7,
        (condition(Code.LIMBO, ledgers=2, below=0, cause="a file is gone"),),
    )

    assert BookieRegistration.decode(b"bookie/b1", one.encode()) == one
    assert one.address("out") == ("o", 2)
    assert one.address("other") == ("h", 1)
    with pytest.raises(CorruptData):
        BookieRegistration.decode(b"bookie/b1", one.encode()[:-1])


def test_a_client_of_another_listener_dials_the_first_address_there_is() -> None:
    """Metadata nodes on an unnamed listener, bookies on named ones: a bookie nobody dials is no bookie."""
    one = BookieRegistration("b1", {"inside": ("i", 1), "outside": ("o", 2)})

    assert one.address("outside") == ("o", 2)
    assert BookieRegistration.decode(b"bookie/b1", one.encode()).address("") == ("i", 1)
    assert BookieRegistration("b1", {}).address("") is None


def test_a_registration_is_that_of_its_key() -> None:
    """Whoever wrote it: nobody is dialled where another one says that it listens."""
    value = BookieRegistration("b1", {"": ("host", 4181)}).encode()

    assert BookieRegistration.decode(b"bookie/b1", value).id == "b1"
    with pytest.raises(CorruptData, match="another bookie"):
        BookieRegistration.decode(b"bookie/b2", value)
