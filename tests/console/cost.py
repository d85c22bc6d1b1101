"""What a console costs: milliseconds of its CPU per second without a viewer, and more with one.

python -m tests.console.cost
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributedlog.blocking import Namespace, open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests.cluster.story import dlog
from tests.console.live import Browser

WATCHED_S = 20.0
WARM_S = 12.0
LOGS = 3


def cpu_s(pid: int) -> float:
    """CPU of all its threads so far, in nanoseconds: /proc/PID/stat has whole ticks only."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


def watch(pid: int, what: str, events: Iterator[Any], idle_ms: float) -> None:
    """Look for a while, and say what it cost more than without a viewer, ``idle_ms`` per second."""
    before, begun, count = cpu_s(pid), time.monotonic(), 0
    for _ in events:
        count += 1
        if time.monotonic() - begun > WATCHED_S:
            break
    used_ms = 1e3 * (cpu_s(pid) - before) - idle_ms * (time.monotonic() - begun)
    print(f"{what}: {used_ms / count:.1f} ms of CPU more per state", flush=True)


def write(namespace: Namespace, done: threading.Event, written: list[int]) -> None:
    """Some 20,000 records of 100 bytes a second."""
    with namespace.open_log("fast").open_writer() as writer:
        while not done.wait(0.005):
            writer.write_bulk([b"x" * 100] * 1000)
            written[0] += 1000


def main() -> None:
    """A cluster, a console and a writer in processes of their own."""
    nodes = subprocess.Popen(
        dlog("local", "--json", "--memory", "--metadata-nodes", "1"),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert nodes.stdout is not None
    uri = json.loads(nodes.stdout.readline())["uri"]
    console = subprocess.Popen(
        dlog("console", "--listen", "127.0.0.1:0", "--json"),
        stdout=subprocess.PIPE,
        env={**environment(), "DLOG_URI": uri},
    )
    assert console.stdout is not None
    try:
        browser = Browser(json.loads(console.stdout.readline())["console"])
        browser.let_in()
        with open_namespace(uri) as namespace:
            for number in range(LOGS):
                namespace.create_log(f"log-{number}")
        time.sleep(WARM_S)
        before = cpu_s(console.pid)
        time.sleep(WATCHED_S)
        used_ms = 1e3 * (cpu_s(console.pid) - before) / WATCHED_S
        print(f"nobody looks: {used_ms:.1f} ms of CPU per second", flush=True)
        events = browser.events("/events", page="cluster")
        next(events)  # the first one connects to the nodes
        watch(console.pid, "the cluster's page", events, used_ms)
        with open_namespace(uri) as namespace:
            namespace.create_log("fast")
            done, written = threading.Event(), [0]
            thread = threading.Thread(target=write, args=(namespace, done, written))
            thread.start()
            tail = browser.events("/tail", log="fast")
            next(tail)
            before_written = written[0]
            watch(console.pid, "a tail", tail, used_ms)
            print(f"{written[0] - before_written} records were written meanwhile")
            done.set()
            thread.join()
    finally:
        for process in (console, nodes):
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


if __name__ == "__main__":
    main()
