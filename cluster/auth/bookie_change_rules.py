"""Rules for the changes that a bookie may make to records other than its own (H242).

The repair leader changes the records of all ledgers and logs, and a bookie changes those of ledgers of which
it stores a copy. A stolen bookie could do this, too. So the metadata leader does not only check the
principal, but also the effect of the change:

- A segment is deleted only before the truncation point.
- The truncation point moves only by the log's retention settings.
- A ledger is deleted only if no segment refers to it.
- A bookie is replaced only if it is leaving or not registered. The replacement is registered, or the move was
  assigned to it.

The metadata store alone cannot verify the end of an open ledger or the entries of a merged ledger.
"""

from functools import lru_cache
from itertools import pairwise

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import decode_log_id, lock_key, segment_key, state_key
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import CLOCK_KEY, SegmentCloseTimes, decode_clock, stamps_key
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    StoredSettings,
    bind_key,
    conf_key,
    merging_of,
    retention_of,
)
from ...metadata.auth.key_space import KeyChange
from ...metadata.model.rights import OPERATOR
from ...runtime.interfaces.errors import CorruptData
from ..repair.pull_replication import ReplicaMove

ID_AT = slice(len("log/"), len("log/") + 16)
STATES = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)
RECOVERY_FIELDS = ("state", "last_entry", "length", "ensembles", "custom", "format")
"""Fields of a ledger's record that its recovery sets."""
REPAIRED_FIELDS = (
    *(
        "epoch",
        "owner",
        "writer_id",
        "first_segment",
        "first_open_segment",
        "last_txid",
        "next_sequence_id",
    ),
    *("truncated_to", "truncated_sequence_id", "time_ms", "bytes_total", "txid_rule"),
    *("had_unordered_txids", "writer_format", "producer_snapshot_segment", "last_dlsn"),
)
"""Fields of a log's state that may change when its open segments are closed or its records truncated."""
LOCATION_FIELDS = ("ledger_id", "base_entry", "base_bytes")
"""Fields of a segment's record that locate its entries."""


CACHED_RECORDS_MAX = 256
RECORD_BYTES_MAX = 4096
"""Larger records are not cached."""


def read_ledger(key: bytes, value: bytes) -> LedgerMetadata:
    """Return a ledger's record, from a cache, because several rules read the same record of a transaction.

    Raises:
        CorruptData: The record is invalid.
        UnsupportedFormat: The record is from a newer version.
    """
    if len(value) > RECORD_BYTES_MAX:
        return LedgerMetadata.decode(key, value)
    return _read_small_ledger(key, value)


_read_small_ledger = lru_cache(CACHED_RECORDS_MAX)(LedgerMetadata.decode)


@lru_cache(CACHED_RECORDS_MAX)
def read_state(value: bytes) -> LogState:
    """Return a log's state, from a cache, because a transaction may add hundreds of segments to one log."""
    return LogState.decode(value)


def differ_only_in(before: object, after: object, *fields: str) -> bool:
    """Return whether two records of one kind differ at most in the given fields."""
    other_fields = [name for name in type(before).__dataclass_fields__ if name not in fields]  # type: ignore[attr-defined]
    return all(getattr(before, name) == getattr(after, name) for name in other_fields)


# --- ledgers --------------------------------------------------------------------------------------


def allows_ledger_change(change: KeyChange) -> bool:
    """Return whether a bookie may make this change of a ledger's record."""
    if change.before is None:
        created = read_ledger(change.key, change.after or b"")
        return (
            change.is_repair_leader and created.owner is None and created.state is LedgerState.OPEN
        )  # a ledger for merged segments
    before = read_ledger(change.key, change.before)
    if change.after is None:
        return before.state is LedgerState.DELETING
    after = read_ledger(change.key, change.after)
    if before == after:
        return True
    if before.closed and after.closed and before.ensembles != after.ensembles:
        return _is_replacement(change, before, after)
    if not change.is_repair_leader:
        return False
    if after.state is LedgerState.DELETING:
        return differ_only_in(before, after, "state", "owner") and is_unreferenced(change, before)
    if before.owner is None:
        return _is_merge_ledger_change(change, before, after)
    return _is_closing(change, before, after)


def _is_replacement(change: KeyChange, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether the change only replaces bookies that are leaving or not registered."""
    if not differ_only_in(before, after, "ensembles") or len(before.ensembles) != len(
        after.ensembles
    ):
        return False
    for fragment_before, fragment_after in zip(before.ensembles, after.ensembles, strict=True):
        if not differ_only_in(fragment_before, fragment_after, "bookies"):
            return False
        for old, new in zip(fragment_before.bookies, fragment_after.bookies, strict=True):
            if old != new and not (
                _may_be_replaced(change, old) and _may_replace(change, before, old, new)
            ):
                return False
    return True


def _may_be_replaced(change: KeyChange, bookie: str) -> bool:
    is_leaving = change.current_value(keys.leaving_key(bookie)) is not None
    return is_leaving or change.current_value(keys.bookie_key(bookie)) is None


def _may_replace(change: KeyChange, ledger: LedgerMetadata, old: str, new: str) -> bool:
    if change.is_repair_leader:
        return change.current_value(keys.bookie_key(new)) is not None
    move_value = change.current_value(keys.move_key(new, ledger.ledger_id))
    return (
        move_value is not None
        and change.is_own_bookie(new)
        and ReplicaMove.decode(move_value).leaving == old
    )


def is_unreferenced(change: KeyChange, ledger: LedgerMetadata) -> bool:
    """Return whether no segment refers to the ledger after the transaction."""
    if ledger.owner is None:
        return True
    segment_value = change.value_after(segment_key(*ledger.owner))
    return (
        segment_value is None or SegmentRecord.decode(segment_value).ledger_id != ledger.ledger_id
    )


def _is_merge_ledger_change(
    change: KeyChange, before: LedgerMetadata, after: LedgerMetadata
) -> bool:
    """Whether the change is allowed for a ledger of merged segments.

    Such a ledger is written, closed, and given to the log for which it was created.
    """
    if after.owner is None:
        return differ_only_in(before, after, *RECOVERY_FIELDS) and STATES.index(
            before.state
        ) <= STATES.index(after.state)
    segment_value = change.value_after(segment_key(*after.owner))
    return (
        before.closed
        and differ_only_in(before, after, "owner")
        and after.owner[0] == before.incarnation
        and segment_value is not None
        and SegmentRecord.decode(segment_value).ledger_id == before.ledger_id
    )


def _is_closing(change: KeyChange, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether the change closes a ledger without a writer.

    Only the bookies can verify where the ledger ends.
    """
    kept_fragments = len(before.ensembles) - 1
    return (
        before.owner is not None
        and (before.state, after.state) in pairwise(STATES)
        and (after.state is LedgerState.CLOSED or differ_only_in(before, after, "state"))
        and differ_only_in(before, after, *RECOVERY_FIELDS)
        and after.ensembles[:kept_fragments] == before.ensembles[:kept_fragments]
        and change.current_value(lock_key(before.owner[0])) is None
    )


def allows_index_change(change: KeyChange) -> bool:
    """Return whether a key ``on/`` or ``delete/`` matches the ledger's record.

    Operators may also make other changes.
    """
    if change.rights & OPERATOR:
        return True
    bookie, ledger_key = (
        keys.bookie_id_of(change.key),
        keys.ledger_key(keys.ledger_id_of(change.key)),
    )
    value = change.value_after(ledger_key)
    if value is None:
        return change.after is None
    ledger = read_ledger(ledger_key, value)
    deleting = ledger.state is LedgerState.DELETING
    if change.key.startswith(keys.DELETE_PREFIX):
        return change.after is None or (deleting and bookie in ledger.bookies())
    is_named = bookie in ledger.bookies() and not deleting
    return is_named if change.after is not None else not is_named


# --- logs -----------------------------------------------------------------------------------------


def allows_state_change(change: KeyChange) -> bool:
    """Return whether a bookie may make this change of a log's state.

    Allowed are closing segments of a log without a writer, purging, and truncation by retention.
    """
    if change.before is None or change.after is None:
        return False
    before, after = read_state(change.before), read_state(change.after)
    if (
        not differ_only_in(before, after, *REPAIRED_FIELDS)
        or after.first_open_segment < before.first_open_segment
    ):
        return False
    if after.epoch != before.epoch or after.first_open_segment != max(
        before.first_open_segment, after.first_segment
    ):
        is_abandoned = change.current_value(lock_key(before.log_id)) is None
        if not is_abandoned or after.epoch not in (before.epoch, before.epoch + 1):
            return False
    if after.first_segment != before.first_segment and not (
        before.first_segment < after.first_segment <= last_below(change, before) + 1
    ):
        return False
    return after.truncated_to == before.truncated_to or _is_retention(change, before, after)


def last_below(change: KeyChange, state: LogState) -> int:
    """Return the last segment that is entirely before the truncation point; 0 for none.

    It is the same as in `distributedlog/log/segments/segment_purge.py`.
    """
    truncated_to = state.truncated_to
    last = min(truncated_to.segment, state.first_open_segment) - 1
    if state.first_segment <= truncated_to.segment < state.first_open_segment:
        segment_value = change.current_value(segment_key(state.log_id, truncated_to.segment))
        if segment_value is not None:
            end = SegmentRecord.decode(segment_value).last_dlsn
            if end is None or end < truncated_to:
                last = truncated_to.segment
    return (
        min(last, state.producer_snapshot_segment - 1) if state.producer_snapshot_segment else last
    )


def _is_retention(change: KeyChange, before: LogState, after: LogState) -> bool:
    """Whether the truncation point moves as the log's retention settings require."""
    retention, truncated_to = retention_of(*_settings(change, before.log_id)), after.truncated_to
    last = truncated_to.segment - 1
    last_max = min(
        before.first_open_segment - 1, before.last_segment - retention.retention_segments_min
    )
    if (
        not retention.is_limited
        or truncated_to.entry
        or truncated_to.slot
        or truncated_to < before.truncated_to
        or last > last_max
    ):
        return False
    stamps_value, clock_value = (
        change.current_value(stamps_key(before.log_id)),
        change.current_value(CLOCK_KEY),
    )
    if retention.retention_s and stamps_value is not None and clock_value is not None:
        last_aged = SegmentCloseTimes.decode(stamps_value).last_older_than(
            decode_clock(clock_value), retention.retention_ms
        )
        if last <= last_aged:
            return True
    if not retention.retention_bytes:
        return False
    segment_value = change.current_value(segment_key(before.log_id, truncated_to.segment))
    if (
        segment_value is None
        or truncated_to.segment >= before.first_open_segment
        or before.bytes_total < 0
    ):
        return False
    truncated_bytes = SegmentRecord.decode(segment_value).bytes_before
    return (
        truncated_bytes >= 0 and before.bytes_total - truncated_bytes >= retention.retention_bytes
    )


def _settings(change: KeyChange, log_id: int) -> tuple[StoredSettings, StoredSettings]:
    """Return the settings of a log's namespace and of the log. Raises `CorruptData`."""
    namespace_value = change.current_value(bind_key(change.namespace_of_log(b"%016x" % log_id)))
    log_value = change.current_value(conf_key(log_id))
    return (
        StoredSettings() if namespace_value is None else StoredSettings.decode(namespace_value),
        StoredSettings() if log_value is None else StoredSettings.decode(log_value),
    )


def allows_segment_change(change: KeyChange) -> bool:
    """Return whether a bookie may make this change of a segment's record.

    Allowed are deletion before the truncation point, closing without a writer, and merging.
    """
    log_id = decode_log_id(change.key[ID_AT])
    state_value = change.current_value(state_key(log_id))
    if state_value is None:
        return change.after is None
    state = read_state(state_value)
    if change.before is None:
        return change.after is None
    before = SegmentRecord.decode(change.before)
    if change.after is None:
        return before.segment <= last_below(change, state)
    after = SegmentRecord.decode(change.after)
    if not before.closed:
        same_place = all(getattr(before, name) == getattr(after, name) for name in LOCATION_FIELDS)
        return same_place and change.current_value(lock_key(log_id)) is None
    if not differ_only_in(before, after, *LOCATION_FIELDS):
        return False
    return before == after or _is_merged(change, log_id, after)


def _is_merged(change: KeyChange, log_id: int, after: SegmentRecord) -> bool:
    """Whether the log allows merging, and the segment's new ledger is closed and belongs to the log."""
    ledger_key = keys.ledger_key(after.ledger_id)
    value = change.value_after(ledger_key)
    if value is None or not merging_of(*_settings(change, log_id)).merging:
        return False
    ledger = read_ledger(ledger_key, value)
    is_log_ledger = ledger.owner is not None and ledger.owner[0] == log_id == ledger.incarnation
    return after.shares_ledger and ledger.closed and is_log_ledger


def allows_stamps_change(change: KeyChange) -> bool:
    """Return whether a bookie may store these times of the closing of segments.

    Each new mark must have the present value of the retention clock, and cover only closed segments.
    """
    clock, stored = (
        change.current_value(CLOCK_KEY),
        change.current_value(state_key(decode_log_id(change.key[ID_AT]))),
    )
    if change.after is None or clock is None or stored is None:
        return False
    before = SegmentCloseTimes() if change.before is None else _decode_or_empty(change.before)
    now, closed_to = decode_clock(clock), read_state(stored).first_open_segment - 1
    return all(
        mark in before.marks or (mark[1] == now and mark[0] <= closed_to)
        for mark in SegmentCloseTimes.decode(change.after).marks
    )


def _decode_or_empty(value: bytes) -> SegmentCloseTimes:
    try:
        return SegmentCloseTimes.decode(value)
    except CorruptData:
        return SegmentCloseTimes()  # ages start again


# --- bookies --------------------------------------------------------------------------------------


def allows_bookie_removal(change: KeyChange) -> bool:
    """Return whether a bookie's record is deleted after the bookie was decommissioned and no longer runs."""
    bookie = keys.bookie_id_of(change.key)
    is_leaving = change.current_value(keys.leaving_key(bookie)) is not None
    return (
        change.after is None
        and is_leaving
        and change.current_value(keys.bookie_key(bookie)) is None
    )
