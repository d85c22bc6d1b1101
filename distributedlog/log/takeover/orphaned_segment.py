"""Close the open segments of a log without a writer (H12, H96, G3).

This takes no lock and excludes no writer. If the lock is absent, it raises the epoch, recovers the segments
and ends. Before that, it queries the bookies twice. A writer that is only cut off from the metadata quorum
has lost its lock and continues to write, so it must not be disturbed. An idle writer that is cut off is
fenced, and its next write fails.
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
    """The state of a log without a lock at one time."""

    epoch: int
    first_open_segment: int
    """The first segment in progress."""
    lacs: tuple[int, ...]
    """The LAC of each segment in progress. A writer that is cut off may have entered the next segment, and
    cannot close the one before."""


async def observe_orphan(context: LogContext, log_id: int) -> OrphanObservation | None:
    """Observe a log with open segments and without a lock. Return None for any other log.

    Raises:
        LedgerStateUnknown: Too few bookies answered.
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
    """Recover and close the segments in progress, if the log is as in ``observation``.

    Args:
        observation: An `OrphanObservation` that is at least `OBSERVATION_INTERVAL_S` old.
        reason: Stored with the owner of the log during the recovery.
    Returns:
        False if another client uses or used the log.
    Raises:
        RecoveryIncomplete: Too few bookies answered. A later call can succeed.
        DistributedLogError: The metadata quorum or a bookie did not answer.
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
        'log "%s": closed the segments that its writer had left open, from segment %d on',
        state.name,
        current.first_open_segment,
    )
    return True


async def close_orphaned(context: LogContext, log_id: int, segment: int) -> bool:
    """Close the segments in progress from ``segment`` on after two observations.

    Raises as `close_if_unchanged`.

    Returns:
        False if another client uses the log.
    """
    observation = await observe_orphan(context, log_id)
    if observation is None or observation.first_open_segment != segment:
        return False
    await trio.sleep(OBSERVATION_INTERVAL_S)
    return await close_if_unchanged(context, log_id, observation, reason="retention")
