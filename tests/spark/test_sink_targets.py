"""What a task of the sink writes, and what the driver links, without Spark: real bookies in this process."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from distributedlog import (  # noqa: E402
    LogRecord,
    Namespace,
    blocking,
    local_cluster,
    open_namespace,
)
from distributedlog.log.app_versions import LinkContent  # noqa: E402
from distributedlog.runtime.errors import LinkMismatch, TransactionIdOutOfOrder  # noqa: E402
from distributedlog.spark.client import SparkClient, run  # noqa: E402
from distributedlog.spark.options import SinkOptions  # noqa: E402
from distributedlog.spark.sink import BatchWriter, contents_of  # noqa: E402
from distributedlog.spark.sink_columns import columns_of  # noqa: E402
from distributedlog.spark.sink_task import (  # noqa: E402
    AppendTarget,
    Identity,
    Message,
    SegmentTarget,
)

pytestmark = pytest.mark.extra
WHO = Identity("etl", 3, "")
OPTIONS = SinkOptions.parse({"uri": "distributedlog://h:1/n", "log": "out"}, "batch")


@asynccontextmanager
async def namespace_in_memory() -> AsyncIterator[Namespace]:
    async with (
        local_cluster(memory=True, in_process=True, metadata_nodes=1) as cluster,
        open_namespace(cluster.uri) as namespace,
    ):
        yield namespace


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with blocking.local_cluster(memory=True, metadata_nodes=1) as cluster:
        yield cluster.uri


async def append(namespace: Namespace, txid: int) -> None:
    async with namespace.open_log("out").open_writer() as writer:
        await writer.write(LogRecord(txid, b"another's"))


async def txids(namespace: Namespace) -> list[int]:
    async with namespace.open_log("out").open_reader(to="end") as reader:
        return [record.txid async for record in reader]


async def test_a_batch_without_txids_is_linked_whoever_appended_meanwhile() -> None:
    """It failed with `TransactionIdOutOfOrder`: its txid was drawn when the batch began."""
    async with namespace_in_memory() as namespace:
        await namespace.create_log("out")
        rows = columns_of(pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here")
        target = SegmentTarget(namespace.open_log("out"), OPTIONS, Message(0, WHO))
        await target.open()
        await target.write([rows])
        await append(namespace, 3_000_000_000_000)
        tokens = await target.finish()

        await namespace.open_log("out").link_segments(tokens)

        assert await txids(namespace) == [3_000_000_000_000] * 3


async def test_mode_append_takes_its_txids_as_the_logs_writer() -> None:
    """The task waited for its turn behind another writer: its records get that one's last txid, for whoever
    writes to this log gives them (H147)."""
    async with namespace_in_memory() as namespace:
        await append(namespace, 5)
        rows = columns_of(pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here")
        target = AppendTarget(namespace.open_log("out"), OPTIONS)
        await append(namespace, 2_000)
        await target.open()
        await target.write([rows])
        await target.write([rows])
        await target.finish()

        assert await txids(namespace) == [5, 2_000, 2_000, 2_000, 2_000, 2_000]


@pytest.mark.parametrize("payload", [b"late", bytes(1_030_000)])
async def test_mode_append_says_what_the_writer_refuses(payload: bytes) -> None:
    """It looked at no outcome: records whose txids went back were dropped, and the task succeeded."""
    async with namespace_in_memory() as namespace:
        await append(namespace, 5)
        rows = columns_of(
            pa.record_batch({"txid": [6, 4], "payload": pa.array([b"a", payload], pa.binary())}),
            "here",
        )
        target = AppendTarget(namespace.open_log("out"), OPTIONS)
        await target.open()
        with pytest.raises(TransactionIdOutOfOrder):
            await target.write([rows])
        await target.finish()


def test_what_tasks_counted_is_put_together_by_log() -> None:
    one, two = Message(0, WHO), Message(1, WHO)
    one.contents = {"a": LinkContent(2, 2**64 - 1), "b": LinkContent(1, 7)}
    two.contents = {"a": LinkContent(3, 3)}

    assert contents_of([one, None, two]) == {"a": LinkContent(5, 2), "b": LinkContent(1, 7)}


def test_a_repeated_overwrite_leaves_what_is_in(uri: str) -> None:
    """Every task finds the batch in and writes nothing: that was taken for a batch without rows, and the log
    was emptied of what the first attempt, and others since, had linked."""
    options = SinkOptions.parse({"uri": uri, "log": "out"}, "batch")
    rows = columns_of(pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here")
    content = LinkContent(rows.count, rows.digest())

    async def prepare(held: SparkClient) -> Message:
        await held.namespace.create_or_find("out")
        await append(held.namespace, 1)
        target = SegmentTarget(held.namespace.open_log("out"), options, Message(0, WHO))
        await target.open()
        await target.write([rows])
        tokens = [("out", token) for token in await target.finish()]
        return Message(0, WHO, tokens, rows.count, contents={"out": content})

    def texts() -> list[bytes]:
        async def read(held: SparkClient) -> list[bytes]:
            async with held.namespace.open_log("out").open_reader(to="end") as reader:
                return [record.payload async for record in reader]

        return run(uri, 10.0, read)

    first = run(uri, 10.0, prepare)
    BatchWriter(options, overwrite=True).commit([first])
    assert texts() == [b"a", b"b"]
    run(uri, 10.0, lambda held: append(held.namespace, 3_000_000_000_000))

    again = Message(0, WHO, skipped=["out"], contents={"out": content})
    BatchWriter(options, overwrite=True).commit([again])
    assert texts() == [b"a", b"b", b"another's"]
    with pytest.raises(LinkMismatch):  # the same version, and no row: another write
        BatchWriter(options, overwrite=True).commit([Message(0, WHO)])
    assert texts() == [b"a", b"b", b"another's"]

    later = Message(0, Identity(WHO.app, WHO.version + 1, ""))
    BatchWriter(options, overwrite=True).commit([later])
    assert texts() == []
    run(uri, 10.0, lambda held: append(held.namespace, 3_000_000_000_000))
    BatchWriter(options, overwrite=True).commit([later])  # a repetition of that one, too
    assert texts() == [b"another's"]
