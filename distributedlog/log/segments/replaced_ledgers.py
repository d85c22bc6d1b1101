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
from ..model.log_keys import ids_of_retired, retired_prefix, segment_key
from ..model.segment_record import SegmentRecord

log = get_logger("distributedlog.log")

DeletionOps = Callable[[int], Awaitable[Transaction]]
"""Of a ledger, by id: the share that turns it to DELETING; empty where it is gone."""


async def delete_replaced(
    metadata: Metadata, ledgers: LedgerFinder, deletion_share: DeletionOps, item: KeyValue
) -> bool:
    """Delete the ledger that a ``retired/`` key names; False where a segment still lies in it.

    The key goes in any case but where somebody was at it at the same time: then the call may be repeated.
    Raises `CorruptData`, and what the metadata raises.
    """
    log_id, ledger_id = ids_of_retired(item.key)
    compares = [Compare.version(item.key, item.version)]
    share, gone = Transaction(), True
    try:
        owner = (await ledgers.find(ledger_id)).owner
    except NoSuchLedger:
        pass
    else:
        if owner is None or owner[0] != log_id:
            gone = False
        else:
            at = segment_key(*owner)
            found = await metadata.get(at)
            compares.append(Compare.version(at, 0 if found is None else found.version))
            if found is not None and SegmentRecord.decode(found.value).ledger_id == ledger_id:
                gone = False
    if gone:
        share = await deletion_share(ledger_id)
    else:
        log.warning("ledger %d stays: it was not left by a merge of log %016x", ledger_id, log_id)
    reply = await metadata.transact(Transaction(tuple(compares), (Delete(item.key),)) + share)
    return gone and reply.succeeded


async def sweep_replaced(metadata: Metadata, deletion_share: DeletionOps, log_id: int) -> None:
    """Delete all that merges have left of a log that is being deleted: nobody reads it any more."""
    async for item in Scan(metadata, retired_prefix(log_id)):
        try:
            _, ledger_id = ids_of_retired(item.key)
        except CorruptData as error:
            log.warning("passed over: %s", error)
            continue
        own = Transaction((), (Delete(item.key),))
        await metadata.transact(own + await deletion_share(ledger_id))
