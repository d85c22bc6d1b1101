"""Deleting a log: its ledgers to DELETING and its keys away, together (H13).

The lock is taken first, so a living writer refuses it; the epoch is raised, so a dead one cannot come back.
Then the log's end is made certain and noted, before its first segment goes: whoever was reading it must be
able to tell whether that was all, also long after (`tombstone.py`). A log of more segments than one
transaction holds goes front first; the name goes last, so that a deletion that was cut short is finished by
asking again.
"""

import logging

from ..metadata.interface import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from ..runtime.errors import (
    CorruptData,
    DistributedLogError,
    LogNotFound,
    UnsupportedFormat,
    VersionConflict,
    WriterFenced,
)
from ..runtime.schema import NUMBER_MAX
from .context import LogContext
from .keys import (
    all_workers_prefix,
    lock_key,
    name_key,
    position_key,
    purge_key,
    segment_key,
    state_key,
    subscriber_key,
    txn_key,
    work_key,
)
from .ledgers import Ledgers
from .ownership import OwnedLog
from .purge import SEGMENTS_AT_ONCE
from .retention import stamps_key
from .settings import conf_key
from .state import LogState
from .takeover import read_segment, recover_patiently
from .tombstone import (
    KEPT_A_BUCKET,
    KEPT_A_NAME,
    Tombstone,
    bucket_prefix,
    decode,
    encode,
    gone_key,
)
from .unlinked import delete_unlinked, list_unlinked

ATTEMPTS = 5
PAGE = 1000
END_WAIT_S = 5.0
"""How long a deletion tries to make the end of the last segment certain. Then it goes on without: whoever
had not read all of the log is told that nobody knows how much was lost."""

log = logging.getLogger("distributedlog.log.deletion")


async def sweep(metadata: Metadata, ledgers: Ledgers, log_id: int) -> None:
    """Delete what hangs on a log beside its segments: positions and work queues, who is at them,
    applications' notes, unlinked ledgers.

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
    for ledger_id, _ in await list_unlinked(metadata, log_id):
        await delete_unlinked(metadata, ledgers, log_id, ledger_id)


async def note_end(context: LogContext, owned: OwnedLog) -> None:
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


async def delete_claimed(context: LogContext, owned: OwnedLog, namespace: str) -> None:
    """Delete a log that was claimed for it. Raises `VersionConflict` when its ledgers keep changing."""
    ledgers = context.ledgers
    attempts = 0
    await note_end(context, owned)
    await sweep(owned.metadata, ledgers, owned.log_id)
    while True:
        await owned.refresh()
        state = owned.state
        last = min(state.first_segment + SEGMENTS_AT_ONCE - 1, state.last_segment)
        share = Transaction()
        for segment in range(state.first_segment, last + 1):
            record = await read_segment(owned.metadata, state, segment)
            share += await ledgers.deletion_share(record.ledger_id)
            share += Transaction((), (Delete(segment_key(state.log_id, segment)),))
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
            share += await burial(
                owned.metadata, namespace, state.name, _tombstone(state, context.wall_ms())
            )
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


def _tombstone(state: LogState, now_ms: int) -> Tombstone:
    assert state.end is not None, "the end is noted before anything goes"
    return Tombstone(state.log_id, state.end, state.truncated_sequence_id, now_ms)


async def find_tombstones(metadata: Metadata, namespace: str, name: str) -> list[Tombstone]:
    """The logs that had this name and were deleted, as far as they are remembered, in that order.

    A value that is damaged is as good as forgotten. Raises `UnsupportedFormat`.
    """
    found = await metadata.get(gone_key(namespace, name))
    return [] if found is None else _readable(found)


async def find_deleted(
    metadata: Metadata, namespace: str, name: str, log_id: int
) -> list[Tombstone] | None:
    """As `find_tombstones`, with the log of this id where it is being deleted at this moment.

    None: it is, and where it ends is not noted yet.
    """
    # The state first: what is not deleted by then may be by the next question, never the reverse.
    found = await metadata.get(state_key(log_id))
    gone = await find_tombstones(metadata, namespace, name)
    if found is None or any(one.log_id == log_id for one in gone):
        return gone
    state = LogState.decode(found.value)
    if state.end is None:
        return None
    return [*gone, _tombstone(state, 0)]


async def burial(
    metadata: Metadata, namespace: str, name: str, tombstone: Tombstone
) -> Transaction:
    """The share of the transaction that deletes a log: its tombstone after those of its name.

    Makes room first, where the bucket is full: the names whose last deletion is the longest ago go.
    """
    key = gone_key(namespace, name)
    await _make_room(metadata, namespace, name)
    found = await metadata.get(key)
    before = [] if found is None else _readable(found)
    listed = [one for one in before if one.log_id != tombstone.log_id] + [tombstone]
    version = 0 if found is None else found.version
    return Transaction((Compare.version(key, version),), (Put(key, encode(listed[-KEPT_A_NAME:])),))


async def _make_room(metadata: Metadata, namespace: str, name: str) -> None:
    start = bucket_prefix(namespace, name)
    page = await metadata.range(start, prefix_end(start), limit=4 * KEPT_A_BUCKET)
    others = [item for item in page.items if item.key != gone_key(namespace, name)]
    spare = len(others) - (KEPT_A_BUCKET - 1)
    if spare <= 0:
        return
    for item in sorted(others, key=_last_deleted_ms)[:spare]:
        compare = Compare.version(item.key, item.version)
        await metadata.transact(Transaction((compare,), (Delete(item.key),)))


def _last_deleted_ms(item: KeyValue) -> int:
    try:
        return max((one.deleted_ms for one in _readable(item)), default=-1)
    except UnsupportedFormat:
        return NUMBER_MAX  # a newer program's: not ours to give up first


def _readable(item: KeyValue) -> list[Tombstone]:
    """A value that cannot be read is worth nothing, and must not keep a log from being deleted."""
    try:
        return decode(item.value)
    except CorruptData as error:
        log.warning("%r: %s", item.key, error)
        return []
