"""The membership of a node in a quorum, as its own disk stores it: the file MEMBERS.

The present members are in the replicated log (`configuration.py`). This file has the founders or, on a node
that was added later, only that node. A start reads it first. A directory without it never belonged to a
cluster (H5). Its field for the right to vote survives any damage of the log (M4). The file::

    | xxh3_64 of the rest u64 | msgpack [format, cluster id, {name: node id}, may vote, seed] |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import xxhash

from ...runtime.disk.atomic_file import read_file, replace_file
from ...runtime.interfaces.errors import CorruptData, DiskFailed, UnsupportedFormat
from ...runtime.interfaces.host import Disk
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_stored, flag, mapping, number, row, text
from ..model.configuration import MEMBERS_MAX, Configuration, Member
from ..raft.recovered_hard_state import (
    RECOVERY_FLOOR_FILE,
    RecoveredHardState,
    decode_hard_state,
    encode_hard_state,
)

MEMBERS_FILE = "MEMBERS"
MEMBERS_FORMAT = 1
DIGEST_BYTES = 8
_FORM = row(number(), text(), mapping(text(), MEMBERS_MAX), flag, number())


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The cluster of a node. Node IDs are bound to data directories (H5)."""

    cluster_id: str
    voters: Mapping[str, str]
    """Name to node ID of the founders. On a node that was added later, only its own."""
    may_vote: bool
    """False after this node's log or vote was found damaged, until its log is complete again.

    If the file GHOST exists (`recovered_hard_state.py`), it limits how this node may vote. Without it, the
    node does not vote.
    """
    seed: int
    """Seed of the blocks on this disk (`write_header`)."""

    @property
    def founders(self) -> Configuration:
        """Return the members of a log that was started before logs contained them.

        Their addresses are unknown.
        """
        members = [Member(node_id, name, "", True) for name, node_id in self.voters.items()]
        return Configuration.from_members(members)


def new_identity(cluster_id: str, voters: Mapping[str, str], rng: Random) -> MemberIdentity:
    """Return the identity of a node that joins a new cluster."""
    return MemberIdentity(cluster_id, voters, True, rng.getrandbits(63))


async def load_member_identity(disk: Disk) -> MemberIdentity | None:
    """Load the file MEMBERS. Return None for a directory that never belonged to a cluster.

    Raises:
        CorruptData: The file is damaged.
        UnsupportedFormat: A newer version wrote it.
    """
    content = await read_file(disk, MEMBERS_FILE)
    if content is None:
        return None
    body = content[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != content[:DIGEST_BYTES]:
        raise CorruptData(f"{MEMBERS_FILE}: the checksum is wrong ({len(content)} bytes)")
    return decode_member_identity(body)


def decode_member_identity(body: bytes) -> MemberIdentity:
    """Decode the content of the file after its checksum.

    Raises:
        CorruptData: The content is invalid.
        UnsupportedFormat: A newer version wrote it.
    """
    (form, *_) = decode_stored(body, row(number(), later=True), MEMBERS_FILE)
    if form != MEMBERS_FORMAT:
        raise UnsupportedFormat(f"{MEMBERS_FILE}: format {form}, known is {MEMBERS_FORMAT}")
    _, *values = decode_stored(body, _FORM, MEMBERS_FILE)
    return MemberIdentity(*values)


async def store_recovery_floor(disk: Disk, recovered: RecoveredHardState) -> None:
    """Store the hard state of a node that has lost a part of its log. It is durable on return."""
    body = encode_hard_state(recovered)
    await replace_file(disk, RECOVERY_FLOOR_FILE, xxhash.xxh3_64_digest(body) + body)


async def load_recovery_floor(disk: Disk) -> RecoveredHardState | None:
    """Load the file GHOST. Return None if it is missing or damaged.

    Raises:
        UnsupportedFormat: A newer version wrote it.
    """
    try:
        content = await read_file(disk, RECOVERY_FLOOR_FILE)
    except (CorruptData, DiskFailed):  # The device cannot read it, which counts as damage.
        return None
    if content is None or xxhash.xxh3_64_digest(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
        return None
    try:
        return decode_hard_state(content[DIGEST_BYTES:])
    except CorruptData:
        return None


async def remove_recovery_floor(disk: Disk) -> None:
    """Delete the file GHOST, because the log is complete again or the hard state is unknown."""
    if RECOVERY_FLOOR_FILE in disk.list():
        await disk.delete(RECOVERY_FLOOR_FILE)


async def store_member_identity(disk: Disk, identity: MemberIdentity) -> None:
    """Store the file MEMBERS. It is durable on return."""
    body = pack(
        [
            MEMBERS_FORMAT,
            identity.cluster_id,
            dict(identity.voters),
            identity.may_vote,
            identity.seed,
        ]
    )
    await replace_file(disk, MEMBERS_FILE, xxhash.xxh3_64_digest(body) + body)
