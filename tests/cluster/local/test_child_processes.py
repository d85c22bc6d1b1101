"""Real processes on loopback, data on disk, killed and paused (the acceptance's stories, small)."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributedlog import LogRecord
from distributedlog.blocking import open_namespace
from distributedlog.runtime.declarations.health_conditions import Code
from tests import preloaded
from tests.cluster import process_story
from tests.cluster.story import Cluster
from tests.conditions import codes_of

pytestmark = pytest.mark.processes

LEASE_S = 10.0
"""Of a writer's lock."""


def test_every_line_comes_back_after_kills_a_pause_and_a_restart(tmp_path: Path) -> None:
    """G1 to G3, with the lines of a few packages of the standard library."""
    process_story.run(tmp_path, whole=False, seconds=12.0, say=print)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three metadata nodes and three bookies."""
    with Cluster.planned(tmp_path, bookies=3) as made:
        made.start()
        yield made


class _Writer:
    """`dlog log write` that is fed line by line."""

    def __init__(self, cluster: Cluster, name: str, tag: str, *arguments: str) -> None:
        self.tag = tag
        self.fed = 0
        self.process = cluster.popen(
            "log", "write", name, "--json", *arguments,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def feed(self, lines: int) -> None:
        """Write so many lines into its stdin, numbered on."""
        assert self.process.stdin is not None
        text = "".join(f"{self.tag} {n}\n" for n in range(self.fed, self.fed + lines))
        try:
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return
        self.fed += lines

    def feed_until_it_ends(self, within_s: float) -> None:
        """Feed a line now and then until the process has ended."""
        end = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"writer {self.tag} did not notice"
            self.feed(1)
            time.sleep(0.05)

    def end(self) -> tuple[int, dict[str, object], str]:
        """Close its stdin; exit code, what it said, its errors."""
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, json.loads(out), errors.decode()


def _lines(cluster: Cluster, name: str) -> list[str]:
    read = cluster.run("log", "read", name)
    assert read.returncode == 0, read.stderr
    return read.stdout.decode().splitlines()


def _wait_lines(cluster: Cluster, name: str, wanted: int) -> None:
    end = time.monotonic() + 60
    while len(_lines(cluster, name)) < wanted:
        assert time.monotonic() < end, f"{name} did not reach {wanted} lines"


def _check_two(cluster: Cluster, name: str, one: _Writer, stored: int, two: _Writer) -> None:
    """A's records, at least those that are certainly stored, then B's, nothing else (G4)."""
    found = _lines(cluster, name)
    ours = [line for line in found if line.startswith(one.tag)]
    theirs = found[len(ours) :]
    assert ours == [f"{one.tag} {n}" for n in range(len(ours))]
    assert len(ours) >= stored
    assert theirs == [f"{two.tag} {n}" for n in range(two.fed)]


def test_a_second_writer_is_refused_and_a_takeover_fences_the_first(cluster: Cluster) -> None:
    """G4, and the lock as a courtesy that names its owner."""
    assert cluster.run("log", "create", "shared").returncode == 0
    one = _Writer(cluster, "shared", "a")
    one.feed(100)
    _wait_lines(cluster, "shared", 100)

    refused = cluster.run("log", "write", "shared", "--timeout", "30", input=b"never\n")
    assert refused.returncode == 5, refused.stderr
    assert b"OwnershipAcquireFailed (302)" in refused.stderr
    assert str(one.process.pid).encode() in refused.stderr  # it names the owner
    one.feed(100)  # undisturbed
    _wait_lines(cluster, "shared", 200)

    two = _Writer(cluster, "shared", "b", "--takeover")
    two.feed(50)
    _wait_lines(cluster, "shared", 250)
    one.feed_until_it_ends(60)
    code, said, errors = one.end()
    assert code == 5, errors
    assert "WriterFenced" in errors
    assert int(str(said["records"])) >= 200
    assert two.end()[0] == 0
    _check_two(cluster, "shared", one, 200, two)


def test_the_log_of_a_killed_writer_is_open_to_another_at_once(cluster: Cluster) -> None:
    """H19: its connection has ended, and its lock ends with that, not after its lease of 10 s."""
    assert cluster.run("log", "create", "shared").returncode == 0
    one = _Writer(cluster, "shared", "a")
    one.feed(100)
    _wait_lines(cluster, "shared", 100)
    one.process.kill()

    # Half of the lease would not be enough, were its end waited for.
    with (
        open_namespace(cluster.uri) as namespace,
        namespace.open_log("shared").open_writer(wait_s=LEASE_S / 2) as writer,
    ):
        writer.write(LogRecord(1 << 50, b"b 0"))  # behind the txids that the tool gives

    assert _lines(cluster, "shared") == [*(f"a {n}" for n in range(100)), "b 0"]


def test_a_writer_that_slept_past_its_lease_finds_itself_fenced(cluster: Cluster) -> None:
    """G4: the second one needs no takeover, only patience; the sleeper is never believed again."""
    assert cluster.run("log", "create", "shared").returncode == 0
    one = _Writer(cluster, "shared", "a")
    one.feed(100)
    _wait_lines(cluster, "shared", 100)
    one.process.send_signal(signal.SIGSTOP)
    try:
        two = _Writer(cluster, "shared", "b")
        two.feed(50)
        _wait_lines(cluster, "shared", 150)
    finally:
        one.process.send_signal(signal.SIGCONT)
    one.feed_until_it_ends(60)

    code, _, errors = one.end()

    assert code == 5, errors
    assert "WriterFenced" in errors
    assert two.end()[0] == 0
    _check_two(cluster, "shared", one, 100, two)


def test_three_bookies_one_dead_for_a_while(cluster: Cluster) -> None:
    """H22, H22b: writes, rolls and takeovers go on, holes are listed; it returns: full copies."""
    script = str(Path(__file__).parent.parent / "rolling_writer.py")
    before = cluster.run_script(script, "rolls", "a", "0")
    assert before.returncode == 0, before.stderr
    cluster.kill("bookie3")

    during = cluster.run_script(script, "rolls", "b", "8")
    assert during.returncode == 0, during.stderr
    takeover = cluster.run_script(script, "rolls", "c", "4")
    assert takeover.returncode == 0, takeover.stderr

    # The registration's lease has 6 s to end.
    end = time.monotonic() + 20
    while True:
        status = cluster.json("status", codes=(0, 6))
        offline = [bookie for bookie in status["bookies"] if bookie["state"] == "offline"]
        if offline or time.monotonic() > end:
            break
    assert [bookie["label"] for bookie in offline] == ["bookie3"]
    assert status["under_replicated"], status
    assert not status["healthy"]

    cluster.start("bookie3")
    after = cluster.run_script(script, "rolls", "d", "2")
    assert after.returncode == 0, after.stderr
    healthy = cluster.json("status", "--wait", "--timeout", "40", codes=(0, 6))
    assert healthy["healthy"], healthy["reasons"]
    copies = cluster.run_script(str(Path(__file__).parent.parent / "count_copies.py"), "rolls")
    assert copies.returncode == 0, copies.stdout + copies.stderr
    found = json.loads(copies.stdout)
    assert found["ledgers"] >= 4
    assert found["missing"] == []


def test_a_write_that_loses_every_bookie_says_what_is_certainly_stored(cluster: Cluster) -> None:
    """G7: the rest is unknown, exit code 7; what was said to be stored is there after the restart."""
    assert cluster.run("log", "create", "cut").returncode == 0
    writer = _Writer(cluster, "cut", "a", "--timeout", "8")
    writer.feed(500)
    _wait_lines(cluster, "cut", 500)
    cluster.kill("bookie1", "bookie2", "bookie3")
    writer.feed(500)

    code, said, errors = writer.end()

    assert code == 7, errors
    assert "500 records are certainly stored" in errors or said["records"] == 500
    read = cluster.run("log", "read", "cut", "--timeout", "2")
    assert read.returncode == 4, (read.returncode, read.stderr)
    cluster.start("bookie1", "bookie2", "bookie3")
    found = _lines(cluster, "cut")
    assert len(found) >= 500
    assert found == [f"a {n}" for n in range(len(found))]


def test_status_answers_without_a_quorum(cluster: Cluster) -> None:
    """Exit code 6, the reasons first, the JSON whole; nodes that do not answer are rows."""
    cluster.kill("metadata2", "metadata3")

    status = cluster.json("status", "--timeout", "6", codes=(6,))

    assert not status["healthy"]
    assert Code.NO_METADATA_QUORUM in codes_of(status["conditions"])
    alive = {member["name"]: member["alive"] for member in status["metadata"]}
    assert alive == {"metadata1": True, "metadata2": False, "metadata3": False}


def test_a_killed_parent_leaves_no_orphans(tmp_path: Path) -> None:
    """`dlog local --processes`, kill -9 of the parent: every child ends (design: life cycle)."""
    from distributedlog.cluster.local.child_processes import environment
    from tests.cluster.story import dlog

    parent = preloaded.popen(
        dlog("local", "--json", "--processes", "--data", str(tmp_path / "c")),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert parent.stdout is not None
    ready = json.loads(parent.stdout.readline())
    pids = [node["pid"] for node in ready["nodes"]]
    assert len(set(pids)) == 6
    parent.kill()
    parent.wait()
    parent.stdout.close()

    end = time.monotonic() + 10
    while alive := [pid for pid in pids if _alive(pid)]:
        assert time.monotonic() < end, f"orphans: {alive}"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # dead, and waiting for whoever adopted it


def test_local_ends_cleanly_and_keeps_its_ports(tmp_path: Path) -> None:
    """SIGTERM: exit 0, every node deregistered; the next start has the same URI and the records."""
    from distributedlog.cluster.local.child_processes import environment
    from tests.cluster.story import dlog

    uris = []
    for number in range(2):
        ready_file = tmp_path / f"ready-{number}"
        process = preloaded.popen(
            dlog("local", "--json", "--data", str(tmp_path / "c"), "--ready-file", str(ready_file)),
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert json.loads(ready_file.read_text()) == ready
        assert {node["pid"] for node in ready["nodes"]} == {process.pid}
        uris.append(ready["uri"])
        with_uri = {**environment(), "DLOG_URI": ready["uri"]}
        write = preloaded.run(
            dlog("log", "write", "x", "--create"),
            input=b"line\n",
            env=with_uri,
        )
        assert write.returncode == 0
        read = preloaded.run(
            dlog("log", "read", "x"),
            env=with_uri,
        )
        assert read.stdout == b"line\n" * (number + 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()
    assert uris[0] == uris[1]


def test_a_child_that_dies_is_told_and_with_restart_started_again(tmp_path: Path) -> None:
    from distributedlog.cluster.local.child_processes import environment
    from tests.cluster.story import dlog

    parent = preloaded.popen(
        dlog("local", "--json", "--processes", "--restart", "--data", str(tmp_path / "c")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.extend(parent.stderr), daemon=True)  # type: ignore[arg-type]
    reader.start()
    ready = json.loads(parent.stdout.readline())
    victim = next(node for node in ready["nodes"] if node["name"] == "bookie2")
    import os

    os.kill(victim["pid"], signal.SIGKILL)
    with_uri = {**environment(), "DLOG_URI": ready["uri"]}
    time.sleep(7)  # the dead one's lease
    status = preloaded.run(
        dlog("status", "--wait", "--timeout", "30", "--json"),
        env=with_uri,
    )
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=20) == 0
    reader.join(timeout=5)
    parent.stdout.close()
    assert status.returncode == 0, status.stdout
    told = [line for line in errors if b"bookie2" in line]
    assert len(told) == 1, errors
