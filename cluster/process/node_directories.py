"""Create the real host of one node from its data directory.

The layout depends on the kind of the node. A directory of another kind is refused.

DIR/journal/  DIR/index/      a bookie (the index may be elsewhere)
DIR/metadata/                 a metadata node
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from ...runtime.disk.directory_disk import DirectoryDisk
from ...runtime.disk.memory_disk import MemoryDisk
from ...runtime.disk.node_identity import FILE_NAME
from ...runtime.disk.sync_mode import choose_sync_mode
from ...runtime.interfaces.errors import ForeignData
from ...runtime.interfaces.host import Host
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.machine import real_host
from ..declarations.options import MetadataNodeConfig, NodeConfig, ProxyNodeConfig

CLOSE_S = 5.0

log = get_logger("distributedlog.cluster")
SYNC_MODE_TEXTS = {"inline": "done on the event loop", "thread": "done in a separate thread"}
"""The log text for each sync mode of a disk."""


@asynccontextmanager
async def open_host(
    config: NodeConfig, data: Path, index: Path | None = None, *, is_only_node: bool = True
) -> AsyncIterator[Host]:
    """Open the host of a node on its directories, and close them at the end.

    Args:
        config: The configuration of the node.
        data: Its data directory.
        index: The directory of a bookie's index, if it is separate.
        is_only_node: Whether this process runs only this node. Then a bookie's journal may sync on the event
            loop if its disk is fast enough (`choose_sync_mode`). Several nodes must not wait for each other's
            disks. A metadata node always syncs in a thread (H25).

    Raises:
        ForeignData: The directory belongs to a node of another kind.
        OSError: A directory could not be created or opened.
        DiskFailed: The disk failed.
    """
    disks: dict[str, DirectoryDisk] = {}
    try:
        if isinstance(config, MetadataNodeConfig):
            disks["metadata"] = _disk(data, "metadata", ("journal", "index"))
        elif not isinstance(config, ProxyNodeConfig):
            disks["journal"] = _disk(data, "journal", ("metadata",))
            disks["index"] = _disk(index if index is not None else data, "index", ("metadata",))
            if is_only_node:
                sync_choice = await choose_sync_mode(disks["journal"].path)
                disks["journal"].sync_mode = sync_choice.mode
                log.info(
                    "a sync takes %.2f ms (p50): %s",
                    sync_choice.p50_s * 1e3,
                    SYNC_MODE_TEXTS[sync_choice.mode],
                )
        yield real_host(config.name, disks=disks)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            for disk in disks.values():
                await disk.close()


def memory_host(config: NodeConfig) -> Host:
    """Return a host whose disks exist only in memory. It can be given to a node that is started again.

    A proxy always runs on such a host, because it has no disks.
    """
    roles: tuple[str, ...] = ("journal", "index")
    if isinstance(config, MetadataNodeConfig):
        roles = ("metadata",)
    elif isinstance(config, ProxyNodeConfig):
        roles = ()
    return real_host(config.name, disks={role: MemoryDisk() for role in roles})


def _disk(data: Path, role: str, foreign: tuple[str, ...]) -> DirectoryDisk:
    if (data / FILE_NAME).exists():
        raise ForeignData(
            f"{data} is a part of a node's data directory (it contains {FILE_NAME});"
            " --data must be its parent directory"
        )
    for name in foreign:
        if (data / name).exists():
            raise ForeignData(
                f"{data} is the data directory of a node of another kind (it contains {name}/);"
                " give this node its own --data"
            )
    return DirectoryDisk(data / role)
