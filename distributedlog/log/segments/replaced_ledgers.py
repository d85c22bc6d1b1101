"""Ledgers that a merge has left: kept for a while for readers that know no better, then deleted.

    retired/<log id>/<ledger id>    -> nothing: the log's segments of it lie elsewhere now

The key alone proves nothing, whoever wrote it: the ledger's own record says whose segment it was, and that
segment's record where it lies now. The deletion is conditional on both.
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
"""Of a ledger, by id: the share that turns it to DELETING; empty where it is gone."""


async def delete_replaced(
    metadata: Metadata, ledgers: LedgerFinder, delete_ops: DeletionOps, item: KeyValue
) -> bool:
    """Delete the ledger that a ``retired/`` key names; False where a segment still lies in it.

    The key goes in any case but where somebody was at it at the same time: then the call may be repeated.
    Raises `CorruptData`, and what the metadata raises.
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
        log.warning("ledger %d stays: it was not left by a merge of log %016x", ledger_id, log_id)
    reply = await metadata.transact(Transaction(tuple(compares), (Delete(item.key),)) + ledger_ops)
    return is_replaced and reply.succeeded


async def delete_all_replaced(metadata: Metadata, delete_ops: DeletionOps, log_id: int) -> None:
    """Delete all that merges have left of a log that is being deleted: nobody reads it any more."""
    async for item in Scan(metadata, replaced_ledgers_prefix(log_id)):
        try:
            _, ledger_id = parse_replaced_key(item.key)
        except CorruptData as error:
            log.warning("passed over: %s", error)
            continue
        key_deletion = Transaction((), (Delete(item.key),))
        await metadata.transact(key_deletion + await delete_ops(ledger_id))
