"""What TLS costs a cluster: the same load on a plain cluster and on one with TLS, by turns, as ratios.

    python -m tests.cluster.tls_cost --seconds 6 --turns 3

Each turn of each side starts three metadata nodes and three bookies of its own. TLS 1.3 between all of them,
each with a certificate of its own, and a user's for who writes and reads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from distributedlog.cli.access import certificates
from distributedlog.cluster.local.child_processes import environment
from distributedlog.testing.bench.measure.machine_info import cpu_seconds
from tests.cluster.story import Cluster, dlog

CASES = {
    "1 KB, submit": ("write", "--size", "1024", "--call", "submit"),
    "1 KB, bulk": ("write", "--size", "1024", "--call", "bulk"),
    "1 KB, one outstanding": ("write", "--size", "1024", "--outstanding", "1"),
    "tail, 1 KB at 1,000/s": ("tail", "--size", "1024", "--rate", "1000"),
    "catch-up, records": ("read", "--size", "1024", "--as", "records"),
}
LATENCIES = ("1 KB, one outstanding", "tail, 1 KB at 1,000/s")
SIDES = ("plain", "TLS")


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", help="where the clusters' data goes (default: temporary)")
    asked = parser.parse_args()
    found: dict[tuple[str, str, str], list[float]] = {}
    for turn in range(asked.turns):
        for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
            print(f"turn {turn + 1} of {asked.turns}: {side}", file=sys.stderr, flush=True)
            with TemporaryDirectory(dir=asked.data) as scratch:
                for case, figures in one_turn(Path(scratch), side, asked.seconds):
                    for figure, value in figures.items():
                        found.setdefault((case, figure, side), []).append(value)
    print(table(found))


def one_turn(scratch: Path, side: str, seconds: float) -> Iterator[tuple[str, dict[str, float]]]:
    """Each case's figures, on a cluster of this side's own."""
    with Cluster.planned(scratch, bookies=3) as cluster:
        who = []
        if side == "TLS":
            who = ["--credentials", f"file:{certificates_of(cluster, scratch / 'pki')}"]
        cluster.start()
        bookies = [s.process.pid for s in cluster.served.values() if s.node.kind == "bookie"]
        for case, flags in CASES.items():
            command = dlog("bench", *flags, "--seconds", str(seconds), "--json", *who)
            before, served = os.times(), sum(map(cpu_seconds, bookies))
            run = subprocess.run(
                command,
                env={**environment(), "DLOG_URI": cluster.uri},
                stdout=subprocess.PIPE,
                check=True,
            )
            after = os.times()
            said = json.loads(run.stdout)
            client = after.children_user + after.children_system
            client -= before.children_user + before.children_system
            figures = {
                "client CPU, µs a record": client / said["records"] * 1e6,
                "three bookies' CPU, µs a record": (sum(map(cpu_seconds, bookies)) - served)
                / said["records"]
                * 1e6,
            }
            if case in LATENCIES:
                figures["p50, ms"] = said["latency_ms"]["p50"]
                figures["p99, ms"] = said["latency_ms"]["p99"]
            else:
                figures["records/s"] = said["records_per_s"]
            yield case, figures


def certificates_of(cluster: Cluster, pki: Path) -> Path:
    """A certificate for each node, which is told to speak TLS alone; the directory of a user's."""
    certificates.make_authority(pki / "ca", "cost")
    for node in cluster.plan.nodes:
        certificates.issue(pki / "ca", f"{node.kind}/{node.name}", pki / node.name)
        cluster.more[node.name] = ["--tls", str(pki / node.name), "--transport", "tls"]
    certificates.issue(pki / "ca", "user/bench", pki / "user")
    return pki / "user"


def table(found: dict[tuple[str, str, str], list[float]]) -> str:
    """Medians over the turns, as Markdown."""
    lines = ["| case | figure | plain | TLS | TLS to plain |", "| --- | --- | --- | --- | --- |"]
    for case, figure in dict.fromkeys((case, figure) for case, figure, _ in found):
        plain, tls = (statistics.median(found[case, figure, side]) for side in SIDES)
        lines.append(f"| {case} | {figure} | {plain:,.2f} | {tls:,.2f} | {tls / plain:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
