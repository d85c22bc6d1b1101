"""One node from a Host and a config: a metadata node or a bookie. Nothing else starts a node.

The same for real processes, `dlog local` and the simulator. A node runs until it is cancelled (a clean
end: it says goodbye and checkpoints), or until it fails: a failed write or sync, or a broken rule of our
own, ends the whole node with that error, and nothing it had not synced was acknowledged.
"""

import logging

import trio

from ..runtime.host import Host
from .options import BookieNodeConfig, MetadataNodeConfig, NodeReady

log = logging.getLogger("distributedlog.cluster.node")


async def serve_node(
    host: Host,
    config: MetadataNodeConfig | BookieNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve what the config describes, until cancelled."""
    if isinstance(config, MetadataNodeConfig):
        await serve_metadata_node(host, config, task_status=task_status)
    else:
        await serve_bookie_node(host, config, task_status=task_status)
