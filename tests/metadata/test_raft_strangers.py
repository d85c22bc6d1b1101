"""Well-formed nonsense from a member: the core may refuse it with a typed error, never break itself.

`ProtocolError` and `CorruptData` speak of the peer or the disk; an assertion would say that this node
broke its own rule (style: first filter what the network may do, then assert what must hold).
"""

import random

import pytest

from distributedlog.metadata.raft import raft_messages as m
from distributedlog.metadata.raft.raft import Raft
from distributedlog.metadata.raft.ready import RaftRole, Snapshot
from distributedlog.runtime.interfaces.errors import CorruptData, ProtocolError

from .raft_cores import elected, node, settle


def nonsense(rng: random.Random) -> m.Message:
    """A message that `decode` lets through."""
    term, sender = rng.randrange(1, 6), rng.choice("bc")
    index = rng.randrange(0, 8)
    last_term = rng.randrange(0, term + 1) if index else 0
    kind = rng.randrange(9)
    if kind == 0:
        return m.PreVote(term, sender, index, last_term)
    if kind == 1:
        return m.PreVoteReply(term, sender, rng.random() < 0.5)
    if kind == 2:
        return m.Vote(term, sender, index, last_term, rng.random() < 0.5)
    if kind == 3:
        return m.VoteReply(term, sender, rng.random() < 0.5)
    if kind in (4, 5):
        prev_term = rng.randrange(1, term + 1) if index else 0
        terms = sorted(rng.randrange(max(1, prev_term), term + 1) for _ in range(rng.randrange(4)))
        entries = tuple(m.Entry(place, of, b"z") for place, of in enumerate(terms, index + 1))
        return m.AppendRequest(term, sender, index, prev_term, rng.randrange(9), entries, index)
    if kind == 6:
        numbers = [rng.randrange(9) for _ in range(4)]
        return m.AppendReply(term, sender, rng.random() < 0.5, *numbers)
    if kind == 7:
        return m.Heartbeat(term, sender, rng.randrange(9), rng.randrange(9))
    return rng.choice((m.HeartbeatReply(term, sender, index), m.TimeoutNow(term, sender)))


@pytest.mark.parametrize("seed", range(150))
def test_nonsense_is_refused_or_survived(seed: int) -> None:
    rng = random.Random(seed)
    core: Raft = node(1, 1, 2)
    if seed % 3 == 0:
        elected(core)
    now = 2.0
    for _ in range(60):
        now += rng.choice((0.0, 0.1, 0.6))
        try:
            core.on_message(m.decode(m.encode(nonsense(rng))), now)  # type: ignore[arg-type]
            if rng.random() < 0.05:
                snapshot = Snapshot(rng.randrange(12), rng.randrange(6))
                core.on_snapshot_received(rng.randrange(6), rng.choice("bc"), snapshot, now)
        except (ProtocolError, CorruptData):
            continue
        core.on_time(now)
        if core.role is RaftRole.LEADER:
            core.propose(b"x")
        settle(core)
