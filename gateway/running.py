"""A gateway from its start to its end: listeners, a namespace, who is let in, requests that may end well."""

from collections.abc import Collection
from typing import Any

import trio

from .. import open_namespace
from ..runtime.host import Address
from ..uri import format_address
from .app import Gateway
from .door import Door
from .metrics import GatewayMeters
from .options import GatewayOptions
from .server import listen, serve


async def run_gateway(
    uri: str,
    address: Address,
    options: GatewayOptions,
    *,
    name: str = "gateway",
    hosts: Collection[str] = (),
    token: str = "",
    timeout_s: float = 30.0,
    task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then requests that are under way have `stop_s`. Started with its ready line.

    Raises `AddressInUse`, `InvalidUri`, `QuorumUnreachable`.
    """
    meters = GatewayMeters()
    listeners = await listen(address, options, meters)
    told = trio.Event()

    async def all_of_it(task_status: trio.TaskStatus[None]) -> None:
        config = {
            "metadata_timeout_s": timeout_s,
            "create_if_missing": False,
            "read_ahead_bytes": options.reader_bytes,
            "read_bytes": options.reader_bytes,
        }
        with trio.CancelScope() as scope:
            async with open_namespace(uri, config=config) as namespace:
                gateway = Gateway(namespace, options, name, meters)
                door = Door(
                    gateway.app(),
                    meters,
                    port=listeners[0].address[1],
                    hosts=hosts,
                    token=token,
                    requests_max=options.requests_max,
                    held_bytes_max=options.held_bytes_max,
                    write_s=options.write_s,
                )
                scope.shield = True  # from now on it ends when it is told, and in order
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(gateway.appending.run)
                    task_status.started()
                    await serve(door, listeners, options, told)
                    nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(all_of_it)
        place = format_address(listeners[0].address)
        task_status.started({"name": name, "kind": "gateway", "url": f"http://{place}"})
        try:
            await trio.sleep_forever()
        finally:
            told.set()
