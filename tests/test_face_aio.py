"""The asyncio face, over a model of the ledger part."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from distributedlog import aio
from distributedlog.aio import Namespace
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LogNotFound,
    OwnershipAcquireFailed,
    TransactionIdOutOfOrder,
    WriterFenced,
)
from distributedlog.write_buffer import BUFFER_BYTES_MAX
from tests.face_world import model_namespace


def run(body: Callable[[Namespace], Awaitable[None]]) -> None:
    async def main() -> None:
        opened = aio._Opened(model_namespace("alpha"), "test", Namespace)
        async with opened as namespace:
            await body(namespace)

    asyncio.run(asyncio.wait_for(main(), 20))


def rec(txid: int, payload: bytes = b"x") -> LogRecord:
    return LogRecord(txid, payload)


def test_write_and_read() -> None:
    async def body(namespace: Namespace) -> None:
        await namespace.create_log("l", txids="strict")
        assert [name async for name in namespace.logs()] == ["l"]
        log = namespace.open_log("l")
        async with log.open_writer() as writer:
            assert await writer.write(rec(1)) == DLSN(1, 0, 0)
            pending = [await writer.submit(rec(i)) for i in range(1, 3000)]
            dlsns = [await p for p in pending]
            assert dlsns == sorted(set(dlsns))
            assert pending[0].result() == dlsns[0]
            assert await writer.commit() == dlsns[-1] == await log.last_dlsn()
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.submit(rec(1))
            assert len(await writer.write_bulk([rec(3000)] * 5)) == 5
            await writer.flush()
            assert writer.last_txid == 3000
        async with log.open_reader(to="end") as reader:
            first = await reader.read_next()
            assert first is not None
            assert first.sequence_id == 0
            rest = await reader.read_bulk(4, wait_s=1)
            columns = await reader.read_columns()
            assert columns is not None
            count = 1 + len(rest) + columns.count
            async for _ in reader:
                count += 1
            assert count == 3005
        assert (await log.describe()).records == 3005

    run(body)


def test_a_tail_waits_without_holding_the_loop() -> None:
    async def body(namespace: Namespace) -> None:
        log = namespace.open_log("l")
        async with log.open_writer() as writer, log.open_reader(at="latest") as reader:
            waiting = asyncio.create_task(reader.read_next())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await writer.write(rec(7))
            record = await waiting
            assert record is not None
            assert record.txid == 7
            cancelled = asyncio.create_task(reader.read_next())
            await asyncio.sleep(0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await writer.write(rec(8))
            record = await reader.read_next()
            assert record is not None
            assert record.txid == 8

    run(body)


def test_a_cancelled_write_stays_written() -> None:
    """H31, in this face."""

    async def body(namespace: Namespace) -> None:
        ledgers = namespace._namespace.ledgers
        log = namespace.open_log("l")
        async with log.open_writer() as writer:
            ledgers.held = True  # type: ignore[attr-defined]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(writer.write(rec(1)), 0.05)
            pending = await writer.submit(rec(2))
            with pytest.raises(InvalidRequest):
                pending.result()
            writer._background.post(ledgers.release)  # type: ignore[attr-defined]
            await pending
        async with log.open_reader(to="end") as reader:
            assert [r.txid async for r in reader] == [1, 2]

    run(body)


def test_owners_and_ends() -> None:
    async def body(namespace: Namespace) -> None:
        log = namespace.open_log("l")
        first = await log.open_writer()
        with pytest.raises(OwnershipAcquireFailed):
            await log.open_writer(wait_s=0)
        async with log.open_writer(takeover=True):
            with pytest.raises(WriterFenced):
                await first.write(rec(1))
        await first.abort()
        reader = await log.open_reader()
        await reader.aclose()
        with pytest.raises(AlreadyClosed):
            await reader.read_next()
        await namespace.delete_log("l")
        assert not await namespace.log_exists("l")
        with pytest.raises(LogNotFound):
            await log.open_reader()

    run(body)


def test_a_list_may_be_changed_while_its_records_wait() -> None:
    """By another task of the program: what was checked is what is written."""

    async def body(namespace: Namespace) -> None:
        log = namespace.open_log("l")
        number = 3 * BUFFER_BYTES_MAX // 500_000
        async with log.open_writer() as writer:
            txids, payloads = list(range(number)), [b"%02d" % n * 250_000 for n in range(number)]
            wanted = list(zip(txids, payloads, strict=True))
            waiting = asyncio.create_task(writer.submit_columns(txids, payloads))
            await asyncio.sleep(0)
            assert not waiting.done()
            txids[:], payloads[:] = [-1], ["no bytes"]  # type: ignore[list-item]
            await (await waiting)
        async with log.open_reader(to="end") as reader:
            assert [(r.txid, r.payload) async for r in reader] == wanted

    run(body)
