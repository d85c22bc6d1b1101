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
from ...runtime.protocol.schema import flag, mapping, number, row, stored, text
from ..model.configuration import MEMBERS_MAX, Configuration, Member
from ..raft.recovered_hard_state import (
    GHOST,
    RecoveredHardState,
    decode_hard_state,
    encode_hard_state,
)

MEMBERS = "MEMBERS"
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
    """Of this disk's blocks (`blocks.header_into`)."""

    @property
    def founding(self) -> Configuration:
        """The members of a log that was begun before logs named them. Their addresses are not known."""
        members = [Member(node_id, name, "", True) for name, node_id in self.voters.items()]
        return Configuration.of(members)


def new_members(cluster_id: str, voters: Mapping[str, str], chance: Random) -> MemberIdentity:
    """For a node that joins a cluster which forms."""
    return MemberIdentity(cluster_id, voters, True, chance.getrandbits(63))


async def load_members(disk: Disk) -> MemberIdentity | None:
    """None for a directory that never belonged to a cluster. Raises `CorruptData`, `UnsupportedFormat`."""
    content = await read_file(disk, MEMBERS)
    if content is None:
        return None
    body = content[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != content[:DIGEST_BYTES]:
        raise CorruptData(f"{MEMBERS}: the checksum is wrong ({len(content)} bytes)")
    return decode_members(body)


def decode_members(body: bytes) -> MemberIdentity:
    """What the file says after its checksum. Raises `CorruptData`, `UnsupportedFormat`."""
    (form, *_) = stored(body, row(number(), later=True), MEMBERS)
    if form != MEMBERS_FORMAT:
        raise UnsupportedFormat(f"{MEMBERS}: format {form}, known is {MEMBERS_FORMAT}")
    _, *said = stored(body, _FORM, MEMBERS)
    return MemberIdentity(*said)


async def store_ghost(disk: Disk, word: RecoveredHardState) -> None:
    """What a node promised that has lost a part of its log; durable when this returns."""
    body = encode_hard_state(word)
    await replace_file(disk, GHOST, xxhash.xxh3_64_digest(body) + body)


async def load_ghost(disk: Disk) -> RecoveredHardState | None:
    """None where there is none, or where it is damaged: then nobody knows. Raises `UnsupportedFormat`."""
    try:
        content = await read_file(disk, GHOST)
    except (CorruptData, DiskFailed):  # the device does not read it: as if it were damaged
        return None
    if content is None or xxhash.xxh3_64_digest(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
        return None
    try:
        return decode_hard_state(content[DIGEST_BYTES:])
    except CorruptData:
        return None


async def remove_ghost(disk: Disk) -> None:
    """The log is whole again, or the word is not known."""
    if GHOST in disk.list():
        await disk.delete(GHOST)


async def store_members(disk: Disk, members: MemberIdentity) -> None:
    """Durable when this returns."""
    body = pack(
        [MEMBERS_FORMAT, members.cluster_id, dict(members.voters), members.may_vote, members.seed]
    )
    await replace_file(disk, MEMBERS, xxhash.xxh3_64_digest(body) + body)
