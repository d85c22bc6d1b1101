"""Metadata operations that change ledgers, with the reverse index that mirrors their ensembles.

The reverse index ``on/<bookie>/<ledger>`` changes in the transaction that changes the ensembles. All
operations are conditional on the version of the ledger's key. Callers can combine them with further
operations into one transaction.
"""

from collections.abc import Iterable

from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from . import ledger_keys as keys
from .ledger_metadata import LedgerMetadata
from .missing_range import MissingRange, decode_missing_ranges, encode_missing_ranges, limit_ranges


def creation_ops(metadata: LedgerMetadata, missing_ranges: Iterable[MissingRange]) -> Transaction:
    """Return operations that create the record, which must not exist. Its version is then 1."""
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
    """Return operations that replace the record at ``version`` and mirror the changes of its ensembles."""
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
    """Return operations that close a ledger as its writer. Its ensembles are already stored."""
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
    """Return operations that close a ledger after recovery, with its ensembles and missing entries.

    The missing entries are added to those that are already stored. The operations are conditional on
    the version of that record. The first compare is that of the ledger's record.
    """
    operations = change_ops(old_metadata, closed, version)
    new_ranges = tuple(missing_ranges)
    if not new_ranges:
        return operations
    assert closed.last_entry is not None, "a recovered ledger has a last entry"
    previous_ranges = () if stored_ranges is None else decode_missing_ranges(stored_ranges.value)
    key = keys.missing_ranges_key(closed.ledger_id)
    return operations + Transaction(
        (Compare.version(key, 0 if stored_ranges is None else stored_ranges.version),),
        (
            Put(
                key,
                encode_missing_ranges(
                    limit_ranges((*previous_ranges, *new_ranges), closed.last_entry + 1)
                ),
            ),
        ),
    )


def missing_range_ops(
    ledger_id: int, version: int, missing_ranges: Iterable[MissingRange]
) -> Transaction:
    """Return operations that record missing entries if the ledger's record is still at ``version``.

    The version changes when another client takes over the ledger.
    """
    return Transaction(
        (Compare.version(keys.ledger_key(ledger_id), version),),
        tuple(_missing_range_puts(ledger_id, missing_ranges)),
    )


def deletion_ops(metadata: LedgerMetadata, version: int) -> Transaction:
    """Return operations that set the state DELETING and create a removal task per bookie (H21).

    The tasks replace the bookies' keys in the reverse index.
    """
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
    """Return operations that make a closed ledger, to which no log refers, the segment of a log (H13)."""
    assert metadata.closed, "a linked ledger is closed"
    assert metadata.owner is None, "H13: a ledger to link belongs to no log"
    return Transaction(
        (Compare.version(keys.ledger_key(metadata.ledger_id), version),),
        (Put(keys.ledger_key(metadata.ledger_id), metadata.owned_by(owner).encode()),),
    )


def _missing_range_puts(
    ledger_id: int, missing_ranges: Iterable[MissingRange]
) -> list[Put | Delete]:
    ranges = tuple(missing_ranges)
    return (
        [Put(keys.missing_ranges_key(ledger_id), encode_missing_ranges(ranges))] if ranges else []
    )
