"""The runbook for lost metadata on real processes: from a save, then from one node that is left (H104)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.story import Cluster

pytestmark = pytest.mark.processes


def test_metadata_comes_back_from_a_save_and_then_from_one_node(tmp_path: Path) -> None:
    """docs/operations.md, "Most of the metadata nodes have lost their disks", to the letter."""
    with Cluster.planned(tmp_path, bookies=3) as cluster:
        cluster.start()
        nodes = [node.name for node in cluster.plan.of("metadata")]
        bookie = cluster.plan.of("bookie")[0].name
        at = {
            node.name: f"{node.address[0]}:{node.address[1]}"
            for node in cluster.plan.of("metadata")
        }
        kept = b"".join(b"line %d\n" % n for n in range(2000))
        write(cluster, "a", kept, "--create")
        save = str(tmp_path / "meta.save")
        saved = cluster.json("metadata", "save", save)
        assert saved["members"] == nodes
        write(cluster, "lost", b"of after the save\n", "--create")
        cluster.kill(bookie)
        cluster.start(bookie)  # its cookie is newer than the save now

        # None is left.
        cluster.kill(*nodes)
        for name in nodes:
            shutil.rmtree(tmp_path / name)
        first, *others = nodes
        node = ("--name", first, "--address", at[first], "--yes")
        made = cluster.json("metadata", "restore", save, "--data", str(tmp_path / first), *node)
        assert made["restores"] == 1
        assert made["logs"] == 1
        again = cluster.run("metadata", "restore", save, "--data", str(tmp_path / first), *node)
        assert again.returncode != 0
        assert b"belongs to a cluster already" in again.stderr
        cluster.start(first)
        let_in(cluster, others, at)
        cluster.kill(bookie)
        cluster.start(bookie)
        assert cluster.run("log", "read", "a").stdout == kept
        assert cluster.run("log", "read", "lost").returncode != 0
        held = cluster.json("metadata", "gc", "show", codes=(6,))
        assert "restored from meta.save" in held["why"]
        status = cluster.json("status", codes=(6,))
        assert any("nothing is deleted" in reason for reason in status["reasons"])
        assert cluster.run("metadata", "gc", "resume").returncode == 0
        write(cluster, "a", b"written after\n")

        # One is left.
        left, *gone = reversed(nodes)
        refused = cluster.run(
            "metadata", "force-new-cluster", "--data", str(tmp_path / left), "--yes"
        )
        assert refused.returncode != 0  # it runs
        cluster.kill(*nodes)
        for name in gone:
            shutil.rmtree(tmp_path / name)
        made = cluster.json(
            "metadata", "force-new-cluster", "--data", str(tmp_path / left), "--yes"
        )
        assert (made["name"], made["address"]) == (left, at[left])
        assert made["restores"] == 2
        cluster.start(left)
        assert cluster.run("log", "read", "a").stdout == kept + b"written after\n"
        write(cluster, "a", b"and on\n")
        assert cluster.run("metadata", "gc", "resume").returncode == 0


def write(cluster: Cluster, log: str, lines: bytes, *more: str) -> None:
    done = cluster.run("log", "write", log, *more, input=lines)
    assert done.returncode == 0, done.stderr


def let_in(cluster: Cluster, names: list[str], at: dict[str, str]) -> None:
    """Nodes with empty directories, one after the other."""
    for name in names:
        cluster.start(name)
        done = cluster.run("metadata", "add", f"{name}={at[name]}")
        assert done.returncode == 0, done.stderr
    members: list[Any] = cluster.run("metadata", "show", "--json").stdout.splitlines()
    assert len(members) == len(at)
    assert {json.loads(row)["role"] for row in members} == {"leader", "follower"}
