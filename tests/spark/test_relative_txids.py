"""Txids that were given at a link, whoever reads them: every consumer against a linear scan (H163).

A segment's txids are in its entries, or all one number, or a number and the record's index: its record in the
metadata says which. One door decodes entries, and wants that record; whoever took a header's txids raw would
read zeros here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.extras import INSTALL

pa = pytest.importorskip("pyarrow", reason=INSTALL)
pytest.importorskip("pyspark", reason=INSTALL)

from distributedlog import Namespace, blocking, open_namespace  # noqa: E402
from distributedlog.log.arrow.arrow_columns import Projection  # noqa: E402
from distributedlog.runtime.interfaces.errors import CorruptData  # noqa: E402
from distributedlog.spark.archive.archive_store import store_of  # noqa: E402
from distributedlog.spark.client.spark_client import run  # noqa: E402
from distributedlog.spark.options.filter_pushdown import filter_bounds  # noqa: E402
from distributedlog.spark.options.options import SourceOptions  # noqa: E402
from distributedlog.spark.read.batch_reader import BatchReader  # noqa: E402
from distributedlog.spark.read.table_schema import projection  # noqa: E402

pytestmark = pytest.mark.extra

LOGS = ("given", "count", "ms")
Row = tuple[int, int, int]
"""(sequence id, txid, log time in ms)"""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with blocking.local_cluster(memory=True, metadata_nodes=1) as cluster:
        run(cluster.uri, 10.0, lambda held: prepare(held.namespace))
        yield cluster.uri


async def prepare(namespace: Namespace) -> None:
    """Segments of every kind that a log may have, in turns; one is still open."""

    async def by_writer(name: str, txids: list[int] | None, count: int) -> None:
        async with namespace.open_log(name).open_writer() as writer:
            for at in range(0, count, 3):
                some = None if txids is None else txids[at : at + 3]
                payloads = [b"w%d" % k for k in range(at, min(at + 3, count))]
                await writer.submit_columns(some, payloads)
                await writer.commit()

    async def by_link(name: str, txids: list[int] | None, count: int) -> None:
        log = namespace.open_log(name)
        async with log.open_segment_writer() as writer:
            for at in range(0, count, 4):
                some = None if txids is None else txids[at : at + 4]
                await writer.write_columns(
                    some, [b"l%d" % k for k in range(at, min(at + 4, count))]
                )
                await writer.flush()
        assert writer.token is not None
        await log.link_segments([writer.token])

    await namespace.create_log("given", txids="count")
    await by_writer("given", [5, 5, 6, 8, 8, 9, 12], 7)
    await by_link("given", None, 10)  # 13 to 22
    await by_link("given", [22, 23, 23, 30, 31, 31], 6)
    await by_link("given", None, 5)  # 32 to 36
    await by_writer("given", [36, 40, 41], 3)
    await namespace.create_log("count", txids="count")
    await by_writer("count", None, 7)
    await by_link("count", None, 10)
    await by_link("count", None, 1)
    await by_writer("count", None, 4)
    await by_link("count", None, 9)
    await namespace.create_log("ms", txids="ms")
    await by_link("ms", None, 6)
    await by_writer("ms", None, 4)
    await by_link("ms", None, 6)
    still = await namespace.open_log(
        "count"
    ).open_writer()  # a segment in progress: who looks at the tail
    await still.submit_columns(None, [b"t0", b"t1"])
    await still.commit()


def scan(uri: str, name: str) -> list[Row]:
    """One record after the other, by the plain reader."""

    async def read(held: Any) -> list[Row]:
        async with held.namespace.open_log(name).open_reader(to="end") as reader:
            return [(one.sequence_id, one.txid, one.time_ms) async for one in reader]

    return run(uri, 10.0, read)


COLUMNS = {"sequence_id": ("bigint", pa.int64()), "txid": ("bigint", pa.int64()),
           "timestamp": ("timestamp", pa.timestamp("us", tz="UTC"))}  # fmt: skip


def asked() -> Projection:
    return projection(
        [(name, kind) for name, (kind, _) in COLUMNS.items()],
        pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items()]),
        None,
    )


def by_spark(uri: str, name: str, *filters: Any, **options: object) -> list[Row]:
    """What the tasks of a batch give, before Spark filters."""
    given = {"uri": uri, "log": name, **{key: str(value) for key, value in options.items()}}
    reader = BatchReader(SourceOptions.parse(given, "batch"), asked())
    reader.filter_bounds = filter_bounds(filters, None)
    rows: list[Row] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            ids, txids, times = (column.cast(pa.int64()).to_pylist() for column in batch.columns)
            rows += zip(ids, txids, (us // 1000 for us in times), strict=True)
    return rows


@dataclass
class GreaterThanOrEqual:
    attribute: tuple[str, ...]
    value: Any


class LessThanOrEqual(GreaterThanOrEqual):
    pass


def iso(ms: int) -> str:
    from distributedlog.log.format.log_clock import to_iso_time

    return to_iso_time(ms)


@pytest.mark.parametrize("name", LOGS)
def test_every_way_of_reading_equals_a_scan(uri: str, name: str) -> None:
    """All of it; from and up to each txid and each time; by filters that are pushed down."""
    right = scan(uri, name)
    txids = sorted({txid + step for _, txid, _ in right for step in (-1, 0, 1)})
    times = sorted({time_ms + step for _, _, time_ms in right for step in (-1, 0, 1)})

    assert by_spark(uri, name) == right
    assert [txid for _, txid, _ in right] == sorted(txid for _, txid, _ in right)
    assert len({txid for _, txid, _ in right}) > 3 - 2 * (name == "ms")
    for txid in txids:
        from_there = [row for row in right if row[1] >= txid]
        assert by_spark(uri, name, startingTxid=max(0, txid)) == from_there, txid
        assert by_spark(uri, name, endingTxid=max(0, txid)) == right[: len(right) - len(from_there)]
        pushed = by_spark(uri, name, GreaterThanOrEqual(("txid",), txid))
        assert [row for row in pushed if row[1] >= txid] == from_there
        pushed = by_spark(uri, name, LessThanOrEqual(("txid",), txid))
        assert [row for row in pushed if row[1] <= txid] == [row for row in right if row[1] <= txid]
    for time_ms in times:
        from_there = [row for row in right if row[2] >= time_ms]
        assert by_spark(uri, name, startingTimestamp=iso(time_ms)) == from_there, time_ms
        assert (
            by_spark(uri, name, endingTimestamp=iso(time_ms))
            == (right[: len(right) - len(from_there)])
        )


def test_a_filter_reads_less_than_all(uri: str) -> None:
    """Else the comparison above would say nothing of pushing down."""
    right = scan(uri, "count")
    last = right[-1]

    assert len(by_spark(uri, "count", GreaterThanOrEqual(("txid",), last[1]))) < 5
    assert len(by_spark(uri, "count", LessThanOrEqual(("txid",), 0))) < 5
    at = datetime.fromtimestamp(0, UTC)
    assert by_spark(uri, "count", LessThanOrEqual(("timestamp",), at)) == []


@pytest.mark.parametrize("name", LOGS)
def test_what_is_exported_and_imported_equals_a_scan(uri: str, name: str, tmp_path: Path) -> None:
    """Through a file's records and back through a link: txids and payloads, in order."""
    from distributedlog.spark.archive.parquet_file import SCHEMA, ParquetFileWriter, read_records
    from distributedlog.spark.read.table_schema import KEYED_COLUMNS
    from distributedlog.spark.sink.sink_columns import sink_columns_of

    async def payloads(held: Any) -> list[tuple[int, bytes]]:
        async with held.namespace.open_log(name).open_reader(to="end") as reader:
            return [(one.txid, one.payload) async for one in reader]

    right, store = run(uri, 10.0, payloads), store_of(tmp_path)
    kinds = {"log": "string", "slot": "int", "payload": "binary", "timestamp": "timestamp"}
    kinds |= KEYED_COLUMNS
    fields = [(one.name, kinds.get(one.name, "bigint")) for one in SCHEMA]
    options = SourceOptions.parse({"uri": uri, "log": name}, "batch")
    reader = BatchReader(options, projection(fields, SCHEMA, None))
    part = ParquetFileWriter(store, name, "b" * 16, 0, 0, 1)
    for task in reader.partitions():
        for batch in reader.read(task):
            part.add(batch)
    made = part.close()

    found = list(read_records(store, made, 0))
    assert [(row["txid"], row["payload"]) for batch in found for row in batch.to_pylist()] == right

    async def bring_in(held: Any) -> list[tuple[int, bytes]]:
        copy = f"copy-of-{name}"
        await held.namespace.create_or_find(copy)
        log = held.namespace.open_log(copy)
        async with log.open_segment_writer() as writer:
            for batch in found:
                await writer.write_packed(*sink_columns_of(batch, "here").packed())
        assert writer.token is not None
        await log.link_segments([writer.token])
        async with log.open_reader(to="end") as again:
            return [(one.txid, one.payload) async for one in again]

    assert run(uri, 10.0, bring_in) == right


def test_an_entry_is_not_decoded_without_its_segments_word(uri: str) -> None:
    """The door: a range whose base was lost on the way is refused, it does not read zeros."""
    from distributedlog.log.format.record import TXIDS_IN_ENTRIES
    from distributedlog.log.read.range_reader import RangeReader

    async def read(held: Any) -> None:
        log = held.namespace.open_log("count")
        snapshot = await log.snapshot()
        relative = next(one for one in snapshot.segments if one.txid_rule != TXIDS_IN_ENTRIES)
        lost = replace(relative.range(), txid_base=-1, txid_rule=TXIDS_IN_ENTRIES)
        reader: RangeReader = await log.open_ranges([lost])
        await reader.read_columns()

    with pytest.raises(CorruptData, match="neither entry nor segment"):
        run(uri, 10.0, read)


def test_txids_that_went_back_are_searched_for_and_bound_no_filter(uri: str) -> None:
    """A search finds the first record; a bound made of a filter would leave out records that are wanted."""

    async def write() -> None:
        async with (
            open_namespace(uri) as namespace,
            namespace.open_log("back").open_writer() as writer,
        ):
            for some in ([5, 60], [3, 4], [50, 51]):
                await writer.submit_columns(some, [b"x", b"y"])
                await writer.commit()

    trio.run(write)
    right = scan(uri, "back")

    for txid in (3, 4, 6, 60, 61):
        first = next((n for n, row in enumerate(right) if row[1] >= txid), len(right))
        assert by_spark(uri, "back", startingTxid=txid) == right[first:]
    for txid in (3, 5, 50):
        pushed = by_spark(uri, "back", GreaterThanOrEqual(("txid",), txid))
        assert [row for row in pushed if row[1] >= txid] == [row for row in right if row[1] >= txid]
        pushed = by_spark(uri, "back", LessThanOrEqual(("txid",), txid))
        assert [row for row in pushed if row[1] <= txid] == [row for row in right if row[1] <= txid]
