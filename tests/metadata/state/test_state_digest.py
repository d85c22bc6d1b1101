"""States that should be the same, and what becomes of the one that is not (H105)."""

import random
from typing import Any

import pytest

from distributedlog.metadata.model.commands import (
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.metadata.raft.raft_messages import AppendReply, decode, encode
from distributedlog.metadata.replica.replica import RaftReplica
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.state.state_digest import (
    DIGESTS_KEPT,
    ENTRIES_PER_DIGEST,
    DigestComparison,
    StateDigestTracker,
)
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.protocol.frames import unpack
from tests.conditions import codes_of
from tests.examples import few
from tests.metadata.quorum import Quorum, fill, put, serving_quorum
from tests.metadata.test_metadata_quorum import caught_up

# --- the digest ---------------------------------------------------------------------------------------


def drawn(chance: random.Random, number: int) -> ReplicatedCommand:
    key = b"k%d" % chance.randrange(30)
    kind = chance.random()
    if kind < 0.1:
        return GrantLease("c", number, 0, 1000)
    if kind < 0.2:
        return ExpireLease(lease=chance.randrange(1, 5))
    if kind < 0.4:
        return Transact("c", number, 0, Transaction((), (Delete(key),)))
    lease = chance.choice((0, 0, 1, 2))
    return Transact("c", number, 0, Transaction((), (Put(key, chance.randbytes(5), lease),)))


@pytest.mark.parametrize("seed", range(5))
def test_a_digest_is_of_what_there_is_and_not_of_how_it_came(seed: int) -> None:
    """A node that was given a snapshot has the digest of those that applied every command."""
    chance, state = random.Random(seed), KeyValueState(requests_max=20)
    restored, seen = KeyValueState(), set()
    for number in range(1, 200):
        command = encode_command(drawn(chance, number))
        before = state.revision
        state.apply(number, command)
        if number == 100:
            builder = SnapshotBuilder(KeyValueState(requests_max=20))
            for chunk in snapshot_chunks(state):
                builder.add(chunk)
            restored = builder.finish()
        elif number > 100:
            restored.apply(number, command)
            assert restored.digest() == state.digest()
        if state.revision != before:
            assert state.digest() not in seen
        seen.add(state.digest())


def test_the_digest_of_a_state_is_the_one_that_other_versions_compare() -> None:
    """Whoever changes this makes every node of another version look wrong."""
    state = KeyValueState()
    assert state.digest() == EMPTY
    state.apply(1, encode_command(GrantLease("c", 1, 0, 1000)))
    state.apply(2, encode_command(Transact("c", 2, 1, Transaction((), (Put(b"k", b"v", 1),)))))
    assert state.digest() == OF_ONE_KEY


EMPTY = 1222879076497282845
OF_ONE_KEY = 4139885296299498737

# --- who is wrong -------------------------------------------------------------------------------------

VOTERS = ("a", "b", "c")


def led_by_a(digest: int) -> StateDigestTracker:
    digests = StateDigestTracker()
    digests.record(ENTRIES_PER_DIGEST, digest)
    return digests


def test_a_follower_that_differs_from_most_is_wrong() -> None:
    digests = led_by_a(7)

    assert (
        digests.compare_peer("b", ENTRIES_PER_DIGEST, 8, VOTERS) is DigestComparison.DIFFERENT
    )  # nobody else has said anything
    assert digests.compare_peer("c", ENTRIES_PER_DIGEST, 7, VOTERS) is DigestComparison.SAME
    assert digests.compare_peer("b", ENTRIES_PER_DIGEST, 8, VOTERS) is DigestComparison.PEER_WRONG
    assert digests.wrong_peers == {"b": ENTRIES_PER_DIGEST}
    assert digests.compare_peer("b", ENTRIES_PER_DIGEST, 7, VOTERS) is DigestComparison.SAME
    assert not digests.wrong_peers


def test_a_leader_that_differs_from_most_is_wrong() -> None:
    digests = led_by_a(7)

    assert digests.compare_peer("b", ENTRIES_PER_DIGEST, 8, VOTERS) is DigestComparison.DIFFERENT
    assert digests.compare_peer("c", ENTRIES_PER_DIGEST, 8, VOTERS) is DigestComparison.WRONG


def test_three_that_differ_are_told_and_nobody_is_wrong() -> None:
    digests = led_by_a(7)

    assert digests.compare_peer("b", ENTRIES_PER_DIGEST, 8, VOTERS) is DigestComparison.DIFFERENT
    assert digests.compare_peer("c", ENTRIES_PER_DIGEST, 9, VOTERS) is DigestComparison.DIFFERENT
    assert set(digests.wrong_peers) == {"b", "c"}


def test_what_is_not_kept_is_not_compared() -> None:
    digests = StateDigestTracker()
    for number in range(1, DIGESTS_KEPT + 3):
        digests.record(number * ENTRIES_PER_DIGEST, number)

    assert digests.compare_peer("b", ENTRIES_PER_DIGEST, 99, VOTERS) is DigestComparison.UNKNOWN
    assert not digests.differs(ENTRIES_PER_DIGEST, 99)
    digests.reset()
    assert digests.newest_digest == (0, 0)


def test_an_acknowledgement_carries_the_state_to_peers_of_both_versions() -> None:
    """In fields of its own. An older version reads and sends it in the hint, which is of no use there."""
    said = AppendReply(3, "b", True, 70, 0, 0, 9, ENTRIES_PER_DIGEST, (1 << 62) - 1)

    assert decode(encode(said)) == said
    older = encode(said, codes=False)
    assert unpack(older, "a reply")[4:] == [70, ENTRIES_PER_DIGEST, (1 << 62) - 1, 9]
    assert decode(older) == said


def test_a_refusal_carries_its_hint_to_peers_of_both_versions() -> None:
    refusal = AppendReply(3, "b", False, 70, 60, 2, 9)

    assert decode(encode(refusal)) == refusal
    older = encode(refusal, codes=False)
    assert unpack(older, "a reply")[4:] == [70, 60, 2, 9]
    assert decode(older) == refusal


# --- nodes --------------------------------------------------------------------------------------------


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> list[RaftReplica]:
    """All that are made."""
    made: list[RaftReplica] = []
    begin = RaftReplica.__init__

    def begin_and_note(self: RaftReplica, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(RaftReplica, "__init__", begin_and_note)
    return made


async def spoil(nodes: Quorum, name: str, replicas: list[RaftReplica]) -> None:
    """A bit of the node's memory turns."""
    node_id = (await nodes.rows())[name].node_id
    state = next(one for one in reversed(replicas) if one.raft.node_id == node_id).state
    state._release_stored(b"k00", state.stored_values[b"k00"])
    state._set_stored(b"k00", 0, state.stored_values[b"k00"][:-1] + b"!")


@pytest.mark.parametrize("leads", few([True, False], 1))
async def test_a_node_whose_state_is_wrong_says_so_and_does_not_lead(
    leads: bool, replicas: list[RaftReplica], autojump_clock: object
) -> None:
    async with serving_quorum() as (nodes, client):
        await fill(client)
        await caught_up(nodes)
        leader = await nodes.leader()
        wrong = leader if leads else nodes.other_than(leader)
        await spoil(nodes, wrong, replicas)
        for n in range(3 * ENTRIES_PER_DIGEST):
            await client.transact(put(b"more %d" % n, b""))
        await caught_up(nodes)

        rows = await nodes.rows()
        assert Code.METADATA_STATE_DIFFERS in codes_of(rows[wrong].conditions)
        told = rows[await nodes.leader()].conditions
        assert [one.text("peer") for one in told] == [wrong] or leads
        if not leads:  # nor when it is the only one that could
            others = [name for name in nodes.names if name != wrong]
            await nodes.kill(leader)
            assert await nodes.leader() in others
            await nodes.start(leader)
        item = await client.get(b"k00")
        assert item is not None
        assert item.value == b"v0"
        assert wrong != await nodes.leader()

        await nodes.kill(wrong)  # a start applies its own log again
        await nodes.start(wrong)
        await caught_up(
            nodes
        )  # else one append brings it all, and what it says of that comes with the next
        for n in range(2 * ENTRIES_PER_DIGEST):
            await client.transact(put(b"again %d" % n, b""))
        await caught_up(nodes)
        assert not any(row.conditions for row in (await nodes.rows()).values())
