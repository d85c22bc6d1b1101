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
BUSY_BACKOFF_FIRST_S = 0.05
BUSY_BACKOFF_MAX_S = 1.0
WAIT_BEYOND_LEASE_S = 2.0
"""The default wait for a lock: the lease and this, so that a restart after a kill succeeds."""


async def acquire_log_lock(
    context: LogContext,
    log_id: int,
    *,
    takeover: bool,
    wait_s: float | None,
    claim_state: Callable[[LogState, str, str], LogState] = LogState.with_writer,
    with_lock: bool = True,
    dead_writer_id: str = "",
) -> LogLock:
    """Take the lock and raise the epoch, in one transaction: step 1 of a takeover (H12).

    While another one's lock lives: waits up to ``wait_s`` (None: its lease and 2 s), then raises
    `OwnershipAcquireFailed` naming it; with ``takeover`` it does not wait. ``over``: the writer id of one who
    is known to be dead; his lock is not waited for, that of whoever came between is. ``raised`` gives the
    claimed state from the one before, owner and writer id. Not ``locked``: nobody's lock is asked, one that
    lives goes, and none is taken; the epoch alone says who owns the log. Raises `LogNotFound`, `EndOfStream`.
    """
    metadata, lease_s = context.metadata, context.options.lock_lease_s
    record = LockRecord.create(
        context.owner, context.random.getrandbits(64), context.clock_ms(), context.proxy_id
    )
    timeout_s = lease_s + WAIT_BEYOND_LEASE_S if wait_s is None else wait_s
    deadline = trio.current_time() + timeout_s
    busy_until = max(deadline, trio.current_time() + BUSY_WAIT_S)
    backoff = Backoff(BUSY_BACKOFF_FIRST_S, BUSY_BACKOFF_MAX_S)
    while True:
        stored_state = await metadata.get(state_key(log_id))
        if stored_state is None:
            raise LogNotFound("the log has been deleted while its writer opened it")
        existing_lock = await metadata.get(lock_key(log_id))
        if existing_lock is not None and with_lock and not takeover:
            holder = LockRecord.decode(existing_lock.value)
            if holder.writer_id != dead_writer_id:
                if trio.current_time() >= deadline:
                    state = LogState.decode(stored_state.value)
                    raise OwnershipAcquireFailed(
                        f'log "{state.name}" is being written by {holder.owner}; its lock was not free '
                        f"within {timeout_s:g} s. Wait, or take over",
                        holder.owner,
                    )
                await wait_until_changed(metadata, existing_lock, deadline)
                continue
        try:
            if with_lock:
                ttl_ms = int(lease_s * 1000)
                acquired = await _try_acquire(
                    context.lease_sessions, record, stored_state, existing_lock, ttl_ms, claim_state
                )
            else:
                acquired = await _try_without_lock(metadata, record, stored_state, claim_state)
        except TooBusy:  # nothing was done: a thousand others may be claimed at this moment
            busy_s = backoff.next_s()
            if trio.current_time() + busy_s > busy_until:
                raise
            await trio.sleep(busy_s)
            continue
        if acquired is not None:
            return acquired


async def _try_acquire(
    sessions: LeaseSessions,
    record: LockRecord,
    stored_state: KeyValue,
    existing_lock: KeyValue | None,
    ttl_ms: int,
    claim_state: Callable[[LogState, str, str], LogState],
) -> LogLock | None:
    metadata = sessions.metadata
    old_state = LogState.decode(stored_state.value)
    state = claim_state(old_state, record.owner, record.writer_id)
    session = await sessions.acquire(ttl_ms)
    lease = session.lease
    acquired: LogLock | None = None
    # Until it is answered the transaction may be done, or be done yet: what it puts is cleared away.
    pending_delete: PendingDelete | None = PendingDelete(
        lock_key(state.log_id),
        record.encode(),
        Compare.version(stored_state.key, stored_state.version),
    )
    try:
        reply = await metadata.transact(
            Transaction(
                (
                    Compare.version(stored_state.key, stored_state.version),
                    Compare.version(
                        lock_key(state.log_id),
                        0 if existing_lock is None else existing_lock.version,
                    ),
                ),
                (
                    Put(stored_state.key, state.encode()),
                    Put(lock_key(state.log_id), record.encode(), lease),
                ),
            )
        )
        pending_delete = None
        if reply.succeeded:
            writer_state = WriterLogState(metadata, state, stored_state.version + 1)
            lock_revision = reply.revision if lease == session.lease else 0
            acquired = LogLock(writer_state, session, record.encode(), lock_revision)
    except LeaseExpired:  # the store was away for longer than that: again, with another one
        pending_delete = None
        await session.replace_lease(lease)
    except DistributedLogError as error:
        writer_state = await _resolve_unknown_claim(metadata, stored_state.key, state, error)
        acquired = LogLock(writer_state, session, record.encode(), lock_revision=0)
    finally:
        if acquired is None:
            await session.release_use(pending_delete)
    return acquired


async def _try_without_lock(
    metadata: Metadata,
    record: LockRecord,
    stored_state: KeyValue,
    claim_state: Callable[[LogState, str, str], LogState],
) -> LogLock | None:
    state = claim_state(LogState.decode(stored_state.value), record.owner, record.writer_id)
    try:
        reply = await metadata.transact(
            Transaction(
                (Compare.version(stored_state.key, stored_state.version),),
                # Else it would keep others out for as long as its holder does not learn that it lost the log.
                (Put(stored_state.key, state.encode()), Delete(lock_key(state.log_id))),
            )
        )
    except DistributedLogError as error:
        return LogLock(await _resolve_unknown_claim(metadata, stored_state.key, state, error), None)
    if not reply.succeeded:
        return None
    return LogLock(WriterLogState(metadata, state, stored_state.version + 1), None)


async def _resolve_unknown_claim(
    metadata: Metadata, key: bytes, state: LogState, error: DistributedLogError
) -> WriterLogState:
    """The log, if a claim that met ``error`` was done after all; else raises that.

    The same writer id in the state says that it was this very transaction.
    """
    current = await metadata.get(key)
    if current is None or LogState.decode(current.value) != state:
        raise error
    return WriterLogState(metadata, state, current.version)


async def wait_until_changed(metadata: Metadata, lock: KeyValue, deadline: float) -> None:
    """Until the key is another one's, or nobody's, or the deadline."""
    with trio.move_on_at(deadline):
        try:
            async with metadata.watch(
                lock.key, lock.key + b"\x00", after_revision=lock.mod_revision
            ) as watch:
                await watch.next_batch()
        except Compacted:
            return  # it has changed long ago: look again
