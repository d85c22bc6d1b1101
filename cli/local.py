"""`dlog local`: a whole cluster on this machine, and its demonstration."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import say
from .options import Command, Settings, common
from .output import write_by_rename

if TYPE_CHECKING:
    from ..cluster.fork_server import ForkServer


@click.command(
    cls=Command,
    examples="""
    dlog local --demo                          write, kill a bookie, write on, read back, say what happened
    dlog local                                 a cluster on a temporary directory, until Ctrl-C
    dlog local --data ./data --port 4181       kept in ./data: the same nodes, ports and URI at the next start
    dlog local --data ./data --processes       each node in a process of its own, so that one can be killed
    """,
)
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Default: a temporary one."
)
@click.option("--memory", is_flag=True, help="Keep nothing on disk.")
@click.option("--bookies", type=click.IntRange(1, 64), default=3, show_default=True)
@click.option(
    "--metadata-nodes", type=click.Choice(["1", "3", "5"]), default="3", show_default=True
)
@click.option(
    "--port", type=click.IntRange(0, 65_000), default=0, help="The first port; 0: free ones."
)
@click.option("--processes", is_flag=True, help="Each node in its own process.")
@click.option("--restart", is_flag=True, help="Start a node again that has died.")
@click.option("--demo", is_flag=True, help="Show it at work, then end.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the ready line there too.",
)
@common
def command(
    settings: Settings,
    data: Path | None,
    memory: bool,
    bookies: int,
    metadata_nodes: str,
    port: int,
    processes: bool,
    restart: bool,
    demo: bool,
    ready_file: Path | None,
) -> None:
    """Run a whole cluster on this machine: metadata nodes and bookies; prints its URI when it serves.

    The ready line is JSON: {"uri", "nodes": [{"name", "kind", "pid", "address", "data"}]}. Ends with SIGINT
    or SIGTERM; nothing it started outlives it.
    """
    if memory and data is not None:
        raise click.UsageError("--memory keeps nothing, --data keeps it there: choose one")
    import logging

    import trio

    from ..runtime.machine import needs_linux

    needs_linux("dlog local")

    from ..cluster.logs import log_to_stderr

    # First of all: no thread, no loop is there yet.
    forks = _fork_server() if processes or demo else None
    log_to_stderr("local", logging.INFO if settings.verbose else logging.ERROR)
    sys.setswitchinterval(0.0005)  # sync threads hand the lock back soon (H27)
    options: dict[str, Any] = {
        "data": data,
        "bookies": bookies,
        "metadata_nodes": int(metadata_nodes),
        "memory": memory,
        "port": port,
        "restart": restart,
        "on_death": lambda name, why: say(f"{name} died: {why}"),
        "log_level": "INFO" if settings.verbose else "ERROR",
        "forks": forks,
    }
    if demo:
        from .demo import run_demo

        trio.run(run_demo, settings, options, processes)
        return
    trio.run(_run, {**options, "processes": processes, "in_process": not processes}, ready_file)


def _fork_server() -> "ForkServer":
    """It has what this process has imported by now, so what a node needs is imported first."""
    from ..cluster.child import main
    from ..cluster.fork_server import ForkServer

    return ForkServer.forked(main)


async def _run(options: dict[str, Any], ready_file: Path | None) -> None:
    import trio

    from ..cluster.lifeline import until_told
    from ..cluster.local import local_cluster

    async def run(status: "trio.TaskStatus[dict[str, Any]]") -> None:
        async with local_cluster(**options) as cluster:
            status.started(cluster.ready())
            await trio.sleep_forever()

    def ready(line: dict[str, Any]) -> None:
        text = json.dumps({key: line[key] for key in ("uri", "nodes")})
        if ready_file is not None:
            write_by_rename(ready_file, text + "\n")
        print(text, flush=True)

    await until_told(run, stdin=False, ready=ready)
