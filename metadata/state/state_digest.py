"""Whether all nodes have made the same state of the same commands (pure; H105).

Raft makes the logs equal; that equal logs make equal states is a promise of `KeyValueState.apply` that
memory, a snapshot's bytes or two versions of the program may break. Each node takes a digest of its state
after each `EVERY`-th entry. A follower says its newest with each acknowledgement, the
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

EVERY = 64
"""Entries between two digests."""
KEPT = 256
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
        self.newest = 0, 0
        """The newest own one: index and digest; index 0: none yet."""
        self.wrong: dict[str, int] = {}
        """While this node leads: whose state is another than ours, by node id; since which entry we know."""
        self._own: dict[int, int] = {}
        self._said: dict[str, tuple[int, int]] = {}

    def note(self, index: int, digest: int) -> None:
        """Our state after entry ``index`` has this digest."""
        self._own[index] = digest
        self.newest = index, digest
        if len(self._own) > KEPT:
            del self._own[next(iter(self._own))]

    def begin_anew(self) -> None:
        """The state has come from elsewhere."""
        self.newest = 0, 0
        self._own.clear()

    def on_role(self) -> None:
        """What others said was said to the leader."""
        self._said.clear()
        self.wrong.clear()

    def own(self, index: int) -> int:
        """Our digest after that entry, which is kept."""
        return self._own[index]

    def is_other(self, index: int, digest: int) -> bool:
        """Whether our state after that entry had another digest, as far as we know."""
        own = self._own.get(index)
        return own is not None and own != digest

    def on_said(
        self, peer: str, index: int, digest: int, voters: Sequence[str]
    ) -> DigestComparison:
        """A follower says what its state is; ``voters``: node ids, of all that count."""
        own = self._own.get(index)
        if own is None:
            return DigestComparison.UNKNOWN
        self._said[peer] = index, digest
        if digest == own:
            self.wrong.pop(peer, None)
            return DigestComparison.SAME
        self.wrong.setdefault(peer, index)
        others = [self._said[voter] for voter in voters if voter in self._said]
        needed = majority(len(voters))
        if 1 + self._same(others) >= needed:
            return DigestComparison.PEER_WRONG
        if others.count((index, digest)) >= needed:
            return DigestComparison.WRONG
        return DigestComparison.DIFFERENT

    def _same(self, said: Iterable[tuple[int, int]]) -> int:
        return sum(self._own.get(index) == digest for index, digest in said)
