"""The core against the Raft paper and thesis, sentence by sentence: elections.

"Paper" is Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm (extended version,
2014); "thesis" is Ongaro: Consensus (2014). Longer plays are in scenarios/*.txt.
"""

import pytest

from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft import DurableState, Raft
from distributedlog.metadata.raft.raft_log import RaftLog
from distributedlog.metadata.raft.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from distributedlog.metadata.raft.ready import HardState, RaftRole
from distributedlog.runtime.interfaces.errors import ProtocolError

from .raft_cores import OPTIONS, elected, node, settle, to


def test_a_server_begins_as_follower() -> None:
    """Paper 5.2: "When servers start up, they begin as followers." """
    assert node().role is RaftRole.FOLLOWER


def test_it_remains_follower_while_it_hears_a_leader() -> None:
    """Paper 5.2: "remains in follower state as long as it receives valid RPCs from a leader"."""
    core = node(1)
    for tenth in range(1, 30):
        core.on_message(Heartbeat(1, "b", 0, tenth), tenth / 10)
        core.on_time(tenth / 10)

    assert core.role is RaftRole.FOLLOWER


def test_silence_makes_it_ask_first_and_change_nothing() -> None:
    """Thesis 9.6: a candidate "only increments its term if it first learns ... it would win"."""
    core = node(1)

    core.on_time(core.deadline)
    sent = settle(core)

    assert (core.role, core.term) == (RaftRole.PRE_CANDIDATE, 1)
    assert to(sent, "b", PreVote) == [PreVote(2, "a", 1, 1)]


def test_a_won_pre_vote_increments_the_term_and_votes_for_itself_durably() -> None:
    """Paper 5.2: "increments its current term ... votes for itself"; figure 2: updated on stable
    storage before responding to RPCs."""
    core = node(1)
    core.on_time(core.deadline)
    settle(core)

    core.on_message(PreVoteReply(2, "b", True), 0.6)
    ready = core.ready()

    assert ready.hard_state == HardState(2, "a")
    assert not ready.send_now
    assert [peer for peer, _ in ready.send_after_persist] == ["b", "c"]


def test_a_majority_of_votes_elects_and_the_leader_says_so_at_once() -> None:
    """Paper 5.2: "It then sends heartbeat messages to all of the other servers"."""
    core = node()

    sent = elected(core)

    assert core.leader_id == "a"
    assert [len(to(sent, peer, Heartbeat)) for peer in "bc"] == [1, 1]


def test_a_candidate_that_hears_a_leader_of_its_term_follows() -> None:
    """Paper 5.2: "If the leader's term ... is at least as large ... returns to follower state"."""
    core = node()
    core.on_time(core.deadline)
    core.on_message(PreVoteReply(1, "b", True), 0.6)
    assert core.role is RaftRole.CANDIDATE

    core.on_message(AppendRequest(1, "c", 0, 0, 0, ()), 0.7)

    assert (core.role, core.leader_id, core.term) == (RaftRole.FOLLOWER, "c", 1)


def test_a_candidate_ignores_a_leader_of_an_older_term_and_tells_it() -> None:
    """Paper 5.1: "If a server receives a request with a stale term number, it rejects"."""
    core = node(term=5)

    core.on_message(AppendRequest(3, "c", 0, 0, 0, (Entry(1, 3, b"x"),)), 0.1)

    assert to(settle(core), "c", AppendReply) == [AppendReply(5, "a", False, 0, 0, 0)]
    assert core.log.last_index == 0


def test_one_vote_a_term_first_come_first_served() -> None:
    """Paper 5.2: "Each server will vote for at most one candidate in a given term"."""
    core = node()
    core.on_message(Vote(1, "b", 0, 0, False), 0.1)
    core.on_message(Vote(1, "c", 0, 0, False), 0.1)
    core.on_message(Vote(1, "b", 0, 0, False), 0.1)  # doubled by the network: the same answer

    sent = settle(core)

    assert to(sent, "b", VoteReply) == [VoteReply(1, "a", True), VoteReply(1, "a", True)]
    assert to(sent, "c", VoteReply) == [VoteReply(1, "a", False)]


def test_a_vote_survives_a_restart() -> None:
    """Paper, figure 2: votedFor is persistent state; M4."""
    core = node(term=1, vote="b")

    core.on_message(Vote(1, "c", 9, 1, False), 0.1)

    assert to(settle(core), "c", VoteReply) == [VoteReply(1, "a", False)]


def test_a_vote_leaves_only_when_durable() -> None:
    """Paper, figure 2: "Updated on stable storage before responding to RPCs"; M4."""
    core = node()
    core.on_message(Vote(1, "b", 0, 0, False), 0.1)
    ready = core.ready()

    assert ready.hard_state == HardState(1, "b")
    assert not ready.send_now
    assert ready.send_after_persist == (("b", VoteReply(1, "a", True)),)


def test_nothing_that_shows_a_term_leaves_before_the_term_is_durable() -> None:
    """Paper, figure 2: currentTerm is persistent state; M4. Heartbeats wait for no other write."""
    core = node()
    core.on_message(Heartbeat(4, "b", 0, 1), 0.1)
    first = core.ready()
    core.on_message(Heartbeat(4, "b", 0, 2), 0.2)
    second = core.ready()
    core.on_persisted(second.ready_number, 0.0)
    core.on_message(Heartbeat(4, "b", 0, 3), 0.3)
    third = core.ready()

    assert not first.send_now
    assert not second.send_now
    assert third.send_now == (("b", HeartbeatReply(4, "a", 3)),)


@pytest.mark.parametrize(("last_index", "last_term"), [(2, 2), (9, 1)])
def test_no_vote_for_a_log_less_up_to_date(last_index: int, last_term: int) -> None:
    """Paper 5.4.1: "the voter denies its vote if its own log is more up-to-date"."""
    core = node(1, 1, 2)
    core.on_message(PreVote(3, "b", last_index, last_term), 0.1)
    core.on_message(Vote(3, "b", last_index, last_term, False), 0.1)

    sent = settle(core)

    assert to(sent, "b", PreVoteReply) == [PreVoteReply(2, "a", False)]
    assert to(sent, "b", VoteReply) == [VoteReply(3, "a", False)]


def test_a_follower_of_a_living_leader_neither_votes_nor_takes_the_term() -> None:
    """Thesis 4.2.3: within the minimum election timeout of hearing from a leader "it does not update
    its term or grant its vote"."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 1.0)
    settle(core)

    core.on_message(Vote(7, "c", 5, 6, False), 1.4)
    core.on_message(PreVote(7, "c", 5, 6), 1.4)

    assert settle(core) == [("c", PreVoteReply(1, "a", False))]
    assert core.term == 1


def test_a_closed_connection_to_the_leader_ends_that() -> None:
    """H25: immediate pre-vote on a closed connection; others are helped, too."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 1.0)

    core.on_connection_closed("b", 1.1)

    assert core.deadline == 1.1  # plus a drawn jitter, here 0
    core.on_message(PreVote(2, "c", 1, 1), 1.1)
    assert to(settle(core), "c", PreVoteReply) == [PreVoteReply(2, "a", True)]


def test_timeouts_are_drawn_from_an_interval() -> None:
    """Paper 5.2: "election timeouts are chosen randomly from a fixed interval"."""

    def deadline(node_id: str, drawn: float, term: int = 1) -> float:
        return Raft(
            node_id,
            DurableState(
                RaftLog(configuration=Configuration.from_ids("abcd")), HardState(term, "")
            ),
            options=OPTIONS,
            random=lambda: drawn,
            now=10.0,
        ).deadline

    # Each from its own part of it: no two of them at once, and one of them early.
    assert [deadline("a", drawn) for drawn in (0.0, 0.5, 0.999)] == pytest.approx(
        [10.5, 10.5625, 10.624875]
    )
    assert [deadline(voter, 0.0) for voter in "abcd"] == pytest.approx(
        [10.5, 10.625, 10.75, 10.875]
    )
    assert deadline("d", 0.999) == pytest.approx(10.999875)
    # Nobody has led in term 0: no silence to wait for.
    assert deadline("a", 0.0, term=0) == pytest.approx(10.05)
    assert deadline("d", 0.999, term=0) == pytest.approx(10.0999875)


def test_the_first_election_is_asked_for_again_soon_while_the_others_are_not_up() -> None:
    core = node()
    for _ in range(5):
        before = core.deadline
        core.on_time(before)
        assert to(settle(core), "b", PreVote) == [PreVote(1, "a", 0, 0)]
        assert core.deadline == pytest.approx(before + 0.05)
    elected(core, core.deadline)
    core.on_message(Heartbeat(2, "b", 0, 0), 10.0)
    assert core.deadline == pytest.approx(10.5)


def test_the_first_candidate_has_as_long_for_its_votes_as_any() -> None:
    """They are synced before they are told; paper 5.6: broadcast time is far below the election timeout."""
    core = node()
    core.on_time(core.deadline)
    settle(core)
    began = 0.06

    core.on_message(PreVoteReply(1, "b", True), began)

    assert (core.role, core.term) == (RaftRole.CANDIDATE, 1)
    assert core.deadline == pytest.approx(began + 0.5)


def test_the_leader_leaves_its_part_of_the_interval_to_the_others() -> None:
    core = node(1, voters="abc")
    core.on_message(Heartbeat(1, "b", 0, 1), 10.0)
    assert core.deadline == pytest.approx(10.5)
    core = node(1, voters="zab")
    core.on_message(Heartbeat(1, "b", 0, 1), 10.0)
    assert core.deadline == pytest.approx(10.5)


def test_a_lost_pre_vote_leaves_everything_as_it_was() -> None:
    """Thesis 9.6."""
    core = node(1)
    core.on_time(core.deadline)
    for peer in "bc":
        core.on_message(PreVoteReply(1, peer, False), 0.6)

    assert (core.role, core.term, core.vote) == (RaftRole.FOLLOWER, 1, "")


def test_a_refusal_from_a_later_term_is_taken_up() -> None:
    """Paper 5.1: "if one server's current term is smaller than the other's, then it updates"."""
    core = node(1)
    core.on_time(core.deadline)
    core.on_message(PreVoteReply(9, "b", False), 0.6)

    assert (core.role, core.term) == (RaftRole.FOLLOWER, 9)


def test_a_late_pre_vote_of_an_earlier_term_does_not_count() -> None:
    """Thesis 9.6: the answer is about one term only."""
    core = node(term=4)
    core.on_time(core.deadline)
    core.on_message(PreVoteReply(4, "b", True), 0.6)

    assert core.role is RaftRole.PRE_CANDIDATE


def test_a_node_with_an_emptied_directory_never_votes_nor_campaigns() -> None:
    """H5: it may not help to elect a leader that lacks what it has lost."""
    core = node(may_vote=False)
    core.on_time(1e9)
    core.on_message(PreVote(2, "b", 5, 1), 0.1)
    core.on_message(Vote(2, "b", 5, 1, False), 0.1)
    core.on_message(TimeoutNow(2, "b"), 0.1)

    sent = settle(core)

    assert to(sent, "b", PreVoteReply) == [PreVoteReply(0, "a", False)]
    assert to(sent, "b", VoteReply) == [VoteReply(2, "a", False)]
    assert core.role is RaftRole.FOLLOWER


def test_a_single_voter_elects_itself_and_commits_alone() -> None:
    """A majority of one; still only what is durable is committed."""
    core = node(voters="a")
    core.on_time(core.deadline)
    ready = core.ready()

    assert core.role is RaftRole.LEADER
    assert core.commit == 0
    core.on_persisted(ready.ready_number, 0.0)
    assert core.commit == 1


def test_the_vote_of_one_that_is_no_voter_does_not_count() -> None:
    """H5: voters are known by id; a node of an earlier life, a learner, a removed one is none."""
    core = node(1, learners="l")
    core.on_time(core.deadline)
    settle(core)
    for stranger in "lx":
        core.on_message(PreVoteReply(2, stranger, True), 0.6)

    assert core.role is RaftRole.PRE_CANDIDATE


def test_a_vote_is_given_to_one_that_is_not_known_yet() -> None:
    """Thesis 4.1: "a server ... grants its vote to a candidate that is not part of" its configuration."""
    core = node(1)
    core.on_message(Vote(2, "x", 1, 1, False), 0.6)

    assert to(settle(core), "x", VoteReply) == [VoteReply(2, "a", True)]


def test_a_learner_does_not_campaign() -> None:
    """Thesis 4.2.1: it only receives."""
    core = node(1, voters="bc", learners="a")
    core.on_time(1e9)
    core.on_message(Heartbeat(1, "b", 0, 1), 1e9)
    core.on_message(TimeoutNow(1, "b"), 1e9)

    assert core.role is RaftRole.FOLLOWER


def test_two_leaders_of_one_term_are_an_error_of_the_peer() -> None:
    """Paper, figure 3, Election Safety; M1."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 0.1)

    with pytest.raises(ProtocolError, match="two leaders in term 1"):
        core.on_message(Heartbeat(1, "c", 0, 1), 0.2)
