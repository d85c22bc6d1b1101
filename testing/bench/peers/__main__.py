"""Other systems beside this one, by turns on one machine: docs/internals/peer-benchmarks.md.

    python -m distributedlog.testing.bench.peers --seconds 10 --turns 3

Each system has fresh servers in each turn, and the machine for itself. One whose servers or client are not
installed, or that does not start, is left out and named.
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
from .peer import NotHere, Peer, run_server, until
from .postgresql import Postgresql
from .redis import Redis


class Ours:
    """This project: three metadata nodes and three bookies as processes, and `dlog bench write`.

    The defaults, 3/3/2: nothing to set.
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
        """Of the package."""
        return "this checkout"

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """`write`, one after the other."""
        latencies: dict[str, float] = self._write(size, seconds, "--outstanding", "1")["latency_ms"]
        return latencies

    def throughput(self, size: int, seconds: float) -> float:
        """`submit`, a record a call."""
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
    """Run the systems by turns, each turn on fresh servers and alone on the machine."""
    parser = parser_of(str(__package__), __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each figure")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", help="where the servers' data goes (default: temporary)")
    parser.add_argument("--only", default=",".join(PEERS), help="which, with commas between")
    parser.add_argument("--json", help="write all results there")
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
            except NotHere as missing:
                print(f"left out: {peer.name}: {missing}", file=sys.stderr)
                continue
            figures_by_system.setdefault(peer.name, []).append(figures)
            version_by_system[peer.name] = f"{version}; {peer.settings}"
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"found": figures_by_system, "floors": floors}, indent=1)
        )
    print(f"{this_build().describe()}\n")
    print(f"Replicated floor of the same run: {statistics.median(floors):.3f} ms.\n")
    print(table(figures_by_system, version_by_system))


def one_turn(peer: Peer, seconds: float, data: str | None) -> tuple[dict[str, float], str]:
    """All figures of one system, on servers of its own."""
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
    """Medians over the turns, as Markdown."""
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
