"""Removing what lies wholly below a log's truncation point: segment keys out, ledgers to DELETING (H13).

The state is read again in the transaction that does it: a living writer, another purger or a deletion may
come in between, and nobody is stopped by it.
"""

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import OutcomeUnknown
from ..model.log_keys import purge_key, segment_key, state_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from .replaced_ledgers import DeletionOps

SEGMENTS_AT_ONCE = 200
"""A ledger's share is a handful of operations; a transaction has at most 4,096."""
ATTEMPTS = 5


async def last_purgeable_segment(metadata: Metadata, state: LogState) -> int:
    """The number of the last segment wholly below the truncation point; 0 for none.

    The one that holds the point is below it, too, when it is closed and the point is after its last record.
    The one that says who the log's producers are stays until a newer one does (H70).
    """
    point = state.truncated_to
    last = min(point.segment, state.first_open_segment) - 1
    if state.first_segment <= point.segment < state.first_open_segment:
        stored_segment = await metadata.get(segment_key(state.log_id, point.segment))
        if stored_segment is not None:
            end = SegmentRecord.decode(stored_segment.value).last_dlsn
            if end is None or end < point:
                last = point.segment
    if state.producer_snapshot_segment:
        last = min(last, state.producer_snapshot_segment - 1)
    return last if last >= state.first_segment else 0


async def purge(
    metadata: Metadata, log_id: int, last_wanted: int, delete_ops: DeletionOps
) -> int | None:
    """Remove the segments of a log up to number ``upto``, as far as they are below the truncation point.

    How many; None: the log is gone. A number that was right once stays right, for the point never goes back.
    """
    removed = attempts = 0
    while attempts < ATTEMPTS:
        stored_state = await metadata.get(state_key(log_id))
        if stored_state is None:
            await metadata.transact(Transaction((), (Delete(purge_key(log_id)),)))
            return None
        state = LogState.decode(stored_state.value)
        last = min(last_wanted, await last_purgeable_segment(metadata, state))
        if last < state.first_segment or state.deleting:
            return removed
        last = min(last, state.first_segment + SEGMENTS_AT_ONCE - 1)
        try:
            is_removed = await _remove_segments(metadata, stored_state, state, last, delete_ops)
        except OutcomeUnknown:
            is_removed = False
        if is_removed:
            removed += last - state.first_segment + 1
        else:
            attempts += 1
    return removed


async def _remove_segments(
    metadata: Metadata,
    stored_state: KeyValue,
    state: LogState,
    last: int,
    delete_ops: DeletionOps,
) -> bool:
    removal = Transaction(
        (Compare.version(stored_state.key, stored_state.version),),
        (Put(stored_state.key, state.without_segments_to(last).encode()),),
    )
    removal += await removal_ops(metadata, state, last, delete_ops)
    return (await metadata.transact(removal)).succeeded


async def removal_ops(
    metadata: Metadata, state: LogState, last: int, delete_ops: DeletionOps
) -> Transaction:
    """The share of a transaction that removes a log's segments up to number ``last``, with their ledgers.

    A ledger that several share goes with the last of them. The log's state is to be compared beside it, which
    a merge writes.
    """
    start, end = segment_key(state.log_id, state.first_segment), segment_key(state.log_id, last + 1)
    removal, ledgers = Transaction(), dict[int, None]()
    async for item in Scan(metadata, start, end):
        ledgers[SegmentRecord.decode(item.value).ledger_id] = None
        removal += Transaction((), (Delete(item.key),))
    next_segment = await metadata.get(end)
    if next_segment is not None:
        ledgers.pop(SegmentRecord.decode(next_segment.value).ledger_id, None)
    for ledger_id in ledgers:
        removal += await delete_ops(ledger_id)
    return removal
