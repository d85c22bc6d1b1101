"""The real host of one node: its data directory, laid out by kind, refused when it is another kind's.

DIR/journal/  DIR/index/      a bookie (the index may be elsewhere)
DIR/metadata/                 a metadata node
"""

from pathlib import Path

from ..runtime.errors import ForeignData
from ..runtime.files import DirectoryDisk
from ..runtime.host import Disk, Host
from ..runtime.machine import real_host
from ..runtime.memory import MemoryDisk
from .options import BookieNodeConfig, MetadataNodeConfig


def host_for(
    config: MetadataNodeConfig | BookieNodeConfig,
    data: Path | None,
    index: Path | None = None,
    *,
    sync: str = "thread",
) -> Host:
    """The host with its disks; ``data`` None keeps everything in memory.

    ``sync`` says where a bookie's journal syncs: ``inline`` or ``thread`` (several nodes in one process
    must not wait for each other's disks). Raises `ForeignData`, `OSError`.
    """
    if isinstance(config, MetadataNodeConfig):
        return real_host(
            config.name, disks={"metadata": _disk(data, "metadata", ("journal", "index"))}
        )
    index_data = index if index is not None else data
    disks: dict[str, Disk] = {
        "journal": _disk(data, "journal", ("metadata",), sync=sync),
        "index": _disk(index_data, "index", ("metadata",)),
    }
    return real_host(config.name, disks=disks)


def _disk(data: Path | None, role: str, foreign: tuple[str, ...], *, sync: str = "thread") -> Disk:
    if data is None:
        return MemoryDisk()
    for name in foreign:
        if (data / name).exists():
            raise ForeignData(
                f"{data} is the data directory of a node of another kind (it holds {name}/);"
                " give this node its own --data"
            )
    (data / role).mkdir(parents=True, exist_ok=True)
    return DirectoryDisk(data / role, sync="inline" if sync == "inline" else "thread")
