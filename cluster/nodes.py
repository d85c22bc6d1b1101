"""A node of any kind, from a Host and a config. Nothing else starts a node."""

import trio

from ..runtime.interfaces.host import Host
from .declarations.options import BookieNodeConfig, MetadataNodeConfig, NodeConfig, NodeReady
from .node.bookie_assembly import serve_bookie_node
from .node.metadata_assembly import serve_metadata_node


async def serve_node(
    host: Host,
    config: NodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve what the config describes, until cancelled."""
    if isinstance(config, MetadataNodeConfig):
        await serve_metadata_node(host, config, task_status=task_status)
    elif isinstance(config, BookieNodeConfig):
        await serve_bookie_node(host, config, task_status=task_status)
    else:
        from .node.proxy_assembly import (
            serve_proxy_node,  # with clients of all below: no other node loads them
        )

        await serve_proxy_node(host, config, task_status=task_status)
