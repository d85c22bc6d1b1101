"""What a stolen bookie gets at the metadata, also as the one that repairs: what there is to repair (H242)."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from distributedlog.cluster.auth.bookie_change_rules import allows_index_change
from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.cluster.repair.auditor_election import ELECTION_KEY
from distributedlog.cluster.repair.pull_replication import ReplicaMove
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_expiry import (
    CLOCK_KEY,
    STEP_MAX_MS,
    SegmentCloseTimes,
    encode_clock,
    stamps_key,
)
from distributedlog.log.model.segment_record import UNKNOWN, SegmentRecord
from distributedlog.log.model.stored_settings import StoredSettings, bind_key, conf_key
from distributedlog.metadata.auth.authorizer import Authorizer
from distributedlog.metadata.model.commands import GrantLease, Transact
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from tests.metadata.auth.test_authorizer import NS, OWNER, WRITER, as_it_is, changes, world
from tests.metadata.auth.test_authorizer import ORDERS as LOG
from tests.metadata.state.test_kv_state import do

JANITOR, OTHER = "bookie/b1", "bookie/b3"
AGE_S = 100
AT = log_keys.state_key(LOG)
STATE = LogState(
    LOG,
    "orders",
    0,
    epoch=4,
    first_open_segment=4,
    last_segment=4,
    truncated_to=DLSN(2, 0, 0),
    next_sequence_id=30,
    bytes_total=300,
)
MARKS = ((1, 0), (2, 40_000))
CLOCK = 150_000


def ledger(number: int, segment: int, **fields: object) -> LedgerMetadata:
    said: dict[str, object] = {
        "state": LedgerState.CLOSED,
        "last_entry": 9,
        "length": 100,
        "owner": (LOG, segment),
    }
    said |= {"incarnation": LOG, **fields}
    return LedgerMetadata(number, 2, 2, 1, (Fragment(0, ("i1", "i2"), 1),), b"k" * 16, **said)  # type: ignore[arg-type]


OPEN = ledger(14, 4, state=LedgerState.OPEN, last_entry=None, length=None)
LOOSE = ledger(20, 0, owner=None, last_entry=29, length=300)


def segment(number: int, **fields: object) -> SegmentRecord:
    said: dict[str, object] = {
        "closed": True,
        "last_entry": 9,
        "last_user_entry": 9,
        "last_slot": 0,
        "records": 10,
    }
    said |= {"bytes_before": 100 * (number - 1), "size_bytes": 100, "epoch": 1}
    said |= {"ledger_id": 10 + number, "created_ms": 0, **fields}
    return SegmentRecord(number, **said)  # type: ignore[arg-type]


class Store:
    """A log of three closed segments and one in progress; b1 repairs; four bookies live, i5 does not."""

    def __init__(self, **settings: object) -> None:
        self.now_s = 0.0
        judge, self.state = world(OWNER, WRITER, ("op", "operator", "", ""))
        self.judge = Authorizer(KEY_CLASSES, lambda: self.now_s)
        del judge
        self._number = 100
        for node in ("b2", "b3"):
            self._number += 1
            do(self.state, GrantLease(f"bookie/{node}/c", self._number, 0, 1000))
        self.put(
            Put(ELECTION_KEY, b"i1", 1),
            *(Put(keys.bookie_key(f"i{n}"), b"here") for n in range(1, 5)),
            Put(AT, STATE.encode()),
            *(Put(log_keys.segment_key(LOG, n), segment(n).encode()) for n in (1, 2, 3)),
            Put(log_keys.segment_key(LOG, 4), SegmentRecord(4, 14, 4, 0).encode()),
            *(Put(keys.ledger_key(10 + n), ledger(10 + n, n).encode()) for n in (1, 2, 3)),
            Put(keys.ledger_key(14), OPEN.encode()),
            Put(keys.ledger_key(20), LOOSE.encode()),
            Put(CLOCK_KEY, encode_clock(CLOCK)),
            Put(stamps_key(LOG), SegmentCloseTimes(MARKS).encode()),
            Put(conf_key(LOG), StoredSettings(settings).encode()),
        )

    def put(self, *operations: Put | Delete) -> None:
        self._number += 1
        do(self.state, Transact("c", self._number, 0, Transaction((), operations)))
        self.judge.refresh(self.state)

    def may(
        self,
        *operations: Put | Delete,
        who: str = JANITOR,
        compares: Iterable[Compare] | None = None,
    ) -> bool:
        """Without ``compares``: on the condition that the records are as they are now."""
        asked = as_it_is(self.state, *operations)
        if compares is not None:
            asked = Transaction(tuple(compares), operations)
        return self.judge.authorize_transaction(who, asked) is None

    def grant(self, who: str) -> int:
        """Return a lease of this principal."""
        self._number += 1
        do(self.state, GrantLease(f"{who}/c", self._number, 0, 1000))
        return self.state.next_lease - 1

    def version(self, key: bytes) -> int:
        found = self.state.get(key)
        assert found is not None
        return found.version


def cut(segment_number: int, state: LogState = STATE) -> Put:
    return Put(AT, state.with_truncation(DLSN(segment_number, 0, 0), 0).encode())


def deleted(number: int, of: LedgerMetadata) -> tuple[Put | Delete, ...]:
    return (
        Put(keys.ledger_key(number), replace(of, owner=None).deleting().encode()),
        *(Put(keys.delete_key(one, number), b"") for one in of.bookies()),
        *(Delete(keys.bookie_ledger_key(one, number)) for one in of.bookies()),
    )


def replaced(of: LedgerMetadata, *bookies: str) -> Put:
    moved = replace(of, ensembles=(replace(of.ensembles[0], bookies=bookies),))
    return Put(keys.ledger_key(of.ledger_id), moved.encode())


def purged(upto: int, state: LogState = STATE) -> tuple[Put | Delete, ...]:
    gone: list[Put | Delete] = [Put(AT, replace(state, first_segment=upto + 1).encode())]
    for number in range(1, upto + 1):
        gone += [
            Delete(log_keys.segment_key(LOG, number)),
            *deleted(10 + number, ledger(10 + number, number)),
        ]
    return tuple(gone)


STOLEN: dict[str, tuple[Put | Delete, ...]] = {
    "a segment at the truncation point": purged(2),
    "a segment's key alone": (Delete(log_keys.segment_key(LOG, 3)),),
    "the segment in progress": (Delete(log_keys.segment_key(LOG, 4)),),
    "its first segment, said only": (Put(AT, replace(STATE, first_segment=4).encode()),),
    "a truncation that nobody wants": (cut(4),),
    "into a segment": (Put(AT, STATE.with_truncation(DLSN(3, 5, 0), 0).encode()),),
    "back": (Put(AT, replace(STATE, truncated_to=DLSN(1, 0, 0)).encode()),),
    "a seal": (Put(AT, replace(STATE, sealed=True).encode()),),
    "a deletion begun": (Put(AT, replace(STATE, deleting=True).encode()),),
    "another name": (Put(AT, replace(STATE, name="mine").encode()),),
    "the state": (Delete(AT),),
    "retention, to be obeyed at once": (
        Put(conf_key(LOG), StoredSettings({"retention_s": 1.0}).encode()),
    ),
    "retention of all": (Put(bind_key(NS), StoredSettings({"retention_s": 1.0}).encode()),),
    "stamps that make it old": (Put(stamps_key(LOG), SegmentCloseTimes(((3, 0),)).encode()),),
    "stamps of what comes": (Put(stamps_key(LOG), SegmentCloseTimes(((99, CLOCK),)).encode()),),
    "the clock, put forward": (Put(CLOCK_KEY, encode_clock(CLOCK + STEP_MAX_MS + 1)),),
    "the clock, put back": (Put(CLOCK_KEY, encode_clock(CLOCK - 1)),),
    "no clock": (Delete(CLOCK_KEY),),
    "a ledger that a segment names": deleted(13, ledger(13, 3)),
    "a ledger's record": (Delete(keys.ledger_key(13)),),
    "another end of it": (Put(keys.ledger_key(13), ledger(13, 3, last_entry=3).encode()),),
    "another log's": (Put(keys.ledger_key(13), ledger(13, 3, owner=(0x22, 1)).encode()),),
    "nobody's": (Put(keys.ledger_key(13), ledger(13, 3, owner=None).encode()),),
    "what is said to be lost": (
        Put(keys.ledger_key(13), ledger(13, 3, custom={"x": b"y"}).encode()),
    ),
    "a copy of a bookie that is there": (replaced(ledger(13, 3), "i1", "i3"),),
    "for one that is not": (replaced(ledger(13, 3), "i1", "i5"),),
    "another ledger in a segment's place": (
        Put(log_keys.segment_key(LOG, 3), segment(3, ledger_id=20).encode()),
        Put(keys.ledger_key(20), replace(LOOSE, owner=(LOG, 3)).encode()),
    ),
    "fewer records in it": (Put(log_keys.segment_key(LOG, 3), segment(3, records=1).encode()),),
    "a new segment": (Put(log_keys.segment_key(LOG, 5), segment(5, ledger_id=20).encode()),),
    "a bookie is to leave": (Put(keys.leaving_key("i2"), b""),),
    "its registration": (Delete(keys.bookie_key("i2")),),
    "its cookie": (Delete(keys.cookie_key("i2")),),
    "a position": (Put(log_keys.position_key(LOG, "p"), b""),),
    "a writer's lock": (Delete(log_keys.lock_key(LOG)),),
    "an index that names nobody": (Put(keys.bookie_ledger_key("i5", 13), b""),),
    "an index of what is there": (Delete(keys.bookie_ledger_key("i1", 13)),),
    "a to-do that deletes nothing": (Put(keys.delete_key("i2", 13), b""),),
}


@pytest.mark.parametrize("what", STOLEN)
def test_a_stolen_bookie_that_repairs_takes_nothing_away(what: str) -> None:
    """H242. The same with a condition on what is there."""
    store = Store()
    operations = STOLEN[what]
    assert not store.may(*operations)
    held = [one.key for one in operations if store.state.get(one.key) is not None]
    assert not store.may(
        *operations, compares=[Compare.version(key, store.version(key)) for key in held]
    )
    assert not store.may(*operations, who=OTHER)


def test_what_is_below_the_truncation_point_is_purged() -> None:
    store = Store()
    assert store.may(*purged(1))
    assert not store.may(*purged(1), who=OTHER)
    within = replace(STATE, truncated_to=DLSN(3, 9, 0))
    store.put(Put(AT, within.encode()))
    assert store.may(*purged(2, within))
    assert not store.may(*purged(3, within)), "its last record is at the point"
    after = replace(STATE, truncated_to=DLSN(3, 9, 1))
    store.put(Put(AT, after.encode()))
    assert store.may(*purged(3, after)), "the point is after its last record"
    store.put(
        Put(AT, replace(STATE, truncated_to=DLSN(3, 9, 1), producer_snapshot_segment=2).encode())
    )
    assert not store.may(Delete(log_keys.segment_key(LOG, 2))), (
        "it says who the producers are (H70)"
    )
    assert store.may(*deleted(20, LOOSE)), "nobody has linked it"


def test_a_log_is_cut_by_its_own_retention_and_no_further() -> None:
    by_age = Store(retention_s=float(AGE_S))
    stamps = Put(stamps_key(LOG), SegmentCloseTimes(MARKS).without_segments_to(2).encode())
    assert by_age.may(cut(3), stamps, Put(log_keys.purge_key(LOG), b""))
    assert not by_age.may(cut(4), stamps)
    assert not by_age.may(cut(3), who=OTHER)
    seen = Put(stamps_key(LOG), SegmentCloseTimes((*MARKS, (3, CLOCK)), 4, CLOCK).encode())
    assert by_age.may(seen)
    by_age.put(seen)
    assert not by_age.may(cut(4)), "it was seen closed just now"
    by_size = Store(retention_bytes=100)
    assert by_size.may(cut(3)), "segment 3 is enough"
    assert not by_size.may(cut(4))
    assert not Store(retention_bytes=201).may(cut(3))
    by_size.put(Put(log_keys.segment_key(LOG, 3), segment(3, bytes_before=UNKNOWN).encode()))
    assert not by_size.may(cut(3)), "what is below it is not known"
    assert not Store(retention_bytes=100, retention=False).may(cut(3))
    for odd in (float("inf"), float("nan"), 1e306, -1.0):  # as a program without limits stores it
        assert not Store(retention_s=odd).may(cut(3))
        assert Store(retention_s=float(AGE_S), segment_age_max_s=odd).may(cut(3))
    assert not Store(retention_bytes=100, retention_segments_min=3).may(cut(3))


def test_the_clock_goes_no_faster_than_the_leader_has_seen_time_pass() -> None:
    """Else all is old at once, by steps of a minute each."""
    store, clock = Store(), CLOCK
    for _ in range(50):
        step = STEP_MAX_MS // 2
        if store.may(Put(CLOCK_KEY, encode_clock(clock + step))):
            clock += step
            store.put(Put(CLOCK_KEY, encode_clock(clock)))
    assert clock - CLOCK <= STEP_MAX_MS
    store.now_s += 1000
    assert store.may(Put(CLOCK_KEY, encode_clock(clock + 1_000_000)))
    late = Compare.mod_revision(CLOCK_KEY, 1)
    assert store.may(Put(CLOCK_KEY, encode_clock(0)), compares=[late]), "it fails by its condition"


def test_a_copy_is_given_up_of_who_is_to_leave_or_is_not_there() -> None:
    store, third = Store(), ledger(13, 3)
    on = (Put(keys.bookie_ledger_key("i3", 13), b""), Delete(keys.bookie_ledger_key("i2", 13)))
    moved = (replaced(third, "i1", "i3"), *on)
    for way in (Put(keys.leaving_key("i2"), b""), Delete(keys.bookie_key("i2"))):
        store = Store()
        assert not store.may(*moved)
        store.put(way)
        assert store.may(*moved)
        assert not store.may(replaced(third, "i3", "i4")), "the other one is there"
        assert not store.may(replaced(ledger(13, 3, last_entry=0), "i1", "i3"))
        assert not store.may(*moved, who=OTHER), "nobody asked it to"
        store.put(Put(keys.move_key("i3", 13), ReplicaMove("i1", 1, 0).encode()))
        assert not store.may(*moved, who=OTHER), "to take another place"
        store.put(Put(keys.move_key("i3", 13), ReplicaMove("i2", 1, 0).encode()))
        assert store.may(*moved, Delete(keys.move_key("i3", 13)), who=OTHER)
        assert not store.may(replaced(third, "i1", "i4"), who=OTHER), "for itself alone"
        store.put(Put(keys.move_key("i4", 13), ReplicaMove("i2", 1, 0).encode()))
        on4 = (Put(keys.bookie_ledger_key("i4", 13), b""), Delete(keys.bookie_ledger_key("i2", 13)))
        assert not store.may(replaced(third, "i1", "i4"), *on4, who=OTHER), (
            "not for who has no copy yet"
        )


def test_who_comes_too_late_hears_so_and_not_that_it_may_not() -> None:
    """A writer came in between: what the purger puts is what the log was. It reads again and goes on."""
    store = Store()
    version = store.version(AT)
    store.put(Put(AT, replace(STATE, epoch=9, writer_id="w").encode()))
    assert not store.may(*purged(1))
    assert store.may(*purged(1), compares=[Compare.version(AT, version)])
    assert not store.may(*purged(1), compares=[Compare.version(b"scrub/i1", version)])
    gone = Compare.mod_revision(keys.move_key("i3", 13), 3)
    assert store.may(replaced(ledger(13, 3), "i1", "i3"), compares=[gone], who="bookie/b2")
    to_come = Compare.mod_revision(b"scrub/i1", store.state.revision + 2)
    assert not store.may(*purged(1), compares=[to_come]), "it may make it true itself"


def test_what_nobody_writes_is_closed_and_what_is_written_is_not() -> None:
    store = Store()
    claimed = STATE.with_writer("b1", "w")
    claim = Put(AT, claimed.encode())
    fenced = OPEN.in_recovery()
    closed = fenced.close_by_recovery(9, 100, OPEN.ensembles)
    ended = segment(4, epoch=4, start_sequence_id=30)
    close = (
        Put(log_keys.segment_key(LOG, 4), ended.encode()),
        Put(AT, claimed.with_closed(4, ended.totals).encode()),
    )
    steps: list[Callable[[], tuple[Put | Delete, ...]]] = [
        lambda: (claim,),
        lambda: (Put(keys.ledger_key(14), fenced.encode()),),
        lambda: (Put(keys.ledger_key(14), closed.encode()),),
        lambda: close,
    ]
    locked = Store()
    locked.put(Put(log_keys.lock_key(LOG), b"me"))
    for step in steps:
        assert not locked.may(*step())
        locked.put(*step())
        assert store.may(*step())
        assert not store.may(*step(), who="bookie/b2"), "it holds a copy, and repairs not"
        store.put(*step())


def test_segments_are_merged_where_their_log_wants_it() -> None:
    merged = [
        segment(n, ledger_id=20, base_entry=10 * (n - 1), base_bytes=100 * (n - 1))
        for n in (1, 2, 3)
    ]
    swap = (
        Put(AT, STATE.encode()),
        *(Put(log_keys.segment_key(LOG, one.segment), one.encode()) for one in merged),
        *(Put(log_keys.replaced_ledger_key(LOG, 10 + n), b"") for n in (1, 2, 3)),
        Put(keys.ledger_key(20), replace(LOOSE, owner=(LOG, 3)).encode()),
    )
    assert not Store().may(*swap)
    store = Store(merging=True)
    assert store.may(*swap)
    assert not store.may(*swap, who=OTHER)
    assert not store.may(*swap[:-1]), "its ledger is nobody's"
    store.put(*swap)
    assert store.may(*deleted(13, ledger(13, 3))), "no segment lies in it any more"
    assert not store.may(*deleted(20, replace(LOOSE, owner=(LOG, 3))))


def test_a_living_one_that_repairs_is_not_replaced() -> None:
    """By who would rather do it: until its lease ends."""
    store = Store()
    take = Put(ELECTION_KEY, b"i3", 3)
    assert not store.may(take, who=OTHER)
    assert not store.may(Delete(ELECTION_KEY), who=OTHER)
    assert store.may(Put(ELECTION_KEY, b"i1", 1))
    late = Compare.mod_revision(ELECTION_KEY, 0)
    assert store.may(take, who=OTHER, compares=[late]), "it thought that there is none"
    store.put(Delete(ELECTION_KEY))
    assert store.may(take, who=OTHER)


def test_what_is_kept_of_a_bookie_goes_when_it_has_left() -> None:
    store = Store()
    gone = tuple(
        Delete(make("i2")) for make in (keys.cookie_key, keys.sync_point_key, keys.leaving_key)
    )
    store.put(Put(keys.leaving_key("i2"), b""))
    assert not store.may(*gone), "it runs"
    store.put(Delete(keys.bookie_key("i2")))
    assert store.may(*gone)
    assert not store.may(*gone, who=OTHER)


def test_a_copys_keys_are_of_bookies_that_the_record_names_whoever_puts_them() -> None:
    """A writer's, too: else its ledgers have as many keys as it likes."""
    store, user = Store(), "user/own"
    new = Put(
        keys.ledger_key(40),
        ledger(40, 5, state=LedgerState.OPEN, last_entry=None, length=None).encode(),
    )
    assert store.may(
        new,
        Put(keys.bookie_ledger_key("i1", 40), b""),
        Put(keys.bookie_ledger_key("i2", 40), b""),
        who=user,
    )
    assert not store.may(new, Put(keys.bookie_ledger_key("evil", 40), b""), who=user)
    assert not store.may(Put(keys.bookie_ledger_key("i3", 13), b""), who=user)
    assert not store.may(Put(keys.delete_key("i1", 13), b""), who=user)
    assert store.may(*deleted(20, LOOSE), who=user)
    assert KEY_CLASSES.of(keys.bookie_ledger_key("i1", 1)).change_rule is allows_index_change


def test_an_empty_state_is_judged() -> None:
    """Nothing is there, and nobody falls over it."""
    judge = Authorizer(KEY_CLASSES)
    judge.refresh(KeyValueState())
    assert judge.transaction_error(JANITOR, changes(Put(AT, b"x"))) is not None
