"""Deleting a log: its ledgers to DELETING and its keys away, together (H13).

The lock is taken first, so a living writer refuses it; the epoch is raised, so a dead one cannot come back.
Then the log's end is made certain and noted, before its first segment goes: whoever was reading it must be
able to tell whether that was all, also long after (`deleted_log_lookup.py`). A log of more segments than one
transaction holds goes front first; the name goes last, so that a deletion that was cut short is finished by
asking again.
"""

from ...metadata.model.interface import Metadata, prefix_end
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LogNotFound,
    VersionConflict,
    WriterFenced,
)
from ...runtime.interfaces.log_lines import get_logger
from ..interfaces.segment_store import SegmentEntryStore
from ..model.deleted_log import DeletedLog
from ..model.deleted_log_lookup import deleted_log_ops
from ..model.log_keys import (
    all_workers_prefix,
    lock_key,
    name_key,
    position_key,
    purge_key,
    state_key,
    subscriber_key,
    txn_key,
    work_key,
)
from ..model.segment_expiry import stamps_key
from ..model.stored_settings import conf_key
from ..model.writer_log_state import WriterLogState
from ..services.log_context import LogContext
from ..takeover.takeover import recover_patiently
from .replaced_ledgers import sweep_replaced
from .segment_purge import SEGMENTS_AT_ONCE, removal_ops
from .staged_ledgers import delete_staged, list_staged

ATTEMPTS = 5
PAGE = 1000
END_WAIT_S = 5.0
"""How long a deletion tries to make the end of the last segment certain. Then it goes on without: whoever
had not read all of the log is told that nobody knows how much was lost."""

log = get_logger("distributedlog.log.segments.log_deletion")


async def sweep(metadata: Metadata, ledgers: SegmentEntryStore, log_id: int) -> None:
    """Delete what hangs on a log beside its segments: positions and work queues, who is at them,
    applications' notes, unlinked ledgers, what merges have left.

    Called before the log goes, so that a deletion that is cut short is repeated, and after, when nothing
    new can come: each of these is made on condition that the log is there.
    """
    for prefix in (
        position_key(log_id, ""),
        subscriber_key(log_id, ""),
        work_key(log_id, ""),
        all_workers_prefix(log_id),
        txn_key(log_id, ""),
    ):
        while (page := await metadata.range(prefix, prefix_end(prefix), limit=PAGE)).items:
            await metadata.transact(Transaction((), tuple(Delete(item.key) for item in page.items)))
    for ledger_id, _ in await list_staged(metadata, log_id):
        await delete_staged(metadata, ledgers, log_id, ledger_id)
    await sweep_replaced(metadata, ledgers.deletion_share, log_id)


async def note_end(context: LogContext, owned: WriterLogState) -> None:
    """Write where the log ends into its state, exactly where its bookies say so in time."""
    if owned.state.end is not None:
        return  # by a deletion that was cut short
    try:
        await recover_patiently(context, owned, timeout_s=END_WAIT_S)
    except (WriterFenced, LogNotFound):
        raise  # somebody else deletes it
    except DistributedLogError as error:
        log.warning('log "%s" is deleted, its end is not certain: %s', owned.state.name, error)
    await owned.change(
        lambda state: state.with_end(exact=not state.in_progress),
        done=lambda state: state.end is not None,
    )


async def delete_claimed(context: LogContext, owned: WriterLogState, namespace: str) -> None:
    """Delete a log that was claimed for it. Raises `VersionConflict` when its ledgers keep changing."""
    ledgers = context.ledgers
    attempts = 0
    await note_end(context, owned)
    await sweep(owned.metadata, ledgers, owned.log_id)
    while True:
        await owned.refresh()
        state = owned.state
        last = min(state.first_segment + SEGMENTS_AT_ONCE - 1, state.last_segment)
        share = await removal_ops(owned.metadata, state, last, ledgers.deletion_share)
        key = state_key(state.log_id)
        compare = Compare.version(key, owned.version)
        if last < state.last_segment:
            rest = state.without_segments_to(last)
            own = Transaction((compare,), (Put(key, rest.encode()),))
        else:
            own = Transaction(
                (compare,),
                (
                    Delete(key),
                    Delete(lock_key(state.log_id)),
                    Delete(purge_key(state.log_id)),
                    Delete(conf_key(state.log_id)),
                    Delete(stamps_key(state.log_id)),
                    Delete(name_key(namespace, state.name)),
                ),
            )
            tombstone = DeletedLog.of(state, context.wall_ms())
            share += await deleted_log_ops(owned.metadata, namespace, state.name, tombstone)
        reply = await owned.metadata.transact(own + share)
        if reply.succeeded and last == state.last_segment:
            await sweep(owned.metadata, ledgers, owned.log_id)
            return
        if not reply.succeeded:
            attempts += 1
            if reply.current[0] is None:
                raise LogNotFound(f'log "{state.name}" has been deleted by somebody else')
            if attempts == ATTEMPTS:
                raise VersionConflict(f'log "{state.name}": its ledgers change while it is deleted')
