"""A ledger that is to be created: chosen, and stored nowhere yet."""

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
class PreparedLedger:
    """A ledger that is chosen and stored nowhere yet."""

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
