"""What a member says, or who passes for one, breaks no rule of the core: an assert would end the node (H211).

Messages are drawn from a seed: of every kind, from members and learners, with terms and indexes at the edges
of what the receiver knows, between elections, proposals, snapshots and slow disks.
"""

import random
from collections.abc import Callable

import pytest

from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft import TERMS_AHEAD_MAX, Raft
from distributedlog.metadata.raft.raft_messages import (
    NUMBER_MAX,
    TERM_MAX,
    AppendReply,
    AppendRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
    decode,
    encode,
)
from distributedlog.metadata.raft.ready import Ready, Snapshot
from distributedlog.runtime.interfaces.errors import DistributedLogError, ProtocolError
from tests.examples import few

from .raft_cores import elected, node, settle

STEPS = 60


class Liar:
    """Draws what a peer of ``core`` may say."""

    def __init__(self, chance: random.Random, core: Raft) -> None:
        self._chance = chance
        self._core = core

    def index(self) -> int:
        core, last = self._core, self._core.log.last_index
        near = [0, 1, last, last + 1, max(0, last - 1), core.commit, core.log.base_index]
        return self._chance.choice([*near, self._chance.randrange(12), NUMBER_MAX])

    def term(self) -> int:
        now = self._core.term
        far = [now + 1, now + 2, now - 1, 1, now + TERMS_AHEAD_MAX, TERM_MAX]
        return max(1, min(TERM_MAX, self._chance.choice([now] * 6 + far)))

    def append(self, sender: str) -> AppendRequest:
        term, prev_index = self.term(), self.index()
        prev_term = self._core.log.term_at(prev_index) or self._chance.choice([1, self._core.term])
        prev_term = prev_term if prev_index else 0
        of, entries = max(1, prev_term), []
        for index in range(prev_index + 1, prev_index + 1 + self._chance.randrange(4)):
            of = min(term, of + self._chance.randrange(2))
            entries.append(Entry(index, of, self._chance.choice([b"", b"x", self.members()])))
        number = self._chance.choice([0, 1, 2, NUMBER_MAX])
        return AppendRequest(
            term, sender, prev_index, prev_term, self.index(), tuple(entries), number
        )

    def members(self) -> bytes:
        voters = self._chance.choice(["", "a", "b", "bc", "abc", "abce"])
        return Configuration.from_ids(voters, self._chance.choice(["", "d"])).encode()

    def message(self) -> Message:
        chance, term, index = self._chance, self.term(), self.index
        sender = chance.choice("bcbcbcd")
        yes, hint_term = chance.random() < 0.6, chance.choice([0, 1, term])
        number = chance.choice([0, 1, 2, NUMBER_MAX])
        kinds: list[Callable[[], Message]] = [
            lambda: PreVote(term, sender, index(), min(term, index())),
            lambda: PreVoteReply(term, sender, yes),
            lambda: Vote(term, sender, index(), min(term, index()), yes),
            lambda: VoteReply(term, sender, yes),
            lambda: self.append(sender),
            lambda: self.append(sender),
            lambda: AppendReply(term, sender, yes, index(), index(), hint_term, number),
            lambda: Heartbeat(term, sender, index(), index()),
            lambda: HeartbeatReply(term, sender, index()),
            lambda: TimeoutNow(term, sender),
        ]
        return chance.choice(kinds)()


def hear(core: Raft, message: Message, now: float) -> None:
    """As a link does: what cannot be meant ends the link."""
    try:
        decode(encode(message))
        core.on_message(message, now)
    except DistributedLogError:
        return


def live(seed: int) -> None:
    chance = random.Random(seed)
    terms = sorted(chance.randrange(1, 4) for _ in range(chance.randrange(5)))
    core = node(*terms, learners=chance.choice(["", "d"]))
    if chance.random() < 0.5:
        elected(core)
    liar, now, unsaved = Liar(chance, core), 1.0, list[Ready]()
    for _ in range(STEPS):
        now += chance.random() / 5
        drawn = chance.random()
        if drawn < 0.8:
            hear(core, liar.message(), now)
        elif drawn < 0.88:
            core.on_time(chance.choice([now, max(now, min(core.deadline, now + 5))]))
        elif drawn < 0.92:
            members = Configuration.from_ids("abc")
            snapshot = Snapshot(liar.index(), chance.choice([1, core.term]), members)
            core.on_snapshot_received(liar.term(), chance.choice("bc"), snapshot, now)
        elif drawn < 0.96:
            core.propose(b"command")
            core.read_index(chance.getrandbits(62))
        else:
            core.on_connection_closed(chance.choice("bc"), now)
        if core.has_ready:
            unsaved.append(core.ready())
            for _, message in (*unsaved[-1].send_now, *unsaved[-1].send_after_persist):
                encode(message)
        while unsaved and chance.random() < 0.6:
            ready = unsaved.pop(0)
            core.on_persisted(ready.ready_number, 0.0)
            if ready.snapshot is not None:
                core.on_applied(ready.snapshot.index)
            if ready.committed:
                core.on_applied(ready.committed[-1].index)


@pytest.mark.parametrize("first", few(range(0, 800, 100), 3))
def test_no_member_s_word_ends_a_node(first: int) -> None:
    for seed in range(first, first + 100):
        live(seed)


def test_a_refusal_of_what_was_never_sent_is_no_news() -> None:
    """Its hint would have the leader go on after the end of its own log."""
    core = node(1, 1)
    elected(core)
    with pytest.raises(ProtocolError):
        core.on_message(AppendReply(core.term, "b", False, 1 << 61, 1 << 60, 0, 99), 1.1)
    settle(core)


def test_an_entry_that_leaves_nobody_to_vote_is_no_message() -> None:
    """It would end each node at its next campaign, after every restart again."""
    nobody = Configuration.from_ids("", "abc").encode()
    with pytest.raises(ProtocolError):
        decode(encode(AppendRequest(2, "b", 0, 0, 0, (Entry(1, 2, nobody),))))


def test_a_node_whose_disk_names_no_voter_waits() -> None:
    core = node(1, voters="", learners="abc")
    core.on_time(100.0)
    assert settle(core) == []
