"""A metadata node from a host and a config."""

from collections.abc import Mapping
from dataclasses import replace

import trio

from ...metadata.declarations.options import MetadataOptions
from ...metadata.server import serve_metadata
from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.host import Host, Listener
from ...runtime.net.address_check import Advertised, advertised_by
from ...runtime.schedule.work_failures import WorkFailures
from ..auth.cluster_key_space import KEY_CLASSES
from ..declarations.options import MetadataNodeConfig, NodeReady
from .node_lifecycle import advertised, check_places, listen_all, ready


async def serve_metadata_node(
    host: Host,
    config: MetadataNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A node of the quorum, on ``host.disks["metadata"]``. Started once it listens and knows who it is.

    Raises `ForeignData`, `DataDirectoryInUse`, `AddressInUse`, `CorruptData`; later `DiskFailed`.
    """
    if config.name not in config.voters:
        raise InvalidRequest(f"{config.name} is none of the quorum: {', '.join(config.voters)}")
    disk = host.disks["metadata"]
    disk.lock()
    try:
        listeners = await listen_all(host, config.listen or {"": config.voters[config.name]})
        try:
            options = MetadataOptions(
                config.name, config.voters, advertised(listeners, config.advertise)
            )
            async with trio.open_nursery() as nursery:
                keep = WorkFailures().keep
                nursery.start_soon(keep, "the look at its directory", check_places, [disk])
                addresses = addresses_of_voter(config, listeners)
                node_id = await nursery.start(
                    serve_metadata, host, options, listeners, KEY_CLASSES, addresses
                )
                task_status.started(ready(config.name, "metadata", node_id, listeners))
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        disk.unlock()


def addresses_of_voter(
    config: MetadataNodeConfig, listeners: Mapping[str, Listener]
) -> list[Advertised]:
    """Return the addresses at which others dial a metadata node: the listed and the advertised ones."""
    own = config.voters[config.name]
    given = config.listen or {"": own}
    bound = {name: listeners[name] for name, address in given.items() if address == own}
    listed = [
        replace(one, listener="", for_peers=True)
        for one in advertised_by(given, bound, dict.fromkeys([*bound][:1] or [""], own), "")
    ]
    told = advertised_by(given, listeners, advertised(listeners, config.advertise), "")
    return listed + [
        # Only the default address is for everybody. Other listeners may be for networks without this node.
        replace(one, for_peers=one.listener == "")
        for one in told
        if one.address != own and (one.listener in config.advertise or one.listener not in bound)
    ]
