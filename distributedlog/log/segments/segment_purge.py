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


async def last_below(metadata: Metadata, state: LogState) -> int:
    """The number of the last segment wholly below the truncation point; 0 for none.

    The one that holds the point is below it, too, when it is closed and the point is after its last record.
    The one that says who the log's producers are stays until a newer one does (H70).
    """
    point = state.truncated_to
    last = min(point.segment, state.open_from) - 1
    if state.first_segment <= point.segment < state.open_from:
        found = await metadata.get(segment_key(state.log_id, point.segment))
        if found is not None:
            end = SegmentRecord.decode(found.value).last_dlsn
            if end is None or end < point:
                last = point.segment
    if state.producers:
        last = min(last, state.producers - 1)
    return last if last >= state.first_segment else 0


async def purge(
    metadata: Metadata, log_id: int, upto: int, deletion_share: DeletionOps
) -> int | None:
    """Remove the segments of a log up to number ``upto``, as far as they are below the truncation point.

    How many; None: the log is gone. A number that was right once stays right, for the point never goes back.
    """
    removed = attempts = 0
    while attempts < ATTEMPTS:
        found = await metadata.get(state_key(log_id))
        if found is None:
            await metadata.transact(Transaction((), (Delete(purge_key(log_id)),)))
            return None
        state = LogState.decode(found.value)
        last = min(upto, await last_below(metadata, state))
        if last < state.first_segment or state.deleting:
            return removed
        last = min(last, state.first_segment + SEGMENTS_AT_ONCE - 1)
        try:
            done = await _remove(metadata, found, state, last, deletion_share)
        except OutcomeUnknown:
            done = False
        if done:
            removed += last - state.first_segment + 1
        else:
            attempts += 1
    return removed


async def _remove(
    metadata: Metadata,
    found: KeyValue,
    state: LogState,
    last: int,
    deletion_share: DeletionOps,
) -> bool:
    share = Transaction(
        (Compare.version(found.key, found.version),),
        (Put(found.key, state.without_segments_to(last).encode()),),
    )
    share += await removal_ops(metadata, state, last, deletion_share)
    return (await metadata.transact(share)).succeeded


async def removal_ops(
    metadata: Metadata, state: LogState, last: int, deletion_share: DeletionOps
) -> Transaction:
    """The share of a transaction that removes a log's segments up to number ``last``, with their ledgers.

    A ledger that several share goes with the last of them. The log's state is to be compared beside it, which
    a merge writes.
    """
    start, end = segment_key(state.log_id, state.first_segment), segment_key(state.log_id, last + 1)
    share, ledgers = Transaction(), dict[int, None]()
    async for item in Scan(metadata, start, end):
        ledgers[SegmentRecord.decode(item.value).ledger_id] = None
        share += Transaction((), (Delete(item.key),))
    following = await metadata.get(end)
    if following is not None:
        ledgers.pop(SegmentRecord.decode(following.value).ledger_id, None)
    for ledger_id in ledgers:
        share += await deletion_share(ledger_id)
    return share
