"""The core against the Raft thesis, sentence by sentence: how leadership ends, and reads.

"Paper" is Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm (extended version,
2014); "thesis" is Ongaro: Consensus (2014). Longer plays are in scenarios/*.txt.
"""

from distributedlog.metadata.raft.raft import Raft
from distributedlog.metadata.raft.raft_messages import (
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from distributedlog.metadata.raft.ready import RaftRole

from .raft_cores import acked, elected, node, settle, to


def test_a_higher_term_ends_it() -> None:
    """Paper 5.1: "If a candidate or leader discovers that its term is out of date, it immediately
    reverts to follower state"."""
    core = node()
    elected(core)

    core.on_message(AppendReply(5, "c", False, 0, 0, 0), 1.1)

    assert (core.role, core.term, core.vote) == (RaftRole.FOLLOWER, 5, "")
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

    assert [*roles, core.role] == [RaftRole.LEADER, RaftRole.FOLLOWER]


def test_the_leader_s_own_pause_is_not_the_others_silence() -> None:
    """H25: SIGSTOP of the leader: on waking it drains its sockets and leads on."""
    core = node()
    elected(core)

    core.on_late(30.0, 31.0)
    core.on_time(31.0)

    assert core.role is RaftRole.LEADER


def test_after_a_stall_of_everybody_a_follower_waits_once_for_the_leader() -> None:
    """H25: a stall of the whole machine expires all deadlines at once; the leader speaks first. A node
    that is always late campaigns in the end."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 0, 1), 1.0)
    woken = core.deadline + 3.0

    core.on_late(3.0, woken)
    core.on_time(woken)
    assert core.role is RaftRole.FOLLOWER
    core.on_late(0.1, woken + 0.3)
    core.on_time(woken + 0.3)
    roles = [core.role]

    assert roles == [RaftRole.PRE_CANDIDATE]


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
    assert core.role is RaftRole.FOLLOWER

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
        core.on_persisted(ready.ready_number, 0.0)
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


def test_a_late_answer_to_an_earlier_round_confirms_no_read() -> None:
    """Thesis 6.4; H26: the peer may have followed another leader since, whose writes the read must show."""
    core = node()
    elected(core)
    acked(core, "b", 1)
    settle(core)
    core.read_index(7)
    (beat,) = to(settle(core), "b", Heartbeat)
    assert beat.round == 2

    core.on_message(HeartbeatReply(1, "b", 1), 1.1)
    core.on_message(HeartbeatReply(1, "c", 1), 1.1)
    assert not reads_of(core)

    core.on_message(HeartbeatReply(1, "c", 2), 1.1)
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
