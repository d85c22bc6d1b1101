"""May this principal do that? By the table of the whole tree."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.cluster.repair.auditor_election import ELECTION_KEY
from distributedlog.cluster.repair.pull_replication import ReplicaMove
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.log.model import log_keys
from distributedlog.log.model.deleted_log import deleted_logs_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.model.stored_settings import bind_key, conf_key
from distributedlog.metadata.auth.authorizer import Authorizer
from distributedlog.metadata.model.acl_records import (
    MODE_KEY,
    User,
    encode_grant,
    encode_mode,
    grant_key,
    user_key,
)
from distributedlog.metadata.model.commands import (
    AuthorizationChange,
    ExpireLease,
    GrantLease,
    Transact,
)
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.rights import (
    ADMIN,
    AUTHENTICATED,
    MANAGE,
    OPERATOR,
    READ,
    REPAIR_LEADER,
    REPLICA_HOLDER,
    WRITE,
)
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import NotAllowed
from distributedlog.runtime.protocol.frames import pack
from distributedlog.runtime.protocol.tokens import covers
from tests.examples import examples

from ..state.test_kv_state import do

NS = "shop"
ORDERS, SECRET, BILLS = 0x11, 0x22, 0x33
NAMES = {"orders": ORDERS, "orders-secret": SECRET, "bills/eu": BILLS}
LEDGERS = {1: ORDERS, 2: SECRET, 3: BILLS}


def record(ledger_id: int, log_id: int, bookies: tuple[str, ...] = ("i1", "i2")) -> LedgerMetadata:
    fragment = Fragment(0, bookies, 1)
    sizes = len(bookies), len(bookies), 1
    owner = (log_id, 1) if log_id else None
    return LedgerMetadata(ledger_id, *sizes, (fragment,), b"k" * 16, owner=owner)


def cookie(label: str, principal: str = "") -> bytes:
    said = {"cluster": "c", "incarnation": 1, "label": label, "start": "s", "restores": 0}
    return pack({**said, "principal": principal} if principal else said)


def grants(*rows: tuple[str, str, str, str]) -> list[Put]:
    """Rows of user, role, namespace, path."""
    users = {user: Put(user_key(user), User().encode()) for user, *_ in rows}
    return [
        *users.values(),
        *(Put(grant_key(user, ns, path), encode_grant(role)) for user, role, ns, path in rows),
    ]


def world(
    *rows: tuple[str, str, str, str], mode: str = "required"
) -> tuple[Authorizer, KeyValueState]:
    """Three logs with a ledger each, two bookies, and these grants."""
    state = KeyValueState()
    do(state, GrantLease("bookie/b1/c", 1, 0, 1000))
    puts = [
        Put(keys.cookie_key("i1"), cookie("b1")),
        Put(keys.cookie_key("i2"), cookie("b2")),
        Put(keys.cookie_key("i3"), cookie("b3")),
        Put(b"next/ledger", b"1001"),
        Put(b"secret/ledgers", b"key"),
        *(Put(log_keys.name_key(NS, name), log_keys.encode_log_id(n)) for name, n in NAMES.items()),
        *(Put(log_keys.state_key(n), LogState(n, name, 0).encode()) for name, n in NAMES.items()),
        *(Put(keys.ledger_key(one), record(one, log).encode()) for one, log in LEDGERS.items()),
    ]
    do(state, Transact("c", 1, 0, Transaction((), tuple(puts))))
    said = Transaction((), (*grants(*rows), Put(MODE_KEY, encode_mode(mode))))
    do(state, AuthorizationChange("c", 2, 0, said))
    judge = Authorizer(KEY_CLASSES)
    judge.refresh(state)
    return judge, state


READER = ("ann", "reader", NS, "orders")
WRITER = ("etl", "writer", NS, "orders")
OWNER = ("own", "owner", NS, "orders")


def segment(ledger_id: int, number: int = 1) -> bytes:
    return SegmentRecord(number, ledger_id, 1, 0).encode()


def changes(*operations: Put | Delete, compares: Iterable[bytes] = ()) -> Transaction:
    return Transaction(tuple(Compare.exists(key) for key in compares), operations)


def as_it_is(state: KeyValueState, *operations: Put | Delete) -> Transaction:
    """These operations, on the condition that the records that they change are as they are now."""
    wanted: dict[bytes, None] = {}
    for one in operations:
        if one.key.startswith((b"log/", keys.LEDGER_PREFIX)):
            wanted[one.key] = None
        if one.key.startswith(b"log/"):
            wanted[one.key[: len(b"log/") + 16] + b"/state"] = None
    versions = {key: state.get(key) for key in wanted}
    return Transaction(
        tuple(
            Compare.version(key, 0 if found is None else found.version)
            for key, found in versions.items()
        ),
        operations,
    )


OF_ORDERS = [
    log_keys.state_key(ORDERS),
    log_keys.segment_key(ORDERS, 1),
    log_keys.lock_key(ORDERS),
    log_keys.position_key(ORDERS, "p"),
    log_keys.work_key(ORDERS, "w"),
    log_keys.app_version_key(ORDERS, "app"),
    log_keys.staged_ledger_key(ORDERS, 9),
    log_keys.purge_key(ORDERS),
    conf_key(ORDERS),
    keys.ledger_key(1),
    keys.missing_ranges_key(1),
]


def test_a_reader_reads_its_log_and_no_other() -> None:
    judge, _ = world(READER, WRITER)
    for key in OF_ORDERS:
        assert judge.read_error("user/ann", key) is None
        assert judge.read_error("user/nobody", key) is not None
        assert judge.read_error("anonymous", key) is not None
        refused = judge.authorize_transaction("user/ann", changes(Delete(key)))
        assert refused is not None
        assert "needs" in str(refused)
    for key in (log_keys.state_key(SECRET), keys.ledger_key(2), log_keys.name_key(NS, "bills/eu")):
        assert judge.read_error("user/ann", key) is not None
        assert judge.read_error("user/etl", key) is not None


def test_a_writer_writes_its_log_and_manages_it_not() -> None:
    judge, state = world(WRITER, OWNER)
    before = LogState(ORDERS, "orders", 0)
    state_at = log_keys.state_key(ORDERS)
    appended = as_it_is(
        state,
        Put(state_at, replace(before, epoch=1, owner="w", last_segment=1).encode()),
        Put(log_keys.segment_key(ORDERS, 1), segment(9)),
        Put(keys.ledger_key(9), record(9, ORDERS).encode()),
        Put(keys.bookie_ledger_key("i1", 9), b""),
    )
    assert judge.authorize_transaction("user/etl", appended) is None

    for managed in (
        Put(state_at, LogState(ORDERS, "orders", 0, sealed=True).encode()),
        Put(state_at, LogState(ORDERS, "orders", 0, quorums=(1, 1, 1)).encode()),
        Put(state_at, LogState(ORDERS, "orders", 0, deleting=True).encode()),
        Delete(log_keys.name_key(NS, "orders")),
        Put(conf_key(ORDERS), b""),
    ):
        assert judge.authorize_transaction("user/etl", as_it_is(state, managed)) is not None
        assert judge.authorize_transaction("user/own", as_it_is(state, managed)) is None
    gone = as_it_is(state, Delete(state_at))
    assert judge.authorize_transaction("user/own", gone) is not None, (
        "it is not marked as being deleted"
    )
    deleting = LogState(ORDERS, "orders", 0, deleting=True).encode()
    do(state, Transact("c", 3, 0, changes(Put(state_at, deleting))))
    judge.refresh(state)
    assert judge.authorize_transaction("user/own", as_it_is(state, *gone.operations)) is None
    assert judge.authorize_transaction("user/etl", as_it_is(state, *gone.operations)) is not None


def test_a_ledger_belongs_to_its_log_from_birth() -> None:
    """Nobody makes one for another's log, nor takes another's over into its own."""
    judge, state = world(WRITER)
    theirs = changes(Put(keys.ledger_key(9), record(9, SECRET).encode()))
    stolen = changes(Put(keys.ledger_key(2), record(2, ORDERS).encode()))
    orphan = changes(Put(keys.ledger_key(9), record(9, 0).encode()))
    given = changes(Put(keys.ledger_key(1), record(1, SECRET).encode()))
    staged = replace(record(4, 0), incarnation=ORDERS)
    do(state, Transact("c", 3, 0, changes(Put(keys.ledger_key(4), staged.encode()))))
    judge.refresh(state)
    dropped = Put(keys.ledger_key(4), staged.deleting().encode())
    assert judge.authorize_transaction("user/etl", as_it_is(state, dropped)) is None
    theirs_dropped = changes(Put(keys.ledger_key(2), record(2, 0).deleting().encode()))
    for one in (
        theirs, stolen, orphan, given, theirs_dropped, changes(Put(keys.bookie_ledger_key("i1", 2), b""))
    ):  # fmt: skip
        assert judge.authorize_transaction("user/etl", as_it_is(state, *one.operations)) is not None


def test_a_segment_is_of_a_ledger_of_its_own_log() -> None:
    """The purger deletes what a log's segments name, a merge and a read proxy read it, with rights of their
    own: by a segment that names another log's ledger, a writer would have them do it there."""
    judge, state = world(WRITER, ("all", "owner", NS, ""))
    at = log_keys.segment_key(ORDERS, 1)
    one_more = Put(
        log_keys.state_key(ORDERS), LogState(ORDERS, "orders", 0, last_segment=1).encode()
    )

    def may(who: str, *operations: Put | Delete) -> bool:
        return judge.authorize_transaction(who, as_it_is(state, one_more, *operations)) is None

    for ledger in (2, 77, 0):  # another log's; one that is not there, and may be another's tomorrow
        assert not may("user/etl", Put(at, segment(ledger))), ledger
        assert not may("user/all", Put(at, segment(ledger))), ledger
    assert not may(
        "user/etl", Put(keys.ledger_key(9), record(9, SECRET).encode()), Put(at, segment(9))
    )
    assert not may("user/etl", Put(at, b"no segment"))
    assert may("user/etl", Put(at, segment(1)))
    assert not may("bookie/b1", Put(at, segment(1))), "it repairs not"

    do(state, Transact("c", 9, 0, changes(one_more, Put(at, segment(1)))))
    judge.refresh(state)
    named = Put(keys.ledger_key(9), record(9, ORDERS).encode())
    assert not may("user/etl", named, Put(at, segment(9))), "a segment stays in its ledger"
    assert not may("user/all", named, Put(at, segment(9)))
    assert may(
        "user/etl",
        Put(at, SegmentRecord(1, 1, 1, 0).with_start(LogState(ORDERS, "orders", 0)).encode()),
    )
    do(state, Transact("c", 10, 0, changes(Put(ELECTION_KEY, b"", lease=1))))
    judge.refresh(state)
    assert not may("bookie/b1", Put(at, segment(2))), "though it repairs"


def test_a_logs_state_is_never_another_logs() -> None:
    """What is truncated away goes by the id in the state's value: that is the key's."""
    judge, store = world(OWNER, ("all", "owner", NS, ""))
    at = log_keys.state_key(ORDERS)
    for log_id, refused in ((ORDERS, False), (SECRET, True), (0x99, True)):
        state = LogState(log_id, "orders", 0, sealed=True)
        for user in ("own", "all"):
            said = judge.authorize_transaction(
                f"user/{user}", as_it_is(store, Put(at, state.encode()))
            )
            assert (said is not None) == refused, (user, log_id)
    made = LogState(SECRET, "new", 0).encode()
    name = Put(log_keys.name_key(NS, "new"), log_keys.encode_log_id(0x99))
    new = changes(name, Put(log_keys.state_key(0x99), made))
    assert judge.authorize_transaction("user/all", new) is not None


def test_a_compare_is_a_read() -> None:
    """H234: a transaction that does not hold tells what it compared, or that it is there."""
    judge, _ = world(WRITER)
    own = Put(log_keys.app_version_key(ORDERS, "app"), b"")
    for hidden in (log_keys.state_key(SECRET), b"secret/ledgers", log_keys.name_key(NS, "x")):
        assert judge.authorize_transaction("user/etl", changes(own, compares=[hidden])) is not None
    assert judge.authorize_transaction("user/etl", changes(own)) is None


def test_absent_and_forbidden_are_refused_in_the_same_words() -> None:
    """H234"""
    judge, _ = world(WRITER)
    there = str(judge.read_error("user/etl", log_keys.name_key(NS, "orders-secret")))
    absent = str(judge.read_error("user/etl", log_keys.name_key(NS, "orders-secre_")))
    assert there.replace("orders-secret", "") == absent.replace("orders-secre_", "")


def test_a_list_of_names_is_that_of_ones_own() -> None:
    """H234, H235"""
    judge, state = world(READER, ("bob", "reader", NS, "bills/"), ("all", "reader", NS, ""))

    def names(principal: str) -> list[str]:
        start = log_keys.name_key(NS, "")
        parts = judge.authorize_read(principal, start, prefix_end(start))
        assert not isinstance(parts, NotAllowed)
        assert not callable(parts)
        page = (
            state.range_of_parts(parts, 100)
            if parts is not None
            else state.range(start, prefix_end(start), 100)
        )
        return [log_keys.log_name_in_key(NS, item.key) for item in page.items]

    assert names("user/ann") == ["orders"]
    assert names("user/bob") == ["bills/eu"]
    assert names("user/all") == names("proxy/p1") == sorted(NAMES)
    assert names("user/nobody") == names("anonymous") == []


def test_a_page_of_parts_goes_on_where_it_ended() -> None:
    judge, state = world(("a", "reader", NS, "bills/"), ("a", "reader", NS, "orders-secret"))
    start, end = b"name/", b"name0"
    found: list[bytes] = []
    while True:
        parts = judge.authorize_read("user/a", start, end)
        assert isinstance(parts, tuple)
        page = state.range_of_parts(parts, 1)
        found += [item.key for item in page.items]
        if not page.more:
            break
        start = page.items[-1].key + b"\0"
    assert found == [log_keys.name_key(NS, name) for name in ("bills/eu", "orders-secret")]


def test_a_range_lies_within_one_log() -> None:
    judge, _ = world(READER)
    own = b"log/%016x/" % ORDERS
    assert judge.authorize_read("user/ann", own, prefix_end(own)) is None
    assert (
        judge.authorize_read("user/ann", own + b"segment/", prefix_end(own + b"segment/")) is None
    )
    assert (
        judge.authorize_read("user/ann", keys.BOOKIE_PREFIX, prefix_end(keys.BOOKIE_PREFIX)) is None
    )
    for start, end in (
        (own, b"log/%016x0" % SECRET),
        (b"log/", b"log0"),
        (b"log/%016x" % ORDERS, b"log/%016x0" % ORDERS),
        (keys.LEDGER_PREFIX, prefix_end(keys.LEDGER_PREFIX)),
        (b"a", b"z"),
        (b"", b"\xff"),
        (b"secret/", b"secret0"),
        (b"trust/", b"trust0"),
        (b"audit/", b"audit0"),
    ):
        assert isinstance(judge.authorize_read("user/ann", start, end), NotAllowed)


def test_secrets_are_for_nobody_and_what_is_unknown_for_nobody_to_write() -> None:
    judge, _ = world(("root", "admin", "", ""))
    everybody = ("user/root", "user/local", "bookie/b1", "proxy/p1", "metadata/m1", "anonymous")
    for principal in everybody:
        assert judge.read_error(principal, b"secret/ledgers") is not None
        assert (
            judge.authorize_transaction(principal, changes(compares=[b"secret/ledgers"]))
            is not None
        )
        assert isinstance(judge.authorize_read(principal, b"secret/", b"secret0"), NotAllowed)
        assert isinstance(judge.authorize_read(principal, b"rep", b"trust"), NotAllowed)
        for key in (b"secret/x", b"trust/mode", b"audit/1", b"new/kind", b"nothing"):
            assert judge.authorize_transaction(principal, changes(Put(key, b""))) is not None
            assert judge.authorize_transaction(principal, changes(Delete(key))) is not None


def test_who_may_do_what_is_written_by_nobody_in_any_mode() -> None:
    for mode in ("open", "report"):
        judge, _ = world(mode=mode)
        assert judge.authorize_transaction("anonymous", changes(Put(b"anything", b""))) is None
        for key in (b"trust/grant/x", b"audit/1", b"secret/x"):
            assert judge.authorize_transaction("user/local", changes(Put(key, b""))) is not None


def test_an_operator_runs_the_cluster_and_writes_no_log() -> None:
    judge, _ = world(("op", "operator", "", ""))
    for prefix in (
        keys.COOKIE_PREFIX,
        keys.MISSING_RANGES_PREFIX,
        b"log/",
        keys.LEDGER_PREFIX,
        b"name/",
    ):
        assert judge.authorize_read("user/op", prefix, prefix_end(prefix)) is None
    assert judge.authorize_transaction("user/op", changes(Put(keys.leaving_key("i1"), b""))) is None
    assert judge.authorize_transaction("user/op", changes(Put(keys.PLACEMENT, b""))) is None
    for key in (
        log_keys.state_key(ORDERS),
        log_keys.name_key(NS, "new"),
        log_keys.lock_key(ORDERS),
    ):
        assert judge.authorize_transaction("user/op", changes(Put(key, b""))) is not None
    assert not judge.cluster_rights("user/op") & ADMIN


def test_a_bookie_is_the_one_of_its_own_cookie() -> None:
    judge, _ = world()
    own = changes(Put(keys.bookie_key("i1"), b""), Put(keys.sync_point_key("i1"), b""))
    assert judge.authorize_transaction("bookie/b1", own) is None
    assert judge.authorize_transaction("bookie/b2", own) is not None
    assert judge.authorize_transaction("user/b1", own) is not None
    new = keys.cookie_key("i9")
    assert judge.authorize_transaction("bookie/b9", changes(Put(new, cookie("b9")))) is None
    assert judge.authorize_transaction("bookie/b9", changes(Put(new, cookie("b1")))) is not None
    assert (
        judge.authorize_transaction("bookie/b2", changes(Put(keys.cookie_key("i1"), cookie("b2"))))
        is not None
    )


def test_a_bookies_id_stays_with_the_name_in_its_certificate() -> None:
    """H227: not even who repairs puts its own name there, and is given the other one's keys by it."""
    judge, state = world()
    key, registered = keys.cookie_key("i2"), keys.bookie_key("i2")
    named, other = cookie("b2", "bookie/b2"), cookie("b2", "bookie/b1")
    do(state, Transact("c", 5, 0, changes(Put(ELECTION_KEY, b"", 1))))
    judge.refresh(state)
    assert judge.authorize_transaction("bookie/b2", changes(Put(key, named))) is None
    assert judge.authorize_transaction("bookie/b2", changes(Put(key, other))) is not None
    for value in (named, other, cookie("b1")):
        assert judge.authorize_transaction("bookie/b1", changes(Put(key, value))) is not None
    assert judge.authorize_transaction("bookie/b1", changes(Put(registered, b""))) is not None
    for gone in (key, registered):
        assert judge.authorize_transaction("bookie/b1", changes(Delete(gone))) is not None
    do(state, Transact("c", 55, 0, changes(Put(keys.leaving_key("i2"), b""))))
    judge.refresh(state)  # it was drained, and is forgotten
    assert judge.authorize_transaction("bookie/b1", changes(Delete(key))) is None

    do(state, Transact("c", 6, 0, changes(Put(key, cookie("old name", "bookie/b2")))))
    judge.refresh(state)
    assert judge.is_bookie("bookie/b2", "i2")
    assert not judge.is_bookie("bookie/old name", "i2")


def test_a_bookie_with_new_disks_takes_places_beside_the_cookie_of_before() -> None:
    """Its name stands in both until the lost one is given up: which comes first by id does not matter."""
    judge, state = world()
    for number, bookie in enumerate(("i0", "i9"), 5):
        move = keys.move_key(bookie, 2)
        puts = changes(Put(keys.cookie_key(bookie), cookie("b3")), Put(move, b"x"))
        do(state, Transact("c", number, 0, puts))
        judge.refresh(state)
        assert judge.rights_on_ledger("bookie/b3", 2) & REPLICA_HOLDER, bookie
        do(state, Transact("d", number, 0, changes(Delete(move))))
        judge.refresh(state)
        assert not judge.rights_on_ledger("bookie/b3", 2) & REPLICA_HOLDER


def test_a_bookie_changes_ledgers_that_it_holds_and_no_log() -> None:
    judge, state = world()
    for one in (
        Put(keys.ledger_key(1), record(1, ORDERS).encode()),
        Delete(keys.missing_ranges_key(1)),
        Delete(keys.delete_key("i1", 1)),
    ):
        assert judge.authorize_transaction("bookie/b1", as_it_is(state, one)) is None
        assert judge.authorize_transaction("bookie/b3", as_it_is(state, one)) is not None
    closed = replace(record(1, ORDERS), state=LedgerState.CLOSED, last_entry=0, length=1)
    fragment = replace(closed.ensembles[0], bookies=("i3", "i2"))
    moved = Put(keys.ledger_key(1), replace(closed, ensembles=(fragment,)).encode())
    do(state, Transact("c", 8, 0, changes(Put(keys.ledger_key(1), closed.encode()))))
    judge.refresh(state)
    assert judge.authorize_transaction("bookie/b3", as_it_is(state, moved)) is not None
    move = Put(keys.move_key("i3", 1), ReplicaMove("i1", 1, 0).encode())
    do(state, Transact("c", 9, 0, changes(move)))
    judge.refresh(state)
    assert judge.authorize_transaction("bookie/b3", as_it_is(state, moved)) is None
    for key in (log_keys.state_key(ORDERS), log_keys.segment_key(ORDERS, 1)):
        assert judge.authorize_transaction("bookie/b1", changes(Put(key, b""))) is not None


def test_the_janitor_is_who_holds_the_lease_of_who_repairs() -> None:
    judge, state = world()
    note = Put(log_keys.replaced_ledger_key(ORDERS, 1), b"")
    cut = changes(note, Delete(log_keys.purge_key(ORDERS)))
    assert judge.authorize_transaction("bookie/b1", cut) is not None
    do(state, Transact("c", 9, 0, Transaction((), (Put(ELECTION_KEY, b"i1", 1),))))
    judge.refresh(state)
    assert judge.cluster_rights("bookie/b1") & REPAIR_LEADER
    assert judge.authorize_transaction("bookie/b1", cut) is None
    assert judge.authorize_transaction("bookie/b2", cut) is not None


def test_who_is_refused_a_log_is_told_its_name_as_people_write_it() -> None:
    """Not the key of the metadata that holds it."""
    judge, _ = world(READER)
    refused = judge.authorize_transaction(
        "user/ann", changes(Put(log_keys.name_key(NS, "bills/eu"), b"\0" * 8))
    )

    assert "user/ann may not write log 'bills/eu' of shop: it needs" in str(refused)


def test_a_position_may_be_a_readers_own() -> None:
    judge, _ = world(READER, ("eve", "reader", NS, "orders"))
    own = changes(Put(log_keys.position_key(ORDERS, "~ann/app"), b""))
    assert judge.authorize_transaction("user/ann", own) is None
    assert judge.authorize_transaction("user/eve", own) is not None
    never = Put(log_keys.position_key(ORDERS, "~zed/app"), b"")
    assert judge.authorize_transaction("user/zed", changes(never)) is not None, (
        "it may not read the log"
    )
    for other in ("app", "~ann", "~annx/app"):
        put = Put(log_keys.position_key(ORDERS, other), b"")
        assert judge.authorize_transaction("user/ann", changes(put)) is not None


def test_ledger_ids_are_taken_upwards_and_not_all_at_once() -> None:
    judge, _ = world(WRITER)
    for value, taken in (
        (b"2001", True),
        (b"1000", False),
        (b"%d" % (1 << 62), False),
        (b"x", False),
    ):
        refused = judge.authorize_transaction("user/etl", changes(Put(keys.NEXT_LEDGER, value)))
        assert (refused is None) == taken


def test_a_log_is_made_and_renamed_by_who_manages_both_names() -> None:
    judge, state = world(("own", "owner", NS, "orders/"), WRITER, ("mv", "owner", NS, "mine/"))

    def make(name: str, log_id: int) -> Transaction:
        return as_it_is(
            state,
            Put(log_keys.name_key(NS, name), log_keys.encode_log_id(log_id)),
            Put(log_keys.state_key(log_id), LogState(log_id, name, 0).encode()),
        )

    assert judge.authorize_transaction("user/own", make("orders/new", 0x99)) is None
    assert judge.authorize_transaction("user/own", make("elsewhere", 0x99)) is not None
    assert judge.authorize_transaction("user/etl", make("orders", 0x99)) is not None
    assert (
        judge.authorize_transaction("user/own", make("orders/mine", SECRET)) is not None
    )  # another's id
    nameless = Put(log_keys.state_key(0x88), LogState(0x88, "gone", 0).encode())
    do(state, Transact("c", 8, 0, changes(nameless)))
    judge.refresh(state)
    adopted = Put(log_keys.name_key(NS, "orders/mine"), log_keys.encode_log_id(0x88))
    assert (
        judge.authorize_transaction("user/own", changes(adopted)) is not None
    )  # as one is deleted

    do(state, Transact("c", 9, 0, changes(*make("orders/new", 0x99).operations)))
    judge.refresh(state)
    assert judge.rights_on_log("user/own", b"%016x" % 0x99, {}) == READ | WRITE | MANAGE
    old, new = log_keys.name_key(NS, "orders/new"), log_keys.name_key(NS, "orders/newer")
    rename = as_it_is(
        state,
        Delete(old),
        Put(new, log_keys.encode_log_id(0x99)),
        Put(log_keys.state_key(0x99), LogState(0x99, "orders/newer", 0).encode()),
    )
    assert judge.authorize_transaction("user/own", rename) is None
    assert judge.authorize_transaction("user/mv", rename) is not None
    do(state, Transact("c", 10, 0, rename))
    judge.refresh(state)
    assert judge.rights_on_log("user/own", b"%016x" % 0x99, {}) == READ | WRITE | MANAGE
    do(state, Transact("c", 11, 0, changes(Delete(new), Delete(log_keys.state_key(0x99)))))
    judge.refresh(state)
    assert judge.rights_on_log("user/own", b"%016x" % 0x99, {}) == 0
    # Who read it is told that it is gone, not that it may not know.
    assert judge.read_error("user/own", log_keys.state_key(0x99)) is None
    assert judge.read_error("anonymous", log_keys.state_key(0x99)) is not None
    left = log_keys.position_key(0x99, "p")
    assert judge.authorize_transaction("user/own", changes(Delete(left))) is None
    assert judge.authorize_transaction("user/own", changes(Put(left, b""))) is not None


def test_what_is_disabled_or_cannot_be_read_gives_nothing() -> None:
    judge, state = world(WRITER)
    assert judge.cluster_rights("user/etl") & AUTHENTICATED
    for value in (User(disabled=True).encode(), b"\xc1", pack([9, 0])):
        do(
            state,
            AuthorizationChange("c", state.index + 9, 0, changes(Put(user_key("etl"), value))),
        )
        judge.refresh(state)
        assert not judge.is_active("user/etl")
        assert not judge.cluster_rights("user/etl") & AUTHENTICATED
        assert not judge.rights("user/etl", NS, "orders")


def test_a_role_without_a_path_is_none_on_logs() -> None:
    """Of the cluster there are operator and admin; what else stands there opens no log, named or not."""
    judge, _ = world(("ann", "reader", "", ""), ("ops", "admin", "", ""))
    for user in ("user/ann", "user/ops"):
        assert judge.rights_on_log(user, b"%016x" % 0x77, {}) == 0
        assert judge.rights_on_log(user, b"%016x" % ORDERS, {}) == 0


def test_a_mode_that_cannot_be_read_is_the_strictest() -> None:
    judge, state = world(mode="open")
    do(state, AuthorizationChange("c", 9, 0, changes(Put(MODE_KEY, pack([2, "gentle"])))))
    judge.refresh(state)
    assert judge.mode == "required"


def test_in_report_all_is_done_and_counted() -> None:
    judge, _ = world(READER, mode="report")
    for _ in range(3):
        assert judge.authorize_read("anonymous", log_keys.state_key(ORDERS), None) is None
    assert judge.authorize_read("user/ann", b"name/", b"name0") is None
    assert judge.authorize_transaction("user/ann", changes(Put(b"new/kind", b""))) is None
    assert sorted(judge.report_denials.values()) == [1, 1, 3]


COMPONENT = st.sampled_from(["a", "b", "ab", "a-b", "a.b", "."])
PATHS = st.lists(COMPONENT, min_size=1, max_size=3).map("/".join)


@settings(max_examples=examples(100))
@given(st.one_of(st.just(""), PATHS, PATHS.map(lambda path: path + "/")), PATHS)
def test_a_path_covers_by_components(path: str, name: str) -> None:
    """H235, against lists of components."""
    granted = path.split("/")
    if path.endswith("/"):
        parts = granted[:-1]
        expected = name.split("/")[: len(parts)] == parts and len(name.split("/")) > len(parts)
    else:
        expected = not path or name.split("/") == granted
    assert covers(path, name) == expected


def test_bind_and_gone_go_by_the_paths_of_their_names() -> None:
    judge, _ = world(OWNER, ("all", "owner", NS, ""))
    assert (
        judge.authorize_transaction("user/own", changes(Put(deleted_logs_key(NS, "orders"), b"")))
        is None
    )
    assert (
        judge.authorize_transaction("user/own", changes(Put(deleted_logs_key(NS, "bills/eu"), b"")))
        is not None
    )
    assert judge.authorize_transaction("user/own", changes(Put(bind_key(NS), b""))) is not None
    assert judge.authorize_transaction("user/all", changes(Put(bind_key(NS), b""))) is None
    assert judge.cluster_rights("user/all") & OPERATOR == 0


@pytest.mark.parametrize("principal", ["user/etl", "bookie/b2", "proxy/p1", "user/local"])
def test_a_lease_carries_only_its_principals_keys(principal: str) -> None:
    """H217"""
    judge, _ = world(WRITER)
    locked = Transaction((), (Put(log_keys.lock_key(ORDERS), b"", 1),))
    assert judge.authorize_transaction(principal, locked) is not None


def test_a_change_that_comes_too_late_fails_by_its_condition_and_not_by_a_right() -> None:
    """Two take ledger ids at once; a writer writes its state while somebody truncates: that is no refusal."""
    judge, state = world(WRITER)
    state_key = log_keys.state_key(ORDERS)
    own = Transaction((Compare.version(b"next/ledger", 1),), (Put(b"next/ledger", b"2001"),))
    write = Put(state_key, LogState(ORDERS, "orders", 0).encode())
    mine = Transaction((Compare.version(state_key, 1),), (write,))
    cut = replace(LogState(ORDERS, "orders", 0), sealed=True)
    do(
        state,
        Transact("c", 5, 0, changes(Put(b"next/ledger", b"9001"), Put(state_key, cut.encode()))),
    )
    judge.refresh(state)

    for late in (own, mine):
        assert judge.authorize_transaction("user/etl", late) is None
        assert judge.authorize_transaction("anonymous", late) is not None
        for now in (replace(late, compares=()), replace(late, compares=(_version_2(late),))):
            assert judge.authorize_transaction("user/etl", now) is not None


def _version_2(late: Transaction) -> Compare:
    return Compare.version(late.compares[0].key, 2)


def test_no_key_is_put_under_a_lease_that_is_not_granted_yet() -> None:
    """H217: by the time it is applied it may be another's; one that has ended is nobody's any more."""
    judge, state = world(WRITER)
    lock = log_keys.lock_key(ORDERS)
    assert (
        judge.authorize_transaction("user/etl", changes(Put(lock, b"", state.next_lease)))
        is not None
    )
    do(state, ExpireLease(lease=1))
    assert judge.authorize_transaction("user/etl", changes(Put(lock, b"", 1))) is None


def test_a_bookie_is_given_a_place_by_who_repairs_and_not_by_itself() -> None:
    """Else one whose certificate was stolen would hold, and so read, whatever it names."""
    judge, state = world()
    move = keys.move_key("i3", 1)
    assert judge.authorize_transaction("bookie/b3", changes(Put(move, b"x"))) is not None
    both = changes(Put(keys.cookie_key("i9"), cookie("b9")), Put(keys.move_key("i9", 1), b"x"))
    assert judge.authorize_transaction("bookie/b9", both) is not None
    do(state, Transact("c", 5, 0, changes(Put(ELECTION_KEY, b"", 1))))
    judge.refresh(state)
    assert judge.authorize_transaction("bookie/b1", changes(Put(move, b"x"))) is None
    do(state, Transact("c", 6, 0, changes(Put(move, b"x"))))
    judge.refresh(state)
    for own in (Put(move, b"y"), Delete(move)):  # it says that it is at it; it has done it
        assert judge.authorize_transaction("bookie/b3", changes(own)) is None


def test_settings_are_followed_all_at_once_and_each_shown_to_its_readers() -> None:
    """A process follows the settings of all logs by one watch."""
    judge, _ = world(READER)
    start = conf_key(0)[:-16]
    parts = judge.authorize_read("user/ann", start, prefix_end(start))
    assert callable(parts)
    assert parts(conf_key(ORDERS))
    assert not parts(conf_key(SECRET))
    assert isinstance(judge.authorize_read("anonymous", start, prefix_end(start)), NotAllowed)


def test_a_refused_certificate_is_out_and_another_one_of_the_same_user_is_not() -> None:
    judge, state = world(WRITER)
    user = User(revoked_serials=("5f0c",)).encode()
    do(state, AuthorizationChange("c", 9, 0, changes(Put(user_key("etl"), user))))
    judge.refresh(state)
    assert judge.connection_error("user/etl", "5f0c") is not None
    assert judge.connection_error("user/etl", "77aa") is None
    assert judge.connection_error("user/etl", "") is None
    do(state, AuthorizationChange("c", 10, 0, changes(Put(MODE_KEY, encode_mode("report")))))
    judge.refresh(state)
    assert judge.connection_error("user/etl", "5f0c") is None


@pytest.mark.parametrize("value", [b"", b"0" * 16, b"44", b"000000000000004G"])
def test_a_name_gives_no_right_on_what_hangs_on_no_log(value: bytes) -> None:
    """A ledger of before names no log; who gave that as the id to a name of his own had all of them."""
    judge, state = world(("eve", "owner", NS, "mine"))
    raw = LedgerMetadata(9, 2, 2, 1, (Fragment(0, ("i1", "i2"), 1),), b"k" * 16)
    do(state, Transact("c", 3, 0, Transaction((), (Put(keys.ledger_key(9), raw.encode()),))))
    judge.refresh(state)
    name = Put(log_keys.name_key(NS, "mine"), value)
    assert judge.transaction_error("user/eve", changes(name))
    grab = replace(raw, owner=(0x44, 1)).encode()
    both = changes(name, Put(keys.ledger_key(9), grab))
    assert judge.transaction_error("user/eve", both)
    whole = Put(log_keys.name_key(NS, "mine"), log_keys.encode_log_id(0x44))
    made = Put(log_keys.state_key(0x44), LogState(0x44, "mine", 0).encode())
    assert judge.transaction_error("user/eve", as_it_is(state, whole, made)) is None
    taken = as_it_is(state, whole, made, Put(keys.ledger_key(9), grab))
    assert judge.transaction_error("user/eve", taken)
