"""What a task of the sink writes, and what the driver links, without Spark: real bookies in this process."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from distributedlog import (  # noqa: E402
    Log,
    LogRecord,
    Namespace,
    blocking,
    local_cluster,
    open_namespace,
)
from distributedlog.log.segments.app_versions import LinkContent  # noqa: E402
from distributedlog.runtime.interfaces.errors import (  # noqa: E402
    LinkMismatch,
    LogRecreated,
    OutcomeUnknown,
    RecoveryIncomplete,
    TransactionIdOutOfOrder,
)
from distributedlog.runtime.primitives.backoff import Backoff  # noqa: E402
from distributedlog.spark.client import retry as waiting  # noqa: E402
from distributedlog.spark.client.spark_client import SparkClient, run  # noqa: E402
from distributedlog.spark.options.options import SinkOptions  # noqa: E402
from distributedlog.spark.sink.sink_columns import Packer, sink_columns_of  # noqa: E402
from distributedlog.spark.sink.sink_task import (  # noqa: E402
    AppendTarget,
    SegmentTarget,
    SinkIdentity,
    TaskMessage,
)
from distributedlog.spark.sink.spark_sink import BatchWriter, StreamWriter, content_by_log  # noqa: E402

pytestmark = pytest.mark.extra
WHO = SinkIdentity("etl", 3, "")
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
        rows = sink_columns_of(
            pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here"
        )
        target = SegmentTarget(namespace.open_log("out"), OPTIONS, TaskMessage(0, WHO))
        await target.open()
        await target.write([rows])
        await append(namespace, 3_000_000_000_000)
        tokens = await target.finish()

        await namespace.open_log("out").link_segments(tokens)

        assert await txids(namespace) == [3_000_000_000_000 + n for n in range(3)]


async def test_mode_append_has_its_txids_filled_in_by_the_log() -> None:
    """The task waited for its turn behind another writer, and counts on from that one's last txid."""
    async with namespace_in_memory() as namespace:
        await namespace.create_log("out", txids="count")
        await append(namespace, 5)
        rows = sink_columns_of(
            pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here"
        )
        target = AppendTarget(namespace.open_log("out"), OPTIONS)
        await append(namespace, 2_000)
        await target.open()
        await target.write([rows])
        await target.write([rows])
        await target.finish()

        assert await txids(namespace) == [5, 2_000, 2_001, 2_002, 2_003, 2_004]


@pytest.mark.parametrize("mode", [SegmentTarget, AppendTarget])
async def test_keys_and_headers_are_written_at_their_limits(mode: Any) -> None:
    """A packed entry, and records that are too large for one."""
    pairs = [(b"n%d" % n, b"v" * n) for n in range(64)]
    contents: list[tuple[bytes, bytes | None, Any]] = [
        (b"plain", None, ()),
        (b"x", b"k" * 65_536, ()),
        (b"", b"", tuple(pairs)),
        (bytes(960_000), b"k" * 65_536, tuple(pairs)),
    ]
    async with namespace_in_memory() as namespace:
        await namespace.create_log("out", config={"record_headers": True, "codec": "lz4"})
        log = namespace.open_log("out")
        target = (
            SegmentTarget(log, OPTIONS, TaskMessage(0, WHO))
            if mode is SegmentTarget
            else AppendTarget(log, OPTIONS)
        )
        header_type = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
        payloads, keys, headers = zip(*contents, strict=True)
        named = [[{"name": name, "value": value} for name, value in row] for row in headers]
        rows = sink_columns_of(
            pa.record_batch(
                {
                    "payload": pa.array(payloads, pa.binary()),
                    "key": pa.array(keys, pa.binary()),
                    "headers": pa.array(named, header_type),
                }
            ),
            "here",
        )
        packer = Packer(256 * 1024)
        await target.open()
        await target.write([*packer.add(rows), *packer.flush()])
        tokens = await target.finish()
        if tokens:
            await log.link_segments(tokens, content=LinkContent(rows.count, rows.digest()))

        async with log.open_reader(to="end") as reader:
            read = [(record.payload, record.key, record.headers) async for record in reader]
    assert read == contents


@pytest.mark.parametrize("payload", [b"late", bytes(1_030_000)])
async def test_mode_append_says_what_the_writer_refuses(payload: bytes) -> None:
    """It looked at no outcome: records whose txids went back were dropped, and the task succeeded."""
    async with namespace_in_memory() as namespace:
        await namespace.create_log("out", txids="strict")
        await append(namespace, 5)
        rows = sink_columns_of(
            pa.record_batch({"txid": [6, 4], "payload": pa.array([b"a", payload], pa.binary())}),
            "here",
        )
        target = AppendTarget(namespace.open_log("out"), OPTIONS)
        await target.open()
        with pytest.raises(TransactionIdOutOfOrder):
            await target.write([rows])
        await target.finish()


def test_what_tasks_counted_is_put_together_by_log() -> None:
    one, two = TaskMessage(0, WHO), TaskMessage(1, WHO)
    one.contents = {"a": LinkContent(2, 2**64 - 1), "b": LinkContent(1, 7)}
    two.contents = {"a": LinkContent(3, 3)}

    assert content_by_log([one, None, two]) == {"a": LinkContent(5, 2), "b": LinkContent(1, 7)}


def test_a_repeated_overwrite_leaves_what_is_in(uri: str) -> None:
    """Every task finds the batch in and writes nothing: that was taken for a batch without rows, and the log
    was emptied of what the first attempt, and others since, had linked."""
    options = SinkOptions.parse({"uri": uri, "log": "out"}, "batch")
    rows = sink_columns_of(
        pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())}), "here"
    )
    content = LinkContent(rows.count, rows.digest())

    async def prepare(held: SparkClient) -> TaskMessage:
        await held.namespace.create_or_find("out")
        await append(held.namespace, 1)
        target = SegmentTarget(held.namespace.open_log("out"), options, TaskMessage(0, WHO))
        await target.open()
        await target.write([rows])
        tokens = [("out", token) for token in await target.finish()]
        return TaskMessage(0, WHO, tokens, rows.count, contents={"out": content})

    def texts() -> list[bytes]:
        async def read(held: SparkClient) -> list[bytes]:
            async with held.namespace.open_log("out").open_reader(to="end") as reader:
                return [record.payload async for record in reader]

        return run(uri, 10.0, read)

    first = run(uri, 10.0, prepare)
    BatchWriter(options, overwrite=True).commit([first])
    assert texts() == [b"a", b"b"]
    run(uri, 10.0, lambda held: append(held.namespace, 3_000_000_000_000))

    again = TaskMessage(0, WHO, skipped=["out"], contents={"out": content})
    BatchWriter(options, overwrite=True).commit([again])
    assert texts() == [b"a", b"b", b"another's"]
    with pytest.raises(LinkMismatch):  # the same version, and no row: another write
        BatchWriter(options, overwrite=True).commit([TaskMessage(0, WHO)])
    assert texts() == [b"a", b"b", b"another's"]

    later = TaskMessage(0, SinkIdentity(WHO.app, WHO.version + 1, ""))
    BatchWriter(options, overwrite=True).commit([later])
    assert texts() == []
    run(uri, 10.0, lambda held: append(held.namespace, 3_000_000_000_000))
    BatchWriter(options, overwrite=True).commit([later])  # a repetition of that one, too
    assert texts() == [b"another's"]


def written(uri: str, names: list[str], who: SinkIdentity, *, partition: int = 0) -> TaskMessage:
    """What a task reports that wrote three records into each of these logs, which are made."""

    async def write(held: SparkClient) -> TaskMessage:
        message = TaskMessage(partition, who)
        for name in names:
            await held.namespace.create_or_find(name)
            target = SegmentTarget(held.namespace.open_log(name), OPTIONS, message)
            rows = sink_columns_of(
                pa.record_batch({"payload": pa.array([b"a", b"b", b"c"], pa.binary())}), "here"
            )
            await target.open()
            await target.write([rows])
            message.segments += [(name, token) for token in await target.finish()]
        return message

    return run(uri, 10.0, write)


def counts(uri: str, names: list[str]) -> dict[str, int]:
    async def count(held: SparkClient) -> dict[str, int]:
        return {
            name: (await held.namespace.open_log(name).snapshot()).end_sequence_id for name in names
        }

    return run(uri, 10.0, count)


def writer_of_many(uri: str) -> BatchWriter:
    """The rows say which log."""
    return BatchWriter(SinkOptions.parse({"uri": uri}, "batch"), overwrite=False)


class Links:
    """Counts the links under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.calls = 0
        link = Log.link_segments

        async def counted(log: Log, *arguments: object, **named: object) -> object:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
            try:
                return await link(log, *arguments, **named)  # type: ignore[arg-type]
            finally:
                self.now -= 1

        monkeypatch.setattr(Log, "link_segments", counted)


def test_a_batch_for_several_logs_links_them_all_at_once(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were linked one after the other. Repeated, each finds its batch in."""
    names = [f"many/{number:02d}" for number in range(12)]
    writer = writer_of_many(uri)
    messages = [written(uri, names, WHO, partition=number) for number in range(2)]
    links = Links(monkeypatch)

    writer.commit([*messages])
    assert (links.most, links.calls) == (12, 12)
    again = [written(uri, names, WHO)]
    writer.commit([*again])

    assert counts(uri, names) == dict.fromkeys(names, 6)
    assert run(uri, 10.0, lambda held: left_over(held, names)) == 0


def test_a_micro_batch_that_is_repeated_with_other_rows_is_told(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It passed unseen. Whether its tasks found it in, or wrote it again, or had no row at all this time:
    what is in stays, the query goes on, a warning has both numbers."""
    who = SinkIdentity("q-1", 6, "q-1")
    options = SinkOptions.parse({"uri": uri, "log": "told"}, "stream")
    writer = StreamWriter(options, overwrite=False)
    same, other = LinkContent(3, 5), LinkContent(3, 6)

    def again(content: LinkContent) -> TaskMessage:
        return TaskMessage(0, who, skipped=["told"], contents={"told": content})

    def again_written(content: LinkContent) -> TaskMessage:
        message = written(uri, ["told"], who)
        message.contents = {"told": content}
        return message

    def told(*messages: TaskMessage) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            writer.commit([*messages], who.version)
        return caplog.messages

    assert told(again_written(same)) == []
    assert told(again(same)) == told(again_written(same)) == []
    for message in (again(other), again_written(other)):
        (said,) = told(message)
        assert (
            'log "told": micro-batch 6 of query q-1 is already linked with 3 records of digest 0'
            in said
        )
        assert "repeated with 3 records of digest 0000000000000006" in said
    (said,) = told(TaskMessage(0, who))
    assert "repeated with 0 records" in said
    assert told(TaskMessage(0, SinkIdentity("q-1", 7, "q-1"))) == []  # a batch without rows
    assert counts(uri, ["told"]) == {"told": 3}
    assert run(uri, 10.0, lambda held: left_over(held, ["told"])) == 0


async def left_over(held: SparkClient, names: list[str]) -> int:
    left = [held.namespace.open_log(name).collect_unlinked(older_than_s=0.0) for name in names]
    return sum([await one for one in left])


def test_one_log_that_refuses_keeps_no_other_from_its_batch(uri: str) -> None:
    """The error names it and what became of the rest; the abort deletes what is linked to nothing, and the
    repetition brings in what was missing, once."""
    names = [f"some/{number}" for number in range(5)]
    who = SinkIdentity("etl", 4, "")
    message = written(uri, names, who)

    async def remake(held: SparkClient) -> None:
        for name in ("some/1", "some/3"):
            await held.namespace.delete_log(name)
            await held.namespace.create_log(name)

    run(uri, 10.0, remake)
    writer = writer_of_many(uri)
    with pytest.raises(LogRecreated) as caught:
        writer.commit([message])
    writer.abort([message])

    said = str(caught.value)
    assert 'log "some/1" is not linked' in said
    assert "3 of 5 logs of the batch are linked" in said
    assert 'not linked either: "some/3" (log "some/3"' in said
    assert counts(uri, names) == {"some/0": 3, "some/1": 0, "some/2": 3, "some/3": 0, "some/4": 3}
    writer.commit([written(uri, names, who)])
    assert counts(uri, names) == dict.fromkeys(names, 3)


def test_a_link_whose_cluster_is_away_is_asked_again(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever passes, and an outcome that is not known: only four of these errors were waited out."""
    monkeypatch.setattr(waiting, "Backoff", partial(Backoff, 0.001))
    errors = [RecoveryIncomplete("bookies are away"), OutcomeUnknown("who knows")]
    link = Log.link_segments

    async def failing(log: Log, *arguments: object, **named: object) -> object:
        if errors:
            raise errors.pop(0)
        return await link(log, *arguments, **named)  # type: ignore[arg-type]

    message = written(uri, ["away"], SinkIdentity("etl", 5, ""))
    monkeypatch.setattr(Log, "link_segments", failing)

    with caplog.at_level(logging.WARNING, "distributedlog.spark"):
        writer_of_many(uri).commit([message])

    assert counts(uri, ["away"]) == {"away": 3}
    assert caplog.messages == [
        'the link of log "away" is waiting: bookies are away (retrying)',
        'the link of log "away" is waiting: who knows (retrying)',
    ]
