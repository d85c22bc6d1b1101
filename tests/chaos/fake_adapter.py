"""A cluster that is only a book of states: what an adapter is asked for, and whether it made sense."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from distributedlog.testing.chaos.model.adapter import STORING, Capability, Link, Node, NodeRole


class FakeAdapter:
    """Nodes that start at once. ``deeds`` tells what was done, with trio's time."""

    kind = "fake"

    def __init__(
        self,
        bookies: int = 4,
        metadata_nodes: int = 3,
        data: Path = Path(),
        write_proxies: int = 0,
    ) -> None:
        names = [(f"metadata{n}", NodeRole.METADATA) for n in range(1, metadata_nodes + 1)]
        names += [(f"bookie{n}", NodeRole.BOOKIE) for n in range(1, bookies + 1)]
        names += [(f"write-proxy{n}", NodeRole.WRITE_PROXY) for n in range(1, write_proxies + 1)]
        self._nodes = [Node(name, role) for name, role in names]
        self.state = {name: "up" for name, _ in names}
        self.refusing: dict[str, str] = {}
        """Nodes that will not start, and what they say."""
        self.cuts: dict[Link, int] = {}
        self.held: set[str] = set()
        """Nodes whose disk takes no writes."""
        self.deeds: list[tuple[float, str, str]] = []
        self.most_down: dict[NodeRole, int] = dict.fromkeys(STORING, 0)
        self.settings: dict[str, Mapping[str, Any]] = {}
        """What nodes were last started with, beside their own."""
        self.spoilt: set[str] = set()
        self._data = data

    def refusal(self, capability: Capability) -> str | None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    @property
    def uri(self) -> str:
        return "distributedlog://127.0.0.1:1/x"

    def _do(self, deed: str, name: str, state: str) -> None:
        self.deeds.append((trio.current_time(), deed, name))
        self.state[name] = state
        for role in NodeRole:
            down = sum(self.state[n.name] != "up" for n in self._nodes if n.role is role)
            if down or role in STORING:
                self.most_down[role] = max(self.most_down.get(role, 0), down)

    async def kill(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        self._do("kill", name, "down")

    async def stop(self, name: str) -> None:
        await trio.sleep(0.1)
        self._do("stop", name, "down")

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        await trio.sleep(0.3)
        if name in self.refusing:
            return self.refusing[name]
        self._do("start", name, "up")
        return None

    async def is_running(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        return self.state[name] != "down"

    async def pause(self, name: str) -> None:
        assert self.state[name] == "up", f"{name} is paused while it is {self.state[name]}"
        self._do("pause", name, "paused")

    async def resume(self, name: str) -> None:
        if self.state[name] == "paused":
            self._do("resume", name, "up")

    async def cut(self, links: Sequence[Link]) -> None:
        for link in links:
            self.cuts[link] = self.cuts.get(link, 0) + 1

    async def heal(self, links: Sequence[Link]) -> None:
        for link in links:
            self.cuts[link] -= 1

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        self.deeds.append((trio.current_time(), f"slow {delay_s:g}", str(len(links))))

    def data_directory(self, name: str) -> Path:
        assert self.state[name] == "down", f"the files of {name} are touched while it runs"
        return self._data / name

    async def cut_power(self, names: Sequence[str]) -> None:
        for name in names:
            self._do("power", name, "down")

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        self._do("fill", name, self.state[name])

    async def free_disk(self, name: str) -> None:
        self._do("free", name, self.state[name])

    async def fail_writes(self, name: str) -> None:
        self._do("fail", name, "down")  # as a node whose sync fails

    async def mend_writes(self, name: str) -> None:
        self._do("mend", name, "down")

    async def hold_disk(self, name: str, is_held: bool) -> None:
        self._do("hold" if is_held else "let go", name, self.state[name])
        (self.held.add if is_held else self.held.discard)(name)

    async def set_clock(self, name: str, offset_s: float) -> None:
        self._do("clock" if offset_s else "clock right", name, self.state[name])

    async def limit_files(self, name: str, count: int | None) -> None:
        self._do(f"limit {count}", name, self.state[name])

    async def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        assert self.state[name] == "down", f"{name} reads its settings when it starts"
        self.settings[name] = settings

    async def spoil_memory(self, name: str) -> None:
        self._do("spoil", name, self.state[name])
        self.spoilt.add(name)

    async def is_memory_spoiled(self, name: str) -> bool:
        return name in self.spoilt

    def log_of(self, name: str) -> str:
        return '{"level": "error", "message": "an assert of ours"}\n'
