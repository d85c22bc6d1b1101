"""What a console costs: seconds of its CPU while nobody looks, for a page, and for the tail of a busy log.

python -m tests.console.cost
"""

import json
import os
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


def cpu_s(pid: int) -> float:
    """User's and system's, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(pid: int, what: str, events: Iterator[Any]) -> None:
    """Look for a while, and say what it cost."""
    before, begun, count = cpu_s(pid), time.monotonic(), 0
    for _ in events:
        count += 1
        if time.monotonic() - begun > WATCHED_S:
            break
    took = time.monotonic() - begun
    print(f"{what}: {cpu_s(pid) - before:.2f} s of CPU in {took:.0f} s, {count} states", flush=True)


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
        before = cpu_s(console.pid)
        time.sleep(WATCHED_S)
        print(f"nobody looks: {cpu_s(console.pid) - before:.2f} s of CPU in {WATCHED_S:.0f} s")
        watch(console.pid, "the cluster's page", browser.events("/events", page="cluster"))
        with open_namespace(uri) as namespace:
            namespace.create_log("fast")
            done, written = threading.Event(), [0]
            thread = threading.Thread(target=write, args=(namespace, done, written))
            thread.start()
            tail = browser.events("/tail", log="fast")
            next(tail)
            before_written = written[0]
            watch(console.pid, "a tail", tail)
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
