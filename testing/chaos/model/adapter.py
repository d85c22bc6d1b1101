"""The interface between a scenario and the cluster on which it runs: local processes or containers.

A scenario refers to nodes by name and role, and requests actions. An adapter performs them, or states in
advance why it cannot. If root rights, a loop device or Docker are required and missing, the scenario is
refused and never passes. The runner (runner.py) tracks which nodes are down; an adapter does not.

Rules for an adapter:

- Calls for one node come from one trio task at a time. Calls for different nodes come from several tasks.
- Every call ends: it returns when the action is done, or raises `ChaosFailed` with the observation.
- An action on a node in the wrong state (such as `kill` of a dead one) has no effect.
- Leaving its ``async with`` ends everything that it started, in any state, and removes everything that it
  created outside its directory (mounts, rules, networks).
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
"""All load generators, as the name of one end of a link."""

NODE_MODULE = "distributedlog.cli.main"
LAST_ERROR_BYTES_MAX = 500

Link = tuple[str, str]
"""(source, target), each the name of a node or `CLIENTS`: the direction from source to target."""


class ChaosFailed(Exception):
    """An action failed, or a node did not do what it must, so the run has no result."""


class Capability(Enum):
    """A capability of the adapter and the machine that a fault requires."""

    KILL = "kill"
    """SIGKILL and restart; always available."""
    PAUSE = "pause"
    """SIGSTOP and SIGCONT, or the freezer of a container."""
    NETWORK = "network"
    """Cut links between given nodes, in each direction separately."""
    SLOW_LINK = "slow-link"
    DATA = "data"
    """Change bytes in the files of a stopped node."""
    POWER = "power"
    """Lose unsynced data: the file system is shut down under the node."""
    DISK_FULL = "disk-full"
    SYNC_ERRORS = "sync-errors"
    """Writes that fail at the device, so that fsync reports an error."""
    CLOCK = "clock"
    """Move a node's wall clock while it runs. Its monotonic clock does not change."""
    SLOW_DISK = "slow-disk"
    """Delay each write of a node's file system."""
    FILES_LIMIT = "files-limit"
    """Limit the file descriptors of a running node."""
    STRANGERS = "strangers"
    """Connect to a node's own port from this machine without being one of its peers."""
    SETTINGS = "settings"
    """Start a node with other settings."""
    MEMORY = "memory"
    """Flip a bit in the memory of a metadata node."""
    PROXIES = "proxies"
    """Write and read proxies in addition to the cluster."""
    GATEWAYS = "gateways"
    CERTIFICATES = "certificates"
    """Nodes and clients with certificates that are created for the run."""


class NodeRole(Enum):
    """The role of a node."""

    METADATA = "metadata"
    BOOKIE = "bookie"
    WRITE_PROXY = "write-proxy"
    READ_PROXY = "read-proxy"
    GATEWAY = "gateway"


STORING = (NodeRole.METADATA, NodeRole.BOOKIE)
"""Roles with a disk and with data to lose. Other nodes store nothing, so all of them may be down."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster, running or not."""

    name: str
    """The name of a metadata node in the quorum, or the label of a bookie (`dlog bookies`)."""
    role: NodeRole
    rack: str = ""
    address: Address = ("127.0.0.1", 0)
    """The address for clients on this machine."""
    pages: Address | None = None
    """The address of its ``/metrics``, if requested."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a run, given to an adapter before it starts anything."""

    directory: Path
    """An existing, empty directory for data and logs of the nodes."""
    bookies: int
    metadata_nodes: int
    capabilities: frozenset[Capability]
    """Capabilities that the scenario uses.

    An adapter may prepare costly ones (mounts, a proxy) only if they are included.
    """
    disk_mb: int = 256
    """The size of a node's disk, if it has a separate file system."""
    http: bool = False
    """Whether each node has a port for HTTP pages."""
    node_module: str = NODE_MODULE
    """The module that a node runs (``python -m MODULE serve …``). A test injects bugs by another module."""
    certificates: Path | None = None
    """The directory with each node's certificate (`place_of`); None for nodes without certificates."""
    write_proxies: int = 0
    read_proxies: int = 0
    gateways: int = 0
    gateway_settings: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """A cluster that runs a scenario. It is created with `Needs`, and used as ``async with adapter:``.

    On entry it starts all nodes, and returns when they serve.
    """

    kind: str
    """``processes`` or ``containers``, for the report."""

    def refusal(self, capability: Capability) -> str | None:
        """Return what is missing for a capability on this machine, in one line; None if it is available.

        It is called before anything is started, and must not change the machine.
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
        """All nodes in a fixed order: metadata nodes, bookies, then nodes that store nothing."""
        ...

    @property
    def uri(self) -> str:
        """The cluster URI for clients on this machine (``distributedlog://…``)."""
        ...

    # --- machines -------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """Kill a node by SIGKILL, including a paused one; return when its process has ended."""
        ...

    async def stop(self, name: str) -> None:
        """Stop a node cleanly by SIGTERM; kill it after 15 s."""
        ...

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """Start a stopped node with its data.

        Returns:
            None when it serves. Otherwise, the reason why it did not start: it refused its data, or did not
                answer within ``timeout_s``. It is then down again. This is not an error: the scenario decides
                whether the node may refuse.
        """
        ...

    async def is_running(self, name: str) -> bool:
        """Return whether its process exists, including a paused one.

        A node may end itself, as after a failed sync.
        """
        ...

    async def pause(self, name: str) -> None:
        """Pause a node by SIGSTOP; return when it has stopped."""
        ...

    async def resume(self, name: str) -> None:
        """Resume a node by SIGCONT."""
        ...

    # --- network --------------------------------------------------------------------------------------

    async def cut(self, links: Sequence[Link]) -> None:
        """Cut links silently (without a reset). Calls are counted per link."""
        ...

    async def heal(self, links: Sequence[Link]) -> None:
        """Remove one cut per link. Buffered data may arrive late."""
        ...

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        """Delay data on links, and limit its rate (0 for no limit). A ``delay_s`` of 0 ends both."""
        ...

    # --- disks, clocks, limits ------------------------------------------------------------------------

    def data_directory(self, name: str) -> Path:
        """Return the directory of a stopped node's files, for reads and writes from this machine."""
        ...

    async def cut_power(self, names: Sequence[str]) -> None:
        """Cut the power of several nodes at once: unsynced data is lost, then their processes are killed.

        When the call returns, the file systems are in the state that a start after a power failure finds.
        """
        ...

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        """Leave a running node only this much free space, without changing its files."""
        ...

    async def free_disk(self, name: str) -> None:
        """Free the space again."""
        ...

    async def fail_writes(self, name: str) -> None:
        """Make new blocks of a node fail at the device, so that its syncs fail."""
        ...

    async def mend_writes(self, name: str) -> None:
        """Make the device writable again. The node is then down: it ended itself, or is killed here."""
        ...

    async def hold_disk(self, name: str, is_held: bool) -> None:
        """Block all writes to a running node's disk, or let them continue."""
        ...

    async def set_clock(self, name: str, offset_s: float) -> None:
        """Set the offset of a node's wall clock; 0 restores the right time."""
        ...

    async def limit_files(self, name: str, count: int | None) -> None:
        """Limit the descriptors of a running node; None restores the limit at its start."""
        ...

    # --- settings, memory -----------------------------------------------------------------------------

    async def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        """Set additional settings of a node from its next start on; an empty mapping removes them."""
        ...

    async def spoil_memory(self, name: str) -> None:
        """Make a metadata node store the next log name with a flipped bit."""
        ...

    async def is_memory_spoiled(self, name: str) -> bool:
        """Return whether the memory fault has occurred."""
        ...

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """Return the end of a node's stderr, for the report."""
        ...


def last_error(log: str) -> str:
    """Return the last error that a node logged, or else its last line, as the reason for a report."""
    last_message = ""
    for line in log.strip().splitlines():
        try:
            entry = json.loads(line)
            level, message = str(entry["level"]), str(entry["message"])
        except (ValueError, KeyError, TypeError):
            level, message = "error", line.strip()  # the end of a traceback
        if message and (level in ("error", "critical") or not last_message):
            last_message = message
    return last_message[-LAST_ERROR_BYTES_MAX:]
