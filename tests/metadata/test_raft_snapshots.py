"""The core against the Raft paper, sentence by sentence: snapshots, restarts, learners.

"Paper" is Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm (extended version,
2014); "thesis" is Ongaro: Consensus (2014). Longer plays are in scenarios/*.txt.
"""

import pytest

from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft import DurableState, Raft
from distributedlog.metadata.raft.raft_log import RaftLog
from distributedlog.metadata.raft.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Vote,
)
from distributedlog.metadata.raft.ready import HardState, Ready, SendSnapshot, Snapshot

from .raft_cores import OPTIONS, acked, elected, node, settle, to


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
    core.on_snapshot_sent("c", 4, True)
    acked(core, "c", 5)
    assert core.compact(5) == 5


@pytest.mark.parametrize(("lag_bytes_max", "kept_after"), [(1000, 2), (299, 9)])
def test_what_a_peer_that_lags_is_fed_from_is_bounded_in_bytes(
    lag_bytes_max: int, kept_after: int
) -> None:
    """Ten thousand entries of a MiB are no bound of memory: who lags by more gets a snapshot."""
    core = node(options=RaftOptions(commit_lag_s=0.0, lag_bytes_max=lag_bytes_max))
    elected(core)
    for _ in range(8):
        core.propose(bytes(100))
    settle(core)
    acked(core, "b", 9)
    acked(core, "c", 2)
    core.on_message(HeartbeatReply(1, "c", 1), 1.0)
    settle(core)

    assert core.compact(9) == kept_after


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
    core.on_snapshot_sent("c", 6, True)

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


def test_a_snapshot_of_a_prefix_keeps_the_entries_after_it() -> None:
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
    core.on_message(AppendRequest(1, "b", 3, 1, 3, ()), 0.1)
    settle(core)

    core.on_snapshot_received(1, "b", Snapshot(2, 1), 0.2)

    assert core.ready().snapshot is None
    assert core.commit == 3


def test_a_restart_after_an_own_snapshot_hands_nothing_out_twice() -> None:
    """M3: the state machine stands at the snapshot, the log may begin before it."""
    core = Raft(
        "a",
        DurableState(
            RaftLog(
                0,
                0,
                [Entry(index, 1, b"x") for index in range(1, 6)],
                Configuration.from_ids("abc"),
            ),
            HardState(1, ""),
            applied=3,
        ),
        options=OPTIONS,
        random=lambda: 0.0,
        now=0.0,
    )
    core.on_message(AppendRequest(1, "b", 5, 1, 3, ()), 0.1)
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
    assert to(sent, "x", AppendRequest)

    acked(core, "x", 1)

    assert core.commit == 0
    assert not to(sent, "x", Vote)
