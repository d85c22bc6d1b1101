"""End a process on a signal, or at the end of stdin, whose other end its parent process holds."""

import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ...runtime.interfaces.errors import ConnectionLost, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger

log = get_logger("distributedlog.cluster")

Run = Callable[[trio.TaskStatus[dict[str, Any]]], Awaitable[None]]


async def run_until_stopped(
    run: Run, *, stdin: bool, ready: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Run a node until SIGTERM, SIGINT or, with ``stdin``, the end of stdin.

    A SIGHUP ends it only if its standard input is a terminal, which has then been closed. Otherwise, SIGHUP
    is ignored: a service manager would treat such an end as clean, and would not restart the node.

    A second SIGTERM has no effect while the node ends. A second SIGINT ends it at once, because it comes from
    a user who does not want to wait.

    Args:
        run: Runs the node, and reports its start.
        stdin: Whether the end of stdin ends the node.
        ready: Called with the start report; None to print it as one JSON line.
    """
    stop_scope = trio.CancelScope()
    try:
        async with trio.open_nursery() as outer:
            await outer.start(_cancel_on, signal.SIGTERM, stop_scope)
            on_hangup = _cancel_on if os.isatty(0) else _ignore
            await outer.start(on_hangup, signal.SIGHUP, stop_scope)
            with stop_scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(_cancel_on, signal.SIGINT, stop_scope)
                    if stdin:
                        nursery.start_soon(cancel_at_end_of_stdin, stop_scope)
                    value = await nursery.start(_run_started, run)
                    line = {**value, "pid": os.getpid()}
                    if ready is not None:
                        ready(line)
                    else:
                        print(json.dumps(line), flush=True)
            outer.cancel_scope.cancel()
    except* ConnectionLost:
        if (
            not stop_scope.cancel_called
        ):  # connections that break during the shutdown are no failure
            raise


async def _run_started(run: Run, *, task_status: trio.TaskStatus[dict[str, Any]]) -> None:
    await run(task_status)


async def _cancel_on(
    number: signal.Signals, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(number) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _ignore(
    number: signal.Signals, _: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(number) as signals:
        task_status.started()
        async for _received in signals:
            log.info("%s is ignored: changed files are reloaded automatically", number.name)


async def cancel_at_end_of_stdin(scope: trio.CancelScope) -> None:
    """Cancel a scope at the end of stdin, which the parent closes, or which closes when the parent dies."""
    async with trio.lowlevel.FdStream(_own_stdin()) as stream:
        while await stream.receive_some(4096):
            pass
    scope.cancel()


def _own_stdin() -> int:
    """Return a duplicate descriptor of stdin, because `FdStream` closes its descriptor."""
    return os.dup(0)


def first_error(error: BaseException) -> BaseException:
    """Return the error of a group to report: the first `DistributedLogError`, otherwise the first error."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    own_errors = [leaf for leaf in leaves if isinstance(leaf, DistributedLogError)]
    return (own_errors or leaves)[0]
