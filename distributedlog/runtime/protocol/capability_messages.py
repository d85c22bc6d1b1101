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
from .schema import blob, message, number, read, row, rows, text, word

MODES = ("open", "report", "required")
LEDGERS_MAX = 1000
KEYS_MAX = 8192
"""Of one answer: each costs the leader a hash."""
BOOKIES_MAX = 255
"""Of one ledger."""
PRINCIPALS_MAX = 20_000
"""From whom something was taken."""
PASS_BYTES_MAX = 320


@dataclass(frozen=True, slots=True)
class CapsQuestion:
    """Capabilities of one kind: ledger → the bookies that they are for."""

    kind: CapabilityKind
    ledgers: Mapping[int, tuple[str, ...]]

    def encode(self) -> bytes:
        """As a frame body."""
        asked = [[ledger, list(bookies)] for ledger, bookies in self.ledgers.items()]
        return pack(["caps", int(self.kind), asked])


@dataclass(frozen=True, slots=True)
class GateQuestion:
    """What a bookie is to check by."""

    bookie_id: str

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["gate", self.bookie_id])


@dataclass(frozen=True, slots=True)
class CapsAnswer:
    """Ledger → capabilities in the order of the bookies asked for; none: not allowed."""

    mode: str
    passport: bytes
    """For bookies; empty for who is anonymous."""
    keys: Mapping[int, tuple[bytes, ...]]

    def encode(self) -> bytes:
        """As a frame body."""
        found = [[ledger, list(keys)] for ledger, keys in self.keys.items()]
        return pack([self.mode, self.passport, found])

    @classmethod
    def decode(cls, body: Buffer) -> "CapsAnswer":
        """Raises `ProtocolError`."""
        mode, passport, found = message(body, _CAPS_ANSWER, "the answer to META_CAPS")
        return cls(mode, passport, dict(found))


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """What a bookie checks by from now on."""

    mode: str
    held: tuple[Generation, ...]
    """Newest first."""
    since: Mapping[str, int]
    """Principal → the revision at which something was last taken from it; who is not named: 0."""

    def encode(self) -> bytes:
        """As a frame body."""
        held = [[one.number, one.key, one.passes] for one in self.held]
        return pack([self.mode, held, [[name, since] for name, since in self.since.items()]])

    @classmethod
    def decode(cls, body: Buffer) -> "GateAnswer":
        """Raises `ProtocolError`."""
        mode, held, since = message(body, _GATE_ANSWER, "what a bookie checks by")
        return cls(mode, tuple(Generation(*one) for one in held), dict(since))


def decode_question(body: Buffer) -> CapsQuestion | GateQuestion:
    """A META_CAPS. Raises `ProtocolError`."""
    what = "META_CAPS"
    value = unpack(body, what)
    if type(value) is list and value[:1] == ["gate"]:
        _, bookie_id = read(value, _GATE, what)
        return GateQuestion(bookie_id)
    _, kind, asked = read(value, _CAPS, what)
    if sum(len(bookies) for _, bookies in asked) > KEYS_MAX:
        raise ProtocolError(f"{what}: more than {KEYS_MAX} capabilities at once")
    return CapsQuestion(CapabilityKind(kind), dict(asked))


_LEDGER = number(0)
_BOOKIE = text(chars_min=1)
_SECRET = blob(SECRET_BYTES, SECRET_BYTES)
_MODE = word(*MODES)
_CAPS = row(
    word("caps"),
    number(min(CapabilityKind), max(CapabilityKind)),
    rows(row(_LEDGER, rows(_BOOKIE, BOOKIES_MAX)), LEDGERS_MAX),
)
_GATE = row(word("gate"), _BOOKIE)
_KEYS: Any = rows(blob(CAPABILITY_BYTES, CAPABILITY_BYTES), BOOKIES_MAX)
_CAPS_ANSWER = row(_MODE, blob(PASS_BYTES_MAX), rows(row(_LEDGER, _KEYS), LEDGERS_MAX))
_GATE_ANSWER = row(
    _MODE,
    rows(row(number(1), _SECRET, _SECRET), GENERATIONS_KEPT),
    rows(row(text(PRINCIPAL_BYTES_MAX, 1), number()), PRINCIPALS_MAX),
)
