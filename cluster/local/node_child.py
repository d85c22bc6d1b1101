"""A child process that runs one node or a whole cluster, and ends when its parent ends.

It is started as ``python -m distributedlog.cluster.local.node_child``. The first line on stdin is JSON that
describes its task. After that, the end of stdin ends the child, whether the parent closes it or dies.

When the child serves, it prints one line of JSON on stdout. If it cannot start, the line contains ``error``.
With ``--forks`` it is a fork server instead, whose stdin is the socket for requests
(`cluster/local/fork_server.py`).
"""

import contextlib
import gc
import json
import logging
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ...runtime.interfaces.host import Address, Host
from ...runtime.machine import machine_id, require_linux
from ...runtime.net.local_secret import with_local_secret
from ...runtime.process.descriptor_limit import raise_limit
from ...runtime.process.process_memory import collect_when_grown
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.options import (
    BookieNodeConfig,
    MetadataNodeConfig,
    NodeConfig,
    NodeReady,
    ProxyNodeConfig,
    from_json,
)
from ..nodes import serve_node
from ..process.node_directories import memory_host, open_host
from ..process.process_lifetime import first_error, run_until_stopped
from ..process.stderr_logs import log_to_stderr
from .fork_server import serve_forks
from .local_cluster import run_cluster


def main() -> None:
    """Read the task and run it. Exit with 0 after a request to end, and with 1 after a failure."""
    line = sys.stdin.readline()
    if not line:
        return  # the parent has already ended
    spec = json.loads(line)
    set_process_name(spec.get("name", ""))
    log_to_stderr(spec.get("name", ""), logging.getLevelName(spec.get("log_level", "WARNING")))
    sys.setswitchinterval(0.0005)  # sync threads release the GIL soon (H27)
    try:
        trio.run(_run_spec, spec)
    except BaseException as error:
        leaf = first_error(error)
        code = leaf.code if isinstance(leaf, DistributedLogError) else 500
        is_expected = isinstance(leaf, DistributedLogError | KeyboardInterrupt | OSError)
        logging.getLogger("distributedlog.cluster").error(
            "%s (%s): %s", type(leaf).__name__, code, leaf, exc_info=None if is_expected else error
        )
        line = json.dumps({"error": [code, type(leaf).__name__, str(leaf)]}) + "\n"
        with contextlib.suppress(OSError):  # the parent may have ended; writes without a buffer
            os.write(sys.stdout.fileno(), line.encode())
        sys.exit(1)


async def _run_spec(spec: dict[str, Any]) -> None:
    if spec["run"] == "cluster":
        raise_limit()
        await run_until_stopped(lambda status: run_cluster(spec, task_status=status), stdin=True)
    else:
        await run_until_stopped(lambda status: run_node(spec, task_status=status), stdin=True)


async def run_node(
    spec: dict[str, Any], *, task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the node of ``spec`` until cancelled.

    The keys of ``spec`` are ``config``, ``data``, ``index``, ``http``, ``secret`` and ``tls``. The started
    value is the ready line. HTTP pages are available from the beginning, also during the start.
    """
    require_linux("a node")
    raise_limit()
    config = with_host_label(from_json(spec["config"]))
    data = Path(spec["data"]) if spec.get("data") else None
    index = Path(spec["index"]) if spec.get("index") else None

    async def serve(host: Host) -> None:
        proven_host = secured_host(host, config, spec)
        async with trio.open_nursery() as nursery:
            serving_at: list[Address] = []
            if spec.get("http"):
                from ..node.node_pages import node_pages
                from ..process.http_server import serve_http  # imports the HTTP library

                http = await host.listen((spec["http"][0], int(spec["http"][1])))
                pages, names = (
                    node_pages(proven_host, config.name, serving_at),
                    {spec["http"][0], *host_names_of(config)},
                )
                nursery.start_soon(
                    serve_http, http, pages, {host_name.lower() for host_name in names}
                )
            ready: NodeReady = await nursery.start(serve_node, proven_host, config)
            serving_at.append(ready.address)
            # Objects of the start are permanent: each full collection would check them, for 30 ms of CPU
            # time.
            gc.freeze()
            keep = WorkFailures().keep_running
            nursery.start_soon(keep, "the garbage collection", collect_when_grown)
            task_status.started(ready.line(str(data) if data else None))

    if data is None:
        await serve(memory_host(config))
    else:
        async with open_host(config, data, index) as host:
            await serve(host)


def host_names_of(config: NodeConfig) -> set[str]:
    """Return the host names of a node: that of its machine, and those that it listens on or advertises."""
    addresses = [*config.listen.values(), *config.advertise.values()]
    if isinstance(config, MetadataNodeConfig):
        addresses.append(config.voters[config.name])
    return {os.uname().nodename, *(host for host, _ in addresses)}


def secured_host(host: Host, config: NodeConfig, spec: dict[str, Any]) -> Host:
    """Return the host of a node, with the authentication that ``spec`` describes, if any.

    Raises:
        InvalidRequest: The certificate does not belong to this node.
    """
    if spec.get("secret"):
        return with_local_secret(host, bytes.fromhex(spec["secret"]))
    if not spec.get("tls"):
        return host
    from ...runtime.net.tls import Tls, with_tls  # imports OpenSSL

    tls = Tls(Path(spec["tls"]["directory"]))
    kind = "metadata" if isinstance(config, MetadataNodeConfig) else "bookie"
    if isinstance(config, ProxyNodeConfig):
        kind = "proxy"
    if tls.identity is None or tls.identity.principal != f"{kind}/{config.name}":
        certificate_owner = (
            "without a certificate" if tls.identity is None else tls.identity.principal
        )
        raise InvalidRequest(
            f"{tls.directory} is {certificate_owner}, this node is {kind}/{config.name}: see dlog pki issue"
        )
    return with_tls(host, tls, spec["tls"]["transport"])


def with_host_label(config: NodeConfig) -> NodeConfig:
    """Add the machine's ID as the label ``host``.

    By this label, placement avoids two copies on the same machine.
    """
    if not isinstance(config, BookieNodeConfig):
        return config
    return replace(config, labels={"host": machine_id(), **config.labels})


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show; a forked process has its parent's name otherwise."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"dlog {name}"[:15])


if __name__ == "__main__":
    if sys.argv[1:] == ["--forks"]:
        serve_forks(socket.socket(fileno=os.dup(0)), main)
    main()
