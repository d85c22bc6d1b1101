"""What a client that speaks the metadata protocol itself can change in the records of logs and ledgers."""

import inspect
from dataclasses import replace

import pytest

from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import (
    DeclaredLoss,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogEnd, LogState
from distributedlog.log.model.segment_expiry import SegmentCloseTimes, stamps_key
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from tests.metadata.auth.test_authorizer import ORDERS as LOG
from tests.metadata.auth.test_authorizer import as_it_is, changes

from .test_bookie_change_rules import (
    AT,
    CLOCK,
    LOOSE,
    OPEN,
    STATE,
    Store,
    deleted,
    ledger,
    segment,
)

WRITER, OWNER, OPERATOR = "user/etl", "user/own", "user/op"
USERS = (WRITER, OWNER, OPERATOR)
CLOSED = ledger(13, 3)
CLOSED_AT = keys.ledger_key(13)
OPEN_AT = keys.ledger_key(14)
SEGMENT_AT = log_keys.segment_key(LOG, 3)
LOSS = DeclaredLoss(3, 9, "host/4711", 1, "two disks")
Operations = tuple[Put | Delete, ...]


def closed(**fields: object) -> Put:
    return Put(CLOSED_AT, replace(CLOSED, **fields).encode())  # type: ignore[arg-type]


def opened(**fields: object) -> Put:
    return Put(OPEN_AT, replace(OPEN, **fields).encode())  # type: ignore[arg-type]


def state(**fields: object) -> Put:
    return Put(AT, replace(STATE, **fields).encode())  # type: ignore[arg-type]


def ended_segment(**fields: object) -> SegmentRecord:
    return segment(4, **{"epoch": 4, "start_sequence_id": 30, **fields})


def closes(record: SegmentRecord, end: LedgerMetadata) -> Operations:
    """The open segment is closed, with its ledger."""
    after = replace(STATE, epoch=5).with_closed(4, record.totals)
    return (
        Put(log_keys.segment_key(LOG, 4), record.encode()),
        Put(AT, after.encode()),
        Put(OPEN_AT, end.encode()),
    )


ATTACKS: dict[str, Operations] = {
    "the key of a closed segment is deleted": (Delete(SEGMENT_AT),),
    "the key of a closed segment is deleted with the state put again": (
        Delete(SEGMENT_AT),
        Put(AT, STATE.encode()),
    ),
    "a segment above the truncation point is deleted": (
        Delete(log_keys.segment_key(LOG, 1)),
        Delete(log_keys.segment_key(LOG, 2)),
        state(first_segment=3),
    ),
    "the open segment is deleted": (Delete(log_keys.segment_key(LOG, 4)),),
    "a closed segment is opened again": (Put(SEGMENT_AT, SegmentRecord(3, 13, 1, 0).encode()),),
    "a closed segment has fewer records": (Put(SEGMENT_AT, segment(3, records=1).encode()),),
    "a closed segment ends earlier": (Put(SEGMENT_AT, segment(3, last_entry=2).encode()),),
    "a closed segment names another ledger": (Put(SEGMENT_AT, segment(3, ledger_id=11).encode()),),
    "a closed segment is unreadable": (Put(SEGMENT_AT, b"\x00"),),
    "the open segment names another ledger": (
        Put(log_keys.segment_key(LOG, 4), SegmentRecord(4, 13, 4, 0).encode()),
    ),
    "a segment is closed below the end of its ledger": closes(
        ended_segment(last_entry=5), OPEN.close_by_writer(9, 100)
    ),
    "a segment is closed without the state": closes(ended_segment(), OPEN.close_by_writer(9, 100))[
        :1
    ],
    "a segment is closed with its ledger open": closes(ended_segment(), OPEN),
    "a segment is added in front": (
        Put(log_keys.segment_key(LOG, 0), inspect.unwrap(SegmentRecord.encode)(segment(0))),
    ),
    "a segment is added over a gap": (
        Put(log_keys.segment_key(LOG, 6), SegmentRecord(6, 14, 4, 0).encode()),
        state(last_segment=6, first_open_segment=5),
    ),
    "a closed ledger's record is deleted": (Delete(CLOSED_AT),),
    "an open ledger's record is deleted": (Delete(OPEN_AT),),
    "a ledger that a segment refers to is deleted": deleted(13, CLOSED),
    "a ledger that an open segment refers to is deleted": deleted(14, OPEN),
    "a closed ledger ends earlier": (closed(last_entry=2, length=30),),
    "a closed ledger has another length": (closed(length=1),),
    "a closed ledger is open again": (
        closed(state=LedgerState.OPEN, last_entry=None, length=None),
    ),
    "a closed ledger belongs to no log": (closed(owner=None),),
    "a closed ledger belongs to another segment": (closed(owner=(LOG, 2)),),
    "a closed ledger has another key": (closed(key=b"x" * 16),),
    "a closed ledger has other quorums": (closed(ack_quorum=2),),
    "a closed ledger has other metadata": (closed(custom={"x": b"y"}),),
    "a closed ledger has other fragments": (
        closed(ensembles=(Fragment(0, ("i1", "i2"), 1), Fragment(5, ("i3", "i4"), 2))),
    ),
    "an open ledger has another key": (opened(key=b"x" * 16),),
    "an open ledger has smaller quorums": (opened(write_quorum=1),),
    "an open ledger belongs to another log": (opened(owner=(0x22, 1)),),
    "a staged ledger is linked where no segment names it": (
        Put(keys.ledger_key(20), LOOSE.owned_by((LOG, 9)).encode()),
    ),
    "a log has fewer segments": (state(last_segment=3),),
    "a log has more segments than there are": (state(last_segment=5),),
    "an open segment counts as closed": (state(first_open_segment=5),),
    "a closed segment counts as open": (state(first_open_segment=3),),
    "the first segment is said to be gone": (state(first_segment=4),),
    "the truncation point goes back": (state(truncated_to=DLSN(1, 0, 0)),),
    "the truncation point is after the end": (state(truncated_to=DLSN(6, 0, 0)),),
    "the sequence of records goes back": (state(next_sequence_id=1),),
    "a log is larger than it is, so that retention deletes": (state(bytes_total=1 << 40),),
    "a log is older than it is": (state(time_ms=1 << 40),),
    "the epoch is far ahead": (state(epoch=99),),
    "the epoch goes back": (state(epoch=1),),
    "the log has ended": (state(end=LogEnd(DLSN(1, 0, 0), 0, is_exact=True)),),
    "the state is deleted": (Delete(AT),),
    "a mark makes a segment old": (Put(stamps_key(LOG), SegmentCloseTimes(((3, 0),)).encode()),),
    "a mark is now": (Put(stamps_key(LOG), SegmentCloseTimes(((1, 0), (3, CLOCK))).encode()),),
    "the marks are deleted": (Delete(stamps_key(LOG)),),
}


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("what", ATTACKS)
def test_no_user_changes_a_record_but_by_a_defined_transition(what: str, who: str) -> None:
    store = Store()
    operations = ATTACKS[what]
    assert not store.may(*operations, who=who)
    assert not store.may(*operations, who=who, compares=[])


TRANSITIONS: dict[str, tuple[tuple[str, ...], Operations]] = {
    "a claim": ((WRITER, OWNER), (state(epoch=5, owner="w", writer_id="1"),)),
    "an ensemble change of an open ledger": (
        (WRITER, OWNER, OPERATOR),
        (Put(OPEN_AT, OPEN.with_fragment(5, ("i1", "i3")).encode()),),
    ),
    "a replaced last ensemble of an open ledger": (
        (WRITER, OWNER, OPERATOR),
        (Put(OPEN_AT, OPEN.with_fragment(0, ("i1", "i3")).encode()),),
    ),
    "a recovery begins": (
        (WRITER, OWNER, OPERATOR),
        (Put(OPEN_AT, OPEN.in_recovery().encode()),),
    ),
    "a roll": ((WRITER, OWNER), closes(ended_segment(), OPEN.close_by_writer(9, 100))),
    "a new segment": (
        (WRITER, OWNER),
        (
            state(last_segment=5),
            Put(log_keys.segment_key(LOG, 5), SegmentRecord(5, 15, 4, 0).encode()),
            Put(
                keys.ledger_key(15),
                replace(OPEN, ledger_id=15, owner=(LOG, 5)).encode(),
            ),
        ),
    ),
    "a staged ledger is deleted": (USERS, deleted(20, LOOSE)),
    "entries are declared lost": ((OWNER, OPERATOR), (closed(lost=(LOSS,)),)),
    "the end of an open ledger is declared": (
        (OWNER, OPERATOR),
        (Put(OPEN_AT, OPEN.close_by_writer(9, 100).with_custom({"closed_by": b"me"}).encode()),),
    ),
    "a truncation": ((OWNER,), (state(truncated_to=DLSN(3, 5, 0), truncated_sequence_id=25),)),
    "other quorums": ((OWNER,), (state(quorums=(1, 1, 1)),)),
    "the deletion of the log begins": ((OWNER,), (state(epoch=5, deleting=True),)),
    "a hold of retention": (
        (WRITER, OWNER),
        (Put(stamps_key(LOG), SegmentCloseTimes(((1, 0), (2, 40_000))).encode()),),
    ),
}


@pytest.mark.parametrize("what", TRANSITIONS)
def test_who_may_make_a_transition(what: str) -> None:
    """A writer appends, an owner or operator gives records up; each only on what it has read."""
    allowed, operations = TRANSITIONS[what]
    for who in USERS:
        assert Store().may(*operations, who=who) == (who in allowed), who
    if what != "a hold of retention":
        assert not Store().may(*operations, who=allowed[0], compares=[])


def test_a_bookie_is_replaced_in_a_closed_ledger_by_an_operator_and_no_writer() -> None:
    moved = replace(CLOSED.ensembles[0], bookies=("i1", "i3"))
    swap = (
        closed(ensembles=(moved,)),
        Put(keys.bookie_ledger_key("i3", 13), b""),
        Delete(keys.bookie_ledger_key("i2", 13)),
    )
    assert [who for who in USERS if Store().may(*swap, who=who)] == [OPERATOR]


def test_a_merge_is_an_owners() -> None:
    merged = [
        segment(n, ledger_id=20, base_entry=10 * (n - 1), base_bytes=100 * (n - 1))
        for n in (1, 2, 3)
    ]
    swap = (
        Put(AT, STATE.encode()),
        *(Put(log_keys.segment_key(LOG, one.segment), one.encode()) for one in merged),
        Put(keys.ledger_key(20), LOOSE.owned_by((LOG, 3)).encode()),
    )
    assert [who for who in USERS if Store().may(*swap, who=who)] == [OWNER]
    store = Store()
    store.put(*swap)
    assert not store.may(*deleted(20, LOOSE.owned_by((LOG, 3))), who=OWNER)
    assert not store.may(*deleted(13, CLOSED), who=WRITER), "it was acknowledged there"
    assert store.may(*deleted(13, CLOSED), who=OWNER)
    short = Store()
    short.put(Put(keys.ledger_key(20), replace(LOOSE, last_entry=28).encode()))
    assert not short.may(
        *swap[:-1],
        Put(keys.ledger_key(20), replace(LOOSE, last_entry=28, owner=(LOG, 3)).encode()),
        who=OWNER,
    ), "one entry of the last segment is not in it"


def test_a_link_adds_closed_segments_once() -> None:
    store = Store()
    store.put(*closes(ended_segment(), OPEN.close_by_writer(9, 100)))
    now = replace(STATE, epoch=5).with_closed(4, ended_segment().totals)
    added = segment(
        5, ledger_id=20, start_sequence_id=40, bytes_before=400, last_entry=29, records=30
    )
    linked = now.with_linked(added.totals)

    def link(record: SegmentRecord, after: LogState) -> Operations:
        return (
            Put(AT, after.encode()),
            Put(log_keys.segment_key(LOG, 5), record.encode()),
            Put(keys.ledger_key(20), LOOSE.owned_by((LOG, 5)).encode()),
        )

    assert store.may(*link(added, linked), who=WRITER)
    short = replace(added, last_entry=9)
    assert not store.may(*link(short, now.with_linked(short.totals)), who=WRITER)
    for wrong in (replace(linked, next_sequence_id=40), replace(linked, bytes_total=1 << 50)):
        assert not store.may(*link(added, wrong), who=WRITER)
    store.put(*link(added, linked))
    assert not store.may(*deleted(20, LOOSE.owned_by((LOG, 5))), who=OWNER)


def test_a_log_that_is_deleted_goes_whole_or_front_first() -> None:
    marked = state(epoch=5, deleting=True)
    gone = (*(Delete(log_keys.segment_key(LOG, n)) for n in (1, 2, 3, 4)), Delete(AT))
    ledgers = (
        *(one for n in (1, 2, 3) for one in deleted(10 + n, ledger(10 + n, n))),
        *deleted(14, OPEN),
    )
    front = (
        state(epoch=5, deleting=True, first_segment=3),
        *(Delete(log_keys.segment_key(LOG, n)) for n in (1, 2)),
        *(one for n in (1, 2) for one in deleted(10 + n, ledger(10 + n, n))),
    )
    for operations in ((*gone, *ledgers), front):
        assert not Store().may(*operations, who=OWNER), "it is not marked as being deleted"
        store = Store()
        store.put(marked)
        assert store.may(*operations, who=OWNER)
        assert not store.may(*operations, who=WRITER)
    store = Store()
    store.put(marked)
    left = state(epoch=5, deleting=True, first_segment=3)
    assert not store.may(left, who=OWNER), "its first segment is there still"


def test_an_end_below_the_last_ensemble_is_refused() -> None:
    """All entries before the last ensemble were confirmed when it began."""
    store = Store()
    two = OPEN.with_fragment(5, ("i1", "i3"))
    store.put(Put(OPEN_AT, two.encode()))
    for end, may in ((3, False), (4, True), (9, True)):
        assert store.may(Put(OPEN_AT, two.close_by_writer(end, 1).encode()), who=WRITER) == may
    first = replace(two, ensembles=two.ensembles[:1])
    assert not store.may(Put(OPEN_AT, first.encode()), who=WRITER)
    assert not store.may(
        Put(OPEN_AT, replace(two, ensembles=(Fragment(0, ("i3", "i4"), 9),)).encode()), who=WRITER
    )


def test_a_change_that_was_allowed_is_not_applied_to_a_later_record() -> None:
    """A client sends several transactions at once. Each is checked before the one in front is applied."""
    early = Put(OPEN_AT, OPEN.close_by_writer(2, 30).encode())
    store = Store()
    now = store.version(OPEN_AT)
    assert store.may(early, who=WRITER), "an open ledger: nobody knows where it ends"
    for unpinned in (
        [],
        [Compare.exists(OPEN_AT)],
        [Compare.version(OPEN_AT, now + 1)],
        [Compare.version(AT, store.version(AT))],
        [Compare.mod_revision(OPEN_AT, store.state.revision + 1)],
    ):
        assert not store.may(early, who=WRITER, compares=unpinned), unpinned
    late = [Compare.version(OPEN_AT, now)]
    store.put(Put(OPEN_AT, OPEN.close_by_writer(9, 100).encode()))
    assert store.may(early, who=WRITER, compares=late), "it fails by its condition"
    assert not store.may(early, who=WRITER)


def test_a_record_that_cannot_be_read_is_replaced_by_owner_or_operator() -> None:
    store = Store()
    store.put(Put(SEGMENT_AT, b"\x00"), Put(CLOSED_AT, b"\x00"), Put(OPEN_AT, OPEN.encode()))
    assert [
        w for w in USERS if store.may(Put(SEGMENT_AT, segment(3, ledger_id=14).encode()), who=w)
    ] == [OWNER]
    assert [w for w in USERS if store.may(closed(), who=w)] == [OPERATOR]


@pytest.mark.parametrize("who", [WRITER, OWNER, OPERATOR, "bookie/b1"])
@pytest.mark.parametrize(
    "key",
    [AT, SEGMENT_AT, CLOSED_AT, keys.NEXT_LEDGER, stamps_key(LOG)],
    ids=lambda key: key.decode(),
)
def test_no_record_is_put_under_a_lease(key: bytes, who: str) -> None:
    """It would go with the lease, and no rule is asked then. Its value may be the one that it has."""
    store = Store()
    lease = store.grant(who)
    found = store.state.get(key)
    value = b"" if found is None else found.value
    if key == keys.NEXT_LEDGER:
        value = b"2001"
    refused = store.judge.authorize_transaction(who, as_it_is(store.state, Put(key, value, lease)))
    assert refused is not None


def test_a_lock_is_put_under_a_lease() -> None:
    store = Store()
    lock = Put(log_keys.lock_key(LOG), b"", store.grant(WRITER))
    assert store.judge.authorize_transaction(WRITER, as_it_is(store.state, lock)) is None


LINES: dict[str, tuple[Operations, tuple[str, str]]] = {
    "a declared loss": ((closed(lost=(LOSS,)),), ("accept-loss", "ledger 13 entries 3-9")),
    "a declared end": (
        (Put(OPEN_AT, OPEN.close_by_writer(8, 90).with_custom({"closed_by": b"x"}).encode()),),
        ("accept-loss", "ledger 14 end 8"),
    ),
    "a truncation": (
        (state(truncated_to=DLSN(3, 0, 0)),),
        ("truncate", "orders (0000000000000011)"),
    ),
    "segments of a log that is being deleted": (
        (state(deleting=True, first_segment=3),),
        ("delete-segments", "orders (0000000000000011) up to 2"),
    ),
    "a state without its name": ((Delete(AT),), ("delete-log", "0000000000000011")),
}


@pytest.mark.parametrize("what", LINES)
def test_what_gives_records_up_has_a_line_of_the_audit(what: str) -> None:
    store = Store()
    operations, line = LINES[what]
    assert store.judge.audited_action(OWNER, Transaction((), operations)) == line
    assert store.judge.audited_action("bookie/b1", Transaction((), operations)) is None


def test_what_appends_has_no_line_of_the_audit() -> None:
    store = Store()
    for operations in (
        closes(ended_segment(), OPEN.close_by_writer(9, 100)),
        (Put(OPEN_AT, OPEN.in_recovery().encode()),),
        (state(epoch=5),),
    ):
        assert store.judge.audited_action(WRITER, Transaction((), operations)) is None
    named = changes(Delete(AT), Delete(log_keys.name_key("shop", "orders")))
    assert store.judge.audited_action(OWNER, named) == ("delete-log", "shop/orders")
