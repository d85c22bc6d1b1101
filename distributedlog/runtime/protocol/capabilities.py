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
void there, and it asks for what it still may have. `REPORT_ONLY_REVISION` stands for it in what mode `report`
gives to those whom `required` would refuse. Numbers are little-endian.
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
REPORT_ONLY_REVISION = (1 << 64) - 1
"""In the place of ``since``: given in mode `report` to one who has no right, and good in that mode alone."""
NO_CAPABILITY = bytes(CAPABILITY_BYTES)
"""Shown by who has none; no kind is 0."""

_CAPABILITY_LABEL = b"dlog cap 1\0"
_BOOKIE_KEY_LABEL = b"dlog bookie key 1\0"
_CREDENTIAL_LABEL = b"dlog pass 1\0"
_CAPABILITY_HEADER = Struct("<BBQQ")
_CREDENTIAL_HEADER = Struct("<3sBIQB")
_MAGIC = b"DP2"
_MAC_BYTES = 14
_CREDENTIAL_MAC_BYTES = 16


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


SUFFICIENT_KINDS: dict[CapabilityKind, tuple[CapabilityKind, ...]] = {
    CapabilityKind.LIST: (CapabilityKind.LIST, CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.READ: (CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.ADD: (CapabilityKind.ADD,),
    CapabilityKind.RECOVER: (CapabilityKind.RECOVER,),
}
"""Which capabilities will do for what is wanted, the least first."""


FIRST_KIND, LAST_KIND = int(min(CapabilityKind)), int(max(CapabilityKind))


@dataclass(frozen=True, slots=True)
class Generation:
    """One pair of secrets, numbered from 1: K and P, or a bookie's K_b and P."""

    number: int
    key: bytes = field(repr=False)
    credential_key: bytes = field(repr=False)

    def for_bookie(self, cluster_id: str, bookie_id: str) -> "Generation":
        """What that bookie holds of this one."""
        signed_bytes = _BOOKIE_KEY_LABEL + cluster_id.encode() + b"\0" + bookie_id.encode()
        return Generation(
            self.number, hmac.digest(self.key, signed_bytes, "sha256"), self.credential_key
        )


def may_be_capability(key: bytes) -> bool:
    """May these bytes be a capability? One in 64 of the stored keys of before looks like one as well."""
    return FIRST_KIND <= key[0] <= LAST_KIND


def stored_key(random_bytes: bytes) -> bytes:
    """A ledger's stored key, out of so many bytes of chance: never taken for a capability."""
    return bytes((random_bytes[0] | 0x80,)) + random_bytes[1:]


def make_capability(
    bookie_generation: Generation,
    kind: CapabilityKind,
    ledger: int,
    principal: str,
    revoked_at_revision: int,
) -> bytes:
    """The 16 bytes; ``for_bookie`` is what `Generation.for_bookie` gave."""
    generation_byte = bookie_generation.number & 0xFF
    signed_bytes = (
        _CAPABILITY_LABEL
        + _CAPABILITY_HEADER.pack(kind, generation_byte, ledger, revoked_at_revision)
        + principal.encode()
    )
    return (
        bytes((kind, generation_byte))
        + hmac.digest(bookie_generation.key, signed_bytes, "sha256")[:_MAC_BYTES]
    )


def is_capability(
    presented: bytes,
    generations: Iterable[Generation],
    wanted_kind: CapabilityKind,
    ledger: int,
    principal: str,
    revoked_at_revision: int,
) -> bool:
    """Do these bytes allow that principal what is wanted, at the bookie that holds these generations?"""
    for kind in SUFFICIENT_KINDS[wanted_kind]:
        if presented[0] != kind:
            continue
        for generation in generations:
            if presented[1] == generation.number & 0xFF:
                expected_capability = make_capability(
                    generation, kind, ledger, principal, revoked_at_revision
                )
                return hmac.compare_digest(expected_capability, presented)
    return False


def issue_session_credential(
    generation: Generation, principal: str, revoked_at_revision: int, ends_s: int = 0
) -> bytes:
    """A pass, by which bookies know the principal until then; 0: for good."""
    name = principal.encode()
    assert 0 < len(name) <= PRINCIPAL_BYTES_MAX, "a principal is a short text"
    signed_bytes = (
        _CREDENTIAL_HEADER.pack(
            _MAGIC, generation.number & 0xFF, ends_s, revoked_at_revision, len(name)
        )
        + name
    )
    return signed_bytes + _credential_mac(generation, signed_bytes)


def _credential_mac(generation: Generation, signed_bytes: bytes) -> bytes:
    return hmac.digest(generation.credential_key, _CREDENTIAL_LABEL + signed_bytes, "sha256")[
        :_CREDENTIAL_MAC_BYTES
    ]


def verify_session_credential(
    credential: bytes, generations: Iterable[Generation]
) -> tuple[str, int, int]:
    """(principal, since, end) of a pass that was issued. Raises `NotAuthenticated`.

    Whether anything was taken from the principal after ``since``, and what time it is, the caller sees.
    """
    size = len(credential) - _CREDENTIAL_HEADER.size - _CREDENTIAL_MAC_BYTES
    if not 0 < size <= PRINCIPAL_BYTES_MAX:
        raise NotAuthenticated(f"{len(credential)} bytes are no pass")
    magic, generation_byte, ends_s, revoked_at_revision, length = _CREDENTIAL_HEADER.unpack_from(
        credential
    )
    if magic != _MAGIC or length != size:
        raise NotAuthenticated("these bytes are no pass")
    signed_bytes, mac = credential[:-_CREDENTIAL_MAC_BYTES], credential[-_CREDENTIAL_MAC_BYTES:]
    for generation in generations:
        if generation.number & 0xFF == generation_byte and hmac.compare_digest(
            _credential_mac(generation, signed_bytes), mac
        ):
            try:
                return (
                    credential[_CREDENTIAL_HEADER.size : _CREDENTIAL_HEADER.size + size].decode(),
                    revoked_at_revision,
                    ends_s,
                )
            except UnicodeDecodeError:
                break
    raise NotAuthenticated("a pass that is not of this cluster, or of a generation that has ended")
