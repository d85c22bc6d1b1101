"""One node as a local process: where its things are, how it is started, killed and stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ....cluster.declarations.config import format_address
from ....cluster.local.child_processes import environment
from ....cluster.local.cluster_plan import ClusterPlan, PlannedNode
from ....runtime.interfaces.host import Address
from ..model.adapter import STORING, last_words
from .faulty_node import CLOCK, MEMORY

STOP_S = 15.0
LOG_BYTES = 4000
STORING_KINDS = tuple(role.value for role in STORING)
FREE_BYTES_MIN = 16 << 20
"""Of a bookie on a small disk of its own: below it read-only."""


@dataclass(slots=True)
class ProcessNode:
    """One node: where its things are, and its process while it has one."""

    base: Path
    """For all that is its own: configuration, stderr, clock, and its data or its disk."""
    planned: PlannedNode
    private: Address
    """Where it listens; others know ``planned.address``."""
    data: Path = Path()
    http: Address | None = None
    """Where its pages are."""
    tls: Path | None = None
    """Where its certificate is."""
    _tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of its configuration."""
    process: "trio.Process | None" = None

    @property
    def runs(self) -> bool:
        """Has it a process, running or paused?"""
        return self.process is not None and self.process.returncode is None

    def write_config(
        self, plan: ClusterPlan, options: Mapping[str, Any], disk_mb: int | None, uri: str = ""
    ) -> None:
        """Write what it is started with; ``disk_mb``: of a small disk of its own.

        ``options``: of a bookie's store, or a gateway's; ``uri``: what a gateway's clients reach by it.
        """
        kind = self.planned.kind
        tables = self._tables = {kind: self._flags(plan, uri)}
        if kind == "gateway":
            tables[kind] |= options
        if kind == "bookie":
            tables["store"] = store = dict(options)
            if disk_mb is not None:
                store.setdefault("free_bytes_min", FREE_BYTES_MIN)
                most = (disk_mb << 20) // 16
                store["journal_file_bytes"] = min(int(store["journal_file_bytes"]), most)
        self.configure({})

    def _flags(self, plan: ClusterPlan, uri: str) -> dict[str, Any]:
        node, listen = self.planned, format_address(self.private)
        if node.kind == "gateway":
            return {"name": node.name, "uri": uri, "listen": listen}
        voters = plan.of("metadata")
        found: dict[str, Any] = {
            "name": node.name,
            "metadata": ",".join(f"{one.name}={format_address(one.address)}" for one in voters),
            "listen": listen,
            "advertise": format_address(node.address),
        }
        if node.kind in STORING_KINDS:
            found["data"] = str(self.data)
        if self.http is not None:
            found["http"] = format_address(self.http)
        if self.tls is not None:
            found["tls"] = str(self.tls)
        return found

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Have it started with these beside its own, from now on."""
        tables = {
            **self._tables,
            self.planned.kind: {**self._tables[self.planned.kind], **settings},
        }
        lines: list[str] = []
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(v)}" for key, v in table.items()), ""]
        (self.base / "node.toml").write_text("\n".join(lines))

    async def start(self, module: str, timeout_s: float) -> str | None:
        """See `Adapter.start`; ``module`` is what it runs as."""
        if self.runs:
            return None
        command = [sys.executable, "-m", module, "serve", self.planned.kind]
        command += ["--config", str(self.base / "node.toml"), "--end-with-stdin"]
        with (self.base / "stderr").open("ab") as errors:
            self.process = process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **environment(),
                    CLOCK: str(self.base / "clock"),
                    MEMORY: str(self.memory),
                },
                process_group=0,
            )
        received = b""
        assert process.stdout is not None
        with trio.move_on_after(timeout_s) as waiting:
            while not received.endswith(b"\n"):
                more = await process.stdout.receive_some(65_536)
                if not more:
                    break
                received += more
        if received.endswith(b"\n"):
            return None
        if waiting.cancelled_caught:
            await self.kill()
            return f"did not serve within {timeout_s:g} s: {last_words(self.log())}"
        code = await process.wait()
        await self.kill()
        return f"ended with {code}: {last_words(self.log())}"

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        process = self.process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()

    async def stop(self) -> None:
        """SIGTERM; SIGKILL when it takes longer than `STOP_S`."""
        if self.process is not None and self.runs:
            self.process.terminate()
            with trio.move_on_after(STOP_S):
                await self.process.wait()
        await self.kill()

    @property
    def memory(self) -> Path:
        """What its memory is spoilt by: there until that has happened (`faulty_node.py`)."""
        return self.base / "memory"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a node that runs."""
        if self.process is not None and self.runs:
            self.process.send_signal(number)

    def log(self) -> str:
        """The end of its stderr."""
        try:
            with (self.base / "stderr").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
