"""Is this build slower than another one? The campaign's cases with both by turns, on one machine.

    git worktree add --detach ../before COMMIT
    python3 -m venv ../before/.venv && ../before/.venv/bin/pip install -e ../before
    python -m distributedlog.bench.builds ../before/.venv/bin/python --seconds 6 --turns 3

Each turn of each build starts a cluster of its own; which build begins changes with the turn. What counts
is the last column: how good this build is beside the other, more than 1 is better.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .by_hand import parser_of, run
from .campaign import CASES, Case, await_ready
from .machine import data_directory

Bench = Callable[..., dict[str, Any]]
"""Runs `dlog bench` with some flags; its result."""
COMPARED = tuple(case for case in CASES if not case.part and case.flags[0] != "beside")
"""Each takes ``--seconds`` and says one rate, or one latency."""


def main() -> None:
    """Compare, and print a Markdown table."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument(
        "other", help="the Python in whose environment the other build is installed"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--data", type=data_directory, help="where the clusters' data goes (default: temporary)"
    )
    asked = parser.parse_args()
    builds = (sys.executable, whole(asked.other))
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(asked.turns):
        for build in builds if turn % 2 == 0 else builds[::-1]:
            print(f"turn {turn + 1} of {asked.turns}: {build}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=asked.data) as directory:
                for case, figure in one_turn(build, Path(directory), asked.seconds):
                    found.setdefault((case.name, build), []).append(figure)
    print(table(found, *builds))


def whole(path: str) -> str:
    """The path from the root: each build runs in a directory of its own, where another one leads elsewhere.

    Links stay: a Python that is asked for by the link of its environment finds the packages there.
    """
    return os.path.abspath(path)


def own_environment() -> dict[str, str]:
    """Each build is to find its own package: what a caller's path says would come before it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def cluster_of(python: str, directory: Path) -> Iterator[tuple[dict[str, Any], Bench]]:
    """A cluster of this build, a process a node, in the directory: what it said when it served, and what runs
    a bench of the same build on it.
    """
    dlog, mine = [python, "-m", "distributedlog.cli.main"], own_environment()
    ready = directory / "ready.json"
    serve = ["local", "--processes", "--data", str(directory / "cluster")]
    cluster = subprocess.Popen(
        [*dlog, *serve, "--ready-file", str(ready)],
        env=mine,
        cwd=directory,
        stdout=subprocess.DEVNULL,
    )

    def bench(*flags: str) -> dict[str, Any]:
        run = subprocess.run(
            [*dlog, "bench", *flags, "--uri", said["uri"], "--json"],
            env=mine,
            cwd=directory,
            stdout=subprocess.PIPE,
            check=True,
        )
        found: dict[str, Any] = json.loads(run.stdout)
        return found

    try:
        said = await_ready(ready, cluster)
        yield said, bench
    finally:
        cluster.terminate()
        cluster.wait(timeout=60)


def one_turn(python: str, directory: Path, seconds: float) -> list[tuple[Case, float]]:
    """The figure of each case, on a cluster of this build that is started and ended here."""
    figures = []
    with cluster_of(python, directory) as (_, bench):
        for case in COMPARED:
            said = bench(*case.flags, "--seconds", str(seconds))
            latency = case.unit == "ms"
            figures.append((case, said["latency_ms"]["p50"] if latency else said["records_per_s"]))
    return figures


def table(found: dict[tuple[str, str], list[float]], this: str, other: str) -> str:
    """Medians over the turns, as Markdown."""
    lines = [
        "| case | unit | this | other | how good, this to other |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in COMPARED:
        mine = statistics.median(found[case.name, this])
        theirs = statistics.median(found[case.name, other])
        good = theirs / mine if case.unit == "ms" else mine / theirs
        figure = "{:.3f}" if case.unit == "ms" else "{:,.0f}"
        cells = [case.name, case.unit, figure.format(mine), figure.format(theirs), f"{good:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
