"""One node as a local process: where its things are, how it is started, killed and stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ..cluster.config import format_address
from ..cluster.plan import Plan, PlannedNode
from ..cluster.processes import environment
from ..runtime.host import Address
from .last_words import last_words
from .node import CLOCK

STOP_S = 15.0
LOG_BYTES = 4000
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
    data: Path
    http: Address | None = None
    """Where its pages are."""
    tls: Path | None = None
    """The directory of its certificate."""
    process: "trio.Process | None" = None

    @property
    def runs(self) -> bool:
        """Has it a process, running or paused?"""
        return self.process is not None and self.process.returncode is None

    def write_config(self, plan: Plan, store: Mapping[str, Any], disk_mb: int | None) -> None:
        """Write what it is started with; ``disk_mb``: of a small disk of its own."""
        node = self.planned
        voters = plan.of("metadata")
        quorum = ",".join(f"{one.name}={format_address(one.address)}" for one in voters)
        lines = [
            f"[{node.kind}]",
            f"name = {json.dumps(node.name)}",
            f"metadata = {json.dumps(quorum)}",
            f"data = {json.dumps(str(self.data))}",
            f"listen = {json.dumps(format_address(self.private))}",
            f"advertise = {json.dumps(format_address(node.address))}",
        ]
        if self.http is not None:
            lines.append(f"http = {json.dumps(format_address(self.http))}")
        if self.tls is not None:
            lines.append(f"tls = {json.dumps(str(self.tls))}")
        if node.kind == "bookie":
            options = dict(store)
            if disk_mb is not None:
                options.setdefault("free_bytes_min", FREE_BYTES_MIN)
                most = (disk_mb << 20) // 16
                options["journal_file_bytes"] = min(int(options["journal_file_bytes"]), most)
            lines += ["", "[store]", *(f"{key} = {json.dumps(v)}" for key, v in options.items())]
        (self.base / "node.toml").write_text("\n".join(lines) + "\n")

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
                env={**environment(), CLOCK: str(self.base / "clock")},
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
