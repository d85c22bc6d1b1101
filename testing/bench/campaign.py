"""Run every benchmark in alternation with its baseline and print medians (docs/internals/performance.md).

    python -m distributedlog.testing.bench.campaign --seconds 60 --turns 3 --data DIR
    python -m distributedlog.testing.bench.campaign --cases codecs        compressed logs beside a plain one

Starts three metadata nodes and three bookies as processes in DIR, runs the cases in turns, and prints a
Markdown table: ratios to the floor count, the rates beside them only say what the machine was like. What
the bookies used meanwhile (CPU, anonymous memory, bytes to the device, syncs) is read from /proc.
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
    part: str = ""
    """The key of the result that has the rates, where it is not the whole: ``hot`` or ``cold``."""


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
        part="hot",
    ),
    Case(
        "catch-up, hot, columns",
        ("read", "--size", "1024", "--as", "columns", "--passes", "4"),
        part="hot",
    ),
    Case("one outstanding beside catch-up (H27)", ("beside", "--size", "1024"), "ms"),
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
"""By what ``--cases`` says."""


@dataclass(slots=True)
class Usage:
    """What processes used during one run."""

    cpu_s: float = 0.0
    anonymous_bytes_max: int = 0
    written_bytes: int = 0


@dataclass(slots=True)
class CaseRuns:
    """All turns of one case."""

    results: list[dict[str, Any]] = field(default_factory=list)
    servers: list[Usage] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)


class ProcessSampler:
    """Follows processes through /proc while a bench runs."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._start = {pid: (cpu_seconds(pid), _written(pid)) for pid in pids}
        self._anonymous = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._anonymous = max(self._anonymous, *(anonymous_bytes(pid) for pid in self._pids))

    def end(self) -> Usage:
        """What was used since the start."""
        self._over.set()
        self._thread.join()
        cpu = sum(cpu_seconds(pid) - self._start[pid][0] for pid in self._pids)
        written = sum(_written(pid) - self._start[pid][1] for pid in self._pids)
        return Usage(cpu, self._anonymous, written)


def main() -> None:
    """Run the campaign."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--data", type=data_directory, help="where the cluster's data goes (default: temporary)"
    )
    parser.add_argument("--json", help="write all results there")
    parser.add_argument("--cases", choices=SETS, default="all")
    asked = parser.parse_args()
    cases = SETS[asked.cases]
    with tempfile.TemporaryDirectory(dir=asked.data) as directory:
        found, floors = campaign(Path(directory), asked.seconds, asked.turns, cases)
    if asked.json:
        kept = {name: runs.results for name, runs in found.items()}
        Path(asked.json).write_text(json.dumps({"cases": kept, "floors": floors}, indent=1))
    print(f"{this_build().describe()}\n")
    print(table(found, floors, cases))


def campaign(
    directory: Path, seconds: float, turns: int, cases: Sequence[Case]
) -> tuple[dict[str, CaseRuns], list[dict[str, Any]]]:
    """These cases, in turns, on one cluster."""
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
        said = await_ready(ready, cluster)
        bookies = [node["pid"] for node in said["nodes"] if node["kind"] == "bookie"]
        found = {case.name: CaseRuns() for case in cases}
        floors = []
        for turn in range(turns):
            floors.append(_run(["bench", "floor", "--seconds", "6", "--data", str(directory)])[0])
            for case in cases:
                print(f"turn {turn + 1} of {turns}: {case.name}", file=sys.stderr, flush=True)
                watch = ProcessSampler(bookies)
                flags = ["bench", *case.flags, "--seconds", str(seconds), "--uri", said["uri"]]
                result, cpu_s = _run(flags)
                runs = found[case.name]
                runs.results.append(result)
                runs.servers.append(watch.end())
                runs.client_cpu_s.append(cpu_s)
        return found, floors
    finally:
        cluster.terminate()
        cluster.wait(timeout=30)


def table(
    found: dict[str, CaseRuns], floors: list[dict[str, Any]], cases: Sequence[Case] = CASES
) -> str:
    """Medians over the turns, as Markdown."""
    median = statistics.median
    file_ms = median(f["file"]["p50"] for f in floors)
    replicated_ms = median(f["replicated"]["p50"] for f in floors)
    framing = median(f["framing"]["bytes_per_s"] for f in floors)
    lines = [
        f"Floor (medians of {len(floors)}): append + fdatasync {file_ms:.3f} ms; replicated"
        f" {replicated_ms:.3f} ms; framed, sent to three, synced {framing / 1e6:,.0f} MB/s.",
        "",
        "| case | median | beside the floor | p50 / p99 ms | client CPU µs a record"
        " | three bookies' CPU µs a record | written to the device a payload byte"
        " | anonymous MB, largest bookie | others' CPU % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        runs = found[case.name]
        records = median(r["records"] for r in runs.results)
        latency = [r["latency_ms"] for r in runs.results if r["latency_ms"]]
        p50 = median(one["p50"] for one in latency) if latency else None
        p99 = median(one["p99"] for one in latency) if latency else None
        rates = [r[case.part] if case.part else r for r in runs.results]
        rate = median(r["records_per_s"] for r in rates)
        rate_bytes = median(r["bytes_per_s"] for r in rates)
        client_cpu_us = median(runs.client_cpu_s) / records * 1e6
        if all("reader_cpu_us" in r for r in rates):  # without what filled the log
            client_cpu_us = median(r["reader_cpu_us"] for r in rates)
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
            f"{median(u.cpu_s for u in runs.servers) / records * 1e6:.2f}",
            f"{written:.2f}" if case.flags[0] == "write" else "–",
            f"{max(u.anonymous_bytes_max for u in runs.servers) / 1e6:.0f}",
            f"{median(r['others_cpu_pct'] for r in runs.results):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _dlog() -> list[str]:
    return [sys.executable, "-m", "distributedlog.cli.main"]


def _run(flags: list[str]) -> tuple[dict[str, Any], float]:
    before = os.times()
    run = subprocess.run(
        [*_dlog(), *flags, "--json"], env=environment(), stdout=subprocess.PIPE, check=True
    )
    after = os.times()
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    result: dict[str, Any] = json.loads(run.stdout)
    return result, used


def await_ready(ready: Path, cluster: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """What `dlog local` wrote when it served. Raises `SystemExit` where it does not."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end and cluster.poll() is None:
        if ready.exists():
            said: dict[str, Any] = json.loads(ready.read_text())
            return said
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
