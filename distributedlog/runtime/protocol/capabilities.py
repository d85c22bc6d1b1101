"""Make and verify capabilities: access to one ledger at one bookie, which the bookie verifies alone (pure).

The formats are::

    capability  | kind u8 | generation u8 | mac 14s |       16 bytes, in the place of a ledger's stored key
      mac       HMAC-SHA256(K_b, "dlog cap 1" 0 | kind u8 | generation u8| ledger u64 | since u64 | principal)
      K_b       HMAC-SHA256(K, "dlog bookie key 1" 0 | cluster id | 0 | bookie id)
    credential  | "DP2" | generation u8 | ends u32 s | since u64 | length u8 | principal | mac 16s |
      mac       HMAC-SHA256(P, "dlog pass 1" 0 | all before)

Numbers are little-endian. A credential is a session credential; its method in AUTH is named ``pass``.

The leader of the metadata quorum generates the secrets K and P. One pair is a *generation*, and the two
newest generations are valid. A bookie has only its own K_b of each generation. With a stolen one, an attacker
can compute capabilities for this bookie only (H229).

P is the same for all bookies. A credential with a false name gives no access, because each capability belongs
to one principal. If a token proved the principal, the credential ends with the token; otherwise, its end is
0. Capabilities have no end of their own, but are of no use without a valid credential.

``since`` (`revoked_at_revision` in the code) is the revision at which a right was last revoked from the
principal, or 0. Both ends have this number, and a capability does not contain it. When a bookie receives a
newer number, all earlier capabilities of the principal are invalid there, and the client requests those that
it may still have. `REPORT_ONLY_REVISION` replaces the number in capabilities that mode `report` issues and
mode `required` would refuse.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct

from ..interfaces.errors import NotAuthenticated

CAPABILITY_BYTES = 16
SECRET_BYTES = 32
"""The size of K, K_b and P."""
PRINCIPAL_BYTES_MAX = 160
GENERATIONS_KEPT = 2
REPORT_ONLY_REVISION = (1 << 64) - 1
"""Replaces ``since`` in capabilities for principals without the right. They are valid in mode `report` only.
"""
NO_CAPABILITY = bytes(CAPABILITY_BYTES)
"""Presented by a client without a capability. No kind is 0."""

_CAPABILITY_LABEL = b"dlog cap 1\0"
_BOOKIE_KEY_LABEL = b"dlog bookie key 1\0"
_CREDENTIAL_LABEL = b"dlog pass 1\0"
_CAPABILITY_HEADER = Struct("<BBQQ")
_CREDENTIAL_HEADER = Struct("<3sBIQB")
_MAGIC = b"DP2"
_MAC_BYTES = 14
_CREDENTIAL_MAC_BYTES = 16


class CapabilityKind(IntEnum):
    """The access that a capability allows."""

    LIST = 1
    """List the entries and read the LAC."""
    READ = 2
    """The access of `LIST`, and read the entries."""
    ADD = 3
    """Open an add stream."""
    RECOVER = 4
    """The access of `READ`, fence the ledger, and open an add stream that ignores the fence."""


SUFFICIENT_KINDS: dict[CapabilityKind, tuple[CapabilityKind, ...]] = {
    CapabilityKind.LIST: (CapabilityKind.LIST, CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.READ: (CapabilityKind.READ, CapabilityKind.RECOVER),
    CapabilityKind.ADD: (CapabilityKind.ADD,),
    CapabilityKind.RECOVER: (CapabilityKind.RECOVER,),
}
"""The kinds of capabilities that allow a requested access, the least powerful first."""


FIRST_KIND, LAST_KIND = int(min(CapabilityKind)), int(max(CapabilityKind))


@dataclass(frozen=True, slots=True)
class Generation:
    """One pair of secrets, numbered from 1: K and P, or a bookie's K_b and P."""

    number: int
    key: bytes = field(repr=False)
    credential_key: bytes = field(repr=False)

    def for_bookie(self, cluster_id: str, bookie_id: str) -> "Generation":
        """Return the secrets that a bookie receives of this generation."""
        signed_bytes = _BOOKIE_KEY_LABEL + cluster_id.encode() + b"\0" + bookie_id.encode()
        return Generation(
            self.number, hmac.digest(self.key, signed_bytes, "sha256"), self.credential_key
        )


def may_be_capability(key: bytes) -> bool:
    """Return whether these bytes may be a capability.

    This is also true for one in 64 of the stored ledger keys of older versions.
    """
    return FIRST_KIND <= key[0] <= LAST_KIND


def stored_key(random_bytes: bytes) -> bytes:
    """Return a ledger's stored key made from random bytes. It never looks like a capability."""
    return bytes((random_bytes[0] | 0x80,)) + random_bytes[1:]


def make_capability(
    bookie_generation: Generation,
    kind: CapabilityKind,
    ledger: int,
    principal: str,
    revoked_at_revision: int,
) -> bytes:
    """Return the 16 bytes of a capability.

    Args:
        bookie_generation: The bookie's secrets, from `Generation.for_bookie`.
        revoked_at_revision: The value of ``since``.
    """
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
    """Return whether these bytes allow the principal the requested access at this bookie.

    Args:
        generations: The secrets of this bookie.
        wanted_kind: The requested access.
        revoked_at_revision: The current value of ``since`` for this principal.
    """
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
    """Return a session credential, by which bookies authenticate the principal.

    Args:
        revoked_at_revision: The value of ``since``.
        ends_s: When it ends, in seconds since 1970; 0 for never.
    """
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
    """Verify a session credential.

    The caller checks the end, and whether a right of the principal was revoked after ``since``.

    Returns:
        The principal, ``since`` and the end in seconds since 1970 (0 for never).

    Raises:
        NotAuthenticated: The credential is malformed, or was not made with one of these generations.
    """
    size = len(credential) - _CREDENTIAL_HEADER.size - _CREDENTIAL_MAC_BYTES
    if not 0 < size <= PRINCIPAL_BYTES_MAX:
        raise NotAuthenticated(f"not a valid session credential: {len(credential)} bytes")
    magic, generation_byte, ends_s, revoked_at_revision, length = _CREDENTIAL_HEADER.unpack_from(
        credential
    )
    if magic != _MAGIC or length != size:
        raise NotAuthenticated("not a valid session credential")
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
    raise NotAuthenticated(
        "a session credential of another cluster, or of a generation that has ended"
    )
