"""Delete a log: mark its ledgers as DELETING and delete its keys, together (H13).

The lock is taken first, so the call fails while a living writer holds it. The epoch is raised, so a dead
writer cannot resume.

Then the log's end is determined and recorded before the first segment is deleted. Readers need it, possibly
long afterwards, to know whether they had read all records (`deleted_log_lookup.py`).

A log with more segments than fit into one transaction is deleted from the front. The name is deleted last, so
that another call finishes an interrupted deletion.
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
from ..model.log_state import LogState
from ..model.segment_expiry import stamps_key
from ..model.stored_settings import conf_key
from ..model.writer_log_state import WriterLogState
from ..services.log_context import LogContext
from ..takeover.log_lock import acquire_log_lock
from ..takeover.takeover import recover_with_retry
from .replaced_ledgers import delete_all_replaced
from .segment_purge import SEGMENTS_AT_ONCE, removal_ops
from .staged_ledgers import delete_staged, list_staged

ATTEMPTS = 5
PAGE = 1000
END_WAIT_S = 5.0
"""How long a deletion tries to determine the end of the last segment. Then it continues without it, and
readers that had not read all records receive no number of lost records."""

log = get_logger("distributedlog.log.segments.log_deletion")


async def delete_log_keys(metadata: Metadata, ledgers: SegmentEntryStore, log_id: int) -> None:
    """Delete the keys of a log besides its segments: positions, work queues, subscribers, workers,
    application versions, staged ledgers and ledgers replaced by merges.

    Called before the log is deleted, so that an interrupted deletion is repeated. Called again afterwards,
    when no new key can appear, because each is created on the condition that the log exists.
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
    """Record the log's end in its state. The end is exact if the bookies answered in time."""
    if writer_state.state.end is not None:
        return  # an interrupted deletion has recorded it
    try:
        await recover_with_retry(context, writer_state, timeout_s=END_WAIT_S)
    except (WriterFenced, LogNotFound):
        raise  # another client deletes it
    except DistributedLogError as error:
        log.warning('deleting log "%s" without its exact end: %s', writer_state.state.name, error)
    await writer_state.change(
        lambda state: state.with_end(exact=not state.in_progress),
        is_done=lambda state: state.end is not None,
    )


async def delete_log(
    context: LogContext, log_id: int, name: str, namespace: str, *, wait_s: float = 0.0
) -> None:
    """Delete this log, and never a later one of the same name.

    Args:
        context: The namespace.
        log_id: The log.
        name: Its name.
        namespace: The path of the namespace.
        wait_s: How long to wait for a writer that has the lock of the log.

    Raises:
        LogNotFound: The log was deleted or renamed.
        OwnershipAcquireFailed: A writer had the lock for the whole wait.
        DistributedLogError: As for `Namespace.delete_log`.
    """

    def raised(state: LogState, owner: str, writer_id: str) -> LogState:
        if state.name != name:  # renamed since, so another log is meant
            raise LogNotFound(f'log "{name}" is called "{state.name}" now')
        return state.with_deletion_begun(owner, writer_id)

    log_lock = await acquire_log_lock(
        context, log_id, takeover=False, wait_s=wait_s, claim_state=raised
    )
    try:
        await _delete_locked(context, log_lock.writer_state, namespace)
    finally:
        await log_lock.release()


async def _delete_locked(context: LogContext, writer_state: WriterLogState, namespace: str) -> None:
    """Delete a log whose lock the caller has.

    Raises:
        VersionConflict: Its ledgers kept changing.
        LogNotFound: Another client deleted it.
    """
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
                raise LogNotFound(f'log "{state.name}" has been deleted by another client')
            if attempts == ATTEMPTS:
                raise VersionConflict(f'log "{state.name}": its ledgers change while it is deleted')
