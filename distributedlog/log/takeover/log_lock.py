"""The lock of a log's writer: a leased key that rejects a second writer early and has the name of the first.

The lock is only advisory. Safety comes from the epoch in the log's state and from fencing at the bookies. A
writer that loses its lease continues until another client takes over the log. The lock is taken in the
transaction that raises the epoch, so there is no time between the two. One lease serves all locks of a
process (`lease_session.py`).
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
"""The least time for which requests to an overloaded metadata quorum are retried."""
BUSY_BACKOFF_FIRST_S = 0.05
BUSY_BACKOFF_MAX_S = 1.0
WAIT_BEYOND_LEASE_S = 2.0
"""The default wait for a lock is its lease plus this time, so that a restart after a kill succeeds."""


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
    """Take the lock and raise the epoch in one transaction, which is step 1 of a takeover (H12).

    Args:
        takeover: Do not wait for another writer's lock.
        wait_s: How long to wait while another writer holds the lock. None for the lock's lease plus 2 s.
        claim_state: Returns the claimed state, given the present state, the owner and the writer ID.
        with_lock: If False, ignore and delete an existing lock, and take none. Only the epoch then determines
            the owner.
        dead_writer_id: The ID of a writer that is known to be dead. Its lock is not waited for, but that of
            any other writer is.
    Returns:
        The claimed log. The caller releases it.
    Raises:
        OwnershipAcquireFailed: Another writer held the lock for the whole wait. The error has its name.
        LogNotFound: The log was deleted.
        EndOfStream: The log is sealed.
        TooBusy: The metadata quorum is overloaded.
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
                        f'log "{state.name}" is being written by {holder.owner}, whose lock was not free '
                        f"within {timeout_s:g} s. Wait, or take over the log.",
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
        except TooBusy:  # nothing was done, because many logs may be claimed at the same time
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
    # Without an answer, the transaction may have run or may still run. Its key is then deleted.
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
    except LeaseExpired:  # the metadata quorum was unreachable for too long: retry with a new lease
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
                # Otherwise the lock would block other writers until its holder notices the loss.
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
    """Return the log's state if the claim that failed with ``error`` took effect. Otherwise raise the error.

    The same writer ID in the state proves that it was this transaction.
    """
    current = await metadata.get(key)
    if current is None or LogState.decode(current.value) != state:
        raise error
    return WriterLogState(metadata, state, current.version)


async def wait_until_changed(metadata: Metadata, lock: KeyValue, deadline: float) -> None:
    """Wait until the lock is released or taken by another writer, or until the deadline."""
    with trio.move_on_at(deadline):
        try:
            async with metadata.watch(
                lock.key, lock.key + b"\x00", after_revision=lock.mod_revision
            ) as watch:
                await watch.next_batch()
        except Compacted:
            return  # it changed long ago, so the caller reads it again
