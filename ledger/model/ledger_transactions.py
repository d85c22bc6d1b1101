"""Shares of metadata transactions that change ledgers, with the reverse index that mirrors ensembles.

The reverse index ``on/<bookie>/<ledger>`` changes in the transaction that changes the ensembles; every
share is conditional on the version of the ledger's key. A part above joins shares with its own.
"""

from collections.abc import Iterable

from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from . import ledger_keys as keys
from .ledger_metadata import LedgerMetadata
from .missing_range import MissingRange, limit_ranges
from .missing_range import decode_missing_ranges as decode_holes
from .missing_range import encode_missing_ranges as encode_holes


def creation_ops(metadata: LedgerMetadata, missing_ranges: Iterable[MissingRange]) -> Transaction:
    """Create the record, which must not exist; its version is then 1."""
    ledger_id = metadata.ledger_id
    key = keys.ledger_key(ledger_id)
    return Transaction(
        (Compare.version(key, 0),),
        (
            Put(key, metadata.encode()),
            *(Put(keys.bookie_ledger_key(bookie, ledger_id), b"") for bookie in metadata.bookies()),
            *_missing_range_puts(ledger_id, missing_ranges),
        ),
    )


def change_ops(
    old_metadata: LedgerMetadata, new_metadata: LedgerMetadata, version: int
) -> Transaction:
    """Replace the record at ``version``, and mirror what changed in its ensembles."""
    ledger_id = old_metadata.ledger_id
    key = keys.ledger_key(ledger_id)
    old_bookies, new_bookies = old_metadata.bookies(), new_metadata.bookies()
    return Transaction(
        (Compare.version(key, version),),
        (
            Put(key, new_metadata.encode()),
            *(
                Put(keys.bookie_ledger_key(bookie, ledger_id), b"")
                for bookie in new_bookies
                if bookie not in old_bookies
            ),
            *(
                Delete(keys.bookie_ledger_key(bookie, ledger_id))
                for bookie in old_bookies
                if bookie not in new_bookies
            ),
        ),
    )


def close_ops(
    closed: LedgerMetadata, version: int, missing_ranges: Iterable[MissingRange]
) -> Transaction:
    """The writer's close at ``version``; its ensembles are in the store already."""
    operations = change_ops(closed, closed, version)
    return operations + Transaction(
        operations=tuple(_missing_range_puts(closed.ledger_id, missing_ranges))
    )


def recovery_ops(
    old_metadata: LedgerMetadata,
    closed: LedgerMetadata,
    version: int,
    missing_ranges: Iterable[MissingRange],
    stored_ranges: KeyValue | None,
) -> Transaction:
    """A recovery's close at ``version``: its ensembles, and its holes beside those noted already.

    Conditional on the note as it was read. The first compare is the record's.
    """
    operations = change_ops(old_metadata, closed, version)
    new_ranges = tuple(missing_ranges)
    if not new_ranges:
        return operations
    assert closed.last_entry is not None, "a recovery's close knows the end"
    previous_ranges = () if stored_ranges is None else decode_holes(stored_ranges.value)
    key = keys.missing_ranges_key(closed.ledger_id)
    return operations + Transaction(
        (Compare.version(key, 0 if stored_ranges is None else stored_ranges.version),),
        (
            Put(
                key,
                encode_holes(limit_ranges((*previous_ranges, *new_ranges), closed.last_entry + 1)),
            ),
        ),
    )


def missing_range_ops(
    ledger_id: int, version: int, missing_ranges: Iterable[MissingRange]
) -> Transaction:
    """Note holes while the record is at ``version``: as long as the ledger is its writer's."""
    return Transaction(
        (Compare.version(keys.ledger_key(ledger_id), version),),
        tuple(_missing_range_puts(ledger_id, missing_ranges)),
    )


def deletion_ops(metadata: LedgerMetadata, version: int) -> Transaction:
    """The record becomes DELETING, and each bookie gets a to-do instead of its index key (H21)."""
    ledger_id = metadata.ledger_id
    key = keys.ledger_key(ledger_id)
    bookies = metadata.bookies()
    return Transaction(
        (Compare.version(key, version),),
        (
            Put(key, metadata.owned_by(None).deleting().encode()),
            Delete(keys.missing_ranges_key(ledger_id)),
            *(Delete(keys.bookie_ledger_key(bookie, ledger_id)) for bookie in bookies),
            *(Put(keys.delete_key(bookie, ledger_id), b"") for bookie in bookies),
        ),
    )


def link_ops(metadata: LedgerMetadata, version: int, owner: tuple[int, int]) -> Transaction:
    """A closed ledger that no log refers to becomes the segment of one (H13)."""
    assert metadata.closed, "what is linked is closed"
    assert metadata.owner is None, "H13: what is linked belongs to no log"
    return Transaction(
        (Compare.version(keys.ledger_key(metadata.ledger_id), version),),
        (Put(keys.ledger_key(metadata.ledger_id), metadata.owned_by(owner).encode()),),
    )


def _missing_range_puts(
    ledger_id: int, missing_ranges: Iterable[MissingRange]
) -> list[Put | Delete]:
    ranges = tuple(missing_ranges)
    return [Put(keys.missing_ranges_key(ledger_id), encode_holes(ranges))] if ranges else []
