"""L8: once everything is healed, repair brings every closed ledger to all the copies its record names; and
those of a new one stand in more than one rack, where there is more than one.

Asked from outside, as a client sees it: each bookie of each ensemble is connected and lists what it holds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..cluster.copying import lacking, list_held
from ..ledger import keys
from ..ledger.metadata import LedgerMetadata
from ..metadata.interface import Scan
from ..runtime.errors import DistributedLogError


async def missing_copies(namespace: Any, wanted: Callable[[int], bool]) -> list[str]:
    """What is missing now, in words; empty when every closed ledger that is wanted has all its copies."""
    pool = namespace.ledgers.pool
    found: list[str] = []
    async for item in Scan(namespace.metadata, keys.LEDGER_PREFIX):
        ledger = LedgerMetadata.decode(item.key, item.value)
        if not ledger.closed or not wanted(ledger.ledger_id):
            continue
        for bookie in ledger.bookies():
            client = pool.get(bookie)
            if client is None:
                found.append(f"ledger {ledger.ledger_id}: bookie {bookie[:8]} is not there")
                continue
            try:
                gaps = lacking(ledger, bookie, await list_held(ledger, client))
            except DistributedLogError as error:
                found.append(f"ledger {ledger.ledger_id}: bookie {bookie[:8]}: {error}")
                continue
            found += [
                f"ledger {ledger.ledger_id}: bookie {bookie[:8]} lacks {gap.first} to {gap.last}"
                for gap in gaps
            ]
    return found


async def together(namespace: Any, racks: Sequence[str]) -> str:
    """Why a new ledger would have all its copies in one of these racks; or ""."""
    pool = namespace.ledgers.pool
    there = {one.labels.get("rack", "") for one in pool.candidates()}
    if len(there) < len({*racks}):
        return f"of {racks} there are {sorted(there)}"
    bookies = (await namespace.ledgers.prepare()).metadata.bookies()
    chosen = {pool.labels(one).get("rack", "") for one in bookies}
    return "" if len(chosen) >= min(2, len(there)) else f"a new ledger in {chosen} of {there}"
