"""What streaming queries do, as a registry of the driver collects it."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from distributedlog.spark.monitor.query_metrics import QueryCollector, query_listener
from tests.spark.conftest import fill
from tests.spark.test_spark_stream import Stream, until


def offset(**logs: int | None) -> str:
    """As Spark has it in its progress: sequence ids by log; None: not known."""
    return json.dumps(
        {
            "ids": {name: f"id-{name}" for name in logs},
            "logs": {name: "1.0.0" for name in logs},
            "sequence_ids": {name: at for name, at in logs.items() if at is not None},
            "v": 1,
        }
    )


def progress(end: str, latest: str | None, rows: int = 10, **more: Any) -> dict[str, Any]:
    source = {"endOffset": end, "latestOffset": latest, "numInputRows": rows}
    return {
        "id": "q",
        "runId": "r1",
        "name": "copy",
        "sources": [source],
        "durationMs": {"triggerExecution": 300},
        **more,
    }


def shown(queries: QueryCollector) -> str:
    registry = CollectorRegistry()
    registry.register(queries)
    return generate_latest(registry).decode()


def test_batches_records_and_what_is_behind_are_counted_by_query() -> None:
    queries = QueryCollector()

    queries.record_progress(progress(offset(a=10, b=5), offset(a=25, b=5)))
    queries.record_progress(progress(offset(a=20, b=5), offset(a=25, b=5, new=3), rows=7))

    text = shown(queries)
    assert 'dlog_spark_batches_total{query="copy"} 2.0' in text
    assert 'dlog_spark_records_total{query="copy"} 17.0' in text
    assert 'dlog_spark_batch_seconds_count{query="copy"} 2.0' in text
    assert 'dlog_spark_behind_records{query="copy"} 8.0' in text


@pytest.mark.parametrize("latest", [offset(a=None), None, "{}", "[1"])
def test_an_end_that_is_not_known_is_not_told_as_none_behind(latest: str | None) -> None:
    queries = QueryCollector()

    queries.record_progress(progress(offset(a=10), latest))

    assert "dlog_spark_batches_total" in shown(queries)
    assert "dlog_spark_behind_records{" not in shown(queries)


def test_a_log_that_was_made_anew_says_nothing_of_what_is_left() -> None:
    queries = QueryCollector()
    end = json.loads(offset(a=10))

    queries.record_progress(progress(json.dumps({**end, "ids": {"a": "another"}}), offset(a=3)))

    assert "dlog_spark_behind_records{" not in shown(queries)


def test_queries_that_read_no_log_or_are_over_have_no_samples() -> None:
    queries = QueryCollector()
    queries.record_progress(progress('{"orders": {"0": 17}}', None, name="of kafka", runId="r9"))
    queries.record_progress(progress(offset(a=1), offset(a=1)))
    assert "of kafka" not in shown(queries)

    queries.remove_query("r1")
    queries.remove_query("never seen")

    assert "query=" not in shown(queries)


def test_a_query_that_starts_again_is_shown_once() -> None:
    queries = QueryCollector()
    queries.record_progress(progress(offset(a=1), offset(a=1)))

    queries.record_progress(progress(offset(a=2), offset(a=2), runId="r2", name=None))
    queries.record_progress(progress(offset(a=2), offset(a=2), runId="r3"))

    text = shown(queries)
    assert text.count('dlog_spark_batches_total{query="copy"}') == 1
    assert 'dlog_spark_batches_total{query="q"} 1.0' in text


@pytest.mark.processes
@pytest.mark.spark
def test_spark_tells_the_listener(spark: Any, uri: str, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    listener = query_listener(registry)
    spark.streams.addListener(listener)
    fill(uri, "a", range(30))

    def said() -> str:
        return generate_latest(registry).decode()

    try:
        query = Stream(spark, uri, tmp_path, log="a").start(processingTime="100 milliseconds")
        try:
            until(lambda: f'dlog_spark_records_total{{query="{query.id}"}} 30.0' in said())
            assert f'dlog_spark_behind_records{{query="{query.id}"}} 0.0' in said()
        finally:
            query.stop()
        until(lambda: "query=" not in said())
    finally:
        spark.streams.removeListener(listener)
