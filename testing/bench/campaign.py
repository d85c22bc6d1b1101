"""Run every benchmark in alternation with its baseline and print medians (docs/internals/performance.md).

    python -m distributedlog.testing.bench.campaign --seconds 60 --turns 3 --data DIR
    python -m distributedlog.testing.bench.campaign --cases codecs        compressed logs and a plain one

Starts three metadata nodes and three bookies as processes in DIR, runs all cases several times in rotation,
and prints a Markdown table. Compare the ratios to the baseline: the rates depend on the machine. The usage of
the bookies (CPU, anonymous memory, bytes written to the device) comes from /proc.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cluster.local.child_processes import environment
from .measure.bench_plan import parser_of, run
from .measure.interpreter_info import this_build
from .measure.machine_info import anonymous_bytes, cpu_seconds, data_directory

SAMPLE_S = 0.25
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    name: str
    flags: tuple[str, ...]
    unit: str = "records/s"
    result_part: str = ""
    """The key of the part of the result that has the rates: ``hot``, ``cold``, or "" for the whole result."""


CASES = (
    Case("1 KB, submit", ("write", "--size", "1024", "--call", "submit")),
    Case("1 KB, bulk", ("write", "--size", "1024", "--call", "bulk")),
    Case("100 B, submit", ("write", "--size", "100", "--call", "submit")),
    Case("100 B, bulk", ("write", "--size", "100", "--call", "bulk")),
    Case("1 KB, one outstanding", ("write", "--size", "1024", "--outstanding", "1"), "ms"),
    Case("tail, 1 KB at 1,000/s", ("tail", "--size", "1024", "--rate", "1000"), "ms"),
    Case("catch-up, records", ("read", "--size", "1024", "--as", "records")),
    Case("catch-up, columns", ("read", "--size", "1024", "--as", "columns")),
    Case(
        "catch-up, hot, records",
        ("read", "--size", "1024", "--as", "records", "--passes", "4"),
        result_part="hot",
    ),
    Case(
        "catch-up, hot, columns",
        ("read", "--size", "1024", "--as", "columns", "--passes", "4"),
        result_part="hot",
    ),
    Case("one outstanding beside catch-up (H27)", ("interference", "--size", "1024"), "ms"),
)
JSON = ("--size", "1024", "--payload", "json", "--codec")
CODECS = (
    *(
        Case(f"1 KB of JSON, {name}", ("write", "--call", "bulk", *JSON, name))
        for name in ("none", "lz4", "zstd")
    ),
    Case("1 KB of noise, none", ("write", "--call", "bulk")),
    Case("1 KB of noise, lz4", ("write", "--call", "bulk", "--payload", "noise", "--codec", "lz4")),
    *(
        Case(f"catch-up, columns, JSON, {name}", ("read", "--as", "columns", *JSON, name))
        for name in ("none", "lz4", "zstd")
    ),
)
SETS = {"all": CASES, "codecs": CODECS}
"""The cases by the value of ``--cases``."""


@dataclass(slots=True)
class Usage:
    """Resource usage of processes during one run."""

    cpu_s: float = 0.0
    anonymous_bytes_max: int = 0
    written_bytes: int = 0


@dataclass(slots=True)
class CaseRuns:
    """All runs of one case."""

    results: list[dict[str, Any]] = field(default_factory=list)
    servers: list[Usage] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)


class ProcessSampler:
    """Samples the usage of processes from /proc while a benchmark runs."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._start = {pid: (cpu_seconds(pid), _written(pid)) for pid in pids}
        self._anonymous_max = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self._anonymous_max = max(
                self._anonymous_max, *(anonymous_bytes(pid) for pid in self._pids)
            )

    def end(self) -> Usage:
        """Stop sampling and return the usage since the start."""
        self._is_over.set()
        self._thread.join()
        cpu_s = sum(cpu_seconds(pid) - self._start[pid][0] for pid in self._pids)
        written = sum(_written(pid) - self._start[pid][1] for pid in self._pids)
        return Usage(cpu_s, self._anonymous_max, written)


def main() -> None:
    """Run the campaign."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--data", type=data_directory, help="directory for the cluster's data (default: temporary)"
    )
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--cases", choices=SETS, default="all")
    arguments = parser.parse_args()
    cases = SETS[arguments.cases]
    with tempfile.TemporaryDirectory(dir=arguments.data) as directory:
        runs_by_case, floors = campaign(Path(directory), arguments.seconds, arguments.turns, cases)
    if arguments.json:
        saved = {name: runs.results for name, runs in runs_by_case.items()}
        Path(arguments.json).write_text(json.dumps({"cases": saved, "floors": floors}, indent=1))
    print(f"{this_build().describe()}\n")
    print(table(runs_by_case, floors, cases))


def campaign(
    directory: Path, seconds: float, turns: int, cases: Sequence[Case]
) -> tuple[dict[str, CaseRuns], list[dict[str, Any]]]:
    """Run the cases in rotation on one cluster.

    Returns:
        The runs by case name, and the baseline of each round.
    """
    ready = directory / "ready.json"
    cluster = subprocess.Popen(
        [
            *_dlog(),
            *("local", "--processes", "--data", str(directory / "cluster")),
            *("--ready-file", str(ready)),
        ],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        cluster_info = await_ready(ready, cluster)
        bookies = [node["pid"] for node in cluster_info["nodes"] if node["kind"] == "bookie"]
        runs_by_case = {case.name: CaseRuns() for case in cases}
        floors = []
        for turn in range(turns):
            floors.append(
                _run(["bench", "baseline", "--seconds", "6", "--directory", str(directory)])[0]
            )
            for case in cases:
                print(f"turn {turn + 1} of {turns}: {case.name}", file=sys.stderr, flush=True)
                sampler = ProcessSampler(bookies)
                flags = [
                    "bench",
                    *case.flags,
                    "--seconds",
                    str(seconds),
                    "--uri",
                    cluster_info["uri"],
                ]
                result, cpu_s = _run(flags)
                runs = runs_by_case[case.name]
                runs.results.append(result)
                runs.servers.append(sampler.end())
                runs.client_cpu_s.append(cpu_s)
        return runs_by_case, floors
    finally:
        cluster.terminate()
        cluster.wait(timeout=30)


def table(
    runs_by_case: dict[str, CaseRuns], floors: list[dict[str, Any]], cases: Sequence[Case] = CASES
) -> str:
    """Return the medians over the rounds as a Markdown table."""
    median = statistics.median
    file_ms = median(floor["file"]["p50"] for floor in floors)
    replicated_ms = median(floor["replicated"]["p50"] for floor in floors)
    framing = median(floor["framing"]["bytes_per_s"] for floor in floors)
    lines = [
        f"Baseline (medians of {len(floors)}): append + fdatasync {file_ms:.3f} ms; replicated"
        f" {replicated_ms:.3f} ms; framed, sent to three, synced {framing / 1e6:,.0f} MB/s.",
        "",
        "| case | median | ratio to baseline | p50 / p99 ms | client CPU µs per record"
        " | three bookies' CPU µs per record | bytes written to the device per payload byte"
        " | anonymous MB, largest bookie | others' CPU % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        runs = runs_by_case[case.name]
        records = median(result_row["records"] for result_row in runs.results)
        latency = [
            result_row["latency_ms"] for result_row in runs.results if result_row["latency_ms"]
        ]
        p50 = median(latency_ms["p50"] for latency_ms in latency) if latency else None
        p99 = median(latency_ms["p99"] for latency_ms in latency) if latency else None
        rates = [
            result_row[case.result_part] if case.result_part else result_row
            for result_row in runs.results
        ]
        rate = median(result_row["records_per_s"] for result_row in rates)
        rate_bytes = median(result_row["bytes_per_s"] for result_row in rates)
        client_cpu_us = median(runs.client_cpu_s) / records * 1e6
        if all(
            "reader_cpu_us" in result_row for result_row in rates
        ):  # without the CPU time of filling the log
            client_cpu_us = median(result_row["reader_cpu_us"] for result_row in rates)
        if case.unit == "ms":
            assert p50 is not None
            figure, ratio = f"{p50:.3f} ms", f"{p50 / replicated_ms:.2f}x replicated"
        else:
            figure = f"{rate:,.0f}/s, {rate_bytes / 1e6:,.0f} MB/s"
            ratio = f"{rate_bytes / framing:.2f}x framing"
        written = median(
            usage.written_bytes / result["bytes"]
            for usage, result in zip(runs.servers, runs.results, strict=True)
        )
        cells = [
            case.name,
            figure,
            ratio,
            f"{p50:.2f} / {p99:.2f}" if p50 is not None else "–",
            f"{client_cpu_us:.2f}",
            f"{median(used.cpu_s for used in runs.servers) / records * 1e6:.2f}",
            f"{written:.2f}" if case.flags[0] == "write" else "–",
            f"{max(used.anonymous_bytes_max for used in runs.servers) / 1e6:.0f}",
            f"{median(result_row['others_cpu_pct'] for result_row in runs.results):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _dlog() -> list[str]:
    return [sys.executable, "-m", "distributedlog.cli.main"]


def _run(flags: list[str]) -> tuple[dict[str, Any], float]:
    times_before = os.times()
    completed = subprocess.run(
        [*_dlog(), *flags, "--json"], env=environment(), stdout=subprocess.PIPE, check=True
    )
    times_after = os.times()
    cpu_s = (
        times_after.children_user
        + times_after.children_system
        - times_before.children_user
        - times_before.children_system
    )
    result: dict[str, Any] = json.loads(completed.stdout)
    return result, cpu_s


def await_ready(ready: Path, cluster: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait until `dlog local` serves, and return the content of its ready file.

    Raises:
        SystemExit: The cluster ended or did not serve in time.
    """
    end = time.monotonic() + READY_S
    while time.monotonic() < end and cluster.poll() is None:
        if ready.exists():
            cluster_info: dict[str, Any] = json.loads(ready.read_text())
            return cluster_info
        time.sleep(0.05)
    raise SystemExit(f"the cluster did not serve within {READY_S:g} s")


def _written(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    run(main)
