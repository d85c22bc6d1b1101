"""Assemble a metadata node from a host and a configuration."""

from collections.abc import Mapping
from dataclasses import replace

import trio

from ...metadata.declarations.options import MetadataOptions
from ...metadata.server import serve_metadata
from ...runtime.declarations.versions import stated_version
from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.host import Host, Listener
from ...runtime.net.address_check import AdvertisedAddress, advertised_addresses_of
from ...runtime.schedule.work_failures import WorkFailures
from ..auth.cluster_key_space import KEY_CLASSES
from ..declarations.options import MetadataNodeConfig, NodeReady
from .node_lifecycle import advertised_addresses, check_directories, listen_all, report_ready


async def serve_metadata_node(
    host: Host,
    config: MetadataNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a node of the metadata quorum until cancelled.

    The node has started when it listens and has read its identity.

    Args:
        host: The machine, with the disk ``metadata``.
        config: The configuration.
        task_status: Receives the addresses and the ID when the node has started.

    Raises:
        InvalidRequest: The node is not in the list of voters.
        ForeignData: The directory belongs to another node or cluster.
        DataDirectoryInUse: Another process uses the directory.
        AddressInUse: Another program listens on one of the addresses.
        CorruptData: Stored data is damaged and cannot be recovered.
        DiskFailed: A write or sync failed.
    """
    if config.name not in config.voters:
        raise InvalidRequest(
            f"{config.name} is not a member of the quorum: {', '.join(config.voters)}"
        )
    disk = host.disks["metadata"]
    disk.lock()
    try:
        listeners = await listen_all(host, config.listen or {"": config.voters[config.name]})
        try:
            options = MetadataOptions(
                config.name,
                config.voters,
                advertised_addresses(listeners, config.advertise),
                version=stated_version(host.version),
            )
            async with trio.open_nursery() as nursery:
                keep = WorkFailures().keep_running
                nursery.start_soon(keep, "the check of its directory", check_directories, [disk])
                addresses = addresses_of_voter(config, listeners)
                node_id = await nursery.start(
                    serve_metadata, host, options, listeners, KEY_CLASSES, addresses
                )
                task_status.started(report_ready(config.name, "metadata", node_id, listeners))
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        disk.unlock()


def addresses_of_voter(
    config: MetadataNodeConfig, listeners: Mapping[str, Listener]
) -> list[AdvertisedAddress]:
    """Return the addresses at which other nodes reach a metadata node: the listed and the advertised ones."""
    own_address = config.voters[config.name]
    listen_addresses = config.listen or {"": own_address}
    own_listeners = {
        name: listeners[name]
        for name, address in listen_addresses.items()
        if address == own_address
    }
    quorum_addresses = [
        replace(entry, listener="", for_peers=True)
        for entry in advertised_addresses_of(
            listen_addresses,
            own_listeners,
            dict.fromkeys([*own_listeners][:1] or [""], own_address),
            "",
        )
    ]
    advertised_list = advertised_addresses_of(
        listen_addresses, listeners, advertised_addresses(listeners, config.advertise), ""
    )
    return quorum_addresses + [
        # Only the default address is for all peers. Other listeners may be in networks that this node cannot
        # reach.
        replace(entry, for_peers=entry.listener == "")
        for entry in advertised_list
        if entry.address != own_address
        and (entry.listener in config.advertise or entry.listener not in own_listeners)
    ]
