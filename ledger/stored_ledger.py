"""A ledger before it is in the store, and as it was read there: for who creates, links or deletes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..metadata.transaction import Transaction
from ..runtime.errors import InvalidRequest
from . import transactions
from .holes import Hole
from .metadata import LedgerMetadata

CUSTOM_BYTES_MAX = 4096
"""Keys and values of a ledger's custom metadata, in sum."""


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

    def transaction(self) -> Transaction:
        """The share of a transaction that creates it; afterwards the record's version is 1."""
        bookies = self.metadata.last_fragment.bookies
        return transactions.creation_share(
            self.metadata, [Hole(bookies[slot], 0, None) for slot in self.detached]
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
        made = self.metadata
        return made.ensemble_size, made.write_quorum, made.ack_quorum

    @property
    def custom(self) -> Mapping[str, bytes]:
        """What its creator, and who closed it, wrote beside it."""
        return self.metadata.custom

    def link_share(self, owner: tuple[int, int]) -> Transaction:
        """The share of a transaction that makes it a log's segment. It is closed and has no owner."""
        return transactions.link_share(self.metadata, self.version, owner)

    def deletion_share(self) -> Transaction:
        """The share of a transaction that deletes it. Raises `InvalidRequest` where a log refers to it."""
        if self.metadata.owner is not None:
            log_id, segment = self.metadata.owner
            raise InvalidRequest(
                f"ledger {self.metadata.ledger_id} is segment {segment} of log {log_id:016x}"
            )
        return transactions.deletion_share(self.metadata, self.version)


def check_custom(custom: Mapping[str, bytes]) -> None:
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
