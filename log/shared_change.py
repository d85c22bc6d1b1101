"""Changing a log's state without owning it: truncation, by anybody, under a living writer (H12).

Compare-and-set on the key's version; a conflict means that somebody else got on: read again, apply again.
The change is one that may be applied twice, so an unknown outcome is answered the same way.
"""

from collections.abc import Callable

from ..metadata.interface import Metadata
from ..metadata.transaction import Compare, Put, Transaction
from ..runtime.errors import LogNotFound, OutcomeUnknown
from .keys import state_key
from .ownership import Share, nothing_else
from .state import LogState


async def change_shared(
    metadata: Metadata,
    log_id: int,
    name: str,
    apply: Callable[[LogState], LogState],
    *,
    share: Share = nothing_else,
) -> LogState:
    """Apply a change that may be applied twice; the state that holds it. ``share`` sees the changed state.

    A change that changes nothing is not written. Raises `LogNotFound`.
    """
    while True:
        found = await metadata.get(state_key(log_id))
        if found is None:
            raise LogNotFound(f'log "{name}" has been deleted')
        state = LogState.decode(found.value)
        if state.deleting:
            raise LogNotFound(f'log "{name}" is being deleted')
        changed = apply(state)
        if changed == state:
            return state
        own = Transaction(
            (Compare.version(found.key, found.version),), (Put(found.key, changed.encode()),)
        )
        try:
            if (await metadata.transact(own + await share(changed))).succeeded:
                return changed
        except OutcomeUnknown:
            continue
