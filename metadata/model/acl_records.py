"""The keys and records of users, grants, quotas, the authorization mode and the audit log (pure).

Keys and values::

    trust/mode               [1, mode]
    trust/user/NAME          [1, created ms, disabled, tokens valid from, [refused serial, ...], quota]
    trust/grant/NAME 00 NAMESPACE 00 PATH    [1, role]     NAMESPACE and PATH are empty for a cluster role
    trust/quota/NAMESPACE    [1, keys, bytes, ledgers]     NAMESPACE is empty for the default quota
    trust/ended/PRINCIPAL    [1, ms]      put by each change that revokes rights of the principal
    audit/<log index, 16 hex>    [1, ms, principal, address, action, subject]

Only the command `AuthorizationChange` changes these keys. Any other write to them is refused, in every
mode.
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
"""Last word of a change that is made although it lowers the protection or stops writers."""
FORMAT = 1
MODES = ("open", "report", "required")
"""Stored values of the authorization mode.

In "open", all requests are executed without a check. In "report", refusals are counted and the requests are
executed. In "required", requests without the necessary rights are refused.
"""
NAME_CHARS_MAX = 64
SERIALS_MAX = 64
QUOTA_CHARS_MAX = 32
SUBJECT_CHARS_MAX = 256
REPORTED_DENIALS_MAX = 1024
"""In mode "report", at most this many different kinds of refusal are counted."""
ADDRESS_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class User:
    """The record of a user, without its grants."""

    made_ms: int = 0
    disabled: bool = False
    tokens_valid_from: int = 0
    """Only tokens that carry this number are accepted.

    It is the log index of the last change that revoked all tokens of the user, so it depends on no clock
    (H237).
    """
    revoked_serials: tuple[str, ...] = ()
    """Serial numbers of certificates that are no longer accepted."""
    quota: str = ""

    def encode(self) -> bytes:
        """Encode the value of a user key."""
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
        """Decode the value of a user key, or raise `CorruptData`."""
        _, made_ms, disabled, tokens_from, serials, quota = decode_stored(
            value, _USER, "a user's record"
        )
        return cls(made_ms, disabled, tokens_from, serials, quota)


@dataclass(frozen=True, slots=True)
class NamespaceQuota:
    """Limits of a namespace in the metadata."""

    keys: int = 500_000
    size_bytes: int = 128 * 1024 * 1024
    """Sum over the keys of the namespace and their values."""
    ledgers: int = 100_000

    def encode(self) -> bytes:
        """Encode the value of a quota key."""
        return pack([FORMAT, self.keys, self.size_bytes, self.ledgers])

    @classmethod
    def decode(cls, value: bytes) -> "NamespaceQuota":
        """Decode the value of a quota key, or raise `CorruptData`."""
        return cls(*decode_stored(value, _QUOTA, "the quota of a namespace")[1:])


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One administrative action, stored in the same transaction as its effect."""

    ms: int
    principal: str
    address: str
    action: str
    subject: str

    def encode(self) -> bytes:
        """Encode the value of an audit key: printable text of limited length (H239)."""
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
        """Decode the value of an audit key, or raise `CorruptData`."""
        return cls(*decode_stored(value, _AUDIT, "a line of the audit")[1:])


def printable_text(what: str, chars_max: int) -> str:
    """Return text of a peer in printable form, cut to a length.

    Characters that would end a line or move a cursor are replaced by "?".
    """
    return "".join(c if c.isprintable() else "?" for c in what[:chars_max])


def encode_mode(mode: str) -> bytes:
    """Encode the value of ``trust/mode``."""
    return pack([FORMAT, mode])


def decode_mode(value: bytes | None) -> str:
    """Return the mode in the value of ``trust/mode``, one of `MODES`. A missing value means "open".

    Raises:
        CorruptData: The value cannot be decoded.
    """
    if value is None:
        return "open"
    mode: str = decode_stored(value, _MODE, "the mode of trust")[1]
    return mode


def mode_of(item: KeyValue | None) -> str:
    """Return the stored authorization mode.

    An unreadable value counts as "required", the strictest mode.
    """
    try:
        return decode_mode(None if item is None else item.value)
    except CorruptData:
        return "required"


def user_key(name: str) -> bytes:
    """Return the key of a user."""
    return USER_PREFIX + name.encode()


def grant_key(name: str, namespace: str, path: str) -> bytes:
    """Return the key of a grant."""
    return b"\0".join([grants_prefix(name)[:-1], namespace.encode(), path.encode()])


def grants_prefix(name: str) -> bytes:
    """Return the prefix of all grants of a user."""
    return GRANT_PREFIX + name.encode() + b"\0"


def grant_of(key: bytes) -> tuple[str, str, str]:
    """Return user, namespace and path of a grant key, or raise `CorruptData`."""
    try:
        name, namespace, path = key.removeprefix(GRANT_PREFIX).decode().split("\0")
    except ValueError:
        raise CorruptData("a grant's key without user, namespace and path") from None
    return name, namespace, path


def encode_grant(role: str) -> bytes:
    """Encode the value of a grant key."""
    return pack([FORMAT, role])


def decode_grant(value: bytes) -> str:
    """Return the role in the value of a grant key, or raise `CorruptData`."""
    role: str = decode_stored(value, _GRANT, "a grant")[1]
    return role


def quota_key(namespace: str) -> bytes:
    """Return the key of a namespace's quota. The namespace "" has the default quota."""
    return QUOTA_PREFIX + namespace.encode()


def revoked_key(principal: str) -> bytes:
    """Return the key whose modification revision is the time of the principal's last revocation."""
    return REVOKED_PREFIX + principal.encode()


def encode_revoked(ms: int) -> bytes:
    """Encode the value of a revocation key."""
    return pack([FORMAT, ms])


def audit_key(index: int) -> bytes:
    """Return the key of the audit record that the command at this log index writes."""
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
