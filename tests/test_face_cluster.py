"""The faces on a whole cluster: real nodes in this process, in memory, over loopback."""

import pytest
import trio

from distributedlog import LogRecord, blocking, local_cluster, open_namespace
from distributedlog.runtime.interfaces.errors import (
    LogNotFound,
    OwnershipAcquireFailed,
    QuorumUnreachable,
    WriterFenced,
)


async def test_a_log_over_rolls_takeovers_and_readers() -> None:
    """G1, G2, G4, on the real parts below."""
    with trio.fail_after(60):
        async with (
            local_cluster(memory=True, in_process=True) as cluster,
            open_namespace(cluster.uri, config={"owner": "A"}) as a,
            open_namespace(cluster.uri, config={"owner": "B"}) as b,
        ):
            small = {"segment_bytes_max": 20_000, "entry_bytes_max": 4000}
            log = a.open_log("orders", config=small)
            written = []
            first = await log.open_writer()
            async with log.open_reader() as tail:
                for i in range(30):
                    written += await first.write_bulk([LogRecord(i, bytes(500))] * 5)
                found = await tail.read_bulk(150, wait_s=20)
                assert [r.dlsn for r in found] == written
                assert [r.sequence_id for r in found] == list(range(150))
                assert first.segment >= 3

                with pytest.raises(OwnershipAcquireFailed, match="written by A"):
                    await b.open_log("orders").open_writer(wait_s=0)
                async with b.open_log("orders").open_writer(takeover=True) as second:
                    written.append(await second.write(LogRecord(99, b"B")))
                    with pytest.raises(WriterFenced):
                        await first.write(LogRecord(99, b"never"))
                last = await tail.read_next(wait_s=20)
                assert last is not None
                assert (last.dlsn, last.sequence_id, last.payload) == (written[-1], 150, b"B")

            for txid, index in ((7, 35), (29, 145), (30, 150)):
                async with log.open_reader(txid=txid, to="end") as reader:
                    record = await reader.read_next()
                    assert record is not None
                    assert record.dlsn == written[index]
            async with log.open_reader(dlsn=written[77], to="end") as reader:
                assert [r.dlsn async for r in reader] == written[77:]
            shown = await log.describe()
            assert shown.records == 151
            assert all(segment.closed for segment in shown.segments)
            await first.abort()
            await b.delete_log("orders")
            with pytest.raises(LogNotFound):
                await log.open_reader()


async def test_the_blocking_face_on_a_cluster() -> None:
    """README's first program, and 20,000 records after it."""
    with trio.fail_after(60):
        async with local_cluster(memory=True, in_process=True) as cluster:
            await trio.to_thread.run_sync(_first_program, cluster.uri)


def _first_program(uri: str) -> None:
    with blocking.open_namespace(uri) as namespace:
        namespace.create_log("orders")
        orders = namespace.open_log("orders")
        with orders.open_writer() as writer:
            pending = writer.submit(LogRecord(txid=1, payload=b"first"))
            writer.commit()
            assert str(pending.result()) == "1.0.0"
            for i in range(20_000):
                writer.submit(LogRecord(i + 1, b"%d" % i))
        with orders.open_reader(to="end") as reader:
            assert reader.read_next() is not None
            assert [int(r.payload) for r in reader] == list(range(20_000))


async def test_a_quorum_that_is_not_there_is_named_within_the_deadline() -> None:
    """Bad input: an unreachable quorum."""
    config = {"metadata_timeout_s": 0.3}
    with trio.fail_after(5), pytest.raises(QuorumUnreachable, match=r"127\.0\.0\.1:1"):
        async with open_namespace("distributedlog://127.0.0.1:1;127.0.0.1:2/ns", config=config):
            pass


async def test_writers_that_are_left_open_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A program that leaves its namespace with open writers lost what was on its way, without a message."""
    with trio.fail_after(60):
        async with local_cluster(memory=True, in_process=True) as cluster:
            async with open_namespace(cluster.uri) as namespace:
                await namespace.create_log("orders")
                writer = await namespace.open_log("orders").open_writer()
                for _ in range(2000):
                    await writer.submit(bytes(10))
            async with (
                open_namespace(cluster.uri) as namespace,
                namespace.open_log("orders").open_writer(takeover=True),
            ):
                assert await namespace.open_log("orders").count() == 2000
    assert not [one for one in caplog.records if "not known to be durable" in one.message]
