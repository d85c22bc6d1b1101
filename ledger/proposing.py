"""Has the metadata store take a round of an ensemble change: the driver of `ensemble_change.py`."""

import logging
from collections.abc import Callable

import trio

from ..metadata.interface import Metadata
from ..metadata.transaction import KeyValue
from ..runtime.errors import DistributedLogError, OutcomeUnknown
from . import shares
from .ensemble_change import EnsembleChange, Round
from .keys import ledger_key
from .metadata import LedgerMetadata

STORE_RETRY_S = 0.2

log = logging.getLogger("distributedlog.ledger")


async def propose(
    store: Metadata, change: EnsembleChange, round_: Round, ended: Callable[[], bool]
) -> int | None:
    """Return the record's version once it holds the round, however long the store takes.

    Only then may acks count on the new ensemble (D4). None: the writer has ``ended``. Raises why it must:
    `LedgerFenced`, `LedgerClosed`, `NoSuchLedger`.
    """
    ledger_id = change.metadata.ledger_id
    while not ended():
        assert round_.proposed is not None
        share = shares.change_share(change.metadata, round_.proposed, round_.version)
        try:
            reply = await store.transact(share)
            if reply.succeeded:
                return round_.version + 1
            found = reply.current[0]
        except OutcomeUnknown:
            found = await _look_up(store, ledger_id)
        except DistributedLogError as error:
            log.info("ledger %d: its ensemble cannot change now: %s", ledger_id, error)
            await trio.sleep(STORE_RETRY_S)
            continue
        if ended():
            break
        record = None if found is None else LedgerMetadata.decode(found.key, found.value)
        again = change.on_conflict(record, 0 if found is None else found.version)
        if again is None:
            assert found is not None
            return found.version
        round_ = again
    return None


async def _look_up(store: Metadata, ledger_id: int) -> KeyValue | None:
    while True:
        try:
            return await store.get(ledger_key(ledger_id))
        except DistributedLogError as error:
            log.info("ledger %d: its record cannot be read now: %s", ledger_id, error)
            await trio.sleep(STORE_RETRY_S)
