"""Mistakes about who is alive, planted into the Raft core; see `raft_planted.py`."""

from ..metadata.leadership import Leadership
from ..metadata.raft import Raft


class NoPreVote(Raft):
    """Campaigns at once; a node that comes back from a cut deposes a working leader (thesis 9.6)."""

    def _campaign_softly(self, now: float) -> None:
        if not self._disk_stalled:
            self._campaign(now)
        else:
            super()._campaign_softly(now)


class HelpsDisturbers(Raft):
    """Answers (pre-)votes although its leader lives (thesis 4.2.3)."""

    def _serves_a_leader(self, now: float) -> bool:
        return False


class NoCheckQuorum(Leadership):
    """A leader that hears nobody leads on (thesis 6.2)."""

    def has_quorum(self, now: float) -> bool:
        """Always."""
        return True


class IgnoresOldLeader(Raft):
    """Says nothing to a leader of an earlier term: a node whose term ran ahead is lost for ever."""

    def _refuse_old_leader(self, sender: str) -> None:
        return


class IgnoresLateness(Raft):
    """Takes its own pause for everybody's silence (H25)."""

    def on_late(self, lateness_s: float, now: float) -> None:
        """Do nothing."""
        return
