"""Call the Docker engine and compose by their command lines."""

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
    """Return the folder ``docker/`` below the working directory or of this checkout; None if missing."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if all((root / "docker" / name).is_file() for name in FILES):
            return root / "docker"
    return None


def compose_command() -> tuple[str, ...] | None:
    """Return the command of compose v2 (a plugin) or v1 (a program); None if there is none."""
    for candidate in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(candidate[0]) and _says_yes(*candidate, "version"):
            return candidate
    return None


def refusal() -> str | None:
    """Return why clusters of containers are not available on this machine; None if they are."""
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
    """Return whether this process may change the limits of other users' processes.

    Root may lack this capability in a container.
    """
    status_words = Path("/proc/self/status").read_text().split()
    return bool(int(status_words[status_words.index("CapEff:") + 1], 16) & CAP_SYS_RESOURCE)


async def call(
    *command: str,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    limit_s: float = COMMAND_S,
) -> str:
    """Run a command and return its stdout. Raises `ChaosFailed` with its stderr."""
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
    """Return the engine's description of containers. Raises `ChaosFailed`."""
    inspected: list[dict[str, Any]] = json.loads(await call("docker", "inspect", *ids))
    return inspected


async def containers_of(project: str) -> dict[str, dict[str, Any]]:
    """Return the engine's description of a project's containers, by service."""
    id_lines = await call(
        "docker", "ps", "-aq", "--no-trunc", "--filter", f"label={PROJECT_LABEL}={project}"
    )
    ids = id_lines.split()
    if not ids:
        return {}
    return {
        inspected["Config"]["Labels"][SERVICE_LABEL]: inspected for inspected in await inspect(*ids)
    }


class ObservedProcess:
    """The first process of a running container, observed from this machine.

    A query of the engine takes a tenth of a second, and a node may be killed on purpose in this time. The
    detection of unexpected exits needs the present state.
    """

    def __init__(self, pid: int) -> None:
        self._descriptor: int | None = None
        if pid:
            with suppress(OSError):  # it has ended, or the engine runs on another machine
                self._descriptor = os.pidfd_open(pid)

    def is_running(self) -> bool | None:
        """Return whether the process runs; None if it cannot be observed from here."""
        if self._descriptor is None:
            return None
        return not select.select([self._descriptor], [], [], 0)[0]

    def close(self) -> None:
        """Stop observing. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Compose:
    """One compose project."""

    def __init__(self, project: str, files: Sequence[Path], variables: Mapping[str, str]) -> None:
        command = compose_command()
        assert command is not None, "refused before"
        self._command = [*command, "-p", project]
        for file in files:
            self._command += ["-f", str(file)]
        self._variables = variables

    async def __call__(self, *arguments: str, limit_s: float = COMMAND_S) -> str:
        """Run a compose command and return its output. Raises `ChaosFailed`."""
        return await call(*self._command, *arguments, variables=self._variables, limit_s=limit_s)
