"""The keys of logs in the metadata store (pure). Everything but the name goes by log id (H30).

name/<namespace path> 00 <log name>     -> log id
log/<id>/state                          -> LogState (log_state.py), at most 1 KiB
log/<id>/segment/<number, 16 hex>       -> SegmentRecord (segment_record.py)
log/<id>/lock                           -> LockRecord (lock_record.py), under its process's lease
log/<id>/position/<name>                -> PositionRecord (named_positions.py): where a subscriber goes on
log/<id>/reader/<name>                 -> LockRecord: who subscribes by this name, under its process's lease
log/<id>/work/<name>                   -> WorkState (work_state.py): how far a work queue is handled, and by
whom log/<id>/worker/<name>/<16 hex>        -> LockRecord: a process that works on it, under its lease
log/<id>/txn/<application>              -> AppVersion (app_versions.py): what it linked last
loose/<log id>/<ledger id>              -> UnlinkedLedger (staged_ledgers.py): made for the log, not linked
yet gone/<bucket>/<namespace path> 00 <name> -> Tombstones (deleted_log.py): where deleted logs of this name
ended purge/<log id>                          -> nothing: segments before the truncation point may be there
"""

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import CorruptData, InvalidRequest

ID_DIGITS = 16
KEY_PREVIEW_BYTES = 100
LOG_ID_BITS = 63
"""Ids are drawn at random; the transaction that creates a log refuses one that is taken."""


def name_key(namespace: str, name: str) -> bytes:
    """The key whose value is the id of the log of this name."""
    return b"name/" + namespace.encode() + b"\x00" + name.encode()


def log_name_in_key(namespace: str, key: bytes) -> str:
    """The log name in a key that `name_key` made. Raises `CorruptData`."""
    try:
        return key[len(name_key(namespace, "")) :].decode()
    except UnicodeDecodeError:
        raise CorruptData(f"{key[:KEY_PREVIEW_BYTES]!r} is no key of a log's name") from None


def state_key(log_id: int) -> bytes:
    """The one key that says who owns a log and how far it goes."""
    return b"log/%016x/state" % log_id


def segment_key(log_id: int, segment: int) -> bytes:
    """One segment of a log. Keys of a log sort as its segments do."""
    return b"log/%016x/segment/%016x" % (log_id, segment)


def lock_key(log_id: int) -> bytes:
    """The courtesy lock of a log's writer."""
    return b"log/%016x/lock" % log_id


def encode_log_id(log_id: int) -> bytes:
    """The value of a name's key."""
    return b"%016x" % log_id


def decode_log_id(value: bytes) -> int:
    """What `encode_log_id` wrote. Raises `CorruptData`."""
    return _parse_id(value, value)


def incarnation_text(log_id: int) -> str:
    """A log's id as users see it: 16 hex digits. A log that is deleted and made again has another."""
    return f"{log_id:016x}"


def incarnation_id(text: str) -> int:
    """What `incarnation_text` wrote. Raises `InvalidRequest`."""
    try:
        return int(text, 16)
    except (TypeError, ValueError):
        raise InvalidRequest(f"an incarnation is 16 hex digits, not {quoted(text)}") from None


def position_key(log_id: int, name: str) -> bytes:
    """Where one subscriber of a log goes on."""
    return b"log/%016x/position/" % log_id + name.encode()


def subscriber_key(log_id: int, name: str) -> bytes:
    """Who goes on at the position of this name, alone."""
    return b"log/%016x/reader/" % log_id + name.encode()


def work_key(log_id: int, name: str) -> bytes:
    """How far a work queue of a log is handled."""
    return b"log/%016x/work/" % log_id + name.encode()


def worker_key(log_id: int, name: str, worker: int) -> bytes:
    """A process that works on a queue, while it lives."""
    return workers_prefix(log_id, name) + b"%016x" % worker


def workers_prefix(log_id: int, name: str) -> bytes:
    """Those that work on a queue; also on queues whose names begin with this one and a slash."""
    return all_workers_prefix(log_id) + name.encode() + b"/"


def all_workers_prefix(log_id: int) -> bytes:
    """The processes that work on any queue of a log."""
    return b"log/%016x/worker/" % log_id


def app_version_key(log_id: int, app: str) -> bytes:
    """What one application has linked last."""
    return b"log/%016x/txn/" % log_id + app.encode()


STAGED_PREFIX = b"loose/"


def parse_staged_key(key: bytes) -> tuple[int, int]:
    """The log id and the ledger id in a ``loose/`` key. Raises `CorruptData`."""
    parts = key.split(b"/")
    if len(parts) != 3:
        raise CorruptData(f"{key[:KEY_PREVIEW_BYTES]!r} does not name a log and a ledger")
    return _parse_id(parts[1], key), _parse_id(parts[2], key)


def staged_ledger_key(log_id: int, ledger_id: int) -> bytes:
    """A ledger that was made for a log and is not linked."""
    return b"loose/%016x/%016x" % (log_id, ledger_id)


def staged_ledgers_prefix(log_id: int) -> bytes:
    """All ledgers that were made for a log and are not linked."""
    return b"loose/%016x/" % log_id


REPLACED_PREFIX = b"retired/"


def replaced_ledger_key(log_id: int, ledger_id: int) -> bytes:
    """A ledger of a log whose segments lie elsewhere since they were merged."""
    return b"retired/%016x/%016x" % (log_id, ledger_id)


def replaced_ledgers_prefix(log_id: int) -> bytes:
    """All that merges have left of a log."""
    return b"retired/%016x/" % log_id


def parse_replaced_key(key: bytes) -> tuple[int, int]:
    """The log id and the ledger id in a ``retired/`` key. Raises `CorruptData`."""
    return parse_staged_key(key)


PURGE_PREFIX = b"purge/"


def purge_key(log_id: int) -> bytes:
    """A log that was truncated: whole segments before the point may be there still."""
    return b"purge/%016x" % log_id


def parse_purge_key(key: bytes) -> int:
    """The log id that ends a ``purge/`` key. Raises `CorruptData`."""
    return _parse_id(key.removeprefix(PURGE_PREFIX), key)


def _parse_id(digits: bytes, whole: bytes) -> int:
    # Nothing but digits: `int` takes blanks, signs and underscores too.
    if len(digits) != ID_DIGITS or digits.strip(b"0123456789abcdef"):
        raise CorruptData(f"{whole[:KEY_PREVIEW_BYTES]!r}: an id has {ID_DIGITS} hex digits")
    return int(digits, 16)
