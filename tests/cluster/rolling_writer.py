"""Writes lines into a log in small segments: ``rolling_writer.py LOG TAG ROLLS``; one more segment a roll."""

import os
import sys

import trio

from distributedlog import LogRecord, open_namespace

RECORD = b"x" * 1000
SEGMENT_BYTES = 64 * 1024


async def main(name: str, tag: str, rolls: int) -> None:
    """Write about ``rolls`` segments and a bit."""
    config = {"segment_bytes_max": SEGMENT_BYTES}
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        log = namespace.open_log(name, config=config)
        async with log.open_writer() as writer:
            txid = max(0, writer.last_txid)
            first = writer.segment
            count = 0
            with trio.fail_after(60):
                while writer.segment < first + rolls or count < 20:
                    await writer.write(LogRecord(txid, b"%s %d " % (tag.encode(), count) + RECORD))
                    count += 1


trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
