"""Every kind of key that the tree puts into the metadata store, and who may read and write it.

One table, and what is not in it is denied (`metadata/auth/key_space.py`); a test makes a key of each kind
that the code can make and finds it here. What hangs on a log goes by the rights on its path; a ledger's keys
by those on the log that its record was made for. Bookies change the records of ledgers that they hold or are
to hold, and the one that repairs (`replication_worker.py`) those of all, and the logs' where segments go: in
the shapes of `bookie_change_rules.py`. An operator sees all
keys of the store but secrets, and no record of any log.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ledger.model import ledger_ids as ids
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerState
from ...log.model.deleted_log import GONE_PREFIX
from ...log.model.log_keys import PURGE_PREFIX, RETIRED_PREFIX, UNLINKED_PREFIX, state_key
from ...log.model.segment_expiry import CLOCK_KEY, STEP_MAX_MS, decode_clock
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import BIND_PREFIX, CONF_PREFIX
from ...metadata.auth.key_space import NOWHERE, KeyClass, KeyScope, KeySpace, Told
from ...metadata.model.acl_records import AUDIT_PREFIX, ENDED_PREFIX, MODE_KEY, TRUST_PREFIX
from ...metadata.model.rights import (
    ADMIN,
    ANY_OF_A_LOG,
    BOOKIE,
    EVERYBODY,
    HOLDER,
    JANITOR,
    KNOWN,
    MANAGE,
    OPERATOR,
    OWN,
    PROXY,
    READ,
    WRITE,
)
from ...proxy.membership.proxy_registration import PREFIX as PROXIES
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import HOLD, RESTORES
from ..repair.auditor_election import ELECTION_KEY
from . import bookie_change_rules as shapes
from . import record_change_rules as records

SEES = BOOKIE | PROXY | OPERATOR
"""Of what tells no record: nodes go by it, operators look after it."""
NAMES = b"name/"
ID_DIGITS = 16
IDS_AT_ONCE = 1_000_000
"""``next/ledger`` moves no further in one step: it is never to reach its end."""

LOSSES_SHOWN = 5
"""Ranges of entries in a line of the audit."""
TRUNCATE = "truncate"

STAGES = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED, LedgerState.DELETING)

Where = Callable[[bytes], KeyScope | None]


def _of_log(before: bytes) -> tuple[Where, Callable[[bytes], bytes]]:
    """Keys PREFIX log id, and more: their place, and how far a key must go to say it."""

    def place(key: bytes) -> KeyScope | None:
        log = key[len(before) : len(before) + ID_DIGITS]
        return KeyScope(log=log) if _is_id(log) else None

    def span(key: bytes) -> bytes:
        whole = key[: len(before) + ID_DIGITS + 1]
        return whole if whole.endswith(b"/") and len(whole) == len(before) + ID_DIGITS + 1 else b""

    return place, span


def _of_reader(key: bytes) -> KeyScope | None:
    """Positions and their like: log/ID/KIND/NAME, a user's own where the name begins with ~user/."""
    parts = key.split(b"/", 4)
    if len(parts) < 2 or not _is_id(parts[1]):
        return None
    if len(parts) < 4:
        return KeyScope(log=parts[1])
    own = parts[3][1:].decode(errors="replace") if parts[3][:1] == b"~" and len(parts) > 4 else ""
    return KeyScope(log=parts[1], user=own)


def _of_ledger(key: bytes) -> KeyScope | None:
    """…/ledger id."""
    ledger = key.rpartition(b"/")[2]
    return KeyScope(ledger=keys.LEDGER_PREFIX + ledger) if _is_id(ledger) else None


def _of_copy(key: bytes) -> KeyScope | None:
    """PREFIX bookie / ledger id, or as far as the bookie goes."""
    parts = key.split(b"/")
    if len(parts) != 3 or not parts[1]:
        return None
    if not parts[2]:
        return KeyScope(bookie=parts[1])
    if not _is_id(parts[2]):
        return None
    return KeyScope(ledger=keys.LEDGER_PREFIX + parts[2], bookie=parts[1])


def _of_bookie(key: bytes) -> KeyScope | None:
    bookie = key.partition(b"/")[2]
    return KeyScope(bookie=bookie) if bookie and b"/" not in bookie else None


def _of_path(parts_before: int) -> Where:
    """… namespace 00 log name, after so many parts. In a namespace's own key there is no log name."""

    def place(key: bytes) -> KeyScope | None:
        try:
            whole = key.split(b"/", parts_before)[parts_before].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        namespace, _, name = whole.partition("\0")
        return KeyScope(path=(namespace, name)) if namespace else None

    return place


def _exactly(length: int) -> Callable[[bytes], bool]:
    """No more than what a key of that kind is made of: else there is no bound of them."""
    return lambda key: len(key) == length


def _any(key: bytes) -> bool:
    """One for each bookie that the ledger names (`bookie_changes.mirrors`), or that an operator knows."""
    return True


def _upto(parts: int) -> Callable[[bytes], bytes]:
    """So many parts of a key, with the slash after them."""
    return lambda key: b"/".join([*key.split(b"/")[:parts], b""])


def _is_id(digits: bytes) -> bool:
    return len(digits) == ID_DIGITS and not digits.strip(b"0123456789abcdef")


def _change_of_name(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """The id of a log, and nothing else: what hangs on no log would go by the rights on this name."""
    return MANAGE if after is None or (_is_id(after) and after.strip(b"0")) else 0


def _change_of_state(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Who may move a log's beginning, seal it, delete it: its managers; and whoever runs its retention.

    Nobody makes it another log's, whose segments would go by what it says.
    """
    most = MANAGE | JANITOR
    if after is None:
        return most
    now = shapes.read_state(after)
    if key != state_key(now.log_id):
        return 0
    if before is None:
        return most
    was = shapes.read_state(before)
    same = (
        (now.truncated_to, now.first_segment, now.sealed, now.deleting, now.name, now.quorums)
        == (was.truncated_to, was.first_segment, was.sealed, was.deleting, was.name, was.quorums)
    )  # fmt: skip
    return most | WRITE if same else most


def _change_of_move(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Who takes a place is told so by the one who repairs; it says that it is at it, and that it is done.

    A bookie that could tell itself would hold whatever it names, and so read it (the threat of a stolen one).
    """
    made = before is None and after is not None
    return JANITOR | OPERATOR if made else HOLDER | OWN | JANITOR | OPERATOR


def _change_of_cookie(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Whose it is, it stays: who could put its own name there would be given that bookie's keys."""
    if after is None:
        return OWN | JANITOR | OPERATOR
    same = before is None or _owner_of_cookie(key, before) == _owner_of_cookie(key, after)
    return OWN if same else 0


def _told_by_itself(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Where a bookie is, and whose certificate is shown there: nobody says that for another one."""
    return OWN | OPERATOR if after is None else OWN


def _next_ids(key: bytes, before: bytes | None, after: bytes | None) -> int:
    """Taking some: upwards, and not all that there are."""
    if after is None:
        return 0
    was = 1 if before is None else ids.next_of(before)
    return KNOWN if was < ids.next_of(after) <= was + IDS_AT_ONCE else 0


def _ledger_of_segment(value: bytes) -> bytes:
    return keys.ledger_key(SegmentRecord.decode(value).ledger_id)


def _log_of_ledger(key: bytes, value: bytes) -> bytes:
    record = shapes.read_ledger(key, value)
    log_id = record.owner[0] if record.owner is not None else record.incarnation
    return b"%016x" % log_id if log_id else b""


def _is_deleting(key: bytes, value: bytes) -> bool:
    return shapes.read_ledger(key, value).state is LedgerState.DELETING


def _stage_of_ledger(key: bytes, value: bytes) -> int:
    return STAGES.index(shapes.read_ledger(key, value).state)


def _stage_of_segment(key: bytes, value: bytes) -> int:
    return int(SegmentRecord.decode(value).closed)


def _bookies_of_ledger(key: bytes, value: bytes) -> tuple[str, ...]:
    return shapes.read_ledger(key, value).bookies()


def _is_closed(key: bytes, value: bytes) -> bool:
    return shapes.read_ledger(key, value).closed


def _owner_of_cookie(key: bytes, value: bytes) -> str:
    """Of one of before that names no certificate: whom the bookie was called when it was new."""
    said = decode_cookie(key, value)
    return said["principal"] or f"bookie/{said['label']}"


def _tell_name(
    key: bytes, puts: Mapping[bytes, bytes | None], now: bytes | None
) -> tuple[str, str] | None:
    """A log goes, or gets another name; that one is made is no act of an admin."""
    if now is None or puts[key] is not None:
        return None
    was = _shown_path(key)
    for other, value in puts.items():
        if value == now and other.startswith(NAMES):
            return "rename-log", f"{was} {_shown_path(other)}"
    return "delete-log", was


def _tell_loss(
    key: bytes, puts: Mapping[bytes, bytes | None], now: bytes | None
) -> tuple[str, str] | None:
    """Entries of a ledger are declared lost, or its end is declared."""
    value = puts[key]
    if value is None or now is None:
        return None
    try:
        before, after = shapes.read_ledger(key, now), shapes.read_ledger(key, value)
    except (CorruptData, UnsupportedFormat):
        return "replace-record", keys.shown(key)
    of = f"ledger {after.ledger_id}"
    if len(after.lost) > len(before.lost):
        lost = [one for one in after.lost if one not in before.lost]
        ranges = ", ".join(f"{one.first}-{one.last}" for one in lost[:LOSSES_SHOWN])
        return "accept-loss", f"{of} entries {ranges}" + ("…" if lost[LOSSES_SHOWN:] else "")
    if "closed_by" in after.custom and not before.closed:
        return "accept-loss", f"{of} end {after.last_entry}"
    return None


def _tell_log(
    key: bytes, puts: Mapping[bytes, bytes | None], now: bytes | None
) -> tuple[str, str] | None:
    """Records of a log are deleted: by a truncation, or with its segments or its state."""
    kind, value = key.split(b"/", 3)[2], puts[key]
    if kind == b"segment" and now is not None:
        try:
            if value is None:
                return None  # the line is about the state, which changes in the same transaction
            SegmentRecord.decode(now)
        except (CorruptData, UnsupportedFormat):
            return "replace-record", keys.shown(key)
    if kind != b"state" or now is None:
        return None
    if value is None:
        named = any(one.startswith(NAMES) for one in puts)
        return None if named else ("delete-log", key.split(b"/")[1].decode(errors="replace"))
    try:
        before, after = shapes.read_state(now), shapes.read_state(value)
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


def _tell(put: str, deleted: str) -> Told:
    """One word for each; the subject is the rest of the key."""

    def tell(
        key: bytes, puts: Mapping[bytes, bytes | None], now: bytes | None
    ) -> tuple[str, str] | None:
        word = deleted if puts[key] is None else put
        if not word or (puts[key] is None and now is None):
            return None
        return word, key.partition(b"/")[2].decode(errors="replace")

    return tell


def _shown_path(name_key: bytes) -> str:
    return name_key.removeprefix(NAMES).replace(b"\0", b"/", 1).decode(errors="replace")


def _log_class(prefix: bytes, read: int, write: int) -> KeyClass:
    place, span = _of_log(prefix)
    return KeyClass(read, write, place, span)


_LOG, _LOG_SPAN = _of_log(b"log/")
_SEGMENTS = WRITE | JANITOR
_READERS = KeyClass(READ | BOOKIE | OPERATOR, WRITE | OWN, _of_reader, _LOG_SPAN)
_OF_LEDGER = WRITE | HOLDER | JANITOR | OPERATOR
_BOOKIES_OWN = KeyClass(KNOWN, OWN | JANITOR | OPERATOR, _of_bookie, shape=shapes.of_farewell)
_WRITERS = KeyClass(READ | BOOKIE | OPERATOR, WRITE, _LOG, _LOG_SPAN)
_REPAIRED = replace(_WRITERS, write=_SEGMENTS)

KEY_CLASSES = KeySpace(
    by_third={
        (b"log/", b""): KeyClass(READ | BOOKIE | OPERATOR, 0, _LOG, _LOG_SPAN),
        (b"log/", b"state"): KeyClass(
            READ | BOOKIE | OPERATOR,
            _change_of_state,
            _LOG,
            _LOG_SPAN,
            lasting=True,
            shape=shapes.of_state,
            form=records.of_state,
        ),
        (b"log/", b"segment"): replace(
            _REPAIRED,
            ledger_in=_ledger_of_segment,
            shape=shapes.of_segment,
            form=records.of_segment,
            stage=_stage_of_segment,
        ),
        (b"log/", b"lock"): replace(
            _WRITERS, leased=True, note=_exactly(len(b"log/") + ID_DIGITS + len(b"/lock"))
        ),
        (b"log/", b"stamps"): replace(_REPAIRED, shape=shapes.of_stamps, form=records.of_stamps),
        (b"log/", b"txn"): _WRITERS,
        (b"log/", b"position"): _READERS,
        (b"log/", b"reader"): replace(_READERS, leased=True),
        (b"log/", b"work"): _READERS,
        (b"log/", b"worker"): replace(_READERS, leased=True),
    },
    by_first={
        b"name/": KeyClass(
            ANY_OF_A_LOG | BOOKIE | PROXY | OPERATOR,
            _change_of_name,
            _of_path(1),
            lasting=True,
            listed=lambda start: b"name/",
        ),
        GONE_PREFIX: KeyClass(
            ANY_OF_A_LOG | BOOKIE | PROXY | OPERATOR,
            MANAGE,
            _of_path(2),
            listed=_upto(2),
        ),
        UNLINKED_PREFIX: _log_class(UNLINKED_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENTS),
        RETIRED_PREFIX: _log_class(RETIRED_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENTS),
        PURGE_PREFIX: replace(
            _log_class(PURGE_PREFIX, READ | BOOKIE | OPERATOR, _SEGMENTS),
            note=_exactly(len(PURGE_PREFIX) + ID_DIGITS),
        ),
        # A full namespace is emptied by settings, too.
        CONF_PREFIX: replace(
            _log_class(CONF_PREFIX, READ | BOOKIE | OPERATOR, MANAGE),
            each=True,
            note=_exactly(len(CONF_PREFIX) + ID_DIGITS),
        ),
        BIND_PREFIX: KeyClass(KNOWN, MANAGE, _of_path(1), note=lambda key: b"\0" not in key),
        keys.LEDGER_PREFIX: KeyClass(
            READ | BOOKIE | OPERATOR,
            _OF_LEDGER,
            _of_ledger,
            shape=shapes.of_ledger,
            form=records.of_ledger,
            stage=_stage_of_ledger,
        ),
        keys.UNDER_PREFIX: KeyClass(
            READ | SEES, _OF_LEDGER, _of_ledger, note=_exactly(len(keys.UNDER_PREFIX) + ID_DIGITS)
        ),
        keys.ON_PREFIX: KeyClass(
            SEES | WRITE, _OF_LEDGER, _of_copy, note=_any, form=shapes.mirrors
        ),
        keys.DELETE_PREFIX: KeyClass(
            SEES | WRITE, _OF_LEDGER | OWN, _of_copy, note=_any, form=shapes.mirrors
        ),
        keys.MOVE_PREFIX: KeyClass(SEES, _change_of_move, _of_copy, note=_any),
        keys.BOOKIE_PREFIX: KeyClass(KNOWN, _told_by_itself, _of_bookie, leased=True),
        keys.COOKIE_PREFIX: KeyClass(
            KNOWN, _change_of_cookie, _of_bookie, shape=shapes.of_farewell
        ),
        b"seen/": _BOOKIES_OWN,
        keys.LEAVING_PREFIX: _BOOKIES_OWN,
        keys.SCRUB_PREFIX: replace(_BOOKIES_OWN, shape=None),
        PROXIES: KeyClass(KNOWN, PROXY, lambda key: NOWHERE, leased=True),
        ENDED_PREFIX[: ENDED_PREFIX.find(b"/") + 1]: KeyClass(BOOKIE | PROXY | ADMIN | OPERATOR, 0),
        AUDIT_PREFIX: KeyClass(ADMIN | OPERATOR, 0),
        b"secret/": KeyClass(0, 0),
    },
    whole={
        b"\0": KeyClass(KNOWN, 0),
        b"cluster": KeyClass(KNOWN, 0),
        keys.NEXT_LEDGER: KeyClass(KNOWN, _next_ids, lasting=True),
        keys.PLACEMENT: KeyClass(KNOWN, OPERATOR),
        CLOCK_KEY: KeyClass(KNOWN, JANITOR),
        RESTORES: KeyClass(KNOWN, OPERATOR),
        HOLD: KeyClass(KNOWN, OPERATOR),
        ELECTION_KEY: KeyClass(KNOWN, BOOKIE, held=True, leased=True),
        MODE_KEY: KeyClass(EVERYBODY, 0),
    },
    janitor=ELECTION_KEY,
    clock=CLOCK_KEY,
    clock_ms=decode_clock,
    clock_step_ms=STEP_MAX_MS,
    log_of_ledger=_log_of_ledger,
    is_deleting=_is_deleting,
    bookies_of_ledger=_bookies_of_ledger,
    is_closed=_is_closed,
    owner_of_cookie=_owner_of_cookie,
    often=frozenset({TRUNCATE}),
    told={
        NAMES: _tell_name,
        keys.LEDGER_PREFIX: _tell_loss,
        b"log/": _tell_log,
        keys.LEAVING_PREFIX: _tell("decommission", "recommission"),
        keys.COOKIE_PREFIX: _tell("", "forget-bookie"),
        b"conf/": _tell("set", "unset"),
        b"gc/": _tell("hold-deletions", "resume-deletions"),
    },
)
assert TRUST_PREFIX in KEY_CLASSES.by_first, "who may do what is in the table like all else"
