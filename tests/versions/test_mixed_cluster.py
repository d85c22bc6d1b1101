"""Clusters, clients and data directories of this build next to those of an older one, on real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distributedlog import KeyedRecord, LogRecord, UnsupportedFormat
from distributedlog.blocking import open_namespace
from distributedlog.runtime.declarations.versions import CURRENT
from distributedlog.runtime.interfaces.errors import UpgradeNotFinalized
from tests.cluster.story import Cluster, dlog, environment_for

pytestmark = pytest.mark.processes

HERE = Path(__file__).resolve().parent
LOG = "orders"
OLDER_FINDINGS = [
    ("txid_boolean", "booleans"),
    ("txid_boolean", "booleans"),
    ("txids_unsearchable", "decreasing"),
    ("option_out_of_range", "infinite"),
]
"""Code and log of each finding after `older_data_program.py`, in any order."""
PROGRAM_S = 120.0


@contextmanager
def cluster_of(python: str, directory: Path) -> Iterator[Cluster]:
    """Run three metadata nodes and three bookies of one build, with one empty log."""
    with Cluster.planned(directory, bookies=3) as cluster:
        cluster.pythons = {node.name: python for node in cluster.plan.nodes}
        cluster.start()
        created = cluster.run("log", "create", LOG)
        assert created.returncode == 0, created.stderr
        yield cluster


def replace_builds(cluster: Cluster, python: str) -> None:
    """Restart each node with another build, one at a time: the metadata leader last."""
    leader = cluster.leader()
    names = [node.name for node in cluster.plan.nodes if node.name != leader]
    for name in (*names, leader):
        cluster.stop(name)
        cluster.pythons[name] = python
        cluster.start(name)


def test_clients_of_both_builds_append_to_logs_with_and_without_txids(
    tmp_path: Path, older_python: str
) -> None:
    """The older one is refused as it was. Where txids went back it reads, and neither writes nor searches."""
    new = sys.executable
    with cluster_of(new, tmp_path) as cluster:

        def told(python: str, log: str, *txids: str) -> dict[str, Any]:
            program = [python, str(HERE / "txid_program.py"), cluster.uri, log, *txids]
            done = subprocess.run(
                program,
                env=environment_for(python),
                cwd=cluster.directory,
                capture_output=True,
                timeout=PROGRAM_S,
                check=True,
            )
            found: dict[str, Any] = json.loads(done.stdout)
            return found

        assert told(older_python, "older", "1", "-")["outcomes"] == ["ok", "InvalidRequest"]
        found = told(new, "older", "-", "1")  # `given` of the older build is strict
        assert found["outcomes"] == ["ok", "TransactionIdOutOfOrder"]
        assert told(new, "clock", "-")["outcomes"] == ["ok"]
        assert told(older_python, "clock", "-", "1")["outcomes"] == ["ok", "InvalidRequest"]
        found = told(new, "clock", "-", "1", "6", "-")
        assert found["outcomes"] == ["ok"] * 4
        assert [txid for txid in found["txids"] if txid < 9] == [1, 6]
        assert found["find"] == "1.0.0"
        refused = told(older_python, "clock", "-")
        assert refused["outcomes"] == ["UnsupportedFormat"]
        assert (refused["txids"], refused["find"]) == (found["txids"], "InvalidRequest")
        assert told(new, "clock", "2")["outcomes"] == ["ok"]


@contextmanager
def read_proxy(cluster: Cluster, python: str) -> Iterator[str]:
    """Run a read proxy of one build, and yield the URI of the namespace through it."""
    quorum = ",".join(
        f"{n.name}={n.address[0]}:{n.address[1]}" for n in cluster.plan.nodes_of_kind("metadata")
    )
    command = dlog(
        "serve", "read-proxy", "--metadata", quorum, "--listen", "127.0.0.1:0", python=python
    )
    with subprocess.Popen(
        [*command, "--end-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment_for(python),
        cwd=cluster.directory,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = json.loads(process.stdout.readline())["address"]
        path = cluster.uri.rpartition("/")[2]
        yield f"distributedlog+proxy://{address}/{path}"
        process.stdin.close()
        assert process.wait(PROGRAM_S) == 0


def run_program(cluster: Cluster, python: str, program: str, *arguments: str) -> dict[str, Any]:
    """Run a client program of one build and return its report."""
    done = subprocess.run(
        [python, str(HERE / program), cluster.uri, *arguments],
        env=environment_for(python),
        cwd=cluster.directory,
        capture_output=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_formats_of_this_build_are_written_only_after_the_upgrade_is_finalized(
    tmp_path: Path, older_python: str
) -> None:
    """Until then, new clients are refused. Afterwards older clients read up to the first new record."""
    with cluster_of(older_python, tmp_path) as cluster, open_namespace(cluster.uri) as namespace:
        status = cluster.json("status")
        assert list(status["versions"]["nodes"]) == ["0.1 or older"]
        assert status["conditions"] == []
        run_program(cluster, older_python, "older_data_program.py")
        audit = cluster.run("audit", "--json")
        assert audit.returncode == 6, audit.stderr
        findings = [json.loads(line) for line in audit.stdout.splitlines()]
        listed = sorted((one["code"], one["where"].split('"')[1]) for one in findings)
        assert listed == sorted(OLDER_FINDINGS)
        namespace.create_log("keyed")
        log = namespace.open_log("keyed")
        with pytest.raises(UpgradeNotFinalized):
            log.set({"record_headers": True})
        with log.open_writer() as writer:
            writer.write(LogRecord(1, b"plain"))
            for refused in (KeyedRecord(2, b"keyed", b"k"), LogRecord(0, b"lower")):
                with pytest.raises(UpgradeNotFinalized):
                    writer.write(refused)
        outcomes = run_program(cluster, older_python, "keyed_program.py", "keyed")["outcomes"]
        assert set(outcomes.values()) == {"ok"}, "the older build writes the log as before"
        assert cluster.run("cluster", "can-downgrade", "0.1").returncode == 0
        refusal = cluster.run("cluster", "finalize", "--force")
        assert refusal.returncode == 5
        assert b"UpgradeIncomplete (2122)" in refusal.stderr

        replace_builds(cluster, sys.executable)
        assert "upgrade_not_finalized" in [
            one["code"] for one in cluster.json("status")["conditions"]
        ]
        assert cluster.run("cluster", "finalize", "--dry-run").returncode == 0
        assert b"ConfirmationRequired" in cluster.run("cluster", "finalize").stderr
        finalized = cluster.json("cluster", "finalize", "--force")
        assert finalized["finalized"] == str(CURRENT)
        assert cluster.run("cluster", "can-downgrade", "0.1").returncode == 6

        written = [KeyedRecord(1 << 51, b"keyed", b"k", [(b"n", b"v")]), LogRecord(1, b"after")]
        with log.open_writer() as writer:
            for record in written:
                writer.write(record)
        found = run_program(cluster, older_python, "keyed_program.py", "keyed")
        assert found["payloads"] == ["older"], "its truncation left its own record, and no new one"
        expected = dict.fromkeys(("read", "read_columns", "write", "truncate"), "UnsupportedFormat")
        assert found["outcomes"] == {**expected, "last": "ok"}  # it has neither key nor headers
        with log.open_writer() as writer:
            writer.write(KeyedRecord(1 << 52, b"headers", None, [(b"n", b"v")]))
        found = run_program(cluster, older_python, "keyed_program.py", "keyed")
        assert found["outcomes"] == {**expected, "last": "UnsupportedFormat"}
        with log.open_reader(to="end") as reader:
            assert list(reader)[-3:-1] == written

        # Through a read proxy of either build, a reader never gets a record without its key and headers.
        for python in (older_python, sys.executable):
            with read_proxy(cluster, python) as uri, open_namespace(uri) as through:
                reading = through.open_log("keyed").open_reader(to="end")
                with reading as reader:
                    if python == older_python:
                        first = reader.read_next(PROGRAM_S)
                        assert first is not None
                        assert first.payload == b"older"
                        with pytest.raises(UnsupportedFormat):
                            reader.read_next(PROGRAM_S)
                    else:
                        assert list(reader)[-3:-1] == written
