"""The kinds of keys in the metadata, by which requests are authorized (pure).

This part contains no knowledge of logs and ledgers. `cluster/auth/cluster_key_space.py` fills a `KeySpace`
with one row per kind of key. A key without a row can be read by operators, and cannot be written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..model.rights import OPERATOR

RequiredRights = int | Callable[[bytes, bytes | None, bytes | None], int]
"""Rights of which one is sufficient, or a function that returns them.

Its arguments are the key, and its values before and after the change (None if it does not exist).
"""

AuditRule = Callable[[bytes, Mapping[bytes, bytes | None], bytes | None], tuple[str, str] | None]
"""Returns the action and the subject of an audit record, or None if no record is needed.

Its arguments are the changed key, the values that the whole transaction puts (None for a deletion), and the
present value of the key.
"""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The objects that a key belongs to. Empty fields do not apply."""

    log: bytes = b""
    """The ID of a log, as in keys."""
    ledger: bytes = b""
    """The key of a ledger's record."""
    path: tuple[str, str] | None = None
    """Namespace and log name."""
    bookie: bytes = b""
    user: str = ""
    """The user that owns the key, if readers of a log may have their own keys."""


NO_SCOPE = KeyScope()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that a transaction changes, for a `ChangeRule`. A value is None if the key does not exist."""

    key: bytes
    before: bytes | None
    after: bytes | None
    current_value: Callable[[bytes], bytes | None]
    """Returns the present value of a key."""
    value_after: Callable[[bytes], bytes | None]
    """Returns the value of a key after the transaction."""
    namespace_of_log: Callable[[bytes], str]
    """Returns the namespace in which the log with this ID has its name, or ""."""
    is_own_bookie: Callable[[str], bool]
    """Whether the requester is the bookie with this ID."""
    is_repair_leader: bool
    """Whether the requester is the repair leader."""
    rights: int
    """All rights of the requester on this key."""
    is_pinned: Callable[[bytes], bool]
    """Whether the transaction requires the present version of a key.

    Other transactions may be applied between this check and the change. Without that condition, a rule
    would decide from an outdated value.
    """


ChangeRule = Callable[[KeyChange], bool]
"""Whether the change is valid. Raises `DistributedLogError` if a value cannot be decoded."""


@dataclass(frozen=True, slots=True)
class KeyClass:
    """One kind of key."""

    read_rights: int
    """Rights of which one is sufficient to read, compare and watch the key."""
    write_rights: RequiredRights
    scope_of: Callable[[bytes], KeyScope | None] = lambda key: NO_SCOPE
    """Returns the scope of a key, also of its beginning up to `scope_prefix`.

    None if no key of this kind has that form.
    """
    scope_prefix: Callable[[bytes], bytes] = lambda key: b""
    """Returns the beginning of ``key`` that determines its scope, or b"".

    A range within it can be read with a right on that scope.
    """
    listing_prefix: Callable[[bytes], bytes] | None = None
    """For keys that end with a namespace and a path, returns the part before them.

    A range is then restricted to the paths on which the requester has any right.
    """
    is_created_once: bool = False
    """The key is created once, and never again after its deletion.

    A condition on an earlier version then never holds.
    """
    repair_rule: ChangeRule | None = None
    """The rule for changes that a bookie may make only as repair leader or as holder of a copy (H242)."""
    change_rule: ChangeRule | None = None
    """The rule for every change, by any principal."""
    lease_protected: bool = False
    """While the lease of the key is active, only its holder may change the key."""
    allows_lease: bool = False
    """The key may be bound to a lease, which deletes it without a check of rights or rules."""
    is_marker: Callable[[bytes], bool] = lambda key: False
    """Whether the key is a small record of pending work or of a location, at most one per object.

    Such a key may be created even if its namespace is full.
    """
    completion_stage: Callable[[bytes, bytes], int] | None = None
    """Returns how close a record is to its final state, by key and value. Raises `CorruptData`.

    It normally only increases.
    """
    filters_by_key: bool = False
    """Any authenticated principal may list and watch these keys, and receives those that it may read."""
    referenced_ledger: Callable[[bytes], bytes] | None = None
    """Returns the key of the ledger record that a value names. Raises `CorruptData`.

    A principal that adds such a reference needs write access to that ledger, because nodes follow it with
    their own rights.
    """


@dataclass(frozen=True, slots=True)
class KeySpace:
    """All kinds of keys."""

    by_first_part: Mapping[bytes, KeyClass] = field(default_factory=dict)
    """Kinds by the part of the key up to and including the first slash."""
    by_third_part: Mapping[tuple[bytes, bytes], KeyClass] = field(default_factory=dict)
    """Kinds by the first part and the third part, without a slash after the latter."""
    single_keys: Mapping[bytes, KeyClass] = field(default_factory=dict)
    """Kinds of single keys."""
    names_prefix: bytes = b"name/"
    """Prefix of keys with namespace, zero byte and log name. The values are log IDs."""
    logs_prefix: bytes = b"log/"
    """Prefix of the keys of logs. An existing log has a key of this prefix, its ID and `state_suffix`.

    The deletion of a log also deletes all other keys with its ID.
    """
    state_suffix: bytes = b"/state"
    ledgers_prefix: bytes = b"ledger/"
    repair_leader_key: bytes = b""
    """The holder of this key's lease is the repair leader."""
    cookies_prefix: bytes = b"cookie/"
    moves_prefix: bytes = b"move/"
    clock_key: bytes = b""
    """A counter of milliseconds that the repair leader advances, never faster than time."""
    clock_ms: Callable[[bytes], int] = lambda value: 0
    clock_step_ms: int = 0
    """Tolerance by which it may be ahead of the time that the leader has measured."""
    log_of_ledger: Callable[[bytes, bytes], bytes] = lambda key, value: b""
    """Returns the ID of a ledger's log, by key and value of its record, or b"" without a log."""
    is_deleting: Callable[[bytes, bytes], bool] = lambda key, value: False
    """Whether no log refers to the ledger any more and it is not read, by its record."""
    bookies_of_ledger: Callable[[bytes, bytes], tuple[str, ...]] = lambda key, value: ()
    is_closed: Callable[[bytes, bytes], bool] = lambda key, value: False
    """Whether the end of a ledger is final, by key and value of its record."""
    owner_of_cookie: Callable[[bytes, bytes], str] = lambda key, value: ""
    """Returns the principal of a bookie, by key and value of its cookie."""
    audit_rules: Mapping[bytes, AuditRule] = field(default_factory=dict)
    """Rules for audit records, by the part of a key up to the first slash."""
    repeated_actions: frozenset[str] = frozenset()
    """Actions that programs repeat. The audit log has one record per hour, principal and subject."""

    def of(self, key: bytes) -> KeyClass:
        """Return the kind of a key."""
        key_class = self.single_keys.get(key)
        if key_class is not None:
            return key_class
        slash = key.find(b"/") + 1
        if not slash:
            return UNKNOWN_CLASS
        first = key[:slash]
        key_class = self.by_first_part.get(first)
        if key_class is not None:
            return key_class
        parts = key.split(b"/", 3)
        return self.by_third_part.get(
            (first, parts[2]) if len(parts) > 2 else (first, b""), UNKNOWN_CLASS
        )


UNKNOWN_CLASS = KeyClass(OPERATOR, 0)
