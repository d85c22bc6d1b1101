"""The core against chapter 4 of the Raft thesis, sentence by sentence: changes of the members.

"Thesis" is Ongaro: Consensus (2014); "the correction" is his message of 10 July 2015 to raft-dev.
"""

import pytest

from distributedlog.metadata.model.configuration import UNKNOWN_CONFIGURATION, Configuration
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
)
from distributedlog.metadata.raft.ready import HardState, RaftRole, Snapshot
from distributedlog.runtime.interfaces.errors import InvalidRequest, NotReady

from .raft_cores import OPTIONS, acked, elected, node, settle, to


def of(voters: str, learners: str = "") -> Configuration:
    return Configuration.from_ids(voters, learners)


def leader(voters: str = "abc", learners: str = "") -> Raft:
    """Node a, which leads and has committed an entry of its term."""
    core = node(voters=voters, learners=learners)
    elected(core)
    for voter in core.voters:
        if voter != "a":
            acked(core, voter, 1)
    settle(core)
    assert core.commit == 1
    return core


def test_a_configuration_counts_from_when_it_is_in_the_log() -> None:
    """Thesis 4.1: "the new configuration takes effect on each server as soon as it is added"."""
    core = leader()

    assert core.change_members(of("abcd"), 1.0) == 2
    sent = settle(core)

    assert core.voters == ("a", "b", "c", "d")
    assert to(sent, "d", AppendRequest)
    acked(core, "b", 2)
    assert core.commit == 1  # two of four
    acked(core, "c", 2)
    assert core.commit == 2


def test_a_follower_uses_it_before_it_is_committed_and_drops_it_with_the_entry() -> None:
    """Thesis 4.1: "a server must be prepared to fall back to the previous configuration in its log"."""
    core = node(1)
    entry = Entry(2, 1, of("abcd").encode())
    core.on_message(AppendRequest(1, "b", 1, 1, 0, (entry,)), 0.1)
    before = core.voters

    core.on_message(AppendRequest(2, "c", 1, 1, 0, (Entry(2, 2, b""),)), 0.2)

    assert (before, core.voters) == (("a", "b", "c", "d"), ("a", "b", "c"))


def test_one_change_at_a_time() -> None:
    """Thesis 4.1: no change while the one before is not committed."""
    core = leader()
    core.change_members(of("abcd"), 1.0)
    settle(core)

    with pytest.raises(NotReady):
        core.change_members(of("abcde"), 1.0)
    for voter in "bc":
        acked(core, voter, 2)

    assert core.change_members(of("abcde"), 1.0) == 3


def test_a_leader_first_commits_an_entry_of_its_own_term() -> None:
    """The correction: a change on top of what an earlier leader left may make majorities that do not meet."""
    core = node()
    elected(core)
    with pytest.raises(NotReady):
        core.change_members(of("ab"), 1.0)

    acked(core, "b", 1)

    assert core.change_members(of("ab"), 1.0) == 2


@pytest.mark.parametrize("wanted", [of(""), of("a"), of("abd"), of("abcde"), of("", "abc")])
def test_members_change_by_one_voter(wanted: Configuration) -> None:
    """Thesis 4.1: "only one server can be added or removed at a time": majorities overlap."""
    core = leader()

    with pytest.raises(InvalidRequest):
        core.change_members(wanted, 1.0)


def test_who_does_not_lead_or_hands_over_changes_nothing() -> None:
    core = leader()
    core.transfer_leadership(1.0)
    assert core.change_members(of("ab"), 1.0) is None

    assert node().change_members(of("ab"), 1.0) is None


def test_a_learner_counts_neither_for_commits_nor_for_reads() -> None:
    """Thesis 4.2.1: "not yet counted towards majorities"."""
    core = leader(learners="x")
    settle(core)
    core.propose(b"x")
    core.read_index(7)
    settle(core)
    acked(core, "x", 2)
    core.on_message(HeartbeatReply(1, "x", 2), 1.0)

    assert core.commit == 1
    assert not core.ready().reads


def test_a_learner_has_caught_up_when_it_has_what_was_committed_a_heartbeat_ago() -> None:
    """Thesis 4.2.1: a server that is added too early is a gap in availability."""
    core = leader(learners="x")
    for index in range(2, 5):
        core.propose(b"x")
        settle(core)
        acked(core, "b", index)
    core.on_message(HeartbeatReply(1, "x", 1), 1.0)
    core.on_time(core.deadline)
    acked(core, "x", 3, 1.1)
    assert core.leader_state is not None
    assert core.leader_state.caught_up_learners(1.2) == ()
    acked(core, "x", 4, 1.1)

    assert core.leader_state.caught_up_learners(1.2) == ("x",)
    assert core.leader_state.caught_up_learners(9.9) == ()  # it is silent


def test_a_learner_that_was_promoted_votes_though_it_does_not_know_it() -> None:
    """Thesis 4.1: the candidate's configuration counts, for the new majority may need that vote."""
    core = node(1, voters="bc", learners="a")
    core.on_message(PreVote(2, "b", 1, 1), 0.6)

    assert to(settle(core), "b", PreVoteReply) == [PreVoteReply(2, "a", True)]


def test_a_node_that_is_let_in_knows_nobody_and_follows_whoever_leads() -> None:
    """Thesis 4.1: a server takes entries from a leader that is not in its configuration."""
    core = Raft(
        "x", DurableState(RaftLog(), HardState()), options=OPTIONS, random=lambda: 0.0, now=0.0
    )
    assert core.configuration == UNKNOWN_CONFIGURATION
    core.on_time(1e9)
    entries = (Entry(1, 1, b""), Entry(2, 1, of("abc", "x").encode()))
    core.on_message(AppendRequest(1, "a", 0, 0, 2, entries), 1e9)
    sent = settle(core)

    assert to(sent, "a", AppendReply) == [AppendReply(1, "x", True, 2, 0, 0)]
    assert core.role is RaftRole.FOLLOWER
    assert core.configuration.learners == ("x",)


def test_a_leader_that_removed_itself_does_not_count_and_leaves_when_that_is_committed() -> None:
    """Thesis 4.2.2: it "steps down (returns to follower state) once the Cnew entry is committed"."""
    core = leader()
    core.change_members(of("bc"), 1.0)
    settle(core)
    acked(core, "b", 2)
    assert (core.role, core.commit) == (RaftRole.LEADER, 1)  # its own copy does not count

    acked(core, "c", 2)
    sent = settle(core)

    assert (core.role, core.commit) == (RaftRole.FOLLOWER, 2)
    assert any(to(sent, heir, TimeoutNow) for heir in "bc")
    assert [beat.commit for beat in to(sent, "b", Heartbeat)] == [2]
    core.on_time(1e9)
    assert core.role is RaftRole.FOLLOWER


def test_a_removed_voter_campaigns_until_its_removal_is_committed() -> None:
    """Thesis 4.2.2: it "should still start new elections, as it might still be needed"."""
    core = node(1)
    removal = Entry(2, 1, of("bc").encode())
    core.on_message(AppendRequest(1, "b", 1, 1, 1, (removal,)), 0.1)
    settle(core)
    core.on_time(core.deadline)
    before = core.role

    core.on_message(AppendRequest(1, "b", 2, 1, 2, ()), 2.0)
    core.on_time(1e9)

    assert (before, core.role) == (RaftRole.PRE_CANDIDATE, RaftRole.FOLLOWER)


def test_a_removed_server_does_not_disturb() -> None:
    """Thesis 4.2.3: it times out, for it hears nobody any more; nobody helps it."""
    core = node(1, voters="ab")
    core.on_message(Heartbeat(1, "b", 1, 1), 1.0)
    settle(core)
    core.on_message(PreVote(2, "c", 9, 1), 1.1)
    core.on_message(Vote(2, "c", 9, 1, False), 1.1)

    assert core.term == 1
    assert to(settle(core), "c", PreVoteReply) == [PreVoteReply(1, "a", False)]


def test_one_voter_less_may_be_what_a_commit_waited_for() -> None:
    """Thesis 4.1: counting begins anew with the configuration that was appended."""
    core = leader("ab")
    core.propose(b"x")
    settle(core)
    core.change_members(of("a"), 1.0)
    settle(core)

    assert core.commit == 3


def test_a_restart_finds_the_members_in_the_log() -> None:
    """Thesis 4.1: the latest configuration in the log, wherever it is: base, snapshot or entry."""
    log = RaftLog(
        0, 0, [Entry(1, 1, b""), Entry(2, 1, of("ab").encode()), Entry(3, 1, b"x")], of("abc")
    )
    log.compact(2)
    again = RaftLog(log.base_index, log.base_term, log.entries_from(3), log.configuration_at(2))
    durable = DurableState(again, HardState(1, ""), applied=2)
    core = Raft("a", durable, options=OPTIONS, random=lambda: 0.0, now=0.0)

    assert core.voters == ("a", "b")


def test_an_installed_snapshot_brings_the_members_as_of_its_end() -> None:
    """Paper 7: a snapshot "includes the latest configuration in the log as of last included index"."""
    core = node(1)
    core.on_snapshot_received(1, "b", Snapshot(10, 1, of("abd")), 0.1)
    ready = core.ready()

    assert core.voters == ("a", "b", "d")
    assert ready.snapshot is not None
    assert ready.snapshot.configuration == of("abd")
