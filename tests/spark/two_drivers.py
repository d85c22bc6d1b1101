"""S13: two drivers, each a JVM of its own, on one checkpoint at the same time, copying log to log. Spark's
own checkpoint log ends one of them; the target holds every record of the source once, in its order.

    python -m tests.spark.two_drivers --records 400000 --rounds 3
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from distributedlog import open_namespace
from tests.cluster.story import Cluster
from tests.spark.kill_campaign import Driver, digest, fill


async def empty(uri: str) -> None:
    """A new target for the next round."""
    async with open_namespace(uri) as namespace:
        await namespace.delete_log("out")
        await namespace.create_log("out")


def main(arguments: Any) -> int:
    """0: in each round the target was the source."""
    chance = random.Random(arguments.seed)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="two-drivers-") as directory:
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=3)
        cluster.start()
        with cluster:
            trio.run(fill, cluster.uri, arguments.records, 4)
            before = trio.run(digest, cluster.uri, "in")
            for number in range(arguments.rounds):
                place = Path(directory) / str(number)
                place.mkdir()
                per_trigger = max(1, arguments.records // 20)
                first = Driver(cluster.uri, place / "checkpoint", chance, per_trigger)
                if number % 2:  # every other time the second one joins in mid-work
                    first.until("batch")
                second = Driver(cluster.uri, place / "checkpoint", chance, per_trigger)
                started = time.monotonic()
                ended = [driver.end() for driver in (first, second)]
                if 0 not in ended:  # both stopped each other: the restart replays
                    ended.append(
                        Driver(cluster.uri, place / "checkpoint", chance, per_trigger).end()
                    )
                after = trio.run(digest, cluster.uri, "out")
                same = after == before and ended[-1 if len(ended) == 3 else ended.index(0)] == 0
                failures += not same
                print(
                    f"round {number + 1}: {after[0]} of {before[0]} records, drivers ended with {ended} "
                    f"after {time.monotonic() - started:.0f} s: {'SAME' if same else 'DIFFERENT'}",
                    flush=True,
                )
                trio.run(empty, cluster.uri)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    raise SystemExit(main(parser.parse_args()))
