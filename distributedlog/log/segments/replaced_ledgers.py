"""Ledgers that a merge has replaced: kept for a while for readers with old locations, then deleted.

    retired/<log id>/<ledger id>    -> nothing: the segments of this ledger are in another one now

The key alone proves nothing, because any client can have written it. The ledger's own record has its segment,
and that segment's record has the present location. The deletion is conditional on both.
"""

from collections.abc import Awaitable, Callable

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Transaction
from ...runtime.interfaces.errors import CorruptData, NoSuchLedger
from ...runtime.interfaces.log_lines import get_logger
from ..interfaces.segment_store import LedgerFinder
from ..model.log_keys import parse_replaced_key, replaced_ledgers_prefix, segment_key
from ..model.segment_record import SegmentRecord

log = get_logger("distributedlog.log")

DeletionOps = Callable[[int], Awaitable[Transaction]]
"""Given a ledger ID, returns the operations that mark the ledger as DELETING. They are empty if the ledger
was deleted."""


async def delete_replaced(
    metadata: Metadata, ledgers: LedgerFinder, delete_ops: DeletionOps, item: KeyValue
) -> bool:
    """Delete the ledger of a ``retired/`` key, unless a segment is still in it.

    The key is deleted in any case, except if another client changed a compared key at the same time. The call
    can then be repeated.

    Returns:
        True if the ledger is deleted, now or earlier. False if a segment is still in it, or the transaction
        failed.
    Raises:
        CorruptData: The key is invalid.
        DistributedLogError: The metadata did not answer.
    """
    log_id, ledger_id = parse_replaced_key(item.key)
    compares = [Compare.version(item.key, item.version)]
    ledger_ops, is_replaced = Transaction(), True
    try:
        owner = (await ledgers.find(ledger_id)).owner
    except NoSuchLedger:
        pass
    else:
        if owner is None or owner[0] != log_id:
            is_replaced = False
        else:
            owner_key = segment_key(*owner)
            stored_segment = await metadata.get(owner_key)
            compares.append(
                Compare.version(owner_key, 0 if stored_segment is None else stored_segment.version)
            )
            if (
                stored_segment is not None
                and SegmentRecord.decode(stored_segment.value).ledger_id == ledger_id
            ):
                is_replaced = False
    if is_replaced:
        ledger_ops = await delete_ops(ledger_id)
    else:
        log.warning("ledger %d is kept: no merge of log %016x replaced it", ledger_id, log_id)
    reply = await metadata.transact(Transaction(tuple(compares), (Delete(item.key),)) + ledger_ops)
    return is_replaced and reply.succeeded


async def delete_all_replaced(metadata: Metadata, delete_ops: DeletionOps, log_id: int) -> None:
    """Delete all replaced ledgers of a log that is being deleted, because it has no readers any more."""
    async for item in Scan(metadata, replaced_ledgers_prefix(log_id)):
        try:
            _, ledger_id = parse_replaced_key(item.key)
        except CorruptData as error:
            log.warning("skipped: %s", error)
            continue
        key_deletion = Transaction((), (Delete(item.key),))
        await metadata.transact(key_deletion + await delete_ops(ledger_id))
