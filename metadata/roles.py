"""What a node is, in which term, and whom it follows (pure): the ground that the Raft core stands on.

The core is one object in four layers, each a file: this one; `elections.py` (campaigns and votes);
`following.py` (a leader's entries, signs of life, snapshots); `raft.py` (the inputs, and what a leader does).
"""

from collections.abc import Callable
from math import inf

from ..runtime.errors import ProtocolError
from .configuration import Configuration
from .leadership import Leadership
from .log_marks import LogMarks
from .messages import TERM_MAX, Message
from .options import RaftOptions
from .outbox import Outbox
from .raft_log import RaftLog
from .ready import HardState, Role

TERM_LEAD_MAX = 1_000_000
"""So far ahead of the own term a peer's may be. A term that is entered is never left: one forged message
with a high one would leave no term for the next election, on all nodes and for good."""


class Roles:
    """Term, vote, role, leader and members of one node."""

    def __init__(
        self,
        node_id: str,
        log: RaftLog,
        hard_state: HardState,
        *,
        options: RaftOptions,
        draw: Callable[[], float],
        now: float,
        may_vote: bool = True,
        applied: int = 0,
    ) -> None:
        """A start or restart: ``log`` and ``hard_state`` as found durable; ``draw`` is in [0, 1).

        ``may_vote`` False: never, whatever the configuration says. ``applied``: where the restored state
        machine stands, if its snapshot is newer than the log's beginning; entries up to it are not handed
        out again.
        """
        self.node_id = node_id
        self.options = options
        self.log = log
        self.marks = LogMarks(log, max(applied, log.base_index))
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader_id = ""
        self.deadline = inf
        self.may_vote = may_vote
        self.configuration: Configuration
        """In effect: the newest one in the log."""
        self.voters: tuple[str, ...]
        self.peers: tuple[str, ...]
        """All other members, learners included."""
        self._draw = draw
        self._disk_stalled = False
        self._leader_heard_at = -inf
        self._grace_left = True  # a late clock may still wait once for the leader's sign of life
        self._votes: dict[str, bool] = {}
        self._leadership: Leadership | None = None
        self._outbox = Outbox()
        self._take_configuration()
        self._await_leader(now)

    @property
    def commit(self) -> int:
        """The last entry known to be committed."""
        return self.marks.commit

    @property
    def applied(self) -> int:
        """The last entry that the driver said was applied."""
        return self.marks.applied

    @property
    def durable_index(self) -> int:
        """The last entry that is durable here."""
        return self.marks.durable_index

    @property
    def may_lead(self) -> bool:
        """Whether this node may campaign: it is a voter, or its removal is not known to be committed.

        It may be the only one that has the entry which removes it: then nobody else can win (thesis 4.2.2).
        """
        committed = self.log.configuration_at(self.marks.commit)
        may_campaign = self.may_vote and self.term < TERM_MAX and len(self.voters) > 0
        return may_campaign and (self.node_id in self.voters or self.node_id in committed.voters)

    def is_out_of_reach(self, term: int) -> bool:
        """Whether no honest peer can be in ``term``: terms move by elections, one at a time (H214).

        A node that has nothing yet takes any: the cluster that it is let into may be old.
        """
        return term > self.term + TERM_LEAD_MAX and self.log.last_index > 0

    def _send(self, to: str, message: Message, after_persist: bool = False) -> None:
        self._outbox.send(to, message, after_persist)

    # --- members ----------------------------------------------------------------------------------

    def _take_configuration(self) -> None:
        self.configuration = self.log.configuration
        self.voters = self.configuration.voters
        self.peers = self.configuration.others(self.node_id)

    def _on_log_changed(self, now: float) -> None:
        """Entries came or were cut off: a configuration counts from the moment it is in the log."""
        if self.log.configuration is self.configuration:
            return
        self._take_configuration()
        if self._leadership is not None:
            self._leadership.on_members(self.configuration, now)
        else:
            self._await_leader(now)

    # --- roles and terms --------------------------------------------------------------------------

    def _set_term(self, term: int, vote: str) -> None:
        assert term > self.term or (term == self.term and not self.vote), "a vote is never changed"
        assert term <= TERM_MAX, f"term {term} cannot be told to anybody"
        self.term, self.vote = term, vote
        self._outbox.hard_state = HardState(term, vote)

    def _await_leader(self, now: float) -> None:
        """Draw the next time at which silence means that nobody leads.

        Each voter that is not the leader draws from its own part of the interval: the first of them does not
        collide with the second, and comes early, without a shorter timeout for anybody.
        """
        options = self.options
        width = options.election_max_s - options.election_min_s
        others = [voter for voter in self.voters if voter != self.leader_id]
        part, parts = 0, 1
        if self.node_id in others:
            part, parts = others.index(self.node_id), len(others)
        self.deadline = now + options.election_min_s + (part + self._draw()) / parts * width
        self._grace_left = True
        if not self.may_lead:
            self.deadline = inf

    def _become_follower(self, term: int, leader_id: str, now: float) -> None:
        if term > self.term:
            self._set_term(term, "")
        if self._leadership is not None:
            self._outbox.reads_lost.extend(self._leadership.reads.drop())
            self._leadership = None
        if self.role is not Role.FOLLOWER or leader_id != self.leader_id:
            self.role = Role.FOLLOWER
            self.leader_id = leader_id
            self._votes = {}
        self._await_leader(now)

    def _follow(self, term: int, leader_id: str, now: float) -> None:
        """A leader of ``term`` (not below the own) showed itself."""
        if self._has_rival(term, leader_id):
            raise ProtocolError(
                f"two leaders in term {term}: {leader_id} and {self.leader_id or self.node_id}"
            )
        self._become_follower(term, leader_id, now)
        self._leader_heard_at = now

    def _has_rival(self, term: int, leader_id: str) -> bool:
        """Whether another leader of that very term is known: somebody broke M1, or lies."""
        return term == self.term and (
            self.role is Role.LEADER or self.leader_id not in ("", leader_id)
        )

    def hears_leader(self, now: float) -> bool:
        """Whether this node leads with a quorum, or heard its leader within the longest timeout."""
        if self._leadership is not None:
            return True
        return bool(self.leader_id) and now < self._leader_heard_at + self.options.election_max_s

    def _serves_a_leader(self, now: float) -> bool:
        """Whether a leader is alive as far as this node knows: then nobody is helped to replace it.

        Thesis 4.2.3 and 9.6: what keeps a node that was cut off from deposing a working leader.
        """
        if self._leadership is not None:
            return True
        return bool(self.leader_id) and now < self._leader_heard_at + self.options.election_min_s
