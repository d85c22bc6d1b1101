"""Damage is told: what a start or a read has met is a reason in `dlog status`, until it is healed.

On real processes: one bookie's journal emptied, another's flipped in a page of a hundred, a file of the third
taken away under it.
"""

import random
import signal
import time
from pathlib import Path

import pytest
import trio

from distributedlog.cluster.status.node_health import NodeHealth, query_health
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.machine import real_host
from tests.cluster.story import Cluster

pytestmark = pytest.mark.processes

PAGE = 4096
RECORD = b"x" * 3000
RECORDS = 700
TOLD_S = 120.0
"""Against a hang only: a registration with a new reason is told within two seconds, on a machine at rest."""

DAMAGED = ("bookie2", "bookie3")
DAMAGE = {Code.LIMBO, Code.DAMAGED_READS, Code.ENTRIES_CORRUPT, Code.ENTRIES_REPAIRED}
ENDED = {Code.BOOKIE_DOWN, Code.BOOKIE_DOWN_NO_REPLACEMENT, Code.BOOKIE_DOWN_UNUSED}
TOLD = {"bookie2": DAMAGE | ENDED, "bookie3": DAMAGE}
"""A bookie ends with `DataDirectoryLost` if its directory check finds a missing file before a read does."""


def _journals(cluster: Cluster, name: str) -> list[Path]:
    return sorted((cluster.directory / name).rglob("journal-*"))


def flip_pages(path: Path, chance: random.Random) -> int:
    """A bit in one of a hundred pages that hold something; how many."""
    flipped = 0
    with path.open("r+b") as file:
        number = 0
        while page := file.read(PAGE):
            if any(page) and chance.random() < 0.01:
                file.seek(number * PAGE + chance.randrange(PAGE))
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
                flipped += 1
            number += 1
            file.seek(number * PAGE)
    return flipped


def _health(cluster: Cluster, name: str) -> NodeHealth:
    address = next(node.address for node in cluster.plan.nodes if node.name == name)
    return trio.run(query_health, real_host("asker"), address)


def test_limbo_damaged_pages_and_a_missing_file_are_conditions(tmp_path: Path) -> None:
    """It said healthy."""
    with Cluster.planned(tmp_path, bookies=3, metadata_nodes=1) as cluster:
        cluster.start()
        lines = b"\n".join([RECORD] * RECORDS) + b"\n"
        assert cluster.run("log", "write", "kept", "--create", input=lines).returncode == 0
        assert cluster.json("status", "--wait")["conditions"] == []
        cluster.served["bookie2"].signal(signal.SIGTERM)  # it checkpoints: nothing is written anew
        cluster.served["bookie2"].process.wait(30)
        requested = cluster.json("scrub", "bookie2")
        assert (requested["reading"], requested["done"]) == (False, False)  # until it starts
        cluster.kill("bookie1", "bookie3")

        for path in _journals(cluster, "bookie1"):
            path.write_bytes(b"")
        chance = random.Random(7)
        assert sum(flip_pages(path, chance) for path in _journals(cluster, "bookie3")) > 1
        old = _journals(cluster, "bookie2")
        cluster.start("bookie1", "bookie2", "bookie3")
        for path in old:
            path.unlink(missing_ok=True)
        cluster.run("log", "read", "kept", "--timeout", "2")
        for name in DAMAGED:  # which bookie a reader asks is its own affair
            assert cluster.run("scrub", name).returncode == 0

        end = time.monotonic() + TOLD_S
        told: dict[str, set[str]] = {name: set() for name in ("bookie1", "bookie2", "bookie3")}
        while time.monotonic() < end:
            status = cluster.json("status", codes=(0, 6))
            for name, found in told.items():
                ids = [one["id"] for one in status["bookies"] if one["label"] == name]
                found.update(
                    one["code"]
                    for one in status["conditions"]
                    if one["parameters"].get("bookie") in ids
                )
            if Code.LIMBO in told["bookie1"] and all(told[name] & TOLD[name] for name in DAMAGED):
                break
        # bookie2 may have ended, or may end at any time.
        health = {name: _health(cluster, name) for name in ("bookie1", "bookie3")}

    assert Code.LIMBO in told["bookie1"], told
    for name in DAMAGED:  # what a read has met may be healed by now: it is told still
        assert told[name] & TOLD[name], told
    for name, one in health.items():
        assert one.healthy, name  # to start it again would help nobody
