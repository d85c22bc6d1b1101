"""A ledger's record as it was read, for whoever links it to a log or deletes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..metadata.transaction import Transaction
from ..runtime.errors import InvalidRequest
from . import transactions
from .metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger's record as it was read; shares made from it are conditional on its version."""

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
