"""Delete segments that are completely below a log's truncation point, with their ledgers (H13).

Each transaction is conditional on the log's state, which is read again for each attempt. A living writer,
another purge or a deletion can change it in between, and is not disturbed.
"""

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import OutcomeUnknown
from ..model.log_keys import purge_key, segment_key, state_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from .replaced_ledgers import DeletionOps

SEGMENTS_AT_ONCE = 200
"""A ledger needs a few operations of the 4,096 in a transaction."""
ATTEMPTS = 5


async def last_purgeable_segment(metadata: Metadata, state: LogState) -> int:
    """Return the number of the last segment that is completely below the truncation point, or 0.

    That includes the segment with the truncation point if it is closed and the point is after its last
    record. The segment with the newest snapshot of the log's producers is kept until a newer one has a
    snapshot (H70).
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
    """Delete the segments of a log up to number ``last_wanted``, if they are below the truncation point.

    ``last_wanted`` stays valid, because the truncation point never decreases.

    Returns:
        The number of deleted segments. None if the log was deleted.
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
    """Return the operations that delete a log's segments up to number ``last``, with their ledgers.

    A shared ledger is deleted with its last segment. The caller must compare the log's state in the same
    transaction, because a merge writes it.
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
