"""Mistakes in changing the members, planted into the Raft core; see `raft_planted.py`."""

from collections.abc import Callable

from ..metadata.leadership import Leadership, Number
from ..metadata.progress import Progress
from ..metadata.raft import Raft


class ChangesMembersTooEarly(Leadership):
    """A new leader changes members before anything of its term is committed (the 2015 correction)."""

    def _may_change_members(self) -> bool:
        return self._marks.commit >= min(self._log.configuration_index, self.noop_index)


class ChangesMembersTwice(Leadership):
    """A second change while the first one is not committed."""

    def _may_change_members(self) -> bool:
        return self._marks.commit >= self.noop_index


class CountsLearners(Leadership):
    """What a learner has counts for a commit, and its answers for a round."""

    def _of_voters(self, own: Number, of: Callable[[Progress], Number]) -> list[Number]:
        values = [own]
        values.extend(of(progress) for progress in self.peers.values())
        return values


class RemovedOnAppendGivesUp(Raft):
    """A voter whose removal is not committed campaigns no more (thesis 4.2.2)."""

    @property
    def may_lead(self) -> bool:
        """Look at the newest configuration only."""
        return self.may_vote and self.node_id in self.voters


class RemovedLeaderStays(Raft):
    """A leader that removed itself leads on after that is committed."""

    def _leave_if_removed(self) -> None:
        return
