"""The identity of a data directory in its file ``FORMAT``, which is written and read before all others.

Its content is::

    {"cluster_id": "…", "format": 1, "incarnation": 1, "kind": "bookie", "label": "b1", …}
    xxh3_64 0123456789abcdef

The first line is JSON and the second one its digest, so an operator can read it with ``cat``. A node ID is
generated with its data directory and exists as long as it does. An emptied or replaced disk is a new node
(H6).
"""

import json
import random
from dataclasses import asdict, dataclass
from typing import Literal

import xxhash

from ..interfaces.errors import CorruptData, UnsupportedFormat
from ..interfaces.host import Disk
from ..protocol.schema import check_stored, fields, number, one_of, text
from .atomic_file import read_file, replace_file

FILE_NAME = "FORMAT"
FORMAT = 1
"""The newest format of a data directory that this version reads, and the one that it writes."""


_WRITTEN_BY = fields({"written_by": (text(), "a newer version")})
_IDENTITY = fields(
    {"starts": (text(1024), "")},
    cluster_id=text(),
    node_id=text(),
    kind=one_of("bookie", "metadata"),
    label=text(4096),
    incarnation=number(),
    written_by=text(),
    format=number(),
    reader_min=number(),
)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The content of ``FORMAT``. ``label`` is for people and is never compared."""

    cluster_id: str
    """Empty until the node belongs to a cluster."""
    node_id: str
    """32 hexadecimal digits, see `new_node_id`."""
    kind: Literal["bookie", "metadata"]
    label: str
    incarnation: int
    """Counts from 1, and increases when a node starts again without its earlier data."""
    written_by: str
    """The version of the program that created the directory."""
    format: int = FORMAT
    reader_min: int = FORMAT
    """The oldest format number whose readers understand this directory."""
    starts: str = ""
    """Random names of the last starts, the newest first, separated by blanks. By them, a late message of an
    earlier start of this directory is recognized."""


def new_node_id(random_source: random.Random) -> str:
    """Return 16 random bytes in hexadecimal: the ID of a new data directory."""
    return random_source.randbytes(16).hex()


async def store_identity(disk: Disk, identity: NodeIdentity) -> None:
    """Write or replace ``FORMAT``; durable when the call returns. Raises `DiskFailed`, `DiskFull`."""
    body = json.dumps(asdict(identity), sort_keys=True).encode()
    await replace_file(disk, FILE_NAME, body + b"\n" + _digest_line(body))


async def load_identity(disk: Disk) -> NodeIdentity | None:
    """Return the content of ``FORMAT``, or None in a directory without it.

    Raises:
        CorruptData: The file is damaged. The directory never counts as new.
        UnsupportedFormat: A newer version wrote it, and this version cannot read the directory.
    """
    content = await read_file(disk, FILE_NAME)
    return None if content is None else identity_of(content)


def identity_of(content: bytes) -> NodeIdentity:
    """Decode the bytes of ``FORMAT``. Raises `CorruptData`, `UnsupportedFormat`."""
    body, _, digest_line = content.partition(b"\n")
    if digest_line != _digest_line(body):
        raise CorruptData(f"{FILE_NAME}: the checksum is wrong ({len(content)} bytes); restore it")
    try:
        identity_map = json.loads(body)
    except (ValueError, RecursionError):
        raise CorruptData(f"{FILE_NAME}: the checksum is correct, but it is not JSON") from None
    reader_min = identity_map.get("reader_min", 0) if type(identity_map) is dict else 0
    if type(reader_min) is int and reader_min > FORMAT:
        written_by = check_stored(identity_map, _WRITTEN_BY, FILE_NAME)["written_by"]
        raise UnsupportedFormat(
            f"{FILE_NAME}: this directory was made by {written_by} and needs a reader of"
            f" format {reader_min}; this version reads up to {FORMAT}"
        )
    return NodeIdentity(**check_stored(identity_map, _IDENTITY, FILE_NAME))


def _digest_line(body: bytes) -> bytes:
    return b"xxh3_64 " + xxhash.xxh3_64_hexdigest(body).encode() + b"\n"
