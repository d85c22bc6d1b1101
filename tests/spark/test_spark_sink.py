"""The sink on a real cluster: exactly once across replays and failures, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distributedlog import Log, LogRecord, Namespace, WriterFenced, blocking
from distributedlog.ledger.model.ledger_keys import ledger_key
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.log.model.log_keys import (
    incarnation_id,
    parse_staged_key,
    staged_ledgers_prefix,
)
from distributedlog.log.segments.app_versions import LinkContent
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.runtime.interfaces.errors import InvalidRequest, OutcomeUnknown
from distributedlog.spark import plain_errors
from tests.spark.conftest import fill, on, payload, plain
from tests.spark.test_spark_stream import WAIT_S, change, until

pytestmark = [pytest.mark.processes, pytest.mark.spark]


def make(uri: str, *names: str) -> None:
    async def create(namespace: Namespace) -> None:
        for name in names:
            await namespace.create_log(name)

    on(uri, create)


def frame(spark: Any, numbers: range, partitions: int = 2) -> Any:
    """Records as `payload` makes them, their number as the txid."""
    made = [(number, payload(number)) for number in numbers]
    return spark.createDataFrame(
        spark.sparkContext.parallelize(made, partitions), "txid bigint, payload binary"
    )


def write(made: Any, uri: str, **options: object) -> None:
    mode = str(options.pop("save", "append"))
    writer = made.write.format("distributedlog").mode(mode).option("uri", uri)
    writer = writer.option("requestTimeout", "60s")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def txids(uri: str, name: str) -> list[int]:
    return [row[4] for row in plain(uri, name)]


def orphans(uri: str, name: str) -> int:
    """Segments that were written for a log and are linked to nothing."""

    async def count(namespace: Namespace) -> int:
        log_id = incarnation_id((await namespace.open_log(name).snapshot()).incarnation)
        start = staged_ledgers_prefix(log_id)
        return len((await namespace.metadata.range(start, prefix_end(start), limit=1000)).items)

    return on(uri, count)


def closed_segments(uri: str, name: str) -> int:
    """Of the segments in `orphans`, those that are completely written."""

    async def count(namespace: Namespace) -> int:
        metadata = namespace.metadata
        log_id = incarnation_id((await namespace.open_log(name).snapshot()).incarnation)
        start = staged_ledgers_prefix(log_id)
        staged = (await metadata.range(start, prefix_end(start), limit=1000)).items
        items = [await metadata.get(ledger_key(parse_staged_key(one.key)[1])) for one in staged]
        return sum(LedgerMetadata.decode(one.key, one.value).closed for one in items if one)

    return on(uri, count)


def copy(
    spark: Any, uri: str, checkpoint: Path, source: str, target: str, **options: object
) -> Any:
    """One AvailableNow run of log to log; the query, ended."""
    reader = spark.readStream.format("distributedlog").schema("txid bigint, payload binary")
    reader = reader.option("log", source).option("startingPosition", "earliest")
    reader = reader.option("requestTimeout", "60s")
    for name in ("maxRecordsPerTrigger", "minPartitions"):
        if name in options:
            reader = reader.option(name, str(options.pop(name)))
    rows = reader.load(uri).where(str(options.pop("where", "true")))
    writer = rows.writeStream.format("distributedlog").option("uri", uri)
    writer = writer.option("requestTimeout", "60s")
    for name, value in {"log": target, **options}.items():
        writer = writer.option(name, str(value))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S), "the query does not end"
    finally:
        query.stop()
    return query


def forget_commit(checkpoint: Path) -> int:
    """As after a kill between the link and Spark's own commit: the last batch will be replayed."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def test_a_batch_is_written_in_order_and_whole(spark: Any, uri: str) -> None:
    make(uri, "out")

    write(frame(spark, range(5_000), 3), uri, log="out")

    found = plain(uri, "out")
    assert [(row[4], row[5]) for row in found] == [(n, payload(n)) for n in range(5_000)]
    assert [row[3] for row in found] == list(range(5_000))
    assert {row[0] for row in found} == {1, 2, 3}  # a segment a task
    assert orphans(uri, "out") == 0


def test_s10_a_replayed_batch_is_linked_once(spark: Any, uri: str, tmp_path: Path) -> None:
    """S10: killed after the link and before Spark's commit, replayed with another partitioning."""
    fill(uri, "in", range(3_000), entry=100)
    make(uri, "out")
    copy(spark, uri, tmp_path, "in", "out", maxRecordsPerTrigger=1_000)
    assert txids(uri, "out") == list(range(3_000))

    assert forget_commit(tmp_path) == 2
    copy(spark, uri, tmp_path, "in", "out", maxRecordsPerTrigger=1_000, minPartitions=4)
    fill(uri, "in", range(3_000, 3_100))
    copy(spark, uri, tmp_path, "in", "out")

    assert txids(uri, "out") == list(range(3_100))
    assert orphans(uri, "out") == 0


def test_s10_a_replay_with_other_rows_fails_no_query(spark: Any, uri: str, tmp_path: Path) -> None:
    """S10: what is in stays. That it is told of shows `test_sink_targets.py`; here, that there is something
    to compare: each micro-batch notes what it linked."""
    fill(uri, "in", range(300), entry=100)
    make(uri, "out")
    query = copy(spark, uri, tmp_path, "in", "out", maxRecordsPerTrigger=100)

    linked = on(uri, lambda namespace: namespace.open_log("out").linked_version(str(query.id)))
    assert linked is not None
    assert linked.content == LinkContent.of(range(200, 300), map(payload, range(200, 300)))
    assert forget_commit(tmp_path) == 2
    copy(spark, uri, tmp_path, "in", "out", maxRecordsPerTrigger=100, where="txid != 250")
    fill(uri, "in", range(300, 310))
    copy(spark, uri, tmp_path, "in", "out")

    assert txids(uri, "out") == list(range(310))
    assert orphans(uri, "out") == 0


def test_s11_a_task_fails_once_or_always(spark: Any, uri: str, tmp_path: Path) -> None:
    """S11: once: the same. Always: the job fails and nothing of it can be seen."""
    from pyspark.sql.functions import udf

    make(uri, "once", "never")
    marker = str(tmp_path / "failed")

    def fail_once(txid: int) -> int:
        import os

        if txid == 500 and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            raise RuntimeError("injected")
        return txid

    made = frame(spark, range(1_000), 1)
    write(made.withColumn("txid", udf(fail_once, "bigint")("txid")), uri, log="once")
    broken = made.selectExpr("if(txid = 500, raise_error('injected'), txid) as txid", "payload")
    with pytest.raises(Exception, match="injected"):
        write(broken, uri, log="never")

    assert txids(uri, "once") == list(range(1_000))
    assert txids(uri, "never") == []


def test_s12_an_abort_after_a_link_deletes_nothing(spark: Any, uri: str) -> None:
    """S12: Spark aborts with the same messages when a commit raised, also when it raised after the link."""
    from pyspark.sql.types import StructType

    from distributedlog.spark import DistributedLogSource
    from distributedlog.spark.sink.sink_task import SinkIdentity, TaskMessage

    make(uri, "out")

    async def segment(namespace: Namespace, first: int) -> Any:
        async with namespace.open_log("out").open_segment_writer(app="q", version=7) as writer:
            await writer.write_columns([first, first + 1], [b"x", b"y"])
        return writer.token

    schema = StructType().add("txid", "long").add("payload", "binary")
    writer = DistributedLogSource({"uri": uri, "log": "out"}).streamWriter(schema, False)
    messages: list[Any] = [
        TaskMessage(
            number,
            SinkIdentity("q", 7, "q"),
            [("out", on(uri, partial(segment, first=2 * number)))],
        )
        for number in range(2)
    ]
    again: list[Any] = [
        TaskMessage(0, SinkIdentity("q", 7, "q"), [("out", on(uri, partial(segment, first=0)))])
    ]

    writer.commit(messages, 7)
    writer.abort(messages, 7)  # its commit "raised" after the link
    writer.commit(messages, 7)  # or is asked again
    writer.commit(again, 7)  # or by a replay with other segments

    assert txids(uri, "out") == [0, 1, 2, 3]
    assert orphans(uri, "out") == 0


@pytest.mark.parametrize("applied", [True, False])
def test_s12_a_link_whose_answer_is_lost(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """S12: after it was applied, and before: it is asked for again until it is known; no segment goes."""
    from pyspark.sql.types import StructType

    from distributedlog.spark import DistributedLogSource
    from distributedlog.spark.sink.sink_task import SinkIdentity, TaskMessage

    make(uri, "out")

    async def segment(namespace: Namespace) -> Any:
        async with namespace.open_log("out").open_segment_writer(app="q", version=1) as writer:
            await writer.write_columns([1, 2], [b"x", b"y"])
        return writer.token

    real, asked = Log.link_segments, []

    async def lossy(log: Log, *arguments: Any, **options: Any) -> Any:
        asked.append(1)
        if applied or len(asked) > 1:
            found = await real(log, *arguments, **options)
        if len(asked) == 1:
            raise OutcomeUnknown("the answer was lost")
        return found

    monkeypatch.setattr(Log, "link_segments", lossy)
    schema = StructType().add("txid", "long").add("payload", "binary")
    writer = DistributedLogSource({"uri": uri, "log": "out"}).streamWriter(schema, False)
    messages: list[Any] = [TaskMessage(0, SinkIdentity("q", 1, "q"), [("out", on(uri, segment))])]

    writer.commit(messages, 1)
    writer.abort(messages, 1)

    assert len(asked) == 2
    assert txids(uri, "out") == [1, 2]
    assert orphans(uri, "out") == 0


def test_s14_a_live_writer_is_not_disturbed(spark: Any, uri: str) -> None:
    """S14: refused before any task, naming the owner; with takeover all it acknowledged stays."""
    made = frame(spark, range(100, 200), 1)

    with blocking.open_namespace(uri) as namespace:
        writer = namespace.open_log("out").open_writer()
        writer.write(LogRecord(1, b"mine"))
        writer.commit()
        with pytest.raises(
            Exception, match=r"OwnershipAcquireFailed: .* is being written by .*takeover"
        ):
            write(made, uri, log="out")
        writer.write(LogRecord(2, b"mine"))
        writer.commit()
        write(made, uri, log="out", takeover="true")
        with pytest.raises(WriterFenced):
            writer.submit(LogRecord(3, b"mine")).result(30.0)
        writer.abort()

    assert txids(uri, "out") == [1, 2, *range(100, 200)]


def test_s16_txids_that_go_back(spark: Any, uri: str) -> None:
    """S16: inside a task, between tasks, below the log's last. A strict log refuses them by name, and nothing
    is visible; another log takes them, and a search is right."""
    with blocking.open_namespace(uri) as namespace:
        namespace.create_log("out", txids="strict")
    fill(uri, "out", range(50, 60))
    inside = frame(spark, range(200, 100, -1), 1)
    between = frame(spark, range(200, 300), 1).union(frame(spark, range(100, 200), 1))
    below = frame(spark, range(10), 1)

    for made, said in (
        (inside, "sortWithinPartitions"),
        (between, "txids 100 to 199, and would follow 299"),
        (below, r"TransactionIdOutOfOrder: .*out"),
    ):
        with pytest.raises(Exception, match=said):
            write(made, uri, log="out")

    assert txids(uri, "out") == list(range(50, 60))
    assert orphans(uri, "out") == 0
    for number, made in enumerate((inside, between)):
        make(uri, f"any{number}")
        write(made, uri, log=f"any{number}")
        found = txids(uri, f"any{number}")
        assert found != sorted(found)
        with (
            blocking.open_namespace(uri) as namespace,
            namespace.open_log(f"any{number}").open_reader(txid=150, to="end") as reader,
        ):
            first = next(n for n, txid in enumerate(found) if txid >= 150)
            assert [record.txid for record in reader] == found[first:]


@pytest.mark.parametrize("again", [False, True])
def test_s15_the_target_goes_while_a_batch_is_written(
    spark: Any, uri: str, tmp_path: Path, again: bool
) -> None:
    """S15: deleted, or deleted and made again, while the second task runs: the first one's segment is of
    the old log. An error that says so; the new log is not touched, and nothing is left in it."""
    from pyspark.sql.functions import udf

    make(uri, "out")
    marker = str(tmp_path / "gone")

    def remake(txid: int) -> int:
        import os

        if txid == 500 and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            # Of a task that still writes, another attempt would write to the new log.
            until(lambda: closed_segments(uri, "out") > 0)
            with blocking.open_namespace(uri) as namespace:
                namespace.delete_log("out")
                if again:
                    namespace.create_log("out")
        return txid

    made = frame(spark, range(400), 1).union(
        frame(spark, range(400, 600), 1).withColumn("txid", udf(remake, "bigint")("txid"))
    )
    said = r'LogRecreated: log "out"' if again else r'LogNotFound: log "out"'
    with pytest.raises(Exception, match=said):
        write(made, uri, log="out")

    if again:
        assert txids(uri, "out") == []
        assert orphans(uri, "out") == 0


def test_s15_s24_s28_what_is_refused(spark: Any, uri: str) -> None:
    """S24 and S28 before any task; nothing is written."""
    make(uri, "out", "sealed")
    change(uri, lambda namespace: namespace.open_log("sealed").seal())
    made = frame(spark, range(10), 1)

    for bad, options, said in (
        (made.drop("payload"), {"log": "out"}, "no column payload"),
        (made.withColumn("at", made.txid), {"log": "out"}, 'column "at" cannot be written'),
        (made, {"log": "missing"}, "createLogs"),
        (made, {"log": "sealed"}, "is sealed"),
        (made, {"log": "out", "txnAppId": "a"}, "require each other"),
        (made, {"log": "/out"}, r'option "log": not a log name'),
        (
            made,
            {"log": "out", "mode": "append", "save": "overwrite"},
            "truncates the log at the link",
        ),
        (made, {"log": "out", "entryBytes": "2m"}, "at most 1000000 bytes"),
        (
            made.selectExpr("txid", "if(txid = 5, null, payload) as payload"),
            {"log": "out"},
            "payload is null",
        ),
    ):
        with pytest.raises(Exception, match=said):
            write(bad, uri, **options)

    assert txids(uri, "out") == []


def test_s28_an_application_and_its_versions(spark: Any, uri: str, tmp_path: Path) -> None:
    """S28: a version that is in is skipped; another query's application id is refused by name."""
    fill(uri, "in", range(100))
    make(uri, "out")
    for _ in range(2):
        write(frame(spark, range(10), 1), uri, log="out", txnAppId="etl", txnVersion=1)
    write(frame(spark, range(10, 20), 1), uri, log="out", txnAppId="etl", txnVersion=2)
    assert txids(uri, "out") == list(range(20))

    with pytest.raises(Exception, match=r"LinkMismatch: .*version 2 with 10 records .* names"):
        write(frame(spark, range(20, 25), 1), uri, log="out", txnAppId="etl", txnVersion=2)
    assert txids(uri, "out") == list(range(20))

    with pytest.raises(Exception, match=r"txnAppId 'etl' belongs to query \(none\)"):
        copy(spark, uri, tmp_path, "in", "out", txnAppId="etl")


def test_s28_foreach_batch_with_an_application_of_its_own(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """S28: replayed, it is skipped; under a new checkpoint it is refused, naming both queries."""
    fill(uri, "in", range(300), entry=100)
    make(uri, "out")

    def run(checkpoint: Path) -> str:
        reader = (
            spark.readStream.format("distributedlog")
            .option("log", "in")
            .option("requestTimeout", "60s")
        )
        reader = reader.option("startingPosition", "earliest").option("maxRecordsPerTrigger", 100)

        def put(made: Any, batch: int) -> None:
            write(made.coalesce(1), uri, log="out", txnAppId="etl", txnVersion=batch)

        stream = (
            reader.schema("txid bigint, payload binary").load(uri).writeStream.foreachBatch(put)
        )
        query = (
            stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        try:
            assert query.awaitTermination(WAIT_S), "the query does not end"
        finally:
            query.stop()
        return str(query.id)

    first = run(tmp_path / "1")
    assert forget_commit(tmp_path / "1") == 2
    run(tmp_path / "1")
    assert txids(uri, "out") == list(range(300))

    with pytest.raises(
        Exception, match=f"txnAppId 'etl' belongs to query {first}, .* this is query"
    ):
        run(tmp_path / "2")
    assert txids(uri, "out") == list(range(300))


def test_several_logs_by_a_column(spark: Any, uri: str) -> None:
    """Rows go to the log that their column names, made where `createLogs` says so."""
    rows = [(f"out/{n % 3}", payload(n)) for n in range(300)]
    made = spark.createDataFrame(rows, "log string, payload binary")

    write(made.coalesce(1), uri, createLogs="true")

    for name in range(3):
        found = plain(uri, f"out/{name}")
        assert [row[5] for row in found] == [payload(n) for n in range(name, 300, 3)]
        filled_in = [row[4] for row in found]
        assert filled_in == sorted(set(filled_in)), "the log gave each record a txid of its own"


def test_overwrite_truncates_in_the_same_step(spark: Any, uri: str) -> None:
    fill(uri, "out", range(10))

    write(frame(spark, range(10, 20), 2), uri, log="out", save="overwrite")

    assert txids(uri, "out") == list(range(10, 20))


def test_a_whole_result_is_written_as_the_refusal_advises(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """`outputMode("complete")`: refused, with what Spark takes; it advised a mode that Spark refuses."""
    fill(uri, "in", range(100))
    make(uri, "out")
    reader = spark.readStream.format("distributedlog").option("log", "in")
    reader = reader.option("startingPosition", "earliest").option("requestTimeout", "60s")
    counted = reader.load(uri).selectExpr("txid % 3 AS kind").groupBy("kind").count()
    result = counted.selectExpr("concat(kind, ' ', count) AS payload")

    def run(writer: Any, name: str) -> None:
        writer = writer.option("checkpointLocation", str(tmp_path / name)).outputMode("complete")
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S), "the query does not end"
        finally:
            query.stop()

    into_log = result.writeStream.format("distributedlog").option("uri", uri).option("log", "out")
    with pytest.raises(InvalidRequest, match=r"foreachBatch with frame\.write"), plain_errors():
        run(into_log, "refused")

    def replace(made: Any, batch: int) -> None:
        write(made.coalesce(1), uri, log="out", save="overwrite")

    run(result.writeStream.foreachBatch(replace), "replaced")
    fill(uri, "in", range(100, 103))
    run(result.writeStream.foreachBatch(replace), "replaced")
    assert sorted(row[5] for row in plain(uri, "out")) == [b"0 35", b"1 34", b"2 34"]


def test_append_mode_goes_through_the_logs_writer(spark: Any, uri: str) -> None:
    """At least once, as records come; tasks take turns."""
    make(uri, "out")

    write(frame(spark, range(500), 2).drop("txid"), uri, log="out", mode="append")

    assert sorted(row[5] for row in plain(uri, "out")) == sorted(payload(n) for n in range(500))
