"""Start and end a node of any kind: its addresses, and services that outlive a cancellation."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from ...runtime.interfaces.host import Address, Disk, Host, Listener
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.config import format_address
from ..declarations.events import SERVES
from ..declarations.options import NodeReady

PLACE_S = 2.0
"""Interval between two checks that a node's files are still in its data directory."""
ALL_ADDRESSES = ("", "0.0.0.0", "::")
"""Addresses to listen on, which cannot be dialed."""

log = get_logger("distributedlog.cluster.node")


async def listen_all(host: Host, addresses: Mapping[str, Address]) -> dict[str, Listener]:
    """Listen on every address.

    Args:
        host: The machine.
        addresses: The addresses, by listener name.

    Returns:
        The listeners, by name.

    Raises:
        AddressInUse: Another program listens on one of the addresses. No listener remains open.
    """
    listeners: dict[str, Listener] = {}
    try:
        for name, address in addresses.items():
            listeners[name] = await host.listen(address)
    except BaseException:
        for listener in listeners.values():
            listener.close()
        raise
    return listeners


def advertised_addresses(
    listeners: Mapping[str, Listener], explicit: Mapping[str, Address]
) -> dict[str, Address]:
    """Return the addresses to dial, by listener name: the given address, otherwise the bound one.

    An address that stands for all addresses of a machine cannot be dialed and is left out. A metadata node
    can still be found by the list of the quorum. A bookie could not be found (`check_advertise`).
    """
    for name in explicit:
        if name not in listeners:
            raise InvalidRequest(
                f"--advertise has the listener {name!r}, which --listen does not have"
            )
    addresses = {name: explicit.get(name, listener.address) for name, listener in listeners.items()}
    return {name: address for name, address in addresses.items() if address[0] not in ALL_ADDRESSES}


async def hosts_of_peers(
    metadata: Metadata, metadata_addresses: Iterable[Address], own_id: str = ""
) -> list[str]:
    """Return the hosts of the metadata nodes and of the other bookies.

    Raises:
        DistributedLogError: The registrations could not be read, as in `Metadata.range`.
    """
    hosts = [host for host, _ in metadata_addresses]
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted as damaged records
            registration = BookieRegistration.decode(item.key, item.value)
            if registration.id != own_id:
                hosts += [host for host, _ in registration.addresses.values()]
    return hosts


def check_advertise(listen: Mapping[str, Address], advertise: Mapping[str, Address]) -> None:
    """Check that a bookie registers only addresses that can be dialed.

    Raises:
        InvalidRequest: An address stands for all addresses of the machine.
    """
    for name, address in listen.items():
        if advertise.get(name, address)[0] in ALL_ADDRESSES:
            prefix = f"{name}=" if name else ""
            raise InvalidRequest(
                f"--listen {prefix}{format_address(address)} means all addresses of this machine: give"
                f" the address to dial, with --advertise {prefix}HOST:PORT"
            )


def report_ready(
    name: str, kind: str, node_id: str, listeners: Mapping[str, Listener]
) -> NodeReady:
    """Log that the node serves, and return its address and ID."""
    first = next(iter(listeners.values()))
    shown_address = format_address(first.address)
    SERVES.emit(
        log,
        "%s %s serves at %s",
        kind,
        name,
        shown_address,
        node_name=name,
        kind=kind,
        address=shown_address,
    )
    return NodeReady(name, kind, node_id, first.address)


Keep = Callable[[Callable[..., Awaitable[None]]], Awaitable[None]]


@asynccontextmanager
async def run_services(run: Callable[..., Awaitable[None]]) -> AsyncIterator[Keep]:
    """Run services until the body ends, even if the caller is cancelled before.

    Yields a function that starts one more service. A service that fails ends the body, and with it the node.
    """
    async with trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []

        async def run_in_scope(
            service: Callable[..., Awaitable[None]],
            *,
            task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        ) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await service(task_status=task_status)

        async def keep(service: Callable[..., Awaitable[None]]) -> None:
            await nursery.start(run_in_scope, service)
            scopes[-1].shield = True  # a start can still be cancelled, a running service cannot

        try:
            await keep(run)
            yield keep
        finally:
            for scope in reversed(scopes):
                scope.cancel()


async def check_directories(disks: Sequence[Disk]) -> None:
    """End the node soon after its files are no longer in its data directory.

    Otherwise, it would acknowledge data that it writes to removed files.

    Raises:
        DataDirectoryLost: The files are not in the directory any more.
    """
    while True:
        await trio.sleep(PLACE_S)
        for disk in disks:
            await disk.check_directory()
