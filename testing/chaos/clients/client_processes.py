"""The client processes of a run: started, killed, paused, started again, told to end."""

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
from .cluster_endpoints import ClusterEndpoints, free_places

LIVES_MAX = 256
"""Of one client; 16 bits of a session's number are left for a life's own."""


@dataclass(slots=True)
class _Member:
    name: str
    number: int
    client: ClientSpec
    process: "trio.Process | None" = None
    starts: int = 0
    page_address: Address | None = None
    """Where it answers ``/metrics``."""


class Clients:
    """All clients of a run. Their notes are in ``directory``, one file a client."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        endpoints: ClusterEndpoints,
        seed: int,
        certificates: Path | None = None,
    ) -> None:
        """``certificates``: where each has a directory, by its kind (`authorization_walk.py`)."""
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
        """Of those that work, or (``waiting``) wait for a fault; of all or of a kind.

        Without the one that works at the end.
        """
        return [
            name
            for name, member in self._members.items()
            if name != "finish"
            and kind in (None, member.client.kind)
            and member.client.waits == is_waiting
        ]

    async def assign_page_addresses(self) -> list[tuple[str, Address]]:
        """Have each answer ``/metrics`` from its next start on; those that do not wait, and where."""
        addresses = await free_places(len(self._members))
        for member, address in zip(self._members.values(), addresses, strict=True):
            member.page_address = address
        assigned = [(name, self._members[name].page_address) for name in self.working_names()]
        return [(name, address) for name, address in assigned if address is not None]

    def note_files(self) -> list[Path]:
        """The files of notes that there are, in order."""
        return [self._note_file(name) for name in self._members if self._note_file(name).exists()]

    def _note_file(self, name: str) -> Path:
        return self._directory / f"{name}.notes"

    async def start_all(self) -> None:
        """Start every client."""
        for name in self.working_names():
            await self.start(name)

    async def start(self, name: str) -> None:
        """Start one that does not run; each life has sessions of its own."""
        member = self._members[name]
        if member.process is not None and member.process.returncode is None:
            return
        assert member.starts < LIVES_MAX, (
            "a client has so many lives that its sessions have numbers"
        )
        spec: dict[str, Any] = {
            "name": name,
            "kind": member.client.kind,
            "options": {**asdict(member.client), "logs": member.client.logs},
            "first_session": (member.number * LIVES_MAX + member.starts) * SESSIONS_OF_A_LIFE,
            "log_options": self._log_options,
            "seed": self._seed,
            "uri": self._uri(member.client),
            "pages": member.page_address,
            "notes": str(self._note_file(name)),
            "credentials": credentials_of(self._certificates, f"user/{member.client.kind}"),
        }
        if name == "finish":
            spec["options"]["logs"] = self._logs
        member.starts += 1
        _forget_torn_line(self._note_file(name))
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
        """SIGKILL."""
        process = self._members[name].process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._members[name].process
        if process is not None and process.returncode is None:
            os.kill(process.pid, number)

    async def wait(self, name: str) -> int:
        """Until it has ended by itself; its exit code."""
        process = self._members[name].process
        assert process is not None, f"{name} was never started"
        return await process.wait()

    async def end(self, name: str) -> str | None:
        """Tell it to end; killed when it does not. What was wrong with it, or None."""
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
            return f"client {name} did not end when it was told to"
        if process.returncode:
            error_text = (self._directory / f"{name}.stderr").read_text(errors="replace").strip()
            return f"client {name} ended with {process.returncode}: {error_text[-600:]}"
        return None

    async def end_all(self) -> list[str]:
        """Tell all to end; what was wrong."""
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
        """SIGKILL to all that are left."""
        for name in self._members:
            await self.kill(name)

    def has_acknowledged(self) -> bool:
        """Has any client noted an acknowledged record yet?"""
        return any(b',"ack",' in path.read_bytes() for path in self.note_files())


def _forget_torn_line(file: Path) -> None:
    """What a killed life did not write to its end would swallow the first line of the next one."""
    if not file.exists():
        return
    content = file.read_bytes()
    complete_bytes = content.rfind(b"\n") + 1
    if complete_bytes < len(content):
        os.truncate(file, complete_bytes)
