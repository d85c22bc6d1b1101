"""A cluster of `dlog serve` processes for tests that kill, pause and restart them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from distributedlog.cluster.declarations.config import format_address
from distributedlog.cluster.declarations.options import PROXIES
from distributedlog.cluster.local import cluster_plan as plans
from distributedlog.cluster.local.child_processes import environment
from distributedlog.cluster.local.cluster_plan import ClusterPlan, PlannedNode
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.port_reservation import ReservedPorts
from distributedlog.testing.bench.compare_builds import own_environment
from tests import preloaded
from tests.preloaded import Started

READY_S = 120.0
"""Against a hang only: on a machine that others use too, ten nodes take half a minute to start."""
COMMAND_S = 120.0
STOP_S = 60.0


def dlog(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line of `dlog`, run by the Python of a build."""
    return [python, "-m", "distributedlog.cli.main", *arguments]


def environment_for(python: str) -> dict[str, str]:
    """Return the environment of a process; another build must import its own package."""
    return environment() if python == sys.executable else own_environment()


@dataclass
class Served:
    """One node's process."""

    node: PlannedNode
    process: Started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self.process.send_signal(number)


@dataclass
class Cluster:
    """Nodes by name, each in a process of its own, data below ``directory``."""

    directory: Path
    plan: ClusterPlan
    ports: ReservedPorts = field(default_factory=ReservedPorts)
    served: dict[str, Served] = field(default_factory=dict)
    descriptors: int = 0
    """How many a node may have, for good; 0: as many as we."""
    more: dict[str, list[str]] = field(default_factory=dict)
    """Arguments of some nodes beside those that all get."""
    modules: dict[str, str] = field(default_factory=dict)
    """What some nodes run as, instead of `dlog`."""
    pythons: dict[str, str] = field(default_factory=dict)
    """The Python of another build, for the nodes that run it."""

    @classmethod
    def planned(
        cls,
        directory: Path,
        *,
        bookies: int,
        metadata_nodes: int = 3,
        proxies: Sequence[str] = (),
    ) -> "Cluster":
        """Choose names and free ports. ``proxies`` are the kinds of the proxies, one of each."""
        here, ports = real_host("test"), ReservedPorts()

        async def make() -> ClusterPlan:
            return await plans.make_plan(
                None,
                bookies=bookies + len(proxies),  # the last ones give their ports to the proxies
                metadata_nodes=metadata_nodes,
                port=0,
                host="127.0.0.1",
                listen=here.listen,
                reserve_port=ports.reserve,
                rng=here.random,
            )

        nodes = trio.run(make).nodes
        storage = nodes[: metadata_nodes + bookies]
        changed = [
            replace(node, name=f"{kind}1", kind=kind)
            for kind, node in zip(proxies, nodes[len(storage) :], strict=True)
        ]
        return cls(directory, ClusterPlan((*storage, *changed)), ports)

    @property
    def uri(self) -> str:
        """Where the cluster is."""
        return self.plan.uri

    @property
    def proxied_uri(self) -> str:
        """Where the cluster is for clients of its proxies."""
        nodes = [node for node in self.plan.nodes if node.kind in PROXIES]
        addresses = ",".join(format_address(node.address) for node in nodes)
        return f"distributedlog+proxy://{addresses}/{plans.NAMESPACE}"

    def start(self, *names: str) -> None:
        """Start nodes (all, when none is named) and wait until each serves."""
        chosen = [node for node in self.plan.nodes if not names or node.name in names]
        for node in chosen:
            self.served[node.name] = Served(node, self._spawn(node))
        deadline = time.monotonic() + READY_S
        for node in chosen:
            self._wait_ready(self.served[node.name], deadline)

    def kill(self, *names: str) -> None:
        """kill -9, and wait until they are gone."""
        for name in names or tuple(self.served):
            self.served[name].process.kill()
        for name in names or tuple(self.served):
            served = self.served.pop(name)
            served.process.wait()
            if served.process.stdout is not None:
                served.process.stdout.close()

    def stop(self, *names: str) -> None:
        """End nodes by SIGTERM, as a service manager does, and wait until they have ended."""
        for name in names:
            served = self.served.pop(name)
            served.process.terminate()
            served.process.wait(timeout=STOP_S)
            if served.process.stdout is not None:
                served.process.stdout.close()

    def pause(self, name: str) -> None:
        """SIGSTOP; killed in the end."""
        self.served[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.served[name].signal(signal.SIGCONT)

    def run(self, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
        """Run a `dlog` command against this cluster to its end."""
        return preloaded.run(
            dlog(*arguments),
            timeout=options.pop("timeout", COMMAND_S),
            env={**environment(), "DLOG_URI": self.uri},
            **options,
        )

    def json(self, *arguments: str, codes: Sequence[int] = (0,)) -> Any:
        """Run a command with --json; what it said."""
        done = self.run(*arguments, "--json")
        assert done.returncode in codes, (arguments, done.returncode, done.stderr[-2000:])
        return json.loads(done.stdout)

    def run_script(self, path: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """Run a Python file against this cluster to its end."""
        return subprocess.run(
            [sys.executable, path, *arguments],
            capture_output=True,
            timeout=COMMAND_S,
            env={**environment(), "DLOG_URI": self.uri},
            check=False,
        )

    def popen(self, *arguments: str, **options: Any) -> Started:
        """Start a `dlog` command against this cluster."""
        return preloaded.popen(
            dlog(*arguments), env={**environment(), "DLOG_URI": self.uri}, **options
        )

    def leader(self) -> str:
        """The name of the metadata node that leads."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = self.json("status", codes=(0, 6))
            for member in found["metadata"]:
                if member["role"] == "leader" and member["alive"]:
                    return str(member["name"])
        raise AssertionError("no metadata node leads")

    def _spawn(self, node: PlannedNode) -> Started:
        place = self.directory / node.name
        quorum = ",".join(
            f"{n.name}={n.address[0]}:{n.address[1]}" for n in self.plan.nodes_of_kind("metadata")
        )
        arguments = [
            "serve",
            node.kind,
            "--name",
            node.name,
            "--metadata",
            quorum,
        ]
        if node.kind not in PROXIES:
            arguments += ["--data", str(place)]
        arguments += ["--listen", f"{node.address[0]}:{node.address[1]}"]
        python = self.pythons.get(node.name, sys.executable)
        command = dlog(*arguments, *self.more.get(node.name, ()), "--end-with-stdin", python=python)
        command[2] = self.modules.get(node.name, command[2])
        if self.descriptors:
            limited = f'ulimit -n {self.descriptors} && exec "$@"'
            command = ["sh", "-c", limited, "sh", *command]
        self.directory.mkdir(parents=True, exist_ok=True)
        errors = (self.directory / f"{node.name}.stderr").open("ab")
        try:
            return preloaded.popen(
                command,
                stdin=subprocess.PIPE,  # its end, by our own end too, ends the node
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment_for(python),
                cwd=self.directory,
            )
        finally:
            errors.close()

    def _wait_ready(self, served: Served, deadline: float) -> None:
        assert served.process.stdout is not None
        line = served.process.stdout.readline()
        if not line:
            said = (self.directory / f"{served.node.name}.stderr").read_text()[-2000:]
            raise AssertionError(f"{served.node.name} ended with {served.process.wait()}: {said}")
        assert json.loads(line)["name"] == served.node.name
        assert time.monotonic() < deadline, f"{served.node.name} took too long to serve"

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for served in self.served.values():
            if served.process.poll() is None:
                os.kill(served.process.pid, signal.SIGCONT)
        self.kill()
