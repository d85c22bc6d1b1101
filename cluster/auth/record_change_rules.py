"""The changes of the stored records of ledgers and logs that exist, and the right that each one needs.

Where rights are required, the leader of the metadata quorum checks every transaction of every principal
against these rules. A rule looks at the effect of a change and not at the command that made it: a client that
speaks the metadata protocol itself gets no further than the library does. `bookie_change_rules.py` has the
additional rules for bookies, which have a part in the records of all logs.

- A writer adds segments, and closes each one as its ledger was closed.
- A writer changes the last ensemble of an open ledger, marks it for recovery and closes it.
- A writer links a closed ledger to its log, once. It may delete a ledger that was never linked.
- An owner merges and deletes segments, truncates, seals and deletes the log.
- An owner or operator declares entries lost.
- Bookies and operators replace a bookie in a closed ledger.

The store contains neither the end of an open ledger nor the entries of any ledger. A malicious writer can
close the open ledger too early, and so hide the entries of its last ensemble. It can also close the open
segment with a wrong size or number of records: retention by size counts that size, and removes old segments.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.format.dlsn import DLSN
from ...log.model.log_keys import decode_log_id, segment_key, state_key
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import Stamps
from ...log.model.segment_record import SegmentRecord
from ...metadata.auth.key_space import Change
from ...metadata.model.rights import HOLDER, JANITOR, MANAGE, OPERATOR
from ...metadata.model.transaction import OPERATIONS_MAX
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from .bookie_change_rules import (
    ID_AT,
    PLACE,
    is_nobodys,
    last_below,
    read_ledger,
    read_state,
    same_but,
)

ENDING = (
    *("closed", "closed_ms", "first_txid", "last_txid", "records", "size_bytes", "last_entry"),
    *("last_user_entry", "last_slot", "start_sequence_id", "bytes_before", "time_floor_ms"),
    "last_time_ms",
)
"""Fields of a segment's record that its close fills in."""
NEVER_BACK = (
    *("first_segment", "open_from", "last_segment", "truncated_to", "sealed", "deleting"),
    *("unordered_once", "writer_format", "producers"),
)
"""Fields of a log's state that only grow."""
TOTALS = ("next_sequence_id", "last_txid", "time_ms", "bytes_total", "last_dlsn")
"""Fields of a log's state that sum up its closed segments."""

Record = TypeVar("Record")


def _read(decode: Callable[[], Record]) -> Record | None:
    """The record; None if it is corrupt, or of a newer version."""
    try:
        return decode()
    except (CorruptData, UnsupportedFormat):
        return None


# --- ledgers --------------------------------------------------------------------------------------


def of_ledger(change: Change) -> bool:
    """A ledger's record."""
    if not change.pinned(change.key):
        return False
    if change.before is None:
        if change.after is None:
            return True
        made = read_ledger(change.key, change.after)
        return made.state is LedgerState.OPEN and not _is_declared(made)
    stored = change.before
    before = _read(lambda: read_ledger(change.key, stored))
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
        return after.closed and _is_of_a_closed_one(change, before, after)
    return _is_of_an_open_one(change, before, after)


def _is_declared(ledger: LedgerMetadata) -> bool:
    """Was its end declared, or the loss of entries?"""
    return bool(ledger.lost) or "closed_by" in ledger.custom


def _is_deletion(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Does no segment refer to it any more? Writers may delete only ledgers that were never linked."""
    if before.state is LedgerState.DELETING or after.owner is not None:
        return False
    staged = before.owner is None
    return (
        same_but(before, after, "state", "owner")
        and (staged or bool(change.rights & (MANAGE | JANITOR | OPERATOR)))
        and is_nobodys(change, before)
    )


def _is_of_an_open_one(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Another last ensemble, the mark of a recovery, or the close."""
    if before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.OPEN:
        return False
    if after.owner != before.owner or not _keeps_ensembles(before, after):
        return False
    if not after.closed:
        moved = after.state is LedgerState.OPEN  # only its writer changes ensembles (inv. 10)
        return same_but(before, after, "state", *(("ensembles",) if moved else ()))
    if _is_declared(after) and not change.rights & (MANAGE | OPERATOR):
        return False
    return (
        same_but(before, after, "state", "last_entry", "length", "ensembles", "custom", "format")
        and before.custom.items() <= after.custom.items()
        and after.last_entry is not None
        # All entries before the last ensemble were confirmed when that one began.
        and after.last_entry >= before.last_fragment.first_entry - 1
    )


def _keeps_ensembles(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Only the last ensemble is replaced, and others follow it (inv. 6, inv. 21)."""
    last = len(before.ensembles) - 1
    return (
        len(after.ensembles) > last
        and after.ensembles[:last] == before.ensembles[:last]
        and after.ensembles[last].first_entry == before.last_fragment.first_entry
    )


def _is_of_a_closed_one(change: Change, before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """A link, a declared loss, or another bookie in the place of one: its end and its key stay."""
    if not same_but(before, after, "owner", "lost", "ensembles", "format"):
        return False
    if after.owner != before.owner and (before.owner is not None or not _is_linked(change, after)):
        return False
    if after.lost != before.lost:
        added = set(after.lost) >= set(before.lost)
        if not added or not change.rights & (MANAGE | OPERATOR):
            return False
    if after.ensembles != before.ensembles:
        same = [one.first_entry for one in before.ensembles] == [
            one.first_entry for one in after.ensembles
        ]
        return same and bool(change.rights & (HOLDER | JANITOR | OPERATOR))
    return True


def _is_linked(change: Change, ledger: LedgerMetadata) -> bool:
    """Does the segment that it names as its owner refer to it?"""
    assert ledger.owner is not None, "only an owner is linked to"
    named = change.then(segment_key(*ledger.owner))
    return named is not None and SegmentRecord.decode(named).ledger_id == ledger.ledger_id


# --- logs -----------------------------------------------------------------------------------------


def of_state(change: Change) -> bool:
    """A log's state. `cluster_key_space.py` lists the changes that need more than the right to write."""
    if not change.pinned(change.key):
        return False
    if change.before is None:
        return True
    stored = change.before
    before = _read(lambda: read_state(stored))
    if change.after is None:
        return before is None or before.deleting
    if before is None:
        return False
    after = read_state(change.after)
    return _is_later(before, after) and _goes_with_segments(change, before, after)


def _is_later(before: LogState, after: LogState) -> bool:
    """Does no field decrease that must not?"""
    cut = after.truncated_to != before.truncated_to
    return (
        (after.log_id, after.created_ms, after.incarnation)
        == (before.log_id, before.created_ms, before.incarnation)
        and after.epoch in (before.epoch, before.epoch + 1)
        and all(getattr(before, name) <= getattr(after, name) for name in NEVER_BACK)
        and after.producers < after.open_from
        and (cut or after.truncated_sequence_id == before.truncated_sequence_id)
        and (not cut or after.truncated_to <= DLSN(after.last_segment + 1, 0, 0))
        and (after.end == before.end or (before.end is None and after.deleting))
    )


def _goes_with_segments(change: Change, before: LogState, after: LogState) -> bool:
    """Are the segments that it counts there, and do its totals follow from those that are closed?"""

    def segment(number: int) -> bytes | None:
        return change.then(segment_key(before.log_id, number))

    steps = (
        after.first_segment - before.first_segment,
        after.open_from - before.open_from,
        after.last_segment - before.last_segment,
    )
    if max(steps) > OPERATIONS_MAX:
        return False
    if steps[0] and not before.deleting and after.first_segment > last_below(change, before) + 1:
        return False
    if any(segment(n) is not None for n in range(before.first_segment, after.first_segment)):
        return False
    if any(segment(n) is None for n in range(before.last_segment + 1, after.last_segment + 1)):
        return False
    expected = before
    if after.first_segment > before.open_from:  # deleted with a segment in progress
        if after.open_from != after.first_segment:
            return False
    else:
        for number in range(before.open_from, after.open_from):
            value = segment(number)
            record = None if value is None else SegmentRecord.decode(value)
            if record is None or not record.closed or not _follows(record, expected):
                return False
            last = max(expected.last_segment, number)
            expected = replace(expected, last_segment=last).with_closed(number, record.added)
    return all(getattr(expected, name) == getattr(after, name) for name in TOTALS)


def _follows(record: SegmentRecord, state: LogState) -> bool:
    return (record.start_sequence_id, record.bytes_before) == (
        state.next_sequence_id,
        state.bytes_total,
    )


def of_segment(change: Change) -> bool:
    """A segment's record. It changes together with the log's state, which lists the segments."""
    log_id = decode_log_id(change.key[ID_AT])
    number = int(change.key.rpartition(b"/")[2], 16)
    at = state_key(log_id)
    now, then = change.look(at), change.then(at)
    if change.before is None and change.after is None:
        return True
    if now is None or not change.pinned(at):
        return now is None and change.after is None  # left by a log that was deleted
    if change.after is None:
        if not change.rights & (MANAGE | JANITOR):
            return False
        return then is None or number < read_state(then).first_segment
    if then is None:
        return False
    was, is_ = read_state(now), read_state(then)
    after = SegmentRecord.decode(change.after)
    if after.segment != number:
        return False
    if change.before is None:
        return was.last_segment < number <= is_.last_segment and _is_new(change, is_, after)
    stored = change.before
    before = _read(lambda: SegmentRecord.decode(stored))
    if before is None:
        return bool(change.rights & MANAGE)
    if before == after:
        return True
    if before.closed:
        return _is_merge(change, log_id, before, after)
    if not after.closed:
        return after == before.numbered(is_)
    return (
        same_but(before, after, *ENDING)
        and was.open_from <= number < is_.open_from
        and _ends_with_its_ledger(change, log_id, after)
    )


def _ledger_of(change: Change, segment: SegmentRecord) -> LedgerMetadata | None:
    key = keys.ledger_key(segment.ledger_id)
    value = change.then(key)
    return None if value is None else read_ledger(key, value)


def _is_new(change: Change, state: LogState, segment: SegmentRecord) -> bool:
    """A segment that is added: in progress with an open ledger, or linked."""
    if segment.closed:
        linked = segment.segment < state.open_from
        return linked and _ends_with_its_ledger(change, state.log_id, segment)
    ledger = _ledger_of(change, segment)
    return (
        segment.segment >= state.open_from
        and ledger is not None
        and ledger.state is LedgerState.OPEN
        and ledger.owner == (state.log_id, segment.segment)
    )


def _ends_with_its_ledger(change: Change, log_id: int, segment: SegmentRecord) -> bool:
    """Is its ledger closed, its own, and as long? A shorter segment would hide acknowledged records."""
    ledger = _ledger_of(change, segment)
    return (
        ledger is not None
        and ledger.closed
        and ledger.owner == (log_id, segment.segment)
        and ledger.last_entry == segment.last_entry
        and not segment.shared
    )


def _is_merge(change: Change, log_id: int, before: SegmentRecord, after: SegmentRecord) -> bool:
    """Only the ledger of a closed segment changes, for a closed one of the same log that is long enough."""
    if not change.rights & (MANAGE | JANITOR) or not same_but(before, after, *PLACE):
        return False
    ledger = _ledger_of(change, after)
    return (
        ledger is not None
        and ledger.closed
        and ledger.owner is not None
        and ledger.owner[0] == log_id == ledger.incarnation
        and after.shared
        and ledger.last_entry is not None
        and after.base_entry + after.last_entry <= ledger.last_entry
    )


def of_stamps(change: Change) -> bool:
    """The times of closes. Retention decides from them, so only the bookie that runs it writes them."""
    if change.rights & JANITOR or change.after == change.before:
        return True
    if change.after is None:
        return change.then(state_key(decode_log_id(change.key[ID_AT]))) is None
    return change.before is None and Stamps.decode(change.after) == Stamps()
