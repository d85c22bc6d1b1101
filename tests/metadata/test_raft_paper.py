"""The core against the Raft paper and thesis, sentence by sentence.

"Paper" is Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm (extended version,
2014); "thesis" is Ongaro: Consensus (2014). Longer plays are in scenarios/*.txt.
"""

from typing import TypeVar

import pytest

from distributedlog.metadata.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from distributedlog.metadata.raft import Raft, RaftOptions
from distributedlog.metadata.raft_log import RaftLog
from distributedlog.metadata.ready import HardState, Ready, Role, SendSnapshot, Snapshot
from distributedlog.runtime.errors import CorruptData, InvalidRequest, ProtocolError, TooBusy

OPTIONS = RaftOptions()
M = TypeVar("M", bound=Message)


def node(
    *terms: int,
    term: int = 0,
    vote: str = "",
    voters: str = "abc",
    options: RaftOptions = OPTIONS,
    may_vote: bool = True,
    learners: str = "",
) -> Raft:
    """Node a with a durable log of these terms, in ``term``; its timeouts are the shortest."""
    entries = [Entry(index, of, b"old") for index, of in enumerate(terms, 1)]
    return Raft(
        "a",
        list(voters),
        RaftLog(0, 0, entries),
        HardState(max([term, *terms]), vote),
        options=options,
        draw=lambda: 0.0,
        now=0.0,
        may_vote=may_vote,
        learners=list(learners),
    )


def settle(core: Raft) -> list[tuple[str, Message]]:
    """Carry out all that is ready, durably; the messages it sent."""
    sent: list[tuple[str, Message]] = []
    while core.has_ready:
        ready = core.ready()
        sent += [*ready.send_now, *ready.send_after_persist]
        core.on_persisted(ready.number)
        if ready.committed:
            core.on_applied(ready.committed[-1].index)
    return sent


def to(sent: list[tuple[str, Message]], peer: str, kind: type[M]) -> list[M]:
    return [message for peer_, message in sent if peer_ == peer and isinstance(message, kind)]


def elected(core: Raft, now: float = 1.0) -> list[tuple[str, Message]]:
    """Let node a win the next term with everybody's votes; what it sends first."""
    core.on_time(max(now, core.deadline))
    settle(core)
    for voter in core.voters[1:]:
        core.on_message(PreVoteReply(core.term + 1, voter, True), now)
    settle(core)
    for voter in core.voters[1:]:
        core.on_message(VoteReply(core.term, voter, True), now)
    assert core.role is Role.LEADER
    return settle(core)


def acked(core: Raft, peer: str, index: int, now: float = 1.0) -> None:
    core.on_message(AppendReply(core.term, peer, True, index, 0, 0), now)


# --- elections: paper 5.2, 5.4.1, thesis 4.2.3, 9.6 -----------------------------------------------


def test_a_server_begins_as_follower() -> None:
    """Paper 5.2: "When servers start up, they begin as followers." """
    assert node().role is Role.FOLLOWER


def test_it_remains_follower_while_it_hears_a_leader() -> None:
    """Paper 5.2: "remains in follower state as long as it receives valid RPCs from a leader"."""
    core = node(1)
    for tenth in range(1, 30):
        core.on_message(Heartbeat(1, "b", 0, tenth), tenth / 10)
        core.on_time(tenth / 10)

    assert core.role is Role.FOLLOWER


def test_silence_makes_it_ask_first_and_change_nothing() -> None:
    """Thesis 9.6: a candidate "only increments its term if it first learns ... it would win"."""
    core = node(1)

    core.on_time(core.deadline)
    sent = settle(core)

    assert (core.role, core.term) == (Role.PRE_CANDIDATE, 1)
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
    assert core.role is Role.CANDIDATE

    core.on_message(Append(1, "c", 0, 0, 0, ()), 0.7)

    assert (core.role, core.leader_id, core.term) == (Role.FOLLOWER, "c", 1)


def test_a_candidate_ignores_a_leader_of_an_older_term_and_tells_it() -> None:
    """Paper 5.1: "If a server receives a request with a stale term number, it rejects"."""
    core = node(term=5)

    core.on_message(Append(3, "c", 0, 0, 0, (Entry(1, 3, b"x"),)), 0.1)

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
    core.on_persisted(second.number)
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
    deadlines = [
        Raft(
            "a",
            ["a", "b", "c"],
            RaftLog(),
            HardState(),
            options=OPTIONS,
            draw=lambda drawn=drawn: drawn,  # type: ignore[misc]
            now=10.0,
        ).deadline
        for drawn in (0.0, 0.5, 0.999)
    ]

    assert deadlines == pytest.approx([10.5, 10.75, 10.9995])


def test_a_lost_pre_vote_leaves_everything_as_it_was() -> None:
    """Thesis 9.6."""
    core = node(1)
    core.on_time(core.deadline)
    for peer in "bc":
        core.on_message(PreVoteReply(1, peer, False), 0.6)

    assert (core.role, core.term, core.vote) == (Role.FOLLOWER, 1, "")


def test_a_refusal_from_a_later_term_is_taken_up() -> None:
    """Paper 5.1: "if one server's current term is smaller than the other's, then it updates"."""
    core = node(1)
    core.on_time(core.deadline)
    core.on_message(PreVoteReply(9, "b", False), 0.6)

    assert (core.role, core.term) == (Role.FOLLOWER, 9)


def test_a_late_pre_vote_of_an_earlier_term_does_not_count() -> None:
    """Thesis 9.6: the answer is about one term only."""
    core = node(term=4)
    core.on_time(core.deadline)
    core.on_message(PreVoteReply(4, "b", True), 0.6)

    assert core.role is Role.PRE_CANDIDATE


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
    assert core.role is Role.FOLLOWER


def test_a_single_voter_elects_itself_and_commits_alone() -> None:
    """A majority of one; still only what is durable is committed."""
    core = node(voters="a")
    core.on_time(core.deadline)
    ready = core.ready()

    assert core.role is Role.LEADER
    assert core.commit == 0
    core.on_persisted(ready.number)
    assert core.commit == 1


def test_strangers_are_not_heard() -> None:
    """H5: members are known by id; a node of an earlier life is none."""
    core = node(1)
    core.on_message(Vote(9, "x", 99, 8, False), 0.1)
    core.on_message(Heartbeat(9, "x", 0, 1), 0.1)

    assert core.term == 1


def test_two_leaders_of_one_term_are_an_error_of_the_peer() -> None:
    """Paper, figure 3, Election Safety; M1."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 0.1)

    with pytest.raises(ProtocolError, match="two leaders in term 1"):
        core.on_message(Heartbeat(1, "c", 0, 1), 0.2)


# --- replication: paper 5.3 -----------------------------------------------------------------------


def test_several_proposals_travel_in_one_append_before_the_own_disk() -> None:
    """Thesis 10.2.1 (writing to the leader's disk in parallel), 10.2.2 (batching)."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    settle(core)

    assert [core.propose(b"%d" % n) for n in range(3)] == [2, 3, 4]
    ready = core.ready()

    entries = tuple(Entry(2 + n, 1, b"%d" % n) for n in range(3))
    assert ready.append == entries
    assert [message.entries for message in to(list(ready.send_now), "b", Append)] == [entries]


def test_appends_are_sent_ahead_of_their_answers_and_bounded_in_bytes() -> None:
    """Thesis 10.2.2 (pipelining); bounded: a message by one, what is in flight by another bound."""
    core = node(options=RaftOptions(append_bytes_max=200, in_flight_bytes_max=500))
    elected(core)
    acked(core, "b", 1)
    settle(core)
    for _ in range(10):
        core.propose(bytes(100))

    sent = to(settle(core), "b", Append)

    assert [[e.index for e in message.entries] for message in sent] == [[2, 3], [4, 5], [6, 7]]
    acked(core, "b", 3)
    assert [[e.index for e in m.entries] for m in to(settle(core), "b", Append)] == [[8, 9]]


def test_an_ack_leaves_only_when_the_entries_are_durable() -> None:
    """Thesis 10.2.1: a follower's answer means durable; G1."""
    core = node()
    core.on_message(Append(1, "b", 0, 0, 0, (Entry(1, 1, b"x"),)), 0.1)
    ready = core.ready()

    assert not ready.send_now
    assert ready.append == (Entry(1, 1, b"x"),)
    assert ready.send_after_persist == (("b", AppendReply(1, "a", True, 1, 0, 0)),)


def test_a_doubled_append_is_not_acked_before_the_first_is_durable() -> None:
    """H10 in Raft's dress: have it in memory is not have it."""
    core = node(term=1)
    message = Append(1, "b", 0, 0, 0, (Entry(1, 1, b"x"),))
    core.on_message(message, 0.1)
    core.ready()
    core.on_message(message, 0.2)
    second = core.ready()

    assert not second.append
    assert not second.send_now
    assert second.send_after_persist == (("b", AppendReply(1, "a", True, 1, 0, 0)),)


def test_no_entry_without_the_one_before() -> None:
    """Paper 5.3: "If the follower does not find an entry in its log with the same index and term,
    then it refuses the new entries"."""
    core = node(1, 1, term=3)
    core.on_message(Append(3, "b", 2, 2, 0, (Entry(3, 3, b"x"),)), 0.1)
    core.on_message(Append(3, "b", 7, 2, 0, (Entry(8, 3, b"x"),)), 0.1)

    sent = to(settle(core), "b", AppendReply)

    assert sent == [AppendReply(3, "a", False, 2, 1, 1), AppendReply(3, "a", False, 7, 3, 0)]
    assert core.log.last_index == 2


def test_a_conflicting_tail_is_replaced() -> None:
    """Paper 5.3: "conflicting entries in follower logs will be overwritten"."""
    core = node(1, 1, 1, term=2)
    core.on_message(Append(2, "b", 1, 1, 0, (Entry(2, 2, b"new"),)), 0.1)
    ready = core.ready()

    assert ready.truncate_from == 2
    assert ready.append == (Entry(2, 2, b"new"),)
    assert core.durable_index == 1


def test_an_old_append_does_not_cut_what_followed_it() -> None:
    """Paper, figure 2: delete only "if an existing entry conflicts with a new one"."""
    core = node(1, 1, 1)
    core.on_message(Append(1, "b", 0, 0, 0, (Entry(1, 1, b"old"),)), 0.1)
    ready = core.ready()

    assert ready.truncate_from is None
    assert core.log.last_index == 3
    assert ready.send_now == (("b", AppendReply(1, "a", True, 1, 0, 0)),)


def test_a_write_replaced_in_memory_is_not_counted_when_it_ends() -> None:
    """A sync that ends late says nothing of the entries that took the place of what it wrote."""
    core = node(term=1)
    core.on_message(Append(1, "b", 0, 0, 0, (Entry(1, 1, b"x"), Entry(2, 1, b"y"))), 0.1)
    first = core.ready()
    core.on_message(Append(2, "c", 1, 1, 0, (Entry(2, 2, b"z"),)), 0.2)
    second = core.ready()

    core.on_persisted(first.number)
    assert core.durable_index == 1
    core.on_persisted(second.number)
    assert core.durable_index == 2


def test_a_follower_commits_no_further_than_the_message_reaches() -> None:
    """Paper, figure 2: "commitIndex = min(leaderCommit, index of last new entry)"."""
    core = node(1, 1, 1, term=2)
    core.on_message(Append(2, "b", 1, 1, 3, ()), 0.1)

    assert core.commit == 1  # entries 2 and 3 are another leader's


def test_only_what_is_durable_here_is_handed_out() -> None:
    """A state machine ahead of its log would lose its place in a crash."""
    core = node(term=1)
    core.on_message(Append(1, "b", 0, 0, 1, (Entry(1, 1, b"x"),)), 0.1)
    first = core.ready()
    assert not first.committed

    core.on_persisted(first.number)

    assert core.ready().committed == (Entry(1, 1, b"x"),)


def test_a_refusal_moves_the_leader_back_and_only_once() -> None:
    """Paper 5.3: "the leader decrements nextIndex and retries"; doubled refusals are old news."""
    core = node(1, 1, 2, 2)
    elected(core)

    for _ in range(2):
        core.on_message(AppendReply(core.term, "b", False, 4, 2, 1, number=1), 1.0)

    assert [m.prev_index for m in to(settle(core), "b", Append)] == [2]


def test_one_lost_append_is_answered_by_one_new_attempt() -> None:
    """All that was in flight behind it is refused, too; those refusals are of the same attempt."""
    core = node(options=RaftOptions(append_bytes_max=1))
    elected(core)
    acked(core, "b", 1)
    settle(core)
    for _ in range(10):
        core.propose(b"x")
    in_flight = to(settle(core), "b", Append)
    assert len(in_flight) == 10

    sent: list[Append] = []
    for append in in_flight[1:]:  # the first was lost
        refusal = AppendReply(1, "b", False, append.prev_index, 2, 0, append.number)
        core.on_message(refusal, 1.1)
        sent += to(settle(core), "b", Append)

    assert [append.prev_index for append in sent] == [1]


def test_a_lost_append_is_found_by_the_heartbeats() -> None:
    """Paper 5.3: "retries indefinitely"; no timer per message."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    settle(core)
    core.propose(b"lost")
    settle(core)

    for tenth in (1, 2, 3):
        core.on_time(1.0 + tenth / 10)
        settle(core)
        core.on_message(HeartbeatReply(1, "b", core._leadership.round), 1.0 + tenth / 10)  # type: ignore[union-attr]
        sent = to(settle(core), "b", Append)
        if sent:
            break

    assert [(append.prev_index, append.entries) for append in sent] == [(2, ())]


def test_an_ack_beyond_the_log_is_an_error_of_the_peer() -> None:
    """Nobody can have what was never sent."""
    core = node()
    elected(core)

    with pytest.raises(ProtocolError, match="acknowledges entry 9"):
        acked(core, "b", 9)


def test_a_follower_that_lost_what_it_acked_says_so() -> None:
    """A disk that forgot breaks every promise made with it: the node ends, nothing is served."""
    core = node(1)

    with pytest.raises(CorruptData, match="acknowledged entries were lost"):
        core.on_message(Heartbeat(1, "b", 5, 1), 0.1)


def test_proposals_beyond_the_bound_are_refused_untaken() -> None:
    """Every queue has a bound in bytes; refused is definite."""
    core = node(options=RaftOptions(uncommitted_bytes_max=250, command_bytes_max=200))
    elected(core)
    core.propose(bytes(200))

    with pytest.raises(TooBusy):
        core.propose(bytes(100))
    with pytest.raises(InvalidRequest):
        core.propose(bytes(201))
    with pytest.raises(InvalidRequest):
        core.propose(b"")
    assert core.log.last_index == 2
    settle(core)
    acked(core, "b", 2)
    assert core.propose(bytes(100)) == 3


# --- commit: paper 5.3, 5.4.2 ---------------------------------------------------------------------


def test_an_entry_is_committed_when_a_majority_has_it_durably() -> None:
    """Paper 5.3: "once the leader ... has replicated it on a majority"; the leader's disk counts too."""
    core = node()
    elected(core)
    core.propose(b"x")
    core.ready()  # under way, not durable

    acked(core, "b", 2)
    assert core.commit == 1  # b and nobody else; the no-op is on a and b
    acked(core, "c", 2)
    assert core.commit == 2  # b and c are a majority without the leader (thesis 10.2.1)


def test_no_entry_of_an_earlier_term_is_committed_by_counting() -> None:
    """Paper 5.4.2: "only log entries from the leader's current term are committed by counting"."""
    core = node(1, 1)
    elected(core)

    acked(core, "b", 2)
    acked(core, "c", 2)
    assert core.commit == 0

    acked(core, "b", 3)
    assert core.commit == 3  # "then all prior entries are committed indirectly"


def test_a_leader_never_overwrites_its_own_log() -> None:
    """Paper, figure 3, Leader Append-Only; a no-op at its term's start (paper 8)."""
    core = node(1, 1)
    elected(core)

    assert [core.log.term_at(index) for index in (1, 2, 3)] == [1, 1, 2]
    assert core.log.entry(3).data == b""


def test_answers_to_an_earlier_term_do_not_count() -> None:
    """Paper 5.1: stale information is ignored."""
    core = node(1)
    elected(core)
    elected_term = core.term
    core.on_message(VoteReply(elected_term + 1, "b", False), 1.1)
    elected(core, now=3.0)
    settle(core)

    core.on_message(AppendReply(elected_term, "b", True, core.log.last_index, 0, 0), 3.0)

    assert core.commit == 0


# --- leadership ends: thesis 6.2, 3.10 ------------------------------------------------------------


def test_a_higher_term_ends_it() -> None:
    """Paper 5.1: "If a candidate or leader discovers that its term is out of date, it immediately
    reverts to follower state"."""
    core = node()
    elected(core)

    core.on_message(AppendReply(5, "c", False, 0, 0, 0), 1.1)

    assert (core.role, core.term, core.vote) == (Role.FOLLOWER, 5, "")
    assert core.propose(b"x") is None


def test_a_leader_without_answers_of_a_quorum_steps_down() -> None:
    """Thesis 6.2: "a leader ... steps down if an election timeout elapses without a successful round
    of heartbeats to a majority"."""
    core = node(voters="abcde")
    elected(core)
    core.on_message(HeartbeatReply(1, "b", 1), 1.9)
    core.on_message(HeartbeatReply(1, "c", 1), 1.2)

    core.on_time(2.15)  # a, b and c were heard in the last second
    roles = [core.role]
    core.on_time(2.25)

    assert [*roles, core.role] == [Role.LEADER, Role.FOLLOWER]


def test_the_leader_s_own_pause_is_not_the_others_silence() -> None:
    """H25: SIGSTOP of the leader: on waking it drains its sockets and leads on."""
    core = node()
    elected(core)

    core.on_late(30.0, 31.0)
    core.on_time(31.0)

    assert core.role is Role.LEADER


def test_after_a_stall_of_everybody_a_follower_waits_once_for_the_leader() -> None:
    """H25: a stall of the whole machine expires all deadlines at once; the leader speaks first. A node
    that is always late campaigns in the end."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 1.0)
    woken = core.deadline + 3.0

    core.on_late(3.0, woken)
    core.on_time(woken)
    assert core.role is Role.FOLLOWER
    core.on_late(0.1, woken + 0.3)
    core.on_time(woken + 0.3)
    roles = [core.role]

    assert roles == [Role.PRE_CANDIDATE]


def test_leadership_is_handed_to_one_that_has_everything() -> None:
    """Thesis 3.10: "stops accepting new client requests ... sends a TimeoutNow request"."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    core.propose(b"tail")

    assert core.transfer_leadership(1.1, "b")
    assert core.propose(b"more") is None
    assert not to(settle(core), "b", TimeoutNow)
    acked(core, "b", 2)
    assert to(settle(core), "b", TimeoutNow) == [TimeoutNow(1, "a")]


def test_a_handing_over_that_fails_is_given_up() -> None:
    """Thesis 3.10: "If leadership transfer does not complete after about an election timeout, the
    prior leader aborts the transfer and resumes accepting client requests"."""
    core = node()
    elected(core)
    core.transfer_leadership(1.1, "b")
    core.on_message(HeartbeatReply(1, "b", 1), 1.5)

    core.on_time(1.7)

    assert core.propose(b"more") == 2


def test_the_heir_campaigns_at_once_and_is_helped_in_spite_of_a_living_leader() -> None:
    """Thesis 4.2.3 and 3.10: the request carries a flag that says the leader permits it."""
    heir = node(1)
    heir.on_message(Heartbeat(1, "b", 1, 1), 1.0)
    heir.on_message(TimeoutNow(1, "b"), 1.1)
    assert Vote(2, "a", 1, 1, True) in to(settle(heir), "c", Vote)

    voter = node(1)
    voter.on_message(Heartbeat(1, "b", 1, 1), 1.0)
    voter.on_message(Vote(2, "c", 1, 1, True), 1.1)
    assert VoteReply(2, "a", True) in to(settle(voter), "c", VoteReply)


def test_a_stalled_disk_refuses_and_hands_over_leadership() -> None:
    """H25: refuse leadership while the own disk stalls."""
    core = node()
    core.on_disk_stalled(True, 0.1)
    core.on_time(core.deadline)
    assert core.role is Role.FOLLOWER

    core.on_disk_stalled(False, 0.9)
    elected(core)
    acked(core, "c", 1)
    core.on_disk_stalled(True, 1.1)
    assert to(settle(core), "c", TimeoutNow)


# --- reads: thesis 6.4 ----------------------------------------------------------------------------


def reads_of(core: Raft) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while core.has_ready:
        ready = core.ready()
        core.on_persisted(ready.number)
        found += ready.reads
    return found


def test_a_read_needs_a_round_that_began_after_it_was_asked() -> None:
    """Thesis 6.4, step 3; H26. Answers to an earlier round do not count."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    settle(core)

    core.read_index(7)
    core.on_message(HeartbeatReply(1, "b", 1), 1.1)  # the round of the election
    assert not reads_of(core)
    core.on_message(HeartbeatReply(1, "b", 2), 1.1)
    assert reads_of(core) == [(7, 1)]


def test_waiting_reads_share_one_round() -> None:
    """Thesis 6.4: "amortize the cost ... a single round of heartbeats"."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    settle(core)
    for request_id in range(100):
        core.read_index(request_id)

    sent = settle(core)

    assert len(to(sent, "b", Heartbeat)) == 1
    core.on_message(HeartbeatReply(1, "b", 2), 1.1)
    assert len(reads_of(core)) == 100


def test_a_new_leader_serves_no_read_before_its_no_op_is_committed() -> None:
    """Thesis 6.4, step 1: "it might not know which [entries] are committed"."""
    core = node(1, 1)
    elected(core)
    core.read_index(7)
    settle(core)
    core.on_time(core.deadline)
    core.on_message(HeartbeatReply(2, "b", 2), 1.2)
    assert not reads_of(core)

    acked(core, "b", 3)
    settle(core)
    core.on_message(HeartbeatReply(2, "b", 3), 1.2)

    assert reads_of(core) == [(7, 3)]


def test_a_read_lost_with_leadership_is_said_to_be_lost() -> None:
    """Unknown is never silence: each request is answered in exactly one Ready."""
    core = node()
    elected(core)
    assert core.read_index(7)
    settle_reads: list[int] = []
    core.on_message(AppendReply(5, "c", False, 0, 0, 0), 1.1)
    while core.has_ready:
        settle_reads += core.ready().reads_lost

    assert settle_reads == [7]
    assert not core.read_index(8)


# --- snapshots: paper 7 ---------------------------------------------------------------------------


def test_a_follower_that_needs_compacted_entries_gets_a_snapshot() -> None:
    """Paper 7: "when the leader has already discarded the next log entry"; H39: then the log stays."""
    core = node()
    elected(core)
    for _ in range(4):
        core.propose(b"x")
    settle(core)
    acked(core, "b", 5)
    settle(core)
    assert core.compact(4) == 4

    core.on_message(AppendReply(1, "c", False, 0, 1, 0), 1.1)
    core.on_message(HeartbeatReply(1, "c", 1), 1.2)
    core.on_message(HeartbeatReply(1, "c", 1), 1.3)
    asks: list[SendSnapshot] = []
    while core.has_ready:
        asks += core.ready().send_snapshots

    assert [(ask.peer, ask.index) for ask in asks] == [("c", 4)]
    assert core.compact(5) == 4
    core.on_snapshot_sent("c", 4, True, 1.4)
    acked(core, "c", 5)
    assert core.compact(5) == 5


def test_the_log_stays_until_the_receiver_of_a_snapshot_has_caught_up() -> None:
    """H39: else a receiver that is slower than the log's tail lives never catches up; a silent one
    ends the claim."""
    core = node()
    elected(core)
    for _ in range(8):
        core.propose(b"x")
    settle(core)
    acked(core, "b", 9)
    settle(core)
    core.compact(4)
    core.on_message(AppendReply(1, "c", False, 0, 1, 0, 99), 1.1)
    settle(core)
    core.on_snapshot_sent("c", 6, True, 1.2)

    assert core.compact(8) == 6
    acked(core, "c", 7, 1.3)
    assert core.compact(8) == 7
    core.on_message(HeartbeatReply(1, "b", 1), 2.5)
    core.on_time(2.5)  # c was not heard for more than an election timeout
    assert core.compact(8) == 8


def test_a_snapshot_replaces_a_log_that_does_not_contain_its_end() -> None:
    """Paper 7: "the follower discards its entire log"."""
    core = node(1, 1, term=3)
    core.on_snapshot_received(3, "b", Snapshot(10, 2), 0.1)
    ready = core.ready()

    assert ready.snapshot == Snapshot(10, 2)
    assert ready.send_after_persist == (("b", AppendReply(3, "a", True, 10, 0, 0)),)
    assert (core.commit, core.log.base_index, core.log.last_index) == (10, 10, 10)


def test_a_snapshot_of_a_prefix_keeps_the_entries_behind_it() -> None:
    """Paper 7: "log entries following the snapshot are still valid and must be retained"."""
    core = node(1, 1, 1)
    core.on_snapshot_received(1, "b", Snapshot(2, 1), 0.1)
    ready = core.ready()

    assert ready.snapshot is None
    assert (core.commit, core.log.last_index) == (2, 3)
    assert [entry.index for entry in ready.committed] == [1, 2]


@pytest.mark.parametrize("snapshot", [Snapshot(10, 4), Snapshot(10, 0), Snapshot(0, 2)])
def test_a_snapshot_that_cannot_be_is_ignored(snapshot: Snapshot) -> None:
    """Paper 5.3: no entry is newer than its leader."""
    core = node()
    core.on_snapshot_received(3, "b", snapshot, 0.1)

    assert core.ready().snapshot is None


def test_a_peer_a_little_behind_is_fed_from_the_log_not_from_a_snapshot() -> None:
    """H39: compaction up to the newest entry must not throw a living follower out of the log."""
    core = node()
    elected(core)
    for _ in range(4):
        core.propose(b"x")
    settle(core)
    acked(core, "b", 5)
    acked(core, "c", 3)
    settle(core)

    assert core.compact(5) == 3


def test_a_stale_snapshot_is_dropped() -> None:
    """M3: what is applied never goes back."""
    core = node(1, 1, 1)
    core.on_message(Append(1, "b", 3, 1, 3, ()), 0.1)
    settle(core)

    core.on_snapshot_received(1, "b", Snapshot(2, 1), 0.2)

    assert core.ready().snapshot is None
    assert core.commit == 3


def test_a_restart_behind_an_own_snapshot_hands_nothing_out_twice() -> None:
    """M3: the state machine stands at the snapshot, the log may begin before it."""
    core = Raft(
        "a",
        ["a", "b", "c"],
        RaftLog(0, 0, [Entry(index, 1, b"x") for index in range(1, 6)]),
        HardState(1, ""),
        options=OPTIONS,
        draw=lambda: 0.0,
        now=0.0,
        applied=3,
    )
    core.on_message(Heartbeat(1, "b", 5, 1), 0.1)

    handed: list[int] = []
    while core.has_ready:
        ready: Ready = core.ready()
        handed += [entry.index for entry in ready.committed]

    assert handed == [4, 5]


def test_a_learner_is_fed_and_does_not_count() -> None:
    """H5: a new node catches up before it votes (thesis 4.2.1)."""
    core = node(learners="x")
    sent = elected(core)
    assert to(sent, "x", Append)

    acked(core, "x", 1)

    assert core.commit == 0
    assert not to(sent, "x", Vote)
