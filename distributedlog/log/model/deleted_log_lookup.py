"""Where deleted logs lie: what is found of a log that somebody held, and how a deletion leaves its end.

What is decided by it says `position_outcome.py`; the values are `deleted_log.py`'s.
"""

from ...metadata.model.interface import Metadata, prefix_end
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.schema import NUMBER_MAX
from .deleted_log import (
    KEPT_A_BUCKET,
    KEPT_A_NAME,
    DeletedLog,
    bucket_prefix,
    decode,
    encode,
    gone_key,
)
from .log_keys import decode_log_id, incarnation_id, incarnation_text, name_key, state_key
from .log_state import LogState
from .position_outcome import CurrentLog, HeldPosition, LogLookup, resolve_position

log = get_logger("distributedlog.log")


async def find_deleted_logs(metadata: Metadata, namespace: str, name: str) -> list[DeletedLog]:
    """The logs that had this name and were deleted, as far as they are remembered, in that order.

    A value that is damaged is as good as forgotten. Raises `UnsupportedFormat`.
    """
    found = await metadata.get(gone_key(namespace, name))
    return [] if found is None else _readable(found)


async def look_up(
    metadata: Metadata,
    namespace: str,
    name: str,
    log_id: int,
    there: CurrentLog | None = None,
) -> LogLookup:
    """What has become of a log that somebody held, and that is not the one of this name now.

    ``there``: the log that is, where the caller knows it.
    """
    # The state first: what is not deleted by then may be by the next question, never the reverse.
    found = await metadata.get(state_key(log_id))
    state = None if found is None else LogState.decode(found.value)
    successor = ""
    if there is None:
        named = await metadata.get(name_key(namespace, name))
        other = None if named is None else decode_log_id(named.value)
        successor = "" if other in (None, log_id) else incarnation_text(other)
    if state is not None and not state.deleting:
        return LogLookup(there, renamed=state.name, successor=successor)
    gone = await find_deleted_logs(metadata, namespace, name if state is None else state.name)
    if state is None or any(one.log_id == log_id for one in gone):
        return LogLookup(there, gone, successor=successor)
    if state.end is None:
        return LogLookup(there, gone, deleting=True)
    return LogLookup(there, [*gone, DeletedLog.of(state, 0)], successor=successor)


async def explain_deleted(
    metadata: Metadata, namespace: str, name: str, held: HeldPosition
) -> DistributedLogError:
    """Why a log that is not the one of this name now cannot be read from a held position on."""
    found = await look_up(metadata, namespace, name, incarnation_id(held.identity))
    return resolve_position(held, found).error(name, held)


async def deleted_log_ops(
    metadata: Metadata, namespace: str, name: str, tombstone: DeletedLog
) -> Transaction:
    """The share of the transaction that deletes a log: its tombstone after those of its name.

    Makes room first, where the bucket is full: the names whose last deletion is the longest ago go.
    """
    key = gone_key(namespace, name)
    await _make_room(metadata, namespace, name)
    found = await metadata.get(key)
    before = [] if found is None else _readable(found)
    listed = [one for one in before if one.log_id != tombstone.log_id] + [tombstone]
    # By its revision: a key that is given up and made again counts its versions anew.
    as_read = Compare.mod_revision(key, 0 if found is None else found.mod_revision)
    return Transaction((as_read,), (Put(key, encode(listed[-KEPT_A_NAME:])),))


async def _make_room(metadata: Metadata, namespace: str, name: str) -> None:
    start = bucket_prefix(namespace, name)
    page = await metadata.range(start, prefix_end(start), limit=4 * KEPT_A_BUCKET)
    others = [item for item in page.items if item.key != gone_key(namespace, name)]
    spare = len(others) - (KEPT_A_BUCKET - 1)
    if spare <= 0:
        return
    for item in sorted(others, key=_last_deleted_ms)[:spare]:
        compare = Compare.mod_revision(item.key, item.mod_revision)
        await metadata.transact(Transaction((compare,), (Delete(item.key),)))


def _last_deleted_ms(item: KeyValue) -> int:
    try:
        return max((one.deleted_ms for one in _readable(item)), default=-1)
    except UnsupportedFormat:
        return NUMBER_MAX  # a newer program's: not ours to give up first


def _readable(item: KeyValue) -> list[DeletedLog]:
    """A value that cannot be read is worth nothing, and must not keep a log from being deleted."""
    try:
        return decode(item.value)
    except CorruptData as error:
        log.warning("%r: %s", item.key, error)
        return []
