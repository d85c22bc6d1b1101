"""A child process that runs one node, or a whole cluster, and ends when its parent does.

Run as ``python -m distributedlog.cluster.child``. The first line on stdin says what to run (JSON); after
that stdin is the life line: its end, by a close or by the parent's death of any kind, ends the child.
When it serves, one line of JSON on stdout; when it cannot start, one with ``error``.
"""

import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from ..runtime.descriptors import raise_limit
from ..runtime.errors import ConnectionLost, DistributedLogError
from ..runtime.host import Address, Host
from ..runtime.machine import needs_linux
from .logs import log_to_stderr
from .options import NodeReady, from_json

if TYPE_CHECKING:
    from .health import Health

Run = Callable[[trio.TaskStatus[dict[str, Any]]], Awaitable[None]]


def main() -> None:
    """Read what to run, run it, end with 0 (told to) or 1 (it failed)."""
    spec = json.loads(sys.stdin.readline())
    log_to_stderr(spec.get("name", ""), logging.getLevelName(spec.get("log_level", "WARNING")))
    sys.setswitchinterval(0.0005)  # sync threads hand the lock back soon (H27)
    try:
        trio.run(_main, spec)
    except BaseException as error:
        leaf = first_of(error)
        code = leaf.code if isinstance(leaf, DistributedLogError) else 500
        print(json.dumps({"error": [code, type(leaf).__name__, str(leaf)]}), flush=True)
        known = isinstance(leaf, DistributedLogError | KeyboardInterrupt | OSError)
        logging.getLogger("distributedlog.cluster").error(
            "%s (%s): %s", type(leaf).__name__, code, leaf, exc_info=None if known else error
        )
        sys.exit(1)


async def _main(spec: dict[str, Any]) -> None:
    if spec["run"] == "cluster":
        raise_limit()
        from .local import run_cluster_of

        await until_told(lambda status: run_cluster_of(spec, task_status=status), stdin=True)
    else:
        await until_told(lambda status: run_node(spec, task_status=status), stdin=True)


async def run_node(
    spec: dict[str, Any], *, task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the node of ``spec`` (config, data, index, http) until cancelled.

    Its started value is the ready line. Over HTTP it answers from the beginning, also while it starts.
    """
    needs_linux("a node")
    from .directories import host_of, memory_host
    from .node import serve_node

    raise_limit()
    config = from_json(spec["config"])
    data = Path(spec["data"]) if spec.get("data") else None
    index = Path(spec["index"]) if spec.get("index") else None

    async def serve(host: Host) -> None:
        async with trio.open_nursery() as nursery:
            place: list[Address] = []
            if spec.get("http"):
                from .http import serve_http

                http = await host.listen((spec["http"][0], int(spec["http"][1])))
                nursery.start_soon(serve_http, http, lambda: health_of(host, place))
            ready: NodeReady = await nursery.start(serve_node, host, config)
            place.append(ready.address)
            task_status.started(ready_line(ready, str(data) if data else None))

    if data is None:
        await serve(memory_host(config))
    else:
        async with host_of(config, data, index) as host:
            await serve(host)


async def health_of(host: Host, place: list[Address]) -> "Health":
    """What the node at ``place`` (empty: it has not started yet) says of itself over its own protocol."""
    from .health import Health, ask_health, dialled

    if not place:
        return Health(False, "starting")
    return await ask_health(host, dialled(place[0]))


def ready_line(ready: NodeReady, data: str | None) -> dict[str, Any]:
    """What a node's ready line holds, but for the pid."""
    from .config import format_address

    return {
        "name": ready.name,
        "kind": ready.kind,
        "id": ready.node_id,
        "address": format_address(ready.address),
        "data": data,
    }


async def until_told(
    run: Run, *, stdin: bool, ready: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Run until SIGTERM, SIGINT, or (``stdin``) the end of stdin; say when it serves."""
    import os

    told = trio.CancelScope()
    try:
        with told:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_signal, told)
                if stdin:
                    nursery.start_soon(cancel_at_end_of_stdin, told)
                value = await nursery.start(_running, run)
                line = {**value, "pid": os.getpid()}
                if ready is not None:
                    ready(line)
                else:
                    print(json.dumps(line), flush=True)
    except* ConnectionLost:
        if not told.cancel_called:  # connections that break while all is taken down are no failure
            raise


async def _running(run: Run, *, task_status: trio.TaskStatus[dict[str, Any]]) -> None:
    await run(task_status)


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()


async def cancel_at_end_of_stdin(scope: trio.CancelScope) -> None:
    """End with the life line: stdin ends by a close, or by the parent's death of any kind."""
    async with trio.lowlevel.FdStream(_own_stdin()) as stream:
        while await stream.receive_some(4096):
            pass
    scope.cancel()


def _own_stdin() -> int:
    """A descriptor of our own for stdin: `FdStream` closes what it is given."""
    import os

    return os.dup(0)


def first_of(error: BaseException) -> BaseException:
    """The error to tell of a group: ours before others."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    ours = [leaf for leaf in leaves if isinstance(leaf, DistributedLogError)]
    return (ours or leaves)[0]


if __name__ == "__main__":
    main()
