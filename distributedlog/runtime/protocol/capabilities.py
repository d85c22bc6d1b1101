"""What a client may do with one ledger at one bookie, in bytes that the bookie checks alone (pure).

    capability  | kind u8 | generation u8 | mac 14s |       16 bytes, in the place of a ledger's stored key
      mac       HMAC-SHA256(K_b, "dlog cap 1" 0 | kind u8 | generation u8| ledger u64 | since u64 | principal)
      K_b       HMAC-SHA256(K, "dlog bookie key 1" 0 | cluster id | 0 | bookie id)
    pass        | "DP2" | generation u8 | ends u32 s | since u64 | length u8 | principal | mac 16s |
      mac       HMAC-SHA256(P, "dlog pass 1" 0 | all before)

K and P are drawn by the leader of the metadata quorum, a pair a *generation*, and the two newest count. A
bookie holds its own K_b of each: a stolen one computes capabilities for itself, and for nobody else (H229).
P is the same for all: a wrong name opens nothing, for each capability is one principal's. A pass ends with
the token that its holder came by (0: with nothing), and with it what its capabilities are good for, though
these go by no clock.

``since`` is the revision at which something was last taken from that principal, 0: never. It is known at both
ends and not sent in a capability: when a bookie hears of a newer one, all that this principal had before is
void there, and it asks for what it still may have. `UNJUDGED` stands for it in what mode `report` gives to
those whom `required` would refuse. Numbers are little-endian.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct

from ..interfaces.errors import NotAuthenticated

CAPABILITY_BYTES = 16
SECRET_BYTES = 32
"""Of K, K_b and P."""
PRINCIPAL_BYTES_MAX = 160
GENERATIONS_KEPT = 2
UNJUDGED = (1 << 64) - 1
"""In the place of ``since``: given in mode `report` to one who has no right, and good in that mode alone."""
NONE = bytes(CAPABILITY_BYTES)
"""Shown by who has none; no kind is 0."""

_CAPABILITY = b"dlog cap 1\0"
_BOOKIE_KEY = b"dlog bookie key 1\0"
_PASS = b"dlog pass 1\0"
_HEAD = Struct("<BBQQ")
_PASS_HEAD = Struct("<3sBIQB")
_MAGIC = b"DP2"
_MAC_BYTES = 14
_PASS_MAC_BYTES = 16


class CapabilityKind(IntEnum):
    """What a capability is good for."""

    LIST = 1
    """Which entries are there, and how far they are confirmed."""
    READ = 2
    """That, and the entries."""
    ADD = 3
    """An add stream."""
    RECOVER = 4
    """That of `READ`, a fence, and an add stream that passes it."""


SERVES: dict[CapabilityKind, tuple[CapabilityKind, ...]] = {
    CapabilityKind.LIST: (CapabilityKind.LIST, CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.READ: (CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.ADD: (CapabilityKind.ADD,),
    CapabilityKind.RECOVER: (CapabilityKind.RECOVER,),
}
"""Which capabilities will do for what is wanted, the least first."""


FIRST, LAST = int(min(CapabilityKind)), int(max(CapabilityKind))


@dataclass(frozen=True, slots=True)
class Generation:
    """One pair of secrets, numbered from 1: K and P, or a bookie's K_b and P."""

    number: int
    key: bytes = field(repr=False)
    passes: bytes = field(repr=False)

    def of_bookie(self, cluster_id: str, bookie_id: str) -> "Generation":
        """What that bookie holds of this one."""
        said = _BOOKIE_KEY + cluster_id.encode() + b"\0" + bookie_id.encode()
        return Generation(self.number, hmac.digest(self.key, said, "sha256"), self.passes)


def looks_like_one(key: bytes) -> bool:
    """May these bytes be a capability? One in 64 of the stored keys of before looks like one as well."""
    return FIRST <= key[0] <= LAST


def stored_key(chance: bytes) -> bytes:
    """A ledger's stored key, out of so many bytes of chance: never taken for a capability."""
    return bytes((chance[0] | 0x80,)) + chance[1:]


def capability(
    of_bookie: Generation, kind: CapabilityKind, ledger: int, principal: str, since: int
) -> bytes:
    """The 16 bytes; ``of_bookie`` is what `Generation.of_bookie` gave."""
    byte = of_bookie.number & 0xFF
    said = _CAPABILITY + _HEAD.pack(kind, byte, ledger, since) + principal.encode()
    return bytes((kind, byte)) + hmac.digest(of_bookie.key, said, "sha256")[:_MAC_BYTES]


def is_capability(
    shown: bytes,
    held: Iterable[Generation],
    wanted: CapabilityKind,
    ledger: int,
    principal: str,
    since: int,
) -> bool:
    """Do these bytes allow that principal what is wanted, at the bookie that holds these generations?"""
    for kind in SERVES[wanted]:
        if shown[0] != kind:
            continue
        for generation in held:
            if shown[1] == generation.number & 0xFF:
                computed = capability(generation, kind, ledger, principal, since)
                return hmac.compare_digest(computed, shown)
    return False


def issue_pass(generation: Generation, principal: str, since: int, ends_s: int = 0) -> bytes:
    """A pass, by which bookies know the principal until then; 0: for good."""
    name = principal.encode()
    assert 0 < len(name) <= PRINCIPAL_BYTES_MAX, "a principal is a short text"
    said = _PASS_HEAD.pack(_MAGIC, generation.number & 0xFF, ends_s, since, len(name)) + name
    return said + _pass_mac(generation, said)


def _pass_mac(generation: Generation, said: bytes) -> bytes:
    return hmac.digest(generation.passes, _PASS + said, "sha256")[:_PASS_MAC_BYTES]


def read_pass(proof: bytes, held: Iterable[Generation]) -> tuple[str, int, int]:
    """(principal, since, end) of a pass that was issued. Raises `NotAuthenticated`.

    Whether anything was taken from the principal after ``since``, and what time it is, the caller sees.
    """
    size = len(proof) - _PASS_HEAD.size - _PASS_MAC_BYTES
    if not 0 < size <= PRINCIPAL_BYTES_MAX:
        raise NotAuthenticated(f"{len(proof)} bytes are no pass")
    magic, byte, ends_s, since, length = _PASS_HEAD.unpack_from(proof)
    if magic != _MAGIC or length != size:
        raise NotAuthenticated("these bytes are no pass")
    said, mac = proof[:-_PASS_MAC_BYTES], proof[-_PASS_MAC_BYTES:]
    for generation in held:
        if generation.number & 0xFF == byte and hmac.compare_digest(
            _pass_mac(generation, said), mac
        ):
            try:
                return proof[_PASS_HEAD.size : _PASS_HEAD.size + size].decode(), since, ends_s
            except UnicodeDecodeError:
                break
    raise NotAuthenticated("a pass that is not of this cluster, or of a generation that has ended")
