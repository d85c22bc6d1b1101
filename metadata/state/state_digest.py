"""Check that all nodes computed the same state from the same commands (pure; H105).

Raft makes the logs equal. Equal logs give equal states by the contract of `KeyValueState.apply`, but memory
errors, a damaged snapshot or two versions of the program may break it. Each node computes a digest of its
state after each `ENTRIES_PER_DIGEST`-th entry. A follower sends its newest digest with each
acknowledgement, and the leader compares it with its own:

- If both are equal, the states are equal.
- If they differ and most voters have the leader's digest, the follower is wrong. The leader notifies it,
  and it does not campaign in elections.
- If they differ and most voters have the follower's digest, the leader is wrong and steps down.
- Otherwise it is unknown which node is wrong, and the difference is reported.

A wrong node still replicates and votes, because its log is correct, but it serves no clients. A snapshot of
another node corrects its state. A restart may correct it too, because the node then applies its own log
again.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from ..raft.quorum import majority

ENTRIES_PER_DIGEST = 64
"""Number of entries between two digests."""
DIGESTS_KEPT = 256
"""Number of own digests that are kept for followers that have applied fewer or more entries."""


class DigestComparison(Enum):
    """The result of one comparison."""

    UNKNOWN = "no digest of that entry"
    SAME = "same"
    PEER_WRONG = "the peer is wrong"
    WRONG = "this node is wrong"
    DIFFERENT = "one of them is wrong"


class StateDigestTracker:
    """The digests of one node and, while it leads, those of its followers."""

    def __init__(self) -> None:
        self.newest_digest = 0, 0
        """Index and digest of the newest own digest. Index 0 if there is none."""
        self.wrong_peers: dict[str, int] = {}
        """The nodes with a different state, while this node leads.

        The value is the first entry with a known difference.
        """
        self._own_digests: dict[int, int] = {}
        self._peer_digests: dict[str, tuple[int, int]] = {}

    def record(self, index: int, digest: int) -> None:
        """Store the digest of the own state after entry ``index``."""
        self._own_digests[index] = digest
        self.newest_digest = index, digest
        if len(self._own_digests) > DIGESTS_KEPT:
            del self._own_digests[next(iter(self._own_digests))]

    def reset(self) -> None:
        """Drop the own digests, because the state was replaced by a snapshot."""
        self.newest_digest = 0, 0
        self._own_digests.clear()

    def on_role(self) -> None:
        """Drop the digests of followers after a change of the role. They were sent to the leader."""
        self._peer_digests.clear()
        self.wrong_peers.clear()

    def own_digest(self, index: int) -> int:
        """Return the own digest after entry ``index``, which is still kept."""
        return self._own_digests[index]

    def differs(self, index: int, digest: int) -> bool:
        """Whether the own state after entry ``index`` had a different digest. False if it is not kept."""
        own_digest = self._own_digests.get(index)
        return own_digest is not None and own_digest != digest

    def compare_peer(
        self, peer: str, index: int, digest: int, voters: Sequence[str]
    ) -> DigestComparison:
        """Compare the digest of a follower with the own digest after the same entry.

        Args:
            peer: The node ID of the follower.
            index: The entry after which the follower computed the digest.
            digest: The digest.
            voters: The node IDs of all voters.
        """
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
