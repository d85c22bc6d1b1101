"""What a deleted log leaves behind (pure): where it ended, so that who was reading it can tell.

    gone/<bucket, 3 hex>/<namespace path> 00 <log name>  ->  [format, [log, ...]], the last deleted last

One key a name, the last `LOGS_PER_NAME` logs that had it. Names fall into buckets by their digest, and a
deletion (`log_deletion.py`) makes room in its own bucket: there are never more than `BUCKETS` x
`NAMES_PER_BUCKET` keys (some 5 MB, at the very most 25), and nobody has to go round and clear them away. What
had to go is met as "not known": an error or a warning, never silence (docs/decisions/0011).
"""

from dataclasses import dataclass
from typing import Any

import xxhash

from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import check_stored, list_of_any, number, row
from .log_keys import incarnation_text
from .log_state import LogEnd, LogState, decode_fields

FORMAT = 1
DELETED_PREFIX = b"gone/"
BUCKETS = 4096
NAMES_PER_BUCKET = 8
LOGS_PER_NAME = 8


_NUMBERS = row(number(), number(), number())


@dataclass(frozen=True, slots=True)
class DeletedLog:
    """One log that had this name."""

    log_id: int
    end: LogEnd
    first_sequence_id: int
    """Of the first record that was not truncated when it was deleted."""
    deleted_ms: int
    """Wall clock of who deleted it; says only which name of a bucket goes first."""

    @classmethod
    def of(cls, state: LogState, deleted_ms: int) -> "DeletedLog":
        """Of a log that is being deleted, whose end is noted."""
        assert state.end is not None, "the end is noted before anything goes"
        return cls(state.log_id, state.end, state.truncated_sequence_id, deleted_ms)

    @property
    def incarnation(self) -> str:
        """As users and checkpoints name the log."""
        return incarnation_text(self.log_id)


def deleted_logs_key(namespace: str, name: str) -> bytes:
    """The key of the tombstones of a name."""
    full_name = namespace.encode() + b"\x00" + name.encode()
    return bucket_prefix(namespace, name) + full_name


def bucket_prefix(namespace: str, name: str) -> bytes:
    """What the keys of this name's bucket begin with."""
    full_name = namespace.encode() + b"\x00" + name.encode()
    return DELETED_PREFIX + b"%03x/" % (xxhash.xxh3_64_intdigest(full_name) % BUCKETS)


def encode_deleted_logs(deleted_logs: list[DeletedLog]) -> bytes:
    """As a packed list with a format number."""
    return pack(
        [
            FORMAT,
            [
                [
                    deleted_log.log_id,
                    *deleted_log.end.to_list(),
                    deleted_log.first_sequence_id,
                    deleted_log.deleted_ms,
                ]
                for deleted_log in deleted_logs
            ],
        ]
    )


def decode_deleted_logs(value: bytes) -> list[DeletedLog]:
    """Raises `CorruptData`, or `UnsupportedFormat`."""
    what = "the tombstones of a name"
    fields_by_log = check_stored(decode_fields(value, FORMAT, 2, what)[0], list_of_any, what)
    return [_decode_one(log_fields) for log_fields in fields_by_log]


def _decode_one(log_fields: Any) -> DeletedLog:
    if type(log_fields) is not list or len(log_fields) < 8:
        raise CorruptData("a tombstone is a list of eight fields")
    numbers = [log_fields[0], log_fields[6], log_fields[7]]
    log_id, first_sequence_id, deleted_ms = check_stored(numbers, _NUMBERS, "a tombstone")
    return DeletedLog(log_id, LogEnd.from_list(log_fields[1:6]), first_sequence_id, deleted_ms)
