"""The main program of a client process, which uses the cluster as specified and records its observations.

It is started as ``python -m distributedlog.testing.chaos.clients.client_main``. The first line on stdin is
the specification (JSON). The end of stdin, when the runner closes it or dies, ends the client: it stops,
waits shortly for pending calls, and records their outcomes. A client is a separate process, so that it can be
killed and paused, too.
"""

import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from .... import open_namespace
from ....log.namespace import Namespace
from ....runtime.interfaces.errors import DistributedLogError
from ...verify.history.observations import FORMAT, ObservationWriter
from .client_context import ClientLife, after, before, one_line
from .gateway_clients import post
from .readers import catch_up, intrude, read_whole, registers, tail, truncate
from .writers import ChaosWriterSession, duel, many_logs, write

GOODBYE_S = 20.0
TIMEOUT_S = 10.0
"""The time limit of a client's call."""


async def finish(life: ClientLife, namespace: Namespace) -> None:
    """Take over each log after the faults, write to it, and read it completely.

    Failed attempts are repeated; the runner limits the time.
    """
    for log in life.options["logs"]:
        while not await _prove(life, namespace, log):
            if await life.wait_or_stop(0.5):
                return
        while not life.stop.is_set():
            try:
                await read_whole(life, namespace, log)
                break
            except DistributedLogError as error:
                life.observations.record(
                    "note", after(), f"the last reading ended: {one_line(error)}"
                )
                await life.wait_or_stop(0.5)
    life.observations.record("note", after(), "finished")


async def _prove(life: ClientLife, namespace: Namespace, log: str) -> bool:
    session = await ChaosWriterSession.open(life, namespace, log, takeover=True)
    if session is None:
        return False
    await session.run(partial(session.write_at_rate, 200.0, 100, 0.2))
    return session.failure is None


KINDS: dict[str, Callable[[ClientLife, Namespace], Awaitable[None]]] = {
    "writer": write,
    "duel": duel,
    "many-logs": many_logs,
    "tail": tail,
    "catch-up": catch_up,
    "registers": registers,
    "truncate": truncate,
    "stranger": intrude,
    "finish": finish,
}


async def _main(spec: dict[str, Any], descriptor: int) -> None:
    observations = ObservationWriter(spec["name"], lambda line: os.write(descriptor, line))
    life = ClientLife(
        spec["name"],
        spec["kind"],
        spec["options"],
        spec["first_session"],
        spec["log_options"],
        spec["seed"],
        observations,
    )
    observations.record("begin", FORMAT, os.getpid(), before())
    config: dict[str, Any] = {"metadata_timeout_s": TIMEOUT_S}
    if spec["credentials"]:
        config["credentials"] = spec["credentials"]
    metrics = _metrics(spec["pages"]) if spec["pages"] else None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_with_stdin, life, nursery.cancel_scope)
        async with contextlib.AsyncExitStack() as stack:
            if life.kind == "poster":
                await post(life, spec["uri"].split(";"))
            else:
                namespace = await _opened(stack, spec["uri"], config, metrics, life)
                if namespace is not None:
                    await KINDS[life.kind](life, namespace)
        nursery.cancel_scope.cancel()


async def _opened(
    stack: contextlib.AsyncExitStack,
    uri: str,
    config: dict[str, Any],
    metrics: Any,
    life: ClientLife,
) -> Namespace | None:
    """Return the namespace as soon as a quorum answers; None if the client must end before."""
    while not life.stop.is_set():
        try:
            return await stack.enter_async_context(
                open_namespace(uri, config=config, metrics=metrics)
            )
        except DistributedLogError as error:
            life.observations.record("note", after(), f"cannot open: {one_line(error)}")
            await life.wait_or_stop(0.2)
    return None


def _metrics(address: tuple[str, int]) -> Any:
    """Serve the metrics at an address, and return their registry."""
    from prometheus_client import REGISTRY, start_http_server

    host, port = address
    start_http_server(port, addr=host)
    return REGISTRY


async def _end_with_stdin(life: ClientLife, scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        while await stream.receive_some(4096):
            pass
    life.stop.set()
    await trio.sleep(GOODBYE_S)
    scope.cancel()


def main() -> None:
    """Read the specification, and run the client."""
    spec = json.loads(sys.stdin.readline())
    descriptor = os.open(spec["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.setswitchinterval(0.0005)
    trio.run(_main, spec, descriptor)


if __name__ == "__main__":
    main()
