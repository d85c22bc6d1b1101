"""The lock of a log's writer: a leased key that refuses a second writer early and names the first.

A courtesy only. What is safe is the epoch in the log's state and the fence at the bookies: a writer that
loses its lease writes on until somebody else takes the log over. The lock is taken in the transaction that
raises the epoch, so that there is no moment between the two.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from ..metadata.interface import Metadata
from ..metadata.transaction import Compare, KeyValue, Put, Transaction
from ..runtime.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    LeaseExpired,
    LogNotFound,
    OwnershipAcquireFailed,
)
from ..runtime.frames import pack
from .keys import lock_key, state_key
from .ownership import OwnedLog
from .state import LogState, decode_fields

FORMAT = 1
WAIT_BEYOND_LEASE_S = 2.0
"""The default wait for a lock: the lease and this, so that a restart after a kill succeeds."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The value of ``log/<id>/lock``."""

    owner: str
    writer_id: str
    since_ms: int

    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack([FORMAT, self.owner, self.writer_id, self.since_ms])

    @classmethod
    def decode(cls, value: bytes) -> "LockRecord":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        owner, writer_id, since_ms = decode_fields(value, FORMAT, 4, "a lock's record")[:3]
        if not isinstance(since_ms, int):
            raise CorruptData("a lock's record has a time that is not a number")
        return cls(str(owner), str(writer_id), since_ms)


@dataclass(slots=True)
class Claim:
    """A log that was claimed: its state under our epoch, and the lease under its lock."""

    owned: OwnedLog
    lease: int
    previous: str
    """The owner that was named before, "" for none."""


async def claim(
    metadata: Metadata,
    log_id: int,
    record: LockRecord,
    *,
    lease_s: float,
    takeover: bool,
    wait_s: float | None,
    raised: Callable[[LogState, str, str], LogState] = LogState.claimed,
) -> Claim:
    """Take the lock and raise the epoch, in one transaction: step 1 of a takeover (H12).

    While another one's lock lives: waits up to ``wait_s`` (None: its lease and 2 s), then raises
    `OwnershipAcquireFailed` naming it; with ``takeover`` it does not wait. ``raised`` gives the claimed
    state from the one before, owner and writer id. Raises `LogNotFound`, `EndOfStream`.
    """
    patience = lease_s + WAIT_BEYOND_LEASE_S if wait_s is None else wait_s
    deadline = trio.current_time() + patience
    while True:
        found = await metadata.get(state_key(log_id))
        if found is None:
            raise LogNotFound("the log has been deleted while its writer opened it")
        lock = await metadata.get(lock_key(log_id))
        if lock is not None and not takeover:
            holder = LockRecord.decode(lock.value)
            if trio.current_time() >= deadline:
                state = LogState.decode(found.value)
                raise OwnershipAcquireFailed(
                    f'log "{state.name}" is being written by {holder.owner}; its lock was not free '
                    f"within {patience:g} s. Wait, or take over",
                    holder.owner,
                )
            await _changed(metadata, lock, deadline)
            continue
        claimed = await _try(metadata, record, found, lock, lease_s, raised)
        if claimed is not None:
            return claimed


async def _try(
    metadata: Metadata,
    record: LockRecord,
    found: KeyValue,
    lock: KeyValue | None,
    lease_s: float,
    raised: Callable[[LogState, str, str], LogState],
) -> Claim | None:
    before = LogState.decode(found.value)
    state = raised(before, record.owner, record.writer_id)
    lease = await metadata.grant_lease(int(lease_s * 1000))
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
        if reply.succeeded:
            return Claim(OwnedLog(metadata, state, found.version + 1), lease, before.owner)
    except LeaseExpired:
        return None  # the store was away for longer than that: again, with another one
    except DistributedLogError:
        # Unknown, perhaps: the same writer id in the state says that it was this very transaction.
        again = await metadata.get(found.key)
        if again is not None and LogState.decode(again.value) == state:
            return Claim(OwnedLog(metadata, state, again.version), lease, before.owner)
        raise
    await metadata.revoke_lease(lease)
    return None


async def _changed(metadata: Metadata, lock: KeyValue, deadline: float) -> None:
    """Until the key is another one's, or nobody's, or the deadline."""
    with trio.move_on_at(deadline):
        try:
            async with metadata.watch(
                lock.key, lock.key + b"\x00", after_revision=lock.mod_revision
            ) as watch:
                await watch.next()
        except Compacted:
            return  # it has changed long ago: look again


async def keep(
    metadata: Metadata,
    claimed: Claim,
    record: LockRecord,
    *,
    lease_s: float,
    on_lost: Callable[[DistributedLogError], None],
    refresh: Callable[[], Awaitable[None]],
) -> None:
    """Renew the lease until cancelled. A lost lock is taken again if nobody else has it.

    ``refresh`` reads the log's state; what it raises when the log is another one's goes to ``on_lost``.
    """
    key = lock_key(claimed.owned.log_id)
    while True:
        await trio.sleep(lease_s / 3)
        try:
            await metadata.renew_lease(claimed.lease)
            continue
        except LeaseExpired:
            pass
        except DistributedLogError:
            continue  # the store is away: the writer goes on without it
        try:
            await refresh()
            lease = await metadata.grant_lease(int(lease_s * 1000))
            put = Put(key, record.encode(), lease)
            reply = await metadata.transact(Transaction((Compare.version(key, 0),), (put,)))
            if reply.succeeded:
                claimed.lease = lease
            else:
                await metadata.revoke_lease(lease)
        except DistributedLogError as error:
            if error.fatal_to_writer or isinstance(error, LogNotFound):
                on_lost(error)
                return
