"""Who a data directory belongs to: the file ``FORMAT``, the first to be written and to be read.

    {"cluster_id": "…", "format": 1, "incarnation": 1, "kind": "bookie", "label": "b1", …}
    xxh3_64 0123456789abcdef

One line of JSON and one with its digest, so that ``cat`` answers an operator's first question. A node
id is made with its data directory and dies with it: an emptied or replaced disk is a new node (H6).
"""

import json
import random
from dataclasses import asdict, dataclass
from typing import Literal

import xxhash

from ..interfaces.errors import CorruptData, UnsupportedFormat
from ..interfaces.host import Disk
from ..protocol.schema import fields, fit, number, text, word
from .atomic_file import read_file, replace_file

FILE_NAME = "FORMAT"
FORMAT = 1
"""The newest format of a data directory that this version reads, and the one it writes."""


_BY = fields({"written_by": (text(), "a newer version")})
_IDENTITY = fields(
    {"starts": (text(1024), "")},
    cluster_id=text(),
    node_id=text(),
    kind=word("bookie", "metadata"),
    label=text(4096),
    incarnation=number(),
    written_by=text(),
    format=number(),
    reader_min=number(),
)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What `FORMAT` says. ``label`` is for humans, never compared."""

    cluster_id: str
    """Empty until the node belongs to a cluster."""
    node_id: str
    """32 hex digits, see `new_node_id`."""
    kind: Literal["bookie", "metadata"]
    label: str
    incarnation: int
    """Counts from 1; grows when a node comes back without what it had."""
    written_by: str
    """The version of the program that made the directory."""
    format: int = FORMAT
    reader_min: int = FORMAT
    """The oldest format number whose readers understand this directory."""
    starts: str = ""
    """Random names of the last starts, the newest first, blanks between: a word that one of them left in
    the cluster, and that arrives late, is known as this directory's own."""


def new_node_id(chance: random.Random) -> str:
    """16 random bytes as hex: the id of a data directory's life."""
    return chance.randbytes(16).hex()


async def store_identity(disk: Disk, identity: NodeIdentity) -> None:
    """Write or replace ``FORMAT``; durable when this returns. Raises `DiskFailed`, `DiskFull`."""
    body = json.dumps(asdict(identity), sort_keys=True).encode()
    await replace_file(disk, FILE_NAME, body + b"\n" + _digest_line(body))


async def load_identity(disk: Disk) -> NodeIdentity | None:
    """What ``FORMAT`` says, or None in a directory without one.

    Raises `CorruptData` (damaged; never taken for a new directory) and `UnsupportedFormat` (written by
    a version that this one is too old for).
    """
    content = await read_file(disk, FILE_NAME)
    return None if content is None else identity_of(content)


def identity_of(content: bytes) -> NodeIdentity:
    """What the bytes of ``FORMAT`` say. Raises `CorruptData`, `UnsupportedFormat`."""
    body, _, digest_line = content.partition(b"\n")
    if digest_line != _digest_line(body):
        raise CorruptData(f"{FILE_NAME}: the checksum is wrong ({len(content)} bytes); restore it")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise CorruptData(f"{FILE_NAME}: a sound checksum over what is no JSON") from None
    needed = said.get("reader_min", 0) if type(said) is dict else 0
    if type(needed) is int and needed > FORMAT:
        by = fit(said, _BY, FILE_NAME)["written_by"]
        raise UnsupportedFormat(
            f"{FILE_NAME}: this directory was made by {by} and needs a reader of"
            f" format {needed}; this version reads up to {FORMAT}"
        )
    return NodeIdentity(**fit(said, _IDENTITY, FILE_NAME))


def _digest_line(body: bytes) -> bytes:
    return b"xxh3_64 " + xxhash.xxh3_64_hexdigest(body).encode() + b"\n"
