"""``spark.read`` on a real cluster. S numbers: the black-box scenarios of the source and sink."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import DLSN, Namespace
from distributedlog.log.format.log_clock import to_iso_time
from distributedlog.runtime.interfaces.errors import LogTruncated
from distributedlog.spark import cause
from tests.cluster.story import Cluster
from tests.spark.conftest import fill, on, payload, plain

pytestmark = [pytest.mark.processes, pytest.mark.spark]

POSITION = ["segment", "entry", "slot", "sequence_id", "txid", "payload"]


def read(spark: Any, uri: str, **options: object) -> Any:
    schema = options.pop("schema", None)
    reader = spark.read.format("distributedlog").option("requestTimeout", "60s")
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(uri)


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    table = frame.select(*columns or frame.columns).toArrow()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_s1_all_logs_column_by_column(spark: Any, uri: str) -> None:
    """S1: the same as the plain reader, in order, with a gap-free sequence id a log."""
    for log, numbers in {"a": range(20_000), "b/c": range(500, 7_000), "b/d": range(1)}.items():
        fill(uri, log, numbers[: len(numbers) // 2])
        fill(uri, log, numbers[len(numbers) // 2 :])

    found = rows(read(spark, uri, logPattern="*"), "log", *POSITION)

    for log in ("a", "b/c", "b/d"):
        assert [row[1:] for row in found if row[0] == log] == plain(uri, log)
    assert [row[0] for row in found] == ["a"] * 20_000 + ["b/c"] * 6_500 + ["b/d"]


@pytest.mark.parametrize(
    "schema",
    [
        "txid bigint",
        "payload binary, log string",
        "dlsn string, slot int",
        "dlsn struct<segment:bigint,entry:bigint,slot:int>, timestamp timestamp",
    ],
)
def test_s2_the_schema_is_the_projection(spark: Any, uri: str, schema: str) -> None:
    """S2: what is built and nothing else is `test_batches`; here, the right values through Spark."""
    fill(uri, "a", range(10, 20), entry=4)
    right = plain(uri, "a")

    found = rows(read(spark, uri, log="a", txidUnit="ms", schema=schema))

    if schema == "txid bigint":
        assert found == [(row[4],) for row in right]
    elif schema.startswith("payload"):
        assert found == [(row[5], "a") for row in right]
    elif schema.startswith("dlsn string"):
        assert found == [(str(DLSN(*row[:3])), row[2]) for row in right]
    else:
        assert [(row[0]["entry"], row[0]["slot"]) for row in found] == [row[1:3] for row in right]
        assert [int(row[1].timestamp() * 1000 + 0.5) for row in found] == list(range(10, 20))


def test_s3_the_same_range_gives_the_same_rows(spark: Any, uri: str) -> None:
    """S3: appends and a roll in between; also by `positions()`."""
    from distributedlog.spark import positions

    fill(uri, "a", range(3_000))
    end = positions(uri, ["a"], at="latest")
    begin = json.dumps({"a": "1.1.500"})
    bounded = read(spark, uri, log="a", startingPosition=begin, endingPosition=end)
    first = rows(bounded)
    fill(uri, "a", range(3_000, 4_000))

    again = rows(read(spark, uri, log="a", startingPosition=begin, endingPosition=end))

    assert again == first == rows(bounded)
    assert [row[5] for row in first] == list(range(1_500, 3_000))
    txids = read(spark, uri, log="a", startingTxid=2_999, endingTxid=3_001, schema="txid bigint")
    assert rows(txids) == [(2_999,), (3_000,)]


def test_a_merged_log_gives_the_same_rows(spark: Any, uri: str) -> None:
    """H157: planned before or after the merge, whole or from the middle of a segment, in parts."""
    for first in range(0, 900, 100):
        fill(uri, "a", range(first, first + 100), entry=30)
    right = plain(uri, "a")
    planned = read(spark, uri, log="a", minPartitions=5)
    assert planned.count() == 900  # it is planned now, for good

    assert on(uri, lambda namespace: namespace.open_log("a").merge_segments()) == 9

    fill(uri, "a", range(900, 950))
    assert plain(uri, "a")[:900] == right
    assert sorted(rows(planned, *POSITION)) == right
    begin = json.dumps({"a": "4.1.7"})
    part = read(spark, uri, log="a", startingPosition=begin, endingTxid=650, minPartitions=4)
    assert sorted(rows(part, *POSITION)) == [
        row for row in right if row[:3] >= (4, 1, 7) and row[4] < 650
    ]
    assert sorted(rows(read(spark, uri, log="a"), *POSITION)) == plain(uri, "a")


def test_s5_truncated_between_planning_and_reading(spark: Any, uri: str, caplog: Any) -> None:
    """S5: one clear error, or the rest."""
    fill(uri, "a", range(2_000))
    fill(uri, "a", range(2_000, 3_000))
    strict = read(spark, uri, log="a", schema="txid bigint")
    loose = read(spark, uri, log="a", schema="txid bigint", failOnDataLoss="false")
    assert strict.count() == loose.count() == 3_000  # both are planned now, for good

    async def truncate(namespace: Namespace) -> None:
        await namespace.open_log("a").truncate(DLSN(1, 1, 0))

    on(uri, truncate)

    assert sorted(rows(loose)) == [(number,) for number in range(1_000, 3_000)]
    with pytest.raises(
        Exception, match=r'LogTruncated: log "a" was truncated: wanted 1\.0\.0, .* 1\.1\.0'
    ):
        strict.collect()
    assert rows(read(spark, uri, log="a", schema="txid bigint"))[0] == (1_000,)


def test_s9_nothing_to_read(spark: Any, uri: str) -> None:
    """S9: an empty log, a segment without records, no log that matches."""

    async def prepare(namespace: Namespace) -> None:
        await namespace.create_log("empty")
        await namespace.create_log("opened")
        async with namespace.open_log("opened").open_writer():
            pass

    on(uri, prepare)

    assert read(spark, uri, logs="empty,opened").count() == 0
    assert read(spark, uri, logPattern="none/*").count() == 0
    with pytest.raises(Exception, match='LogNotFound: log "missing" does not exist'):
        read(spark, uri, log="missing").count()


def test_s21_every_size_and_every_byte(spark: Any, uri: str) -> None:
    """S21."""
    payloads = [bytes(range(256)), bytes(1024 * 1024 - 8 * 1024), *[b""] * 10_000, b"\xff" * 70_000]

    async def write(namespace: Namespace) -> None:
        async with namespace.open_log("a").open_writer() as writer:
            await writer.submit_columns(list(range(len(payloads))), payloads)

    on(uri, write)

    assert rows(read(spark, uri, log="a", schema="payload binary")) == [(one,) for one in payloads]


def test_s22_a_thousand_small_segments_are_few_tasks(spark: Any, uri: str) -> None:
    """S22: 1,000 segments of 1 KB of one log, 30 logs of ten records: at most ten tasks (the design's
    line; here it is one). 5,000 logs: `many_logs.py`."""

    async def prepare(namespace: Namespace) -> None:
        await namespace.create_log("many")
        log = namespace.open_log("many")
        tokens: dict[int, Any] = {}
        left = iter(range(1_000))

        async def write() -> None:
            for number in left:
                async with log.open_segment_writer() as writer:
                    await writer.write_columns([number], [payload(number, 1_000)])
                tokens[number] = writer.token

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(write)
        for part in (range(500), range(500, 1_000)):
            await log.link_segments([tokens[number] for number in part])

    on(uri, prepare)
    for number in range(30):
        fill(uri, f"few/{number:02d}", range(10))

    many = read(spark, uri, log="many", schema="txid bigint, payload binary")
    few = read(spark, uri, logPattern="few/*", schema="log string, txid bigint")

    assert many.rdd.getNumPartitions() <= 10
    assert few.rdd.getNumPartitions() == 1
    assert rows(many) == [(number, payload(number, 1_000)) for number in range(1_000)]
    assert few.count() == 300


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"log": "a", "lgo": "b"}, 'InvalidRequest: unknown option "lgo"; did you mean log'),
        ({"log": "a", "startingPosition": '{"a": "9.0.0"}'}, 'log "a" ends at 2.0.0, before 9.0.0'),
        ({"log": "a", "schema": "value binary"}, 'unknown column "value": a log has log string'),
        ({"log": "a", "schema": "txid int"}, 'column "txid" must be bigint, not int'),
        ({"log": "a", "pushdown": "yes"}, '"pushdown": \'yes\' is not true or false'),
    ],
)  # fmt: skip
def test_s23_s24_what_is_wrong_is_said_before_any_task(
    spark: Any, uri: str, options: dict[str, Any], said: str
) -> None:
    """S23, S24."""
    fill(uri, "a", range(3))

    with pytest.raises(Exception) as caught:
        read(spark, uri, **options).count()

    line = next(line for line in str(caught.value).splitlines() if said in line)
    assert "Error" in str(caught.value) or "Exception" in type(caught.value).__name__
    assert len(line) < 600


def test_s23_a_uri_of_another_scheme(spark: Any) -> None:
    """S23."""
    with pytest.raises(Exception, match=r"InvalidUri: unknown scheme 'kafka'"):
        read(spark, "kafka://h:1/x", log="a").count()


def test_s4_a_bookie_is_killed_in_mid_read(spark: Any, uri: str, cluster: Cluster) -> None:
    """S4: write quorum 3, ack quorum 2: the same rows, and the job does not fail."""
    fill(uri, "a", range(60_000), size=500, entry=500)
    victim = next(name for name in cluster.served if name.startswith("bookie"))
    frame = read(spark, uri, log="a", schema="txid bigint, payload binary", minPartitions=8)

    cluster.kill(victim)
    try:
        assert frame.selectExpr("count(*)", "sum(txid)", "sum(length(payload))").collect()[0] == (
            60_000, sum(range(60_000)), 30_000_000,
        )  # fmt: skip
    finally:
        cluster.start(victim)


def test_s29_found_in_sql_too(spark: Any, uri: str) -> None:
    """S29: nothing is registered; the module's name is enough."""
    fill(uri, "a", range(5))

    spark.sql(f"CREATE TEMPORARY VIEW v USING distributedlog OPTIONS (uri '{uri}', log 'a')")
    try:
        assert spark.sql("SELECT sum(txid), max(sequence_id) FROM v").collect()[0] == (10, 4)
    finally:
        spark.catalog.dropTempView("v")


def test_parquet_keeps_what_a_log_has(spark: Any, uri: str, tmp_path: Path) -> None:
    """The way into files: all default columns survive."""
    fill(uri, "a", range(1_000))

    read(spark, uri, log="a").write.parquet(str(tmp_path / "out"))

    assert sorted(rows(spark.read.parquet(str(tmp_path / "out")), *POSITION)) == plain(uri, "a")


def test_s25_filters_are_pushed_and_change_no_row(spark: Any, uri: str) -> None:
    """S25: the same rows; fewer tasks. Without Spark's own setting: nothing is pushed, nothing fails."""
    for part in range(3):
        fill(uri, "a", range(1_000 * part, 1_000 * (part + 1)), entry=100)
    fill(uri, "b", range(10))
    plan = {
        "logs": "a,b",
        "schema": "log string, segment bigint, entry bigint, sequence_id bigint, txid bigint",
    }

    for where in (
        "txid between 1250 and 1260 and log = 'a'",
        "segment = 2 and entry in (3, 5)",
        "sequence_id >= 2995",
        "log = 'b' or txid = 17",
    ):
        pushed = read(spark, uri, pushdown="true", minPartitions=4, **plan).where(where)
        assert rows(pushed) == rows(read(spark, uri, **plan).where(where))
        assert rows(pushed)


def test_time_is_there_without_an_option_and_can_be_searched_for(spark: Any, uri: str) -> None:
    """Log time, last in the default schema; as a bound, as a filter, and as the plain reader says it."""
    fill(uri, "a", range(300), entry=100)
    fill(uri, "a", range(300, 500), entry=100)

    async def times(namespace: Namespace) -> list[int]:
        async with namespace.open_log("a").open_reader(to="end") as reader:
            return [one.time_ms async for one in reader]

    right = on(uri, times)
    frame = read(spark, uri, log="a")
    assert frame.columns[-1] == "timestamp"
    found = [round(row[0].timestamp() * 1000) for row in rows(frame, "timestamp")]
    assert found == right
    middle = right[300]
    after = [number for number, time_ms in enumerate(right) if time_ms >= middle]
    schema = {"log": "a", "schema": "txid bigint, timestamp timestamp"}
    bounded = read(spark, uri, startingTimestamp=to_iso_time(middle), **schema)
    assert [row[0] for row in rows(bounded)] == after
    where = f"timestamp >= timestamp'{to_iso_time(middle)}'"
    pushed = read(spark, uri, pushdown="true", **schema).where(where)
    assert [row[0] for row in rows(pushed)] == after


def test_a_cause_is_rebuilt_from_what_spark_raises(spark: Any, uri: str) -> None:
    """From planning on the driver, and from a task: class, message, and the position that is left."""
    fill(uri, "a", range(300), entry=100)
    early = read(spark, uri, log="a", startingPosition='{"a": "1.0.5"}')
    planned = read(spark, uri, log="a", schema="txid bigint")
    assert planned.count() == 300

    async def truncate(namespace: Namespace) -> None:
        await namespace.open_log("a").truncate(DLSN(1, 1, 0))

    on(uri, truncate)

    for frame in (early, planned):
        with pytest.raises(Exception) as caught:
            frame.collect()
        found = cause(caught.value)
        assert isinstance(found, LogTruncated)
        assert found.first == "1.1.0"
        assert "[dlog" not in str(found)
