"""Closing a segment that its writer left open, for a log that nobody writes (H12, G3).

Who does it takes no lock, and locks nobody out: it raises the epoch where the lock is absent, recovers, and
is gone. Before that it looks twice at the bookies: a writer that is cut off from the metadata alone has lost
its lock and writes on, and is left in peace. An idle one that is cut off is fenced: its next write says so.
"""

import logging
from dataclasses import dataclass

import trio

from ..metadata.transaction import Compare, Put, Transaction
from .context import LogContext
from .keys import lock_key, state_key
from .ownership import OwnedLog
from .state import LogState
from .takeover import read_segment, recover_patiently

LOOKS_APART_S = 15.0

log = logging.getLogger("distributedlog.log")


@dataclass(frozen=True, slots=True)
class _Look:
    epoch: int
    lac: int


async def close_abandoned(context: LogContext, log_id: int, segment: int) -> bool:
    """Recover and close what is in progress from ``segment`` on; False where somebody is at it.

    Raises `RecoveryIncomplete`, and what keeps a bookie from being asked: the same call may work later.
    """
    before = await _look(context, log_id, segment)
    if before is None:
        return False
    await trio.sleep(LOOKS_APART_S)
    if await _look(context, log_id, segment) != before:
        return False
    found = await context.metadata.get(state_key(log_id))
    if found is None:
        return False
    state = LogState.decode(found.value)
    if state.deleting or state.epoch != before.epoch or state.open_from != segment:
        return False
    claimed = state.claimed(
        f"{context.owner} (retention)", f"{context.random.getrandbits(64):016x}"
    )
    claim = Transaction(
        (Compare.version(found.key, found.version), Compare.version(lock_key(log_id), 0)),
        (Put(found.key, claimed.encode()),),
    )
    if not (await context.metadata.transact(claim)).succeeded:
        return False
    owned = OwnedLog(context.metadata, claimed, found.version + 1)
    await recover_patiently(context, owned, timeout_s=context.options.recover_timeout_s)
    await owned.change(LogState.released, done=lambda state: not state.owner)
    log.info('log "%s": segment %d, which its writer had left open, is closed', state.name, segment)
    return True


async def _look(context: LogContext, log_id: int, segment: int) -> _Look | None:
    """None: it is no abandoned segment, or not any more."""
    found = await context.metadata.get(state_key(log_id))
    if found is None or await context.metadata.get(lock_key(log_id)) is not None:
        return None
    state = LogState.decode(found.value)
    if state.deleting or not state.in_progress or state.open_from != segment:
        return None
    record = await read_segment(context.metadata, state, segment)
    reader = await context.ledgers.open(record.ledger_id)
    try:
        return _Look(state.epoch, reader.lac)
    finally:
        reader.close()
