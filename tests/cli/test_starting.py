"""A node that cannot start says why on one line, and is refused what is not its own (H5, H6).

Whether anybody reads what it says is nothing to it (H266).
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cluster.story import dlog

pytestmark = pytest.mark.processes


def _fails(code: int, *arguments: str) -> str:
    done = preloaded.run(
        dlog(*arguments),
        timeout=40,
        env=environment(),
    )
    assert done.returncode == code, (done.returncode, done.stderr)
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("dlog: error:")]
    assert len(errors) == 1, done.stderr
    assert b"Traceback" not in done.stderr
    return errors[0]


@contextmanager
def _local(*arguments: str, stderr: int | None = None) -> Iterator[dict[str, object]]:
    process = preloaded.popen(
        dlog("local", "--json", "--metadata-nodes", "1", "--bookies", "1", *arguments),
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()


def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        error = _fails(5, "local", "--memory", "--port", str(port))

    assert "AddressInUse (2047)" in error
    assert str(port) in error


def test_a_kept_port_that_is_taken_now_is_named(tmp_path: Path) -> None:
    with _local("--data", str(tmp_path)) as ready:
        nodes = ready["nodes"]
        assert isinstance(nodes, list)
        port = int(nodes[0]["address"].rpartition(":")[2])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()

        error = _fails(
            5, "local", "--data", str(tmp_path), "--metadata-nodes", "1", "--bookies", "1"
        )

    assert "AddressInUse (2047)" in error
    assert str(port) in error


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with _local("--data", str(tmp_path)) as ready:
        nodes = ready["nodes"]
        assert isinstance(nodes, list)
        place = nodes[0]["address"]

        error = _fails(
            5, "serve", "bookie", "--data", str(tmp_path / "bookie1"), "--metadata", place
        )

    assert "DataDirectoryInUse (2044)" in error


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    """H6: a bookie's directory of another cluster, and a directory of another kind of node."""
    with _local("--data", str(tmp_path / "one")):
        pass
    with _local("--data", str(tmp_path / "two")) as ready:
        nodes = ready["nodes"]
        assert isinstance(nodes, list)
        place = nodes[0]["address"]

        foreign = str(tmp_path / "one" / "bookie1")
        error = _fails(5, "serve", "bookie", "--data", foreign, "--metadata", place)
        assert "ForeignData (2041)" in error
        assert "cluster" in error

        error = _fails(
            5, "serve", "bookie", "--data", str(tmp_path / "one" / "metadata1"), "--metadata", place
        )
        assert "ForeignData (2041)" in error

    error = _fails(
        5,
        "serve",
        "metadata",
        "--data",
        str(tmp_path / "one" / "bookie1"),
        "--metadata",
        "127.0.0.1:1",
    )
    assert "ForeignData (2041)" in error


def test_a_bookie_without_a_quorum_gives_up_within_the_timeout(tmp_path: Path) -> None:
    error = _fails(
        4, "serve", "bookie", "--data", str(tmp_path), "--metadata", "127.0.0.1:1", "--timeout", "1"
    )

    assert "QuorumUnreachable (503)" in error
    assert "127.0.0.1:1" in error


def test_a_bad_configuration_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[bookie]\nracks = 'a'\n")

    error = _fails(
        2, "serve", "bookie", "--config", str(file), "--data", str(tmp_path), "--metadata", "h:1"
    )

    assert "node.toml" in error
    assert "racks" in error


@contextmanager
def _unread() -> Iterator[int]:
    """A pipe without room for a byte, which nobody reads."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writes, bytes(size))
    os.set_blocking(writes, True)
    try:
        yield writes
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("how", [["--memory"], ["--processes"]])
def test_a_cluster_whose_stderr_nobody_reads_serves_and_ends_when_it_is_told(
    how: list[str],
) -> None:
    with _unread() as stderr, _local("-v", "--bookies", "3", *how, stderr=stderr) as ready:
        write = dlog("log", "write", "x", "--create", "--uri", str(ready["uri"]))
        done = subprocess.run(
            write, input=b"a\n", env=environment(), capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_a_node_that_cannot_start_ends_also_where_nobody_reads_why(tmp_path: Path) -> None:
    start = ["serve", "bookie", "--data", str(tmp_path), "--metadata", "127.0.0.1:1"]
    with _unread() as stderr:
        done = preloaded.run(
            dlog(*start, "--timeout", "1"), stderr=stderr, env=environment(), timeout=60
        )
    assert done.returncode == 4


@pytest.mark.parametrize("how", [[], ["--memory"]])
def test_the_demonstration_reads_back_every_record(how: list[str]) -> None:
    """The first acceptance: it starts, writes, kills a bookie, writes on, reads everything back."""
    done = preloaded.run(
        dlog("local", "--demo", "--json", *how),
        timeout=90,
        env=environment(),
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] is True
    assert [step["step"] for step in said["steps"]] == [
        "start", "write", "kill", "write on", "read back", "stop",
    ]  # fmt: skip
