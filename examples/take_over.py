"""Two writers of one log: the second one is rejected, then takes over, and the first one is fenced.

python examples/take_over.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import sys
from secrets import token_hex

import trio

from distributedlog import (
    LogRecord,
    OwnershipAcquireFailed,
    WriterFenced,
    local_cluster,
    open_namespace,
)


async def run(uri: str) -> None:
    """Run two writers. Their namespaces stand for two processes."""
    shared = f"shared-{token_hex(4)}"
    async with (
        open_namespace(uri, config={"owner": "writer A"}) as one,
        open_namespace(uri, config={"owner": "writer B"}) as other,
    ):
        first = await one.open_log(shared).open_writer()
        await first.write(LogRecord(1, b"from A"))
        try:
            await other.open_log(shared).open_writer(wait_s=0)
        except OwnershipAcquireFailed as error:
            print(f"B is refused: {error}")
        async with other.open_log(shared).open_writer(takeover=True) as second:
            await second.write(LogRecord(2, b"from B"))
            try:
                await first.write(LogRecord(3, b"A again"))
            except WriterFenced as error:
                print(f"A is fenced: {error}")
        await first.abort()
        async with other.open_log(shared).open_reader(to="end") as reader:
            async for record in reader:
                print(record.dlsn, record.sequence_id, record.payload)


async def main() -> None:
    """Run on the cluster of the command line, or on a new one."""
    if len(sys.argv) > 1:
        await run(sys.argv[1])
    else:
        async with local_cluster() as cluster:
            await run(cluster.uri)


if __name__ == "__main__":
    trio.run(main)
