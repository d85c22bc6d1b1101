"""Truncation: a point in the log's state below which nothing is readable any more (G6).

The point may lie anywhere, also inside the segment in progress, and never goes back. Open readers see it
through the watch on the state. The bytes go later, whole segments at a time: `segment_purge.py`.

A log that is sealed ends where it is now, for good: writers and links are refused, readers reach an end. Its
writer has `LogWriter.mark_end_of_stream`; anybody else claims the log as a writer does, and seals it then.
"""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import EndOfStream, InvalidRequest, LogNotFound, OutcomeUnknown
from ..format.dlsn import DLSN
from ..interfaces.segment_store import SegmentEntryStore
from ..model.log_keys import purge_key, state_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..model.writer_log_state import ExtraOps, no_extra_ops
from ..read.position_search import sequence_id_at
from ..read.segment_reader import open_segment, read_header
from ..read.state_watch import StateWatch
from ..services.log_context import LogContext
from ..takeover.log_lock import claim
from ..takeover.takeover import recover_patiently

ROLL_WAIT_S = 2.0
"""How long a truncation waits for the close of a segment that a roll has left behind."""


async def truncate(
    metadata: Metadata, ledgers: SegmentEntryStore, follower: StateWatch, to: DLSN
) -> DLSN:
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

    changed = await update_shared_state(
        metadata,
        state.log_id,
        state.name,
        lambda state: state.with_truncated(point, sequence_id),
        share=share,
    )
    return changed.truncated_to


async def _place(ledgers: SegmentEntryStore, follower: StateWatch, to: DLSN) -> tuple[DLSN, int]:
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
    """Seal a log; False: it was sealed already. See `Log.seal`."""
    try:
        claimed = await claim(context, log_id, takeover=takeover, wait_s=wait_s)
    except EndOfStream:
        return False
    try:
        await recover_patiently(context, claimed.owned, timeout_s=context.options.recover_timeout_s)
        await claimed.owned.change(lambda state: state.with_sealed().released(), done=_is_sealed)
    finally:
        await claimed.give_back()
    return True


def _is_sealed(state: LogState) -> bool:
    return state.sealed


async def update_shared_state(
    metadata: Metadata,
    log_id: int,
    name: str,
    apply: Callable[[LogState], LogState],
    *,
    share: ExtraOps = no_extra_ops,
) -> LogState:
    """Apply a change that may be applied twice; the state that holds it. ``share`` sees the changed state.

    A change that changes nothing is not written. Raises `LogNotFound`.
    """
    while True:
        found = await metadata.get(state_key(log_id))
        if found is None:
            raise LogNotFound(f'log "{name}" has been deleted')
        state = LogState.decode(found.value)
        if state.deleting:
            raise LogNotFound(f'log "{name}" is being deleted')
        changed = apply(state)
        if changed == state:
            return state
        own = Transaction(
            (Compare.version(found.key, found.version),), (Put(found.key, changed.encode()),)
        )
        try:
            if (await metadata.transact(own + await share(changed))).succeeded:
                return changed
        except OutcomeUnknown:
            continue
