"""Shares of metadata transactions that change ledgers, with the reverse index that mirrors ensembles.

The reverse index ``on/<bookie>/<ledger>`` changes in the transaction that changes the ensembles; every
share is conditional on the version of the ledger's key. A part above joins shares with its own.
"""

from collections.abc import Iterable

from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from . import ledger_keys as keys
from .ledger_metadata import LedgerMetadata
from .missing_range import MissingRange, ended
from .missing_range import decode as decode_holes
from .missing_range import encode as encode_holes


def creation_ops(metadata: LedgerMetadata, holes: Iterable[MissingRange]) -> Transaction:
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


def change_ops(before: LedgerMetadata, after: LedgerMetadata, version: int) -> Transaction:
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


def close_ops(closed: LedgerMetadata, version: int, holes: Iterable[MissingRange]) -> Transaction:
    """The writer's close at ``version``; its ensembles are in the store already."""
    share = change_ops(closed, closed, version)
    return share + Transaction(operations=tuple(_note(closed.ledger_id, holes)))


def recovery_ops(
    before: LedgerMetadata,
    closed: LedgerMetadata,
    version: int,
    holes: Iterable[MissingRange],
    note: KeyValue | None,
) -> Transaction:
    """A recovery's close at ``version``: its ensembles, and its holes beside those noted already.

    Conditional on the note as it was read. The first compare is the record's.
    """
    share = change_ops(before, closed, version)
    added = tuple(holes)
    if not added:
        return share
    assert closed.last_entry is not None, "a recovery's close knows the end"
    noted = () if note is None else decode_holes(note.value)
    key = keys.under_key(closed.ledger_id)
    return share + Transaction(
        (Compare.version(key, 0 if note is None else note.version),),
        (Put(key, encode_holes(ended((*noted, *added), closed.last_entry + 1))),),
    )


def missing_range_ops(ledger_id: int, version: int, holes: Iterable[MissingRange]) -> Transaction:
    """Note holes while the record is at ``version``: as long as the ledger is its writer's."""
    return Transaction(
        (Compare.version(keys.ledger_key(ledger_id), version),), tuple(_note(ledger_id, holes))
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
            Delete(keys.under_key(ledger_id)),
            *(Delete(keys.on_key(bookie, ledger_id)) for bookie in bookies),
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


def _note(ledger_id: int, holes: Iterable[MissingRange]) -> list[Put | Delete]:
    noted = tuple(holes)
    return [Put(keys.under_key(ledger_id), encode_holes(noted))] if noted else []
