"""Sealing: the log ends where it is now, for good. Writers and links are refused, readers reach an end.

For whoever is not the writer (that one has `LogWriter.mark_end_of_stream`): the log is claimed as a writer
claims it, what a dead writer left is recovered and closed, then the state says that it is sealed.
"""

from ..runtime.errors import EndOfStream
from .context import LogContext
from .lock import claim
from .state import LogState
from .takeover import recover_patiently


async def seal(context: LogContext, log_id: int, *, takeover: bool, wait_s: float | None) -> bool:
    """Seal a log; False: it was sealed already. See `Log.seal`."""
    try:
        claimed = await claim(context, log_id, takeover=takeover, wait_s=wait_s)
    except EndOfStream:
        return False
    try:
        await recover_patiently(context, claimed.owned, timeout_s=context.options.recover_timeout_s)
        await claimed.owned.change(lambda state: state.with_sealed().released(), done=_is_sealed)
    finally:
        await claimed.give_back()
    return True


def _is_sealed(state: LogState) -> bool:
    return state.sealed
