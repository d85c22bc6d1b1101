"""Campaigns and votes (pure): the second layer of the Raft core, see `roles.py`.

Voters are asked and counted by the candidate's own configuration. Who is asked for a vote does not consult
its own one: it may not know yet that it, or the candidate, has become a voter, and the new majority may
need it (thesis 4.1). What keeps a removed node, or one that was cut off, from disturbing is that nobody
helps to replace a leader that is alive (4.2.3), and that a candidate asks before it counts its term up (9.6).

Source: Raft paper 5.2, 5.4.1; thesis 3.10, 4.1, 4.2.3, 9.6. Hazards H5, H25.
"""

from .leadership import Leadership
from .messages import PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
from .quorum import Outcome, tally
from .ready import Role
from .roles import Roles


class Elections(Roles):
    """How a node comes to lead, and helps others to."""

    def _campaign_softly(self, now: float) -> None:
        """Ask whether an election could be won before disturbing anybody (pre-vote)."""
        self._await_leader(now)
        if self._disk_stalled or not self.may_lead:
            return
        self.role, self.leader_id = Role.PRE_CANDIDATE, ""
        self._votes = {self.node_id: True}
        if tally(self._votes, self.voters) is Outcome.WON:
            self._campaign(now)
            return
        ask = PreVote(self.term + 1, self.node_id, self.log.last_index, self.log.last_term)
        for peer in self._other_voters():
            self._send(peer, ask)

    def _campaign(self, now: float, transfer: bool = False) -> None:
        self._await_leader(now)
        self.role, self.leader_id = Role.CANDIDATE, ""
        self._set_term(self.term + 1, self.node_id)
        self._votes = {self.node_id: True}
        if tally(self._votes, self.voters) is Outcome.WON:
            self._become_leader(now)
            return
        ask = Vote(self.term, self.node_id, self.log.last_index, self.log.last_term, transfer)
        for peer in self._other_voters():
            self._send(peer, ask, True)

    def _other_voters(self) -> list[str]:
        return [voter for voter in self.voters if voter != self.node_id]

    def _on_pre_vote(self, message: PreVote, now: float) -> None:
        granted = (
            self.may_vote
            and not self._serves_a_leader(now)
            and (
                message.term > self.term
                or (message.term == self.term and self.vote in ("", message.sender))
            )
            and self._is_up_to_date(message.last_index, message.last_term)
        )
        term = message.term if granted else self.term
        self._send(message.sender, PreVoteReply(term, self.node_id, granted))

    def _on_pre_vote_reply(self, message: PreVoteReply, now: float) -> None:
        if not message.granted and message.term > self.term:
            self._become_follower(message.term, "", now)
            return
        if self.role is not Role.PRE_CANDIDATE:
            return
        if message.granted and message.term != self.term + 1:
            return  # of an earlier question
        self._votes[message.sender] = message.granted
        outcome = tally(self._votes, self.voters)
        if outcome is Outcome.WON:
            self._campaign(now)
        elif outcome is Outcome.LOST:
            self._become_follower(self.term, "", now)

    def _on_vote(self, message: Vote, now: float) -> None:
        if message.term > self.term:
            if self._serves_a_leader(now) and not message.transfer:
                return  # thesis 4.2.3: neither the term nor the vote of a disturber is taken up
            self._become_follower(message.term, "", now)
        granted = (
            message.term == self.term
            and self.may_vote
            and self._may_vote_for(message.sender)
            and self._is_up_to_date(message.last_index, message.last_term)
        )
        if granted:
            if not self.vote:
                self._set_term(self.term, message.sender)
            self._await_leader(now)
        self._send(message.sender, VoteReply(self.term, self.node_id, granted), True)

    def _may_vote_for(self, candidate: str) -> bool:
        """At most one vote a term (paper 5.2); asked again, the same answer again."""
        return self.vote == candidate or (not self.vote and not self.leader_id)

    def _is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate's log is at least as complete as the own (paper 5.4.1)."""
        return self.log.is_up_to_date(last_index, last_term)

    def _on_vote_reply(self, message: VoteReply, now: float) -> None:
        if message.term > self.term:
            self._become_follower(message.term, "", now)
            return
        if message.term < self.term or self.role is not Role.CANDIDATE:
            return
        self._votes[message.sender] = message.granted
        outcome = tally(self._votes, self.voters)
        if outcome is Outcome.WON:
            self._become_leader(now)
        elif outcome is Outcome.LOST:
            self._become_follower(self.term, "", now)

    def _on_timeout_now(self, message: TimeoutNow, now: float) -> None:
        if message.term != self.term or message.sender != self.leader_id:
            return
        if self.may_lead and not self._disk_stalled:
            self._campaign(now, transfer=True)

    def _become_leader(self, now: float) -> None:
        self.role, self.leader_id = Role.LEADER, self.node_id
        self._votes = {}
        self._leadership = self._new_leadership(now)
        self._heartbeat(self._leadership, now)

    def _new_leadership(self, now: float) -> Leadership:
        return Leadership(
            self.node_id,
            self.term,
            self.configuration,
            self.marks,
            self._outbox,
            self.options,
            now,
        )

    def _heartbeat(self, leadership: Leadership, now: float) -> None:
        self.deadline = now + self.options.heartbeat_s
        leadership.begin_round()
