"""Ledgers before they are stored, ledgers that were read, and records that are unreadable.

The code that creates, links, deletes or lists ledgers uses these classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import trio

from ...metadata.model.transaction import KeyValue, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from . import ledger_transactions as transactions
from .ledger_keys import printable_key
from .ledger_metadata import LedgerMetadata
from .missing_range import MissingRange

CUSTOM_BYTES_MAX = 4096
"""The maximum size of a ledger's custom metadata, keys and values together."""
LOG_INTERVAL_S = 600.0
"""The minimum time between two log lines about one unreadable record, in seconds."""
LOGGED_KEYS_MAX = 1000

T = TypeVar("T")

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class NewLedger:
    """A ledger with its ID and ensemble, before it is stored."""

    metadata: LedgerMetadata
    detached: tuple[int, ...] = ()
    """Slots on unavailable bookies. The writer starts without them (H22b)."""

    @property
    def ledger_id(self) -> int:
        """The ID, which no other ledger ever has."""
        return self.metadata.ledger_id

    def create_ops(self) -> Transaction:
        """Return the operations that create the ledger. Afterwards the record's version is 1."""
        bookies = self.metadata.last_fragment.bookies
        return transactions.creation_ops(
            self.metadata, [MissingRange(bookies[slot], 0, None) for slot in self.detached]
        )


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger that was read from the metadata. Operations made from it are conditional on its version."""

    metadata: LedgerMetadata
    version: int

    @property
    def owner(self) -> tuple[int, int] | None:
        """(log ID, segment) of the log that refers to the ledger, or None."""
        return self.metadata.owner

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed, so that its last entry is final."""
        return self.metadata.closed

    @property
    def incarnation(self) -> int:
        """The incarnation of the log for which the ledger was created; 0 for none."""
        return self.metadata.incarnation

    @property
    def last_entry(self) -> int | None:
        """The last entry: -1 if the ledger is empty, None if it is not closed."""
        return self.metadata.last_entry

    @property
    def length(self) -> int | None:
        """Payload bytes of all entries; None if the ledger is not closed."""
        return self.metadata.length

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble size, write quorum, ack quorum."""
        metadata = self.metadata
        return metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum

    @property
    def custom(self) -> Mapping[str, bytes]:
        """Custom metadata, set at creation or by the client that closed the ledger."""
        return self.metadata.custom

    def link_ops(self, owner: tuple[int, int]) -> Transaction:
        """Return the operations that make the ledger a log's segment.

        It must be closed and without an owner.
        """
        return transactions.link_ops(self.metadata, self.version, owner)

    def delete_ops(self) -> Transaction:
        """Return the operations that delete the ledger.

        Raises:
            InvalidRequest: A log refers to the ledger.
        """
        if self.metadata.owner is not None:
            log_id, segment = self.metadata.owner
            raise InvalidRequest(
                f"ledger {self.metadata.ledger_id} is segment {segment} of log {log_id:016x}"
            )
        return transactions.deletion_ops(self.metadata, self.version)


def check_custom_metadata(custom: Mapping[str, bytes]) -> None:
    """Check the types and the size of custom metadata.

    Raises:
        InvalidRequest: A key is not text, a value is not bytes, or the metadata is larger than
            `CUSTOM_BYTES_MAX`.
    """
    size = 0
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidRequest(f"custom ledger metadata must map text to bytes: {key!r:.80}")
        size += len(key.encode()) + len(value)
    if size > CUSTOM_BYTES_MAX:
        raise InvalidRequest(
            f"custom ledger metadata of {size} bytes; the limit is {CUSTOM_BYTES_MAX}"
        )


class UnreadableRecords:
    """Logs and skips unreadable records, so that one bad record does not end a listing."""

    def __init__(self) -> None:
        self._logged_at: dict[bytes, float] = {}

    def log_once(self, key: bytes, error: DistributedLogError) -> None:
        """Log an unreadable record, at most once per `LOG_INTERVAL_S`."""
        now = trio.current_time()
        if now - self._logged_at.get(key, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            return
        self._logged_at.pop(key, None)
        self._logged_at[key] = now
        while len(self._logged_at) > LOGGED_KEYS_MAX:
            del self._logged_at[next(iter(self._logged_at))]
        log.warning("the record %s is unreadable and skipped: %s", printable_key(key), error)

    def decode_readable(
        self, items: Iterable[KeyValue], decode: Callable[[KeyValue], T]
    ) -> Iterator[tuple[KeyValue, T]]:
        """Yield the readable items with their decoded records; skip and log the others."""
        for item in items:
            try:
                record = decode(item)
            except (CorruptData, UnsupportedFormat) as error:
                self.log_once(item.key, error)
            else:
                yield item, record
