"""What exists only while a node leads (pure): its peers' progress, its read rounds, a handing over.

A new object each term, so that nothing of an earlier leadership can leak into a later one.
"""

from collections.abc import Sequence

from .progress import Pace, Progress
from .quorum import reached_by_majority
from .read_rounds import ReadRounds


class Leadership:
    """The leader's view of the others. ``peers``: all it replicates to; ``voters``: who counts."""

    def __init__(
        self,
        node_id: str,
        voters: Sequence[str],
        peers: Sequence[str],
        *,
        next_index: int,
        now: float,
    ) -> None:
        self._other_voters = [voter for voter in voters if voter != node_id]
        self._leader_votes = node_id in voters
        self.peers = {peer: Progress(next_index, now) for peer in peers if peer != node_id}
        self.reads = ReadRounds()
        self.round = 0
        self.appends = 0  # how many were sent: the number of the last one
        self.noop_index = next_index  # reads wait until it is committed (thesis 6.4, step 1)
        self.heir = ""  # leadership is being handed to it
        self.heir_told = False
        self.heir_until = 0.0
        assert self._leader_votes, "only a voter leads"

    def match_of_majority(self, durable_index: int) -> int:
        """The highest index that a majority has durably; the leader counts like any other."""
        return reached_by_majority(
            [durable_index, *(self.peers[voter].match for voter in self._other_voters)]
        )

    def confirmed_round(self) -> int:
        """The latest round that a majority answered."""
        return reached_by_majority(
            [self.round, *(self.peers[voter].round for voter in self._other_voters)]
        )

    def quorum_heard_at(self, now: float) -> float:
        """When a majority, the leader included, had last been heard: the oldest of its latest signs."""
        return reached_by_majority(
            [now, *(self.peers[voter].heard_at for voter in self._other_voters)]
        )

    def shift(self, lateness_s: float, now: float) -> None:
        """The node itself did not run for that long: it is not the peers who were silent (H25)."""
        for progress in self.peers.values():
            progress.heard_at = min(now, progress.heard_at + lateness_s)
        self.heir_until += lateness_s

    def best_heir(self, silent_since: float) -> str:
        """The voter heard after ``silent_since`` whose log is the longest; "" if none."""
        best, match = "", -1
        for voter in self._other_voters:
            progress = self.peers[voter]
            if progress.answered and progress.heard_at > silent_since and progress.match > match:
                best, match = voter, progress.match
        return best

    @property
    def sends_snapshot(self) -> bool:
        """Whether a snapshot is on its way: the log behind it must stay (H39)."""
        return any(progress.pace is Pace.SNAPSHOT for progress in self.peers.values())
