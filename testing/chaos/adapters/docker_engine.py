"""The Docker engine and its compose, asked through their command lines."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from ..model.adapter import ChaosFailed

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
ASK_S = 10.0
COMMAND_S = 120.0
BUILD_S = 900.0
CAP_SYS_RESOURCE = 1 << 24
FILES = ("compose.yaml", "chaos.yaml")


def folder() -> Path | None:
    """The folder ``docker/`` of a checkout: the one below here, else the one that this file comes from."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if all((root / "docker" / name).is_file() for name in FILES):
            return root / "docker"
    return None


def compose_command() -> tuple[str, ...] | None:
    """Compose v2 (a plugin), else v1 (a program), else None."""
    for candidate in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(candidate[0]) and _says_yes(*candidate, "version"):
            return candidate
    return None


def refusal() -> str | None:
    """Why no cluster of containers can be had here, in one line; None if it can."""
    if folder() is None:
        return f"needs docker/{FILES[0]} of a checkout, here or where this package comes from"
    if shutil.which("docker") is None:
        return "needs Docker: there is no docker on the PATH"
    if not _says_yes("docker", "version", "--format", "{{.Server.Version}}"):
        return "needs Docker: no engine answers"
    if compose_command() is None:
        return "needs compose: neither `docker compose` nor `docker-compose` works"
    return None


def _says_yes(*command: str) -> bool:
    try:
        completed = subprocess.run(command, capture_output=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return completed.returncode == 0


def may_limit_others() -> bool:
    """May this process change the limits of one that another user runs? Root may lack it in a container."""
    status_words = Path("/proc/self/status").read_text().split()
    return bool(int(status_words[status_words.index("CapEff:") + 1], 16) & CAP_SYS_RESOURCE)


async def call(
    *command: str,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    limit_s: float = COMMAND_S,
) -> str:
    """What a command says on stdout. Raises `ChaosFailed` with what it says on stderr."""
    with trio.move_on_after(limit_s):
        completed = await trio.run_process(
            command,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
            stdin=stdin,
            env={**os.environ, **(variables or {})},
        )
        if completed.returncode:
            error_text = completed.stderr.decode(errors="replace").strip()[-1000:]
            raise ChaosFailed(
                f"{' '.join(command[:6])}: {error_text or f'exit code {completed.returncode}'}"
            )
        return completed.stdout.decode(errors="replace")
    raise ChaosFailed(f"{' '.join(command[:6])}: not done within {limit_s:g} s")


async def inspect(*ids: str) -> list[dict[str, Any]]:
    """What the engine knows of containers. Raises `ChaosFailed`."""
    inspected: list[dict[str, Any]] = json.loads(await call("docker", "inspect", *ids))
    return inspected


async def containers_of(project: str) -> dict[str, dict[str, Any]]:
    """What the engine knows of a project's containers, by service."""
    id_lines = await call(
        "docker", "ps", "-aq", "--no-trunc", "--filter", f"label={PROJECT_LABEL}={project}"
    )
    ids = id_lines.split()
    if not ids:
        return {}
    return {
        inspected["Config"]["Labels"][SERVICE_LABEL]: inspected for inspected in await inspect(*ids)
    }


class Watched:
    """The first process of a container that runs, watched from this machine.

    The engine takes a tenth of a second for an answer, and a node may be killed meanwhile on purpose: who
    looks for deaths needs to know what is true now.
    """

    def __init__(self, pid: int) -> None:
        self._descriptor: int | None = None
        if pid:
            with suppress(
                OSError
            ):  # ended already, or the engine's processes are not this machine's
                self._descriptor = os.pidfd_open(pid)

    def is_running(self) -> bool | None:
        """Does it? None: it cannot be seen from here."""
        if self._descriptor is None:
            return None
        return not select.select([self._descriptor], [], [], 0)[0]

    def close(self) -> None:
        """Look no more. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Compose:
    """One project."""

    def __init__(self, project: str, files: Sequence[Path], variables: Mapping[str, str]) -> None:
        command = compose_command()
        assert command is not None, "refused before"
        self._command = [*command, "-p", project]
        for file in files:
            self._command += ["-f", str(file)]
        self._variables = variables

    async def __call__(self, *arguments: str, limit_s: float = COMMAND_S) -> str:
        """Raises `ChaosFailed`."""
        return await call(*self._command, *arguments, variables=self._variables, limit_s=limit_s)
