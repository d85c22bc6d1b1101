"""This project: three metadata nodes and three bookies as processes, 3/3/2, and `dlog bench write`."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...cluster.processes import environment
from .peer import run_server, until


class Ours:
    """The defaults: nothing to set."""

    name = "DistributedLog-py"
    settings = "defaults: 3/3/2, fdatasync at two bookies before the acknowledgement"

    def __init__(self) -> None:
        self._uri = ""

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Start a cluster in processes."""
        ready = directory / "ready.json"
        data = ("--data", str(directory / "cluster"), "--ready-file", str(ready))
        command = [*_dlog(), "local", "--processes", *data]
        started = [run_server(servers, command, directory / "ours.log")]
        until(ready.exists, "dlog local", started)
        self._uri = json.loads(ready.read_text())["uri"]

    def version(self) -> str:
        """Of the package."""
        return "this checkout"

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """`write`, one after the other."""
        found: dict[str, float] = self._write(size, seconds, "--outstanding", "1")["latency_ms"]
        return found

    def throughput(self, size: int, seconds: float) -> float:
        """`submit`, a record a call."""
        return float(self._write(size, seconds, "--call", "submit")["records_per_s"])

    def _write(self, size: int, seconds: float, *flags: str) -> dict[str, Any]:
        asked = ("--size", str(size), "--seconds", str(seconds), "--uri", self._uri, "--json")
        done = subprocess.run(
            [*_dlog(), "bench", "write", *asked, *flags],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def _dlog() -> list[str]:
    return [sys.executable, "-m", "distributedlog.cli.main"]
