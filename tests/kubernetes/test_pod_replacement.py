"""Commands of docs/operate/kubernetes.md that replace a pod of each kind, run on processes.

`kubectl` is a program that treats processes as pods (`process_pods.py`). The rest is real: certificates of
`dlog pki ensure`, nodes with the arguments of the manifests, `preStop` scripts, and mode `enforce`.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="pip install '.[release]'")

from distributedlog.cluster.local.child_processes import environment

from .process_pods import PODS, Pod, Pods
from .test_manifests import (
    NODES,
    ROOT,
    SCRIPTS,
    arguments,
    component,
    flag,
    named,
    node,
    of_kind,
    pod_names,
)

pytestmark = [pytest.mark.extra, pytest.mark.processes, pytest.mark.campaigns]

PAGE = (ROOT / "docs/operate/kubernetes.md").read_text()
LEFT_OUT = {"bookie-b-1", "bookie-c-1", "read-proxy-2", "gateway"}
"""Pods that another one of the same kind represents; the gateway has tests of its own."""
LIMIT_S = 400


def section(title: str) -> str:
    """Return the shell commands of a section of the page."""
    text = re.split(r"^##+ ", PAGE.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    return "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```", text, re.M | re.S))


class World:
    """A cluster of the manifests, and a shell in which the commands of the page find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pods").mkdir()
        self.pods = Pods(folder / "pods")
        self._ports: dict[str, int] = {}
        self._write_programs(folder / "bin")
        self.variables = {
            **{key: value for key, value in environment().items() if not key.startswith("DLOG_")},
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "DLOG_URI": self.local("distributedlog://metadata-0.metadata.dlog.svc:4181/default"),
            PODS: str(folder / "pods"),
        }

    def _write_programs(self, folder: Path) -> None:
        folder.mkdir()
        modules = {"dlog": "distributedlog.cli.main", "kubectl": "tests.kubernetes.process_pods"}
        for name, module in modules.items():
            file = folder / name
            file.write_text(f'#!/bin/sh\ncd {ROOT}\nexec "{sys.executable}" -m {module} "$@"\n')
            file.chmod(0o755)

    def local(self, text: str) -> str:
        """Replace addresses of Services by ports of this machine, and paths of a pod by folders."""
        for address in re.findall(r"[\w.-]+\.svc:\d+", text):
            text = text.replace(address, f"127.0.0.1:{self._port(address)}")
        return text.replace("/tls/operator", str(self.folder / "tls" / "operator"))

    def _port(self, address: str) -> int:
        if address not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[address] = probe.getsockname()[1]
        return self._ports[address]

    def start(self) -> None:
        """Issue the certificates and start all nodes."""
        names = " ".join(
            f"{component(one).replace('write-', '').replace('read-', '')}/{name}"
            for one in NODES
            if component(one) != "gateway"
            for name in pod_names(one)
        )
        authority, tls = self.folder / "pki", self.folder / "tls"
        self.shell(
            f"dlog pki ensure --domain kubernetes --authority {authority} --output {tls} "
            f"{names} user/operator user/app"
        )
        [settings] = [one["data"] for one in of_kind("ConfigMap") if "node.toml" in one["data"]]
        (self.folder / "node.toml").write_text(self.local(settings["node.toml"]))
        for script, text in SCRIPTS.items():
            (self.folder / script).write_text(self.local(text))
        for workload in NODES:
            for name in pod_names(workload):
                if name not in LEFT_OUT:
                    self.pods.add(self._pod(workload, name))

    def _pod(self, workload: dict[str, object], name: str) -> Pod:
        given = arguments(workload, name)
        [advertised] = flag(given, "advertise")
        address = self.local(advertised)
        pages = f"127.0.0.1:{self._port(f'{name}.pages')}"
        replaced = {
            "config": str(self.folder / "node.toml"),
            "listen": address,
            "advertise": address,
            "http": pages,
            "tls": str(self.folder / "tls" / name),
        }
        words = [
            f"--{key}={replaced[key]}" if (key := word.partition("=")[0][2:]) in replaced else word
            for word in given
        ]
        if component(workload) in ("metadata", "bookie"):
            words.append(f"--data={self.pods.folder / 'data' / name}")
        hook = node(workload).get("lifecycle", {}).get("preStop")
        script = Path(hook["exec"]["command"][1]).name if hook else ""
        return Pod(name, words, pages, str(self.folder / script) if script else "")

    def shell(self, commands: str, *, user: str = "operator") -> str:
        """Run commands of the page. `admin` runs a command with a user's certificate."""
        credentials = self.folder / "tls" / user
        functions = section("Restart or upgrade nodes").partition("kubectl apply")[0]
        prelude = (
            f'set -eu\nadmin() {{ DLOG_CREDENTIALS="file:{credentials}" "$@"; }}\n{functions}\n'
        )
        done = subprocess.run(
            ["bash", "-c", prelude + commands],
            env=self.variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (commands, done.stdout[-1500:], done.stderr[-3000:])
        return done.stdout

    def append(self, count: int) -> None:
        """Append records directly and through the write proxies; the count is for both together."""
        proxies = self.local(
            "distributedlog+proxy://write-proxy-1.dlog.svc:4183,write-proxy-2.dlog.svc:4183,"
            "read-proxy-1.dlog.svc:4184/default"
        )
        self.shell(f"seq {count // 2} | admin dlog log write direct", user="app")
        self.shell(f"seq {count // 2} | admin dlog --uri '{proxies}' log write proxied", user="app")

    def count(self) -> int:
        """Return how many records can be read."""
        lines = self.shell(
            "for log in direct proxied; do admin dlog log read $log; done", user="app"
        )
        return len(lines.splitlines())

    def wait_until_healthy(self) -> None:
        self.shell("admin dlog status --wait --timeout 180")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster of the page, with authorization, two logs and 20 records."""
    made = World(tmp_path_factory.mktemp("pods"))
    made.start()
    try:
        made.wait_until_healthy()
        made.shell("admin dlog placement --level rack --at-least 2 --enforced")
        authorize = section("Start the cluster").split("admin dlog trust", 1)[1]
        made.shell(f"admin dlog trust{authorize}\nadmin dlog trust set-mode enforce --force")
        made.shell("admin dlog log create direct && admin dlog log create proxied", user="app")
        made.append(20)
        yield made
    finally:
        made.pods.end()


def assert_serves(world: World, records: int) -> None:
    """Check that all records are there, and that the cluster accepts more."""
    world.wait_until_healthy()
    assert world.count() == records
    world.append(20)
    assert world.count() == records + 20


@pytest.fixture
def records(world: World) -> int:
    world.wait_until_healthy()
    return world.count()


def test_restart_loop_replaces_metadata_nodes_and_bookies_one_by_one(
    world: World, records: int
) -> None:
    loop = section("Restart or upgrade nodes")
    wanted = "metadata-{0,1,2} bookie-{a,b,c}-{0,1}"
    assert wanted in loop
    pods = ("metadata-0", "bookie-a-0")
    before = {name: (world.pods.folder / f"{name}.pid").read_text() for name in pods}

    world.shell(loop.replace(wanted, " ".join(pods)))

    after = {name: (world.pods.folder / f"{name}.pid").read_text() for name in pods}
    assert not set(before.values()) & set(after.values())
    assert_serves(world, records)


def test_metadata_node_with_an_empty_volume_joins_again(world: World, records: int) -> None:
    world.shell(section("A metadata node lost its volume"))

    assert_serves(world, records)
    shown = world.shell("admin dlog metadata show --json")
    assert shown.count('"metadata-2"') >= 1


def test_bookie_with_an_empty_volume_replaces_its_former_id(world: World, records: int) -> None:
    before = world.shell("admin dlog bookies | awk '$1 == \"bookie-b-0\" {print $2}'").split()

    world.shell(section("A bookie lost its volume"))
    world.shell("until [ $(admin dlog bookies | grep -c '^bookie-b-0 ') = 1 ]; do sleep 1; done")

    after = world.shell("admin dlog bookies | awk '$1 == \"bookie-b-0\" {print $2}'").split()
    assert len(before) == len(after) == 1
    assert before != after
    assert_serves(world, records)


@pytest.mark.parametrize("name", ["write-proxy-1", "read-proxy-1"])
def test_proxy_is_replaced_without_a_lost_record(world: World, records: int, name: str) -> None:
    world.shell(f"kubectl -n dlog delete pod {name} && ready {name}")

    assert_serves(world, records)


def test_every_replaced_pod_is_one_of_the_manifests() -> None:
    """Otherwise the page would name a pod that does not exist."""
    names = {name for one in NODES for name in pod_names(one)}
    found = set(re.findall(r"delete (?:pod|pvc) (?:data-)?([a-z]+-[a-z0-9-]+)", PAGE))

    assert found
    assert found <= names, [named(one) for one in NODES]
