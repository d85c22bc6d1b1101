"""What the keys of the store are to those who judge who may touch them (pure).

This part knows no logs and no ledgers: who does (`cluster/auth/cluster_key_space.py`) fills a `KeySpace` with
one row for each kind of key there is. A key that no row has is nobody's: to be read by an operator, and
written by nobody.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..model.rights import OPERATOR

RequiredRights = int | Callable[[bytes, bytes | None, bytes | None], int]
"""Any one of these rights; or which ones, by the key, and its value before and after (None: none)."""

AuditRule = Callable[[bytes, Mapping[bytes, bytes | None], bytes | None], tuple[str, str] | None]
"""A key that is put or deleted, what the whole transaction puts (None: deletes), and what the key has now:
the act and its subject, for a line of the audit; None: nothing that anybody asks about later."""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What a key belongs to; what is empty says nothing."""

    log: bytes = b""
    """A log's id, as it stands in keys."""
    ledger: bytes = b""
    """The key of a ledger's record."""
    path: tuple[str, str] | None = None
    """Namespace and log name."""
    bookie: bytes = b""
    user: str = ""
    """Whose own it is, where the log's readers may have keys of their own."""


NO_SCOPE = KeyScope()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that a transaction changes, for `KeyClass.repair_rule`. Values; None: no such key."""

    key: bytes
    before: bytes | None
    after: bytes | None
    current_value: Callable[[bytes], bytes | None]
    """What a key has now."""
    value_after: Callable[[bytes], bytes | None]
    """What it has after all that is done at once."""
    namespace_of_log: Callable[[bytes], str]
    """Where the log with that id has its name; "": nowhere."""
    is_own_bookie: Callable[[str], bool]
    """Is the asker the bookie with that id?"""
    is_janitor: bool
    """Is it the one that repairs?"""
    rights: int
    """All rights of the asker on this key."""
    is_pinned: Callable[[bytes], bool]
    """Is the transaction conditional on the present version of that key? Other transactions may be applied
    between this check and this change. Without that condition a rule decides from a value of the past."""


ChangeRule = Callable[[KeyChange], bool]
"""Is it such a change? Raises `DistributedLogError` where that cannot be read."""


@dataclass(frozen=True, slots=True)
class KeyClass:
    """One kind of key."""

    read_rights: int
    """Any one of these rights lets read it, compare it, and watch it."""
    write_rights: RequiredRights
    scope_of: Callable[[bytes], KeyScope | None] = lambda key: NO_SCOPE
    """Also of the beginning of a key, as far as `span` goes; None: no key of this kind looks so."""
    scope_prefix: Callable[[bytes], bytes] = lambda key: b""
    """The beginning of ``key`` that says its place: a range with a right on one lies within. b"": none."""
    listing_prefix: Callable[[bytes], bytes] | None = None
    """Of keys that end with a namespace and a path, what stands before them: a range is narrowed to paths
    that its asker has any right on."""
    is_made_once: bool = False
    """It is made once, and never again after it went: no condition on a version that is past will hold."""
    repair_rule: ChangeRule | None = None
    """Of what a bookie may change only because it repairs, or holds a copy (H242)."""
    change_rule: ChangeRule | None = None
    """Of every change, by any principal."""
    lease_protected: bool = False
    """While the lease that it stands under lives, its holder changes it and nobody else."""
    allows_lease: bool = False
    """It may stand under a lease, which deletes it without asking for a right or a form."""
    is_note: Callable[[bytes], bool] = lambda key: False
    """Does such a key say what is to be done, or where something is, and are there no more of these than of
    what they tell of? One may be made also where its namespace is full."""
    stage: Callable[[bytes, bytes], int] | None = None
    """How far such a record is on its way to its end, by key and value: there it goes once. Raises
    `CorruptData`."""
    filters_by_key: bool = False
    """Whoever is known may list and watch all of them, and is shown those that it may read."""
    referenced_ledger: Callable[[bytes], bytes] | None = None
    """The key of the ledger's record that a value names: whoever puts one there where it was not named before
    may write that ledger, for who goes by such keys does it with rights of its own. Raises `CorruptData`."""


@dataclass(frozen=True, slots=True)
class KeySpace:
    """All kinds of keys."""

    by_first_part: Mapping[bytes, KeyClass] = field(default_factory=dict)
    """By what goes up to the first slash, with it."""
    by_third_part: Mapping[tuple[bytes, bytes], KeyClass] = field(default_factory=dict)
    """Where it depends on the third part: by the first and that one, without slashes after it."""
    single_keys: Mapping[bytes, KeyClass] = field(default_factory=dict)
    """Single keys."""
    names_prefix: bytes = b"name/"
    """The keys NAMES namespace 00 log name; their values are the logs' ids."""
    logs_prefix: bytes = b"log/"
    """A log that is there has a key LOGS id STATE; with it go all others that begin so."""
    state_suffix: bytes = b"/state"
    ledgers_prefix: bytes = b"ledger/"
    janitor_key: bytes = b""
    """Who holds the lease of this key is the janitor."""
    cookies_prefix: bytes = b"cookie/"
    moves_prefix: bytes = b"move/"
    clock_key: bytes = b""
    """A count of milliseconds that the janitor moves: never faster than the time."""
    clock_ms: Callable[[bytes], int] = lambda value: 0
    clock_step_ms: int = 0
    """It may be ahead of what the leader has seen pass by so much."""
    log_of_ledger: Callable[[bytes, bytes], bytes] = lambda key, value: b""
    """Key and value of a ledger's record; the id of the log that it was made for, b"": none."""
    is_deleting: Callable[[bytes, bytes], bool] = lambda key, value: False
    """Of such a record: no log refers to the ledger any more, and nobody reads it."""
    bookies_of_ledger: Callable[[bytes, bytes], tuple[str, ...]] = lambda key, value: ()
    is_closed: Callable[[bytes, bytes], bool] = lambda key, value: False
    """Key and value of a ledger's record: is its end known for good?"""
    owner_of_cookie: Callable[[bytes, bytes], str] = lambda key, value: ""
    """Key and value of a bookie's cookie; the principal that is this bookie."""
    audit_rules: Mapping[bytes, AuditRule] = field(default_factory=dict)
    """Acts that a line of the audit tells of, by what goes up to the first slash of a key."""
    repeated_actions: frozenset[str] = frozenset()
    """Acts that programs repeat: the audit has one line per hour, principal and subject of these."""

    def of(self, key: bytes) -> KeyClass:
        """The row of a key."""
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
