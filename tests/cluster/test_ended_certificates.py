"""All certificates have ended: what goes on, what is refused, and the way back as it is written (H238)."""

import datetime
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cli.access import certificates
from tests.cluster.story import Cluster, dlog

pytestmark = pytest.mark.processes

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "metadata_timeout_s": 10.0}
SEEN_S = 120.0
"""Against a hang only."""


class _Town:
    """A cluster whose certificates, and its user's, all end at one moment soon."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster = cluster
        self._ca = place / "ca"
        self.nodes = {node.name: place / node.name for node in cluster.plan.nodes}
        self.user = place / "ann"
        self._bob = place / "bob"
        self.typed("pki", "init", "--domain", "town", "--authority", str(self._ca))
        certificates.issue(self._ca, "user/bob", self._bob)
        cluster.more = {name: ["--tls", str(one)] for name, one in self.nodes.items()}
        for life_s in (25, 100):  # nodes start within the first on a machine that has time
            for node in cluster.plan.nodes:
                self._issue(f"{node.kind}/{node.name}", self.nodes[node.name], life_s)
            self._issue("user/ann", self.user, life_s)
            self._ends = certificates.show(self.nodes[cluster.plan.nodes[0].name]).ends
            try:
                cluster.start()
            except AssertionError:
                assert life_s == 25, "it had time enough"
            if self.left_s() > 10:
                return
            cluster.kill()
        raise AssertionError("no node starts within a minute")

    def _issue(self, principal: str, place: Path, life_s: float) -> None:
        certificates.issue(self._ca, principal, place, days=life_s / 86_400)  # type: ignore[arg-type]

    def left_s(self) -> float:
        return (self._ends - datetime.datetime.now(datetime.UTC)).total_seconds()

    def config(self) -> dict[str, Any]:
        return {**ONE, "credentials": f"file:{self.user}"}

    def typed(self, *words: str, code: int = 0) -> str:
        """What a command says that needs no cluster, or that asks one as the user."""
        done = subprocess.run(dlog(*words), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def asks(self, *words: str, who: str = "ann") -> "subprocess.CompletedProcess[bytes]":
        """``bob``: his certificate has not ended."""
        place = self.user if who == "ann" else self._bob
        return self.cluster.run("--credentials", f"file:{place}", "--timeout", "5", *words)

    def renew(self) -> None:
        """As the runbook has it: nodes first, then users."""
        nodes = map(str, self.nodes.values())
        self.typed("pki", "renew", *nodes, "--authority", str(self._ca))
        self.typed("pki", "renew", str(self.user), "--authority", str(self._ca))

    def until(self, what: str, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SEEN_S
        while not seen():
            assert time.monotonic() < deadline, what
            time.sleep(0.3)

    def said(self, node: str) -> str:
        return (self.cluster.directory / f"{node}.stderr").read_text()

    def running(self) -> list[int]:
        """The processes of the nodes, all of which run."""
        served = self.cluster.served.values()
        assert all(one.process.poll() is None for one in served)
        return [one.process.pid for one in served]


async def _over_the_end(town: _Town) -> None:
    """A writer goes on over the end; who comes then is refused, until all are renewed."""
    async with open_namespace(town.cluster.uri, config=town.config()) as namespace:
        log = namespace.open_log("x")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"before"))
            await trio.sleep(town.left_s() + 1)
            await writer.write(LogRecord(2, b"after"))
            done = await trio.to_thread.run_sync(lambda: town.asks("log", "list"))
            assert (done.returncode, b"dlog pki renew" in done.stderr) == (5, True), done.stderr
            done = await trio.to_thread.run_sync(lambda: town.asks("log", "list", who="bob"))
            assert (done.returncode, b"has expired" in done.stderr) == (5, True), done.stderr
            await trio.to_thread.run_sync(town.renew)
            await writer.write(LogRecord(3, b"renewed"))
            await trio.to_thread.run_sync(
                lambda: town.until("users are in", lambda: not town.asks("log", "list").returncode)
            )
        async with log.open_reader(to="end") as reader:
            found = [record.payload async for record in reader]
    assert found == [b"before", b"after", b"renewed"]


def test_what_is_open_goes_on_when_all_certificates_have_ended(tmp_path: Path) -> None:
    """And new connections are refused in words, until `dlog pki renew`, without a start."""
    with Cluster.planned(tmp_path / "c", bookies=1, metadata_nodes=1) as cluster:
        town = _Town(cluster, tmp_path)
        running = town.running()
        trio.run(_over_the_end, town)
        assert town.running() == running


def test_a_cluster_whose_connections_have_ended_too_comes_back_when_all_are_renewed(
    tmp_path: Path,
) -> None:
    """Over a holiday each connection ends by its age. No node is started but one that had ended itself."""
    with Cluster.planned(tmp_path / "c", bookies=3) as cluster:
        cluster.modules = {node.name: "tests.cluster.short_links" for node in cluster.plan.nodes}
        town = _Town(cluster, tmp_path)
        written = town.asks("log", "write", "x", "--create", str(_lines(tmp_path, "one", "two")))
        assert written.returncode == 0, written.stderr
        cluster.kill("metadata1")
        time.sleep(max(0.0, town.left_s()) + 1)
        with pytest.raises(AssertionError, match="expired"):
            cluster.start("metadata1")
        del cluster.served["metadata1"]
        for node in cluster.served:
            town.until(f"{node} is alone", lambda node=node: "expired" in town.said(node))  # type: ignore[misc]
        running = town.running()

        town.renew()
        cluster.start("metadata1")

        town.until("all is well", lambda: town.asks("status").returncode == 0)
        more = town.asks("log", "write", "x", str(_lines(tmp_path, "three")))
        assert more.returncode == 0, more.stderr
        assert town.asks("log", "read", "x").stdout.split() == [b"one", b"two", b"three"]
        assert town.running()[: len(running)] == running


def _lines(place: Path, *lines: str) -> Path:
    file = place / "lines"
    file.write_text("".join(f"{one}\n" for one in lines))
    return file
