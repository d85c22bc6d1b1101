"""Is every entry of every closed ledger of a log on every bookie of its write set? ``count_copies.py LOG``"""

import json
import os
import sys
from typing import Any

import trio

from distributedlog import open_namespace
from distributedlog.cluster.repair.copier import ranges_to_hold, subtract
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.runtime.interfaces.errors import NoSuchLedger


async def main(name: str) -> None:
    """Print {"ledgers", "missing": [[ledger, bookie, first, last]]}."""
    missing: list[Any] = []
    ledgers = 0
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        pool: BookiePool = namespace.ledgers.pool  # type: ignore[attr-defined]
        found = await namespace.open_log(name).describe()
        for segment in found.segments:
            stored = await namespace.metadata.get(keys.ledger_key(segment.ledger_id))
            assert stored is not None
            ledger = LedgerMetadata.decode(stored.key, stored.value)
            if not ledger.closed:
                continue
            ledgers += 1
            for bookie in ledger.bookies():
                client = await pool.connected(bookie, 10.0)
                try:
                    listed = await client.list_entries(ledger.ledger_id, ledger.key, timeout_s=5)
                    present = list(listed.ranges)
                except NoSuchLedger:
                    present = []
                for gap in subtract(ranges_to_hold(ledger, MissingRange(bookie, 0, None)), present):
                    missing.append([ledger.ledger_id, bookie, gap.first, gap.last])
    print(json.dumps({"ledgers": ledgers, "missing": missing}))


trio.run(main, sys.argv[1])
