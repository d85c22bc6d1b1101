"""The border between a scenario and where it is played: local processes, or containers.

A scenario knows nodes by name and role, and asks for deeds. An adapter carries them out, or says beforehand,
in words, why it cannot: what needs root, a loop device or Docker is refused where that is missing, and
never passed. The runner (runner.py) keeps the book of who is down; an adapter keeps none.

Rules for an adapter:

- Calls come from one trio task at a time for one node, and from several tasks for different ones.
- Every call has an end: it returns when the deed is done, or raises `ChaosFailed` with what was seen.
- A deed on a node that is not in the state it needs (`kill` of a dead one) does nothing.
- Leaving its ``async with`` ends everything that it started, whatever happened before, and removes what
  it made outside its directory (mounts, rules, networks).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ....runtime.interfaces.host import Address

CLIENTS = "clients"
"""In a link: the load generators, all of them."""

NODE_MODULE = "distributedlog.cli.main"
LAST_WORDS_BYTES_MAX = 500

Link = tuple[str, str]
"""(source, target), each the name of a node or `CLIENTS`: what the source sends to the target."""


class ChaosFailed(Exception):
    """A deed could not be carried out, or a node did not do what it must: the run says nothing."""


class Capability(Enum):
    """What a fault needs of the place it is played in."""

    KILL = "kill"
    """SIGKILL, and start again; always there."""
    PAUSE = "pause"
    """SIGSTOP and SIGCONT, or the freezer of a container."""
    NETWORK = "network"
    """Cut links between chosen nodes, each direction for itself."""
    SLOW_LINK = "slow-link"
    DATA = "data"
    """Change bytes in the files of a node that is down."""
    POWER = "power"
    """Lose what was not synced: the file system is shut down under the node."""
    DISK_FULL = "disk-full"
    SYNC_ERRORS = "sync-errors"
    """Writes that fail when they reach the device, so that fsync tells."""
    CLOCK = "clock"
    """Move a node's wall clock while it runs; its monotonic clock stays."""
    SLOW_DISK = "slow-disk"
    """Hold up each write of a node's file system."""
    FILES_LIMIT = "files-limit"
    """Bound a running node's file descriptors."""
    STRANGERS = "strangers"
    """Reach a node's own port from this machine, as somebody who is none of its peers."""
    SETTINGS = "settings"
    """Start a node with other settings than its own."""
    MEMORY = "memory"
    """Change a bit of what a metadata node keeps in memory."""
    PROXIES = "proxies"
    """Write and read proxies beside the cluster."""
    GATEWAYS = "gateways"
    CERTIFICATES = "certificates"
    """Nodes and clients with certificates of the run's own."""


class NodeRole(Enum):
    """What a node is."""

    METADATA = "metadata"
    BOOKIE = "bookie"
    WRITE_PROXY = "write-proxy"
    READ_PROXY = "read-proxy"
    GATEWAY = "gateway"


STORING = (NodeRole.METADATA, NodeRole.BOOKIE)
"""They have a disk, and something to lose; the others keep nothing, so any of them may be away."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster, running or not."""

    name: str
    """Of a metadata node the name that it has in the quorum; of a bookie its label (`dlog bookies`)."""
    role: NodeRole
    rack: str = ""
    address: Address = ("127.0.0.1", 0)
    """Where clients of this machine find it."""
    pages: Address | None = None
    """Where it answers ``/metrics``, when it was asked to."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an adapter is told before it starts anything."""

    directory: Path
    """For all that it keeps: data, logs of nodes. Exists, empty."""
    bookies: int
    metadata_nodes: int
    capabilities: frozenset[Capability]
    """What the scenario will use. An adapter may set up the costly ones (mounts, a proxy) only then."""
    disk_mb: int = 256
    """Of a node's disk, where it gets a file system of its own."""
    http: bool = False
    """Give each node a port for its pages."""
    node_module: str = NODE_MODULE
    """The module that a node runs as (``python -m MODULE serve …``): a test plants bugs by another."""
    certificates: Path | None = None
    """Where each node has a directory of its certificate (`walk.place_of`); None: they are plain."""
    write_proxies: int = 0
    read_proxies: int = 0
    gateways: int = 0
    gateway_settings: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """A cluster that a scenario is played on. Made with `Needs`; used as ``async with adapter:``.

    Entering it starts every node and returns when all of them serve.
    """

    kind: str
    """``processes`` or ``containers``, as the report says it."""

    def refusal(self, capability: Capability) -> str | None:
        """Why this fault is not available here, in one line that names what is missing; None if it is.

        Asked before anything is started; must not change the machine.
        """
        ...

    async def __aenter__(self) -> Self:
        """Start everything. Raises `ChaosFailed`."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End and remove everything."""
        ...

    @property
    def nodes(self) -> Sequence[Node]:
        """Every node, in a fixed order: metadata nodes first, then bookies, then those that keep nothing."""
        ...

    @property
    def uri(self) -> str:
        """Where a client on this machine finds the cluster (``distributedlog://…``)."""
        ...

    # --- machines -------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """SIGKILL, also of a paused node; returns when its process is gone."""
        ...

    async def stop(self, name: str) -> None:
        """The clean end (SIGTERM); killed when it takes longer than 15 s."""
        ...

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """Start a node that is down, with the data it had; None when it serves.

        A text is what it said when it would not: refused its data, or silent for ``timeout_s``; then it
        is down again. That is an answer, not an error: whether it may refuse is for the scenario to say.
        """
        ...

    async def is_running(self, name: str) -> bool:
        """Is its process there (also paused)? A node may have ended by itself, as after a failed sync."""
        ...

    async def pause(self, name: str) -> None:
        """SIGSTOP; returns when it stands still."""
        ...

    async def resume(self, name: str) -> None:
        """SIGCONT."""
        ...

    # --- network --------------------------------------------------------------------------------------

    async def cut(self, links: Sequence[Link]) -> None:
        """From now on nothing passes these links, silently (no reset); calls add up."""
        ...

    async def heal(self, links: Sequence[Link]) -> None:
        """These links pass again; what waits in buffers may arrive late."""
        ...

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        """Delay what passes these links, and bound its rate (0: no bound); ``delay_s`` 0 ends both."""
        ...

    # --- disks, clocks, limits ------------------------------------------------------------------------

    def data_directory(self, name: str) -> Path:
        """Where the files of a node that is down can be read and written from this machine."""
        ...

    async def cut_power(self, names: Sequence[str]) -> None:
        """Of all these nodes at once: what was not synced is lost, then their processes are killed.

        The file systems are there again, as a start after a power cut would find them, when this returns.
        """
        ...

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        """Leave a running node only so much free space; nothing of what it holds is touched."""
        ...

    async def free_disk(self, name: str) -> None:
        """Give the space back."""
        ...

    async def fail_writes(self, name: str) -> None:
        """From now on new blocks do not reach the device of this node: its syncs fail."""
        ...

    async def mend_writes(self, name: str) -> None:
        """The device takes writes again; the node is down (it ended by itself, or is killed here)."""
        ...

    async def hold_disk(self, name: str, is_held: bool) -> None:
        """While it is held no write to a running node's disk ends; then all go on."""
        ...

    async def set_clock(self, name: str, offset_s: float) -> None:
        """The node's wall clock is off by so much from now on; 0 is right again."""
        ...

    async def limit_files(self, name: str, count: int | None) -> None:
        """A running node may have at most ``count`` descriptors from now on; None: as at its start."""
        ...

    # --- settings, memory -----------------------------------------------------------------------------

    async def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        """From its next start on a node has these settings beside its own; none: its own alone."""
        ...

    async def spoil_memory(self, name: str) -> None:
        """The next name of a log that this metadata node learns it keeps with a bit flipped."""
        ...

    async def is_memory_spoiled(self, name: str) -> bool:
        """Has that happened?"""
        ...

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """The last words of a node, for the report: the end of its stderr."""
        ...


def last_words(log: str) -> str:
    """The last error that a node logged, else its last line: why it ended, for a report."""
    last_message = ""
    for line in log.strip().splitlines():
        try:
            entry = json.loads(line)
            level, message = str(entry["level"]), str(entry["message"])
        except (ValueError, KeyError, TypeError):
            level, message = "error", line.strip()  # the end of a traceback
        if message and (level in ("error", "critical") or not last_message):
            last_message = message
    return last_message[-LAST_WORDS_BYTES_MAX:]
