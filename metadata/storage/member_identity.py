"""That a node belongs to a quorum, as its own disk remembers it: the file MEMBERS.

Who forms the quorum now is in the replicated log (`configuration.py`); here are those that founded it, or,
on a node that was let in later, itself alone. It is the first thing that a start reads: without it a
directory never belonged to a cluster (H5), and what it says of the right to vote outlives every damage to
the log (M4).

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
    """Whom a node belongs to; ids live and die with data directories (H5)."""

    cluster_id: str
    voters: Mapping[str, str]
    """Name to node id, of those that founded it; of a node that was let in later, its own alone."""
    may_vote: bool
    """False since this node's own log or vote was found damaged, until its log is whole again. While there is
    a GHOST beside it (`recovered_hard_state.py`), that says how far it may vote; without one nobody knows: it
    does not."""
    seed: int
    """Of this disk's blocks (`write_header`)."""

    @property
    def founders(self) -> Configuration:
        """The members of a log that was begun before logs named them. Their addresses are not known."""
        members = [Member(node_id, name, "", True) for name, node_id in self.voters.items()]
        return Configuration.from_members(members)


def new_identity(cluster_id: str, voters: Mapping[str, str], rng: Random) -> MemberIdentity:
    """For a node that joins a cluster which forms."""
    return MemberIdentity(cluster_id, voters, True, rng.getrandbits(63))


async def load_member_identity(disk: Disk) -> MemberIdentity | None:
    """None for a directory that never belonged to a cluster. Raises `CorruptData`, `UnsupportedFormat`."""
    content = await read_file(disk, MEMBERS_FILE)
    if content is None:
        return None
    body = content[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != content[:DIGEST_BYTES]:
        raise CorruptData(f"{MEMBERS_FILE}: the checksum is wrong ({len(content)} bytes)")
    return decode_member_identity(body)


def decode_member_identity(body: bytes) -> MemberIdentity:
    """What the file says after its checksum. Raises `CorruptData`, `UnsupportedFormat`."""
    (form, *_) = decode_stored(body, row(number(), later=True), MEMBERS_FILE)
    if form != MEMBERS_FORMAT:
        raise UnsupportedFormat(f"{MEMBERS_FILE}: format {form}, known is {MEMBERS_FORMAT}")
    _, *values = decode_stored(body, _FORM, MEMBERS_FILE)
    return MemberIdentity(*values)


async def store_recovery_floor(disk: Disk, recovered: RecoveredHardState) -> None:
    """What a node promised that has lost a part of its log; durable when this returns."""
    body = encode_hard_state(recovered)
    await replace_file(disk, RECOVERY_FLOOR_FILE, xxhash.xxh3_64_digest(body) + body)


async def load_recovery_floor(disk: Disk) -> RecoveredHardState | None:
    """None where there is none, or where it is damaged: then nobody knows. Raises `UnsupportedFormat`."""
    try:
        content = await read_file(disk, RECOVERY_FLOOR_FILE)
    except (CorruptData, DiskFailed):  # the device does not read it: as if it were damaged
        return None
    if content is None or xxhash.xxh3_64_digest(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
        return None
    try:
        return decode_hard_state(content[DIGEST_BYTES:])
    except CorruptData:
        return None


async def remove_recovery_floor(disk: Disk) -> None:
    """The log is whole again, or the word is not known."""
    if RECOVERY_FLOOR_FILE in disk.list():
        await disk.delete(RECOVERY_FLOOR_FILE)


async def store_member_identity(disk: Disk, identity: MemberIdentity) -> None:
    """Durable when this returns."""
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
