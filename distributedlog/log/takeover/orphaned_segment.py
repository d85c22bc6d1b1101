"""Closing what a writer left open, for a log that nobody writes (H12, H96, G3).

Who does it takes no lock, and locks nobody out: it raises the epoch where the lock is absent, recovers, and
is gone. Before that it looks twice at the bookies: a writer that is cut off from the metadata alone has lost
its lock and writes on, and is left in peace. An idle one that is cut off is fenced: its next write says so.
"""

from dataclasses import dataclass

import trio

from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.log_lines import get_logger
from ..model.log_keys import lock_key, state_key
from ..model.log_state import LogState
from ..model.writer_log_state import WriterLogState
from ..services.log_context import LogContext
from .takeover import read_segment, recover_patiently

LOOKS_APART_S = 15.0

log = get_logger("distributedlog.log")


@dataclass(frozen=True, slots=True)
class OrphanObservation:
    """A log that nobody held, as it was at one moment."""

    epoch: int
    open_from: int
    """The first segment that was in progress."""
    lacs: tuple[int, ...]
    """How far each segment in progress was confirmed: a writer that is cut off may have gone over to the next
    one, and cannot close the one before."""


async def observe_orphan(context: LogContext, log_id: int) -> OrphanObservation | None:
    """Who may have left it? None: nothing is in progress, or somebody holds it.

    Raises `LedgerStateUnknown` where too few bookies answer to tell.
    """
    found = await context.metadata.get(state_key(log_id))
    if found is None or await context.metadata.get(lock_key(log_id)) is not None:
        return None
    state = LogState.decode(found.value)
    if state.deleting or not state.in_progress:
        return None
    lacs = []
    for segment in state.in_progress:
        record = await read_segment(context.metadata, state, segment)
        reader = await context.ledgers.open(record.ledger_id)
        lacs.append(reader.lac)
        reader.close()
    return OrphanObservation(state.epoch, state.open_from, tuple(lacs))


async def close_unchanged(context: LogContext, log_id: int, before: object, *, why: str) -> bool:
    """Recover and close what is in progress, if all is as it was ``before``.

    That is a `OrphanObservation` of `LOOKS_APART_S` ago at least. ``why`` stands beside who did it. False:
    somebody is at it, or was. Raises `RecoveryIncomplete`, and what keeps a bookie from being asked: it may
    work later.
    """
    now = await observe_orphan(context, log_id)
    if now is None or now != before:
        return False
    found = await context.metadata.get(state_key(log_id))
    if found is None:
        return False
    state = LogState.decode(found.value)
    if state.deleting or state.epoch != now.epoch or state.open_from != now.open_from:
        return False
    claimed = state.claimed(f"{context.owner} ({why})", f"{context.random.getrandbits(64):016x}")
    claim = Transaction(
        (Compare.version(found.key, found.version), Compare.version(lock_key(log_id), 0)),
        (Put(found.key, claimed.encode()),),
    )
    if not (await context.metadata.transact(claim)).succeeded:
        return False
    owned = WriterLogState(context.metadata, claimed, found.version + 1)
    await recover_patiently(context, owned, timeout_s=context.options.recover_timeout_s)
    await owned.change(LogState.released, done=lambda state: not state.owner)
    log.info(
        'log "%s": what its writer had left open, from segment %d on, is closed',
        state.name,
        now.open_from,
    )
    return True


async def close_orphaned(context: LogContext, log_id: int, segment: int) -> bool:
    """Close what is in progress from ``segment`` on, after two looks; False where somebody is at it.

    Raises as `close_unchanged`.
    """
    before = await observe_orphan(context, log_id)
    if before is None or before.open_from != segment:
        return False
    await trio.sleep(LOOKS_APART_S)
    return await close_unchanged(context, log_id, before, why="retention")
