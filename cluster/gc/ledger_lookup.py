"""Which ledgers there are: asked before a bookie removes one (H21), or lets an old one begin (H89)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import trio

from ...bookie.ledgers.ledger_existence import LedgerStatus
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_ids import next_of
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import why_held

NEIGHBOURS = 16
"""Ledgers whose ids are no further apart are looked up in one range: the rows between, of other bookies'
ledgers, cost less than another question."""
TOMBSTONES_EVERY_S = 3600.0
"""The bound of tombstones is the next ledger id of so long ago: ids of new ledgers were taken later
(`ledger/model/ledger_ids.py`), so those begin without a question."""

log = get_logger("distributedlog.cluster.gc.ledger_lookup")


async def missing_ledgers(metadata: Metadata, asked: Sequence[int]) -> set[int]:
    """Those of the ids ``asked``, ascending, that name no ledger, now. Linearizable: a No is proof (H21).

    None is missing while deletions are held: what the metadata lacks may be newer than its save (H104).
    """
    missing = {keys.ledger_key(ledger_id): ledger_id for ledger_id in asked}
    async for item in _records(metadata, asked):
        missing.pop(item.key, None)
    if missing and await why_held(metadata):
        return set()
    return set(missing.values())


async def ledger_statuses(metadata: Metadata, asked: Sequence[int]) -> dict[int, LedgerStatus]:
    """How each of the ids ``asked``, ascending, stands now. Linearizable.

    One whose record cannot be read is left out: of it nothing can be told.
    """
    found = dict.fromkeys(asked, LedgerStatus.GONE)
    wanted = {keys.ledger_key(ledger_id): ledger_id for ledger_id in asked}
    async for item in _records(metadata, asked):
        ledger_id = wanted.get(item.key)
        if ledger_id is None:
            continue
        try:
            state = LedgerMetadata.decode(item.key, item.value).state
        except (CorruptData, UnsupportedFormat) as error:
            log.warning("ledger %d: %s", ledger_id, error)
            del found[ledger_id]
            continue
        if state is LedgerState.OPEN:
            found[ledger_id] = LedgerStatus.OPEN
        elif state is not LedgerState.DELETING:
            found[ledger_id] = LedgerStatus.ENDED
    return found


async def _records(metadata: Metadata, asked: Sequence[int]) -> AsyncIterator[KeyValue]:
    """The records of these ledgers, and of some that lie between."""
    spans: list[tuple[int, int]] = []
    for ledger_id in asked:
        if spans and ledger_id - spans[-1][1] <= NEIGHBOURS:
            spans[-1] = (spans[-1][0], ledger_id)
        else:
            spans.append((ledger_id, ledger_id))
    for first, last in spans:
        async for item in Scan(metadata, keys.ledger_key(first), keys.ledger_key(last) + b"\0"):
            yield item


async def end_tombstones(
    metadata: Metadata, move: Callable[[int], Awaitable[None]], failures: WorkFailures
) -> None:
    """Move the bound below which a bookie needs no tombstones, until cancelled (H89).

    ``move`` is `Store.end_tombstones`. It stays while deletions are held (H104).
    """
    before = 0
    unit = "the end of tombstones"
    while True:
        # A failed try is repeated soon. The bound is still the ID of an hour before.
        with failures.contained(unit, every_s=TOMBSTONES_EVERY_S) as attempt:
            try:
                found = await metadata.get(keys.NEXT_LEDGER)
                following = 0 if found is None else next_of(found.value)
                held = await why_held(metadata)
            except (
                DistributedLogError
            ) as error:  # whatever it is: the bound moves with the next look
                log.info("tombstones stay: %s: %s", type(error).__name__, error)
            else:
                if before and not held:
                    await move(before)
                before = following
        await trio.sleep(
            failures.wait_s(unit, TOMBSTONES_EVERY_S) if attempt.failed else TOMBSTONES_EVERY_S
        )
