"""A writer and a tailing reader of one log with Trio, on a new cluster or on the one of a URI.

python examples/write_and_tail.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import sys
import time

import trio

from distributedlog import Log, LogRecord, local_cluster, open_namespace

RECORDS = 20


async def write(log: Log) -> None:
    """Write one record every 50 ms. Each is durable before the next one is written."""
    async with log.open_writer() as writer:
        for number in range(RECORDS):
            sent = time.perf_counter()
            dlsn = await writer.write(LogRecord(number, b"%.6f" % sent))
            print(f"wrote {dlsn} in {1000 * (time.perf_counter() - sent):.2f} ms")
            await trio.sleep(0.05)


async def tail(log: Log, task_status: trio.TaskStatus[None]) -> None:
    """Read new records as they arrive."""
    async with log.open_reader(at="latest") as reader:
        task_status.started()
        for _ in range(RECORDS):
            record = await reader.read_next()
            assert record is not None
            age_ms = 1000 * (time.perf_counter() - float(record.payload))
            print(f"read  {record.dlsn} {age_ms:.2f} ms after the call of write")


async def run(uri: str) -> None:
    """Run the writer and the reader concurrently."""
    async with open_namespace(uri) as namespace:
        if not await namespace.log_exists("example"):
            await namespace.create_log("example")
        log = namespace.open_log("example", config={"max_txid_check": False})
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: tail(log, task_status))
            await write(log)


async def main() -> None:
    """Run on the cluster of the command line, or on a new one."""
    if len(sys.argv) > 1:
        await run(sys.argv[1])
    else:
        async with local_cluster() as cluster:
            await run(cluster.uri)


if __name__ == "__main__":
    trio.run(main)
