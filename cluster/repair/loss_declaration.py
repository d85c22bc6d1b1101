"""Declare entries that cannot be recovered as lost, on an operator's request. Repair never does this.

The loss is recorded in the ledger's record. Afterwards no reader receives these entries, even if a copy turns
up: an entry that was refused to one reader is given to no other reader (G5, H103). Repair requires no copies
of them, so that a decommission can end.

An open ledger whose recovery can never complete is closed at an entry that the operator names. This requires
that no remaining bookie has a higher confirmed entry.
"""

from collections.abc import Sequence
from contextlib import suppress

from ...bookie.client.bookie_client import BookieClient, EntryList, FenceResponse
from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import (
    LOSSES_MAX,
    NO_ENTRY,
    DeclaredLoss,
    LedgerMetadata,
    LedgerState,
)
from ...ledger.model.missing_range import MissingRange
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    NoSuchLedger,
    VersionConflict,
)
from .copier import (
    BATCH_BYTES,
    REQUEST_S,
    BookieConnections,
    consecutive_records,
    list_held_entries,
    ranges_to_hold,
)


async def declare_lost(
    metadata: Metadata,
    pool: BookieConnections,
    ledger_id: int,
    loss: DeclaredLoss,
    *,
    force: bool = False,
) -> LedgerMetadata:
    """Declare entries of a closed ledger lost.

    Args:
        metadata: The metadata store.
        pool: The connections to the bookies.
        ledger_id: The ledger.
        loss: The entries and the reason.
        force: Do not check whether bookies have the entries.

    Returns:
        The new record of the ledger.

    Raises:
        InvalidRequest: A bookie has one of the entries, or may have it (only without ``force``). Also if the
            ledger is not closed, the range is invalid, or the record has no space for another range.
        NoSuchLedger: The ledger does not exist.
        VersionConflict: The record was changed during the call.
    """
    ledger, version = await _read_ledger(metadata, ledger_id)
    last_entry = ledger.last_entry
    if not ledger.closed or last_entry is None:
        raise InvalidRequest(
            f"ledger {ledger_id} is {ledger.state.value}: its last entry must be given"
        )
    if not 0 <= loss.first <= loss.last <= last_entry:
        raise InvalidRequest(
            f"entries {loss.first} to {loss.last}: ledger {ledger_id} has 0 to {last_entry}"
        )
    if not force:
        for bookie in ledger.bookies():
            await _check_lacks(metadata, pool, ledger, bookie, loss)
        await _check_former_bookies(metadata, pool, ledger, loss)
    changed = ledger.with_loss(loss)
    if len(changed.lost) > LOSSES_MAX:
        raise InvalidRequest(
            f"ledger {ledger_id} has {len(ledger.lost)} ranges that are declared lost, which is the"
            " maximum: declare longer ranges"
        )
    change = transactions.change_ops(ledger, changed, version)
    if not (await metadata.transact(change)).succeeded:
        raise VersionConflict(
            f"ledger {ledger_id} was changed by another client: check it and retry"
        )
    return changed


async def _check_lacks(
    metadata: Metadata,
    pool: BookieConnections,
    ledger: LedgerMetadata,
    bookie: str,
    loss: DeclaredLoss,
) -> None:
    """Check that a bookie lacks the entries that it should hold.

    Raises:
        InvalidRequest: It has one of them, or may have it.
    """
    ranges = ranges_to_hold(ledger, MissingRange(bookie, loss.first, loss.last + 1))
    if not ranges:
        return
    client = pool.get(bookie)
    if client is None:
        if await metadata.get(keys.bookie_key(bookie)) is None:
            return  # it is down: the operator who declares the loss declares that it never returns
        raise InvalidRequest(
            f"bookie {bookie} is registered and cannot be reached: it may have them"
        )
    held_entries = await list_held_entries(ledger, client)
    if not held_entries.proves_absence:
        raise InvalidRequest(f"bookie {bookie} is in the limbo state: it may have them")
    for entry_range in ranges:
        for first, count in held_entries.ranges:
            if first <= entry_range.last and first + count > entry_range.first:
                raise InvalidRequest(
                    f"bookie {bookie} has entries from {max(first, entry_range.first)} on: they are not lost"
                )


async def _check_former_bookies(
    metadata: Metadata, pool: BookieConnections, ledger: LedgerMetadata, loss: DeclaredLoss
) -> None:
    """Check that no bookie outside the ledger's ensembles has one of the entries.

    A bookie that was replaced after a long absence still has its copies.

    Raises:
        InvalidRequest: A bookie has one of the entries.
    """
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData):  # `dlog status` lists the record
            bookie = keys.bookie_id_of(item.key)
            client = pool.get(bookie)
            if client is None or bookie in ledger.bookies():
                continue
            held_entries = EntryList([], proves_absence=True)
            with suppress(DistributedLogError):
                held_entries = await list_held_entries(ledger, client)
            for first, count in held_entries.ranges:
                if first <= loss.last and first + count > loss.first:
                    raise InvalidRequest(
                        f"bookie {bookie} has entries from {max(first, loss.first)} on, although the record"
                        " does not list this bookie: they are not lost"
                    )


async def force_close(
    metadata: Metadata,
    pool: BookieConnections,
    ledger_id: int,
    end: int,
    *,
    by: str,
    why: str,
    force: bool = False,
) -> LedgerMetadata:
    """Fence an open ledger on all bookies that can be reached, and close it at a given last entry.

    Args:
        metadata: The metadata store.
        pool: The connections to the bookies.
        ledger_id: The ledger.
        end: The last entry; -1 for an empty ledger.
        by: The operator, for the record.
        why: The reason, for the record.
        force: Close the ledger although a bookie has or may have a later entry, or may still accept entries.

    Returns:
        The new record of the ledger.

    Raises:
        InvalidRequest: A bookie has a higher confirmed entry, or no bookie can provide entry ``end``. Without
            ``force``, also if a bookie has or may have a later entry, or does not answer although it is
            registered.
        NoSuchLedger: The ledger does not exist.
        VersionConflict: The record was changed during the call.
    """
    ledger, version = await _read_ledger(metadata, ledger_id)
    if ledger.state is LedgerState.OPEN:
        mark_recovery = transactions.change_ops(ledger, ledger.in_recovery(), version)
        await metadata.transact(mark_recovery)
        ledger, version = await _read_ledger(metadata, ledger_id)
    if ledger.state is not LedgerState.IN_RECOVERY:
        raise InvalidRequest(
            f"ledger {ledger_id} is {ledger.state.value}: its end is known already"
        )
    clients = [
        client for bookie_id in ledger.bookies() if (client := pool.get(bookie_id)) is not None
    ]
    confirmed_entry = ledger.last_fragment.first_entry - 1
    doubts: list[str] = []
    for bookie in ledger.last_fragment.bookies:
        response = await _fence(ledger, pool.get(bookie))
        if response is not None:
            confirmed_entry = max(confirmed_entry, response.lac)
            if response.last_entry > end:
                doubts.append(f"bookie {bookie} has entry {response.last_entry}")
            elif not response.proves_absence:
                doubts.append(f"bookie {bookie} may have lost entries after that (limbo)")
        elif await metadata.get(keys.bookie_key(bookie)) is not None:
            # A writer that reaches this bookie may still have its entries acknowledged.
            doubts.append(
                f"bookie {bookie} is registered and does not answer: it may have later entries"
            )
    if confirmed_entry > end:
        raise InvalidRequest(
            f"ledger {ledger_id} is confirmed to entry {confirmed_entry}: a reader may have read that far"
        )
    if doubts and not force:
        raise InvalidRequest(f"ledger {ledger_id} is not known to end there: {'; '.join(doubts)}")
    length = await _length_at(ledger, clients, end)
    custom = {"closed_by": by.encode(), "closed_why": why.encode()}
    closed = ledger.close_by_recovery(end, length, ledger.ensembles).with_custom(custom)
    change = transactions.recovery_ops(ledger, closed, version, (), None)
    if not (await metadata.transact(change)).succeeded:
        raise VersionConflict(
            f"ledger {ledger_id} was changed by another client: check it and retry"
        )
    return closed


async def _fence(ledger: LedgerMetadata, client: BookieClient | None) -> FenceResponse | None:
    """Fence the ledger on one bookie; None if the bookie does not answer."""
    if client is None:
        return None
    try:
        return await client.fence(ledger.ledger_id, ledger.key, REQUEST_S)
    except DistributedLogError:
        return None


async def _length_at(ledger: LedgerMetadata, clients: Sequence[BookieClient], end: int) -> int:
    """Return the payload bytes up to and including an entry, from an intact copy of that entry."""
    if end == NO_ENTRY:
        return 0
    for client in clients:
        try:
            response = await client.read(
                ledger.ledger_id,
                ledger.key,
                end,
                end,
                BATCH_BYTES,
                past_lac=True,
                timeout_s=REQUEST_S,
            )
        except DistributedLogError:
            continue
        records = consecutive_records(response.body, ledger.ledger_id, end)
        if records:
            return records[0].length_so_far
    raise InvalidRequest(
        f"ledger {ledger.ledger_id}: no bookie that answers has entry {end}; give an entry that can be read"
    )


async def _read_ledger(metadata: Metadata, ledger_id: int) -> tuple[LedgerMetadata, int]:
    item = await metadata.get(keys.ledger_key(ledger_id))
    if item is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    return LedgerMetadata.decode(item.key, item.value), item.version
