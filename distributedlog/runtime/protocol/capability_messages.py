"""What a client and a bookie ask the leader for, to show and to check capabilities (META_CAPS, pure).

    ["caps", kind, [[ledger, [bookie id, …]], …]]
        REPLY  [mode, pass, [[ledger, [capability 16s, …]], …]]      one a bookie; none: not allowed
    ["gate", bookie id]                                              a bookie alone
        REPLY  [mode, [[number, K_b 32s, P 32s], …], [[principal, since], …]]

``mode`` is ``open``, ``report`` or ``required``. ``since``: see `capabilities.py`.
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
"""Of one answer: each costs the leader a hash."""
BOOKIES_MAX = 255
"""Of one ledger."""
PRINCIPALS_MAX = 20_000
"""From whom something was taken."""
SESSION_CREDENTIAL_BYTES_MAX = 320


@dataclass(frozen=True, slots=True)
class CapabilityRequest:
    """Capabilities of one kind: ledger → the bookies that they are for."""

    kind: CapabilityKind
    ledgers: Mapping[int, tuple[str, ...]]

    def encode(self) -> bytes:
        """As a frame body."""
        ledger_rows = [[ledger, list(bookies)] for ledger, bookies in self.ledgers.items()]
        return pack(["caps", int(self.kind), ledger_rows])


@dataclass(frozen=True, slots=True)
class BookieKeysRequest:
    """What a bookie is to check by."""

    bookie_id: str

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["gate", self.bookie_id])


@dataclass(frozen=True, slots=True)
class CapabilityReply:
    """Ledger → capabilities in the order of the bookies asked for; none: not allowed."""

    mode: str
    session_credential: bytes
    """For bookies; empty for who is anonymous."""
    keys: Mapping[int, tuple[bytes, ...]]

    def encode(self) -> bytes:
        """As a frame body."""
        ledger_rows = [[ledger, list(keys)] for ledger, keys in self.keys.items()]
        return pack([self.mode, self.session_credential, ledger_rows])

    @classmethod
    def decode(cls, body: Buffer) -> "CapabilityReply":
        """Raises `ProtocolError`."""
        mode, session_credential, ledger_rows = decode_message(
            body, _CAPABILITY_REPLY, "the answer to META_CAPS"
        )
        return cls(mode, session_credential, dict(ledger_rows))


@dataclass(frozen=True, slots=True)
class BookieKeysReply:
    """What a bookie checks by from now on."""

    mode: str
    generations: tuple[Generation, ...]
    """Newest first."""
    revoked_at_revisions: Mapping[str, int]
    """Principal → the revision at which something was last taken from it; who is not named: 0."""

    def encode(self) -> bytes:
        """As a frame body."""
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
        """Raises `ProtocolError`."""
        mode, generation_rows, revision_rows = decode_message(
            body, _BOOKIE_KEYS_REPLY, "what a bookie checks by"
        )
        return cls(
            mode,
            tuple(Generation(*generation_row) for generation_row in generation_rows),
            dict(revision_rows),
        )


def decode_request(body: Buffer) -> CapabilityRequest | BookieKeysRequest:
    """A META_CAPS. Raises `ProtocolError`."""
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
