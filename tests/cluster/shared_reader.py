"""Reads a log with others: ``shared_reader.py subscribe|work LOG NAME OUT``; what it handled is in OUT.

A line a txid, written when it was handled, before the log is told. Exit code 5: what it held is another's.
Its lease is 2 s.
"""

import os
import sys
from pathlib import Path
from typing import TextIO

import trio

from distributedlog import ClaimLost, Log, SubscriptionLost, open_namespace

STRETCH_BYTES = 1000
PACE_S = 0.1
LOST = 5


async def subscribe(log: Log, name: str, out: TextIO) -> None:
    """Handle and commit a record at a time."""
    async with log.subscribe(name) as subscription:
        async for record in subscription.reader:
            print(record.txid, file=out, flush=True)
            await subscription.commit()
            await trio.sleep(PACE_S)


async def work(log: Log, name: str, out: TextIO) -> None:
    """Handle a stretch at a time, until the log's end; go on where one was lost."""
    async with log.work_queue(name) as queue:
        while (claim := await queue.claim(bytes_max=STRETCH_BYTES)) is not None:
            async with claim.open_reader() as reader:
                txids = [record.txid async for columns in reader for record in columns.records()]
            await trio.sleep(PACE_S)
            for txid in txids:
                print(txid, file=out, flush=True)
            try:
                await claim.done()
            except ClaimLost:
                print("lost", file=out, flush=True)


async def main(kind: str, name: str, queue: str, out: TextIO) -> None:
    """Until the end of the log."""
    config = {"lock_lease_s": 2.0}
    async with open_namespace(os.environ["DLOG_URI"], config=config) as namespace:
        call = {"subscribe": subscribe, "work": work}[kind]
        await call(namespace.open_log(name), queue, out)


if __name__ == "__main__":
    try:
        with Path(sys.argv[4]).open("w") as file:
            kind, name, queue = sys.argv[1:4]
            trio.run(main, kind, name, queue, file)
    except* SubscriptionLost:
        sys.exit(LOST)
