"""The keys of logs in the metadata store (pure). All but the first contain the log ID, not the name (H30).

name/<namespace path> 00 <log name>  -> log ID
log/<id>/state                       -> LogState (log_state.py), at most 1 KiB
log/<id>/segment/<number, 16 hex>    -> SegmentRecord (segment_record.py)
log/<id>/lock                        -> LockRecord (lock_record.py), under its process's lease
log/<id>/position/<name>             -> PositionRecord (named_positions.py): where a subscriber continues
log/<id>/reader/<name>               -> LockRecord: the current subscriber, under its process's lease
log/<id>/work/<name>                 -> WorkState (work_state.py): progress and claims of a work queue
log/<id>/worker/<name>/<16 hex>      -> LockRecord: a process that works on it, under its lease
log/<id>/txn/<application>           -> AppVersion (app_versions.py): the application's last linked
version
loose/<log id>/<ledger id>           -> UnlinkedLedger (staged_ledgers.py): a ledger for the log, not
linked
retired/<log id>/<ledger id>         -> a ledger that a merge has replaced (replaced_ledgers.py)
gone/<bucket>/<namespace path> 00 <name> -> deleted-log records of this name (deleted_log.py)
purge/<log id>                       -> empty: segments before the truncation point may still exist
"""

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import CorruptData, InvalidRequest

ID_DIGITS = 16
KEY_PREVIEW_BYTES = 100
LOG_ID_BITS = 63
"""Log IDs are random. The transaction that creates a log fails if its ID is already in use."""


def name_key(namespace: str, name: str) -> bytes:
    """Return the key whose value is the ID of the log of this name."""
    return b"name/" + namespace.encode() + b"\x00" + name.encode()


def log_name_in_key(namespace: str, key: bytes) -> str:
    """Return the log name in a result of `name_key`.

    Raises:
        CorruptData: The name is not valid UTF-8.
    """
    try:
        return key[len(name_key(namespace, "")) :].decode()
    except UnicodeDecodeError:
        raise CorruptData(f"{key[:KEY_PREVIEW_BYTES]!r} is not the key of a log's name") from None


def state_key(log_id: int) -> bytes:
    """Return the key of a log's state."""
    return b"log/%016x/state" % log_id


def segment_key(log_id: int, segment: int) -> bytes:
    """Return the key of a segment of a log. The keys of a log sort in the order of its segments."""
    return b"log/%016x/segment/%016x" % (log_id, segment)


def lock_key(log_id: int) -> bytes:
    """Return the key of the advisory lock of a log."""
    return b"log/%016x/lock" % log_id


def encode_log_id(log_id: int) -> bytes:
    """Return the value of a name's key."""
    return b"%016x" % log_id


def decode_log_id(value: bytes) -> int:
    """Return the log ID in a result of `encode_log_id`.

    Raises:
        CorruptData: The value is not a log ID.
    """
    return _parse_id(value, value)


def incarnation_text(log_id: int) -> str:
    """Return a log's ID as users see it, 16 hex digits.

    A log that is deleted and created again has another one.
    """
    return f"{log_id:016x}"


def incarnation_id(text: str) -> int:
    """Return the log ID in a result of `incarnation_text`.

    Raises:
        InvalidRequest: The text is not a hexadecimal number.
    """
    try:
        return int(text, 16)
    except (TypeError, ValueError):
        raise InvalidRequest(f"an incarnation must be 16 hex digits, not {quoted(text)}") from None


def position_key(log_id: int, name: str) -> bytes:
    """Return the key of a named position."""
    return b"log/%016x/position/" % log_id + name.encode()


def subscriber_key(log_id: int, name: str) -> bytes:
    """Return the key of the current owner of a named position."""
    return b"log/%016x/reader/" % log_id + name.encode()


def work_key(log_id: int, name: str) -> bytes:
    """Return the key of the state of a work queue."""
    return b"log/%016x/work/" % log_id + name.encode()


def worker_key(log_id: int, name: str, worker: int) -> bytes:
    """Return the key of a worker of a queue, which exists as long as the worker is alive."""
    return workers_prefix(log_id, name) + b"%016x" % worker


def workers_prefix(log_id: int, name: str) -> bytes:
    """Return the prefix of the workers of a queue.

    It also matches the workers of queues whose names begin with this name and a slash.
    """
    return all_workers_prefix(log_id) + name.encode() + b"/"


def all_workers_prefix(log_id: int) -> bytes:
    """Return the prefix of the workers of all queues of a log."""
    return b"log/%016x/worker/" % log_id


def app_version_key(log_id: int, app: str) -> bytes:
    """Return the key of the last version that an application has linked."""
    return b"log/%016x/txn/" % log_id + app.encode()


STAGED_PREFIX = b"loose/"


def parse_staged_key(key: bytes) -> tuple[int, int]:
    """Return the log ID and the ledger ID in a ``loose/`` key.

    Raises:
        CorruptData: The key does not contain both.
    """
    parts = key.split(b"/")
    if len(parts) != 3:
        raise CorruptData(f"{key[:KEY_PREVIEW_BYTES]!r} does not name a log and a ledger")
    return _parse_id(parts[1], key), _parse_id(parts[2], key)


def staged_ledger_key(log_id: int, ledger_id: int) -> bytes:
    """Return the key of a staged ledger of a log."""
    return b"loose/%016x/%016x" % (log_id, ledger_id)


def staged_ledgers_prefix(log_id: int) -> bytes:
    """Return the prefix of all staged ledgers of a log."""
    return b"loose/%016x/" % log_id


REPLACED_PREFIX = b"retired/"


def replaced_ledger_key(log_id: int, ledger_id: int) -> bytes:
    """Return the key of a ledger of a log that a merge has replaced."""
    return b"retired/%016x/%016x" % (log_id, ledger_id)


def replaced_ledgers_prefix(log_id: int) -> bytes:
    """Return the prefix of all ledgers of a log that merges have replaced."""
    return b"retired/%016x/" % log_id


def parse_replaced_key(key: bytes) -> tuple[int, int]:
    """Return the log ID and the ledger ID in a ``retired/`` key.

    Raises:
        CorruptData: The key does not contain both.
    """
    return parse_staged_key(key)


PURGE_PREFIX = b"purge/"


def purge_key(log_id: int) -> bytes:
    """Return the key of a truncated log, of which complete segments before the point may still exist."""
    return b"purge/%016x" % log_id


def parse_purge_key(key: bytes) -> int:
    """Return the log ID in a ``purge/`` key.

    Raises:
        CorruptData: The key does not contain a log ID.
    """
    return _parse_id(key.removeprefix(PURGE_PREFIX), key)


def _parse_id(digits: bytes, whole: bytes) -> int:
    # Check the digits, because `int` also accepts blanks, signs and underscores.
    if len(digits) != ID_DIGITS or digits.strip(b"0123456789abcdef"):
        raise CorruptData(f"{whole[:KEY_PREVIEW_BYTES]!r}: an id has {ID_DIGITS} hex digits")
    return int(digits, 16)
