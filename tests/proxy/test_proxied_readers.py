"""Readers through read proxies, over sockets: all have the same, also when a proxy goes."""

from collections.abc import AsyncIterator

import pytest
import trio

from distributedlog import DLSN, LogRecord, Position, open_namespace
from distributedlog.blocking import open_namespace as open_blocking
from distributedlog.cluster.declarations.options import READ_PROXY
from distributedlog.log.log import Log
from distributedlog.runtime.interfaces.errors import (
    EndOfStream,
    InvalidRequest,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from distributedlog.uri import format_address

from .proxy_world import world

RECORDS, READERS = 300, 12


async def records_of(log: Log, number: int) -> AsyncIterator[tuple[DLSN, int, bytes]]:
    async with log.open_reader() as reader:
        for _ in range(number):
            record = await reader.read_next(wait_s=30)
            assert record is not None
            yield record.dlsn, record.sequence_id, bytes(record.payload)


async def test_readers_of_all_faces_go_on_when_their_proxy_is_killed() -> None:
    """Scenario 32, small: through two proxies; the storage is read as by two readers. H192."""
    async with world() as it:
        await it.proxy("w1")
        first = await it.proxy("r1", READ_PROXY)
        second = await it.proxy("r2", READ_PROXY)
        places = ";".join(format_address(one.address) for one in (first, second))
        uri = f"distributedlog+proxy://{places}/default"
        kept: list[list[tuple[DLSN, int, bytes]]] = []

        def blocking() -> None:
            with open_blocking(uri) as namespace, namespace.open_log("l").open_reader() as reader:
                found: list[tuple[DLSN, int, bytes]] = []
                while len(found) < RECORDS:
                    for record in reader.read_bulk(RECORDS - len(found), wait_s=0.1):
                        found.append((record.dlsn, record.sequence_id, bytes(record.payload)))
                kept.append(found)

        async def follow(log: Log) -> None:
            kept.append([one async for one in records_of(log, RECORDS)])

        async with open_namespace(uri) as namespace:
            await namespace.create_log("l", txids="count")
            log = namespace.open_log("l")
            async with trio.open_nursery() as nursery:
                for _ in range(READERS):
                    nursery.start_soon(follow, log)
                nursery.start_soon(trio.to_thread.run_sync, blocking)
                async with log.open_writer() as writer:
                    for number in range(RECORDS):
                        await writer.write(b"%d" % number)
                        if number == RECORDS // 2:
                            it.scopes["r1"].cancel()
                    await writer.commit()

            assert kept[0] == [(dlsn, n, b"%d" % n) for n, (dlsn, _, _) in enumerate(kept[0])]
            assert kept == [kept[0]] * (READERS + 1)
            await it.proxy("r3", READ_PROXY)
            async with log.open_reader(to="end") as reader:
                assert len([record async for record in reader]) == RECORDS


async def test_a_reader_behind_proxies_begins_where_it_is_told_to() -> None:
    async with world() as it:
        node = await it.proxy("r1", READ_PROXY)
        direct = it.namespace.open_log("l")
        async with direct.open_writer() as writer:
            places = [await writer.write(LogRecord(10 * n, b"%d" % n)) for n in range(20)]
            await writer.commit()
        uri = f"distributedlog+proxy://{format_address(node.address)}/default"
        async with open_namespace(uri) as namespace:
            log = namespace.open_log("l")
            async with log.open_reader(dlsn=places[4], to=places[6]) as reader:
                assert [record.txid async for record in reader] == [40, 50, 60]
                position = reader.position
            assert position is not None
            async with log.open_reader(position=position) as reader:
                assert [one.txid for one in await reader.read_bulk(2, wait_s=5)] == [70, 80]
            async with log.open_reader(txid=155, to="end") as reader:
                assert (reader.position, reader.incarnation) == (None, position.incarnation)
                assert [record.txid async for record in reader] == [160, 170, 180, 190]
            async with log.open_reader(at="latest") as reader:
                assert await reader.read_next(wait_s=0.05) is None
                assert (await reader.idle()).since_response_s < 5
            with pytest.raises(InvalidRequest, match="distributedlog://"):
                await log.open_reader(broken="skip")
            with pytest.raises(LogNotFound):
                await namespace.open_log("none").open_reader()
            await direct.truncate(places[10])
            with pytest.raises(LogTruncated):
                await log.open_reader(position=position)
            other = Position("0123456789abcdef", DLSN.INITIAL, 0)
            with pytest.raises(LogRecreated):
                await log.open_reader(position=other)
            await direct.seal()
            async with log.open_reader() as reader:
                assert len(await reader.read_bulk(10, wait_s=5)) == 10
                with pytest.raises(EndOfStream):
                    await reader.read_next()
