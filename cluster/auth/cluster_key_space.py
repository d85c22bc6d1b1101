"""All kinds of keys in the metadata store, with the rights to read and write them.

A key that is not in this table is denied (`metadata/auth/key_space.py`). A test creates a key of each kind
that the code can create, and looks it up here. Keys of a log require rights on the path of the log. Keys of a
ledger require rights on the log for which its record was created.

Bookies change the records of ledgers that they store or will store. The repair leader
(`replication_worker.py`) changes the records of all ledgers, and those of logs if segments are deleted.
`bookie_change_rules.py` has the allowed changes. An operator can read all keys of the store except secrets,
and no log records.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ledger.model import ledger_ids as ids
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerState
from ...log.model.deleted_log import DELETED_PREFIX
from ...log.model.log_keys import PURGE_PREFIX, REPLACED_PREFIX, STAGED_PREFIX, state_key
from ...log.model.segment_expiry import CLOCK_KEY, STEP_MAX_MS, decode_clock
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import BIND_PREFIX, CONF_PREFIX
from ...metadata.auth.key_space import NO_SCOPE, AuditRule, KeyClass, KeyScope, KeySpace
from ...metadata.model.acl_records import ACL_PREFIX, AUDIT_PREFIX, MODE_KEY, REVOKED_PREFIX
from ...metadata.model.cluster_version import CLUSTER_VERSION_KEY, PROBE_KEY, ClusterVersion
from ...metadata.model.rights import (
    ADMIN,
    ALL_LOG_RIGHTS,
    AUTHENTICATED,
    BOOKIE,
    EVERYBODY,
    MANAGE,
    OPERATOR,
    OWN,
    PROXY,
    READ,
    REPAIR_LEADER,
    REPLICA_HOLDER,
    WRITE,
)
from ...proxy.membership.proxy_registration import PREFIX as PROXIES
from ...runtime.declarations.versions import CURRENT
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import HOLD, RESTORES
from ..coordination.repair_settings import REPAIR_SETTINGS
from ..repair.auditor_election import ELECTION_KEY
from . import bookie_change_rules as shapes
from . import record_change_rules as records

INTERNAL_READERS = BOOKIE | PROXY | OPERATOR
"""Readers of keys without log records: nodes use these keys, and operators inspect them."""
NAME_PREFIX = b"name/"
ID_DIGITS = 16
IDS_PER_STEP_MAX = 1_000_000
"""One step of ``next/ledger`` is limited, so that no client can exhaust the IDs."""

SHOWN_LOSSES_MAX = 5
"""Ranges of entries in one line of the audit log."""
TRUNCATE = "truncate"

LEDGER_STAGES = (
    LedgerState.OPEN,
    LedgerState.IN_RECOVERY,
    LedgerState.CLOSED,
    LedgerState.DELETING,
)

ScopeOfKey = Callable[[bytes], KeyScope | None]


def _log_scope(prefix: bytes) -> tuple[ScopeOfKey, Callable[[bytes], bytes]]:
    """Return the functions for keys that begin with ``prefix`` and a log ID.

    They return the scope of a key, and the prefix of a key that determines its scope.
    """

    def place(key: bytes) -> KeyScope | None:
        log = key[len(prefix) : len(prefix) + ID_DIGITS]
        return KeyScope(log=log) if _is_id(log) else None

    def span(key: bytes) -> bytes:
        id_prefix = key[: len(prefix) + ID_DIGITS + 1]
        return (
            id_prefix
            if id_prefix.endswith(b"/") and len(id_prefix) == len(prefix) + ID_DIGITS + 1
            else b""
        )

    return place, span


def _reader_scope(key: bytes) -> KeyScope | None:
    """Return the scope of keys like log/ID/KIND/NAME. A user owns those whose name begins with ~user/."""
    parts = key.split(b"/", 4)
    if len(parts) < 2 or not _is_id(parts[1]):
        return None
    if len(parts) < 4:
        return KeyScope(log=parts[1])
    user = parts[3][1:].decode(errors="replace") if parts[3][:1] == b"~" and len(parts) > 4 else ""
    return KeyScope(log=parts[1], user=user)


def _ledger_scope(key: bytes) -> KeyScope | None:
    """Return the scope of keys that end with a ledger ID."""
    ledger = key.rpartition(b"/")[2]
    return KeyScope(ledger=keys.LEDGER_PREFIX + ledger) if _is_id(ledger) else None


def _copy_scope(key: bytes) -> KeyScope | None:
    """Return the scope of keys PREFIX/bookie/ledger ID, and of their prefixes up to the bookie."""
    parts = key.split(b"/")
    if len(parts) != 3 or not parts[1]:
        return None
    if not parts[2]:
        return KeyScope(bookie=parts[1])
    if not _is_id(parts[2]):
        return None
    return KeyScope(ledger=keys.LEDGER_PREFIX + parts[2], bookie=parts[1])


def _bookie_scope(key: bytes) -> KeyScope | None:
    bookie = key.partition(b"/")[2]
    return KeyScope(bookie=bookie) if bookie and b"/" not in bookie else None


def _path_scope(parts_before: int) -> ScopeOfKey:
    """Return the scope function of keys that end with a namespace, a null byte and a log name.

    ``parts_before`` parts precede the namespace. A namespace's own key has no log name.
    """

    def place(key: bytes) -> KeyScope | None:
        try:
            full_name = key.split(b"/", parts_before)[parts_before].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        namespace, _, name = full_name.partition("\0")
        return KeyScope(path=(namespace, name)) if namespace else None

    return place


def _has_length(length: int) -> Callable[[bytes], bool]:
    """Return a check for the exact length of a key, which limits the number of keys of that kind."""
    return lambda key: len(key) == length


def _any_key(key: bytes) -> bool:
    """Accept any key. There is one per bookie that the ledger lists or that an operator uses."""
    return True


def _first_parts(parts: int) -> Callable[[bytes], bytes]:
    """Return a function for the first parts of a key, including the slash after them."""
    return lambda key: b"/".join([*key.split(b"/")[:parts], b""])


def _is_id(digits: bytes) -> bool:
    return len(digits) == ID_DIGITS and not digits.strip(b"0123456789abcdef")


def _rights_for_name_change(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Allow only the ID of a log as value. Otherwise, keys without a log would be authorized by this name."""
    return MANAGE if after is None or (_is_id(after) and after.strip(b"0")) else 0


def _rights_for_state_change(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Return the rights that allow a change of a log's state.

    Its managers, and the bookie that runs retention, may also truncate, seal or delete it. No change may give
    the state the ID of another log, because segments are authorized by that ID.
    """
    all_rights = MANAGE | REPAIR_LEADER
    if after is None:
        return all_rights
    new_state = shapes.read_state(after)
    if key != state_key(new_state.log_id):
        return 0
    if before is None:
        return all_rights
    old_state = shapes.read_state(before)
    is_same_extent = (
        new_state.truncated_to,
        new_state.first_segment,
        new_state.sealed,
        new_state.deleting,
        new_state.name,
        new_state.quorums,
    ) == (
        old_state.truncated_to,
        old_state.first_segment,
        old_state.sealed,
        old_state.deleting,
        old_state.name,
        old_state.quorums,
    )
    return all_rights | WRITE if is_same_extent else all_rights


def _rights_for_move_change(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Return the rights that allow a change of a move request.

    Only the repair leader and operators may create one. If a bookie could create one for itself, a
    compromised bookie could store and read any ledger.

    The target bookie (`OWN`) updates it with heartbeats, and deletes it at the end. The rule also allows this
    to bookies that store the ledger (`REPLICA_HOLDER`).
    """
    is_created = before is None and after is not None
    return (
        REPAIR_LEADER | OPERATOR if is_created else REPLICA_HOLDER | OWN | REPAIR_LEADER | OPERATOR
    )


def _rights_for_cookie_change(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Prevent a change of a cookie's principal.

    Otherwise, another bookie could receive this bookie's keys.
    """
    if after is None:
        return OWN | REPAIR_LEADER | OPERATOR
    is_same_owner = before is None or _owner_of_cookie(key, before) == _owner_of_cookie(key, after)
    return OWN if is_same_owner else 0


def _rights_for_registration(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Only a bookie itself may register its address and its certificate's principal."""
    return OWN | OPERATOR if after is None else OWN


def _rights_for_next_id(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Allow only that the next ID increases, by at most `IDS_PER_STEP_MAX`. No right allows a deletion."""
    if after is None:
        return 0
    next_before = 1 if before is None else ids.decode_next_ledger(before)
    return (
        AUTHENTICATED
        if next_before < ids.decode_next_ledger(after) <= next_before + IDS_PER_STEP_MAX
        else 0
    )


def _rights_for_version(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Allow only that the version of the cluster increases, or that an unreadable one is replaced.

    The replacement is at least the version of this node, the leader, because it may not be lower than the
    unreadable one. No right allows a deletion, or a change of a record of a newer version.
    """
    if after is None:
        return 0
    new = ClusterVersion.decode(after)
    try:
        old = ClusterVersion() if before is None else ClusterVersion.decode(before)
    except CorruptData:
        return ADMIN if new.finalized >= CURRENT else 0
    return ADMIN if new.finalized > old.finalized else 0


def _ledger_of_segment(value: bytes) -> bytes:
    return keys.ledger_key(SegmentRecord.decode(value).ledger_id)


def _log_of_ledger(key: bytes, value: bytes) -> bytes:
    record = shapes.read_ledger(key, value)
    log_id = record.owner[0] if record.owner is not None else record.incarnation
    return b"%016x" % log_id if log_id else b""


def _is_deleting(key: bytes, value: bytes) -> bool:
    return shapes.read_ledger(key, value).state is LedgerState.DELETING


def _stage_of_ledger(key: bytes, value: bytes) -> int:
    return LEDGER_STAGES.index(shapes.read_ledger(key, value).state)


def _stage_of_segment(key: bytes, value: bytes) -> int:
    return int(SegmentRecord.decode(value).closed)


def _bookies_of_ledger(key: bytes, value: bytes) -> tuple[str, ...]:
    return shapes.read_ledger(key, value).bookies()


def _is_closed(key: bytes, value: bytes) -> bool:
    return shapes.read_ledger(key, value).closed


def _owner_of_cookie(key: bytes, value: bytes) -> str:
    """Return the principal in a cookie.

    For an older cookie without one, it is derived from the bookie's name.
    """
    cookie_values = decode_cookie(key, value)
    return cookie_values["principal"] or f"bookie/{cookie_values['label']}"


def _describe_name_change(
    key: bytes, puts: Mapping[bytes, bytes | None], stored_value: bytes | None
) -> tuple[str, str] | None:
    """Describe the deletion or renaming of a log.

    The creation of a log is not an action of an administrator.
    """
    if stored_value is None or puts[key] is not None:
        return None
    old_path = _shown_path(key)
    for other, value in puts.items():
        if value == stored_value and other.startswith(NAME_PREFIX):
            return "rename-log", f"{old_path} {_shown_path(other)}"
    return "delete-log", old_path


def _describe_loss(
    key: bytes, puts: Mapping[bytes, bytes | None], stored_value: bytes | None
) -> tuple[str, str] | None:
    """Describe the declaration of lost entries, or of a ledger's end."""
    value = puts[key]
    if value is None or stored_value is None:
        return None
    try:
        before, after = shapes.read_ledger(key, stored_value), shapes.read_ledger(key, value)
    except (CorruptData, UnsupportedFormat):
        return "replace-record", keys.printable_key(key)
    subject = f"ledger {after.ledger_id}"
    if len(after.lost) > len(before.lost):
        new_losses = [loss for loss in after.lost if loss not in before.lost]
        ranges = ", ".join(f"{loss.first}-{loss.last}" for loss in new_losses[:SHOWN_LOSSES_MAX])
        return "accept-loss", f"{subject} entries {ranges}" + (
            "…" if new_losses[SHOWN_LOSSES_MAX:] else ""
        )
    if "closed_by" in after.custom and not before.closed:
        return "accept-loss", f"{subject} end {after.last_entry}"
    return None


def _describe_version_change(
    key: bytes, puts: Mapping[bytes, bytes | None], stored_value: bytes | None
) -> tuple[str, str] | None:
    """Describe the end of an upgrade. The number of restores is no action of an administrator."""
    value = puts[key]
    if key != CLUSTER_VERSION_KEY or value is None:
        return None
    try:
        return "finalize", f"version {ClusterVersion.decode(value).finalized}"
    except (CorruptData, UnsupportedFormat):
        return "replace-record", keys.printable_key(key)


def _describe_log_change(
    key: bytes, puts: Mapping[bytes, bytes | None], stored_value: bytes | None
) -> tuple[str, str] | None:
    """Describe the deletion of records of a log: by truncation, or with its segments or state."""
    kind, value = key.split(b"/", 3)[2], puts[key]
    if kind == b"segment" and stored_value is not None:
        try:
            if value is None:
                return None  # the line is about the state, which changes in the same transaction
            SegmentRecord.decode(stored_value)
        except (CorruptData, UnsupportedFormat):
            return "replace-record", keys.printable_key(key)
    if kind != b"state" or stored_value is None:
        return None
    if value is None:
        has_name_change = any(other_key.startswith(NAME_PREFIX) for other_key in puts)
        return (
            None if has_name_change else ("delete-log", key.split(b"/")[1].decode(errors="replace"))
        )
    try:
        before, after = shapes.read_state(stored_value), shapes.read_state(value)
    except (CorruptData, UnsupportedFormat):
        return None
    if after.first_segment > before.first_segment and after.deleting:
        return (
            "delete-segments",
            f"{after.name} ({after.log_id:016x}) up to {after.first_segment - 1}",
        )
    if after.truncated_to > before.truncated_to:
        return TRUNCATE, f"{after.name} ({after.log_id:016x})"
    return None


def _describe_as(put_word: str, delete_word: str) -> AuditRule:
    """Return a rule that describes a change by one word each for put and delete.

    The subject is the rest of the key.
    """

    def tell(
        key: bytes, puts: Mapping[bytes, bytes | None], stored_value: bytes | None
    ) -> tuple[str, str] | None:
        word = delete_word if puts[key] is None else put_word
        if not word or (puts[key] is None and stored_value is None):
            return None
        return word, key.partition(b"/")[2].decode(errors="replace")

    return tell


def _shown_path(name_key: bytes) -> str:
    return name_key.removeprefix(NAME_PREFIX).replace(b"\0", b"/", 1).decode(errors="replace")


def _log_class(prefix: bytes, read: int, write: int) -> KeyClass:
    scope, span = _log_scope(prefix)
    return KeyClass(read, write, scope, span)


_LOG_SCOPE, _LOG_SPAN = _log_scope(b"log/")
_SEGMENT_WRITERS = WRITE | REPAIR_LEADER
_READER_KEYS = KeyClass(READ | BOOKIE | OPERATOR, WRITE | OWN, _reader_scope, _LOG_SPAN)
_LEDGER_WRITERS = WRITE | REPLICA_HOLDER | REPAIR_LEADER | OPERATOR
_BOOKIE_OWN_KEYS = KeyClass(
    AUTHENTICATED,
    OWN | REPAIR_LEADER | OPERATOR,
    _bookie_scope,
    repair_rule=shapes.allows_bookie_removal,
)
_WRITER_KEYS = KeyClass(READ | BOOKIE | OPERATOR, WRITE, _LOG_SCOPE, _LOG_SPAN)
_REPAIRED_KEYS = replace(_WRITER_KEYS, write_rights=_SEGMENT_WRITERS)

KEY_CLASSES = KeySpace(
    by_third_part={
        (b"log/", b""): KeyClass(READ | BOOKIE | OPERATOR, 0, _LOG_SCOPE, _LOG_SPAN),
        (b"log/", b"state"): KeyClass(
            READ | BOOKIE | OPERATOR,
            _rights_for_state_change,
            _LOG_SCOPE,
            _LOG_SPAN,
            is_created_once=True,
            repair_rule=shapes.allows_state_change,
            change_rule=records.allows_state_change,
        ),
        (b"log/", b"segment"): replace(
            _REPAIRED_KEYS,
            referenced_ledger=_ledger_of_segment,
            repair_rule=shapes.allows_segment_change,
            change_rule=records.allows_segment_change,
            completion_stage=_stage_of_segment,
        ),
        (b"log/", b"lock"): replace(
            _WRITER_KEYS,
            allows_lease=True,
            is_marker=_has_length(len(b"log/") + ID_DIGITS + len(b"/lock")),
        ),
        (b"log/", b"stamps"): replace(
            _REPAIRED_KEYS,
            repair_rule=shapes.allows_stamps_change,
            change_rule=records.allows_stamps_change,
        ),
        (b"log/", b"txn"): _WRITER_KEYS,
        (b"log/", b"position"): _READER_KEYS,
        (b"log/", b"reader"): replace(_READER_KEYS, allows_lease=True),
        (b"log/", b"work"): _READER_KEYS,
        (b"log/", b"worker"): replace(_READER_KEYS, allows_lease=True),
    },
    by_first_part={
        b"name/": KeyClass(
            ALL_LOG_RIGHTS | BOOKIE | PROXY | OPERATOR,
            _rights_for_name_change,
            _path_scope(1),
            is_created_once=True,
            listing_prefix=lambda start: b"name/",
        ),
        DELETED_PREFIX: KeyClass(
            ALL_LOG_RIGHTS | BOOKIE | PROXY | OPERATOR,
            MANAGE,
            _path_scope(2),
            listing_prefix=_first_parts(2),
        ),
        STAGED_PREFIX: _log_class(STAGED_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENT_WRITERS),
        REPLACED_PREFIX: _log_class(REPLACED_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENT_WRITERS),
        PURGE_PREFIX: replace(
            _log_class(PURGE_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENT_WRITERS),
            is_marker=_has_length(len(PURGE_PREFIX) + ID_DIGITS),
        ),
        # Settings can be changed in a full namespace, because they can free space.
        CONF_PREFIX: replace(
            _log_class(CONF_PREFIX, READ | BOOKIE | OPERATOR, MANAGE),
            filters_by_key=True,
            is_marker=_has_length(len(CONF_PREFIX) + ID_DIGITS),
        ),
        BIND_PREFIX: KeyClass(
            AUTHENTICATED, MANAGE, _path_scope(1), is_marker=lambda key: b"\0" not in key
        ),
        keys.LEDGER_PREFIX: KeyClass(
            READ | BOOKIE | OPERATOR,
            _LEDGER_WRITERS,
            _ledger_scope,
            repair_rule=shapes.allows_ledger_change,
            change_rule=records.allows_ledger_change,
            completion_stage=_stage_of_ledger,
        ),
        keys.MISSING_RANGES_PREFIX: KeyClass(
            READ | INTERNAL_READERS,
            _LEDGER_WRITERS,
            _ledger_scope,
            is_marker=_has_length(len(keys.MISSING_RANGES_PREFIX) + ID_DIGITS),
        ),
        keys.ON_PREFIX: KeyClass(
            INTERNAL_READERS | WRITE,
            _LEDGER_WRITERS,
            _copy_scope,
            is_marker=_any_key,
            change_rule=shapes.allows_index_change,
        ),
        keys.DELETE_PREFIX: KeyClass(
            INTERNAL_READERS | WRITE,
            _LEDGER_WRITERS | OWN,
            _copy_scope,
            is_marker=_any_key,
            change_rule=shapes.allows_index_change,
        ),
        keys.MOVE_PREFIX: KeyClass(
            INTERNAL_READERS, _rights_for_move_change, _copy_scope, is_marker=_any_key
        ),
        keys.BOOKIE_PREFIX: KeyClass(
            AUTHENTICATED, _rights_for_registration, _bookie_scope, allows_lease=True
        ),
        keys.COOKIE_PREFIX: KeyClass(
            AUTHENTICATED,
            _rights_for_cookie_change,
            _bookie_scope,
            repair_rule=shapes.allows_bookie_removal,
        ),
        b"seen/": _BOOKIE_OWN_KEYS,
        keys.LEAVING_PREFIX: _BOOKIE_OWN_KEYS,
        keys.SCRUB_PREFIX: replace(_BOOKIE_OWN_KEYS, repair_rule=None),
        PROXIES: KeyClass(AUTHENTICATED, PROXY, lambda key: NO_SCOPE, allows_lease=True),
        REVOKED_PREFIX[: REVOKED_PREFIX.find(b"/") + 1]: KeyClass(
            BOOKIE | PROXY | ADMIN | OPERATOR, 0
        ),
        AUDIT_PREFIX: KeyClass(ADMIN | OPERATOR, 0),
        b"secret/": KeyClass(0, 0),
    },
    single_keys={
        b"\0": KeyClass(AUTHENTICATED, 0),
        PROBE_KEY: KeyClass(AUTHENTICATED, 0),
        keys.NEXT_LEDGER: KeyClass(AUTHENTICATED, _rights_for_next_id, is_created_once=True),
        keys.PLACEMENT: KeyClass(AUTHENTICATED, OPERATOR),
        REPAIR_SETTINGS: KeyClass(AUTHENTICATED, OPERATOR),
        CLOCK_KEY: KeyClass(AUTHENTICATED, REPAIR_LEADER),
        RESTORES: KeyClass(AUTHENTICATED, OPERATOR),
        CLUSTER_VERSION_KEY: KeyClass(AUTHENTICATED, _rights_for_version),
        HOLD: KeyClass(AUTHENTICATED, OPERATOR),
        ELECTION_KEY: KeyClass(AUTHENTICATED, BOOKIE, lease_protected=True, allows_lease=True),
        MODE_KEY: KeyClass(EVERYBODY, 0),
    },
    repair_leader_key=ELECTION_KEY,
    clock_key=CLOCK_KEY,
    clock_ms=decode_clock,
    clock_step_ms=STEP_MAX_MS,
    log_of_ledger=_log_of_ledger,
    is_deleting=_is_deleting,
    bookies_of_ledger=_bookies_of_ledger,
    is_closed=_is_closed,
    owner_of_cookie=_owner_of_cookie,
    repeated_actions=frozenset({TRUNCATE}),
    audit_rules={
        NAME_PREFIX: _describe_name_change,
        keys.LEDGER_PREFIX: _describe_loss,
        b"log/": _describe_log_change,
        keys.LEAVING_PREFIX: _describe_as("decommission", "recommission"),
        keys.COOKIE_PREFIX: _describe_as("", "forget-bookie"),
        b"conf/": _describe_as("set", "unset"),
        b"gc/": _describe_as("hold-deletions", "resume-deletions"),
        b"cluster/": _describe_version_change,
    },
)
assert ACL_PREFIX in KEY_CLASSES.by_first_part, "the keys of grants are in the table, too"
