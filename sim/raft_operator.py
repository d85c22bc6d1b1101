"""The operator of a Raft world: replaces wiped nodes, and lets others come and go.

It asks whoever believes to lead, also a leader of yesterday, and looks again and again, as an operator (or
`metadata/admission.py`) does. It never asks for members of whom no majority is left.
"""

from typing import TYPE_CHECKING

from ..metadata.configuration import Configuration, Member
from ..metadata.quorum import majority
from ..metadata.raft import Raft
from ..runtime.errors import InvalidRequest, NotReady
from .raft_node import RaftNode

if TYPE_CHECKING:
    from .raft_world import RaftWorld

LOOK_S = 0.15
VOTERS_MAX = 5


class RaftOperator:
    """``replacing``: the new node's id by that of the wiped one it replaces."""

    def __init__(self, world: "RaftWorld") -> None:
        self.world = world
        self.replacing: dict[str, str] = {}
        self._added = 0

    # --- what it does -----------------------------------------------------------------------------

    def look(self) -> None:
        """Do the next step of what is to be done, wherever somebody believes to lead."""
        world = self.world
        for node in list(world.nodes.values()):
            core = node.core
            if core is None or not world.leads(node) or node.paused_since >= 0:
                continue
            wanted = self._next(core)
            if wanted is not None:
                self._propose(node, core, wanted)
        world.at(world.now + LOOK_S, self.look)

    def replace(self, node: RaftNode) -> None:
        """A wiped node comes back empty, under an id of its own."""
        self._added += 1
        self.replacing[node.node_id] = f"{node.node_id.partition('.')[0]}.{self._added}"
        self.world.add_node(self.replacing[node.node_id])

    def change(self) -> None:
        """Let each that believes to lead take in a new node, or put one out."""
        world = self.world
        for node in [node for node in world.nodes.values() if world.leads(node)]:
            core = node.core
            if core is None or node.paused_since >= 0:
                continue
            if world.rng.random() < 0.5 and len(core.configuration.members) < VOTERS_MAX:
                self._added += 1
                world.add_node(f"x.{self._added}")
                new = Member(f"x.{self._added}", "x", "", False)
                self._propose(node, core, core.configuration.with_member(new))
            elif core.voters:
                out = world.rng.choice(core.voters)
                self._propose(node, core, core.configuration.without(out))

    def _next(self, core: Raft) -> Configuration | None:
        now = core.configuration
        for old in now.members:
            if not self.world.nodes[old.node_id].gone or old.node_id not in self.replacing:
                continue
            new = self._newest(old.node_id)
            if now.member(new) is None:
                return now.with_member(Member(new, new.partition(".")[0], "", False))
            if not old.votes or new in core.learners_caught_up(self.world.now):
                return now.without(old.node_id)
        for learner in core.learners_caught_up(self.world.now):
            return now.promoted(learner)
        return None

    def _newest(self, node_id: str) -> str:
        while node_id in self.replacing:
            node_id = self.replacing[node_id]
        return node_id

    def _propose(self, node: RaftNode, core: Raft, wanted: Configuration) -> None:
        if not self.has_majority(wanted):
            return
        try:
            core.change_members(wanted, self.world.now)
        except (NotReady, InvalidRequest):
            return
        self.world.turn(node)

    # --- what it may do ---------------------------------------------------------------------------

    def has_majority(self, configuration: Configuration, lost: str = "") -> bool:
        """Whether enough of these voters are left, ``lost`` taken away."""
        voters = configuration.voters
        left = [v for v in voters if v != lost and not self.world.nodes[v].gone]
        return bool(voters) and len(left) >= majority(len(voters))

    def may_lose(self, node_id: str) -> bool:
        """Whether a majority is left without this disk, of all members that may count from now on."""
        committed = self.world.oracles.committed_last
        for node in self.world.nodes.values():
            log = node.disk.log() if node.core is None else node.core.log
            if node.gone or log.last_index < committed:
                continue
            first = max(at for at, _ in log.configurations if at <= max(committed, log.base_index))
            for at, configuration in log.configurations:
                if at >= first and not self.has_majority(configuration, node_id):
                    return False
        return True

    def is_done(self, configuration: Configuration) -> bool:
        """Whether nobody waits to be let in or to be replaced."""
        return (
            not configuration.learners
            and self.has_majority(configuration)
            and not any(self.world.nodes[voter].gone for voter in configuration.voters)
        )
