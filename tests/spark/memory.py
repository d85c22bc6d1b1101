"""S30: what Spark's Python workers hold. A log of 1 GB is read with 512 MB for the JVM; then a stream of
small batches of 100 B records runs for some minutes. Workers stay below 300 MB; threads and sockets do not
grow.

    python -m tests.spark.memory --mib 1024 --minutes 10
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import trio

from distributedlog import open_namespace
from distributedlog.spark import session
from tests.cluster.story import Cluster
from tests.spark.conftest import spark_env
from tests.spark.standalone import fill

RSS_MIB_MAX = 300
GROWTH_MIB_MAX = 20
"""Of one process, from a third of the stream to its end: caches of fixed size are full by then."""


class Watched:
    """The Python processes below this one, sampled twice a second."""

    def __init__(self) -> None:
        self.peak_mib: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.5):
            for pid, (rss, _, _) in held().items():
                self.peak_mib[pid] = max(self.peak_mib.get(pid, 0.0), rss)

    def stop(self) -> float:
        """The highest of all, MiB."""
        self._stop.set()
        self._thread.join()
        return max(self.peak_mib.values(), default=0.0)


def held() -> dict[int, tuple[float, int, int]]:
    """(RSS in MiB, threads, sockets) of each Python process of Spark's: those below this one's JVM."""
    parents, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    head, _, rest = file.read().rpartition(") ")
            except OSError:
                continue  # it has just ended
            parents[int(entry)] = int(rest.split()[1])
            names[int(entry)] = head.partition("(")[2]
    found = {}
    for pid in parents:
        above, at = [], pid
        while at in parents and at != os.getpid():
            at = parents[at]
            above.append(at)
        if os.getpid() not in above or names[pid] == "java":
            continue
        if not any(names.get(one) == "java" for one in above):
            continue
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" in values:
            rss = int(values["VmRSS"].split()[0]) / 1024
            found[pid] = (rss, int(values["Threads"]), sum("socket" in link for link in links))
    return found


async def trickle(uri: str, seconds: float) -> int:
    """Some 2,000 records of 100 B a second, acknowledged twenty times a second; how many."""
    sent = 0
    async with (
        open_namespace(uri) as namespace,
        namespace.open_log("stream").open_writer() as writer,
    ):
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            await writer.submit_columns(list(range(sent, sent + 100)), [bytes(100)] * 100)
            await writer.commit()
            sent += 100
            await trio.sleep(0.05)
    return sent


async def create(uri: str) -> None:
    """The log of the stream."""
    async with open_namespace(uri) as namespace:
        await namespace.create_log("stream")


def streamed(session: Any, uri: str, checkpoint: str, seconds: float) -> int:
    """Run the stream; 0: nothing grew, nothing was lost."""
    trio.run(create, uri)
    reader = session.readStream.format("distributedlog").option("log", "stream")
    reader = reader.option("startingPosition", "earliest").option("requestTimeout", "60s")
    rows = [0]

    def take(frame: Any, _: int) -> None:
        rows[0] += frame.selectExpr("count(txid)").collect()[0][0]

    writer = reader.load(uri).writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="50 milliseconds").start()
    sent: list[int] = []
    source = threading.Thread(target=lambda: sent.append(trio.run(trickle, uri, seconds)))
    source.start()
    watched = Watched()
    time.sleep(seconds / 3)
    early = held()
    source.join()
    late = held()
    deadline = time.monotonic() + 60
    while rows[0] < sent[0] and time.monotonic() < deadline and query.isActive:
        time.sleep(0.5)
    batches = query.lastProgress.batchId
    query.stop()
    peak = watched.stop()
    failures = int(peak > RSS_MIB_MAX) + int(rows[0] != sent[0])
    print(
        f"stream: {rows[0]} of {sent[0]} records in {batches} batches, largest process {peak:.0f} MiB"
    )
    for pid in sorted(set(early) & set(late)):
        (rss, threads, sockets), (rss_then, threads_then, sockets_then) = early[pid], late[pid]
        grew = (
            rss_then - rss > GROWTH_MIB_MAX
            or threads_then > threads + 1
            or sockets_then > sockets + 2
        )
        failures += grew
        if grew or rss_then > 80:
            print(
                f"  process {pid}: {rss:.0f} then {rss_then:.0f} MiB, threads {threads} then "
                f"{threads_then}, sockets {sockets} then {sockets_then}{' GREW' if grew else ''}"
            )
    return failures


def main(mib: int, minutes: float) -> int:
    """0: all within its bounds."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        spark_env()
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=3)
        cluster.start()
        with cluster:
            trio.run(fill, cluster.uri, mib * 1024)
            # In local mode the driver's memory is the executor's.
            spark = session(conf={"spark.driver.memory": "512m"})
            watched = Watched()
            started = time.monotonic()
            reader = spark.read.format("distributedlog").option("log", "in")
            frame = reader.option("requestTimeout", "60s").load(cluster.uri)
            count = frame.selectExpr("count(txid)", "sum(length(payload))").collect()[0]
            took, peak = time.monotonic() - started, watched.stop()
            fine = tuple(count) == (mib * 1024, mib * 1024 * 1024) and peak < RSS_MIB_MAX
            failures += not fine
            print(
                f"batch of {mib} MiB after {took:.0f} s: largest Python process {peak:.0f} MiB: "
                f"{'right' if fine else f'WRONG {count}'}",
                flush=True,
            )
            failures += streamed(spark, cluster.uri, f"{directory}/checkpoint", minutes * 60)
            spark.stop()
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    raise SystemExit(main(arguments.mib, arguments.minutes))
