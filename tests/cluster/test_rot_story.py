"""Real processes: bits flipped all over one bookie's files, all healed in place, told by `dlog status`.

By hand, larger: ``python -m tests.cluster.test_rot_story 200000``.
"""

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.cluster.story import Cluster
from tests.cluster.test_damage_told import flip_pages

pytestmark = pytest.mark.processes

RECORD = b"x" * 3000
STORED_S = 60.0
"""Against a hang only."""


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
    files = _journals(cluster, "bookie3")
    assert sum(flip_pages(path, chance) for path in files) > records // 300
    cluster.start("bookie3")

    scrubbed = cluster.json("scrub", "bookie3", "--wait", "--timeout", "100")

    assert scrubbed["done"], scrubbed
    status = cluster.json("status", "--wait", "--timeout", "100", codes=(0, 6))
    assert status["healthy"], status["reasons"]
    (corruption,) = [one["corruption"] for one in status["bookies"] if one["label"] == "bookie3"]
    assert corruption["corrupt_ledgers"] == corruption["without_a_good_copy"] == 0
    cluster.kill("bookie1", "bookie2")  # what it has is sound: it is read from it alone
    read = cluster.run("log", "read", "kept", "--timeout", "60", "--limit", str(records))
    assert read.stdout == lines, (len(read.stdout), read.stderr[-1000:])
    return int(corruption["repaired_entries"])


def test_bits_flipped_in_a_hundredth_of_a_bookies_pages_are_healed(tmp_path: Path) -> None:
    with Cluster.planned(tmp_path, bookies=3, metadata_nodes=1) as cluster:
        assert heals(cluster, 700) > 0


def test_a_killed_writers_log_is_opened_though_a_copy_that_must_acknowledge_rotted(
    tmp_path: Path,
) -> None:
    """All three are to acknowledge, there is no fourth: the recovery waits for a bookie that heals itself."""
    lines = [b"line %06d " % number + RECORD for number in range(40)]
    with Cluster.planned(tmp_path, bookies=3, metadata_nodes=1) as cluster:
        cluster.start()
        assert cluster.run("log", "create", "kept", "--durability", "all").returncode == 0
        writer = cluster.popen("log", "write", "kept", stdin=subprocess.PIPE)
        assert writer.stdin is not None
        for part in (lines[:20], lines[20:]):
            writer.stdin.write(b"".join(line + b"\n" for line in part))
            writer.stdin.flush()
            _wait_stored(cluster, part[-1])
            cluster.pause("bookie1")  # what comes now is on the others, and not acknowledged
        writer.kill()
        writer.wait()
        cluster.resume("bookie1")
        for _ in range(
            2
        ):  # the first start copies the last block, the second has nothing in memory
            cluster.served["bookie3"].signal(signal.SIGTERM)
            cluster.served["bookie3"].process.wait(30)
            cluster.kill("bookie3")
            cluster.start("bookie3")
        assert sum(_rot_lines(path) for path in _journals(cluster, "bookie3")) >= len(lines)

        added = cluster.run("log", "write", "kept", "--timeout", "100", input=b"more\n")

        assert added.returncode == 0, added.stderr[-2000:]
        read = cluster.run("log", "read", "kept", "--timeout", "60", "--limit", str(len(lines) + 1))
        assert read.stdout.splitlines() == [*lines, b"more"], read.stderr[-1000:]
        status = cluster.json("status", "--wait", "--timeout", "100", codes=(0, 6))
        assert status["healthy"], status["reasons"]


def _journals(cluster: Cluster, name: str) -> list[Path]:
    return sorted((cluster.directory / name).rglob("journal-*"))


def _wait_stored(cluster: Cluster, line: bytes) -> None:
    """On the two bookies that are never stopped before."""
    deadline = time.monotonic() + STORED_S
    for name in ("bookie2", "bookie3"):
        while not any(line in path.read_bytes() for path in _journals(cluster, name)):
            assert time.monotonic() < deadline, f"{name} does not store {line[:11]!r}"
            time.sleep(0.1)


def _rot_lines(path: Path) -> int:
    """A bit flips in each of the records; how many."""
    content = path.read_bytes()
    found = [match.start() for match in re.finditer(rb"line \d{6} x", content)]
    with path.open("r+b") as file:
        for at in found:
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))
    return len(found)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster.planned(Path(directory), bookies=3) as large,
    ):
        print(f"{heals(large, int(sys.argv[1]))} entries healed")
