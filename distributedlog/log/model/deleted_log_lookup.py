"""Read and write deleted-log records: find the fate of a log, and store the end of a deleted one.

`position_outcome.py` decides the consequences. `deleted_log.py` has the format.
"""

from ...metadata.model.interface import Metadata, prefix_end
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.schema import NUMBER_MAX
from .deleted_log import (
    LOGS_PER_NAME,
    NAMES_PER_BUCKET,
    DeletedLog,
    bucket_prefix,
    decode_deleted_logs,
    deleted_logs_key,
    encode_deleted_logs,
)
from .log_keys import decode_log_id, incarnation_id, incarnation_text, name_key, state_key
from .log_state import LogState
from .position_outcome import CurrentLog, HeldPosition, LogLookup, resolve_position

log = get_logger("distributedlog.log")


async def find_deleted_logs(metadata: Metadata, namespace: str, name: str) -> list[DeletedLog]:
    """Return the deleted logs of a name that are still recorded, the last deleted last.

    A corrupt value counts as no record.

    Raises:
        UnsupportedFormat: A newer version wrote the value.
    """
    stored = await metadata.get(deleted_logs_key(namespace, name))
    return [] if stored is None else _decode_or_empty(stored)


async def look_up(
    metadata: Metadata,
    namespace: str,
    name: str,
    log_id: int,
    current_log: CurrentLog | None = None,
) -> LogLookup:
    """Find the fate of a log to which a caller has a position, and which is not the log of this name now.

    Args:
        metadata: The metadata store.
        namespace: The path of the namespace.
        name: The name of the log.
        log_id: The log of the position.
        current_log: The log that has the name now, if the caller has it already.
    """
    # The state is read first: a log that exists now may be deleted before the next read, never the reverse.
    stored_state = await metadata.get(state_key(log_id))
    state = None if stored_state is None else LogState.decode(stored_state.value)
    successor = ""
    if current_log is None:
        stored_name = await metadata.get(name_key(namespace, name))
        named_log_id = None if stored_name is None else decode_log_id(stored_name.value)
        successor = "" if named_log_id in (None, log_id) else incarnation_text(named_log_id)
    if state is not None and not state.deleting:
        return LogLookup(current_log, current_name=state.name, successor=successor)
    deleted_logs = await find_deleted_logs(
        metadata, namespace, name if state is None else state.name
    )
    if state is None or any(deleted_log.log_id == log_id for deleted_log in deleted_logs):
        return LogLookup(current_log, deleted_logs, successor=successor)
    if state.end is None:
        return LogLookup(current_log, deleted_logs, is_being_deleted=True)
    return LogLookup(current_log, [*deleted_logs, DeletedLog.of(state, 0)], successor=successor)


async def explain_deleted(
    metadata: Metadata, namespace: str, name: str, held_position: HeldPosition
) -> DistributedLogError:
    """Return the error of a read from a position whose log is not the log of this name now."""
    lookup = await look_up(metadata, namespace, name, incarnation_id(held_position.incarnation))
    return resolve_position(held_position, lookup).error(name, held_position)


async def deleted_log_ops(
    metadata: Metadata, namespace: str, name: str, deleted_log: DeletedLog
) -> Transaction:
    """Return the operations that record the deletion of a log, as a part of the transaction that deletes it.

    If the bucket is full, the names with the oldest deletions are evicted first, in transactions of their
    own.
    """
    key = deleted_logs_key(namespace, name)
    await _evict_oldest(metadata, namespace, name)
    stored = await metadata.get(key)
    earlier_logs = [] if stored is None else _decode_or_empty(stored)
    kept_logs = [
        earlier_log for earlier_log in earlier_logs if earlier_log.log_id != deleted_log.log_id
    ] + [deleted_log]
    # Compare the revision, because the version of a key that is deleted and created again restarts.
    unchanged = Compare.mod_revision(key, 0 if stored is None else stored.mod_revision)
    return Transaction((unchanged,), (Put(key, encode_deleted_logs(kept_logs[-LOGS_PER_NAME:])),))


async def _evict_oldest(metadata: Metadata, namespace: str, name: str) -> None:
    start = bucket_prefix(namespace, name)
    page = await metadata.range(start, prefix_end(start), limit=4 * NAMES_PER_BUCKET)
    others = [item for item in page.items if item.key != deleted_logs_key(namespace, name)]
    excess = len(others) - (NAMES_PER_BUCKET - 1)
    if excess <= 0:
        return
    for item in sorted(others, key=_last_deleted_ms)[:excess]:
        compare = Compare.mod_revision(item.key, item.mod_revision)
        await metadata.transact(Transaction((compare,), (Delete(item.key),)))


def _last_deleted_ms(item: KeyValue) -> int:
    try:
        return max((deleted_log.deleted_ms for deleted_log in _decode_or_empty(item)), default=-1)
    except UnsupportedFormat:
        return NUMBER_MAX  # written by a newer program: evicted last


def _decode_or_empty(item: KeyValue) -> list[DeletedLog]:
    """Decode the records.

    A corrupt value counts as empty, because it must not prevent the deletion of a log.
    """
    try:
        return decode_deleted_logs(item.value)
    except CorruptData as error:
        log.warning("%r: %s", item.key, error)
        return []
