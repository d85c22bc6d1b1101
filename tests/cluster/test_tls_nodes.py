"""Nodes that speak TLS, as processes: who gets in with what, and what does not start."""

import os
import subprocess
from pathlib import Path

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from tests.cluster.story import Cluster, dlog
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "metadata_timeout_s": 10.0}


async def _write_and_read(uri: str, principal: str) -> list[bytes]:
    config = {**ONE, "credentials": f"file:{directory_of(principal)}"}
    async with open_namespace(uri, config=config) as namespace:
        log = namespace.open_log("x")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"one"))
        async with log.open_reader(to="end") as reader:
            return [record.payload async for record in reader]


async def _refused(uri: str, config: dict[str, str]) -> DistributedLogError:
    with pytest.raises(DistributedLogError) as caught:
        async with open_namespace(uri, config={**ONE, "metadata_timeout_s": 2.0, **config}):
            pass
    return caught.value


def _fails(code: int, *arguments: str) -> str:
    done = subprocess.run(dlog(*arguments), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_nodes_with_certificates_serve_those_who_have_one(tmp_path: Path) -> None:
    """A cluster, its users, strangers, commands with credentials by name, another one's directory."""
    with Cluster.planned(tmp_path, bookies=1, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        mine, others = directory_of("user/etl"), directory_of("user/etl", "test", "other")

        assert trio.run(_write_and_read, cluster.uri, "user/etl") == [b"one"]
        plain = trio.run(_refused, cluster.uri, {})
        assert isinstance(plain, NotAuthenticated), plain
        assert "--credentials" in str(plain)
        found = trio.run(_refused, cluster.uri, {"credentials": f"file:{others}"})
        assert isinstance(found, NotAuthenticated), found
        status = subprocess.run(
            dlog("--json", "status", "--uri", cluster.uri),
            env={**os.environ, "DLOG_CREDENTIALS": f"file:{mine}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert status.returncode in (0, 6), status.stderr
        told = _fails(
            5,
            "log",
            "list",
            "--uri",
            cluster.uri,
            "--credentials",
            f"file:{others}",
            "--timeout",
            "2",
        )
        assert "certificate" in told
        wrong = ["serve", "bookie", "--metadata", "127.0.0.1:1", "--data", str(tmp_path / "b")]
        told = _fails(2, *wrong, "--name", "b9", "--tls", str(directory_of("bookie/bookie1")))
        assert "bookie/bookie1" in told
        assert "bookie/b9" in told


def test_a_node_that_others_reach_wants_to_know_who_they_are(tmp_path: Path) -> None:
    wrong = ["serve", "bookie", "--metadata", "127.0.0.1:1", "--data", str(tmp_path / "b")]

    told = _fails(2, *wrong, "--listen", "0.0.0.0:0", "--advertise", "h:1")

    assert "dlog pki" in told
    assert "--insecure" in told


def test_a_bookies_directory_starts_with_its_own_certificate_alone(tmp_path: Path) -> None:
    """H227: another bookie's is of the right authority, and has the wrong name."""
    with Cluster.planned(tmp_path, bookies=1, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        cluster.kill("bookie1")
        place = cluster.plan.nodes_of_kind("metadata")[0].address
        other = ["serve", "bookie", "--metadata", f"{place[0]}:{place[1]}"]
        other += ["--data", str(tmp_path / "bookie1"), "--name", "bookie2"]

        told = _fails(5, *other, "--tls", str(directory_of("bookie/bookie2")))

        assert "bookie/bookie1 by its cookie" in told
        cluster.start("bookie1")
