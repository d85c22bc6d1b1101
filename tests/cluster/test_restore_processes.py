"""Lost metadata on real processes: two rotten disks, a save alone, one node that is left (H104, H106)."""

import shutil
import time
from pathlib import Path

import pytest

from distributedlog.metadata.raft.recovered_hard_state import RECOVERY_FLOOR_FILE
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.disk.checksummed_blocks import ALIGN
from tests.cluster.story import READY_S, Cluster
from tests.conditions import codes_of

pytestmark = pytest.mark.processes


def test_metadata_comes_back_from_rot_from_a_save_and_then_from_one_node(tmp_path: Path) -> None:
    """docs/operate/recover-metadata.md, "Recover a lost quorum", to the letter."""
    with Cluster.planned(tmp_path, bookies=3) as cluster:
        cluster.start()
        nodes = [node.name for node in cluster.plan.nodes_of_kind("metadata")]
        bookie = cluster.plan.nodes_of_kind("bookie")[0].name
        at = {
            node.name: f"{node.address[0]}:{node.address[1]}"
            for node in cluster.plan.nodes_of_kind("metadata")
        }
        kept = b"".join(b"line %d\n" % n for n in range(2000))
        write(cluster, "a", kept, "--create")
        # Two are rotten in different places: nobody does anything.
        cluster.kill(*nodes)
        rotten = [tmp_path / name / "metadata" for name in nodes[1:]]
        for number, directory in enumerate(rotten, 2):
            rot_a_block(directory, number)
        cluster.start(*nodes)
        write(cluster, "a", b"by whoever is whole\n")
        kept += b"by whoever is whole\n"
        wait_until_whole(rotten)
        cluster.kill(nodes[0])
        assert cluster.run("log", "read", "a").stdout == kept

        save = str(tmp_path / "meta.save")
        saved = cluster.json("metadata", "backup", save)
        assert saved["members"] == nodes  # of the two that were filled up
        write(cluster, "lost", b"of after the save\n", "--create")
        cluster.kill(bookie)
        cluster.start(bookie)  # its cookie is newer than the save now

        # None is left.
        cluster.kill(*nodes[1:])
        for name in nodes:
            shutil.rmtree(tmp_path / name)
        first, *others = nodes
        node = ("--name", first, "--address", at[first], "--force")
        made = cluster.json("metadata", "restore", save, "--data", str(tmp_path / first), *node)
        assert made["restores"] == 1
        assert made["logs"] == 1
        cluster.start(first)
        cluster.kill(bookie)
        cluster.start(bookie, *others)
        for name in others:  # each waits until it votes
            done = cluster.run("metadata", "add", f"{name}={at[name]}")
            assert done.returncode == 0, done.stderr
        assert cluster.run("log", "read", "a").stdout == kept
        assert cluster.run("log", "read", "lost").returncode != 0
        held = cluster.json("metadata", "gc", "show", codes=(6,))
        assert "restored from meta.save" in held["why"]
        status = cluster.json("status", codes=(6,))
        assert Code.DELETIONS_HELD in codes_of(status["conditions"])
        roles = {member["role"] for member in status["metadata"]}
        assert roles == {"leader", "follower"}
        assert cluster.run("metadata", "gc", "resume").returncode == 0
        write(cluster, "a", b"written after\n")

        # One is left.
        left, *gone = reversed(nodes)
        refused = cluster.run(
            "metadata", "force-new-cluster", "--data", str(tmp_path / left), "--force"
        )
        assert refused.returncode != 0  # it runs
        cluster.kill(*nodes)
        for name in gone:
            shutil.rmtree(tmp_path / name)
        made = cluster.json(
            "metadata", "force-new-cluster", "--data", str(tmp_path / left), "--force"
        )
        assert (made["name"], made["address"]) == (left, at[left])
        assert made["restores"] == 2
        cluster.start(left)
        assert cluster.run("log", "read", "a").stdout == kept + b"written after\n"
        write(cluster, "a", b"and on\n")


def write(cluster: Cluster, log: str, lines: bytes, *more: str) -> None:
    done = cluster.run("log", "write", log, *more, input=lines)
    assert done.returncode == 0, done.stderr


def rot_a_block(directory: Path, part: int) -> None:
    """Turn one of the written blocks of a metadata node's log to zeros, a ``part``-th of its length in."""
    (file,) = directory.glob("log.*")
    blocks = len(file.read_bytes().rstrip(b"\0")) // ALIGN
    assert blocks > 8
    with file.open("r+b") as log:
        log.seek(blocks // part * ALIGN)
        log.write(bytes(ALIGN))


def wait_until_whole(directories: list[Path]) -> None:
    """Each had lost something, and has all of it again."""
    deadline = time.monotonic() + READY_S
    assert all(list(directory.glob("damaged.log.*")) for directory in directories)
    while any((directory / RECOVERY_FLOOR_FILE).exists() for directory in directories):
        assert time.monotonic() < deadline, "a rotten metadata node is not filled up"
        time.sleep(0.1)
