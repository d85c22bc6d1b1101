"""One node as a local process: its files, and how it is started, killed and stopped."""

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
from ..model.adapter import STORING, last_error
from .faulty_node import CLOCK, MEMORY

STOP_S = 15.0
LOG_BYTES = 4000
STORING_KINDS = tuple(role.value for role in STORING)
FREE_BYTES_MIN = 16 << 20
"""The limit below which a bookie on a small separate disk becomes read-only."""


@dataclass(slots=True)
class ProcessNode:
    """A node, its files, and its process if it runs."""

    directory: Path
    """The directory of its configuration, stderr and clock, and of its data or disk."""
    plan: PlannedNode
    private: Address
    """The address on which it listens. Other nodes use ``plan.address``."""
    data: Path = Path()
    http: Address | None = None
    """The address of its HTTP pages."""
    tls: Path | None = None
    """The directory of its certificate."""
    _config_tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The tables of its configuration file."""
    process: "trio.Process | None" = None

    @property
    def is_running(self) -> bool:
        """Whether it has a process, running or paused."""
        return self.process is not None and self.process.returncode is None

    def write_config(
        self, plan: ClusterPlan, options: Mapping[str, Any], disk_mb: int | None, uri: str = ""
    ) -> None:
        """Write its configuration.

        Args:
            plan: The nodes of the cluster.
            options: Options of a bookie's store or of a gateway.
            disk_mb: The size of a small separate disk, if it has one.
            uri: The cluster URI of a gateway.
        """
        kind = self.plan.kind
        tables = self._config_tables = {kind: self._node_settings(plan, uri)}
        if kind == "gateway":
            tables[kind] |= options
        if kind == "bookie":
            tables["store"] = store = dict(options)
            if disk_mb is not None:
                store.setdefault("free_bytes_min", FREE_BYTES_MIN)
                journal_bytes_max = (disk_mb << 20) // 16
                store["journal_file_bytes"] = min(
                    int(store["journal_file_bytes"]), journal_bytes_max
                )
        self.configure({})

    def _node_settings(self, plan: ClusterPlan, uri: str) -> dict[str, Any]:
        node, listen = self.plan, format_address(self.private)
        if node.kind == "gateway":
            return {"name": node.name, "uri": uri, "listen": listen}
        voters = plan.nodes_of_kind("metadata")
        settings: dict[str, Any] = {
            "name": node.name,
            "metadata": ",".join(
                f"{voter.name}={format_address(voter.address)}" for voter in voters
            ),
            "listen": listen,
            "advertise": format_address(node.address),
        }
        if node.kind in STORING_KINDS:
            settings["data"] = str(self.data)
        if self.http is not None:
            settings["http"] = format_address(self.http)
        if self.tls is not None:
            settings["tls"] = str(self.tls)
        return settings

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Add settings to its configuration, which apply from its next start on."""
        tables = {
            **self._config_tables,
            self.plan.kind: {**self._config_tables[self.plan.kind], **settings},
        }
        lines: list[str] = []
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(v)}" for key, v in table.items()), ""]
        (self.directory / "node.toml").write_text("\n".join(lines))

    async def start(self, module: str, timeout_s: float) -> str | None:
        """See `Adapter.start`; ``module`` is the Python module to run."""
        if self.is_running:
            return None
        command = [sys.executable, "-m", module, "serve", self.plan.kind]
        command += ["--config", str(self.directory / "node.toml"), "--end-with-stdin"]
        with (self.directory / "stderr").open("ab") as errors:
            self.process = process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **environment(),
                    CLOCK: str(self.directory / "clock"),
                    MEMORY: str(self.memory_fault_file),
                },
                process_group=0,
            )
        received = b""
        assert process.stdout is not None
        with trio.move_on_after(timeout_s) as start_timeout:
            while not received.endswith(b"\n"):
                chunk = await process.stdout.receive_some(65_536)
                if not chunk:
                    break
                received += chunk
        if received.endswith(b"\n"):
            return None
        if start_timeout.cancelled_caught:
            await self.kill()
            return f"did not serve within {timeout_s:g} s: {last_error(self.log_tail())}"
        exit_code = await process.wait()
        await self.kill()
        return f"ended with {exit_code}: {last_error(self.log_tail())}"

    async def kill(self) -> None:
        """Kill it by SIGKILL, and wait until it has ended."""
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
        """Stop it by SIGTERM, and by SIGKILL after `STOP_S`."""
        if self.process is not None and self.is_running:
            self.process.terminate()
            with trio.move_on_after(STOP_S):
                await self.process.wait()
        await self.kill()

    @property
    def memory_fault_file(self) -> Path:
        """The file that triggers the memory fault.

        It exists until the fault has occurred (`faulty_node.py`).
        """
        return self.directory / "memory"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a running node."""
        if self.process is not None and self.is_running:
            self.process.send_signal(number)

    def log_tail(self) -> str:
        """Return the end of its stderr."""
        try:
            with (self.directory / "stderr").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
