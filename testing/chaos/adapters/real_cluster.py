"""The common part of clusters of processes and of containers: start, disks and clocks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from ..model.adapter import STORING, Capability, ChaosFailed, Needs, Node, NodeRole
from .loop_disks import LoopDisk, cut_power

OWN_DISK = frozenset(
    {Capability.POWER, Capability.DISK_FULL, Capability.SYNC_ERRORS, Capability.SLOW_DISK}
)


STARTED = (STORING, (NodeRole.WRITE_PROXY, NodeRole.READ_PROXY), (NodeRole.GATEWAY,))
"""Roles that are started together, group after group, because later ones need earlier ones."""


class RealCluster(ABC):
    """The part of an `Adapter` that does not depend on the kind of the nodes."""

    start_s: float
    """The run ends before its load if a node does not serve within this time."""

    def __init__(self, needs: Needs, store: Mapping[str, Any]) -> None:
        self._needs = needs
        self._store = dict(store)
        self._disks: dict[str, LoopDisk] = {}
        self._stack = AsyncExitStack()

    @abstractmethod
    async def _create(self, stack: AsyncExitStack) -> None:
        """Create everything that a start needs; ``stack`` removes it. Raises `ChaosFailed`."""

    @abstractmethod
    def _clock_file(self, name: str) -> Path:
        """Return the file with the offset of a node's wall clock (`faulty_node.py`)."""

    @property
    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """See `Adapter.nodes`."""

    @abstractmethod
    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """See `Adapter.start`."""

    @abstractmethod
    async def kill(self, name: str) -> None:
        """See `Adapter.kill`."""

    async def __aenter__(self) -> Self:
        """Create and start everything."""
        stack = self._stack
        await stack.__aenter__()
        try:
            await self._create(stack)
            refusals: dict[str, str] = {}

            async def start(name: str) -> None:
                refusal = await self.start(name, self.start_s)
                if refusal is not None:
                    refusals[name] = refusal

            for roles in STARTED:
                async with trio.open_nursery() as start_nursery:
                    for node in self.nodes:
                        if node.role in roles:
                            start_nursery.start_soon(start, node.name)
                if refusals:
                    raise ChaosFailed(
                        "; ".join(f"{name}: {refusal}" for name, refusal in refusals.items())
                    )
        except BaseException:
            await stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End and remove everything."""
        await self._stack.aclose()

    # --- disks ----------------------------------------------------------------------------------------

    async def _make_disk(self, name: str, base: Path) -> Path:
        """Create and mount a separate file system for a node, and return its data directory."""
        breakable = Capability.SYNC_ERRORS in self._needs.capabilities
        disk = LoopDisk(base, self._needs.disk_mb, breakable=breakable)
        self._disks[name] = disk
        self._stack.push_async_callback(disk.remove)
        await disk.make()
        return disk.mount_point / "data"

    async def cut_power(self, names: Sequence[str]) -> None:
        """See `Adapter.cut_power`."""
        disks = [self._disk(name) for name in names]
        cut_power(disks)
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.kill, name)
        for disk in disks:
            await disk.unmount()
            await disk.mount()

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        """See `Adapter.fill_disk`."""
        self._disk(name).fill(leave_bytes)

    async def free_disk(self, name: str) -> None:
        """See `Adapter.free_disk`."""
        self._disk(name).free()

    async def fail_writes(self, name: str) -> None:
        """See `Adapter.fail_writes`."""
        self._disk(name).break_device()

    async def mend_writes(self, name: str) -> None:
        """See `Adapter.mend_writes`."""
        await self.kill(name)
        await self._disk(name).mend_device()

    async def hold_disk(self, name: str, held: bool) -> None:
        """See `Adapter.hold_disk`."""
        self._disk(name).set_frozen(held)

    def _disk(self, name: str) -> LoopDisk:
        assert name in self._disks, (
            f"{name} has no separate disk: the scenario did not declare that it needs one"
        )
        return self._disks[name]

    # --- clocks ---------------------------------------------------------------------------------------

    async def set_clock(self, name: str, offset_s: float) -> None:
        """See `Adapter.set_clock`."""
        file = self._clock_file(name)
        new_file = file.with_suffix(".aside")
        new_file.write_text(f"{offset_s}")
        new_file.chmod(0o644)
        new_file.rename(file)
