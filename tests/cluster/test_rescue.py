"""No admin is left, on processes, a majority of the metadata nodes' disks lets one in (H238)."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.story import Cluster, dlog
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes

SEEN_S = 60.0
"""Against a hang only."""


class _Town:
    """Three metadata nodes with certificates, whose only admin has lost his."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        self.ask("root", "trust", "set-mode", "report", "--admin", "root", code=0)
        self.ask("root", "trust", "set-mode", "enforce", code=0)

    def ask(self, user: str, *words: str, code: int | None = None) -> str:
        """What a command says; ``code``: what it must end with."""
        done = subprocess.run(
            dlog(*words, "--uri", self.cluster.uri),
            env={**os.environ, "DLOG_CREDENTIALS": f"file:{directory_of(f'user/{user}')}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert code in (None, done.returncode), (words, done.returncode, done.stderr)
        return done.stdout + done.stderr

    def tell(self, node: str, code: int = 0) -> str:
        """Say it on that node's disk."""
        directory = str(self.cluster.directory / node)
        return self.ask_here("trust", "rescue", directory, "--admin", "ann", code=code)

    def ask_here(self, *words: str, code: int) -> str:
        done = subprocess.run(dlog(*words), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def left(self) -> list[str]:
        """The nodes whose disks still name somebody."""
        return sorted(file.parts[-3] for file in self.cluster.directory.glob("*/metadata/RESCUE"))

    def status(self) -> str:
        """The status, as an operator would read it."""
        return self.ask("root", "--json", "status")

    def until(self, what: str, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SEEN_S
        while not seen():
            assert time.monotonic() < deadline, what
            time.sleep(0.2)


def test_a_majority_of_the_metadata_nodes_lets_an_admin_in(tmp_path: Path) -> None:
    """One node after another, while the others run; with one alone nothing happens, and it says so."""
    with Cluster.planned(tmp_path, bookies=1) as cluster:
        town = _Town(cluster)
        town.ask("ann", "user", "add", "etl", code=5)
        assert "in use" in town.tell("metadata1", code=5)

        cluster.kill("metadata1")
        assert "metadata1" in town.tell("metadata1")
        cluster.start("metadata1")
        town.until("it waits", lambda: "admin_requested" in town.status())
        town.ask("ann", "user", "add", "etl", code=5)
        assert town.left() == ["metadata1"]

        cluster.kill("metadata2")
        town.tell("metadata2")
        cluster.start("metadata2")
        town.until("it is done", lambda: not town.left())
        town.ask("ann", "user", "add", "etl", code=0)
        assert "admin" in town.ask("ann", "whoami", code=0)
        assert "admin_requested" not in town.status()
        audit = town.ask("ann", "trust", "audit", "--json", code=0)
        (line,) = [one for one in map(json.loads, audit.splitlines()) if one["action"] == "rescue"]
        assert line["subject"] == "ann by metadata1, metadata2"
