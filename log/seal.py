"""Sealing: the log ends where it is now, for good. Writers and links are refused, readers reach an end.

For whoever is not the writer (that one has `LogWriter.mark_end_of_stream`): the log is claimed as a writer
claims it, what a dead writer left is recovered and closed, then the state says that it is sealed.
"""

from ..runtime.errors import EndOfStream
from .ledgers import Ledgers
from .lock import LockRecord, claim
from .lock_session import LockSessions
from .options import LogOptions
from .recovery_turns import RecoveryTurns
from .state import LogState
from .takeover import recover_patiently


async def seal(
    sessions: LockSessions,
    turns: RecoveryTurns,
    ledgers: Ledgers,
    options: LogOptions,
    log_id: int,
    record: LockRecord,
    *,
    takeover: bool,
    wait_s: float | None,
    now_ms: int,
) -> bool:
    """Seal a log; False: it was sealed already. See `Log.seal`."""
    try:
        claimed = await claim(
            sessions,
            log_id,
            record,
            lease_s=options.lock_lease_s,
            takeover=takeover,
            wait_s=wait_s,
        )
    except EndOfStream:
        return False
    try:
        await recover_patiently(
            claimed.owned, ledgers, turns, closed_ms=now_ms, timeout_s=options.recover_timeout_s
        )
        await claimed.owned.change(lambda state: state.with_sealed().released(), done=_is_sealed)
    finally:
        await claimed.give_back()
    return True


def _is_sealed(state: LogState) -> bool:
    return state.sealed
