"""Other systems beside this one, by turns on one machine: the figures of docs/comparison.md.

    python -m distributedlog.bench.peers --seconds 10 --turns 3

Each system has fresh servers in each turn, and the machine for itself. One whose servers or client are not
installed, or that does not start, is left out and named.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ..by_hand import parser_of, run
from ..floor import measure
from ..interpreter import this_build
from .nats import Nats
from .ours import Ours
from .peer import NotHere, Peer
from .postgresql import Postgresql
from .redis import Redis

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
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    said: dict[str, str] = {}
    floors = []
    for turn in range(asked.turns):
        with tempfile.TemporaryDirectory(dir=asked.data) as directory:
            floors.append(measure(Path(directory), 1024, 3.0)["replicated"]["p50"])
        for key in asked.only.split(","):
            peer = PEERS[key]()
            print(f"turn {turn + 1} of {asked.turns}: {peer.name}", file=sys.stderr, flush=True)
            try:
                figures, version = one_turn(peer, asked.seconds, asked.data)
            except NotHere as missing:
                print(f"left out: {peer.name}: {missing}", file=sys.stderr)
                continue
            found.setdefault(peer.name, []).append(figures)
            said[peer.name] = f"{version}; {peer.settings}"
    if asked.json:
        Path(asked.json).write_text(json.dumps({"found": found, "floors": floors}, indent=1))
    print(f"{this_build().describe()}\n")
    print(f"Replicated floor of the same run: {statistics.median(floors):.3f} ms.\n")
    print(table(found, said))


def one_turn(peer: Peer, seconds: float, data: str | None) -> tuple[dict[str, float], str]:
    """All figures of one system, on servers of its own."""
    with tempfile.TemporaryDirectory(dir=data) as directory, ExitStack() as servers:
        peer.start(Path(directory), servers)
        latency = peer.one_outstanding(1024, seconds)
        figures = {"p50_ms": latency["p50"], "p99_ms": latency["p99"]}
        for size in SIZES:
            figures[f"rate_{size}"] = peer.throughput(size, seconds)
        return figures, peer.version()


def table(found: dict[str, list[dict[str, float]]], said: dict[str, str]) -> str:
    """Medians over the turns, as Markdown."""
    lines = [
        "| system | version; settings | 1 KB, one outstanding, p50 / p99 ms | 1 KB records/s"
        " | 100 B records/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, turns in found.items():
        median = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        latency = f"{median['p50_ms']:.2f} / {median['p99_ms']:.2f}"
        rates = " | ".join(f"{median[f'rate_{size}']:,.0f}" for size in SIZES)
        lines.append(f"| {name} | {said[name]} | {latency} | {rates} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
