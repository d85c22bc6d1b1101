"""Whether this node hears a leader; and the end of its watches when it does not.

A node that is cut off from the quorum learns of no change: a watch on it would be silent for ever, and its
client could not tell that from quiet. It is told, and takes its watch up elsewhere (M6).
"""

from collections.abc import Iterable

import trio

from ..runtime.errors import NotReady
from .replica import Replica
from .served_watches import ServedWatches

STEP_S = 0.5
CUT_OFF_STEPS = 6
"""So many looks in a row without a leader: longer than an election takes. Looks, not time: a node that stood
still has not been looking."""


class QuorumContact:
    """``lost``: why no watch can be served here, or None."""

    def __init__(self, replica: Replica, watches: Iterable[ServedWatches]) -> None:
        self.lost: NotReady | None = None
        self._replica = replica
        self._watches = watches

    async def run(self) -> None:
        """Look, until cancelled."""
        silent = 0
        while True:
            await trio.sleep(STEP_S)
            if self._replica.raft.hears_leader(trio.current_time()):
                silent, self.lost = 0, None
                continue
            silent += 1
            if silent == CUT_OFF_STEPS:
                self.lost = NotReady(
                    f"this metadata node has heard no leader for {CUT_OFF_STEPS * STEP_S:g} s"
                )
                for watches in list(self._watches):
                    watches.end_all(self.lost)
