"""The keys of logs in the metadata store (pure). Everything but the name goes by log id (H30, H40).

    name/<namespace path> 00 <log name>     -> log id
    log/<id>/state                          -> LogState (state.py), at most 1 KiB
    log/<id>/segment/<number, 16 hex>       -> SegmentRecord (segments.py)
    log/<id>/lock                           -> LockRecord (lock.py), under the owner's lease
"""

LOG_ID_BYTES = 8


def name_key(namespace: str, name: str) -> bytes:
    """The key whose value is the id of the log of this name."""
    return b"name/" + namespace.encode() + b"\x00" + name.encode()


def name_of(namespace: str, key: bytes) -> str:
    """The log name in a key that `name_key` made."""
    return key[len(name_key(namespace, "")) :].decode()


def state_key(log_id: str) -> bytes:
    """The one key that says who owns a log and how far it goes."""
    return b"log/%s/state" % log_id.encode()


def segment_key(log_id: str, segment: int) -> bytes:
    """One segment of a log. Keys of a log sort as its segments do."""
    return b"log/%s/segment/%016x" % (log_id.encode(), segment)


def lock_key(log_id: str) -> bytes:
    """The courtesy lock of a log's writer."""
    return b"log/%s/lock" % log_id.encode()
