"""Elsewhere than on Linux: nodes say what they need, in one typed line; the client works.

What macOS and Windows lack is taken away from this Python before anything of ours is imported.
"""

import subprocess
import sys

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests.cli.live import Cluster

pytestmark = pytest.mark.processes

ELSEWHERE = """
import asyncio, concurrent.futures, multiprocessing, os, platform, socket, subprocess, sys, tempfile, trio
import lmdb, click  # theirs to know where they run
system, rest = sys.argv[1], sys.argv[2:]
for name in ("O_DIRECT", "fdatasync", "posix_fadvise", "eventfd", "pidfd_open", "posix_fallocate"):
    delattr(os, name)
for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"):
    delattr(socket, name)
if system == "win32":
    for name in ("fork", "register_at_fork", "geteuid", "O_CLOEXEC"):
        delattr(os, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    socket.socket = type("socket", (socket.socket,), {"sendmsg": property()})
sys.platform = system
"""
CLIENT = (
    ELSEWHERE
    + """
from distributedlog import LogRecord
from distributedlog.blocking import open_namespace
with open_namespace(rest[0]) as namespace:
    log = namespace.open_log(f"from {system}".replace(" ", "-"))
    with log.open_writer() as writer:
        for txid in range(100):
            writer.submit(LogRecord(txid=txid, payload=b"%d" % txid * 1000))
        writer.commit()
    with log.open_reader() as reader:
        print(sum(reader.read_next().txid for _ in range(100)))
"""
)
COMMAND = ELSEWHERE + "from distributedlog.cli.main import main; main(rest)"
SYSTEMS = pytest.mark.parametrize("system", ["darwin", "win32"])


def _python(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )


@SYSTEMS
def test_the_client_writes_and_reads(cluster: Cluster, system: str) -> None:
    done = _python(CLIENT, system, cluster.uri)

    assert done.stdout.strip() == str(sum(range(100))), done.stderr


@SYSTEMS
@pytest.mark.parametrize(
    "command",
    [
        ["local", "--memory"],
        ["serve", "bookie", "--data", "d", "--metadata", "127.0.0.1:1"],
        ["serve", "metadata", "--data", "d", "--metadata", "127.0.0.1:1"],
    ],
)
def test_a_node_says_that_it_needs_linux(system: str, command: list[str]) -> None:
    """It was "a defect of dlog"."""
    done = _python(COMMAND, system, *command)

    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith("dlog: error: UnsupportedPlatform (2101): dlog ")
    assert f"needs Linux, this is {system}" in done.stderr
    assert done.stderr.count("\n") == 1


@SYSTEMS
def test_other_commands_work(cluster: Cluster, system: str) -> None:
    done = _python(COMMAND, system, "--uri", cluster.uri, "status")

    assert done.returncode == 0, done.stderr
