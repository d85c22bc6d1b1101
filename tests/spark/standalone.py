"""S26: a Spark standalone cluster of two workers on two loopback hosts; the code comes to it as a zip.

    python -m tests.spark.standalone --mib 1024

A log of 1 KB records is read and aggregated, once undisturbed, once while a worker and its executor are
killed with -9 in mid-query; then it is copied into another log, with a kill as well. All answers must be
right. Last (S17), with speculation on, one task's first attempt is slow: its twin's segments are linked, its
own are an orphan, which the next commit removes.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyspark
import trio

from distributedlog import open_namespace
from distributedlog.log.model.log_keys import incarnation_id, staged_ledgers_prefix
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.spark.session_settings import package_zip, recommended_conf
from tests.cluster.story import Cluster
from tests.spark.conftest import spark_env

MASTER = "spark://127.0.0.1:17077"
SIZE = 1024


class Standalone:
    """Spark's own daemons, from the pip package."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        home = str(Path(pyspark.__file__).parent)
        self.command = [f"{home}/bin/spark-class"]
        # Workers get no PYTHONPATH of ours: what they import of this package came with the job.
        self.env = {
            **os.environ, "SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "256m", "PYTHONPATH": "",
            "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """A master and two workers."""
        master = (
            "org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 17077 --webui-port 18080"
        )
        self._start("master", master.split())
        time.sleep(5)
        for number in (1, 2):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        """One, on a loopback host of its own."""
        host = f"127.0.0.{number}"
        worker = (
            f"org.apache.spark.deploy.worker.Worker --host {host} --port 1708{number} "
            f"--webui-port 1808{number} --cores 1 --memory 1g "
            f"--work-dir {self.directory}/work{number} {MASTER}"
        )
        self._start(f"worker{number}", worker.split(), SPARK_LOCAL_IP=host)

    def _start(self, name: str, arguments: list[str], **env: str) -> None:
        self.processes[name] = subprocess.Popen(
            self.command + arguments, env={**self.env, **env}, start_new_session=True,
            stdout=(self.directory / f"{name}.log").open("ab"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """kill -9 a daemon and what it started: its session."""
        process = self.processes.pop(name)
        children = subprocess.run(
            ["pgrep", "-s", str(process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()

    def stop(self) -> None:
        """End all that we started."""
        for name in list(self.processes):
            self.kill(name)


async def fill(uri: str, records: int) -> None:
    """The log that is read."""
    body = bytes(SIZE - 8)
    async with open_namespace(uri) as namespace:
        await namespace.create_log("out")
        async with namespace.open_log("in").open_writer() as writer:
            for at in range(0, records, 4_000):
                numbers = list(range(at, min(at + 4_000, records)))
                payloads = [number.to_bytes(8) + body for number in numbers]
                await writer.submit_columns(numbers, payloads)


SLOW_S = 60
PARTS = 4
ROWS = 20_000
"""Of a part: several batches, so that the slow attempt has written when it stops at its last row."""


def speculated(session: Any, uri: str) -> int:
    """S17; 0: each record once, a loser that was an orphan, and none left."""
    from pyspark.sql.functions import udf

    def slow(txid: int) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        if txid == ROWS * PARTS - 1 and context.attemptNumber() == 0:
            time.sleep(SLOW_S)
        return txid

    def put(first: int) -> None:
        numbers = session.range(first, first + ROWS * PARTS, 1, PARTS)
        made = numbers.select(udf(slow, "bigint")("id").alias("txid"))
        made = made.selectExpr("txid", "cast(repeat('x', 1024) as binary) as payload")
        writer = made.write.format("distributedlog").mode("append").option("log", "twins")
        writer = writer.option("createLogs", "true").option("orphanTtl", "5s")
        writer.option("requestTimeout", "60s").save(uri)

    async def unlinked(namespace: Any) -> set[bytes]:
        """Segments of the log that no link refers to."""
        start = staged_ledgers_prefix(
            incarnation_id((await namespace.open_log("twins").snapshot()).incarnation)
        )
        found = await namespace.metadata.range(start, prefix_end(start), limit=1_000)
        return {one.key for one in found.items}

    async def look() -> tuple[list[int], int]:
        async with (
            open_namespace(uri) as namespace,
            namespace.open_log("twins").open_reader(to="end") as reader,
        ):
            return [one.txid async for one in reader], len(await unlinked(namespace))

    written: set[bytes] = set()
    linked = threading.Event()

    async def watch() -> None:
        """All that attempts write until the batch is linked: that commit removes the loser's at once."""
        async with open_namespace(uri) as namespace:
            while not linked.is_set():
                if await namespace.log_exists("twins"):
                    written.update(await unlinked(namespace))
                await trio.sleep(0.3)

    watcher = threading.Thread(target=trio.run, args=(watch,))
    watcher.start()
    started = time.monotonic()
    put(0)
    took = time.monotonic() - started
    linked.set()
    watcher.join()
    first, orphans = trio.run(look)
    time.sleep(SLOW_S)  # a loser that was not interrupted writes until now
    put(ROWS * PARTS)  # its commit finds what is older than `orphanTtl`
    last, left = trio.run(look)
    right = first == list(range(ROWS * PARTS)) and last == list(range(2 * ROWS * PARTS))
    fine = right and took < SLOW_S and len(written) > PARTS and not left
    print(
        f"speculation: {len(first)} records after {took:.1f} s (an attempt slept {SLOW_S} s) of {PARTS} "
        f"parts, {len(written)} segments written, orphans {orphans}, then {left}: "
        f"{'right' if fine else 'WRONG'}",
        flush=True,
    )
    return int(not fine)


def main(mib: int, *, only_speculation: bool = False) -> int:
    """0: all answers were right."""
    records = mib * 1024 * 1024 // SIZE
    wanted = (records, records * (records - 1) // 2, records * SIZE)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="standalone-") as directory:
        spark_env()
        spark_cluster = Standalone(Path(directory))
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=3)
        cluster.start()
        with cluster:
            trio.run(fill, cluster.uri, records)
            print(f"{records} records of {SIZE} B written", flush=True)
            spark_cluster.start()
            try:
                from pyspark.sql import SparkSession

                builder = SparkSession.builder.master(MASTER).config("spark.driver.memory", "1g")
                for key, value in recommended_conf(local=True).items():
                    builder = builder.config(key, value)
                spark = builder.config("spark.executor.memory", "700m").config(
                    "spark.executor.cores", "1"
                )
                spark.config("spark.speculation", "true")
                spark.config("spark.speculation.quantile", "0.5")
                spark.config("spark.speculation.multiplier", "1.5")
                spark.config("spark.speculation.minTaskRuntime", "3s")
                # Else a task that has read its rows and then sleeps counts as an efficient one.
                spark.config("spark.speculation.efficiency.enabled", "false")
                session = spark.getOrCreate()
                session.sparkContext.setLogLevel("ERROR")
                session.sparkContext.addPyFile(package_zip(directory))

                def timed(what: str, call: Any, right: Any) -> None:
                    nonlocal failures
                    started = time.monotonic()
                    found = call()
                    same = found == right
                    failures += not same
                    took = time.monotonic() - started
                    print(
                        f"{what}: {'right' if same else f'WRONG {found}'} after {took:.1f} s",
                        flush=True,
                    )

                def aggregate(log: str) -> tuple[int, int, int]:
                    reader = session.read.format("distributedlog").option("log", log)
                    reader = reader.option("maxBytesPerPartition", "16m").option(
                        "requestTimeout", "60s"
                    )
                    frame = reader.schema("txid bigint, payload binary").load(cluster.uri)
                    row = frame.selectExpr(
                        "count(*)", "sum(txid)", "sum(length(payload))"
                    ).collect()[0]
                    return row[0], row[1], row[2]

                def copy() -> tuple[int, int, int]:
                    reader = session.read.format("distributedlog").option("log", "in")
                    reader = reader.option("maxBytesPerPartition", "32m").option(
                        "requestTimeout", "60s"
                    )
                    writer = reader.schema("txid bigint, payload binary").load(cluster.uri).write
                    writer = writer.format("distributedlog").mode("append").option("log", "out")
                    writer.option("requestTimeout", "60s").save(cluster.uri)
                    return aggregate("out")

                def killed(call: Any, after_s: float) -> Any:
                    timer = threading.Timer(after_s, lambda: spark_cluster.kill("worker2"))
                    timer.start()
                    found = call()
                    timer.join()
                    spark_cluster.start_worker(2)
                    time.sleep(10)
                    return found

                if only_speculation:
                    failures += speculated(session, cluster.uri)
                    session.stop()
                    return failures
                timed("first read", lambda: aggregate("in"), wanted)
                started = time.monotonic()
                timed("read", lambda: aggregate("in"), wanted)
                half = (time.monotonic() - started) / 2
                timed(
                    "read, a worker killed", lambda: killed(lambda: aggregate("in"), half), wanted
                )
                timed("write, a worker killed", lambda: killed(copy, 2 * half), wanted)
                failures += speculated(session, cluster.uri)
                session.stop()
            finally:
                spark_cluster.stop()
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--only-speculation", action="store_true")
    arguments = parser.parse_args()
    raise SystemExit(main(arguments.mib, only_speculation=arguments.only_speculation))
