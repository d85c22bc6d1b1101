"""Check which ledgers exist, before a bookie removes one (H21) or accepts an old one as new (H89)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import trio

from ...bookie.ledgers.ledger_existence import LedgerStatus
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_ids import decode_next_ledger
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import hold_reason

NEIGHBOR_GAP_MAX = 16
"""Ledgers whose IDs are at most this far apart are read in one range.

The records in between, of other bookies' ledgers, cost less than another request.
"""
TOMBSTONES_EVERY_S = 3600.0
"""The tombstone limit is the next ledger ID of this long ago.

IDs of new ledgers are assigned later (`ledger/model/ledger_ids.py`), so a bookie accepts those without a
check.
"""

log = get_logger("distributedlog.cluster.gc.ledger_lookup")


async def missing_ledgers(metadata: Metadata, ledger_ids: Sequence[int]) -> set[int]:
    """Return the IDs without a ledger, by a linearizable read, so that absence is proven (H21).

    While deletions are on hold, no ledger is reported as missing: the metadata may lack ledgers that are
    newer than its backup (H104).

    Args:
        metadata: The metadata store.
        ledger_ids: The IDs, in ascending order.
    """
    missing = {keys.ledger_key(ledger_id): ledger_id for ledger_id in ledger_ids}
    async for item in _records(metadata, ledger_ids):
        missing.pop(item.key, None)
    if missing and await hold_reason(metadata):
        return set()
    return set(missing.values())


async def ledger_statuses(metadata: Metadata, ledger_ids: Sequence[int]) -> dict[int, LedgerStatus]:
    """Return the present status of ledgers, by a linearizable read.

    A ledger whose record is unreadable is left out.

    Args:
        metadata: The metadata store.
        ledger_ids: The IDs, in ascending order.
    """
    statuses = dict.fromkeys(ledger_ids, LedgerStatus.DELETED)
    id_of_key = {keys.ledger_key(ledger_id): ledger_id for ledger_id in ledger_ids}
    async for item in _records(metadata, ledger_ids):
        ledger_id = id_of_key.get(item.key)
        if ledger_id is None:
            continue
        try:
            state = LedgerMetadata.decode(item.key, item.value).state
        except (CorruptData, UnsupportedFormat) as error:
            log.warning("ledger %d: %s", ledger_id, error)
            del statuses[ledger_id]
            continue
        if state is LedgerState.OPEN:
            statuses[ledger_id] = LedgerStatus.OPEN
        elif state is not LedgerState.DELETING:
            statuses[ledger_id] = LedgerStatus.ENDED
    return statuses


async def _records(metadata: Metadata, ledger_ids: Sequence[int]) -> AsyncIterator[KeyValue]:
    """Yield the records of these ledgers, and of some in between."""
    id_ranges: list[tuple[int, int]] = []
    for ledger_id in ledger_ids:
        if id_ranges and ledger_id - id_ranges[-1][1] <= NEIGHBOR_GAP_MAX:
            id_ranges[-1] = (id_ranges[-1][0], ledger_id)
        else:
            id_ranges.append((ledger_id, ledger_id))
    for first, last in id_ranges:
        async for item in Scan(metadata, keys.ledger_key(first), keys.ledger_key(last) + b"\0"):
            yield item


async def end_tombstones(
    metadata: Metadata, move_limit: Callable[[int], Awaitable[None]], failures: WorkFailures
) -> None:
    """Move the limit below which a bookie needs no tombstones, until cancelled (H89).

    The limit does not move while deletions are on hold (H104).

    Args:
        metadata: The metadata store.
        move_limit: Sets the limit, as `BookieStore.drop_tombstones`.
        failures: Counts failures, and delays retries.
    """
    earlier_next_id = 0
    unit = "the removal of tombstones"
    while True:
        # A failed attempt is repeated soon. The limit is still the ID of an hour before.
        with failures.attempt(unit, every_s=TOMBSTONES_EVERY_S) as attempt:
            try:
                item = await metadata.get(keys.NEXT_LEDGER)
                next_id = 0 if item is None else decode_next_ledger(item.value)
                reason = await hold_reason(metadata)
            except (
                DistributedLogError
            ) as error:  # of any kind: the limit moves with the next attempt
                log.info("tombstones are kept for now: %s: %s", type(error).__name__, error)
            else:
                if earlier_next_id and not reason:
                    await move_limit(earlier_next_id)
                earlier_next_id = next_id
        await trio.sleep(
            failures.next_try_s(unit, TOMBSTONES_EVERY_S) if attempt.failed else TOMBSTONES_EVERY_S
        )
