"""One node of a Raft world: a disk that survives crashes, a core that does not, and its pending work."""

from collections.abc import Callable

from ....metadata.model.configuration import Configuration
from ....metadata.raft.raft import Raft
from ....metadata.raft.ready import Ready
from .raft_disk import RaftDisk

NEVER = 1 << 60


class RaftNode:
    """One simulated node: a disk that survives crashes, and a core that does not."""

    __slots__ = (
        "chain",
        "core",
        "crash_in",
        "disk",
        "gone",
        "inbox",
        "life",
        "node_id",
        "paused_since",
        "queue",
        "restored",
        "seen_commit",
        "seen_term",
        "stalled_until",
        "syncing",
        "timer_at",
    )

    def __init__(self, node_id: str, configuration: Configuration) -> None:
        self.node_id = node_id
        self.disk = RaftDisk(configuration)
        self.core: Raft | None = None
        self.life = 0
        self.gone = False
        self.crash_in = NEVER
        self.paused_since = -1.0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.queue: list[Ready] = []
        self.stalled_until = 0.0
        self.syncing = 0  # how many Readys of ``queue`` the running sync covers
        self.timer_at = float("inf")
        self.chain = 0
        self.restored = 0  # the state machine's index
        self.seen_commit = 0
        self.seen_term = 0

    def __str__(self) -> str:
        """Return the node's role and progress, for the message of a failure."""
        core = self.core
        if core is None:
            return f"{self.node_id} down"
        return (
            f"{self.node_id} {core.role.value} term {core.term} commit {core.commit}"
            f" last {core.log.last_index} applied {self.restored}"
        )


class Crashed(Exception):
    """The node lost power in the middle of a step."""
