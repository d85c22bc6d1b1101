"""A program with full annotations, which type checkers read next to the installed wheel."""

from typing import assert_type

import trio

from distributedlog import DLSN, LogRecord, Namespace, aio, blocking, open_namespace


async def write_and_read(uri: str) -> list[DLSN]:
    """Use the trio API."""
    positions: list[DLSN] = []
    async with open_namespace(uri) as namespace:
        assert_type(namespace, Namespace)
        log = namespace.open_log("orders")
        async with log.open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))
            assert_type(dlsn, DLSN)
        async with log.open_reader(to="end") as reader:
            async for record in reader:
                positions.append(record.dlsn)
    return positions


def write_blocking(uri: str) -> DLSN:
    """Use the blocking API."""
    with blocking.open_namespace(uri) as namespace:
        assert_type(namespace, blocking.Namespace)
        with namespace.open_log("orders").open_writer() as writer:
            dlsn = writer.write(LogRecord(txid=2, payload=b"second"))
            assert_type(dlsn, DLSN)
            return dlsn


async def write_asyncio(uri: str) -> DLSN:
    """Use the asyncio API."""
    async with (
        aio.open_namespace(uri) as namespace,
        namespace.open_log("orders").open_writer() as writer,
    ):
        dlsn = await writer.write(LogRecord(txid=3, payload=b"third"))
        assert_type(dlsn, DLSN)
        return dlsn


if __name__ == "__main__":
    print(trio.run(write_and_read, "distributedlog://127.0.0.1:4181/ns"))
