"""Removing what lies wholly below a log's truncation point: segment keys out, ledgers to DELETING (H13).

The state is read again in the transaction that does it: a living writer, another purger or a deletion may
come in between, and nobody is stopped by it.
"""

from collections.abc import Awaitable, Callable

from ..metadata.interface import Metadata
from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from ..runtime.errors import OutcomeUnknown
from .keys import purge_key, segment_key, state_key
from .segments import SegmentRecord
from .state import LogState

SEGMENTS_AT_ONCE = 200
"""A ledger's share is a handful of operations; a transaction has at most 4,096."""
ATTEMPTS = 5

DeletionShare = Callable[[int], Awaitable[Transaction]]
"""Of a ledger, by id: the share that turns it to DELETING; empty where it is gone."""


async def last_below(metadata: Metadata, state: LogState) -> int:
    """The number of the last segment wholly below the truncation point; 0 for none.

    The one that holds the point is below it, too, when it is closed and the point is after its last record.
    """
    point = state.truncated_to
    last = min(point.segment, state.open_from) - 1
    if state.first_segment <= point.segment < state.open_from:
        found = await metadata.get(segment_key(state.log_id, point.segment))
        if found is not None:
            end = SegmentRecord.decode(found.value).last_dlsn
            if end is None or end < point:
                last = point.segment
    return last if last >= state.first_segment else 0


async def purge(
    metadata: Metadata, log_id: int, upto: int, deletion_share: DeletionShare
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
    deletion_share: DeletionShare,
) -> bool:
    share = Transaction(
        (Compare.version(found.key, found.version),),
        (Put(found.key, state.without_segments_to(last).encode()),),
    )
    for number in range(state.first_segment, last + 1):
        key = segment_key(state.log_id, number)
        record = await metadata.get(key)
        if record is not None:
            share += await deletion_share(SegmentRecord.decode(record.value).ledger_id)
            share += Transaction((), (Delete(key),))
    return (await metadata.transact(share)).succeeded
