"""Real processes: bits flipped all over one bookie's files, all healed in place, told by `dlog status`.

By hand, larger: ``python -m tests.cluster.test_rot_story 200000``.
"""

import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.story import Cluster
from tests.cluster.test_damage_told import flip_pages

pytestmark = pytest.mark.processes

RECORD = b"x" * 3000


def heals(cluster: Cluster, records: int) -> int:
    """Flip a bit in a hundredth of the pages of a bookie that was stopped; how many entries it healed."""
    cluster.start()
    lines = b"\n".join([RECORD] * records) + b"\n"
    assert cluster.run("log", "write", "kept", "--create", input=lines, timeout=600).returncode == 0
    served = cluster.served["bookie3"]
    served.signal(signal.SIGTERM)  # it checkpoints: nothing is written anew
    served.process.wait(30)
    cluster.kill("bookie3")
    chance = random.Random(7)
    files = sorted((cluster.directory / "bookie3").rglob("journal-*"))
    assert sum(flip_pages(path, chance) for path in files) > records // 300
    cluster.start("bookie3")

    scrubbed = cluster.json("scrub", "bookie3", "--wait", "--timeout", "100")

    assert scrubbed["done"], scrubbed
    status = cluster.json("status", "--wait", "healthy", "--timeout", "100", codes=(0, 6))
    assert status["healthy"], status["reasons"]
    (rot,) = [one["rot"] for one in status["bookies"] if one["label"] == "bookie3"]
    assert rot["rotten_ledgers"] == rot["without_a_good_copy"] == 0
    cluster.kill("bookie1", "bookie2")  # what it has is sound: it is read from it alone
    read = cluster.run("log", "read", "kept", "--timeout", "60", "--limit", str(records))
    assert read.stdout == lines, (len(read.stdout), read.stderr[-1000:])
    return int(rot["healed_entries"])


def test_bits_flipped_in_a_hundredth_of_a_bookies_pages_are_healed(tmp_path: Path) -> None:
    with Cluster.planned(tmp_path, bookies=3, metadata_nodes=1) as cluster:
        assert heals(cluster, 700) > 0


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster.planned(Path(directory), bookies=3) as large,
    ):
        print(f"{heals(large, int(sys.argv[1]))} entries healed")
