"""Whether all nodes have made the same state of the same commands (pure; H105).

Raft makes the logs equal; that equal logs make equal states is a promise of `KeyValueState.apply` that
memory, a snapshot's bytes or two versions of the program may break. Each node takes a digest of its state
after each `ENTRIES_PER_DIGEST`-th entry. A follower says its newest with each acknowledgement, the
leader compares it with its own:

    same as the leader's                        all is well
    other, and most voters have the leader's    that follower is wrong: it is told, and stands for no election
    other, and most voters have that one        the leader is wrong: it leads no longer
    neither                                     nobody can say who is wrong: it is told

Who is wrong still replicates and votes, for its log is right; but it serves nobody. A snapshot of another
node makes its state right, and so may a start anew, which applies its own log again.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from ..raft.quorum import majority

ENTRIES_PER_DIGEST = 64
"""Entries between two digests."""
DIGESTS_KEPT = 256
"""Own digests that are kept for those who are behind, or ahead of us in applying."""


class DigestComparison(Enum):
    """Of one comparison."""

    UNKNOWN = "no digest of that entry"
    SAME = "same"
    PEER_WRONG = "the peer is wrong"
    WRONG = "this node is wrong"
    DIFFERENT = "one of them is wrong"


class StateDigestTracker:
    """One node's digests, and while it leads those of the others."""

    def __init__(self) -> None:
        self.newest_digest = 0, 0
        """The newest own one: index and digest; index 0: none yet."""
        self.wrong_peers: dict[str, int] = {}
        """While this node leads: whose state is another than ours, by node id; since which entry we know."""
        self._own_digests: dict[int, int] = {}
        self._peer_digests: dict[str, tuple[int, int]] = {}

    def record(self, index: int, digest: int) -> None:
        """Our state after entry ``index`` has this digest."""
        self._own_digests[index] = digest
        self.newest_digest = index, digest
        if len(self._own_digests) > DIGESTS_KEPT:
            del self._own_digests[next(iter(self._own_digests))]

    def reset(self) -> None:
        """The state has come from elsewhere."""
        self.newest_digest = 0, 0
        self._own_digests.clear()

    def on_role(self) -> None:
        """What others said was said to the leader."""
        self._peer_digests.clear()
        self.wrong_peers.clear()

    def own_digest(self, index: int) -> int:
        """Our digest after that entry, which is kept."""
        return self._own_digests[index]

    def differs(self, index: int, digest: int) -> bool:
        """Whether our state after that entry had another digest, as far as we know."""
        own_digest = self._own_digests.get(index)
        return own_digest is not None and own_digest != digest

    def compare_peer(
        self, peer: str, index: int, digest: int, voters: Sequence[str]
    ) -> DigestComparison:
        """A follower says what its state is; ``voters``: node ids, of all that count."""
        own_digest = self._own_digests.get(index)
        if own_digest is None:
            return DigestComparison.UNKNOWN
        self._peer_digests[peer] = index, digest
        if digest == own_digest:
            self.wrong_peers.pop(peer, None)
            return DigestComparison.SAME
        self.wrong_peers.setdefault(peer, index)
        voter_digests = [
            self._peer_digests[voter] for voter in voters if voter in self._peer_digests
        ]
        needed = majority(len(voters))
        if 1 + self._count_equal(voter_digests) >= needed:
            return DigestComparison.PEER_WRONG
        if voter_digests.count((index, digest)) >= needed:
            return DigestComparison.WRONG
        return DigestComparison.DIFFERENT

    def _count_equal(self, digests: Iterable[tuple[int, int]]) -> int:
        return sum(self._own_digests.get(index) == digest for index, digest in digests)
