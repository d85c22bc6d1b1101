"""The runbook for a lost metadata node, on real processes: kill -9, delete, start empty, replace."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.story import Cluster

pytestmark = pytest.mark.processes


def test_a_lost_metadata_node_is_replaced_and_another_may_then_be_lost(tmp_path: Path) -> None:
    """docs/operate/recover-metadata.md, "Replace a lost metadata node"; H5."""
    with Cluster.planned(tmp_path, bookies=3) as cluster:
        cluster.start()
        written = b"".join(b"line %d\n" % n for n in range(2000))
        assert cluster.run("log", "write", "a", "--create", input=written).returncode == 0
        leader = cluster.leader()
        lost, other = (f"metadata{n}" for n in (1, 2, 3) if f"metadata{n}" != leader)
        before = members(cluster)[lost]["id"]
        refused = cluster.run("metadata", "replace", lost)
        assert refused.returncode == 5
        assert b"nothing to replace" in refused.stderr
        cluster.kill(lost)
        refused = cluster.run("metadata", "remove", other, "--force")
        assert refused.returncode == 5
        assert b"the quorum would be lost" in refused.stderr
        shutil.rmtree(tmp_path / lost)
        cluster.start(lost)
        status = cluster.json("status", codes=(6,))
        empty = [one for one in status["conditions"] if one["code"] == "metadata_node_empty"]
        assert [one["parameters"]["node"] for one in empty] == [lost]
        assert f"dlog metadata replace {lost}" in empty[0]["text"]

        replaced = cluster.run("metadata", "replace", lost)

        assert replaced.returncode == 0, replaced.stderr
        after = members(cluster)
        assert len(after) == 3
        assert after[lost]["id"] != before
        cluster.kill(other)
        assert cluster.run("log", "write", "a", input=b"last\n").returncode == 0
        read = cluster.run("log", "read", "a")
        assert read.stdout == written + b"last\n"


def members(cluster: Cluster) -> dict[str, Any]:
    """`dlog metadata show`, by name."""
    done = cluster.run("metadata", "show", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows}
