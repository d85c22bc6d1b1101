"""The deleted-log record: the end of a deleted log, so that its readers can distinguish the cases (pure).

    gone/<bucket, 3 hex>/<namespace path> 00 <log name>  ->  [format, [log, ...]], the last deleted last

There is one key per name, with the last `LOGS_PER_NAME` logs of this name. A digest assigns each name to a
bucket. A deletion (`log_deletion.py`) first evicts old names from its own bucket. Therefore at most `BUCKETS`
x `NAMES_PER_BUCKET` keys exist (about 5 MB, 25 MB at the very most), and no background cleanup is needed. For
a log whose record was evicted, the outcome is "not known". This is reported as an error or a warning, and is
never silent (docs/decisions/0011).
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
    """A deleted log of this name."""

    log_id: int
    end: LogEnd
    first_sequence_id: int
    """The sequence ID of the first record that was not truncated when the log was deleted."""
    deleted_ms: int
    """The wall clock of the deleting client. It only decides which name of a bucket is evicted first."""

    @classmethod
    def of(cls, state: LogState, deleted_ms: int) -> "DeletedLog":
        """Return the record of a log that is being deleted and whose end is stored."""
        assert state.end is not None, "the end is stored before any segment is deleted"
        return cls(state.log_id, state.end, state.truncated_sequence_id, deleted_ms)

    @property
    def incarnation(self) -> str:
        """The log's incarnation, as in positions and checkpoints."""
        return incarnation_text(self.log_id)


def deleted_logs_key(namespace: str, name: str) -> bytes:
    """Return the key of the deleted-log records of a name."""
    full_name = namespace.encode() + b"\x00" + name.encode()
    return bucket_prefix(namespace, name) + full_name


def bucket_prefix(namespace: str, name: str) -> bytes:
    """Return the prefix of the keys in this name's bucket."""
    full_name = namespace.encode() + b"\x00" + name.encode()
    return DELETED_PREFIX + b"%03x/" % (xxhash.xxh3_64_intdigest(full_name) % BUCKETS)


def encode_deleted_logs(deleted_logs: list[DeletedLog]) -> bytes:
    """Encode the records as a packed list with a format number."""
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
    """Decode the records.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    what = "the deleted-log records of a name"
    fields_by_log = check_stored(decode_fields(value, FORMAT, 2, what)[0], list_of_any, what)
    return [_decode_one(log_fields) for log_fields in fields_by_log]


def _decode_one(log_fields: Any) -> DeletedLog:
    if type(log_fields) is not list or len(log_fields) < 8:
        raise CorruptData("a deleted-log record is a list of eight fields")
    numbers = [log_fields[0], log_fields[6], log_fields[7]]
    log_id, first_sequence_id, deleted_ms = check_stored(numbers, _NUMBERS, "a deleted-log record")
    return DeletedLog(log_id, LogEnd.from_list(log_fields[1:6]), first_sequence_id, deleted_ms)
