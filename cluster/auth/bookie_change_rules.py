"""What a bookie may change beside its own, and how: the leader of the metadata judges shapes (H242).

The bookie that repairs has a hand in the records of all ledgers and logs, and whoever holds a copy in that
ledger's. A stolen one has it, too. So it is not who asks that counts there but what the change does: a
segment goes below the truncation point, the truncation point moves by the log's own retention, a ledger goes
that no segment names, a copy is given up of a bookie that is to leave or is not there, for somebody who is.

What nobody can judge by the store alone: where an open ledger ends, and what the entries of a merged one are.
"""

from functools import lru_cache
from itertools import pairwise

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import decode_log_id, lock_key, segment_key, state_key
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import CLOCK_KEY, Stamps, decode_clock, stamps_key
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    StoredSettings,
    bind_key,
    conf_key,
    merging_of,
    retention_of,
)
from ...metadata.auth.key_space import Change
from ...metadata.model.rights import OPERATOR
from ...runtime.interfaces.errors import CorruptData
from ..repair.pull_replication import ReplicaMove

ID_AT = slice(len("log/"), len("log/") + 16)
STATES = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)
CLOSING = ("state", "last_entry", "length", "ensembles", "custom", "format")
"""Fields of a ledger's record that its recovery fills in."""
REPAIRED = (
    *("epoch", "owner", "writer_id", "first_segment", "open_from", "last_txid", "next_sequence_id"),
    *("truncated_to", "truncated_sequence_id", "time_ms", "bytes_total", "txid_rule"),
    *("unordered_once", "writer_format", "producers", "last_dlsn"),
)
"""Fields of a log's state that may change as its open segments are closed, or its records given up."""
PLACE = ("ledger_id", "base_entry", "base_bytes")
"""Fields of a segment's record: the location of its entries."""


RECORDS_KEPT = 256
RECORD_BYTES_MAX = 4096
"""Larger records are decoded each time."""


def read_ledger(key: bytes, value: bytes) -> LedgerMetadata:
    """A ledger's record. Several rules read the same one of a transaction. Raises as its ``decode``."""
    if len(value) > RECORD_BYTES_MAX:
        return LedgerMetadata.decode(key, value)
    return _read_small_ledger(key, value)


_read_small_ledger = lru_cache(RECORDS_KEPT)(LedgerMetadata.decode)


@lru_cache(RECORDS_KEPT)
def read_state(value: bytes) -> LogState:
    """A log's state, which is small. A transaction may add hundreds of segments to it."""
    return LogState.decode(value)


def same_but(before: object, after: object, *fields: str) -> bool:
    """Do two records of one kind differ in these fields alone?"""
    names = [name for name in type(before).__dataclass_fields__ if name not in fields]  # type: ignore[attr-defined]
    return all(getattr(before, name) == getattr(after, name) for name in names)


# --- ledgers --------------------------------------------------------------------------------------


def of_ledger(change: Change) -> bool:
    """A ledger's record."""
    if change.before is None:
        made = read_ledger(change.key, change.after or b"")
        return (
            change.janitor and made.owner is None and made.state is LedgerState.OPEN
        )  # for a merge
    before = read_ledger(change.key, change.before)
    if change.after is None:
        return before.state is LedgerState.DELETING
    after = read_ledger(change.key, change.after)
    if before == after:
        return True
    if before.closed and after.closed and before.ensembles != after.ensembles:
        return _is_replacement(change, before, after)
    if not change.janitor:
        return False
    if after.state is LedgerState.DELETING:
        return same_but(before, after, "state", "owner") and is_nobodys(change, before)
    if before.owner is None:
        return _is_of_a_merge(change, before, after)
    return _is_closing(change, before, after)


def _is_replacement(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Do others take the places of bookies that are to leave, or are not there?"""
    if not same_but(before, after, "ensembles") or len(before.ensembles) != len(after.ensembles):
        return False
    for was, now in zip(before.ensembles, after.ensembles, strict=True):
        if not same_but(was, now, "bookies"):
            return False
        for old, new in zip(was.bookies, now.bookies, strict=True):
            if old != new and not (_may_go(change, old) and _may_come(change, before, old, new)):
                return False
    return True


def _may_go(change: Change, bookie: str) -> bool:
    leaving = change.look(keys.leaving_key(bookie)) is not None
    return leaving or change.look(keys.bookie_key(bookie)) is None


def _may_come(change: Change, ledger: LedgerMetadata, old: str, new: str) -> bool:
    if change.janitor:
        return change.look(keys.bookie_key(new)) is not None
    asked = change.look(keys.move_key(new, ledger.ledger_id))
    return asked is not None and change.is_own(new) and ReplicaMove.decode(asked).leaving == old


def is_nobodys(change: Change, ledger: LedgerMetadata) -> bool:
    """Does no segment lie in it, after all that is done at once?"""
    if ledger.owner is None:
        return True
    named = change.then(segment_key(*ledger.owner))
    return named is None or SegmentRecord.decode(named).ledger_id != ledger.ledger_id


def _is_of_a_merge(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """It is written, closed, and then a log's: of who wants its segments merged."""
    if after.owner is None:
        return same_but(before, after, *CLOSING) and STATES.index(before.state) <= STATES.index(
            after.state
        )
    named = change.then(segment_key(*after.owner))
    return (
        before.closed
        and same_but(before, after, "owner")
        and after.owner[0] == before.incarnation
        and named is not None
        and SegmentRecord.decode(named).ledger_id == before.ledger_id
    )


def _is_closing(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Is a ledger recovered that its writer has left? Where it ends, bookies say, and nobody here knows."""
    kept = len(before.ensembles) - 1
    return (
        before.owner is not None
        and (before.state, after.state) in pairwise(STATES)
        and (after.state is LedgerState.CLOSED or same_but(before, after, "state"))
        and same_but(before, after, *CLOSING)
        and after.ensembles[:kept] == before.ensembles[:kept]
        and change.look(lock_key(before.owner[0])) is None
    )


def mirrors(change: Change) -> bool:
    """``on/`` and ``delete/`` mirror the ledger's record. Only an operator changes them otherwise."""
    if change.rights & OPERATOR:
        return True
    bookie, record = keys.bookie_id_of(change.key), keys.ledger_key(keys.ledger_id_of(change.key))
    value = change.then(record)
    if value is None:
        return change.after is None
    ledger = read_ledger(record, value)
    deleting = ledger.state is LedgerState.DELETING
    if change.key.startswith(keys.DELETE_PREFIX):
        return change.after is None or (deleting and bookie in ledger.bookies())
    named = bookie in ledger.bookies() and not deleting
    return named if change.after is not None else not named


# --- logs -----------------------------------------------------------------------------------------


def of_state(change: Change) -> bool:
    """A log's state: of one that is closed for who left it, purged, cut by its retention."""
    if change.before is None or change.after is None:
        return False
    before, after = read_state(change.before), read_state(change.after)
    if not same_but(before, after, *REPAIRED) or after.open_from < before.open_from:
        return False
    if after.epoch != before.epoch or after.open_from != max(before.open_from, after.first_segment):
        left = change.look(lock_key(before.log_id)) is None
        if not left or after.epoch not in (before.epoch, before.epoch + 1):
            return False
    if after.first_segment != before.first_segment and not (
        before.first_segment < after.first_segment <= last_below(change, before) + 1
    ):
        return False
    return after.truncated_to == before.truncated_to or _is_retention(change, before, after)


def last_below(change: Change, state: LogState) -> int:
    """As `distributedlog/log/segments/segment_purge.py`'s: the last segment wholly below the truncation
    point; 0: none."""
    point = state.truncated_to
    last = min(point.segment, state.open_from) - 1
    if state.first_segment <= point.segment < state.open_from:
        found = change.look(segment_key(state.log_id, point.segment))
        if found is not None:
            end = SegmentRecord.decode(found).last_dlsn
            if end is None or end < point:
                last = point.segment
    return min(last, state.producers - 1) if state.producers else last


def _is_retention(change: Change, before: LogState, after: LogState) -> bool:
    """Does the truncation point move as the log's settings want it?"""
    rule, to = retention_of(*_settings(change, before.log_id)), after.truncated_to
    last = to.segment - 1
    most = min(before.open_from - 1, before.last_segment - rule.retention_segments_min)
    if not rule.wanted or to.entry or to.slot or to < before.truncated_to or last > most:
        return False
    found, clock = change.look(stamps_key(before.log_id)), change.look(CLOCK_KEY)
    if rule.retention_s and found is not None and clock is not None:
        aged = Stamps.decode(found).aged(decode_clock(clock), rule.retention_ms)
        if last <= aged:
            return True
    if not rule.retention_bytes:
        return False
    following = change.look(segment_key(before.log_id, to.segment))
    if following is None or to.segment >= before.open_from or before.bytes_total < 0:
        return False
    gone = SegmentRecord.decode(following).bytes_before
    return gone >= 0 and before.bytes_total - gone >= rule.retention_bytes


def _settings(change: Change, log_id: int) -> tuple[StoredSettings, StoredSettings]:
    """Of its namespace, and its own. Raises `CorruptData`."""
    bind = change.look(bind_key(change.namespace(b"%016x" % log_id)))
    own = change.look(conf_key(log_id))
    return (
        StoredSettings() if bind is None else StoredSettings.decode(bind),
        StoredSettings() if own is None else StoredSettings.decode(own),
    )


def of_segment(change: Change) -> bool:
    """A segment's record: it goes below the truncation point, is closed for who left it, or is merged."""
    log_id = decode_log_id(change.key[ID_AT])
    stored = change.look(state_key(log_id))
    if stored is None:
        return change.after is None
    state = read_state(stored)
    if change.before is None:
        return change.after is None
    before = SegmentRecord.decode(change.before)
    if change.after is None:
        return before.segment <= last_below(change, state)
    after = SegmentRecord.decode(change.after)
    if not before.closed:
        same_place = all(getattr(before, name) == getattr(after, name) for name in PLACE)
        return same_place and change.look(lock_key(log_id)) is None
    if not same_but(before, after, *PLACE):
        return False
    return before == after or _is_merged(change, log_id, after)


def _is_merged(change: Change, log_id: int, after: SegmentRecord) -> bool:
    """Does its log want that, and is it in a ledger of that log, that is closed?"""
    record = keys.ledger_key(after.ledger_id)
    value = change.then(record)
    if value is None or not merging_of(*_settings(change, log_id)).merging:
        return False
    ledger = read_ledger(record, value)
    of_it = ledger.owner is not None and ledger.owner[0] == log_id == ledger.incarnation
    return after.shared and ledger.closed and of_it


def of_stamps(change: Change) -> bool:
    """By when its segments were closed: each mark says the clock as it is, of what is closed now."""
    clock, stored = change.look(CLOCK_KEY), change.look(state_key(decode_log_id(change.key[ID_AT])))
    if change.after is None or clock is None or stored is None:
        return False
    before = Stamps() if change.before is None else _readable(change.before)
    now, closed_to = decode_clock(clock), read_state(stored).open_from - 1
    return all(
        mark in before.marks or (mark[1] == now and mark[0] <= closed_to)
        for mark in Stamps.decode(change.after).marks
    )


def _readable(value: bytes) -> Stamps:
    try:
        return Stamps.decode(value)
    except CorruptData:
        return Stamps()  # they begin anew


# --- bookies --------------------------------------------------------------------------------------


def of_farewell(change: Change) -> bool:
    """What is kept of a bookie goes when it was to leave, and runs no more."""
    bookie = keys.bookie_id_of(change.key)
    asked = change.look(keys.leaving_key(bookie)) is not None
    return change.after is None and asked and change.look(keys.bookie_key(bookie)) is None
