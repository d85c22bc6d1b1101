"""A cold tier on a real cluster: Parquet and log as one frame, each record once (design: spark, 6)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributedlog import DLSN, KeyedRecord, LogRecord, Namespace
from distributedlog.cli.main import run
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    ForeignData,
    InvalidRequest,
    LogRecreated,
    LogTruncated,
)
from tests.spark.conftest import fill, on, plain
from tests.spark.test_archive import bucket

pytest.importorskip("pyspark", reason="pip install '.[spark]'")

from distributedlog.spark import append_history, history_manifest, read_with_history

pytestmark = [pytest.mark.processes, pytest.mark.spark]

TIMEOUT_S = 60.0


def records(spark: Any, uri: str, **options: object) -> Any:
    """The log `a`, or a part of it, in one task."""
    reader = spark.read.format("distributedlog").option("log", "a").option("requestTimeout", "60s")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(uri).coalesce(1)


def both(spark: Any, uri: str, archive: Path | str) -> list[tuple[Any, ...]]:
    """As `plain` gives a log."""
    frame = read_with_history(spark, uri, "a", archive, request_timeout_s=TIMEOUT_S)
    assert {row[0] for row in frame.select("log").distinct().collect()} <= {"a"}
    columns = ("segment", "entry", "slot", "sequence_id", "txid", "payload")
    found = [tuple(row) for row in frame.select(*columns).collect()]
    return sorted((*row[:5], bytes(row[5])) for row in found)


def truncate(uri: str, to: DLSN) -> None:
    async def call(namespace: Namespace) -> None:
        await namespace.open_log("a").truncate(to)

    on(uri, call)


def append(frame: Any, uri: str, archive: Path | str) -> Any:
    return append_history(frame, uri, "a", archive, request_timeout_s=TIMEOUT_S)


def test_an_archive_grows_by_what_it_has_not_and_with_the_log_gives_all(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """Overlapping batches, a batch twice, nothing new; then the log gives up what the archive has."""
    archive = tmp_path / "a [1]{x}"  # no pattern
    fill(uri, "a", range(300), entry=100)
    fill(uri, "a", range(300, 500), entry=100)
    assert history_manifest(archive) is None

    first = append(records(spark, uri, endingPosition='{"a": "1.2.50"}'), uri, archive)
    assert (first.records, str(first.end), first.generation) == (250, "1.2.50", 1)
    again = append(records(spark, uri, endingPosition='{"a": "1.2.0"}'), uri, archive)
    assert again == first == history_manifest(archive)
    fill(uri, "a", range(500, 600), entry=100)
    whole = plain(uri, "a")
    assert both(spark, uri, archive) == whole

    second = append(records(spark, uri, endingPosition='{"a": "2.1.0"}'), uri, archive)
    assert (second.records, str(second.end), len(second.files)) == (400, "2.0.100", 2)
    truncate(uri, DLSN(2, 1, 0))
    assert len(plain(uri, "a")) == 200
    assert both(spark, uri, archive) == whole

    truncate(uri, DLSN(2, 1, 1))
    with pytest.raises(LogTruncated, match=r"begins at 2\.1\.1, .* ends at 2\.0\.100: 1 records"):
        both(spark, uri, archive)
    with pytest.raises(InvalidRequest, match=r"begins with record 401 .* expected record 400"):
        append(records(spark, uri), uri, archive)
    assert history_manifest(archive) == second


def test_archive_keeps_keys_and_headers_or_refuses_the_frame(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """A frame without their columns would lose them without an error."""

    async def write(namespace: Namespace) -> None:
        await namespace.create_log("a")
        log = namespace.open_log("a")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"plain"))
        await log.set({"record_headers": True})

    async def write_keyed(namespace: Namespace) -> None:
        async with namespace.open_log("a").open_writer() as writer:
            await writer.write(KeyedRecord(2, b"x", b"k", [(b"n", b"v")]))
            await writer.write(KeyedRecord(3, b"y", headers=[(b"m", b"")]))

    on(uri, write)
    assert append(records(spark, uri), uri, tmp_path).keyed_records == 0
    on(uri, write_keyed)

    with pytest.raises(InvalidRequest, match='option "includeHeaders"'):
        append(records(spark, uri), uri, tmp_path)
    stored = append(
        records(spark, uri, includeHeaders="true", endingPosition='{"a": "2.1.0"}'), uri, tmp_path
    )

    assert (stored.keyed_records, stored.format) == (1, 2)
    frame = read_with_history(spark, uri, "a", tmp_path, include_headers=True)
    rows = frame.select("txid", "key", "headers").orderBy("txid").collect()
    assert [(row[0], row[1], [tuple(pair) for pair in row[2]]) for row in rows] == [
        (1, None, []),
        (2, b"k", [(b"n", b"v")]),
        (3, None, [(b"m", b"")]),
    ]


def test_what_the_log_has_before_the_archive_comes_from_the_log(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    fill(uri, "a", range(300), entry=100)

    made = append(records(spark, uri, startingPosition='{"a": "1.1.5"}'), uri, tmp_path)

    assert (str(made.first), made.first_sequence_id, made.records) == ("1.1.5", 105, 195)
    assert both(spark, uri, tmp_path) == plain(uri, "a")


def test_what_does_not_belong_to_the_archive_adds_nothing(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    fill(uri, "a", range(100), entry=50)
    fill(uri, "b", range(100))
    made = append(records(spark, uri, endingPosition='{"a": "1.1.0"}'), uri, tmp_path)
    rest = records(spark, uri)

    for frame, said in (
        (rest.where("txid != 70"), "record 71 instead of record 70"),
        (rest.select("txid", "payload", "sequence_id"), "unchanged columns of the source"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            append(frame, uri, tmp_path)
    assert history_manifest(tmp_path) == made
    assert append(rest, uri, tmp_path).records == 100  # and removed what the failed ones left
    assert len(list(tmp_path.glob("*.parquet"))) == 2

    damage: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: append_history(rest, uri, "b", tmp_path), ForeignData, 'log "a", not to "b"'),
        (lambda: read_with_history(spark, uri, "b", tmp_path), ForeignData, 'log "a", not to "b"'),
        (lambda: read_with_history(spark, uri, "a", tmp_path / "x"), InvalidRequest, "no manifest"),
    ]

    async def remake(namespace: Namespace) -> None:
        await namespace.delete_log("a")
        await namespace.create_log("a")

    on(uri, remake)
    fill(uri, "a", range(5))
    damage.append((lambda: both(spark, uri, tmp_path), LogRecreated, "deleted and created again"))
    damage.append((lambda: append(rest, uri, tmp_path), LogRecreated, "deleted and created again"))
    for call, error, said in damage:
        with pytest.raises(error, match=said):
            call()
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(CorruptData, match=r"\.parquet is missing"):
        both(spark, uri, tmp_path)


def test_an_archive_in_an_object_store(
    spark: Any, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that refuses to rename, to append and to write over, seen by several processes: it grows by
    batches, what killed attempts left goes, it is read with its log, and an export becomes a log again."""
    place = bucket(tmp_path / "tier").location
    fill(uri, "a", range(300), entry=100)
    first = append(records(spark, uri, endingPosition='{"a": "1.1.0"}'), uri, place)
    whole = plain(uri, "a")
    left = tmp_path / "tier" / f"{100:019d}-g2-{'0' * 32}.parquet"
    left.write_bytes(b"of an append that was killed")

    second = append(records(spark, uri), uri, place)

    assert (first.records, second.records, second.generation) == (100, 300, 2)
    assert not left.exists()
    truncate(uri, DLSN(1, 2, 50))
    assert both(spark, uri, place) == whole
    frame = read_with_history(spark, uri, "a", place)
    assert frame.where("timestamp is null").count() == 0
    assert frame.where("txid >= 290").count() == 10
    out = bucket(tmp_path / "out").location
    asked = ["--uri", uri, "--timeout", "60"]
    assert run(["log", "export", "a", "--output", out, *asked]) == 0
    assert run(["log", "import", out, "--log", "b", *asked]) == 0
    assert [row[4:] for row in plain(uri, "b")] == [row[4:] for row in whole[250:]]
    assert "exported 50 records" in capsys.readouterr().err
