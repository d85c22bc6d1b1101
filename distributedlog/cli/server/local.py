"""`dlog local`: a whole cluster on this machine, and its demonstration."""

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
"""Of the ready line."""
READY_LINE_START = '{"uri":'
"""The first characters of each ready line."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog local --demo                          write, kill a bookie, write on, read back, say what happened
    dlog local                                 a cluster on a temporary directory, until Ctrl-C
    dlog local --data ./data --port 4181       kept in ./data: the same nodes, ports and URI at the next start
    dlog local --console                       and its page, for a browser
    dlog local --write-proxies 1 --read-proxies 1    and a proxy of each kind
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
    "--write-proxies", type=click.IntRange(0, 16), default=0, help="For many writers of one log."
)
@click.option(
    "--read-proxies", type=click.IntRange(0, 16), default=0, help="For many readers of one log."
)
@click.option(
    "--port", type=click.IntRange(0, 65_000), default=0, help="The first port; 0: free ones."
)
@click.option("--processes", is_flag=True, help="Each node in its own process.")
@click.option("--restart", is_flag=True, help="Start a node again that has died.")
@click.option(
    "--console", is_flag=True, help="Serve a page about it, for a browser (dlog console)."
)
@click.option("--demo", is_flag=True, help="Show it at work, then end.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="Write the ready line there too; an older ready file is replaced.",
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
    """Run a whole cluster on this machine: metadata nodes and bookies; prints its URI when it serves.

    The ready line is JSON: {"uri", "nodes": [{"name", "kind", "pid", "address", "data"}]}, "console" and
    "proxied_uri" too where they are asked for. On a terminal it
    is text for people instead. Without --json the cluster becomes the context "local". Ends with SIGINT or
    SIGTERM; nothing it started outlives it.
    """
    if memory and data is not None:
        raise click.UsageError("--memory keeps nothing, --data keeps it there: choose one")
    if ready_file is not None:
        _check_ready_file(ready_file)  # before anything is started
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
    # For people, on a terminal or not. A program reads the URI in the ready line.
    context = None if settings.json else LocalContext(is_kept=data is not None)
    try:
        trio.run(_run_local, options, ready_file, context, console, sys.stdout.isatty())
    finally:
        if context is not None:
            context.restore()


def _prepare_process(settings: Settings, *, needs_forks: bool) -> Any:
    """Check the platform, and set up logs and threads; return the fork server if it is needed."""
    import logging

    from ...runtime.machine import require_linux

    require_linux("dlog local")

    from ...cluster.process.json_logs import log_to_stderr

    # First of all: no thread, no loop is there yet.
    forks = _fork_server() if needs_forks else None
    log_to_stderr("local", logging.INFO if settings.verbose else logging.ERROR)
    sys.setswitchinterval(0.0005)  # sync threads hand the lock back soon (H27)
    return forks


def _check_ready_file(path: Path) -> None:
    """A ready file is replaced at each start, any other file is not. Raises `InvalidRequest`."""
    target = resolve_destination(path)
    if target.file is None or not target.exists:
        return
    text = read_text(target.file)
    if text.strip() and not text.startswith(READY_LINE_START):
        raise InvalidRequest(
            f"--ready-file {path} exists, and is not a ready file: choose another name"
        )


def _fork_server() -> "ForkServer":
    """It has what this process has imported by now, so what a node needs is imported first."""
    from ...cluster.local.fork_server import ForkServer
    from ...cluster.local.node_child import main

    return ForkServer.fork_here(main)


async def _run_local(
    options: dict[str, Any],
    ready_file: Path | None,
    context: "LocalContext | None",
    console: bool,
    is_terminal: bool,
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
            with output_file(ready_file, reader_wait_s=0) as out:  # a wait would stop the nodes
                out.write(f"{text}\n".encode())
        if context is not None:
            naming = context.choose(line["uri"])
            if is_terminal:
                text = ready_text(line, naming)
        print(text, flush=True)

    await run_until_stopped(run, stdin=False, ready=ready)


@asynccontextmanager
async def _serve_console(uri: str) -> AsyncIterator[str]:
    """The cluster's console at its usual port, or at a free one; its link."""
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
    """How `dlog` finds the cluster without its URI."""

    is_chosen: bool = True
    """The context is where commands go that name no cluster."""
    is_name_taken: bool = False
    """The name was that of another cluster, which has no other one."""
    problem: str = ""
    """Why it has no name; "": it has."""


class LocalContext:
    """The context "local" (`named_clusters.py`): this cluster, while it runs or its data are kept."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_data_kept = is_kept
        self._uri = ""
        self._replaced = ("", "")
        """The URI that had the name, where that was another cluster's, and the credentials with it."""

    def choose(self, uri: str) -> ContextNaming:
        """Name the cluster; chosen is it where nothing else is.

        One that cannot be named serves all the same: a home may be nobody's to write into.
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
        """Forget a cluster whose data are gone, unless the name is another one's by now.

        A cluster that had the name before has it again, while it serves: it runs in another terminal.
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
                f"the context {LOCAL} stays, of a cluster that is gone: {_error_text(error)}"
            )


def _error_text(error: OSError | click.UsageError | DistributedLogError) -> str:
    """Of a file that cannot be read or written."""
    if isinstance(error, click.UsageError):
        return error.message
    if isinstance(error, DistributedLogError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def is_served(uri: str) -> bool:
    """Whether a program listens at one of its addresses, or may. At those of no URI none does."""
    from ...runtime.interfaces.errors import InvalidUri
    from ...runtime.net.port_reservation import is_listened_on
    from ...uri import parse_uri

    if not uri:
        return False
    try:
        # Not by a bind: the connections of a cluster that has just ended keep its ports for a minute.
        return any(map(is_listened_on, parse_uri(uri).addresses))
    except InvalidUri:
        return True  # of a newer version


def ready_text(line: dict[str, Any], naming: ContextNaming) -> str:
    """What a terminal shows when the cluster serves; what is to be copied out of it is no wider than one."""
    kinds = [node["kind"] for node in line["nodes"]]
    name_width = max(len(node["name"]) for node in line["nodes"])
    has_separate_processes = len({node["pid"] for node in line["nodes"]}) > 1
    lines = [
        f"{kinds.count('metadata')} metadata nodes and {kinds.count('bookie')} bookies serve, until Ctrl-C.",
        "",
        *(
            f"  {node['name']:{name_width}}  {node['kind']:11}  "
            f"{node['address']}{_pid(node, has_separate_processes)}"
            for node in line["nodes"]
        ),
        "",
        "Its URI:",
        f"  {line['uri']}",
        *([f"Through its proxies:\n  {line['proxied_uri']}"] if "proxied_uri" in line else []),
        "",
        *_how_to_connect(naming),
        "",
        *(["In a browser:", f"  {line['console']}", ""] if "console" in line else []),
        "To try next:",
        "  seq 100000 | dlog log write numbers --create",
        "  dlog log read numbers --limit 3",
        "  dlog status --watch",
        "  dlog bench write --seconds 5",
        "",
    ]
    return "\n".join(lines)


def _how_to_connect(naming: ContextNaming) -> list[str]:
    """What to type in another terminal."""
    if naming.problem:
        return [
            f"It is no context, for {naming.problem}",
            "In another terminal, for dlog and for programs: set DLOG_URI to that URI.",
        ]
    return [
        f"dlog finds it without that: it is the context {LOCAL}."
        if naming.is_chosen
        else f"dlog finds it without that after: dlog context use {LOCAL}",
        *(
            [f"So was another cluster until now, which serves, and is {LOCAL} no more."]
            * naming.is_name_taken
        ),
        "In another terminal, for programs:",
        f"  export DLOG_URI=$(dlog context show {LOCAL})",
    ]


def _pid(node: dict[str, Any], is_separate: bool) -> str:
    """What to kill, where nodes are processes of their own."""
    return f"  pid {node['pid']}" if is_separate else ""
