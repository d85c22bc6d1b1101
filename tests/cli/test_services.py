"""Nodes as services: the files in `ops/` are what the code writes, and systemd takes the units."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distributedlog.cli.server.config import KINDS, config_file_text
from distributedlog.cli.server.systemd_notify import notify_systemd
from distributedlog.runtime.interfaces.errors import (
    AddressInUse,
    AddressUnavailable,
    DataDirectoryInUse,
    ForeignData,
    InvalidRequest,
    NotAuthenticated,
)
from tests.cluster.story import Cluster

OPS = Path(__file__).resolve().parents[2] / "ops"


@pytest.mark.parametrize("kind", KINDS)
def test_the_sample_files_are_what_is_written(kind: str) -> None:
    assert (OPS / "config" / f"{kind}.toml").read_text() == config_file_text(kind), (
        f"dlog config init {kind} > ops/config/{kind}.toml"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("kind", KINDS)
def test_systemd_takes_the_units(tmp_path: Path, kind: str) -> None:
    text = (OPS / "systemd" / f"dlog-{kind}@.service").read_text()
    unit = tmp_path / f"dlog-{kind}@.service"
    unit.write_text(text.replace("/opt/dlog/bin/dlog", sys.executable))
    one = tmp_path / f"dlog-{kind}@one.service"
    one.symlink_to(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(one)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if f"dlog-{kind}" in line]
    assert said == []


@pytest.mark.parametrize("abstract", [False, True])
def test_a_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@dlog-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        notify_systemd("READY=1")
        assert manager.recv(100) == b"READY=1"
    notify_systemd("READY=1")  # it has gone: nothing happens
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:1:2")
    notify_systemd("READY=1")


@pytest.mark.parametrize("kind", KINDS)
def test_unit_starts_a_node_again_after_all_that_may_pass(kind: str) -> None:
    """An address, a name, a mount or a clock that is late at boot must not keep a node down."""
    lines = (OPS / "systemd" / f"dlog-{kind}@.service").read_text().splitlines()
    assert "Restart=always" in lines
    assert "StartLimitIntervalSec=0" in lines
    assert f"RestartPreventExitStatus={InvalidRequest.exit_code}" in lines
    final = {InvalidRequest.exit_code}
    for passing in (
        AddressInUse,
        AddressUnavailable,
        DataDirectoryInUse,
        ForeignData,
        NotAuthenticated,
    ):
        assert passing.exit_code not in final
    assert any(line.startswith("RequiresMountsFor=/etc/dlog") for line in lines)


@pytest.mark.processes
def test_hangup_does_not_end_a_node(tmp_path: Path) -> None:
    """A service manager takes an end by SIGHUP for a clean one and leaves the node down."""
    with Cluster.planned(tmp_path, bookies=1, metadata_nodes=1) as cluster:
        cluster.start()
        for served in cluster.served.values():
            served.signal(signal.SIGHUP)
        assert cluster.json("bookies", codes=(0, 6))
        assert all(served.process.poll() is None for served in cluster.served.values())
