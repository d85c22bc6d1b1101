"""The lock of a log's writer: a leased key that refuses a second writer early and names the first.

A courtesy only. What is safe is the epoch in the log's state and the fence at the bookies: a writer that
loses its lease writes on until somebody else takes the log over. The lock is taken in the transaction that
raises the epoch, so that there is no moment between the two. The lease is the process's (`lease_session.py`).
"""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    Compacted,
    DistributedLogError,
    LeaseExpired,
    LogNotFound,
    OwnershipAcquireFailed,
    TooBusy,
)
from ...runtime.primitives.backoff import Backoff
from ..model.lock_record import LockRecord
from ..model.log_keys import lock_key, state_key
from ..model.log_state import LogState
from ..model.writer_log_state import WriterLogState
from ..services.lease_session import LeaseSessions, LogLock, PendingDelete
from ..services.log_context import LogContext

BUSY_WAIT_S = 5.0
"""A store that is too busy is asked again for at least so long."""
BUSY_FIRST_S = 0.05
BUSY_MAX_S = 1.0
WAIT_BEYOND_LEASE_S = 2.0
"""The default wait for a lock: the lease and this, so that a restart after a kill succeeds."""


async def claim(
    context: LogContext,
    log_id: int,
    *,
    takeover: bool,
    wait_s: float | None,
    raised: Callable[[LogState, str, str], LogState] = LogState.claimed,
    locked: bool = True,
    over: str = "",
) -> LogLock:
    """Take the lock and raise the epoch, in one transaction: step 1 of a takeover (H12).

    While another one's lock lives: waits up to ``wait_s`` (None: its lease and 2 s), then raises
    `OwnershipAcquireFailed` naming it; with ``takeover`` it does not wait. ``over``: the writer id of one who
    is known to be dead; his lock is not waited for, that of whoever came between is. ``raised`` gives the
    claimed state from the one before, owner and writer id. Not ``locked``: nobody's lock is asked, one that
    lives goes, and none is taken; the epoch alone says who owns the log. Raises `LogNotFound`, `EndOfStream`.
    """
    metadata, lease_s = context.metadata, context.options.lock_lease_s
    record = LockRecord.drawn(
        context.owner, context.random.getrandbits(64), context.wall_ms(), context.proxy_id
    )
    patience = lease_s + WAIT_BEYOND_LEASE_S if wait_s is None else wait_s
    deadline = trio.current_time() + patience
    busy_until = max(deadline, trio.current_time() + BUSY_WAIT_S)
    backoff = Backoff(BUSY_FIRST_S, BUSY_MAX_S)
    while True:
        found = await metadata.get(state_key(log_id))
        if found is None:
            raise LogNotFound("the log has been deleted while its writer opened it")
        lock = await metadata.get(lock_key(log_id))
        if lock is not None and locked and not takeover:
            holder = LockRecord.decode(lock.value)
            if holder.writer_id != over:
                if trio.current_time() >= deadline:
                    state = LogState.decode(found.value)
                    raise OwnershipAcquireFailed(
                        f'log "{state.name}" is being written by {holder.owner}; its lock was not free '
                        f"within {patience:g} s. Wait, or take over",
                        holder.owner,
                    )
                await changed(metadata, lock, deadline)
                continue
        try:
            if locked:
                ttl_ms = int(lease_s * 1000)
                claimed = await _try(context.locks, record, found, lock, ttl_ms, raised)
            else:
                claimed = await _try_alone(metadata, record, found, raised)
        except TooBusy:  # nothing was done: a thousand others may be claimed at this moment
            busy_s = backoff.next_s()
            if trio.current_time() + busy_s > busy_until:
                raise
            await trio.sleep(busy_s)
            continue
        if claimed is not None:
            return claimed


async def _try(
    sessions: LeaseSessions,
    record: LockRecord,
    found: KeyValue,
    lock: KeyValue | None,
    ttl_ms: int,
    raised: Callable[[LogState, str, str], LogState],
) -> LogLock | None:
    metadata = sessions.metadata
    before = LogState.decode(found.value)
    state = raised(before, record.owner, record.writer_id)
    session = await sessions.enter(ttl_ms)
    lease = session.lease
    claimed: LogLock | None = None
    # Until it is answered the transaction may be done, or be done yet: what it puts is cleared away.
    left: PendingDelete | None = PendingDelete(
        lock_key(state.log_id), record.encode(), Compare.version(found.key, found.version)
    )
    try:
        reply = await metadata.transact(
            Transaction(
                (
                    Compare.version(found.key, found.version),
                    Compare.version(lock_key(state.log_id), 0 if lock is None else lock.version),
                ),
                (
                    Put(found.key, state.encode()),
                    Put(lock_key(state.log_id), record.encode(), lease),
                ),
            )
        )
        left = None
        if reply.succeeded:
            owned = WriterLogState(metadata, state, found.version + 1)
            held_at = reply.revision if lease == session.lease else 0
            claimed = LogLock(owned, session, record.encode(), held_at)
    except LeaseExpired:  # the store was away for longer than that: again, with another one
        left = None
        await session.ended(lease)
    except DistributedLogError as error:
        owned = await _done(metadata, found.key, state, error)
        claimed = LogLock(owned, session, record.encode(), held_at=0)
    finally:
        if claimed is None:
            await session.leave(left)
    return claimed


async def _try_alone(
    metadata: Metadata,
    record: LockRecord,
    found: KeyValue,
    raised: Callable[[LogState, str, str], LogState],
) -> LogLock | None:
    state = raised(LogState.decode(found.value), record.owner, record.writer_id)
    try:
        reply = await metadata.transact(
            Transaction(
                (Compare.version(found.key, found.version),),
                # Else it would keep others out for as long as its holder does not learn that it lost the log.
                (Put(found.key, state.encode()), Delete(lock_key(state.log_id))),
            )
        )
    except DistributedLogError as error:
        return LogLock(await _done(metadata, found.key, state, error), None)
    if not reply.succeeded:
        return None
    return LogLock(WriterLogState(metadata, state, found.version + 1), None)


async def _done(
    metadata: Metadata, key: bytes, state: LogState, error: DistributedLogError
) -> WriterLogState:
    """The log, if a claim that met ``error`` was done after all; else raises that.

    The same writer id in the state says that it was this very transaction.
    """
    again = await metadata.get(key)
    if again is None or LogState.decode(again.value) != state:
        raise error
    return WriterLogState(metadata, state, again.version)


async def changed(metadata: Metadata, lock: KeyValue, deadline: float) -> None:
    """Until the key is another one's, or nobody's, or the deadline."""
    with trio.move_on_at(deadline):
        try:
            async with metadata.watch(
                lock.key, lock.key + b"\x00", after_revision=lock.mod_revision
            ) as watch:
                await watch.next()
        except Compacted:
            return  # it has changed long ago: look again
