"""Entries that are gone for good are declared lost: by a person, in the ledger's record, never by repair.

From then on nobody is given them, also where a copy turns up: what one reader was refused no other one gets
(G5, H103). Repair wants no copies of them, so that a drain ends. An open ledger whose recovery lacks answers
for good is closed at an end that is said, if nobody who is left knows more to be confirmed.
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
    """Declare entries of a closed ledger lost; the record as it is then.

    Raises `InvalidRequest` where a bookie has one of them, or may have (not ``even_so``): then they are not
    lost, or it is not known; where the record takes no more; `NoSuchLedger`, `VersionConflict`.
    """
    ledger, version = await _read_ledger(metadata, ledger_id)
    last_entry = ledger.last_entry
    if not ledger.closed or last_entry is None:
        raise InvalidRequest(f"ledger {ledger_id} is {ledger.state.value}: say where it ends")
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
            f"ledger {ledger_id} has {len(ledger.lost)} stretches that are declared lost, the most there can"
            " be: declare longer ones"
        )
    change = transactions.change_ops(ledger, changed, version)
    if not (await metadata.transact(change)).succeeded:
        raise VersionConflict(f"ledger {ledger_id} was changed meanwhile: look again")
    return changed


async def _check_lacks(
    metadata: Metadata,
    pool: BookieConnections,
    ledger: LedgerMetadata,
    bookie: str,
    loss: DeclaredLoss,
) -> None:
    """Raises `InvalidRequest` where a bookie has an entry that it should hold, or may have it."""
    ranges = ranges_to_hold(ledger, MissingRange(bookie, loss.first, loss.last + 1))
    if not ranges:
        return
    client = pool.get(bookie)
    if client is None:
        if await metadata.get(keys.bookie_key(bookie)) is None:
            return  # it is away: whoever says that they are lost says that it does not come back
        raise InvalidRequest(f"bookie {bookie} is registered and cannot be asked: it may have them")
    held_entries = await list_held_entries(ledger, client)
    if not held_entries.known:
        raise InvalidRequest(f"bookie {bookie} may have lost them, and may have them (limbo)")
    for entry_range in ranges:
        for first, count in held_entries.ranges:
            if first <= entry_range.last and first + count > entry_range.first:
                raise InvalidRequest(
                    f"bookie {bookie} has entries from {max(first, entry_range.first)} on: they are not lost"
                )


async def _check_former_bookies(
    metadata: Metadata, pool: BookieConnections, ledger: LedgerMetadata, loss: DeclaredLoss
) -> None:
    """Raises `InvalidRequest` where a bookie has an entry that the record does not want there (any more).

    One that was away for long, and whose place another one took, has its copies still.
    """
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData):  # `dlog status` names it
            bookie = keys.bookie_id_of(item.key)
            client = pool.get(bookie)
            if client is None or bookie in ledger.bookies():
                continue
            held_entries = EntryList([], known=True)
            with suppress(DistributedLogError):
                held_entries = await list_held_entries(ledger, client)
            for first, count in held_entries.ranges:
                if first <= loss.last and first + count > loss.first:
                    raise InvalidRequest(
                        f"bookie {bookie} has entries from {max(first, loss.first)} on, though the record"
                        " does not name it (any more): they are not lost"
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
    """Fence an open ledger where that can be done, and close it with ``end`` as its last entry; -1: empty.

    Raises `InvalidRequest` where a bookie knows more to be confirmed, or entry ``end`` cannot be read from
    anybody; where one has an entry after it, or may have, or takes entries still, for all we know (not
    ``even_so``); `NoSuchLedger`, `VersionConflict`.
    """
    ledger, version = await _read_ledger(metadata, ledger_id)
    if ledger.state is LedgerState.OPEN:
        mark_recovery = transactions.change_ops(ledger, ledger.in_recovery(), version)
        await metadata.transact(mark_recovery)
        ledger, version = await _read_ledger(metadata, ledger_id)
    if ledger.state is not LedgerState.IN_RECOVERY:
        raise InvalidRequest(f"ledger {ledger_id} is {ledger.state.value}: its end is known")
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
            elif not response.known:
                doubts.append(f"bookie {bookie} may have lost entries after that (limbo)")
        elif await metadata.get(keys.bookie_key(bookie)) is not None:
            # A writer that reaches it may be told that its entries are stored.
            doubts.append(f"bookie {bookie} is registered and does not answer: it may have more")
    if confirmed_entry > end:
        raise InvalidRequest(
            f"ledger {ledger_id} is confirmed to entry {confirmed_entry}: it may have been read that far"
        )
    if doubts and not force:
        raise InvalidRequest(f"ledger {ledger_id} is not known to end there: {'; '.join(doubts)}")
    length = await _length_at(ledger, clients, end)
    custom = {"closed_by": by.encode(), "closed_why": why.encode()}
    closed = ledger.close_by_recovery(end, length, ledger.ensembles).with_custom(custom)
    change = transactions.recovery_ops(ledger, closed, version, (), None)
    if not (await metadata.transact(change)).succeeded:
        raise VersionConflict(f"ledger {ledger_id} was changed meanwhile: look again")
    return closed


async def _fence(ledger: LedgerMetadata, client: BookieClient | None) -> FenceResponse | None:
    """What a bookie says that takes no more entries from now on; None: it does not answer."""
    if client is None:
        return None
    try:
        return await client.fence(ledger.ledger_id, ledger.key, REQUEST_S)
    except DistributedLogError:
        return None


async def _length_at(ledger: LedgerMetadata, clients: Sequence[BookieClient], end: int) -> int:
    """Payload bytes up to an entry, itself included, as a sound copy of it says."""
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
        f"ledger {ledger.ledger_id}: nobody who answers has entry {end}; say an end that can be read"
    )


async def _read_ledger(metadata: Metadata, ledger_id: int) -> tuple[LedgerMetadata, int]:
    item = await metadata.get(keys.ledger_key(ledger_id))
    if item is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    return LedgerMetadata.decode(item.key, item.value), item.version
