"""`dlog local`: run a whole cluster on this machine, or a demonstration."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...runtime.disk.output_file import output_file, resolve_destination
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ..framework import named_clusters
from ..framework.errors import print_notice
from ..framework.named_clusters import LOCAL
from ..framework.options import CliCommand, Settings, read_text, without_cluster

if TYPE_CHECKING:
    from ...cluster.local.fork_server import ForkServer

READY_LINE_KEYS = ("uri", "proxied_uri", "nodes", "console")
"""Keys of the ready line."""
READY_LINE_START = '{"uri":'
"""The first characters of each ready line."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog local --demo                          write, kill a bookie, continue to write, read everything back
    dlog local                                 run a cluster in a temporary directory, until Ctrl-C
    dlog local --data ./data --port 4181       keep it in ./data: the next start has the same nodes and URI
    dlog local --console                       also serve its console, for a browser
    dlog local --write-proxies 1 --read-proxies 1    also run a proxy of each kind
    dlog local --data ./data --processes       run each node in its own process, so that you can kill one
    """,
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory (default: a temporary directory).",
)
@click.option("--memory", is_flag=True, help="Store nothing on disk.")
@click.option(
    "--bookies", type=click.IntRange(1, 64), default=3, show_default=True, help="Number of bookies."
)
@click.option(
    "--metadata-nodes",
    type=click.Choice(["1", "3", "5"]),
    default="3",
    show_default=True,
    help="Number of metadata nodes.",
)
@click.option(
    "--write-proxies",
    type=click.IntRange(0, 16),
    default=0,
    help="Number of write proxies, for many writers of one log (default 0).",
)
@click.option(
    "--read-proxies",
    type=click.IntRange(0, 16),
    default=0,
    help="Number of read proxies, for many readers of one log (default 0).",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=0,
    help="First port; 0 selects free ports (default 0).",
)
@click.option("--processes", is_flag=True, help="Run each node in its own process.")
@click.option("--restart", is_flag=True, help="Restart nodes that fail.")
@click.option("--console", is_flag=True, help="Serve a console for a browser (dlog console).")
@click.option("--demo", is_flag=True, help="Run a demonstration, then end.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="File for the JSON line that --json prints; replaces an older ready file.",
)
@without_cluster()
def command(
    settings: Settings,
    data: Path | None,
    memory: bool,
    bookies: int,
    metadata_nodes: str,
    write_proxies: int,
    read_proxies: int,
    port: int,
    processes: bool,
    restart: bool,
    console: bool,
    demo: bool,
    ready_file: Path | None,
) -> None:
    """Run a whole cluster of metadata nodes and bookies on this machine.

    When the cluster is ready, the command prints its URI, and the cluster becomes the context "local". With
    --json, it prints one JSON line instead, and there is no context. The keys of the line are "uri", "nodes",
    and "console" and "proxied_uri" if they were requested. Each node has "name", "kind", "pid", "address" and
    "data". The command ends with SIGINT or SIGTERM, and all its processes end with it.
    """
    if memory and data is not None:
        raise click.UsageError("--memory and --data exclude each other")
    if ready_file is not None:
        _check_ready_file(ready_file)  # before anything starts
    import trio

    forks = _prepare_process(settings, needs_forks=processes or demo)
    options: dict[str, Any] = {
        "data": data,
        "bookies": bookies,
        "metadata_nodes": int(metadata_nodes),
        "write_proxies": write_proxies,
        "read_proxies": read_proxies,
        "memory": memory,
        "port": port,
        "restart": restart,
        "on_death": lambda name, why: print_notice(f"{name} died: {why}"),
        "log_level": "INFO" if settings.verbose else "ERROR",
        "forks": forks,
    }
    if demo:
        from .local_demo import run_demo

        trio.run(run_demo, settings, options, processes)
        return
    options |= {"processes": processes, "in_process": not processes}
    # For people, also in the background. A program reads the URI in the ready line.
    context = None if settings.json else LocalContext(is_kept=data is not None)
    try:
        trio.run(_run_local, options, ready_file, context, console)
    finally:
        if context is not None:
            context.restore()


def _prepare_process(settings: Settings, *, needs_forks: bool) -> Any:
    """Check the platform, and set up logs and threads; return the fork server if it is needed."""
    import logging

    from ...runtime.machine import require_linux

    require_linux("dlog local")

    from ...cluster.process.stderr_logs import log_to_stderr

    # First, while there is no thread and no event loop.
    forks = _fork_server() if needs_forks else None
    level = logging.INFO if settings.verbose else logging.ERROR
    log_to_stderr("local", level, as_json=settings.json)
    sys.setswitchinterval(0.0005)  # sync threads release the interpreter lock sooner (H27)
    return forks


def _check_ready_file(path: Path) -> None:
    """Check that the path may be replaced: only an older ready file is. Raises `InvalidRequest`."""
    target = resolve_destination(path)
    if target.file is None or not target.exists:
        return
    text = read_text(target.file)
    if text.strip() and not text.startswith(READY_LINE_START):
        raise InvalidRequest(
            f"--ready-file {path} exists and is not a ready file. Use another name"
        )


def _fork_server() -> "ForkServer":
    """Start the fork server. It has the modules that are imported now, so `main` is imported first."""
    from ...cluster.local.fork_server import ForkServer
    from ...cluster.local.node_child import main

    return ForkServer.fork_here(main)


async def _run_local(
    options: dict[str, Any],
    ready_file: Path | None,
    context: "LocalContext | None",
    console: bool,
) -> None:
    import trio

    from ...cluster.local.local_cluster import local_cluster
    from ...cluster.process.process_lifetime import run_until_stopped

    async def run(status: "trio.TaskStatus[dict[str, Any]]") -> None:
        async with local_cluster(**options) as cluster, AsyncExitStack() as stack:
            line = cluster.ready()
            if console:
                line["console"] = await stack.enter_async_context(_serve_console(line["uri"]))
            status.started(line)
            await trio.sleep_forever()

    def ready(line: dict[str, Any]) -> None:
        text = json.dumps({key: line[key] for key in READY_LINE_KEYS if key in line})
        if ready_file is not None:
            with output_file(ready_file, reader_wait_s=0) as out:  # waiting would block the nodes
                out.write(f"{text}\n".encode())
        if context is not None:
            text = ready_text(line, context.choose(line["uri"]))
        print(text, flush=True)

    await run_until_stopped(run, stdin=False, ready=ready)


@asynccontextmanager
async def _serve_console(uri: str) -> AsyncIterator[str]:
    """Serve the console at its usual port, or at a free one if that is in use; yield its link."""
    from ...cluster.declarations.config import parse_address
    from ...runtime.interfaces.errors import AddressInUse
    from .console import LISTEN, console

    default_address = parse_address(LISTEN, "--listen")
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(console(uri, default_address))
        except AddressInUse:
            link = await stack.enter_async_context(console(uri, (default_address[0], 0)))
        yield link


@dataclass(frozen=True, slots=True)
class ContextNaming:
    """Whether `dlog` finds the cluster through the context "local"."""

    is_chosen: bool = True
    """The context is selected, so that it applies to commands without a URI."""
    is_name_taken: bool = False
    """The name was that of another running cluster, which now has none."""
    problem: str = ""
    """Why the context could not be stored; "" if it was."""


class LocalContext:
    """The context "local" (`named_clusters.py`). It exists while this cluster runs or its data are kept."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_data_kept = is_kept
        self._uri = ""
        self._replaced = ("", "")
        """The URI and credentials that the name had before, if they were of another cluster."""

    def choose(self, uri: str) -> ContextNaming:
        """Store the cluster as the context "local", and select it if no other context is selected.

        A failure is not an error of the cluster, because the home directory may be read-only.
        """
        try:
            with named_clusters.edit_contexts() as contexts:
                previous_uri = contexts["contexts"].get(LOCAL, "")
                credentials = contexts["credentials"].pop(LOCAL, "")
                self._replaced = (previous_uri, credentials) if previous_uri != uri else ("", "")
                contexts["contexts"][LOCAL] = self._uri = uri
                contexts["current"] = contexts["current"] or LOCAL
                is_chosen = contexts["current"] == LOCAL
        except (OSError, click.UsageError, DistributedLogError) as error:
            self._uri = ""
            return ContextNaming(problem=_error_text(error))
        return ContextNaming(is_chosen, is_served(self._replaced[0]))

    def restore(self) -> None:
        """Delete the context of a cluster whose data are deleted, unless another cluster has the name now.

        If the previous cluster of this name still runs, for example in another terminal, it gets the name
        back.
        """
        if self._is_data_kept or not self._uri:
            return
        try:
            with named_clusters.edit_contexts() as contexts:
                if contexts["contexts"].get(LOCAL) != self._uri:
                    return
                previous_uri, credentials = self._replaced
                if is_served(previous_uri):
                    contexts["contexts"][LOCAL] = previous_uri
                    if credentials:
                        contexts["credentials"][LOCAL] = credentials
                    return
                del contexts["contexts"][LOCAL]
                if contexts["current"] == LOCAL:
                    contexts["current"] = ""
        except (OSError, click.UsageError, DistributedLogError) as error:
            print_notice(
                f"the context {LOCAL} of the ended cluster could not be deleted: {_error_text(error)}"
            )


def _error_text(error: OSError | click.UsageError | DistributedLogError) -> str:
    """Return the text of an error about a file that cannot be read or written."""
    if isinstance(error, click.UsageError):
        return error.message
    if isinstance(error, DistributedLogError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def is_served(uri: str) -> bool:
    """Whether a program listens, or may listen, at an address of the URI. False for ""."""
    from ...runtime.interfaces.errors import InvalidUri
    from ...runtime.net.port_reservation import is_listened_on
    from ...uri import parse_uri

    if not uri:
        return False
    try:
        # Not checked by a bind: connections of a cluster that just ended keep its ports for a minute.
        return any(map(is_listened_on, parse_uri(uri).addresses))
    except InvalidUri:
        return True  # a URI of a newer version


def ready_text(line: dict[str, Any], naming: ContextNaming) -> str:
    """Return the text that a terminal shows when the cluster is ready."""
    kinds = [node["kind"] for node in line["nodes"]]
    name_width = max(len(node["name"]) for node in line["nodes"])
    has_separate_processes = len({node["pid"] for node in line["nodes"]}) > 1
    lines = [
        f"{kinds.count('metadata')} metadata nodes and {kinds.count('bookie')} bookies run until Ctrl-C.",
        "",
        *(
            f"  {node['name']:{name_width}}  {node['kind']:11}  "
            f"{node['address']}{_pid(node, has_separate_processes)}"
            for node in line["nodes"]
        ),
        "",
        "URI:",
        f"  {line['uri']}",
        *([f"URI through its proxies:\n  {line['proxied_uri']}"] if "proxied_uri" in line else []),
        "",
        *_how_to_connect(naming),
        "",
        *(["In a browser:", f"  {line['console']}", ""] if "console" in line else []),
        "Next steps:",
        "  seq 100000 | dlog log write numbers --create",
        "  dlog log read numbers --limit 3",
        "  dlog status --watch",
        "  dlog bench write --seconds 5",
        "",
    ]
    return "\n".join(lines)


def _how_to_connect(naming: ContextNaming) -> list[str]:
    """Return the commands to use in another terminal."""
    if naming.problem:
        return [
            f"The context {LOCAL} could not be stored: {naming.problem}",
            "In another terminal, for dlog and for programs: set DLOG_URI to this URI.",
        ]
    return [
        f"dlog uses it without the URI: it is the selected context, {LOCAL}."
        if naming.is_chosen
        else f"To use it without the URI, select its context: dlog context use {LOCAL}",
        *(
            [f"Another running cluster was the context {LOCAL} before. It is no longer a context."]
            * naming.is_name_taken
        ),
        "In another terminal, for programs:",
        f"  export DLOG_URI=$(dlog context show {LOCAL})",
    ]


def _pid(node: dict[str, Any], is_separate: bool) -> str:
    """Return the process ID if nodes are separate processes."""
    return f"  pid {node['pid']}" if is_separate else ""
