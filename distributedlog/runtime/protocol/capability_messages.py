"""Messages to the metadata leader that request capabilities, or the keys to verify them (META_CAPS, pure).

The bodies are::

    ["caps", kind, [[ledger, [bookie id, …]], …]]
        REPLY  [mode, pass, [[ledger, [capability 16s, …]], …]]      one per bookie; none: not allowed
    ["gate", bookie id]                                              from bookies only
        REPLY  [mode, [[number, K_b 32s, P 32s], …], [[principal, since], …]]

``mode`` is ``open``, ``report`` or ``required``. For ``since`` and ``pass``, see `capabilities.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..interfaces.errors import ProtocolError
from ..interfaces.host import Buffer
from .capabilities import (
    CAPABILITY_BYTES,
    GENERATIONS_KEPT,
    PRINCIPAL_BYTES_MAX,
    SECRET_BYTES,
    CapabilityKind,
    Generation,
)
from .frames import pack, unpack
from .schema import blob, check_message, decode_message, number, one_of, row, rows, text

MODES = ("open", "report", "required")
LEDGERS_MAX = 1000
KEYS_MAX = 8192
"""Per reply. Each capability costs the leader one hash."""
BOOKIES_MAX = 255
"""Per ledger."""
PRINCIPALS_MAX = 20_000
"""Principals with revoked rights."""
SESSION_CREDENTIAL_BYTES_MAX = 320


@dataclass(frozen=True, slots=True)
class CapabilityRequest:
    """A request for capabilities of one kind, with the bookies of each ledger."""

    kind: CapabilityKind
    ledgers: Mapping[int, tuple[str, ...]]

    def encode(self) -> bytes:
        """Return the frame body."""
        ledger_rows = [[ledger, list(bookies)] for ledger, bookies in self.ledgers.items()]
        return pack(["caps", int(self.kind), ledger_rows])


@dataclass(frozen=True, slots=True)
class BookieKeysRequest:
    """A request of a bookie for the keys with which it verifies capabilities."""

    bookie_id: str

    def encode(self) -> bytes:
        """Return the frame body."""
        return pack(["gate", self.bookie_id])


@dataclass(frozen=True, slots=True)
class CapabilityReply:
    """Capabilities per ledger in the order of the requested bookies, or none if access is not allowed."""

    mode: str
    session_credential: bytes
    """The client's credential for bookies; empty for anonymous clients."""
    keys: Mapping[int, tuple[bytes, ...]]

    def encode(self) -> bytes:
        """Return the frame body."""
        ledger_rows = [[ledger, list(keys)] for ledger, keys in self.keys.items()]
        return pack([self.mode, self.session_credential, ledger_rows])

    @classmethod
    def decode(cls, body: Buffer) -> "CapabilityReply":
        """Decode a frame body. Raises `ProtocolError`."""
        mode, session_credential, ledger_rows = decode_message(
            body, _CAPABILITY_REPLY, "the answer to META_CAPS"
        )
        return cls(mode, session_credential, dict(ledger_rows))


@dataclass(frozen=True, slots=True)
class BookieKeysReply:
    """The keys and revocations with which a bookie verifies capabilities."""

    mode: str
    generations: tuple[Generation, ...]
    """Newest first."""
    revoked_at_revisions: Mapping[str, int]
    """Principal to the revision at which a right was last revoked from it. The others have 0."""

    def encode(self) -> bytes:
        """Return the frame body."""
        generation_rows = [
            [generation.number, generation.key, generation.credential_key]
            for generation in self.generations
        ]
        return pack(
            [
                self.mode,
                generation_rows,
                [
                    [principal, revision]
                    for principal, revision in self.revoked_at_revisions.items()
                ],
            ]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "BookieKeysReply":
        """Decode a frame body. Raises `ProtocolError`."""
        mode, generation_rows, revision_rows = decode_message(
            body, _BOOKIE_KEYS_REPLY, "the keys of a bookie"
        )
        return cls(
            mode,
            tuple(Generation(*generation_row) for generation_row in generation_rows),
            dict(revision_rows),
        )


def decode_request(body: Buffer) -> CapabilityRequest | BookieKeysRequest:
    """Decode a META_CAPS request. Raises `ProtocolError`."""
    what = "META_CAPS"
    value = unpack(body, what)
    if type(value) is list and value[:1] == ["gate"]:
        _, bookie_id = check_message(value, _BOOKIE_KEYS_REQUEST, what)
        return BookieKeysRequest(bookie_id)
    _, kind, ledger_rows = check_message(value, _CAPABILITY_REQUEST, what)
    if sum(len(bookies) for _, bookies in ledger_rows) > KEYS_MAX:
        raise ProtocolError(f"{what}: more than {KEYS_MAX} capabilities at once")
    return CapabilityRequest(CapabilityKind(kind), dict(ledger_rows))


_LEDGER = number(0)
_BOOKIE = text(chars_min=1)
_SECRET = blob(SECRET_BYTES, SECRET_BYTES)
_MODE = one_of(*MODES)
_CAPABILITY_REQUEST = row(
    one_of("caps"),
    number(min(CapabilityKind), max(CapabilityKind)),
    rows(row(_LEDGER, rows(_BOOKIE, BOOKIES_MAX)), LEDGERS_MAX),
)
_BOOKIE_KEYS_REQUEST = row(one_of("gate"), _BOOKIE)
_CAPABILITIES: Any = rows(blob(CAPABILITY_BYTES, CAPABILITY_BYTES), BOOKIES_MAX)
_CAPABILITY_REPLY = row(
    _MODE, blob(SESSION_CREDENTIAL_BYTES_MAX), rows(row(_LEDGER, _CAPABILITIES), LEDGERS_MAX)
)
_BOOKIE_KEYS_REPLY = row(
    _MODE,
    rows(row(number(1), _SECRET, _SECRET), GENERATIONS_KEPT),
    rows(row(text(PRINCIPAL_BYTES_MAX, 1), number()), PRINCIPALS_MAX),
)
