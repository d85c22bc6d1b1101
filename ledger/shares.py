"""Shares of metadata transactions that change ledgers, with the reverse index that mirrors ensembles.

The reverse index ``on/<bookie>/<ledger>`` changes in the transaction that changes the ensembles; every
share is conditional on the version of the ledger's key. A part above joins shares with its own.
"""

from collections.abc import Iterable

from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from . import keys
from .holes import Hole
from .holes import encode as encode_holes
from .metadata import LedgerMetadata
from .placement import Candidate
from .pool import BookiePool

__all__ = [
    "Candidate",
    "KeyValue",
    "change_share",
    "closing_share",
    "creation_share",
    "deletion_share",
    "live_candidates",
]


def creation_share(metadata: LedgerMetadata, holes: Iterable[Hole]) -> Transaction:
    """Create the record, which must not exist; its version is then 1."""
    ledger_id = metadata.ledger_id
    key = keys.ledger_key(ledger_id)
    return Transaction(
        (Compare.version(key, 0),),
        (
            Put(key, metadata.encode()),
            *(Put(keys.on_key(bookie, ledger_id), b"") for bookie in metadata.bookies()),
            *_note(ledger_id, holes),
        ),
    )


def change_share(before: LedgerMetadata, after: LedgerMetadata, version: int) -> Transaction:
    """Replace the record at ``version``, and mirror what changed in its ensembles."""
    ledger_id = before.ledger_id
    key = keys.ledger_key(ledger_id)
    old, new = before.bookies(), after.bookies()
    return Transaction(
        (Compare.version(key, version),),
        (
            Put(key, after.encode()),
            *(Put(keys.on_key(bookie, ledger_id), b"") for bookie in new if bookie not in old),
            *(Delete(keys.on_key(bookie, ledger_id)) for bookie in old if bookie not in new),
        ),
    )


def closing_share(
    closed: LedgerMetadata,
    version: int,
    holes: Iterable[Hole],
    before: LedgerMetadata | None = None,
) -> Transaction:
    """Close at ``version``; ``before`` is given when the ensembles change with it."""
    share = change_share(closed if before is None else before, closed, version)
    return share + Transaction(operations=tuple(_note(closed.ledger_id, holes)))


def deletion_share(metadata: LedgerMetadata, version: int) -> Transaction:
    """The record becomes DELETING, and each bookie gets a to-do instead of its index key (H21)."""
    ledger_id = metadata.ledger_id
    key = keys.ledger_key(ledger_id)
    bookies = metadata.bookies()
    return Transaction(
        (Compare.version(key, version),),
        (
            Put(key, metadata.owned_by(None).deleting().encode()),
            Delete(keys.under_key(ledger_id)),
            *(Delete(keys.on_key(bookie, ledger_id)) for bookie in bookies),
            *(Put(keys.delete_key(bookie, ledger_id), b"") for bookie in bookies),
        ),
    )


def _note(ledger_id: int, holes: Iterable[Hole]) -> list[Put | Delete]:
    noted = tuple(holes)
    return [Put(keys.under_key(ledger_id), encode_holes(noted))] if noted else []


def live_candidates(pool: BookiePool) -> list[Candidate]:
    """Who may be chosen for a slot now: registered, connected, writable."""
    return [Candidate(one.id, one.rack) for one in pool.live() if not one.read_only]
