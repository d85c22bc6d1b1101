"""What a run lays over the compose files: one configuration for all nodes, and what differs a service."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cluster.plan import LOCAL_JOURNAL_FILE_BYTES
from .adapter import Capability, Needs
from .node import CLOCK
from .process_node import FREE_BYTES_MIN
from .real_cluster import OWN_DISK

DATA = "/var/lib/dlog"
INSIDE_PORT = 4181
CLOCK_DIRECTORY = "/run/chaos"
NOT_ASKED = {"test": ["CMD", "true"], "interval": "24h"}
"""The engine does not ask the nodes: the adapter does, when it wants to know. Neither ``disable: true`` nor
the test ``NONE``: compose v1.29 lays them over the interval of compose.yaml, and refuses the two together."""


def node_config(names: Sequence[str], needs: Needs, store: Mapping[str, Any]) -> str:
    """The text of node.toml: the quorum of those that play, and the scenario's options of the store."""
    voters = [name for name in names if name.startswith("metadata")]
    quorum = json.dumps(",".join(f"{name}={name}:{INSIDE_PORT}" for name in voters))
    options: dict[str, Any] = {"journal_file_bytes": LOCAL_JOURNAL_FILE_BYTES, **store}
    if needs.capabilities & OWN_DISK:
        options.setdefault("free_bytes_min", FREE_BYTES_MIN)
        options["journal_file_bytes"] = min(
            int(options["journal_file_bytes"]), (needs.disk_mb << 20) // 16
        )
    lines = []
    for table in ("metadata", "bookie"):
        lines += [f"[{table}]", f"data = {json.dumps(DATA)}", f"metadata = {quorum}", ""]
    lines += ["[store]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def override(names: Sequence[str], needs: Needs, config: Path, disks: Mapping[str, Path]) -> str:
    """A compose file over the others (JSON, which is YAML). ``disks``: data directories of this machine."""
    services: dict[str, Any] = {}
    for name in names:
        volumes = [f"{config}:/etc/dlog/node.toml:ro"]
        service: dict[str, Any] = {"healthcheck": dict(NOT_ASKED), "volumes": volumes}
        if name in disks:
            volumes.append(f"{disks[name]}:{DATA}")
        if Capability.CLOCK in needs.capabilities:
            volumes.append(f"{clock_file(needs, name).parent}:{CLOCK_DIRECTORY}:ro")
            service["entrypoint"] = ["python", "-m", "distributedlog.chaos.node"]
            service["environment"] = {CLOCK: f"{CLOCK_DIRECTORY}/clock"}
        services[name] = service
    return json.dumps({"services": services}, indent=1)


def clock_file(needs: Needs, name: str) -> Path:
    """Where the offset of a node's wall clock is written; alone in its directory."""
    return needs.directory / name / "clock" / "clock"
