"""The keys of logs in the metadata store (pure). Everything but the name goes by log id (H30, H40).

name/<namespace path> 00 <log name>     -> log id
log/<id>/state                          -> LogState (state.py), at most 1 KiB
log/<id>/segment/<number, 16 hex>       -> SegmentRecord (segments.py)
log/<id>/lock                           -> LockRecord (lock.py), under the owner's lease
"""

from ..runtime.errors import CorruptData

LOG_ID_BITS = 63
"""Ids are drawn at random; the transaction that creates a log refuses one that is taken."""


def name_key(namespace: str, name: str) -> bytes:
    """The key whose value is the id of the log of this name."""
    return b"name/" + namespace.encode() + b"\x00" + name.encode()


def name_of(namespace: str, key: bytes) -> str:
    """The log name in a key that `name_key` made."""
    return key[len(name_key(namespace, "")) :].decode()


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
    try:
        return int(value, 16)
    except ValueError:
        raise CorruptData(f"the id of a log is not a number: {value[:40]!r}") from None
