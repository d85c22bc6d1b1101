"""Is this build slower than another one? The campaign's cases with both by turns, on one machine.

    git worktree add --detach ../before COMMIT
    python3 -m venv ../before/.venv && ../before/.venv/bin/pip install -e ../before
    python -m distributedlog.bench.builds ../before/.venv/bin/python --seconds 6 --turns 3

Each turn of each build starts a cluster of its own; which build begins changes with the turn. What counts
is the last column: how good this build is beside the other, more than 1 is better.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from .campaign import CASES, Case, await_ready

COMPARED = tuple(case for case in CASES if not case.part and case.flags[0] != "beside")
"""Each takes ``--seconds`` and says one rate, or one latency."""


def main() -> None:
    """Compare, and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "other", help="the Python in whose environment the other build is installed"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", help="where the clusters' data goes (default: temporary)")
    asked = parser.parse_args()
    builds = (sys.executable, whole(asked.other))
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(asked.turns):
        for build in builds if turn % 2 == 0 else builds[::-1]:
            print(f"turn {turn + 1} of {asked.turns}: {build}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=asked.data and whole(asked.data)) as directory:
                for case, figure in one_turn(build, Path(directory), asked.seconds):
                    found.setdefault((case.name, build), []).append(figure)
    print(table(found, *builds))


def whole(path: str) -> str:
    """The path from the root: each build runs in a directory of its own, where another one leads elsewhere.

    Links stay: a Python that is asked for by the link of its environment finds the packages there.
    """
    return os.path.abspath(path)


def one_turn(python: str, directory: Path, seconds: float) -> list[tuple[Case, float]]:
    """The figure of each case, on a cluster of this build that is started and ended here."""
    dlog = [python, "-m", "distributedlog.cli.main"]
    # Each is to find its own package: what a caller's path says would come before it.
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ready = directory / "ready.json"
    serve = [
        "local",
        "--processes",
        "--data",
        str(directory / "cluster"),
        "--ready-file",
        str(ready),
    ]
    cluster = subprocess.Popen(dlog + serve, env=mine, cwd=directory, stdout=subprocess.DEVNULL)
    try:
        uri = await_ready(ready, cluster)["uri"]
        figures = []
        for case in COMPARED:
            flags = ["bench", *case.flags, "--seconds", str(seconds), "--uri", uri, "--json"]
            run = subprocess.run(
                dlog + flags, env=mine, cwd=directory, stdout=subprocess.PIPE, check=True
            )
            said = json.loads(run.stdout)
            latency = case.unit == "ms"
            figures.append((case, said["latency_ms"]["p50"] if latency else said["records_per_s"]))
        return figures
    finally:
        cluster.terminate()
        cluster.wait(timeout=30)


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
    main()
