"""Run one node of the metadata quorum on its disk and listeners.

Any disk failure ends the node.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from ..runtime.disk.node_identity import NodeIdentity, load_identity, new_node_id, store_identity
from ..runtime.interfaces.errors import ForeignData
from ..runtime.interfaces.host import Host, Listener
from ..runtime.net.address_check import AddressCheck, AdvertisedAddress
from .auth.key_space import KeySpace
from .declarations.options import MetadataOptions
from .node.metadata_node import MetadataNode
from .node.metadata_session import MetadataSession

WRITTEN_BY = "distributedlog 0.1"


async def serve_metadata(
    host: Host,
    options: MetadataOptions,
    listeners: Mapping[str, Listener],
    key_space: KeySpace | None = None,
    addresses: Sequence[AdvertisedAddress] = (),
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a metadata node on the disk "metadata" until cancelled.

    The caller has locked the disk. A started node answers on its listeners. It may still wait for its peers
    to form a cluster.

    Args:
        host: The machine with the disk.
        options: The options of the node.
        listeners: The open listeners, by name.
        key_space: The kinds of keys, by which requests are authorized.
        addresses: The addresses that other nodes dial. They are checked while the node runs.
        task_status: Receives the node ID when the node has started.

    Raises:
        ForeignData: The data directory belongs to another node or kind of node.
        InvalidRequest: An argument is invalid.
        CorruptData: The data is damaged.
        UnsupportedFormat: A newer version wrote the data.
        DiskFailed: The disk returned an error.
    """
    disk = host.disks["metadata"]
    identity = await load_identity(disk)
    if identity is None:
        identity = NodeIdentity(
            cluster_id="",
            node_id=new_node_id(host.random),
            kind="metadata",
            label=options.name,
            incarnation=1,
            written_by=WRITTEN_BY,
        )
        await store_identity(disk, identity)  # durable before any peer receives it (H5)
    if identity.kind != "metadata":
        raise ForeignData(f"this data directory belongs to {identity.kind} {identity.label}")
    node = MetadataNode(host, options, identity, key_space)

    async def peer_hosts() -> list[str]:
        return [address[0] for name, address in options.peers.items() if name != options.name]

    check = AddressCheck(host, identity.node_id, lambda: addresses, peer_hosts)
    node.conditions.add_check(check.conditions)
    async with trio.open_nursery() as nursery:
        await nursery.start(_serve, node, listeners)
        keep = node.endpoint.failures.keep_running
        nursery.start_soon(keep, "the check of its addresses", check.run)
        task_status.started(identity.node_id)


async def _serve(
    node: MetadataNode,
    listeners: Mapping[str, Listener],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    identity = await node.load_identity()
    async with trio.open_nursery() as nursery:
        session = partial(MetadataSession, node)
        nursery.start_soon(partial(node.endpoint.serve, listeners, session, is_node=node.is_node))
        if identity is not None:
            await node.become_member(identity, nursery)
            task_status.started()
        else:
            task_status.started()
            await node.become_member(await node.bootstrap(), nursery)
