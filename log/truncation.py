"""Truncation: a point in the log's state below which nothing is readable any more (G6).

The point may lie anywhere, also inside the segment in progress, and never goes back. Open readers see it
through the watch on the state. The bytes go later, whole segments at a time: `purge.py`.
"""

import trio

from ..metadata.interface import Metadata
from ..metadata.transaction import Put, Transaction
from ..runtime.errors import InvalidRequest
from ..runtime.options import quoted
from .dlsn import DLSN
from .follower import StateFollower
from .keys import purge_key
from .ledgers import Ledgers
from .locate import sequence_id_at
from .segment_reader import open_segment, read_header
from .segments import SegmentRecord
from .shared_change import change_shared
from .state import LogState

ROLL_WAIT_S = 2.0
"""How long a truncation waits for the close of a segment that a roll has left behind."""


async def truncate(metadata: Metadata, ledgers: Ledgers, follower: StateFollower, to: DLSN) -> DLSN:
    """Move the truncation point of a log, whose state has just been loaded, to ``to``; where it is then.

    A point after the end is taken as the end: what is written later stays. A lower point than the one
    that stands changes nothing. Raises `LogNotFound`, `LedgerStateUnknown`, or what keeps an entry from being
    read.
    """
    if not isinstance(to, DLSN):
        raise InvalidRequest(f"a log is truncated to a DLSN, not to {quoted(to)}")
    state = follower.state
    if to <= state.truncated_to:
        return state.truncated_to
    with trio.move_on_after(ROLL_WAIT_S):
        while to.segment > follower.state.open_from and follower.state.in_progress:
            # What is after a segment in progress is not readable until that one is closed (H11).
            await trio.sleep(ROLL_WAIT_S / 20)
            await follower.load()
    state = follower.state
    point, sequence_id = await _place(ledgers, follower, to)

    async def share(changed: LogState) -> Transaction:
        if point.segment < changed.first_segment:
            return Transaction()
        return Transaction((), (Put(purge_key(changed.log_id), b""),))

    changed = await change_shared(
        metadata,
        state.log_id,
        state.name,
        lambda state: state.with_truncated(point, sequence_id),
        share=share,
    )
    return changed.truncated_to


async def _place(ledgers: Ledgers, follower: StateFollower, to: DLSN) -> tuple[DLSN, int]:
    """The point, not after the end, and the sequence id of the first record at or after it."""
    state = follower.state
    if to.segment > state.last_segment and not state.in_progress:
        return DLSN(state.last_segment + 1, 0, 0), state.next_sequence_id
    record = await follower.segment(min(to.segment, state.open_from))
    if not record.closed:
        end, sequence_id = await _readable_end(ledgers, record)
        if to >= end:
            return end, sequence_id
    return to, await sequence_id_at(ledgers, record, to)


async def _readable_end(ledgers: Ledgers, record: SegmentRecord) -> tuple[DLSN, int]:
    reader = await open_segment(ledgers, record)
    try:
        lac, records = reader.lac, 0
        if lac >= 0:
            records = (await read_header(reader, lac)).records_through
    finally:
        reader.close()
    return DLSN(record.segment, lac + 1, 0), record.start_sequence_id + records
