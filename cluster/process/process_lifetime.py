"""When a process ends: told by a signal, or by the end of its life line, whose other end its parent holds."""

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
    """Run until SIGTERM, SIGINT, or (``stdin``) the end of stdin; say when it serves.

    A SIGHUP ends it only if its standard input is a terminal, which has then been closed. A service manager
    would take an end by SIGHUP for a clean one, and would not start the node again.

    A SIGTERM while it ends changes nothing: who sends a second one means the same. A second SIGINT is a
    person's, who does not want to wait.
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
        ):  # connections that break while all is taken down are no failure
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
            log.info("%s is ignored: files that change are read again without it", number.name)


async def cancel_at_end_of_stdin(scope: trio.CancelScope) -> None:
    """End with the life line: stdin ends by a close, or by the parent's death of any kind."""
    async with trio.lowlevel.FdStream(_own_stdin()) as stream:
        while await stream.receive_some(4096):
            pass
    scope.cancel()


def _own_stdin() -> int:
    """A descriptor of our own for stdin: `FdStream` closes what it is given."""
    return os.dup(0)


def first_error(error: BaseException) -> BaseException:
    """The error to tell of a group: ours before others."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    own_errors = [leaf for leaf in leaves if isinstance(leaf, DistributedLogError)]
    return (own_errors or leaves)[0]
