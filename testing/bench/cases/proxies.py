"""Measure the cost of a write proxy: one log for two hundred connections, and two thousand logs on one proxy.

    python -m distributedlog.testing.bench.cases.proxies --data DIR
    python -m distributedlog.testing.bench.cases.proxies --cases many-logs --logs 500 --rates 2000

Starts three metadata nodes, three bookies and one write proxy as processes in DIR, once per case.

*Fan-in*: tasks that each have two bursts of records pending. Through the proxy each task has its own
connection. Directly, all tasks share the only writer of the log. Both have the same load, in alternating
parts of one run. The three loads are full speed, a tenth of the proxy's full rate in bursts, and single
records. The last two submit at intended times, whatever the latency, which counts from the intended time. All
clients are in this process.

*Many logs*: one producer per log, which submits single records at a total rate. The result has the CPU time
per record of this process, the proxy and the bookies, and the growth of the proxy's anonymous memory per log.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import trio

from .... import open_namespace
from ....cluster.local.child_processes import environment
from ..campaign import await_ready
from ..measure.bench_plan import parser_of, run
from ..measure.histogram import Histogram
from ..measure.interpreter_info import this_build
from ..measure.machine_info import OthersCpu, anonymous_bytes, cpu_seconds, data_directory
from .write import OPENED_AT_ONCE, TICK_S, Timed

KINDS = ("write-proxy", "bookie", "metadata")
SIZES = (100, 1024)
SHARE = 0.1
"""Share of the full rate at which latencies are measured."""
LONE_RATE = 1000
"""Total rate of single records per second in the fan-in."""
IDLE_S = 3.0
TARGETS = {"ratio": 0.5, "p99_above_ms": 2.0, "many_p99_ms": 50.0, "log_kib": 64.0}
"""Targets of the figures."""

Result = dict[str, Any]


class Used:
    """The CPU time of this process and of the nodes, by kind, since the creation of this object."""

    def __init__(self, nodes: Sequence[dict[str, Any]]) -> None:
        self._pids = {kind: [n["pid"] for n in nodes if n["kind"] == kind] for kind in KINDS}
        self._other_processes = OthersCpu()
        self._started = self._read_seconds()

    def _read_seconds(self) -> dict[str, float]:
        seconds_by_kind = {kind: sum(map(cpu_seconds, pids)) for kind, pids in self._pids.items()}
        return {"client": process_time(), **seconds_by_kind}

    def per_record(self, records: int) -> Result:
        """Return the CPU time per record by kind (µs), and the CPU share of other processes (percent)."""
        current = self._read_seconds()
        cpu_us = {
            kind: round((current[kind] - self._started[kind]) / max(1, records) * 1e6, 2)
            for kind in current
        }
        return {"cpu_us": cpu_us, "others_cpu_pct": self._other_processes.percent()}

    @property
    def proxy_bytes(self) -> int:
        """The anonymous memory of the proxies."""
        return sum(map(anonymous_bytes, self._pids[KINDS[0]]))

    def percent_of_proxy(self, seconds: float) -> float:
        """Return the CPU usage of the proxies in percent of one core."""
        return round(100 * (self._read_seconds()[KINDS[0]] - self._started[KINDS[0]]) / seconds, 1)


# --- loads ----------------------------------------------------------------------------------------


async def full_speed(writers: Sequence[Any], size: int, burst: int, seconds: float) -> Result:
    """Write at full speed with one task per writer and two pending bursts each.

    Args:
        writers: May contain the same writer several times.
    """
    histogram, payload, counts = Histogram(), os.urandom(size), []
    start = perf_counter()
    end = start + seconds

    async def one(writer: Any) -> None:
        count, submit = 0, writer.submit
        pending_bursts: deque[tuple[float, Any]] = deque()
        while pending_bursts or perf_counter() < end:
            if perf_counter() < end:
                begun_at = perf_counter()
                for _ in range(burst):
                    last_write = await submit(payload)
                count += burst
                pending_bursts.append((begun_at, last_write))
                if len(pending_bursts) < 2:
                    continue
            begun_at, last_write = pending_bursts.popleft()
            await last_write
            histogram.add(perf_counter() - begun_at, burst)
        counts.append(count)

    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(one, writer)
    return _found(sum(counts), perf_counter() - start, histogram)


async def at_a_rate(
    writers: Sequence[Any], size: int, burst: int, rate: float, seconds: float
) -> Result:
    """Write ``rate`` records per second in total, in bursts to one writer after the other.

    Latencies count from the intended time.
    """
    histogram, payload = Histogram(), os.urandom(size)
    total, writer_count = max(1, int(rate * seconds / burst)), len(writers)
    start, count = perf_counter(), 0
    idle_s = TICK_S if rate / burst * TICK_S > 1 else 0.0
    async with Timed(histogram) as timed:
        while count < total:
            due_bursts = min(total, int((perf_counter() - start) * rate / burst) + 1)
            if due_bursts <= count:
                await trio.sleep(max(idle_s, start + count * burst / rate - perf_counter()))
                continue
            while count < due_bursts:
                submit = writers[count % writer_count].submit
                for _ in range(burst):
                    last_write = await submit(payload)
                timed.add(start + count * burst / rate, last_write)
                count += 1
    return _found(count * burst, perf_counter() - start, histogram)


def _found(records: int, seconds: float, latency: Histogram) -> Result:
    return {
        "records": records,
        "records_per_s": round(records / seconds, 1),
        "latency_ms": latency.summary_ms(),
    }


# --- cases ----------------------------------------------------------------------------------------


async def connected(
    uri: str,
    logs: Sequence[str],
    is_over: trio.Event,
    *,
    task_status: trio.TaskStatus[list[Any]],
) -> None:
    """Open one connection with a writer for each log, and keep it until the event."""
    writers: list[Any] = []
    async with open_namespace(uri) as namespace:
        limit = trio.CapacityLimiter(OPENED_AT_ONCE)

        async def open_one(log: str) -> None:
            async with limit:
                writer = await namespace.open_log(log).open_writer()
                writers.append(writer)
                await writer.write(b"first")  # the first record of a log may wait for metadata

        try:
            async with trio.open_nursery() as nursery:
                for log in logs:
                    nursery.start_soon(open_one, log)
            task_status.started(writers)
            await is_over.wait()
        finally:
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(writer.aclose)


async def fan_in(cluster_info: Result, arguments: argparse.Namespace) -> list[Result]:
    """Run the fan-in case. Return one result per turn and record size."""
    results = []
    async with open_namespace(cluster_info["uri"]) as namespace:
        for turn in range(arguments.turns):
            for size in SIZES:
                log = f"fan-in-{turn}-{size}"
                for path_name in ("proxy", "direct"):
                    await namespace.create_log(f"{log}-{path_name}", txids="count")
                _say(f"turn {turn + 1} of {arguments.turns}: {size} B, fan-in")
                proxied = await _run_loads(cluster_info, log, size, arguments, None)
                rate = SHARE * proxied["full"]["records_per_s"]
                direct = await _run_loads(cluster_info, log, size, arguments, rate)
                results.append({"size": size, "turn": turn, "proxy": proxied, "direct": direct})
    return results


async def _run_loads(
    cluster_info: Result, log: str, size: int, arguments: argparse.Namespace, rate: float | None
) -> Result:
    """Run the three loads through the proxy, or directly if ``rate``, the proxy's share, is given."""
    path_name = "proxy" if rate is None else "direct"
    uri = cluster_info["proxied_uri" if rate is None else "uri"]
    is_over, seconds, burst = trio.Event(), arguments.seconds, arguments.burst
    results: Result = {}
    async with trio.open_nursery() as nursery:
        writers: list[Any] = []
        for _ in range(arguments.connections if rate is None else 1):
            writers += await nursery.start(connected, uri, [f"{log}-{path_name}"], is_over)
        writers *= arguments.connections // len(writers)
        await full_speed(writers, size, burst, 0.5)
        # This process stands for two hundred clients. A full garbage collection of all their objects takes
        # 60 ms or more, which a real client would not have.
        gc.collect()
        gc.freeze()
        loads: dict[str, Callable[[], Any]] = {
            "full": partial(full_speed, writers, size, burst, seconds),
            "share": lambda: at_a_rate(
                writers, size, burst, rate or SHARE * results["full"]["records_per_s"], seconds
            ),
            "lone": partial(at_a_rate, writers, size, 1, LONE_RATE, seconds),
        }
        for name, load in loads.items():
            meter = Used(cluster_info["nodes"])
            result = await load()
            results[name] = {**result, **meter.per_record(result["records"])}
        gc.unfreeze()
        is_over.set()
    return results


async def many_logs(cluster_info: Result, arguments: argparse.Namespace) -> Result:
    """Run the many-logs case: open the logs, wait, and write at each rate."""
    first_log, *names = [f"many-{n}" for n in range(arguments.logs)]
    is_over = trio.Event()
    async with trio.open_nursery() as nursery:
        writers: list[Any] = await nursery.start(
            connected, cluster_info["proxied_uri"], [first_log], is_over
        )
        meter = Used(cluster_info["nodes"])
        bytes_before = meter.proxy_bytes
        opened_s = perf_counter()
        logs_per_client = -(-arguments.logs // arguments.clients)
        for start in range(0, len(names), logs_per_client):
            _say(f"many logs: {start} of {arguments.logs} open")
            client_logs = names[start : start + logs_per_client]
            writers = writers + await nursery.start(
                connected, cluster_info["proxied_uri"], client_logs, is_over
            )
        opened_s = perf_counter() - opened_s
        gc.collect()
        gc.freeze()  # affects only this process
        open_bytes = meter.proxy_bytes - bytes_before
        await trio.sleep(IDLE_S)
        idle_meter = Used(cluster_info["nodes"])
        await trio.sleep(IDLE_S)
        results: Result = {
            "logs": arguments.logs,
            "opened_s": round(opened_s, 1),
            "idle_proxy_cpu_pct": idle_meter.percent_of_proxy(IDLE_S),
            "open_kib_a_log": round(open_bytes / arguments.logs / 1024, 1),
            "rates": [],
        }
        for rate in arguments.rates:
            _say(f"many logs: {rate} records/s in total")
            meter = Used(cluster_info["nodes"])
            result = await at_a_rate(writers, arguments.many_size, 1, rate, arguments.many_seconds)
            for writer in writers:
                await writer.commit()
            rate_result = {"offered_per_s": rate, **result, **meter.per_record(result["records"])}
            results["rates"].append(rate_result)
        results["kib_a_log"] = round((meter.proxy_bytes - bytes_before) / arguments.logs / 1024, 1)
        gc.unfreeze()
        is_over.set()
    return results


# --- the command ----------------------------------------------------------------------------------


@contextmanager
def cluster(directory: Path) -> Iterator[Result]:
    """Run `dlog local` with a write proxy, and yield the content of its ready file."""
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "distributedlog.cli.main", "local", "--processes"]
    command += ["--write-proxies", "1", "--data", str(directory / "cluster")]
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready)], env=environment(), stdout=subprocess.DEVNULL
    )
    try:
        yield await_ready(ready, process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def fan_in_table(results: list[Result], connections: int) -> str:
    """Return the medians over the turns and the targets, as Markdown."""
    lines = [
        f"{connections} connections to one log",
        "",
        "| load | proxy records/s | direct records/s | ratio | proxy p50 / p99 ms | direct p50 / p99 ms"
        " | CPU µs per record: clients, proxy, bookies | directly: client, bookies |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in SIZES:
        turns = [result for result in results if result["size"] == size]
        for load, name in (("full", "full speed"), ("share", "a tenth of it"), ("lone", "single")):
            cells = [f"{size} B, {name}"]
            rates = {
                path_name: _median(turns, path_name, load, "records_per_s")
                for path_name in ("proxy", "direct")
            }
            cells += [f"{rates['proxy']:,.0f}", f"{rates['direct']:,.0f}"]
            cells.append(f"{rates['proxy'] / rates['direct']:.2f}" if load == "full" else "–")
            for path_name in ("proxy", "direct"):
                p50, p99 = (
                    _median(turns, path_name, load, "latency_ms", p) for p in ("p50", "p99")
                )
                cells.append(f"{p50:.2f} / {p99:.2f}")
            for path_name, kinds in (
                ("proxy", ("client", "write-proxy", "bookie")),
                ("direct", ("client", "bookie")),
            ):
                cpu_figures = [_median(turns, path_name, load, "cpu_us", kind) for kind in kinds]
                cells.append(", ".join(f"{us:.2f}" for us in cpu_figures))
            lines.append("| " + " | ".join(cells) + " |")
    for size in SIZES:
        turns = [result for result in results if result["size"] == size]
        ratio = _median(turns, "proxy", "full", "records_per_s") / _median(
            turns, "direct", "full", "records_per_s"
        )
        p99_differences = [
            result["proxy"]["share"]["latency_ms"]["p99"]
            - result["direct"]["share"]["latency_ms"]["p99"]
            for result in turns
        ]
        lines += [
            "",
            f"{size} B: {ratio:.2f} of the direct rate (target: {TARGETS['ratio']}); p99 at a tenth of it "
            f"{statistics.median(p99_differences):+.2f} ms (target: {TARGETS['p99_above_ms']:+g} at most)",
        ]
    others_cpu = [
        result[path_name]["full"]["others_cpu_pct"]
        for result in results
        for path_name in ("proxy", "direct")
    ]
    lines += ["", f"others' CPU {statistics.median(others_cpu):.0f} %"]
    return "\n".join(lines)


def many_logs_table(results: Result) -> str:
    """Return the figures and the targets as Markdown."""
    lines = [
        f"{results['logs']} logs on one proxy, opened in {results['opened_s']} s; idle they use "
        f"{results['idle_proxy_cpu_pct']} % of a core; {results['open_kib_a_log']} KiB per log when open, "
        f"{results['kib_a_log']} after the load (target: {TARGETS['log_kib']:g})",
        "",
        "| records/s offered | written | p50 / p99 ms | CPU µs per record: client, proxy, bookies, metadata"
        " | others' CPU % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for rate_result in results["rates"]:
        latency, us = rate_result["latency_ms"], rate_result["cpu_us"]
        cpu_figures = ", ".join(f"{us[k]:.1f}" for k in ("client", *KINDS))
        lines.append(
            f"| {rate_result['offered_per_s']:,} | {rate_result['records_per_s']:,.0f} | "
            f"{latency['p50']:.1f} /"
            f" {latency['p99']:.1f} | {cpu_figures} | {rate_result['others_cpu_pct']:.0f} |"
        )
    last_rate = results["rates"][-1]
    lines += [
        "",
        f"p99 at {last_rate['offered_per_s']:,}/s: {last_rate['latency_ms']['p99']:.1f} ms "
        f"(target: {TARGETS['many_p99_ms']:g} at 20,000)",
    ]
    return "\n".join(lines)


def _median(turns: list[Result], *keys: str) -> float:
    values = []
    for turn_result in turns:
        value: Any = turn_result
        for key in keys:
            value = value[key]
        values.append(float(value))
    return statistics.median(values)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the cases and print the figures."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--cases", nargs="+", choices=("fan-in", "many-logs"), default=None)
    parser.add_argument(
        "--data", type=data_directory, help="directory for the clusters' data (default: temporary)"
    )
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--turns", type=int, default=3, help="turns of the fan-in")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each fan-in load")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--burst", type=int, default=50, help="records per burst")
    parser.add_argument("--logs", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=10, help="connections for the many logs")
    parser.add_argument("--rates", type=int, nargs="+", default=[2000, 20_000], help="records/s")
    parser.add_argument("--many-size", type=int, default=100, help="bytes of their records")
    parser.add_argument("--many-seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{this_build().describe()}\n")
    for case in arguments.cases or ("fan-in", "many-logs"):
        with (
            tempfile.TemporaryDirectory(dir=arguments.data) as directory,
            cluster(Path(directory)) as cluster_info,
        ):
            if case == "fan-in":
                results[case] = trio.run(fan_in, cluster_info, arguments)
                print(fan_in_table(results[case], arguments.connections), end="\n\n", flush=True)
            else:
                results[case] = trio.run(many_logs, cluster_info, arguments)
                print(many_logs_table(results[case]), end="\n\n", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    run(main)
