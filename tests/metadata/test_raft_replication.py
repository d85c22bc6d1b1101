"""The core against the Raft paper, sentence by sentence: replication and commit.

"Paper" is Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm (extended version,
2014); "thesis" is Ongaro: Consensus (2014). Longer plays are in scenarios/*.txt.
"""

from math import inf

import pytest

from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft import Raft
from distributedlog.metadata.raft.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Message,
    Vote,
    VoteReply,
)
from distributedlog.metadata.raft.ready import Snapshot
from distributedlog.metadata.raft.recovered_hard_state import RaftEntryId
from distributedlog.runtime.interfaces.errors import InvalidRequest, ProtocolError, TooBusy

from .raft_cores import acked, elected, node, settle, to


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
    assert [message.entries for message in to(list(ready.send_now), "b", AppendRequest)] == [
        entries
    ]


def test_appends_are_sent_ahead_of_their_answers_and_bounded_in_bytes() -> None:
    """Thesis 10.2.2 (pipelining); bounded: a message by one, what is in flight by another bound."""
    core = node(
        options=RaftOptions(append_bytes_max=200, in_flight_bytes_max=500, commit_lag_s=0.0)
    )
    elected(core)
    acked(core, "b", 1)
    settle(core)
    for _ in range(10):
        core.propose(bytes(100))

    sent = to(settle(core), "b", AppendRequest)

    assert [[e.index for e in message.entries] for message in sent] == [[2, 3], [4, 5], [6, 7]]
    acked(core, "b", 3)
    assert [[e.index for e in m.entries] for m in to(settle(core), "b", AppendRequest)] == [[8, 9]]


def test_an_ack_leaves_only_when_the_entries_are_durable() -> None:
    """Thesis 10.2.1: a follower's answer means durable; G1."""
    core = node()
    core.on_message(AppendRequest(1, "b", 0, 0, 0, (Entry(1, 1, b"x"),)), 0.1)
    ready = core.ready()

    assert not ready.send_now
    assert ready.append == (Entry(1, 1, b"x"),)
    assert ready.send_after_persist == (("b", AppendReply(1, "a", True, 1, 0, 0)),)


def test_a_doubled_append_is_not_acked_before_the_first_is_durable() -> None:
    """H10 in Raft's dress: have it in memory is not have it."""
    core = node(term=1)
    message = AppendRequest(1, "b", 0, 0, 0, (Entry(1, 1, b"x"),))
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
    core.on_message(AppendRequest(3, "b", 2, 2, 0, (Entry(3, 3, b"x"),)), 0.1)
    core.on_message(AppendRequest(3, "b", 7, 2, 0, (Entry(8, 3, b"x"),)), 0.1)

    sent = to(settle(core), "b", AppendReply)

    assert sent == [AppendReply(3, "a", False, 2, 1, 1), AppendReply(3, "a", False, 7, 3, 0)]
    assert core.log.last_index == 2


def test_a_conflicting_tail_is_replaced() -> None:
    """Paper 5.3: "conflicting entries in follower logs will be overwritten"."""
    core = node(1, 1, 1, term=2)
    core.on_message(AppendRequest(2, "b", 1, 1, 0, (Entry(2, 2, b"new"),)), 0.1)
    ready = core.ready()

    assert ready.truncate_from == 2
    assert ready.append == (Entry(2, 2, b"new"),)
    assert core.durable_index == 1


def test_an_old_append_does_not_cut_what_followed_it() -> None:
    """Paper, figure 2: delete only "if an existing entry conflicts with a new one"."""
    core = node(1, 1, 1)
    core.on_message(AppendRequest(1, "b", 0, 0, 0, (Entry(1, 1, b"old"),)), 0.1)
    ready = core.ready()

    assert ready.truncate_from is None
    assert core.log.last_index == 3
    assert ready.send_now == (("b", AppendReply(1, "a", True, 1, 0, 0)),)


def test_a_write_replaced_in_memory_is_not_counted_when_it_ends() -> None:
    """A sync that ends late says nothing of the entries that took the place of what it wrote."""
    core = node(term=1)
    core.on_message(AppendRequest(1, "b", 0, 0, 0, (Entry(1, 1, b"x"), Entry(2, 1, b"y"))), 0.1)
    first = core.ready()
    core.on_message(AppendRequest(2, "c", 1, 1, 0, (Entry(2, 2, b"z"),)), 0.2)
    second = core.ready()

    core.on_persisted(first.ready_number, 0.0)
    assert core.durable_index == 1
    core.on_persisted(second.ready_number, 0.0)
    assert core.durable_index == 2


def test_a_follower_commits_no_further_than_the_message_reaches() -> None:
    """Paper, figure 2: "commitIndex = min(leaderCommit, index of last new entry)"."""
    core = node(1, 1, 1, term=2)
    core.on_message(AppendRequest(2, "b", 1, 1, 3, ()), 0.1)

    assert core.commit == 1  # entries 2 and 3 are another leader's


def test_a_heartbeat_commits_no_further_than_an_append_has_shown_to_fit() -> None:
    """An older copy of a disk may end in entries that this term's leader has replaced since."""
    core = node(1, 1, 1, term=2)
    core.on_message(Heartbeat(2, "b", 3, 1), 0.1)
    assert core.commit == 0

    core.on_message(AppendRequest(2, "b", 1, 1, 0, ()), 0.2)
    core.on_message(Heartbeat(2, "b", 3, 2), 0.3)
    assert core.commit == 1  # entries 2 and 3 are another leader's

    core.on_message(AppendRequest(2, "b", 3, 1, 0, ()), 0.4)
    core.on_message(Heartbeat(2, "b", 3, 3), 0.5)
    assert core.commit == 3


def test_only_what_is_durable_here_is_handed_out() -> None:
    """A state machine ahead of its log would lose its place in a crash."""
    core = node(term=1)
    core.on_message(AppendRequest(1, "b", 0, 0, 1, (Entry(1, 1, b"x"),)), 0.1)
    first = core.ready()
    assert not first.committed

    core.on_persisted(first.ready_number, 0.0)

    assert core.ready().committed == (Entry(1, 1, b"x"),)


def test_a_refusal_moves_the_leader_back_and_only_once() -> None:
    """Paper 5.3: "the leader decrements nextIndex and retries"; doubled refusals are old news."""
    core = node(1, 1, 2, 2)
    elected(core)

    for _ in range(2):
        core.on_message(AppendReply(core.term, "b", False, 4, 2, 1, number=1), 1.0)

    assert [m.prev_index for m in to(settle(core), "b", AppendRequest)] == [2]


def test_one_lost_append_is_answered_by_one_new_attempt() -> None:
    """All that was in flight after it is refused, too; those refusals are of the same attempt."""
    core = node(options=RaftOptions(append_bytes_max=1, commit_lag_s=0.0))
    elected(core)
    acked(core, "b", 1)
    settle(core)
    for _ in range(10):
        core.propose(b"x")
    in_flight = to(settle(core), "b", AppendRequest)
    assert len(in_flight) == 10

    sent: list[AppendRequest] = []
    for append in in_flight[1:]:  # the first was lost
        refusal = AppendReply(1, "b", False, append.prev_index, 2, 0, append.number)
        core.on_message(refusal, 1.1)
        sent += to(settle(core), "b", AppendRequest)

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
        core.on_message(HeartbeatReply(1, "b", core._leader_state.round), 1.0 + tenth / 10)  # type: ignore[union-attr]
        sent = to(settle(core), "b", AppendRequest)
        if sent:
            break

    assert [(append.prev_index, append.entries) for append in sent] == [(2, ())]


def test_an_ack_beyond_the_log_is_an_error_of_the_peer() -> None:
    """Nobody can have what was never sent."""
    core = node()
    elected(core)

    with pytest.raises(ProtocolError, match="acknowledges entry 9"):
        acked(core, "b", 9)


def test_a_follower_that_lost_what_it_acked_helps_nobody_who_has_less() -> None:
    """H107: a disk that forgot keeps the leader's word for its own, until it is filled up."""
    core = node(1)
    core.on_message(Heartbeat(1, "b", 3, 1), 0.1)
    settle(core)
    assert (core.recovery_floor, core.can_campaign) == (RaftEntryId(1, 3), False)

    core.on_message(Vote(2, "c", 2, 1, True), 0.2)
    assert [message.granted for message in to(settle(core), "c", VoteReply)] == [False]
    core.on_message(Vote(3, "c", 3, 1, True), 0.3)
    assert [message.granted for message in to(settle(core), "c", VoteReply)] == [True]
    core.on_message(
        AppendRequest(3, "c", 0, 0, 0, tuple(Entry(n, 1, b"x") for n in (1, 2, 3))), 0.4
    )
    settle(core)
    assert core.recovery_floor is None
    assert core.can_campaign


def test_proposals_beyond_the_bound_are_refused_untaken() -> None:
    """Every queue has a bound in bytes; refused is definite."""
    core = node(
        options=RaftOptions(uncommitted_bytes_max=250, command_bytes_max=200, commit_lag_s=0.0)
    )
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


def lagging_leader() -> Raft:
    """Leads three nodes at time 1.0; all know that its first entry is committed."""
    core = node(options=RaftOptions())
    elected(core)
    for peer in "bc":
        acked(core, peer, 1)
    core.on_time(1.1)
    settle(core)
    return core


def test_a_commit_is_told_by_the_next_append() -> None:
    """A busy leader sends no message for a commit alone; its peers learn of it all the same."""
    core = lagging_leader()
    core.propose(b"x")
    settle(core)
    acked(core, "b", 2, 1.101)
    assert settle(core) == []

    core.propose(b"y")
    sent = settle(core)

    assert [append.commit for append in to(sent, "b", AppendRequest)] == [2]
    core.on_time(core.deadline)  # the telling was planned, and there is nothing left to tell b
    assert to(settle(core), "b", Heartbeat) == []


def test_a_commit_that_no_append_carries_is_told_within_the_lag() -> None:
    """Followers' watches are late by milliseconds, not by a heartbeat's period."""
    core = lagging_leader()
    core.propose(b"x")
    settle(core)
    acked(core, "b", 2, 1.101)
    settle(core)

    assert core.deadline == pytest.approx(1.106)
    core.on_time(core.deadline)

    assert to(settle(core), "b", Heartbeat) == [Heartbeat(1, "a", 2, 0)]
    assert core.deadline == pytest.approx(1.2)  # the heartbeat comes when it was due
    acked(core, "c", 2, 1.12)  # the slower one is told, too
    core.on_time(core.deadline)
    assert to(settle(core), "c", Heartbeat) == [Heartbeat(1, "a", 2, 0)]


def test_a_commit_by_the_leaders_own_disk_is_told_within_the_lag() -> None:
    core = lagging_leader()
    core.propose(b"x")
    ready = core.ready()
    acked(core, "b", 2, 1.101)
    assert core.commit == 1  # b's alone

    core.on_persisted(ready.ready_number, 1.15)
    settle(core)

    assert core.commit == 2
    assert core.deadline == pytest.approx(1.155)
    core.on_time(core.deadline)
    assert to(settle(core), "b", Heartbeat) == [Heartbeat(1, "a", 2, 0)]


def test_an_append_for_several_peers_is_one_message() -> None:
    """It is made once and encoded once; each peer counts refusals by its number all the same."""
    core = lagging_leader()

    core.propose(b"x")
    sent = settle(core)

    (to_b,), (to_c,) = to(sent, "b", AppendRequest), to(sent, "c", AppendRequest)
    assert to_b is to_c
    core.propose(b"y")
    (later,) = to(settle(core), "b", AppendRequest)
    assert later.number > to_b.number


def test_a_later_append_of_the_same_entries_is_another_message() -> None:
    """Its number tells a refusal of it from one of what came before: else the peer is stuck."""
    core = node(1, 1, 1)
    elected(core)
    (first,) = to(settle_refused(core, "b", 3, number=1, hint=2), "b", AppendRequest)
    (again,) = to(settle_refused(core, "c", 3, number=1, hint=2), "c", AppendRequest)
    assert (again.prev_index, again.entries) == (first.prev_index, first.entries)

    (further,) = to(settle_refused(core, "c", 1, number=again.number, hint=1), "c", AppendRequest)

    assert further.prev_index == 0


def test_a_commit_by_the_removal_of_a_voter_is_told_within_the_lag() -> None:
    """The removal counts at once (thesis 4.1): what waited for the removed one's disk is committed by it."""
    core = node(voters="abcd", options=RaftOptions())
    elected(core)
    for peer in "bcd":
        acked(core, peer, 1)
    core.on_time(1.1)
    settle(core)
    core.propose(b"x")
    settle(core)
    acked(core, "b", 2, 1.101)
    assert core.commit == 1  # two of four

    core.change_members(Configuration.from_ids("abc"), 1.15)
    assert core.commit == 2

    assert core.deadline == pytest.approx(1.155)


def settle_refused(
    core: Raft, peer: str, index: int, *, number: int, hint: int
) -> list[tuple[str, Message]]:
    """The peer lacks entry ``index``, and says so of that append; what the core sends then."""
    core.on_message(AppendReply(core.term, peer, False, index, hint, 0, number), 1.0)
    return settle(core)


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


def test_a_commit_is_not_believed_for_entries_that_the_leader_has_not_seen() -> None:
    """H107: an older copy whose end was cut off since: as long as the leader's word, and another log."""
    core = node(1, 1, 1, 1, term=1)  # 3 and 4 were replaced, by entries that this node acknowledged
    core.on_message(Heartbeat(2, "b", 4, 1), 0.1)
    settle(core)
    assert core.commit == core.applied == 0
    core.on_message(AppendRequest(2, "b", 4, 2, 4, ()), 0.1)
    settle(core)
    assert (core.recovery_floor, core.can_campaign) == (RaftEntryId(2, 4), False)
    core.on_message(Vote(3, "c", 4, 1, True), 0.2)  # it would have been elected without 3 and 4
    assert [message.granted for message in to(settle(core), "c", VoteReply)] == [False]

    later = tuple(Entry(n, 2, b"new") for n in (3, 4))
    core.on_message(AppendRequest(3, "b", 2, 1, 4, later), 0.3)
    settle(core)
    assert core.commit == core.applied == 4
    assert [core.log.term_at(index) for index in (2, 3, 4)] == [1, 2, 2]
    assert core.recovery_floor is None


def test_what_differs_below_the_leaders_word_makes_a_ghost() -> None:
    """H107: the first append that fits begins before what was replaced."""
    core = node(1, 1, 1, term=1)
    core.on_message(Heartbeat(2, "b", 3, 1), 0.1)
    core.on_message(AppendRequest(2, "b", 2, 1, 3, (Entry(3, 2, b"new"),)), 0.1)
    assert not core.can_campaign
    assert core.recovery_floor == RaftEntryId(2, 3)
    settle(core)
    assert core.can_campaign
    assert core.commit == 3


def test_a_restart_that_lost_nothing_makes_no_ghost() -> None:
    """The leader's word is what is here: its first append says so, then its commits count."""
    core = node(1, 1, 2, term=2)
    core.on_message(Heartbeat(2, "b", 3, 1), 0.1)
    core.on_message(AppendRequest(2, "b", 3, 2, 3, ()), 0.1)
    settle(core)
    assert (core.recovery_floor, core.commit) == (None, 3)
    core.on_message(AppendRequest(2, "b", 3, 2, 3, (Entry(4, 2, b"x"),)), 0.2)
    core.on_message(Heartbeat(2, "b", 4, 2), 0.2)
    assert core.commit == 4


def test_what_a_peer_acknowledged_before_its_connection_broke_is_asked_for_again() -> None:
    """H107: it may run on an older copy of its disk since; of five, two would have the entry."""
    core = node(voters="abcde")
    elected(core)
    for peer in "bc":
        acked(core, peer, 1)
    settle(core)
    core.propose(b"x")
    before = to(settle(core), "b", AppendRequest)[-1].number
    core.on_message(AppendReply(1, "b", True, 2, 0, 0, before), 1.0)
    core.on_connection_closed("b", 1.1)
    acked(core, "c", 2)
    assert core.commit == 1

    core.on_message(AppendReply(1, "b", True, 2, 0, 0, before), 1.2)  # it was under way
    probe = to(settle(core), "b", AppendRequest)[-1]
    assert core.commit == 1
    assert (probe.prev_index, probe.number > before) == (2, True)
    core.on_message(AppendReply(1, "b", True, 2, 0, 0, probe.number), 1.3)
    assert core.commit == 2


def test_a_peer_is_told_of_its_word_though_it_does_not_count() -> None:
    """H107: how else would one that runs on a copy know what it has forgotten?"""
    core = node(voters="abc")
    elected(core)
    for peer in "bc":
        acked(core, peer, 1)
    settle(core)
    core.on_connection_closed("b", 1.1)
    core.on_time(1.2)

    assert [message.commit for message in to(settle(core), "b", Heartbeat)] == [1]


def test_an_acknowledgement_of_an_older_version_counts_by_what_it_covers() -> None:
    """It names no append: as much as was there before is asked for."""
    core = node(voters="abcde")
    elected(core)
    core.propose(b"x")
    settle(core)
    acked(core, "b", 2)
    acked(core, "c", 2)
    core.propose(b"y")
    settle(core)
    core.on_connection_closed("b", 1.1)
    acked(core, "c", 3)
    acked(core, "b", 1, 1.2)
    assert core.commit == 2
    acked(core, "d", 3, 1.2)
    assert core.commit == 3


NEWER = tuple(Entry(n, 3, b"new") for n in (3, 4))


@pytest.mark.parametrize(
    "sent",
    [
        AppendRequest(3, "b", 2, 1, 4, NEWER),
        AppendRequest(3, "b", 1, 1, 4, (Entry(2, 1, b"old"), *NEWER)),
        AppendRequest(3, "b", 4, 3, 4, ()),
        AppendRequest(3, "b", 4, 3, 5, (Entry(5, 3, b"new"),)),
    ],
    ids=["entries", "entries after others that fit", "an empty one", "entries after the end"],
)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "observed"])
def test_a_leader_that_would_replace_committed_entries_is_not_followed(
    sent: AppendRequest, stored: bool
) -> None:
    """Most nodes run on older copies of their disks. What a client was told is done is not deleted."""
    core = node(1, 1, 1, 1, term=1, committed=4 if stored else 0)
    if not stored:
        core.on_message(AppendRequest(1, "b", 4, 1, 4, ()), 0.1)
        settle(core)
        assert core.commit == 4
    core.on_message(sent, 0.2)

    assert core.diverged is not None
    assert (core.diverged.leader_id, core.diverged.term, core.diverged.commit) == ("b", 3, 4)
    assert core.diverged.index in (3, 4)
    assert core.log.last_index == 4
    assert core.term == 1
    assert not core.has_ready
    core.on_message(AppendRequest(3, "b", 2, 1, 4, NEWER), 0.3)
    core.on_time(99.0)
    assert (core.log.entry(4).data, core.has_ready, core.deadline) == (b"old", False, inf)


def test_a_leader_of_the_same_term_with_other_committed_entries_is_not_followed() -> None:
    """Older copies of a majority elect a leader in a term that there was already: the terms are equal."""
    core = node(1, 1, 1, 1, term=1, committed=4)
    other = AppendRequest(1, "b", 2, 1, 4, (Entry(3, 1, b"old"), Entry(4, 1, b"new")))
    core.on_message(other, 0.1)

    assert core.diverged is not None
    assert (core.diverged.leader_id, core.diverged.index, core.diverged.commit) == ("b", 4, 4)
    assert (core.log.entry(4).data, core.has_ready, core.deadline) == (b"old", False, inf)


def test_other_entries_of_the_same_term_replace_what_is_not_known_to_be_committed() -> None:
    core = node(1, 1, 1, 1, term=1, committed=2)
    core.on_message(AppendRequest(1, "b", 2, 1, 2, (Entry(3, 1, b"old"), Entry(4, 1, b"new"))), 0.1)
    settle(core)
    assert core.diverged is None
    assert [core.log.entry(index).data for index in (3, 4)] == [b"old", b"new"]


def test_entries_that_come_again_are_no_others() -> None:
    core = node(1, 1, 1, 1, term=1, committed=4)
    core.on_message(
        AppendRequest(1, "b", 1, 1, 4, tuple(Entry(n, 1, b"old") for n in (2, 3, 4))), 0.1
    )
    settle(core)
    assert (core.diverged, core.commit) == (None, 4)


def test_entries_that_are_not_known_to_be_committed_are_replaced() -> None:
    core = node(1, 1, 1, 1, term=1, committed=2)
    core.on_message(AppendRequest(3, "b", 2, 1, 2, NEWER), 0.2)
    settle(core)
    assert core.diverged is None
    assert [core.log.term_at(index) for index in (2, 3, 4)] == [1, 3, 3]


def test_a_node_that_lost_committed_entries_is_filled_up() -> None:
    """The log ends before what is known to be committed: it was damaged, and any leader has the rest."""
    core = node(1, 1, term=3, committed=4)
    core.on_message(AppendRequest(3, "b", 4, 3, 4, ()), 0.1)
    assert [message.accepted for message in to(settle(core), "b", AppendReply)] == [False]
    core.on_message(AppendRequest(3, "b", 2, 1, 4, NEWER), 0.2)
    settle(core)
    assert (core.diverged, core.commit) == (None, 4)


def test_a_snapshot_that_would_replace_committed_entries_is_not_installed() -> None:
    core = node(1, 1, 1, 1, term=1, committed=4)
    core.on_snapshot_received(3, "b", Snapshot(3, 3), 0.1)
    assert core.diverged is not None
    assert not core.has_ready
    fits = node(1, 1, 1, 1, term=1, committed=4)
    fits.on_snapshot_received(3, "b", Snapshot(3, 1), 0.1)
    assert (fits.diverged, fits.commit) == (None, 3)
