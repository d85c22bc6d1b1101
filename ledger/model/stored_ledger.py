"""Ledgers before they are stored, ledgers that were read, and records that cannot be read.

For users that create, link, delete or list ledgers.
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
"""Keys and values of a ledger's custom metadata, in sum."""
LOG_INTERVAL_S = 600.0
"""Between two log lines of one record that cannot be read, in seconds."""
LOGGED_KEYS_MAX = 1000

T = TypeVar("T")

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class NewLedger:
    """Chosen, and stored nowhere yet."""

    metadata: LedgerMetadata
    detached: tuple[int, ...] = ()
    """Slots on bookies that are down: the writer begins without them (H22b)."""

    @property
    def ledger_id(self) -> int:
        """Never used before, never used again."""
        return self.metadata.ledger_id

    def create_ops(self) -> Transaction:
        """The share of a transaction that creates it; afterwards the record's version is 1."""
        bookies = self.metadata.last_fragment.bookies
        return transactions.creation_ops(
            self.metadata, [MissingRange(bookies[slot], 0, None) for slot in self.detached]
        )


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger as it was read; shares made from it are conditional on its version."""

    metadata: LedgerMetadata
    version: int

    @property
    def owner(self) -> tuple[int, int] | None:
        """(log id, segment) of the log that refers to it, or None."""
        return self.metadata.owner

    @property
    def closed(self) -> bool:
        """Is its end known for good?"""
        return self.metadata.closed

    @property
    def incarnation(self) -> int:
        """The id of the log it was made for; 0 for none."""
        return self.metadata.incarnation

    @property
    def last_entry(self) -> int | None:
        """-1 where it is empty, None where it is not closed."""
        return self.metadata.last_entry

    @property
    def length(self) -> int | None:
        """Payload bytes of all entries, None where it is not closed."""
        return self.metadata.length

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble, write quorum, ack quorum."""
        metadata = self.metadata
        return metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum

    @property
    def custom(self) -> Mapping[str, bytes]:
        """What its creator, and who closed it, wrote beside it."""
        return self.metadata.custom

    def link_ops(self, owner: tuple[int, int]) -> Transaction:
        """The share of a transaction that makes it a log's segment. It is closed and has no owner."""
        return transactions.link_ops(self.metadata, self.version, owner)

    def delete_ops(self) -> Transaction:
        """The share of a transaction that deletes it. Raises `InvalidRequest` where a log refers to it."""
        if self.metadata.owner is not None:
            log_id, segment = self.metadata.owner
            raise InvalidRequest(
                f"ledger {self.metadata.ledger_id} is segment {segment} of log {log_id:016x}"
            )
        return transactions.deletion_ops(self.metadata, self.version)


def check_custom_metadata(custom: Mapping[str, bytes]) -> None:
    """Refuse custom metadata above the bound, or of the wrong types. Raises `InvalidRequest`."""
    size = 0
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidRequest(f"custom ledger metadata maps text to bytes, not {key!r:.80}")
        size += len(key.encode()) + len(value)
    if size > CUSTOM_BYTES_MAX:
        raise InvalidRequest(
            f"custom ledger metadata of {size} bytes; the most are {CUSTOM_BYTES_MAX}"
        )


class UnreadableRecords:
    """Records that one listing has skipped and logged: a bad record does not end the listing."""

    def __init__(self) -> None:
        self._logged_at: dict[bytes, float] = {}

    def log_once(self, key: bytes, error: DistributedLogError) -> None:
        """The record of this key cannot be read; it is named once in ten minutes."""
        now = trio.current_time()
        if now - self._logged_at.get(key, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            return
        self._logged_at.pop(key, None)
        self._logged_at[key] = now
        while len(self._logged_at) > LOGGED_KEYS_MAX:
            del self._logged_at[next(iter(self._logged_at))]
        log.warning("the record %s is passed over: %s", printable_key(key), error)

    def decode_readable(
        self, items: Iterable[KeyValue], decode: Callable[[KeyValue], T]
    ) -> Iterator[tuple[KeyValue, T]]:
        """Yield the items that can be read, with their decoded records."""
        for item in items:
            try:
                record = decode(item)
            except (CorruptData, UnsupportedFormat) as error:
                self.log_once(item.key, error)
            else:
                yield item, record
