"""S10 at length: log to log, the driver and its JVM killed with -9 again and again, tasks failing at random,
one bookie killed and restarted meanwhile. Then the target holds every record once, in the source's order.

    python -m tests.spark.kill_campaign --records 2000000 --kills 20
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from distributedlog import open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests.cluster.story import Cluster
from tests.spark.conftest import ROOT, payload


async def fill(uri: str, records: int, segments: int) -> None:
    """Write the source: segments of records whose txid is their number."""
    async with open_namespace(uri) as namespace:
        await namespace.create_log("out")
        for part in range(segments):
            async with namespace.open_log("in").open_writer() as writer:
                for at in range(
                    records * part // segments, records * (part + 1) // segments, 2_000
                ):
                    numbers = list(range(at, min(at + 2_000, records * (part + 1) // segments)))
                    await writer.submit_columns(
                        numbers, [payload(number, 100) for number in numbers]
                    )


async def digest(uri: str, log: str) -> tuple[int, str]:
    """How many records, and a digest of all of them in order."""
    found, count = hashlib.blake2b(), 0
    async with (
        open_namespace(uri) as namespace,
        namespace.open_log(log).open_reader(to="end") as reader,
    ):
        while (
            columns := await reader.read_columns(wait_s=0 if reader.ended else None)
        ) is not None:
            for txid, data in columns.tuples():
                found.update(b"%d:%d:" % (txid, len(data)) + data)
            count += columns.count
    return count, found.hexdigest()


async def linked(uri: str) -> tuple[int, int]:
    """Records and segments of the target."""
    async with open_namespace(uri) as namespace:
        found = await namespace.open_log("out").snapshot()
        return found.records, len(found.segments)


class Driver:
    """One run of the driver, in a session of its own."""

    def __init__(self, uri: str, checkpoint: Path, chance: random.Random, per_trigger: int) -> None:
        partitions = chance.choice((1, 2, 3, 4))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copy_driver", uri, str(checkpoint), str(per_trigger),
             str(partitions), "5"],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, start_new_session=True,
            stderr=(checkpoint.parent / "driver.stderr").open("ab"), text=True,
        )  # fmt: skip

    def until(self, word: str) -> None:
        """Until it says so: ``started``, or ``batch`` when a micro-batch is through; or it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return

    def kill(self) -> None:
        """kill -9 it and its JVM; the Python workers end with the JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Let it run to its end."""
        said, _ = self.process.communicate(timeout=3_600)
        print("   ", (said.strip().splitlines() or ["nothing"])[-1])
        return self.process.returncode


def main(arguments: Any) -> int:
    """0: the target is the source."""
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="kill-campaign-") as directory:
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=4)
        cluster.start()
        with cluster:
            trio.run(fill, cluster.uri, arguments.records, 8)
            before = trio.run(digest, cluster.uri, "in")
            print(f"source: {before[0]} records, {before[1][:16]}", flush=True)
            checkpoint = Path(directory) / "checkpoint"
            per_trigger = max(1, arguments.records // (2 * arguments.kills + 4))
            victim = ""
            for kill in range(arguments.kills):
                started = time.monotonic()
                driver = Driver(cluster.uri, checkpoint, chance, per_trigger)
                # Half of them in its first batches, which take long to begin; half in mid-work.
                if chance.random() < 0.5:
                    driver.until("started")
                    time.sleep(chance.uniform(0.0, arguments.life_s))
                else:
                    driver.until("batch")
                    time.sleep(chance.uniform(0.0, arguments.life_s / 3))
                driver.kill()
                if victim:
                    cluster.start(victim)
                    victim = ""
                elif kill % 4 == 1:
                    victim = chance.choice([n for n in cluster.served if n.startswith("bookie")])
                    cluster.kill(victim)
                records, segments = trio.run(linked, cluster.uri)
                print(
                    f"kill {kill + 1} after {time.monotonic() - started:.0f} s: {records} records linked in "
                    f"{segments} segments{', ' + victim + ' killed' if victim else ''}", flush=True,
                )  # fmt: skip
            if victim:
                cluster.start(victim)
            for _ in range(3):
                if Driver(cluster.uri, checkpoint, chance, arguments.records).end() == 0:
                    break
            after = trio.run(digest, cluster.uri, "out")
            print(
                f"target: {after[0]} records, {after[1][:16]}: {'SAME' if before == after else 'DIFFERENT'}"
            )
            return 0 if before == after else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--life-s", type=float, default=15.0, help="a driver lives up to this long")
    parser.add_argument("--seed", type=int, default=1)
    raise SystemExit(main(parser.parse_args()))
