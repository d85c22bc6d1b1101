"""Entries that are gone for good are declared lost: by a person, in the ledger's record, never by repair.

From then on nobody is given them, also where a copy turns up: what one reader was refused no other one gets
(G5, H103). Repair wants no copies of them, so that a drain ends. An open ledger whose recovery lacks answers
for good is closed at an end that is said, if nobody who is left knows more to be confirmed.
"""

from collections.abc import Sequence
from contextlib import suppress

from ...bookie.client.bookie_client import BookieClient, EntryList, FenceAnswer
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
from .copier import BATCH_BYTES, REQUEST_S, Connections, consecutive, list_held, wanted


async def declare_lost(
    metadata: Metadata,
    pool: Connections,
    ledger_id: int,
    loss: DeclaredLoss,
    *,
    even_so: bool = False,
) -> LedgerMetadata:
    """Declare entries of a closed ledger lost; the record as it is then.

    Raises `InvalidRequest` where a bookie has one of them, or may have (not ``even_so``): then they are not
    lost, or it is not known; where the record takes no more; `NoSuchLedger`, `VersionConflict`.
    """
    ledger, version = await _record(metadata, ledger_id)
    last_entry = ledger.last_entry
    if not ledger.closed or last_entry is None:
        raise InvalidRequest(f"ledger {ledger_id} is {ledger.state.value}: say where it ends")
    if not 0 <= loss.first <= loss.last <= last_entry:
        raise InvalidRequest(
            f"entries {loss.first} to {loss.last}: ledger {ledger_id} has 0 to {last_entry}"
        )
    if not even_so:
        for bookie in ledger.bookies():
            await _check_without(metadata, pool, ledger, bookie, loss)
        await _check_others(metadata, pool, ledger, loss)
    changed = ledger.given_up(loss)
    if len(changed.lost) > LOSSES_MAX:
        raise InvalidRequest(
            f"ledger {ledger_id} has {len(ledger.lost)} stretches that are declared lost, the most there can"
            " be: declare longer ones"
        )
    share = transactions.change_ops(ledger, changed, version)
    if not (await metadata.transact(share)).succeeded:
        raise VersionConflict(f"ledger {ledger_id} was changed meanwhile: look again")
    return changed


async def _check_without(
    metadata: Metadata, pool: Connections, ledger: LedgerMetadata, bookie: str, loss: DeclaredLoss
) -> None:
    """Raises `InvalidRequest` where a bookie has an entry that it should hold, or may have it."""
    stretches = wanted(ledger, MissingRange(bookie, loss.first, loss.last + 1))
    if not stretches:
        return
    client = pool.get(bookie)
    if client is None:
        if await metadata.get(keys.bookie_key(bookie)) is None:
            return  # it is away: whoever says that they are lost says that it does not come back
        raise InvalidRequest(f"bookie {bookie} is registered and cannot be asked: it may have them")
    held = await list_held(ledger, client)
    if not held.known:
        raise InvalidRequest(f"bookie {bookie} may have lost them, and may have them (limbo)")
    for stretch in stretches:
        for first, count in held.ranges:
            if first <= stretch.last and first + count > stretch.first:
                raise InvalidRequest(
                    f"bookie {bookie} has entries from {max(first, stretch.first)} on: they are not lost"
                )


async def _check_others(
    metadata: Metadata, pool: Connections, ledger: LedgerMetadata, loss: DeclaredLoss
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
            held = EntryList([], known=True)
            with suppress(DistributedLogError):
                held = await list_held(ledger, client)
            for first, count in held.ranges:
                if first <= loss.last and first + count > loss.first:
                    raise InvalidRequest(
                        f"bookie {bookie} has entries from {max(first, loss.first)} on, though the record"
                        " does not name it (any more): they are not lost"
                    )


async def close_at(
    metadata: Metadata,
    pool: Connections,
    ledger_id: int,
    end: int,
    *,
    by: str,
    why: str,
    even_so: bool = False,
) -> LedgerMetadata:
    """Fence an open ledger where that can be done, and close it with ``end`` as its last entry; -1: empty.

    Raises `InvalidRequest` where a bookie knows more to be confirmed, or entry ``end`` cannot be read from
    anybody; where one has an entry after it, or may have, or takes entries still, for all we know (not
    ``even_so``); `NoSuchLedger`, `VersionConflict`.
    """
    ledger, version = await _record(metadata, ledger_id)
    if ledger.state is LedgerState.OPEN:
        marked = transactions.change_ops(ledger, ledger.in_recovery(), version)
        await metadata.transact(marked)
        ledger, version = await _record(metadata, ledger_id)
    if ledger.state is not LedgerState.IN_RECOVERY:
        raise InvalidRequest(f"ledger {ledger_id} is {ledger.state.value}: its end is known")
    clients = [client for one in ledger.bookies() if (client := pool.get(one)) is not None]
    confirmed = ledger.last_fragment.first_entry - 1
    doubts: list[str] = []
    for bookie in ledger.last_fragment.bookies:
        answer = await _fenced(ledger, pool.get(bookie))
        if answer is not None:
            confirmed = max(confirmed, answer.lac)
            if answer.last_entry > end:
                doubts.append(f"bookie {bookie} has entry {answer.last_entry}")
            elif not answer.known:
                doubts.append(f"bookie {bookie} may have lost entries after that (limbo)")
        elif await metadata.get(keys.bookie_key(bookie)) is not None:
            # A writer that reaches it may be told that its entries are stored.
            doubts.append(f"bookie {bookie} is registered and does not answer: it may have more")
    if confirmed > end:
        raise InvalidRequest(
            f"ledger {ledger_id} is confirmed to entry {confirmed}: it may have been read that far"
        )
    if doubts and not even_so:
        raise InvalidRequest(f"ledger {ledger_id} is not known to end there: {'; '.join(doubts)}")
    length = await _length_at(ledger, clients, end)
    custom = {"closed_by": by.encode(), "closed_why": why.encode()}
    closed = ledger.close_by_recovery(end, length, ledger.ensembles).with_custom(custom)
    share = transactions.recovery_ops(ledger, closed, version, (), None)
    if not (await metadata.transact(share)).succeeded:
        raise VersionConflict(f"ledger {ledger_id} was changed meanwhile: look again")
    return closed


async def _fenced(ledger: LedgerMetadata, client: BookieClient | None) -> FenceAnswer | None:
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
            answer = await client.read(
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
        found = consecutive(answer.body, ledger.ledger_id, end)
        if found:
            return found[0].length_so_far
    raise InvalidRequest(
        f"ledger {ledger.ledger_id}: nobody who answers has entry {end}; say an end that can be read"
    )


async def _record(metadata: Metadata, ledger_id: int) -> tuple[LedgerMetadata, int]:
    found = await metadata.get(keys.ledger_key(ledger_id))
    if found is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    return LedgerMetadata.decode(found.key, found.value), found.version
