"""A cluster that is upgraded and downgraded by ops/rolling-restart.sh under clients of both builds.

The commands are those of docs/operate/upgrade.md. `dlog` and the program that restarts a node are shell
scripts, which pass their arguments to this process through pipes.
"""

import itertools
import json
import os
import random
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributedlog.cluster.declarations.options import PROXIES
from distributedlog.testing.chaos.clients.client_context import SESSIONS_OF_A_LIFE, after, before
from distributedlog.testing.chaos.model.scenario import ClientSpec
from distributedlog.testing.verify.checks.run_check import FINISH, RunResult, check_run
from distributedlog.testing.verify.history.observations import (
    FORMAT,
    LogObservations,
    ObservationWriter,
    ObservedFault,
    PipelineObservations,
    read_observations,
)
from distributedlog.testing.verify.report.availability import time_line
from tests.cluster.story import Cluster, environment_for

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/operate/upgrade.md"
CLIENT_MODULES = {
    "older": "distributedlog.chaos.client",
    "newer": "distributedlog.testing.chaos.clients.client_main",
}
"""The chaos clients of each build. They read the same specification and write the same observations."""
RATE = 100.0
"""Records per second of each chaos client."""
PROGRAM_S = 150.0
ROLL_S = 1800.0
KILL_PAUSE_S = (5.0, 20.0)
CALL = """\
#!/bin/sh
# Let the test run this command: {name}.
printf '%s\\n' "{name} $*" >"{folder}/calls"
read -r code <"{folder}/results"
exit "$code"
"""


def documented_command(heading: str, restart: Path, nodes: Sequence[str]) -> list[str]:
    """Return the call of rolling-restart.sh in a section of the page, for other nodes."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    [block] = [text for text in re.findall(r"```sh\n(.*?)```", section, re.S) if "rolling" in text]
    words = shlex.split(block.replace("\\\n", " "), comments=True)
    at = words.index("./restart-node")
    script, named = words[:at], words[at + 1 :]
    assert all(re.fullmatch(r"[a-z-]+/[a-z]+\d", node) for node in named), words
    return [*script, str(restart), *nodes]


class Client:
    """A process of one build that uses the cluster until `end`."""

    def __init__(self, command: Sequence[str], directory: Path, stdin: bytes = b"") -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_for(command[0]),
            cwd=directory,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(stdin)
        self._process.stdin.flush()

    def wait_begun(self) -> None:
        """Wait for its first line of output."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), self.end()

    def close_stdin(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None

    def end(self) -> bytes:
        """Let it end, and return its output."""
        self.close_stdin()
        output, errors = self._process.communicate(timeout=PROGRAM_S)
        assert self._process.returncode == 0, errors.decode()[-3000:]
        return output

    def wait(self) -> None:
        """Wait until its work is done."""
        self._process.wait(PROGRAM_S)
        self.end()

    def kill(self) -> None:
        """End it in any case."""
        self._process.kill()
        self._process.communicate()


class UpgradeRun:
    """One run. Each log has writers of one build, or producers of both through a proxy.

    Args:
        cluster: The cluster, which runs the older build.
        pythons: The Python of each build, ``older`` and ``newer``.
        seed: Of the kills.
    """

    def __init__(self, cluster: Cluster, pythons: dict[str, str], *, seed: int = 1) -> None:
        self.cluster = cluster
        self.pythons = pythons
        self._seed = seed
        self._folder = cluster.directory
        self._clients: dict[str, Client] = {}
        self._client_count = 0
        self._logs: dict[str, None] = {}
        self._fault_numbers = itertools.count(1)
        self._locks = {node.name: threading.Lock() for node in cluster.plan.nodes}
        self._target = ""
        self._observations = ObservationWriter("run", self._append_line)
        self._observations.record("begin", FORMAT, os.getpid(), before())
        self._observations.record("run", before(), {"begun_at": before()})
        for name in ("calls", "results"):
            os.mkfifo(self._folder / name)
        (self._folder / "bin").mkdir()
        for name in ("dlog", "restart-node"):
            file = self._folder / "bin" / name
            file.write_text(CALL.format(name=name, folder=self._folder))
            file.chmod(0o755)

    def _append_line(self, line: bytes) -> None:
        with (self._folder / "run.notes").open("ab") as file:
            file.write(line)

    # --- clients ----------------------------------------------------------------------------------

    def start_client(self, build: str, kind: str, log: str, *, proxied: bool = False) -> None:
        """Start a chaos client of a build, which records its observations.

        Its name is that of the build and the kind.
        """
        self._start_chaos_client(
            f"{build}-{kind}-{log}",
            build,
            asdict(ClientSpec(kind, log=log, rate=RATE, through="proxies" if proxied else "")),
        )
        self._logs[log] = None

    def _start_chaos_client(self, name: str, build: str, options: dict[str, Any]) -> None:
        self._client_count += 1
        life = {
            "name": name,
            "kind": options["kind"],
            "options": options,
            "first_session": self._client_count * SESSIONS_OF_A_LIFE,
            "log_options": {},
            "seed": self._seed,
            "uri": self._uri(bool(options["through"])),
            "pages": None,
            "notes": str(self._folder / f"{name}.notes"),
            "credentials": None,
        }
        command = [self.pythons[build], "-m", CLIENT_MODULES[build]]
        self._clients[name] = Client(command, self._folder, json.dumps(life).encode() + b"\n")

    def start_producer(self, build: str, log: str, *, proxied: bool = False) -> None:
        """Start a producer of a build, and wait for its first acknowledgement."""
        program = [self.pythons[build], str(HERE / "append_program.py"), self._uri(proxied)]
        self._clients[f"{build}-producer"] = client = Client([*program, log, build], self._folder)
        client.wait_begun()

    def end_clients(self) -> dict[str, dict[str, Any]]:
        """End all clients, and return the reports of the producers by build."""
        for client in self._clients.values():
            client.close_stdin()
        outputs = {name: client.end() for name, client in self._clients.items()}
        self._clients.clear()
        return {
            name.removesuffix("-producer"): json.loads(output)
            for name, output in outputs.items()
            if name.endswith("-producer")
        }

    def kill_clients(self) -> None:
        """End all clients in any case."""
        for client in self._clients.values():
            client.kill()

    def read_producers(self, build: str, log: str, *, proxied: bool = False) -> dict[str, Any]:
        """Read the log of producers with a client of one build."""
        program = [self.pythons[build], str(HERE / "read_program.py"), self._uri(proxied), log]
        found: dict[str, Any] = json.loads(Client(program, self._folder).end())
        return found

    def _uri(self, proxied: bool) -> str:
        return self.cluster.proxied_uri if proxied else self.cluster.uri

    # --- steps ------------------------------------------------------------------------------------

    def roll(self, heading: str, target: str, nodes: Sequence[str]) -> None:
        """Run the command of a section of the page: each node gets the build ``target``."""
        self._target = self.pythons[target]
        command = documented_command(heading, self._folder / "bin" / "restart-node", nodes)
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        with self._fault(heading.lower(), nodes):
            script = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            calls = threading.Thread(target=self._serve_calls, daemon=True)
            calls.start()
            output, _ = script.communicate(timeout=ROLL_S)
            (self._folder / "calls").write_text("end\n")
            calls.join()
        assert script.returncode == 0, output
        assert sorted(output.split()[1::2]) == sorted(nodes), output

    def _serve_calls(self) -> None:
        """Run the commands of the script until it has ended."""
        while True:
            with (self._folder / "calls").open() as calls:
                name, *arguments = calls.readline().split()
            if name == "end":
                return
            code = 0
            if name == "dlog":
                done = self.cluster.run(*arguments, timeout=ROLL_S)
                code = done.returncode
                self._observations.record("note", after(), f"{arguments}: {code}: {done.stderr!r}")
            else:
                self._restart(arguments[1])
            (self._folder / "results").write_text(f"{code}\n")

    def _restart(self, name: str) -> None:
        with self._locks[name]:
            self.cluster.stop(name)
            self.cluster.pythons[name] = self._target
            self.cluster.start(name)

    def kill(self, name: str) -> None:
        """Kill a node and start it again."""
        with self._locks[name], self._fault("kill", [name]):
            self.cluster.kill(name)
            self.cluster.start(name)

    @contextmanager
    def random_kills(self) -> Iterator[None]:
        """Kill random nodes that store data, within the `with` block."""
        rng, over = random.Random(self._seed), threading.Event()
        names = [node.name for node in self.cluster.plan.nodes if node.kind not in PROXIES]

        def kill() -> None:
            while not over.wait(rng.uniform(*KILL_PAUSE_S)):
                self.kill(rng.choice(names))

        with ThreadPoolExecutor(1) as killer:
            killing = killer.submit(kill)
            try:
                yield
            finally:
                over.set()
        killing.result()

    @contextmanager
    def _fault(self, kind: str, targets: Sequence[str]) -> Iterator[None]:
        """Record the begin and end of a step."""
        number = next(self._fault_numbers)
        self._observations.record("fault", number, kind, list(targets), before(), "")
        yield
        self._observations.record("over", number, after(), "")

    # --- the end ----------------------------------------------------------------------------------

    def check(self, builds: Sequence[str]) -> tuple[RunResult, PipelineObservations]:
        """Write and read each log with these builds, and check all observations against the last reading."""
        self._observations.record("run", before(), {"ended_at": before()})
        for build in builds:
            name = FINISH if build == builds[-1] else f"{FINISH}-{build}"
            options = asdict(ClientSpec(FINISH))
            self._start_chaos_client(name, build, {**options, "logs": list(self._logs)})
            self._clients.pop(name).wait()
        lines: list[bytes] = []
        for file in sorted(self._folder.glob("*.notes")):
            lines += file.read_bytes().splitlines(keepends=True)
        observations = read_observations(lines)
        return check_run(observations), observations


def longest_gaps(log: LogObservations, steps: Sequence[ObservedFault]) -> dict[str, float]:
    """Return the longest time without an acknowledgement of a log in each step, by kind of step."""
    line = time_line(PipelineObservations({log.name: log}), steps[0].begun_at, steps[-1].ended_at)
    return {
        f"{number}. {step.kind}": round(line.longest_gap(step.begun_at, step.ended_at)[1], 1)
        for number, step in enumerate(steps, 1)
    }
