"""The compose cluster without an engine: each command of the file, as a process here, in its order."""

import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from distributedlog.runtime.interfaces.errors import ConnectionLost, NotAuthenticated
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.machine import real_host
from tests import preloaded
from tests.cluster.story import dlog
from tests.cluster.test_threat_table import linked

from .compose_file import DOCKER, Containers

pytestmark = pytest.mark.processes

NODES = ("metadata1", "metadata2", "metadata3", "bookie1", "bookie2", "bookie3", "bookie4")
PROXIES = ("write-proxy1", "read-proxy1")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """The init service has run, as often as `up` was said: twice."""
    found = Containers(tmp_path_factory.mktemp("compose"))
    first = found.run("pki")
    assert first.returncode == 0, first.stderr
    made = {file: file.read_bytes() for file in found.volume("").rglob("*") if file.is_file()}
    again = found.run("pki")
    assert again.returncode == 0, again.stderr
    assert {file: file.read_bytes() for file in made} == made, "what is good stays as it is"
    try:
        yield found
    finally:
        found.stop()


def test_the_authoritys_key_is_in_one_volume_and_each_other_key_in_its_own(
    containers: Containers,
) -> None:
    keys = sorted(file.relative_to(containers.volume("")) for file in _keys(containers))

    assert [str(key) for key in keys if key.name == "ca.key"] == ["authority/ca.key"]
    owned = [str(key.parent) for key in keys if key.name == "key.pem"]
    assert owned == sorted({f"tls-{name}" for name in _everybody(containers)})
    assert {file.stat().st_mode & 0o777 for file in _keys(containers)} == {0o600}


def _keys(containers: Containers) -> list[Path]:
    return [file for name in ("ca.key", "key.pem") for file in containers.volume("").rglob(name)]


def _everybody(containers: Containers) -> list[str]:
    words = containers.services["pki"]["command"]
    return [word.partition("/")[2] for word in words if word.partition("/")[0] in KINDS]


KINDS = ("metadata", "bookie", "proxy", "user")


@pytest.fixture(scope="module")
def cluster(containers: Containers) -> Containers:
    """Its nodes were started in the order of `depends_on`."""
    metadata = [name for name in NODES if name.startswith("metadata")]
    for name in metadata:
        containers.start(name)
    for name in metadata:
        containers.ready(name)
        assert _healthy(containers, name)
    others = [name for name in (*NODES, *PROXIES) if name not in metadata]
    for name in others:
        containers.start(name)
    for name in others:
        assert containers.ready(name)["name"] == name
    return containers


def test_the_cluster_comes_up_and_asks_everybody_who_he_is(
    cluster: Containers, tmp_path: Path
) -> None:
    """Until `dlog status` answers through the credentials of a user, in the network and outside of it."""
    well = cluster.run("dlog", "status", "--wait", "--timeout", "60")
    assert well.returncode == 0, (well.stdout, well.stderr)
    as_admin = cluster.run("dlog", "whoami")
    assert as_admin.stdout.startswith(b"user/admin"), as_admin.stderr
    as_app = cluster.run("dlog", "--credentials", "file:/tls/app", "whoami")
    assert as_app.stdout.startswith(b"user/app"), as_app.stderr

    lines = b"a\nb\n"
    written = cluster.run("dlog", "log", "write", "greetings", "--create", stdin=lines)
    assert written.returncode == 0, written.stderr
    _this_machine_comes_in_with_what_was_handed_out(cluster, tmp_path, lines)


def _healthy(containers: Containers, name: str) -> bool:
    """What docker/healthcheck.py asks."""
    with urllib.request.urlopen(f"http://{containers.host(name)}:8480/health", timeout=30) as page:
        return bool(json.load(page)["healthy"])


def _this_machine_comes_in_with_what_was_handed_out(
    containers: Containers, place: Path, lines: bytes
) -> None:
    """docs/start/docker.md: `run --rm -T --entrypoint tar dlog -cC /tls/app . | tar -x …`."""
    root = containers.root("dlog")
    packed = subprocess.run(
        ["tar", "-cC", f"{root}/tls/app", "."], capture_output=True, check=True
    ).stdout
    own = place / "app.tls"
    own.mkdir(mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(own, filter="data")
    out = containers.outside
    uri = f"distributedlog://{out}:5181;{out}:5182;{out}:5183/default"
    clean = {**os.environ, "HOME": str(place), "XDG_RUNTIME_DIR": str(place), "DLOG_URI": uri}
    clean.pop("DLOG_CREDENTIALS", None)

    def ask(*words: str, **more: str) -> "subprocess.CompletedProcess[bytes]":
        return preloaded.run(
            dlog(*words),
            env={**clean, **more},
            timeout=120,
        )

    named = f"file:{own}"
    status = ask("status", "--json", DLOG_CREDENTIALS=named)
    assert status.returncode in (0, 6), status.stderr
    bookies = {one["address"] for one in json.loads(status.stdout)["bookies"]}
    assert bookies == {f"{out}:519{n}" for n in range(1, 5)}
    assert ask("log", "read", "greetings", DLOG_CREDENTIALS=named).stdout == lines
    with pytest.raises(NotAuthenticated, match="--credentials"):
        trio.run(_stranger, (out, 5181))


async def _stranger(address: Address) -> None:
    """Who shows nothing; tried again where a busy machine does not answer in time."""
    host = replace(real_host("stranger"), credentials=lambda address: None)
    for _ in range(20):
        with suppress(ConnectionLost):
            async with linked(host, address):
                return


@pytest.mark.extra
def test_the_gateway_does_what_is_asked_as_the_user_who_asks(cluster: Containers) -> None:
    """Over HTTPS, by its own certificate, which says where it is reached."""
    pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
    cluster.start("gateway")
    cluster.ready("gateway")
    where = f"https://{cluster.host('gateway')}:8491/v1/logs/over-http"
    made = cluster.run("dlog", "user", "add", "app")
    assert made.returncode == 0, made.stderr
    token = cluster.run("dlog", "--credentials", "file:/tls/app", "user", "token", "--output", "-")
    assert token.returncode == 0, token.stderr
    known = ssl.create_default_context(cafile=str(cluster.volume("tls-app") / "ca.pem"))
    known.check_hostname = False  # it is reached here at another address than there
    for method, at, body in (("PUT", "", b""), ("POST", "/records", b"hello")):
        asked = urllib.request.Request(where + at, data=body, method=method)
        asked.add_header("Host", "gateway")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, timeout=60, context=known)
        asked.add_header("Authorization", f"Bearer {token.stdout.decode().strip()}")
        with urllib.request.urlopen(asked, timeout=60, context=known) as answer:
            assert answer.status < 300
    assert _asked_for_health(cluster).returncode == 0, "the health check speaks HTTPS, too"


def _asked_for_health(cluster: Containers) -> "subprocess.CompletedProcess[bytes]":
    """docker/healthcheck.py as the gateway's container runs it; process 1 and its address are others here."""
    text = (DOCKER / "healthcheck.py").read_text()
    asks = text.replace("/proc/1/", f"/proc/{cluster.running['gateway'].pid}/")
    asks = asks.replace("Host: {named}", "Host: gateway")
    return subprocess.run(
        [sys.executable, "-ISE", "-c", asks],
        env=cluster.variables("gateway"),
        capture_output=True,
        check=False,
    )
