"""The pipelines of `examples/spark` that copy, archive and truncate: killed and repeated, nothing is lost or
there twice (S10, S32; the cold tier)."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, Namespace
from distributedlog.cli.main import run as dlog
from tests.spark.conftest import on, plain
from tests.spark.test_spark_sink import forget_commit

pytest.importorskip("pyspark", reason="pip install '.[spark]'")

from distributedlog.spark import history_manifest, positions, read_with_history
from examples.spark import cold_tier, log_to_log, snapshot_and_truncate
from examples.spark.change_feed import ChangeFeed, write

pytestmark = [pytest.mark.processes, pytest.mark.spark]

FEED = ChangeFeed(seed=5, orders_per_minute=60)


def put(uri: str, records: int, first: int = 0) -> None:
    """More of the feed."""
    trio.run(write, uri, ("orders", "payments"), FEED, records, first)


def rows(uri: str, log: str) -> list[tuple[Any, ...]]:
    return plain(uri, log)


def changes(uri: str) -> list[dict[str, Any]]:
    """Of the whole log, parsed."""
    return [json.loads(row[5]) for row in rows(uri, "orders")]


# --- log to log -----------------------------------------------------------------------------------


def test_s10_log_to_log_is_exactly_once_across_a_replay(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """Killed after the link and before Spark's commit; then with more records."""
    put(uri, 3_000)
    log_to_log.run(spark, uri, str(tmp_path), max_records=1_000)
    forget_commit(tmp_path)
    put(uri, 500, first=3_000)
    log_to_log.run(spark, uri, str(tmp_path))

    expected = []
    for row in rows(uri, "orders"):
        change = json.loads(row[5])
        if change["op"] == "u" and change["after"]["status"] == "paid":
            paid = {key: change[key] for key in ("order_id", "event_ms")}
            expected.append((row[4], paid | {"amount_cents": change["after"]["amount_cents"]}))
    assert len(expected) > 500
    assert [(row[4], json.loads(row[5])) for row in rows(uri, "paid")] == expected


# --- the cold tier --------------------------------------------------------------------------------


def both(spark: Any, uri: str, archive: Path) -> list[tuple[Any, ...]]:
    columns = ("segment", "entry", "slot", "sequence_id", "txid", "payload")
    frame = read_with_history(spark, uri, "orders", archive).select(*columns)
    return sorted((*row[:5], bytes(row[5])) for row in frame.collect())


def test_a_cold_tier_and_a_truncated_log_are_the_log(
    spark: Any,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed before a batch is in the manifest, killed after it and before Spark's commit; each repeated."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    monkeypatch.setenv("DLOG_URI", uri)

    def run() -> str:
        return str(cold_tier.run(spark, uri, str(archive), str(checkpoint), max_records=1_000))

    put(uri, 2_500)
    archive.mkdir()
    (archive / f"{0:019d}-{'a' * 32}.parquet").write_bytes(b"of a task that was killed")
    end = run()
    made = history_manifest(archive)
    assert made is not None
    assert made.records == len(rows(uri, "orders"))
    assert {one.name for one in made.files} == {one.name for one in archive.glob("*.parquet")}
    whole = both(spark, uri, archive)
    assert whole == rows(uri, "orders")

    forget_commit(checkpoint)  # killed when the manifest had moved, and Spark had not noted it
    assert run() == end
    assert history_manifest(archive) == made

    assert dlog(["log", "truncate", "orders", "--before-position", "cold", "--force"]) == 0
    assert rows(uri, "orders") == []
    assert both(spark, uri, archive) == whole
    put(uri, 500, first=2_500)
    checkpoint = tmp_path / "another"  # the checkpoint is lost
    run()
    both_now = whole + rows(uri, "orders")
    grown = history_manifest(archive)
    assert grown is not None
    assert (grown.records, grown.id) == (len(both_now), made.id)
    assert both(spark, uri, archive) == both_now


# --- snapshot and truncate ------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nothing of the example handles it."""


def replayed(changes: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """The table that all changes make: of each order the highest version, if it is not a deletion."""
    latest: dict[int, dict[str, Any]] = {}
    for change in changes:
        before = latest.get(change["order_id"])
        if before is None or change["version"] >= before["version"]:
            latest[change["order_id"]] = change
    return {
        key: (one["version"], one["event_ms"], *one["after"].values())
        for key, one in latest.items()
        if one["op"] != "d"
    }


def table(spark: Any, directory: Path) -> dict[int, tuple[Any, ...]]:
    found = snapshot_and_truncate.table(spark, str(directory)).collect()
    made = {row[0]: tuple(row[1:]) for row in found}
    assert len(made) == len(found), "a key is there twice"
    return made


def earliest(uri: str) -> Any:
    return json.loads(positions(uri, ["orders"], at="earliest"))


def test_s32_a_snapshot_killed_at_each_step_and_repeated(
    spark: Any, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S32: equal to a replay of the whole log, which is never truncated beyond the published snapshot."""
    history: list[dict[str, Any]] = []
    first = 0

    def more(records: int) -> None:
        nonlocal first
        before = len(rows(uri, "orders")) if first else 0
        put(uri, records, first=first)
        first += records
        history.extend(changes(uri)[before:])

    def run() -> None:
        snapshot_and_truncate.run(spark, uri, str(tmp_path))

    def state() -> tuple[Any, Any]:
        return snapshot_and_truncate.current(tmp_path), earliest(uri)

    def killed(step: str, *, after: bool) -> None:
        """In the first call of a step (in the second of `finish`: its first only tidies up)."""
        real, calls = getattr(snapshot_and_truncate, step), []

        def dying(*arguments: Any) -> Any:
            calls.append(1)
            if step == "finish" and len(calls) == 1:
                return real(*arguments)
            if after:
                real(*arguments)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(snapshot_and_truncate, step, dying)
            with pytest.raises(Killed):
                run()

    more(1_500)
    killed("write", after=True)
    assert state()[0] is None
    assert state()[1]["logs"]["orders"] == "1.0.0"
    run()
    assert table(spark, tmp_path) == replayed(history)
    assert rows(uri, "orders") == []

    more(500)
    before = state()
    killed("publish", after=False)
    assert state() == before  # neither published nor truncated
    killed("finish", after=False)
    now, start = state()
    assert start == before[1]  # published, not truncated
    assert table(spark, tmp_path) == replayed(history)
    more(500)
    run()
    assert table(spark, tmp_path) == replayed(history)
    run()  # nothing new
    assert table(spark, tmp_path) == replayed(history)
    assert rows(uri, "orders") == []
    assert now != state()[0]
    assert len(list(tmp_path.glob("snapshot-*"))) == 1


def test_s32_a_record_that_is_no_change_is_not_truncated_away(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    async def garbage(namespace: Namespace) -> None:
        async with namespace.open_log("orders").open_writer() as writer:
            await writer.write(LogRecord(1, b'{"order_id": "none"}'))

    on(uri, garbage)

    with pytest.raises(Exception, match=r"orders: no change of an order at 1\.0\.0"):
        snapshot_and_truncate.run(spark, uri, str(tmp_path))

    assert len(rows(uri, "orders")) == 1
    assert snapshot_and_truncate.current(tmp_path) is None
