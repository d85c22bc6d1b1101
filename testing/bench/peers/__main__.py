"""Compare other systems with this one in alternating runs on one machine: docs/internals/peer-benchmarks.md.

    python -m distributedlog.testing.bench.peers --seconds 10 --turns 3

In each turn, each system has new servers and runs alone. A system without installed servers or client, or
that does not start, is omitted and named.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ....cluster.local.child_processes import environment
from ..measure.bench_plan import parser_of, run
from ..measure.hardware_baseline import measure
from ..measure.interpreter_info import this_build
from .nats import Nats
from .peer import Peer, PeerMissing, run_server, until
from .postgresql import Postgresql
from .redis import Redis


class Ours:
    """This project: three metadata nodes and three bookies as processes, and `dlog bench write`.

    The defaults, 3/3/2, need no settings.
    """

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
        """Return a name for this version."""
        return "this checkout"

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Measure single `write` calls, one after the other."""
        latencies: dict[str, float] = self._write(size, seconds, "--outstanding", "1")["latency_ms"]
        return latencies

    def throughput(self, size: int, seconds: float) -> float:
        """Measure `submit` with one record per call."""
        return float(self._write(size, seconds, "--call", "submit")["records_per_s"])

    def _write(self, size: int, seconds: float, *flags: str) -> dict[str, Any]:
        arguments = ("--size", str(size), "--seconds", str(seconds), "--uri", self._uri, "--json")
        completed = subprocess.run(
            [*_dlog(), "bench", "write", *arguments, *flags],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
        result: dict[str, Any] = json.loads(completed.stdout)
        return result


def _dlog() -> list[str]:
    return [sys.executable, "-m", "distributedlog.cli.main"]


PEERS: dict[str, Callable[[], Peer]] = {
    "ours": Ours,
    "nats": Nats,
    "redis": Redis,
    "postgresql": Postgresql,
}
SIZES = (1024, 100)


def main() -> None:
    """Run the systems in rotation, each turn alone and with new servers."""
    parser = parser_of(str(__package__), __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", help="directory for the servers' data (default: temporary)")
    parser.add_argument("--only", default=",".join(PEERS), help="systems, comma-separated")
    parser.add_argument("--json", help="write all results to this file")
    arguments = parser.parse_args()
    figures_by_system: dict[str, list[dict[str, float]]] = {}
    version_by_system: dict[str, str] = {}
    floors = []
    for turn in range(arguments.turns):
        with tempfile.TemporaryDirectory(dir=arguments.data) as directory:
            floors.append(measure(Path(directory), 1024, 3.0)["replicated"]["p50"])
        for key in arguments.only.split(","):
            peer = PEERS[key]()
            print(f"turn {turn + 1} of {arguments.turns}: {peer.name}", file=sys.stderr, flush=True)
            try:
                figures, version = one_turn(peer, arguments.seconds, arguments.data)
            except PeerMissing as missing:
                print(f"omitted: {peer.name}: {missing}", file=sys.stderr)
                continue
            figures_by_system.setdefault(peer.name, []).append(figures)
            version_by_system[peer.name] = f"{version}; {peer.settings}"
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"found": figures_by_system, "floors": floors}, indent=1)
        )
    print(f"{this_build().describe()}\n")
    print(f"Replicated baseline of the same run: {statistics.median(floors):.3f} ms.\n")
    print(table(figures_by_system, version_by_system))


def one_turn(peer: Peer, seconds: float, data: str | None) -> tuple[dict[str, float], str]:
    """Measure all figures of one system on new servers, and return them with its version."""
    with tempfile.TemporaryDirectory(dir=data) as directory, ExitStack() as servers:
        peer.start(Path(directory), servers)
        latency = peer.one_outstanding(1024, seconds)
        figures = {"p50_ms": latency["p50"], "p99_ms": latency["p99"]}
        for size in SIZES:
            figures[f"rate_{size}"] = peer.throughput(size, seconds)
        return figures, peer.version()


def table(
    figures_by_system: dict[str, list[dict[str, float]]], version_by_system: dict[str, str]
) -> str:
    """Return the medians over the turns as a Markdown table."""
    lines = [
        "| system | version; settings | 1 KB, one outstanding, p50 / p99 ms | 1 KB records/s"
        " | 100 B records/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, turns in figures_by_system.items():
        median = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        latency = f"{median['p50_ms']:.2f} / {median['p99_ms']:.2f}"
        rates = " | ".join(f"{median[f'rate_{size}']:,.0f}" for size in SIZES)
        lines.append(f"| {name} | {version_by_system[name]} | {latency} | {rates} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
