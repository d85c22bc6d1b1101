"""docker/compose.yaml read without compose: the YAML that it is written in; its services as processes here.

Each service has a directory for its file system, in which its volumes are links, so that a process sees what
its container would; it has an address of this machine's 127.0.0.0/8 for its name, and one for all published
ports. Its command and its environment are the file's.
"""

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from distributedlog.cluster.local.child_processes import environment

DOCKER = Path(__file__).resolve().parents[2] / "docker"
PLACES = re.compile(r"(?<![\w./])(/(?:var/lib/dlog|etc/dlog|authority|tls))")
"""Directories of the image that the file, or node.toml, names."""


def read_compose(file: Path = DOCKER / "compose.yaml") -> Any:
    """The whole file, anchors and merges resolved, variables at their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", file.read_text())
    lines = []
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if bare:
            lines.append((len(bare) - len(bare.lstrip()), bare.strip()))
    found, rest = _block(lines, 0, {})
    assert not rest, rest[0]
    return found


def _block(lines: list[tuple[int, str]], depth: int, anchors: dict[str, Any]) -> tuple[Any, Any]:
    if lines and lines[0][1].startswith("- "):
        items = []
        while lines and lines[0][0] == depth and lines[0][1].startswith("- "):
            items.append(_flow(lines[0][1][2:]))
            lines = lines[1:]
        return items, lines
    found: dict[str, Any] = {}
    while lines and lines[0][0] == depth:
        key, _, said = lines[0][1].partition(":")
        lines, said, name = lines[1:], said.strip(), ""
        if said.startswith("&"):
            name, _, said = said[1:].partition(" ")
        if key == "<<":
            found = {**anchors[said[1:]], **found}
            continue
        value = anchors[said[1:]] if said.startswith("*") else _flow(said)
        if not said and lines and lines[0][0] > depth:
            value, lines = _block(lines, lines[0][0], anchors)
        if name:
            anchors[name] = value
        found[key] = value
    return found, lines


def _flow(said: str) -> Any:
    """A scalar, or a list or map in brackets; all scalars are texts."""
    if said[:1] == "[":
        return [_flow(one) for one in _parts(said)]
    if said[:1] == "{":
        pairs = (one.partition(": ") for one in _parts(said))
        return {key: _flow(value) for key, _, value in pairs}
    return said.strip('"')


def _parts(said: str) -> list[str]:
    return [one.strip() for one in re.split(r",(?![^\[{]*[\]}])", said[1:-1]) if one.strip()]


class Containers:
    """The services of the file, as processes below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.services: dict[str, dict[str, Any]] = read_compose()["services"]
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        # Nobody else on this machine, and no other run of this, has these.
        self._net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.outside = f"{self._net}.200"
        self._hosts = {name: f"{self._net}.{n}" for n, name in enumerate(self.services, 1)}

    def host(self, service: str) -> str:
        """Its address on the network of the containers."""
        return self._hosts[service]

    def root(self, service: str) -> Path:
        """What it has for /, with its volumes as links; each volume is one directory."""
        root = self.directory / "roots" / service
        for mount in self.services[service].get("volumes", ()):
            source, target = mount.split(":")[:2]
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.startswith("./"):
                place.write_text(self._here(service, (DOCKER / source).read_text()))
            elif not place.is_symlink():
                volume = self.directory / "volumes" / source
                volume.mkdir(mode=0o700, parents=True, exist_ok=True)
                place.symlink_to(volume)
        return root

    def volume(self, name: str) -> Path:
        """Its directory."""
        return self.directory / "volumes" / name

    def _here(self, service: str, text: str) -> str:
        """What stands in the file, for a process of this machine."""
        for name, host in self._hosts.items():
            text = re.sub(rf"(?<![\w.-]){name}:(\d)", rf"{host}:\1", text)
        text = re.sub(r"outside=(0\.0\.0\.0|127\.0\.0\.1):", f"outside={self.outside}:", text)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1):", f"{self.host(service)}:", text)
        root = self.directory / "roots" / service
        return PLACES.sub(lambda found: str(root) + found.group(1), text)

    def variables(self, service: str) -> dict[str, str]:
        """Its environment, and nothing of this user's that a node or a client looks at."""
        root = self.root(service)
        ours = {k: v for k, v in environment().items() if not k.startswith("DLOG_")}
        said = self.services[service].get("environment", {})
        told = {key: self._here(service, value) for key, value in said.items()}
        return {**ours, "HOME": str(root), "XDG_RUNTIME_DIR": str(root), **told}

    def command(self, service: str, *instead: str) -> list[str]:
        """Its command line; ``instead``: what `run SERVICE` is given."""
        words = self.services[service].get("command", [])
        words = list(instead) or (words.split() if isinstance(words, str) else words)
        here = [self._here(service, word) for word in words]
        return [sys.executable, "-m", "distributedlog.cli.main", *here]

    def run(
        self, service: str, *instead: str, stdin: bytes = b"", limit_s: float = 120.0
    ) -> "subprocess.CompletedProcess[bytes]":
        """`run --rm -T SERVICE …` to its end."""
        return subprocess.run(
            self.command(service, *instead),
            input=stdin,
            capture_output=True,
            env=self.variables(service),
            timeout=limit_s,
            check=False,
        )

    def start(self, service: str) -> None:
        """Its process, which ends with this one."""
        variables = self.variables(service)
        kind = self.services[service]["command"].split()[1].upper().replace("-", "_")
        variables[f"DLOG_SERVE_{kind}_END_WITH_STDIN"] = "true"
        with (self.directory / f"{service}.stderr").open("ab") as errors:
            self.running[service] = subprocess.Popen(
                self.command(service),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables,
                cwd=self.root(service),
            )

    def ready(self, service: str) -> dict[str, Any]:
        """Its ready line. Raises `AssertionError` with what it said instead."""
        process = self.running[service]
        assert process.stdout is not None
        line = process.stdout.readline()
        said = (self.directory / f"{service}.stderr").read_text()
        assert line, f"{service} ended with {process.wait()}: {said[-2000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        """All that run."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.running.clear()
