"""Performance gate: compare this build with another one in alternating runs on one machine.

    python -m distributedlog.testing.bench.compare_builds fea56d70
    python -m distributedlog.testing.bench.compare_builds ../before/.venv/bin/python --turns 3

The other build is a commit of this checkout, which is installed in a temporary environment, or the Python of
an environment in which that build is installed. Each turn of each build starts a new cluster (three
metadata nodes, three bookies). The build that runs first alternates from turn to turn.

For each case the table prints the medians and the ratio of this build to the other with its 95 % interval
over the pairs; a ratio above 1 is better. A case is slower if its whole interval is below --limit. The exit
status is 1 if a case is slower.
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .campaign import await_ready
from .measure.bench_plan import FAILED, parser_of, run
from .measure.machine_info import data_directory

Bench = Callable[..., dict[str, Any]]
"""Run `dlog bench` with some flags and return its result."""
LIMIT = 0.95
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, two-sided 95 %, for 1 to 9 degrees of freedom."""
COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class GateCase:
    """One case: flags of `dlog bench`, and the figure that is compared."""

    name: str
    flags: tuple[str, ...]
    unit: str = "records/s"

    @property
    def lower_is_better(self) -> bool:
        """Whether the figure is a cost: a latency or CPU time."""
        return self.unit != "records/s"

    def figure(self, result: dict[str, Any]) -> float:
        """Return the compared figure of one result of `dlog bench`."""
        if self.unit == "p50 ms":
            return float(result["latency_ms"]["p50"])
        if self.unit == "client µs/record":
            return float(result["writer_cpu_us"])
        return float(result["records_per_s"])


GATE = (
    GateCase("1 KB, submit", ("write", "--size", "1024")),
    GateCase("100 B, bulk", ("write", "--size", "100", "--call", "bulk")),
    GateCase("1 KB, one outstanding", ("write", "--size", "1024", "--outstanding", "1"), "p50 ms"),
    GateCase("tail at 1,000/s", ("tail", "--size", "1024", "--rate", "1000"), "p50 ms"),
    GateCase("catch-up into records", ("read", "--size", "1024", "--as", "records")),
    GateCase(
        "1,000 logs at 20,000/s",
        ("write", "--size", "1024", "--logs", "1000", "--rate", "20000"),
        "client µs/record",
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of this build to the other over all pairs; above 1 is better."""

    ratio: float
    low: float
    high: float

    def is_slower(self, limit: float) -> bool:
        """Whether the whole interval is below the limit."""
        return self.high < limit


def main() -> None:
    """Compare two builds, print a Markdown table, and exit with 1 if a case is slower."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("other", help="a commit, or the Python of the other build's environment")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each case (default: 6)")
    parser.add_argument("--turns", type=int, default=5, help="pairs per case (default: 5)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"(default: {LIMIT})")
    parser.add_argument(
        "--data", type=data_directory, help="directory for the clusters (default: temporary)"
    )
    options = parser.parse_args()
    if not 2 <= options.turns <= len(T_95) + 1:
        parser.error(f"--turns is from 2 to {len(T_95) + 1}")
    with tempfile.TemporaryDirectory() as directory:
        other = environment_of(options.other, Path(directory))
        figures = measure(sys.executable, other, options.turns, options.seconds, options.data)
    print(table(figures, options.limit))
    if any(compare(case, *pairs).is_slower(options.limit) for case, pairs in figures.items()):
        raise SystemExit(FAILED)


def environment_of(other: str, directory: Path) -> str:
    """Return the Python of the other build; a commit is installed below the directory first."""
    if not COMMIT.fullmatch(other):
        return absolute_path(other)
    source, python = directory / "source", directory / "environment" / "bin" / "python"
    export(other, source)
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", str(source)]
    subprocess.run([str(python), *install], check=True, stdout=sys.stderr)
    return str(python)


def export(commit: str, directory: Path) -> None:
    """Write the files of a commit of this checkout into a new directory."""
    checkout = Path(__file__).resolve().parents[2]
    directory.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(checkout), "archive", commit], stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)


Pairs = tuple[list[float], list[float]]
"""Figures of this build and of the other one, one per turn."""


def measure(
    this_python: str, other: str, turns: int, seconds: float, data: Path | None
) -> dict[GateCase, Pairs]:
    """Run all cases on both builds in alternating order."""
    figures: dict[GateCase, Pairs] = {case: ([], []) for case in GATE}
    for turn in range(turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for case, pairs in figures.items():
            for side in order:
                name = ("this build", "the other build")[side]
                print(f"turn {turn + 1} of {turns}: {case.name}, {name}", file=sys.stderr)
                with (
                    tempfile.TemporaryDirectory(dir=data) as directory,
                    cluster_of((this_python, other)[side], Path(directory)) as (_, bench),
                ):
                    pairs[side].append(case.figure(bench(*case.flags, "--seconds", str(seconds))))
    return figures


def compare(case: GateCase, this: Sequence[float], other: Sequence[float]) -> Comparison:
    """Return the ratio of the builds with its 95 % interval, from the logarithms of the pairs."""
    sign = -1 if case.lower_is_better else 1
    log_ratios = [
        sign * math.log(this_figure / other_figure)
        for this_figure, other_figure in zip(this, other, strict=True)
    ]
    mean = statistics.mean(log_ratios)
    half_width = (
        T_95[len(log_ratios) - 2] * statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    )
    return Comparison(math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width))


def table(figures: dict[GateCase, Pairs], limit: float) -> str:
    """Return the medians, ratios and intervals as a Markdown table."""
    lines = [
        "| case | unit | this | other | ratio | 95 % interval | result |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, (this, other) in figures.items():
        comparison = compare(case, this, other)
        figure = "{:.3f}" if case.lower_is_better else "{:,.0f}"
        cells = [
            case.name,
            case.unit,
            figure.format(statistics.median(this)),
            figure.format(statistics.median(other)),
            f"{comparison.ratio:.3f}",
            f"{comparison.low:.3f} to {comparison.high:.3f}",
            "slower" if comparison.is_slower(limit) else "ok",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def absolute_path(path: str) -> str:
    """Return the absolute path, with links kept: an environment's Python is found by its link."""
    return os.path.abspath(path)


def own_environment() -> dict[str, str]:
    """Return the environment without PYTHONPATH, so that each build imports its own package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def cluster_of(python: str, directory: Path) -> Iterator[tuple[dict[str, Any], Bench]]:
    """Run a cluster of a build in the directory, one process per node.

    Yields its ready file's content, and a function that runs `dlog bench` of the same build on it.
    """
    dlog_command, environment = [python, "-m", "distributedlog.cli.main"], own_environment()
    ready = directory / "ready.json"
    serve = ["local", "--processes", "--data", str(directory / "cluster")]
    cluster = subprocess.Popen(
        [*dlog_command, *serve, "--ready-file", str(ready)],
        env=environment,
        cwd=directory,
        stdout=subprocess.DEVNULL,
    )

    def bench(*flags: str) -> dict[str, Any]:
        completed = subprocess.run(
            [*dlog_command, "bench", *flags, "--uri", started["uri"], "--json"],
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            check=True,
        )
        bench_result: dict[str, Any] = json.loads(completed.stdout)
        return bench_result

    try:
        started = await_ready(ready, cluster)
        yield started, bench
    finally:
        cluster.terminate()
        cluster.wait(timeout=60)


if __name__ == "__main__":
    run(main)
