"""Truncate a log, and seal it, as a client that does not own it.

The truncation point is part of the log's state. No record before it can be read (G6). It may be anywhere,
also inside the open segment, and never decreases. Open readers receive it through their watch on the state.
Complete segments before it are deleted later, by `segment_purge.py`.

A sealed log has ended for good. It rejects writers and links, and readers receive `EndOfStream` after the
last record. The log's own writer calls `LogWriter.mark_end_of_stream`. Any other client claims the log as a
writer does, and then seals it.
"""

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Put, Transaction
from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import EndOfStream, InvalidRequest
from ..format.dlsn import DLSN
from ..interfaces.segment_store import SegmentEntryStore
from ..model.log_keys import purge_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..model.writer_log_state import update_shared_state
from ..read.position_search import sequence_id_at
from ..read.segment_reader import open_segment, read_header
from ..read.state_watch import StateWatch
from ..services.log_context import LogContext
from ..takeover.log_lock import acquire_log_lock
from ..takeover.takeover import recover_with_retry

ROLL_WAIT_S = 2.0
"""How long a truncation waits until a segment is closed from which the writer has already rolled."""


async def truncate(
    metadata: Metadata, ledgers: SegmentEntryStore, state_watch: StateWatch, to: DLSN
) -> DLSN:
    """Move the truncation point of a log forward and return it.

    A point after the end is replaced by the end, so that later records are not truncated. A point below the
    present one changes nothing.

    Args:
        state_watch: The log's state, which the caller has just loaded.
        to: The new truncation point.
    Raises:
        InvalidRequest: ``to`` is not a DLSN.
        LogNotFound: The log has been deleted or is being deleted.
        LedgerStateUnknown: Too few bookies answered, so the end or an entry could not be read.
        DistributedLogError: An entry could not be read for another reason.
    """
    if not isinstance(to, DLSN):
        raise InvalidRequest(f"a log is truncated to a DLSN, not to {quoted(to)}")
    state = state_watch.state
    if to <= state.truncated_to:
        return state.truncated_to
    with trio.move_on_after(ROLL_WAIT_S):
        while to.segment > state_watch.state.first_open_segment and state_watch.state.in_progress:
            # No record after an open segment is readable until that segment is closed (H11).
            await trio.sleep(ROLL_WAIT_S / 20)
            await state_watch.load()
    state = state_watch.state
    point, sequence_id = await _resolve_point(ledgers, state_watch, to)

    async def extra_ops(changed: LogState) -> Transaction:
        if point.segment < changed.first_segment:
            return Transaction()
        return Transaction((), (Put(purge_key(changed.log_id), b""),))

    changed = await update_shared_state(
        metadata,
        state.log_id,
        state.name,
        lambda state: state.with_truncation(point, sequence_id),
        extra_ops=extra_ops,
    )
    return changed.truncated_to


async def _resolve_point(
    ledgers: SegmentEntryStore, state_watch: StateWatch, to: DLSN
) -> tuple[DLSN, int]:
    """Return the point, at most the end, and the sequence ID of the first record from there on."""
    state = state_watch.state
    if to.segment > state.last_segment and not state.in_progress:
        return DLSN(state.last_segment + 1, 0, 0), state.next_sequence_id
    record = await state_watch.segment(min(to.segment, state.first_open_segment))
    if not record.closed:
        end, sequence_id = await _readable_end(ledgers, record)
        if to >= end:
            return end, sequence_id
    sequence_id = await sequence_id_at(ledgers, record, to)
    if to.slot:
        # A slot after the last record of its entry is stored as the next entry: readers of earlier versions
        # compute the first sequence ID of the entry from the slot.
        first_sequence_id = await sequence_id_at(ledgers, record, DLSN(to.segment, to.entry, 0))
        if sequence_id - first_sequence_id < to.slot:
            to = DLSN(to.segment, to.entry + 1, 0)
    return to, sequence_id


async def _readable_end(ledgers: SegmentEntryStore, record: SegmentRecord) -> tuple[DLSN, int]:
    reader = await open_segment(ledgers, record)
    try:
        lac, records = reader.lac, 0
        if lac >= 0:
            records = (await read_header(reader, lac)).records_through
    finally:
        reader.close()
    return DLSN(record.segment, lac + 1, 0), record.start_sequence_id + records


async def seal(context: LogContext, log_id: int, *, takeover: bool, wait_s: float | None) -> bool:
    """Seal a log, as `Log.seal`. Return False if it was sealed already."""
    try:
        log_lock = await acquire_log_lock(context, log_id, takeover=takeover, wait_s=wait_s)
    except EndOfStream:
        return False
    try:
        await recover_with_retry(
            context, log_lock.writer_state, timeout_s=context.options.recover_timeout_s
        )
        await log_lock.writer_state.change(
            lambda state: state.with_seal().without_owner(), is_done=_is_sealed
        )
    finally:
        await log_lock.release()
    return True


def _is_sealed(state: LogState) -> bool:
    return state.sealed
