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
from .takeover import read_segment, recover_with_retry

OBSERVATION_INTERVAL_S = 15.0

log = get_logger("distributedlog.log")


@dataclass(frozen=True, slots=True)
class OrphanObservation:
    """A log that nobody held, as it was at one moment."""

    epoch: int
    first_open_segment: int
    """The first segment that was in progress."""
    lacs: tuple[int, ...]
    """How far each segment in progress was confirmed: a writer that is cut off may have gone over to the next
    one, and cannot close the one before."""


async def observe_orphan(context: LogContext, log_id: int) -> OrphanObservation | None:
    """Who may have left it? None: nothing is in progress, or somebody holds it.

    Raises `LedgerStateUnknown` where too few bookies answer to tell.
    """
    stored_state = await context.metadata.get(state_key(log_id))
    if stored_state is None or await context.metadata.get(lock_key(log_id)) is not None:
        return None
    state = LogState.decode(stored_state.value)
    if state.deleting or not state.in_progress:
        return None
    lacs = []
    for segment in state.in_progress:
        record = await read_segment(context.metadata, state, segment)
        reader = await context.ledgers.open(record.ledger_id)
        lacs.append(reader.lac)
        reader.close()
    return OrphanObservation(state.epoch, state.first_open_segment, tuple(lacs))


async def close_if_unchanged(
    context: LogContext, log_id: int, observation: object, *, reason: str
) -> bool:
    """Recover and close what is in progress, if all is as it was ``before``.

    That is a `OrphanObservation` of `OBSERVATION_INTERVAL_S` ago at least. ``why`` stands beside who did it.
    False: somebody is at it, or was. Raises `RecoveryIncomplete`, and what keeps a bookie from being asked:
    it may work later.
    """
    current = await observe_orphan(context, log_id)
    if current is None or current != observation:
        return False
    stored_state = await context.metadata.get(state_key(log_id))
    if stored_state is None:
        return False
    state = LogState.decode(stored_state.value)
    if (
        state.deleting
        or state.epoch != current.epoch
        or state.first_open_segment != current.first_open_segment
    ):
        return False
    claimed_state = state.with_writer(
        f"{context.owner} ({reason})", f"{context.random.getrandbits(64):016x}"
    )
    claim_transaction = Transaction(
        (
            Compare.version(stored_state.key, stored_state.version),
            Compare.version(lock_key(log_id), 0),
        ),
        (Put(stored_state.key, claimed_state.encode()),),
    )
    if not (await context.metadata.transact(claim_transaction)).succeeded:
        return False
    writer_state = WriterLogState(context.metadata, claimed_state, stored_state.version + 1)
    await recover_with_retry(context, writer_state, timeout_s=context.options.recover_timeout_s)
    await writer_state.change(LogState.without_owner, is_done=lambda state: not state.owner)
    log.info(
        'log "%s": what its writer had left open, from segment %d on, is closed',
        state.name,
        current.first_open_segment,
    )
    return True


async def close_orphaned(context: LogContext, log_id: int, segment: int) -> bool:
    """Close what is in progress from ``segment`` on, after two looks; False where somebody is at it.

    Raises as `close_if_unchanged`.
    """
    observation = await observe_orphan(context, log_id)
    if observation is None or observation.first_open_segment != segment:
        return False
    await trio.sleep(OBSERVATION_INTERVAL_S)
    return await close_if_unchanged(context, log_id, observation, reason="retention")
