"""The compose cluster, as its users meet it: from this machine and from a container, killed, stopped, grown.

Runs where a Docker engine, compose and the base image are at hand; else it is skipped and says why.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distributedlog import LogRecord
from distributedlog.blocking import open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.testing.chaos.adapters import docker_engine as engine
from distributedlog.testing.chaos.adapters.containers import PROJECT as CHAOS_PROJECT
from tests.docker.test_files import base_image

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker" / "compose.yaml"
PROJECT = "dlog-smoke"
SUBNET = "172.30.43.0/24"
BASE = os.environ.get("DLOG_BASE") or base_image()
IMAGE = "dlog:smoke"
PORTS = [*range(5181, 5184), *range(5191, 5197)]
URI = "distributedlog://127.0.0.1:5181;127.0.0.1:5182;127.0.0.1:5183/default"
PULL_S, BUILD_S, COMMAND_S, WELL_S = 60, 900, 180, 60
Status = dict[str, Any]
UNREACHABLE = 4
"""Exit code."""


def _missing() -> str | None:
    """Why it cannot run here."""
    why = engine.refusal()
    if why is not None:
        return why
    if _run("docker", "image", "inspect", BASE, check=False).returncode:
        try:
            pulled = _run("docker", "pull", "-q", BASE, check=False, limit_s=PULL_S)
        except subprocess.TimeoutExpired:
            return f"needs the base image {BASE}: not here, and no registry answers"
        if pulled.returncode:
            said = pulled.stderr.decode(errors="replace").strip().splitlines() or ["no answer"]
            return f"needs the base image {BASE}: not here, and cannot be pulled: {said[-1][:200]}"
    for port in PORTS:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                return f"needs port {port} of this machine: taken (is another cluster up?)"
    return None


def _run(
    *command: str,
    check: bool = True,
    stdin: bytes | None = None,
    variables: Mapping[str, str] | None = None,
    limit_s: float = COMMAND_S,
) -> "subprocess.CompletedProcess[bytes]":
    done = subprocess.run(
        command,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=limit_s,
        env={**environment(), **(variables or {})},
        check=False,
    )
    if check and done.returncode:
        pytest.fail(f"{' '.join(command)}: {done.returncode}\n{done.stderr.decode()[-3000:]}")
    return done


class _Cluster:
    """The project of this test."""

    def __init__(self, own: Path) -> None:
        self.own = own
        self.command = engine.compose_command() or ()
        self.variables = {"DLOG_SUBNET": SUBNET, "DLOG_IMAGE": IMAGE, "DLOG_SIXTH_BOOKIE": "0"}

    def compose(self, *words: str, **rest: Any) -> "subprocess.CompletedProcess[bytes]":
        given = ("-p", PROJECT, "-f", str(FILE), *words)
        return _run(*self.command, *given, variables=self.variables, **rest)

    def up(self, bookies: int = 5) -> Status:
        """Start it, and wait until it is well; its status as this machine sees it."""
        self.compose("up", "-d", "--build", limit_s=BUILD_S)
        self.take_credentials()
        status = _until(
            self.status, lambda status: status["healthy"] and len(status["bookies"]) == bookies
        )
        assert len(status["bookies"]) == bookies
        assert status["healthy"], status["conditions"]
        return status

    def take_credentials(self) -> None:
        """As in docs/start/docker.md; afterwards this process and what it starts are user/app."""
        words = ("run", "--rm", "-T", "--entrypoint", "tar", "dlog", "-cC", "/tls/app", ".")
        shutil.rmtree(self.own, ignore_errors=True)
        self.own.mkdir(mode=0o700)
        packed = self.compose(*words).stdout
        _run("tar", "-xC", str(self.own), "--no-same-owner", stdin=packed)
        os.environ["DLOG_CREDENTIALS"] = f"file:{self.own}"

    def status(self) -> Status:
        """As this machine sees it; of a cluster that does not answer yet, nothing but why."""
        done = _run(*_dlog("status", "--json"), check=False)
        if done.returncode == UNREACHABLE:
            return {"healthy": False, "bookies": [], "conditions": [done.stderr.decode()]}
        assert done.returncode in (0, 6), (done.stdout, done.stderr)
        found: Status = json.loads(done.stdout)
        return found

    def inside(self, *words: str, stdin: bytes | None = None) -> bytes:
        """What dlog says in a container of the network."""
        return self.compose("run", "--rm", "-T", "dlog", *words, stdin=stdin).stdout

    def id_of(self, service: str) -> str:
        return self.compose("ps", "-q", service).stdout.decode().strip()


def _until(ask: Callable[[], Status], good: Callable[[Status], bool]) -> Status:
    """Ask until the answer is good or it has been long enough; the last answer."""
    deadline = time.monotonic() + WELL_S
    while True:
        found = ask()
        if good(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _dlog(*words: str) -> list[str]:
    return [sys.executable, "-m", "distributedlog.cli.main", "--uri", URI, *words]


def _outside(*words: str, stdin: bytes | None = None) -> bytes:
    """What dlog says on this machine."""
    return _run(*_dlog(*words), stdin=stdin).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    missing = _missing()
    if missing is not None:
        pytest.skip(missing)
    found = _Cluster(tmp_path_factory.mktemp("smoke") / "app.tls")
    before = os.environ.pop("DLOG_CREDENTIALS", None)
    found.compose("down", "-v", "--remove-orphans")
    _remove_image()
    try:
        yield found
    finally:
        os.environ.pop("DLOG_CREDENTIALS", None)
        if before is not None:
            os.environ["DLOG_CREDENTIALS"] = before
        found.compose("down", "-v", "-t", "1", "--remove-orphans")
        _remove_image()


def _remove_image() -> None:
    _run("docker", "image", "rm", IMAGE, check=False)


@pytest.mark.parametrize("command", [("docker", "compose"), ("docker-compose",)], ids=" ".join)
def test_compose_builds_the_image_where_the_engine_has_none(
    cluster: _Cluster, command: tuple[str, ...]
) -> None:
    """Version 1.29 pulled it for the first service, before the one that builds it."""
    if shutil.which(command[0]) is None or _run(*command, "version", check=False).returncode:
        pytest.skip(f"{' '.join(command)} does not work here")
    usual, cluster.command = cluster.command, command
    try:
        for words in (
            ("up", "-d", "--build", "metadata1"),
            ("run", "--rm", "-T", "dlog", "--help"),
        ):
            _remove_image()
            done = cluster.compose(*words, limit_s=BUILD_S)
            assert b"pulling" not in (done.stdout + done.stderr).lower()
            cluster.compose("down", "-v", "-t", "1")
    finally:
        cluster.command = usual


def test_the_image_holds_what_runs_and_nothing_else(cluster: _Cluster) -> None:
    cluster.compose("build", "pki", limit_s=BUILD_S)
    (image,) = json.loads(_run("docker", "image", "inspect", IMAGE).stdout)

    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "dlog-healthcheck"]
    assert config["Labels"]["org.opencontainers.image.version"]
    look = "command -v gcc cc make pip || true; id -u; ls /opt/dlog/lib/python3*/site-packages"
    said = _run("docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c", look).stdout.decode()
    words = said.split()
    assert words[0] == "10001", "no compiler and no installer answered before"
    assert "distributedlog" in words
    assert not {"tests", "pytest", "pip", "setuptools"} & set(words)


def test_a_cluster_from_its_start_to_its_end(cluster: _Cluster) -> None:
    """One story, in the order that a user lives it: a cluster takes a while to start."""
    status = cluster.up()
    assert [member["alive"] for member in status["metadata"]] == [True] * 3
    racks = sorted(bookie["rack"] for bookie in status["bookies"])
    assert racks == ["rack-a", "rack-a", "rack-b", "rack-b", "rack-c"]

    # Both sides reach every node at addresses of their own.
    seen = {bookie["address"] for bookie in status["bookies"]}
    assert seen == {f"127.0.0.1:519{n}" for n in range(1, 6)}
    within = json.loads(cluster.inside("status", "--json"))
    assert {bookie["address"] for bookie in within["bookies"]} == {
        f"bookie{n}:4182" for n in range(1, 6)
    }

    numbers = b"".join(b"%d\n" % n for n in range(20_000))
    _outside("log", "write", "numbers", "--create", stdin=numbers)
    assert cluster.inside("log", "read", "numbers") == numbers
    cluster.inside("log", "write", "from-inside", "--create", stdin=b"a\nb\n")
    assert _outside("log", "read", "from-inside") == b"a\nb\n"

    ids = {bookie["label"]: bookie["id"] for bookie in status["bookies"]}
    _a_killed_bookie_is_named_and_missed_by_nobody(cluster)
    _data_survives_down_and_up(cluster, ids, numbers)
    _a_sixth_bookie_gets_load(cluster)
    _down_with_volumes_gives_a_new_cluster(cluster)


def _a_killed_bookie_is_named_and_missed_by_nobody(cluster: _Cluster) -> None:
    _run("docker", "kill", cluster.id_of("bookie1"))
    _outside("log", "write", "without-one", "--create", stdin=b"x\n")
    assert _outside("log", "read", "without-one") == b"x\n"
    # Its lease ends after 6 s.
    status = _until(cluster.status, lambda status: not status["healthy"])
    assert "bookie_down" in {one["code"] for one in status["conditions"]}


def _data_survives_down_and_up(cluster: _Cluster, ids: Mapping[str, str], numbers: bytes) -> None:
    """Also that of the bookie that was killed."""
    cluster.compose("down")
    after = cluster.up()

    assert {bookie["label"]: bookie["id"] for bookie in after["bookies"]} == ids
    assert _outside("log", "read", "numbers") == numbers


def _a_sixth_bookie_gets_load(cluster: _Cluster) -> None:
    cluster.variables["DLOG_SIXTH_BOOKIE"] = "1"
    status = cluster.up(bookies=6)
    assert "127.0.0.1:5196" in {bookie["address"] for bookie in status["bookies"]}

    # One of each rack for each ledger, two are in its rack: a dozen miss it once in 4,096 times.
    with open_namespace(URI) as namespace:
        for number in range(12):
            with namespace.open_log(f"grown-{number}").open_writer() as writer:
                writer.write(LogRecord(1, b"x"))

    def sixth(status: Status) -> int:
        return sum(one["ledgers"] or 0 for one in status["bookies"] if one["label"] == "bookie6")

    assert sixth(_until(cluster.status, lambda status: sixth(status) > 0)) > 0


def _down_with_volumes_gives_a_new_cluster(cluster: _Cluster) -> None:
    cluster.compose("down", "-v")
    left = _run("docker", "volume", "ls", "-q", "--filter", f"name={PROJECT}_").stdout.split()
    assert left == [], "all of the old cluster goes, or none"

    cluster.variables["DLOG_SIXTH_BOOKIE"] = "0"
    assert cluster.up()["logs"] == 0


SCENARIO = """
about = "kills and a cut, over containers"
seconds = 10
[cluster]
bookies = 4
[[client]]
kind = "writer"
rate = 200
[[client]]
kind = "tail"
[[loop]]
name = "bookies"
pause_s = 0.5
[[loop.fault]]
kind = "kill"
target = "bookie"
hold_s = 0.5
[[moment]]
at_s = 1
kind = "kill"
target = "leader"
hold_s = 1
[bounds]
acked_min = 500
acked_per_s_min = 20
faults_min = 2
"""


def test_a_scenario_is_played_on_containers(cluster: _Cluster, tmp_path: Path) -> None:
    """The file is what it is for local processes; only the place differs."""
    cluster.compose("down", "-v", "-t", "1")
    file = tmp_path / "few.toml"
    file.write_text(SCENARIO)

    words = ("chaos", "run", str(file), "--on", "containers", "--output", str(tmp_path / "run"))
    done = _run(*_dlog(*words, "--json"), variables={"DLOG_IMAGE": IMAGE}, limit_s=300)

    result = json.loads(done.stdout)
    assert result["verdict"] == "OK", result["reasons"]
    assert result["adapter"] == "containers"
    assert result["lost"] == 0
    assert {"bookie", "metadata"} == {
        name.rstrip("0123456789") for fault in result["faults"] for name in fault["targets"]
    }
    left = _run("docker", "ps", "-aq", "--filter", f"label={engine.PROJECT_LABEL}={CHAOS_PROJECT}")
    assert left.stdout == b"", "a run takes everything away"
