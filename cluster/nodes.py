"""Start a node of any kind from a host and a configuration. No other module starts nodes."""

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
    """Serve the node that the configuration describes, until cancelled.

    Args:
        host: The machine.
        config: The configuration. Its class determines the kind of the node.
        task_status: Receives the addresses and the ID when the node has started.

    Raises:
        DistributedLogError: The node could not start, or failed; see `serve_metadata_node`,
            `serve_bookie_node` and `serve_proxy_node`.
    """
    if isinstance(config, MetadataNodeConfig):
        await serve_metadata_node(host, config, task_status=task_status)
    elif isinstance(config, BookieNodeConfig):
        await serve_bookie_node(host, config, task_status=task_status)
    else:
        from .node.proxy_assembly import (
            serve_proxy_node,  # with its clients of all lower layers, which no other node imports
        )

        await serve_proxy_node(host, config, task_status=task_status)
