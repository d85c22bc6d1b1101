"""``spark.readStream`` on a real cluster: what arrives, once, across restarts, truncations and new logs."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributedlog import DLSN, Namespace
from tests.cluster.story import Cluster
from tests.spark.conftest import fill, on

pytestmark = [pytest.mark.processes, pytest.mark.spark]

WAIT_S = 120.0


class Stream:
    """One streaming query into Parquet files, with its checkpoint; may be run again and again."""

    def __init__(self, spark: Any, uri: str, directory: Path, **options: object) -> None:
        self.spark = spark
        self.uri = uri
        self.directory = directory
        self.options = {"startingPosition": "earliest", "requestTimeout": "60s", **options}

    def start(self, **trigger: Any) -> Any:
        reader = self.spark.readStream.format("distributedlog")
        reader = reader.schema("log string, txid bigint, sequence_id bigint")
        for name, value in self.options.items():
            reader = reader.option(name, str(value))
        writer = reader.load(self.uri).writeStream.format("parquet")
        return (
            writer.option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(**(trigger or {"availableNow": True}))
            .start(str(self.directory / "out"))
        )

    def run(self) -> list[Any]:
        """AvailableNow, to its end; the progress of its batches that had rows."""
        query = self.start()
        try:
            assert query.awaitTermination(WAIT_S), "the query does not end"
        finally:
            query.stop()
        return [one for one in query.recentProgress if one.numInputRows]

    def found(self) -> list[tuple[str, int]]:
        """(log, txid) of everything in the output, sorted: duplicates show."""
        import pyarrow.dataset as ds

        directory = self.directory / "out"
        if not list(directory.glob("*.parquet")):
            return []
        # Spark's own list of files says which of them count.
        files = set()
        for entry in (directory / "_spark_metadata").glob("*"):
            if not entry.name.startswith("."):
                for line in entry.read_text().splitlines()[1:]:
                    files.add(json.loads(line)["path"].removeprefix("file://"))
        if not files:  # the first micro-batch is being written
            return []
        table = ds.dataset(sorted(files), format="parquet").to_table()
        return sorted(zip(table["log"].to_pylist(), table["txid"].to_pylist(), strict=True))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.2)


def numbers(log: str, *ranges: range) -> list[tuple[str, int]]:
    return [(log, number) for one in ranges for number in one]


def change(uri: str, call: Callable[[Namespace], Any]) -> None:
    on(uri, call)


def test_s18_s19_s20_limits_restarts_and_nothing_new(spark: Any, uri: str, tmp_path: Path) -> None:
    """S18, S19, S20: every batch within its limit give or take an entry, a restart goes on exactly."""
    fill(uri, "large", range(5_000), entry=100)
    fill(uri, "small", range(50), entry=50)
    stream = Stream(spark, uri, tmp_path, logs="large,small", maxRecordsPerTrigger=1_000)

    batches = stream.run()

    assert stream.found() == numbers("large", range(5_000)) + numbers("small", range(50))
    assert len(batches) >= 5
    assert max(one.numInputRows for one in batches) <= 1_100
    assert stream.run() == []  # nothing new: not one batch
    fill(uri, "large", range(5_000, 5_300), entry=100)
    assert sum(one.numInputRows for one in stream.run()) == 300
    assert stream.found() == numbers("large", range(5_300)) + numbers("small", range(50))


def test_s19_a_limit_below_an_entry_gets_on_by_entries(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """S19."""
    fill(uri, "a", range(30), size=1_000, entry=10)
    stream = Stream(spark, uri, tmp_path, log="a", maxBytesPerTrigger="1k")

    batches = stream.run()

    assert [one.numInputRows for one in batches] == [10, 10, 10]
    assert stream.found() == numbers("a", range(30))


def test_s7_s9_a_pattern_finds_logs_while_the_query_runs(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """S7, S9: no log matches at first; then one is made; an idle query makes no batch."""
    stream = Stream(spark, uri, tmp_path, logPattern="orders/*", discoveryInterval="100ms")
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: query.lastProgress is not None)
        fill(uri, "orders/eu", range(200))
        fill(uri, "other", range(5))
        # A batch's progress is told after its records are there.
        until(lambda: sum(one.numInputRows for one in query.recentProgress) >= 200)
        assert stream.found() == numbers("orders/eu", range(200))
        batches = query.lastProgress.batchId
        time.sleep(2.5)  # some twenty triggers
        assert query.lastProgress.batchId == batches
        ends = json.loads(query.lastProgress.sources[0].latestOffset)
        fill(uri, "orders/us", range(100))
        until(lambda: len(stream.found()) >= 300)
    finally:
        query.stop()

    assert stream.found() == numbers("orders/eu", range(200)) + numbers("orders/us", range(100))
    assert set(ends["logs"]) == {"orders/eu"}  # lag is visible in Spark's own progress


def test_s6_truncated_below_the_checkpoint_while_down(spark: Any, uri: str, tmp_path: Path) -> None:
    """S6: the error names the log, what was wanted, what is left and how many are lost; or the rest comes."""
    fill(uri, "a", range(500), entry=100)
    stream = Stream(spark, uri, tmp_path, log="a")
    stream.run()
    fill(uri, "a", range(500, 1_000), entry=100)
    change(uri, lambda namespace: namespace.open_log("a").truncate(DLSN(2, 2, 0)))

    with pytest.raises(
        Exception, match=r'log "a" was truncated: wanted 2\.0\.0, .* 2\.2\.0, 200 records'
    ):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()

    assert stream.found() == numbers("a", range(500), range(700, 1_000))


def test_s15_a_log_made_again_under_the_checkpoint(spark: Any, uri: str, tmp_path: Path) -> None:
    """S15, for the source: another log of the same name is not the one that was read; nor was all of that."""
    fill(uri, "a", range(100))
    stream = Stream(spark, uri, tmp_path, log="a")
    stream.run()
    fill(uri, "a", range(100, 120))
    change(uri, lambda namespace: namespace.delete_log("a"))
    fill(uri, "a", range(1_000, 1_050))

    with pytest.raises(Exception, match=r"LogRecreated: .*, 20 records are lost"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()

    assert stream.found() == numbers("a", range(100), range(1_000, 1_050))


def test_s8_s27_a_sealed_log_ends_and_a_subscriber_is_one_batch_behind(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """S8, S27."""
    fill(uri, "a", range(400), entry=100)
    change(uri, lambda namespace: namespace.open_log("a").seal())
    stream = Stream(spark, uri, tmp_path, log="a", subscriber="cold", maxRecordsPerTrigger=100)

    batches = stream.run()

    assert len(batches) == 4
    assert stream.found() == numbers("a", range(400))

    async def position(namespace: Namespace) -> DLSN | None:
        return await namespace.open_log("a").positions.get("cold")

    assert on(uri, position) == DLSN(1, 3, 0)  # three of four batches: late by one, never early
    assert stream.run() == []


def test_s27_the_metadata_store_is_away_for_a_while(
    spark: Any, uri: str, cluster: Cluster, tmp_path: Path
) -> None:
    """S27: all three metadata nodes are halted for 4 s in mid-query, and go on: so does the query, no record
    is missed or comes twice, and the subscriber's position gets on."""
    fill(uri, "a", range(300), entry=10)
    stream = Stream(
        spark, uri, tmp_path, log="a", subscriber="s", maxRecordsPerTrigger=10, requestTimeout="1s"
    )
    nodes = [one for name, one in cluster.served.items() if one.node.kind == "metadata"]
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: len(stream.found()) >= 20)
        for node in nodes:
            node.signal(signal.SIGSTOP)
        try:
            time.sleep(4.0)
        finally:
            for node in nodes:
                node.signal(signal.SIGCONT)
        until(lambda: len(stream.found()) >= 300 or not query.isActive)
        assert query.exception() is None
    finally:
        query.stop()

    assert stream.found() == numbers("a", range(300))

    async def position(namespace: Namespace) -> DLSN | None:
        return await namespace.open_log("a").positions.get("s")

    behind = on(uri, position)
    assert behind is not None
    assert DLSN(1, 5, 0) < behind <= DLSN(2, 0, 0)


def test_s20_a_foreign_checkpoint_and_a_log_removed(spark: Any, uri: str, tmp_path: Path) -> None:
    """S20."""
    fill(uri, "a", range(10))
    fill(uri, "b", range(10))
    stream = Stream(spark, uri, tmp_path, logs="a,b")
    stream.run()
    stream.options["logs"] = "b"
    fill(uri, "b", range(10, 20))
    stream.run()
    assert stream.found() == numbers("a", range(10)) + numbers("b", range(20))

    offsets = max(
        (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    text = offsets.read_text()
    (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
    offsets.write_text(text.replace('"v": 1', '"v": 9').replace('"v":1', '"v":9'))
    with pytest.raises(Exception, match="UnsupportedFormat: offset has format 9"):
        stream.run()
