"""Mistakes of a driver and of an operator, planted into the Raft world; see `raft_planted.py`."""

from collections.abc import Iterator
from dataclasses import replace

from ..metadata.raft import Raft
from ..metadata.ready import HardState, Ready
from .raft_node import RaftNode
from .raft_world import RaftWorld


class ForgetsVote(RaftWorld):
    """The term is durable, the vote in it is not."""

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """Write the hard state without its vote."""
        if ready.hard_state is not None:
            ready = replace(ready, hard_state=HardState(ready.hard_state.term, ""))
        return super().steps_of(node, ready)


class ForgetsTerm(RaftWorld):
    """A new term without a vote is not made durable."""

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """Leave a hard state without a vote out."""
        if ready.hard_state is not None and not ready.hard_state.vote:
            ready = replace(ready, hard_state=None)
        return super().steps_of(node, ready)


class SendsBeforeSync(RaftWorld):
    """The driver sends everything at once and syncs later."""

    def carry_out(self, node: RaftNode, core: Raft, ready: Ready) -> None:
        """Send first."""
        for to, message in ready.send_after_persist:
            self.network.post(node, to, message)
        super().carry_out(node, core, replace(ready, send_after_persist=()))


class EmptiedDiskVotes(RaftWorld):
    """A node whose directory was emptied comes back under its name as a full voter (H5)."""

    def wipe(self, node: RaftNode) -> None:
        """Empty the disk; the crash's restart finds it so."""
        self.crash(node)
        fresh = type(node.disk)()
        node.disk.hard_state = fresh.hard_state
        node.disk.entries = fresh.entries
        node.disk.base_index = node.disk.base_term = 0
        node.disk.configuration = self.founding
        node.disk.snapshot = fresh.snapshot
        self.faults.kinds = tuple(kind for kind in self.faults.kinds if kind != "wipe") or ("cut",)
