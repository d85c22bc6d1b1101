"""Rules for the changes of the stored records of ledgers and logs, with the right that each requires.

In authorization mode enforce (stored as ``required``), the metadata leader checks every transaction of every
principal against these rules. A rule checks the effect of a change, not the command. So a client with its own
implementation of the metadata protocol can change no more than the library can. `bookie_change_rules.py` has
additional rules for bookies, because they change records of all logs.

- A writer adds segments, and closes each one as its ledger was closed.
- A writer changes the last ensemble of an open ledger, marks it for recovery and closes it.
- A writer links a closed ledger to its log, once. It may delete a ledger that was never linked.
- An owner merges and deletes segments, truncates, seals and deletes the log.
- An owner or operator declares entries lost.
- Bookies and operators replace a bookie in a closed ledger.

The store contains neither the end of an open ledger nor the entries of any ledger. A malicious writer can
close the open ledger too early, and so hide the entries of its last ensemble. It can also close the open
segment with a wrong size or number of records. Retention by size counts that size, and removes old segments.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.format.dlsn import DLSN
from ...log.model.log_keys import decode_log_id, segment_key, state_key
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import SegmentCloseTimes
from ...log.model.segment_record import SegmentRecord
from ...metadata.auth.key_space import KeyChange
from ...metadata.model.rights import MANAGE, OPERATOR, REPAIR_LEADER, REPLICA_HOLDER
from ...metadata.model.transaction import OPERATIONS_MAX
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from .bookie_change_rules import (
    ID_AT,
    LOCATION_FIELDS,
    differ_only_in,
    is_unreferenced,
    last_below,
    read_ledger,
    read_state,
)

CLOSE_FIELDS = (
    *("closed", "closed_ms", "first_txid", "last_txid", "records", "size_bytes", "last_entry"),
    *("last_user_entry", "last_slot", "start_sequence_id", "bytes_before", "time_floor_ms"),
    "last_time_ms",
)
"""Fields of a segment's record that are set when it is closed."""
MONOTONIC_FIELDS = (
    *("first_segment", "first_open_segment", "last_segment", "truncated_to", "sealed", "deleting"),
    *("had_unordered_txids", "writer_format", "producer_snapshot_segment"),
)
"""Fields of a log's state that never decrease."""
TOTAL_FIELDS = ("next_sequence_id", "last_txid", "time_ms", "bytes_total", "last_dlsn")
"""Fields of a log's state that are sums over its closed segments."""

Record = TypeVar("Record")


def _try_decode(decode: Callable[[], Record]) -> Record | None:
    """Return the record; None if it is corrupt or from a newer version."""
    try:
        return decode()
    except (CorruptData, UnsupportedFormat):
        return None


# --- ledgers --------------------------------------------------------------------------------------


def allows_ledger_change(change: KeyChange) -> bool:
    """Return whether a change of a ledger's record is valid, and the principal has the right to it."""
    if not change.is_pinned(change.key):
        return False
    if change.before is None:
        if change.after is None:
            return True
        created = read_ledger(change.key, change.after)
        return created.state is LedgerState.OPEN and not _has_declared_loss(created)
    stored = change.before
    before = _try_decode(lambda: read_ledger(change.key, stored))
    if before is None:
        return bool(change.rights & (MANAGE | OPERATOR))
    if change.after is None:
        return before.state is LedgerState.DELETING
    after = read_ledger(change.key, change.after)
    if before == after:
        return True
    if after.state is LedgerState.DELETING:
        return _is_deletion(change, before, after)
    if before.state is LedgerState.DELETING:
        return False
    if before.closed:
        return after.closed and _is_closed_ledger_change(change, before, after)
    return _is_open_ledger_change(change, before, after)


def _has_declared_loss(ledger: LedgerMetadata) -> bool:
    """Whether entries, or the end of the ledger, were declared lost."""
    return bool(ledger.lost) or "closed_by" in ledger.custom


def _is_deletion(change: KeyChange, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether the ledger may be deleted: no segment refers to it.

    Writers may delete only ledgers that were never linked.
    """
    if before.state is LedgerState.DELETING or after.owner is not None:
        return False
    staged = before.owner is None
    return (
        differ_only_in(before, after, "state", "owner")
        and (staged or bool(change.rights & (MANAGE | REPAIR_LEADER | OPERATOR)))
        and is_unreferenced(change, before)
    )


def _is_open_ledger_change(
    change: KeyChange, before: LedgerMetadata, after: LedgerMetadata
) -> bool:
    """Whether the change replaces the last ensemble, marks the ledger for recovery, or closes it."""
    if before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.OPEN:
        return False
    if after.owner != before.owner or not _keeps_ensembles(before, after):
        return False
    if not after.closed:
        may_change_ensembles = (
            after.state is LedgerState.OPEN
        )  # only its writer changes ensembles (inv. 10)
        return differ_only_in(
            before, after, "state", *(("ensembles",) if may_change_ensembles else ())
        )
    if _has_declared_loss(after) and not change.rights & (MANAGE | OPERATOR):
        return False
    return (
        differ_only_in(
            before, after, "state", "last_entry", "length", "ensembles", "custom", "format"
        )
        and before.custom.items() <= after.custom.items()
        and after.last_entry is not None
        # All entries before the last ensemble were confirmed when it was added.
        and after.last_entry >= before.last_fragment.first_entry - 1
    )


def _keeps_ensembles(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether only the last ensemble is replaced, and others are added after it (inv. 6, inv. 21)."""
    last = len(before.ensembles) - 1
    return (
        len(after.ensembles) > last
        and after.ensembles[:last] == before.ensembles[:last]
        and after.ensembles[last].first_entry == before.last_fragment.first_entry
    )


def _is_closed_ledger_change(
    change: KeyChange, before: LedgerMetadata, after: LedgerMetadata
) -> bool:
    """Whether the change of a closed ledger links it, declares a loss, or replaces a bookie.

    Its end and its key do not change.
    """
    if not differ_only_in(before, after, "owner", "lost", "ensembles", "format"):
        return False
    if after.owner != before.owner and (before.owner is not None or not _is_linked(change, after)):
        return False
    if after.lost != before.lost:
        is_addition = set(after.lost) >= set(before.lost)
        if not is_addition or not change.rights & (MANAGE | OPERATOR):
            return False
    if after.ensembles != before.ensembles:
        same_ranges = [fragment.first_entry for fragment in before.ensembles] == [
            fragment.first_entry for fragment in after.ensembles
        ]
        return same_ranges and bool(change.rights & (REPLICA_HOLDER | REPAIR_LEADER | OPERATOR))
    return True


def _is_linked(change: KeyChange, ledger: LedgerMetadata) -> bool:
    """Whether the segment that owns the ledger refers to it."""
    assert ledger.owner is not None, "only a ledger with an owner is linked"
    segment_value = change.value_after(segment_key(*ledger.owner))
    return (
        segment_value is not None
        and SegmentRecord.decode(segment_value).ledger_id == ledger.ledger_id
    )


# --- logs -----------------------------------------------------------------------------------------


def allows_state_change(change: KeyChange) -> bool:
    """Return whether a change of a log's state is valid.

    `cluster_key_space.py` lists the changes that require more than the right to write.
    """
    if not change.is_pinned(change.key):
        return False
    if change.before is None:
        return True
    stored = change.before
    before = _try_decode(lambda: read_state(stored))
    if change.after is None:
        return before is None or before.deleting
    if before is None:
        return False
    after = read_state(change.after)
    return _is_monotonic(before, after) and _matches_segments(change, before, after)


def _is_monotonic(before: LogState, after: LogState) -> bool:
    """Whether no field decreases that must not."""
    is_truncated = after.truncated_to != before.truncated_to
    return (
        (after.log_id, after.created_ms, after.incarnation)
        == (before.log_id, before.created_ms, before.incarnation)
        and after.epoch in (before.epoch, before.epoch + 1)
        and all(getattr(before, name) <= getattr(after, name) for name in MONOTONIC_FIELDS)
        and after.producer_snapshot_segment < after.first_open_segment
        and (is_truncated or after.truncated_sequence_id == before.truncated_sequence_id)
        and (not is_truncated or after.truncated_to <= DLSN(after.last_segment + 1, 0, 0))
        and (after.end == before.end or (before.end is None and after.deleting))
    )


def _matches_segments(change: KeyChange, before: LogState, after: LogState) -> bool:
    """Whether all segments in the new state exist, and its totals result from the closed ones."""

    def segment(number: int) -> bytes | None:
        return change.value_after(segment_key(before.log_id, number))

    steps = (
        after.first_segment - before.first_segment,
        after.first_open_segment - before.first_open_segment,
        after.last_segment - before.last_segment,
    )
    if max(steps) > OPERATIONS_MAX:
        return False
    if steps[0] and not before.deleting and after.first_segment > last_below(change, before) + 1:
        return False
    if any(
        segment(segment_number) is not None
        for segment_number in range(before.first_segment, after.first_segment)
    ):
        return False
    if any(
        segment(segment_number) is None
        for segment_number in range(before.last_segment + 1, after.last_segment + 1)
    ):
        return False
    expected = before
    if after.first_segment > before.first_open_segment:  # deleted with a segment in progress
        if after.first_open_segment != after.first_segment:
            return False
    else:
        for number in range(before.first_open_segment, after.first_open_segment):
            value = segment(number)
            record = None if value is None else SegmentRecord.decode(value)
            if record is None or not record.closed or not _follows(record, expected):
                return False
            last = max(expected.last_segment, number)
            expected = replace(expected, last_segment=last).with_closed(number, record.totals)
    return all(getattr(expected, name) == getattr(after, name) for name in TOTAL_FIELDS)


def _follows(record: SegmentRecord, state: LogState) -> bool:
    return (record.start_sequence_id, record.bytes_before) == (
        state.next_sequence_id,
        state.bytes_total,
    )


def allows_segment_change(change: KeyChange) -> bool:
    """Return whether a change of a segment's record is valid, and the principal has the right to it.

    It changes together with the log's state, which lists the segments.
    """
    log_id = decode_log_id(change.key[ID_AT])
    number = int(change.key.rpartition(b"/")[2], 16)
    state_at = state_key(log_id)
    stored_state, new_state = change.current_value(state_at), change.value_after(state_at)
    if change.before is None and change.after is None:
        return True
    if stored_state is None or not change.is_pinned(state_at):
        return stored_state is None and change.after is None  # a remaining record of a deleted log
    if change.after is None:
        if not change.rights & (MANAGE | REPAIR_LEADER):
            return False
        return new_state is None or number < read_state(new_state).first_segment
    if new_state is None:
        return False
    state_before, state_after = read_state(stored_state), read_state(new_state)
    after = SegmentRecord.decode(change.after)
    if after.segment != number:
        return False
    if change.before is None:
        return (
            state_before.last_segment < number <= state_after.last_segment
            and _is_allowed_new_segment(change, state_after, after)
        )
    stored = change.before
    before = _try_decode(lambda: SegmentRecord.decode(stored))
    if before is None:
        return bool(change.rights & MANAGE)
    if before == after:
        return True
    if before.closed:
        return _is_merge(change, log_id, before, after)
    if not after.closed:
        return after == before.with_start(state_after)
    return (
        differ_only_in(before, after, *CLOSE_FIELDS)
        and state_before.first_open_segment <= number < state_after.first_open_segment
        and _ends_with_its_ledger(change, log_id, after)
    )


def _ledger_of(change: KeyChange, segment: SegmentRecord) -> LedgerMetadata | None:
    key = keys.ledger_key(segment.ledger_id)
    value = change.value_after(key)
    return None if value is None else read_ledger(key, value)


def _is_allowed_new_segment(change: KeyChange, state: LogState, segment: SegmentRecord) -> bool:
    """Whether an added segment is in progress with an open ledger, or linked."""
    if segment.closed:
        is_linked = segment.segment < state.first_open_segment
        return is_linked and _ends_with_its_ledger(change, state.log_id, segment)
    ledger = _ledger_of(change, segment)
    return (
        segment.segment >= state.first_open_segment
        and ledger is not None
        and ledger.state is LedgerState.OPEN
        and ledger.owner == (state.log_id, segment.segment)
    )


def _ends_with_its_ledger(change: KeyChange, log_id: int, segment: SegmentRecord) -> bool:
    """Whether a segment's ledger is closed, owned by it, and has the same end.

    A shorter segment would hide acknowledged records.
    """
    ledger = _ledger_of(change, segment)
    return (
        ledger is not None
        and ledger.closed
        and ledger.owner == (log_id, segment.segment)
        and ledger.last_entry == segment.last_entry
        and not segment.shares_ledger
    )


def _is_merge(change: KeyChange, log_id: int, before: SegmentRecord, after: SegmentRecord) -> bool:
    """Whether only the ledger of a closed segment changes.

    The new ledger must be closed, belong to the same log, and be long enough.
    """
    if not change.rights & (MANAGE | REPAIR_LEADER) or not differ_only_in(
        before, after, *LOCATION_FIELDS
    ):
        return False
    ledger = _ledger_of(change, after)
    return (
        ledger is not None
        and ledger.closed
        and ledger.owner is not None
        and ledger.owner[0] == log_id == ledger.incarnation
        and after.shares_ledger
        and ledger.last_entry is not None
        and after.base_entry + after.last_entry <= ledger.last_entry
    )


def allows_stamps_change(change: KeyChange) -> bool:
    """Return whether a change of the times of closing is valid.

    Retention depends on them, so only the bookie that runs retention writes them.
    """
    if change.rights & REPAIR_LEADER or change.after == change.before:
        return True
    if change.after is None:
        return change.value_after(state_key(decode_log_id(change.key[ID_AT]))) is None
    return change.before is None and SegmentCloseTimes.decode(change.after) == SegmentCloseTimes()
