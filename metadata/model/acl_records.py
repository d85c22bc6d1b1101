"""The keys that say who may do what, and what they hold (pure).

    trust/mode               [1, mode]
    trust/user/NAME         [1, made ms, disabled, tokens from, [serial refused, ...], quota]
    trust/grant/NAME 00 NAMESPACE 00 PATH    [1, role]     both empty for a role of the cluster
    trust/quota/NAMESPACE    [1, keys, bytes, ledgers]     NAMESPACE empty: of all that have none of their own
    trust/ended/PRINCIPAL    [1, ms]      put anew with all that takes something away from it
    audit/<log index, 16 hex>    [1, ms, principal, address, action, subject]

They change by `AuthorizationChange` alone; who puts one of them otherwise is refused, in every mode.
"""

from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_stored, flag, number, one_of, row, rows, text
from .rights import ROLES
from .transaction import KeyValue

ACL_PREFIX = b"trust/"
AUDIT_PREFIX = b"audit/"
MODE_KEY = b"trust/mode"
USER_PREFIX = b"trust/user/"
GRANT_PREFIX = b"trust/grant/"
REVOKED_PREFIX = b"trust/ended/"
QUOTA_PREFIX = b"trust/quota/"
FORCE = "force"
"""The last word of a change that is made though it lowers the protection or stops writers."""
FORMAT = 1
MODES = ("open", "report", "required")
"""Nothing is judged; judged and counted, and done all the same; judged, and refused."""
NAME_CHARS_MAX = 64
SERIALS_MAX = 64
QUOTA_CHARS_MAX = 32
SUBJECT_CHARS_MAX = 256
REPORTED_DENIALS_MAX = 1024
"""In mode ``report`` so many kinds of refusal are counted."""
ADDRESS_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class User:
    """What is known of a user beside its grants."""

    made_ms: int = 0
    disabled: bool = False
    tokens_valid_from: int = 0
    """Tokens that were made when this was another number are taken no more: it is the place in the log of
    the change that last ended them all, so no clock and no order of clocks matters (H237)."""
    revoked_serials: tuple[str, ...] = ()
    """Certificates that are taken no more."""
    quota: str = ""

    def encode(self) -> bytes:
        """As the value of its key."""
        fields = [
            self.made_ms,
            self.disabled,
            self.tokens_valid_from,
            list(self.revoked_serials),
            self.quota,
        ]
        return pack([FORMAT, *fields])

    @classmethod
    def decode(cls, value: bytes) -> "User":
        """Raises `CorruptData`."""
        _, made_ms, disabled, tokens_from, serials, quota = decode_stored(
            value, _USER, "a user's record"
        )
        return cls(made_ms, disabled, tokens_from, serials, quota)


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """What a namespace may have in the metadata."""

    keys: int = 500_000
    size_bytes: int = 128 * 1024 * 1024
    """Of its keys and their values."""
    ledgers: int = 100_000

    def encode(self) -> bytes:
        """As the value of its key."""
        return pack([FORMAT, self.keys, self.size_bytes, self.ledgers])

    @classmethod
    def decode(cls, value: bytes) -> "NamespaceQuota":
        """Raises `CorruptData`."""
        return cls(*decode_stored(value, _QUOTA, "the quota of a namespace")[1:])


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One act of somebody who may change who may what; kept beside what it did."""

    ms: int
    principal: str
    address: str
    action: str
    subject: str

    def encode(self) -> bytes:
        """As the value of its key: printable, and short (H239)."""
        return pack(
            [
                FORMAT,
                self.ms,
                printable_text(self.principal, NAME_CHARS_MAX),
                printable_text(self.address, ADDRESS_CHARS_MAX),
                printable_text(self.action, NAME_CHARS_MAX),
                printable_text(self.subject, SUBJECT_CHARS_MAX),
            ]
        )

    @classmethod
    def decode(cls, value: bytes) -> "AuditLine":
        """Raises `CorruptData`."""
        return cls(*decode_stored(value, _AUDIT, "a line of the audit")[1:])


def printable_text(what: str, chars_max: int) -> str:
    """Text of a peer for a line: nothing that ends it or moves a cursor, and no more than so much."""
    return "".join(c if c.isprintable() else "?" for c in what[:chars_max])


def encode_mode(mode: str) -> bytes:
    """The value of ``trust/mode``."""
    return pack([FORMAT, mode])


def decode_mode(value: bytes | None) -> str:
    """One of `MODES`; "open" where there is none. Raises `CorruptData`."""
    if value is None:
        return "open"
    mode: str = decode_stored(value, _MODE, "the mode of trust")[1]
    return mode


def mode_of(item: KeyValue | None) -> str:
    """What ``trust/mode`` says as it is stored; "required" where that cannot be read: it lets nobody in."""
    try:
        return decode_mode(None if item is None else item.value)
    except CorruptData:
        return "required"


def user_key(name: str) -> bytes:
    """Of one user's record."""
    return USER_PREFIX + name.encode()


def grant_key(name: str, namespace: str, path: str) -> bytes:
    """Of one grant."""
    return b"\0".join([grants_prefix(name)[:-1], namespace.encode(), path.encode()])


def grants_prefix(name: str) -> bytes:
    """Of all grants of one user."""
    return GRANT_PREFIX + name.encode() + b"\0"


def grant_of(key: bytes) -> tuple[str, str, str]:
    """User, namespace and path in a grant's key. Raises `CorruptData`."""
    try:
        name, namespace, path = key.removeprefix(GRANT_PREFIX).decode().split("\0")
    except ValueError:
        raise CorruptData("a grant's key that names no user, namespace and path") from None
    return name, namespace, path


def encode_grant(role: str) -> bytes:
    """The value of a grant."""
    return pack([FORMAT, role])


def decode_grant(value: bytes) -> str:
    """Its role. Raises `CorruptData`."""
    role: str = decode_stored(value, _GRANT, "a grant")[1]
    return role


def quota_key(namespace: str) -> bytes:
    """Of a namespace's bounds; "": of all that have none of their own."""
    return QUOTA_PREFIX + namespace.encode()


def revoked_key(principal: str) -> bytes:
    """Says since when (its revision) something was taken away from a principal."""
    return REVOKED_PREFIX + principal.encode()


def encode_revoked(ms: int) -> bytes:
    """The value of such a key."""
    return pack([FORMAT, ms])


def audit_key(index: int) -> bytes:
    """Of the line that the command at this place of the log writes."""
    return b"audit/%016x" % index


_VERSION = number(FORMAT, FORMAT)
_MODE = row(_VERSION, one_of(*MODES))
_GRANT = row(_VERSION, one_of(*ROLES))
_SERIALS = rows(text(NAME_CHARS_MAX), SERIALS_MAX)
_USER = row(_VERSION, number(), flag, number(), _SERIALS, text(QUOTA_CHARS_MAX))
_QUOTA = row(_VERSION, number(), number(), number())
_AUDIT = row(
    _VERSION,
    number(),
    text(NAME_CHARS_MAX),
    text(ADDRESS_CHARS_MAX),
    text(NAME_CHARS_MAX),
    text(SUBJECT_CHARS_MAX),
)
