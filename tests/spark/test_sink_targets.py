"""What a task of the sink writes, and what the driver links, without Spark: real bookies in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from distributedlog import LogRecord, Namespace, local_cluster, open_namespace  # noqa: E402
from distributedlog.log.apps import LinkContent  # noqa: E402
from distributedlog.spark.options import SinkOptions  # noqa: E402
from distributedlog.spark.rows import rows_of  # noqa: E402
from distributedlog.spark.sink import contents_of  # noqa: E402
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
        rows = rows_of(pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here")
        target = SegmentTarget(namespace.open_log("out"), OPTIONS, Message(0, WHO))
        await target.open()
        await target.write([rows])
        await append(namespace, 3_000_000_000_000)
        tokens = await target.finish()

        await namespace.open_log("out").link_segments(tokens)

        assert await txids(namespace) == [3_000_000_000_000] * 3


async def test_mode_append_takes_its_txids_as_the_logs_writer() -> None:
    """The task waited for its turn behind another writer, whose txids are higher than this clock."""
    async with namespace_in_memory() as namespace:
        await append(namespace, 5)
        rows = rows_of(pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here")
        target = AppendTarget(namespace.open_log("out"), OPTIONS, lambda: 1_000)
        await append(namespace, 2_000)
        await target.open()
        await target.write([rows])
        await target.write([rows])
        await target.finish()

        assert await txids(namespace) == [5, 2_000, 2_000, 2_000, 2_000, 2_000]


def test_what_tasks_counted_is_put_together_by_log() -> None:
    one, two = Message(0, WHO), Message(1, WHO)
    one.contents = {"a": LinkContent(2, 2**64 - 1), "b": LinkContent(1, 7)}
    two.contents = {"a": LinkContent(3, 3)}

    assert contents_of([one, None, two]) == {"a": LinkContent(5, 2), "b": LinkContent(1, 7)}
