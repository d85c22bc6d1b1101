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
    app_version_key,
    lock_key,
    name_key,
    position_key,
    purge_key,
    state_key,
    subscriber_key,
    work_key,
)
from ..model.segment_expiry import stamps_key
from ..model.stored_settings import conf_key
from ..model.writer_log_state import WriterLogState
from ..services.log_context import LogContext
from ..takeover.takeover import recover_with_retry
from .replaced_ledgers import delete_all_replaced
from .segment_purge import SEGMENTS_AT_ONCE, removal_ops
from .staged_ledgers import delete_staged, list_staged

ATTEMPTS = 5
PAGE = 1000
END_WAIT_S = 5.0
"""How long a deletion tries to make the end of the last segment certain. Then it goes on without: whoever
had not read all of the log is told that nobody knows how much was lost."""

log = get_logger("distributedlog.log.segments.log_deletion")


async def delete_log_keys(metadata: Metadata, ledgers: SegmentEntryStore, log_id: int) -> None:
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
        app_version_key(log_id, ""),
    ):
        while (page := await metadata.range(prefix, prefix_end(prefix), limit=PAGE)).items:
            await metadata.transact(Transaction((), tuple(Delete(item.key) for item in page.items)))
    for ledger_id, _ in await list_staged(metadata, log_id):
        await delete_staged(metadata, ledgers, log_id, ledger_id)
    await delete_all_replaced(metadata, ledgers.delete_ops, log_id)


async def record_end(context: LogContext, writer_state: WriterLogState) -> None:
    """Write where the log ends into its state, exactly where its bookies say so in time."""
    if writer_state.state.end is not None:
        return  # by a deletion that was cut short
    try:
        await recover_with_retry(context, writer_state, timeout_s=END_WAIT_S)
    except (WriterFenced, LogNotFound):
        raise  # somebody else deletes it
    except DistributedLogError as error:
        log.warning(
            'log "%s" is deleted, its end is not certain: %s', writer_state.state.name, error
        )
    await writer_state.change(
        lambda state: state.with_end(exact=not state.in_progress),
        is_done=lambda state: state.end is not None,
    )


async def delete_locked_log(
    context: LogContext, writer_state: WriterLogState, namespace: str
) -> None:
    """Delete a log that was claimed for it. Raises `VersionConflict` when its ledgers keep changing."""
    ledgers = context.ledgers
    attempts = 0
    await record_end(context, writer_state)
    await delete_log_keys(writer_state.metadata, ledgers, writer_state.log_id)
    while True:
        await writer_state.refresh()
        state = writer_state.state
        last_segment = min(state.first_segment + SEGMENTS_AT_ONCE - 1, state.last_segment)
        extra_ops = await removal_ops(
            writer_state.metadata, state, last_segment, ledgers.delete_ops
        )
        key = state_key(state.log_id)
        compare = Compare.version(key, writer_state.version)
        if last_segment < state.last_segment:
            remaining_state = state.without_segments_to(last_segment)
            update = Transaction((compare,), (Put(key, remaining_state.encode()),))
        else:
            update = Transaction(
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
            deleted_log = DeletedLog.of(state, context.clock_ms())
            extra_ops += await deleted_log_ops(
                writer_state.metadata, namespace, state.name, deleted_log
            )
        reply = await writer_state.metadata.transact(update + extra_ops)
        if reply.succeeded and last_segment == state.last_segment:
            await delete_log_keys(writer_state.metadata, ledgers, writer_state.log_id)
            return
        if not reply.succeeded:
            attempts += 1
            if reply.current[0] is None:
                raise LogNotFound(f'log "{state.name}" has been deleted by somebody else')
            if attempts == ATTEMPTS:
                raise VersionConflict(f'log "{state.name}": its ledgers change while it is deleted')
