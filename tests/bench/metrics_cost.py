"""What metrics cost: lone writes' p99 with a scrape each 10 s beside none, and the hot path uncounted.

    python -m tests.bench.metrics_cost --seconds 60 --turns 3 --data /some/disk      at rest; half an hour
    python -m tests.bench.metrics_cost --seconds 12 --turns 4 --lone 3 --data /some/disk

In each turn, one after the other, the order turned round from turn to turn: a cluster of processes (three
metadata nodes, three bookies), on it lone writes while nobody scrapes, the same while each node's `/metrics`
is asked for each 10 s, then full speed; then a cluster and a client that observe no durations
(`tests.bench.uncounted`). With ``--lone`` each cluster takes lone writes alone, so many times, scraped and
not by turns: a p99 moves by more than 5 % from one run to the next. Prints the medians and the ratios; the
aims: p99 with scrapes within 5 %, the hot path within 2 %. Of a machine that others use it says nothing: how
much they took is shown.
"""

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributedlog.cluster.local.child_processes import environment
from tests.cluster.story import Cluster

EVERY_S = 10.0
UNCOUNTED = "tests.bench.uncounted"
COUNTED = "distributedlog.cli.main"
LONE = ("--outstanding", "1", "--size", "1024")
HOT = {
    "1 KB": ("--size", "1024"),
    "100 B": ("--size", "100"),
    "100 B, bulk": ("--size", "100", "--call", "bulk"),
}


Found = dict[str, list[dict[str, Any]]]
"""By case, what `dlog bench` said of each time."""


def turn(directory: Path, seconds: float, lone: int, *, counted: bool) -> Found:
    """What each case gave, on a cluster of its own; ``lone``: as many rounds of lone writes alone."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster.planned(directory, bookies=3)
        places = []
        for node in cluster.plan.nodes:
            places.append(f"127.0.0.1:{_free_port()}")
            cluster.more[node.name] = ["--http", places[-1]]
            if not counted:
                cluster.modules[node.name] = UNCOUNTED
        stack.enter_context(cluster)
        cluster.start()
        module = COUNTED if counted else UNCOUNTED
        found: Found = {}
        for _ in range(lone or 1):
            found.setdefault("lone", []).append(_bench(cluster, module, seconds, LONE))
            if counted:
                with scraped(places):
                    beside = _bench(cluster, module, seconds, LONE)
                found.setdefault("lone, scraped", []).append(beside)
        for name, options in HOT.items() if not lone else ():
            found[name] = [_bench(cluster, module, seconds, options)]
        return found


def _bench(cluster: Cluster, module: str, seconds: float, options: tuple[str, ...]) -> Any:
    command = [sys.executable, "-m", module, "bench", "write", "--seconds", f"{seconds:g}"]
    done = subprocess.run(
        [*command, *options, "--json", "--uri", cluster.uri],
        capture_output=True,
        env=environment(),
        check=True,
    )
    return json.loads(done.stdout)


@contextlib.contextmanager
def scraped(places: list[str]) -> Iterator[None]:
    """Each node's page is asked for each `EVERY_S`, as Prometheus does: not all at one moment."""
    over = threading.Event()

    def scrape(place: str, first_s: float) -> None:
        wait_s = first_s
        while not over.wait(wait_s):
            with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as answer:
                answer.read()
            wait_s = EVERY_S

    threads = [
        threading.Thread(target=scrape, args=(place, EVERY_S * n / len(places)), daemon=True)
        for n, place in enumerate(places)
    ]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in threads:
            one.join()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lone", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--data", type=Path, help="a directory on the device to measure")
    given = parser.parse_args()
    found: dict[bool, list[Found]] = {True: [], False: []}
    for number in range(given.turns):
        for which in (True, False) if number % 2 == 0 else (False, True):
            with tempfile.TemporaryDirectory(dir=given.data) as directory:
                found[which].append(turn(Path(directory), given.seconds, given.lone, counted=which))
    counted, uncounted = found[True], found[False]

    def of(turns: list[Found], case: str, *keys: str) -> float:
        values = []
        for one in turns:
            for value in one[case]:
                for key in keys:
                    value = value[key]
                values.append(float(value))  # type: ignore[arg-type]
        return statistics.median(values)

    for quantile in ("p50", "p99"):
        quiet = of(counted, "lone", "latency_ms", quantile)
        beside = of(counted, "lone, scraped", "latency_ms", quantile)
        without = of(uncounted, "lone", "latency_ms", quantile)
        print(
            f"lone, {quantile}: {quiet:.3f} unscraped, {beside:.3f} with a scrape each {EVERY_S:g} s"
            f" ({beside / quiet:.3f}), {without:.3f} uncounted ({quiet / without:.3f})"
        )
    for case in HOT if not given.lone else ():
        rate, without = of(counted, case, "records_per_s"), of(uncounted, case, "records_per_s")
        print(
            f"{case}: {rate:,.0f} records/s counted, {without:,.0f} uncounted ({rate / without:.3f})"
        )
    said = [one for each in (*counted, *uncounted) for many in each.values() for one in many]
    others = [one["others_cpu_pct"] for one in said]
    print(f"others took {statistics.median(others):g} % of the CPU, at most {max(others):g} %")


if __name__ == "__main__":
    main()
