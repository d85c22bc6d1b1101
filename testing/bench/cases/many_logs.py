"""Measure the cost of a record by the number of written logs, optionally compared with another build.

    python -m distributedlog.testing.bench.cases.many_logs --data DIR
    python -m distributedlog.testing.bench.cases.many_logs --cases 1000@20000 --turns 5 --other
    ../before/.venv/bin/python

A case is a number of logs and a total rate of 1 KB records per second. Each case has its own cluster (three
metadata nodes, three bookies). One process opens the logs, waits, and submits the records at their intended
times, whatever the latency, which counts from the intended time. ``--other`` is the Python of an environment
in which another build is installed (`testing/bench/compare_builds.py`). The build that runs first alternates.
The table has medians: latencies, CPU time per record of that process, and CPU time per record of the bookies,
including opening and deletion.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ..compare_builds import absolute_path, cluster_of, own_environment
from ..measure.bench_plan import parser_of, run
from ..measure.interpreter_info import this_build
from ..measure.machine_info import OthersCpu, cpu_seconds, data_directory

CASES = "1@5000,10@5000,100@5000,1000@5000,5000@5000,1000@20000"
IDLE_S = 5.0
SETTLE_S = 1.0

Figures = dict[str, float]


def main() -> None:
    """Measure and print a Markdown table."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--cases", default=CASES, help="logs@records per second, comma-separated")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each case")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024, help="bytes per record")
    parser.add_argument("--other", help="the Python of another build, for alternating runs")
    parser.add_argument(
        "--data", type=data_directory, help="directory for the clusters' data (default: temporary)"
    )
    parser.add_argument("--json", help="write the results of all runs to this file")
    arguments = parser.parse_args()
    cases = [tuple(map(int, case.split("@"))) for case in arguments.cases.split(",")]
    other_python = arguments.other and absolute_path(arguments.other)
    builds = [sys.executable, *([other_python] if other_python else [])]
    figures_by_case: dict[str, list[Figures]] = {}
    for turn in range(arguments.turns):
        for logs, rate in cases:
            for build in builds if turn % 2 == 0 else builds[::-1]:
                name = f"{logs:,} at {rate:,}/s"
                print(f"turn {turn + 1} of {arguments.turns}: {name}, {build}", file=sys.stderr)
                with tempfile.TemporaryDirectory(dir=arguments.data) as directory:
                    figures = one_case(
                        build, Path(directory), logs, rate, arguments.size, arguments.seconds
                    )
                figures_by_case.setdefault(f"{name}|{build}", []).append(figures)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures_by_case, indent=1))
    print(f"{this_build().describe()}\n")
    print(table(figures_by_case, other_python))


def one_case(
    python: str, directory: Path, logs: int, rate: int, size: int, seconds: float
) -> Figures:
    """Run `dlog bench write` of a build on a new cluster of the same build."""
    with cluster_of(python, directory) as (cluster_info, bench):
        bookies = [node["pid"] for node in cluster_info["nodes"] if node["kind"] == "bookie"]
        other_processes = OthersCpu()
        cpu_before = sum(map(cpu_seconds, bookies))
        write_result = bench(
            *("write", "--logs", str(logs), "--rate", str(rate), "--size", str(size)),
            *("--seconds", str(seconds)),
        )
        bookie_cpu_s = sum(map(cpu_seconds, bookies)) - cpu_before
        return {
            "p50_ms": write_result["latency_ms"]["p50"],
            "p99_ms": write_result["latency_ms"]["p99"],
            "records_per_s": write_result["records_per_s"],
            "client_cpu_us": write_result["writer_cpu_us"],
            "bookie_cpu_us": bookie_cpu_s / write_result["records"] * 1e6,
            "idle_cpu_ms_per_s": idle_cpu_ms_per_s(python, cluster_info["uri"], logs, directory),
            "others_cpu_pct": other_processes.percent(),
        }


def idle_cpu_ms_per_s(python: str, uri: str, logs: int, directory: Path) -> float:
    """Return the CPU time of a process with this many open, idle writers, in milliseconds per second."""
    program = [python, "-c", IDLE_PROGRAM, uri, str(logs), str(IDLE_S), str(SETTLE_S)]
    completed = subprocess.run(
        program, env=own_environment(), cwd=directory, stdout=subprocess.PIPE, check=True
    )
    return float(completed.stdout)


IDLE_PROGRAM = """
import sys, time, trio
from distributedlog import open_namespace

async def main(uri, logs, idle_s, settle_s):
    async with open_namespace(uri) as namespace, trio.open_nursery() as nursery:
        limit = trio.CapacityLimiter(32)
        writers = []
        async def opened(name):
            async with limit:
                await namespace.create_log(name)
                writers.append(await namespace.open_log(name).open_writer().__aenter__())
        async with trio.open_nursery() as opening:
            for n in range(logs):
                opening.start_soon(opened, f"idle-{n}")
        await trio.sleep(settle_s)
        used = -time.process_time()
        await trio.sleep(idle_s)
        used += time.process_time()
        print(used / idle_s * 1000)
        async with trio.open_nursery() as closing:
            for writer in writers:
                closing.start_soon(writer.aclose)

trio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
"""
"""A program text, so that it also runs with a build that does not have this module."""


def table(figures_by_case: dict[str, list[Figures]], other_python: str | None) -> str:
    """Return the medians over all runs as a Markdown table."""
    lines = [
        "| logs, records/s offered | build | written/s | p50 / p99 ms | client CPU µs per record"
        " | three bookies' | idle, ms of CPU per second | others' CPU % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, turns in figures_by_case.items():
        case, build = name.split("|")
        medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        cells = [
            case,
            "the other" if build == other_python else "this",
            f"{medians['records_per_s']:,.0f}",
            f"{medians['p50_ms']:.1f} / {medians['p99_ms']:.1f}",
            f"{medians['client_cpu_us']:.1f}",
            f"{medians['bookie_cpu_us']:.1f}",
            f"{medians['idle_cpu_ms_per_s']:.1f}",
            f"{medians['others_cpu_pct']:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
