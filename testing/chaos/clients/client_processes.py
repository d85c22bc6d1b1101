"""Start, kill, pause and end the client processes of a run."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from ....cluster.local.child_processes import environment
from ....runtime.interfaces.host import Address
from ..model.scenario import ClientSpec, Scenario
from .authorization_walk import credentials_of
from .client_context import SESSIONS_OF_A_LIFE
from .client_main import GOODBYE_S
from .cluster_endpoints import ClusterEndpoints, free_addresses

LIVES_MAX = 256
"""Lives of one client. A session number has 16 more bits for the sessions of a life."""


@dataclass(slots=True)
class _Member:
    name: str
    number: int
    client: ClientSpec
    process: "trio.Process | None" = None
    starts: int = 0
    page_address: Address | None = None
    """The address of its ``/metrics``."""


class Clients:
    """All clients of a run. Their observations are in ``directory``, one file per client."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        endpoints: ClusterEndpoints,
        seed: int,
        certificates: Path | None = None,
    ) -> None:
        """Create the clients; ``certificates`` has a directory per kind (`authorization_walk.py`)."""
        self._certificates = certificates
        self._directory = directory
        self._endpoints = endpoints
        self._seed = seed
        self._log_options = dict(scenario.cluster.log)
        self._logs = scenario.logs
        self._members: dict[str, _Member] = {}
        for client in scenario.clients:
            for _ in range(client.count):
                number = len(self._members) + 1
                name = f"{client.kind}-{number}"
                self._members[name] = _Member(name, number, client)
        self._members["finish"] = _Member("finish", len(self._members) + 1, ClientSpec("finish"))

    def working_names(self, kind: str | None = None, *, is_waiting: bool = False) -> list[str]:
        """Return the names of the clients that work, or that wait for a fault, of all kinds or one.

        The client that works after the faults is not included.
        """
        return [
            name
            for name, member in self._members.items()
            if name != "finish"
            and kind in (None, member.client.kind)
            and member.client.waits == is_waiting
        ]

    async def assign_page_addresses(self) -> list[tuple[str, Address]]:
        """Assign each client an address for ``/metrics`` from its next start on.

        Return those of working clients.
        """
        addresses = await free_addresses(len(self._members))
        for member, address in zip(self._members.values(), addresses, strict=True):
            member.page_address = address
        assigned = [(name, self._members[name].page_address) for name in self.working_names()]
        return [(name, address) for name, address in assigned if address is not None]

    def observation_files(self) -> list[Path]:
        """Return the existing files of observations, in order."""
        return [
            self._observation_file(name)
            for name in self._members
            if self._observation_file(name).exists()
        ]

    def _observation_file(self, name: str) -> Path:
        return self._directory / f"{name}.notes"

    async def start_all(self) -> None:
        """Start every working client."""
        for name in self.working_names():
            await self.start(name)

    async def start(self, name: str) -> None:
        """Start a client that does not run. Each life has separate session numbers."""
        member = self._members[name]
        if member.process is not None and member.process.returncode is None:
            return
        assert member.starts < LIVES_MAX, "the session numbers of a client limit its lives"
        spec: dict[str, Any] = {
            "name": name,
            "kind": member.client.kind,
            "options": {**asdict(member.client), "logs": member.client.logs},
            "first_session": (member.number * LIVES_MAX + member.starts) * SESSIONS_OF_A_LIFE,
            "log_options": self._log_options,
            "seed": self._seed,
            "uri": self._uri(member.client),
            "pages": member.page_address,
            "notes": str(self._observation_file(name)),
            "credentials": credentials_of(self._certificates, f"user/{member.client.kind}"),
        }
        if name == "finish":
            spec["options"]["logs"] = self._logs
        member.starts += 1
        _forget_torn_line(self._observation_file(name))
        with (self._directory / f"{name}.stderr").open("ab") as errors:
            member.process = await trio.lowlevel.open_process(
                [sys.executable, "-m", f"{__package__}.client_main"],
                stdin=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                process_group=0,
            )
        assert member.process.stdin is not None
        await member.process.stdin.send_all(json.dumps(spec).encode() + b"\n")

    def _uri(self, client: ClientSpec) -> str:
        if client.kind == "poster":
            return ";".join(self._endpoints.gateways)
        return self._endpoints.proxies if client.through else self._endpoints.nodes

    async def kill(self, name: str) -> None:
        """Kill a client by SIGKILL."""
        process = self._members[name].process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()

    def pause(self, name: str) -> None:
        """Pause a client by SIGSTOP."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a client by SIGCONT."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._members[name].process
        if process is not None and process.returncode is None:
            os.kill(process.pid, number)

    async def wait(self, name: str) -> int:
        """Wait until a client has ended, and return its exit code."""
        process = self._members[name].process
        assert process is not None, f"{name} was never started"
        return await process.wait()

    async def end(self, name: str) -> str | None:
        """End a client; kill it if it does not end. Return its problem, or None."""
        process = self._members[name].process
        if process is None:
            return None
        has_ended = process.returncode is not None
        if not has_ended:
            self.resume(name)
            assert process.stdin is not None
            await process.stdin.aclose()
            with trio.move_on_after(GOODBYE_S + 5.0):
                await process.wait()
        is_hung = process.returncode is None
        await self.kill(name)
        if is_hung:
            return f"client {name} did not end when it was requested"
        if process.returncode:
            error_text = (self._directory / f"{name}.stderr").read_text(errors="replace").strip()
            return f"client {name} ended with exit code {process.returncode}: {error_text[-600:]}"
        return None

    async def end_all(self) -> list[str]:
        """End all clients, and return their problems."""
        failures: list[str] = []

        async def end(name: str) -> None:
            failure = await self.end(name)
            if failure is not None:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for name in self.working_names():
                nursery.start_soon(end, name)
        return sorted(failures)

    async def kill_all(self) -> None:
        """Kill all remaining clients by SIGKILL."""
        for name in self._members:
            await self.kill(name)

    def has_acknowledged(self) -> bool:
        """Return whether any client has recorded an acknowledgement."""
        return any(b',"ack",' in path.read_bytes() for path in self.observation_files())


def _forget_torn_line(file: Path) -> None:
    """Remove the incomplete last line of a killed client, to which the next line would be appended."""
    if not file.exists():
        return
    content = file.read_bytes()
    complete_bytes = content.rfind(b"\n") + 1
    if complete_bytes < len(content):
        os.truncate(file, complete_bytes)
