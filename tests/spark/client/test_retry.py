"""Planning and sinks wait for a cluster that is away as streams do, and say so with a level and a name."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from trio.testing import MockClock

from distributedlog import Namespace
from distributedlog.blocking import local_cluster
from distributedlog.cluster.local.child_processes import environment
from distributedlog.runtime.interfaces.errors import (
    LogEmpty,
    LogNotFound,
    LogTruncated,
    OwnershipAcquireFailed,
    QuorumUnreachable,
)
from distributedlog.runtime.primitives.backoff import Backoff
from distributedlog.spark import plain_errors
from distributedlog.spark import session_settings as settings
from distributedlog.spark.client import retry as waiting
from distributedlog.spark.client import spark_client as clients
from distributedlog.spark.client.retry import RetryPolicy, retry_unavailable
from distributedlog.spark.client.spark_client import SparkClient, run
from distributedlog.spark.client.spark_errors import error_from_text
from distributedlog.spark.options.options import SinkOptions, SourceOptions


def failing(times: int, error: Exception) -> Callable[[], "object"]:
    left = [times]

    async def call() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "there"

    return call


async def test_what_may_pass_is_asked_again_until_the_time_is_over(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S27."""
    away = QuorumUnreachable("nobody is there")

    with caplog.at_level(logging.WARNING, "distributedlog.spark"):
        assert await retry_unavailable(failing(5, away), 120.0, "a task") == "there"  # type: ignore[arg-type]
    assert caplog.messages == ["a task is waiting: nobody is there (retrying)"] * 5
    with pytest.raises(QuorumUnreachable):
        await retry_unavailable(failing(10_000, away), 120.0)  # type: ignore[arg-type]
    assert autojump_clock.current_time() < 130.0


@pytest.mark.parametrize("error", [LogNotFound("gone"), OwnershipAcquireFailed("mine", "me")])
def test_what_the_user_must_decide_is_raised_at_once(error: LogNotFound) -> None:
    with pytest.raises(type(error)):
        RetryPolicy("the query", 120.0, now=0.0).pause_s(error, now=1.0)


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with local_cluster(memory=True, metadata_nodes=1) as cluster:
        yield cluster.uri


def test_a_batch_is_planned_when_the_store_is_there_again(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It failed with the first answer that did not come; streams alone waited."""
    monkeypatch.setattr(waiting, "Backoff", partial(Backoff, 0.001))
    failures = [3]

    async def plan(held: SparkClient) -> bool:
        if failures[0]:
            failures[0] -= 1
            raise QuorumUnreachable("nobody is there")
        return await held.namespace.log_exists("a")

    with caplog.at_level(logging.WARNING, "distributedlog.spark"):
        assert run(uri, 10.0, plan, retry_s=60.0) is False
    assert caplog.messages == ["the query is waiting: nobody is there (retrying)"] * 3


def test_a_client_serves_while_another_one_is_made(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making one takes seconds where its cluster is away. Looking whether it was idle, the client of another
    cluster waited for that in its loop, and all that it served stood still."""
    monkeypatch.setattr(clients, "IDLE_S", 0.0)
    with clients._lock:  # as long as one is being made; before, so that none finds this one idle
        made = SparkClient(uri, 10.0)
        made.users += 1
        try:
            answer = made.background.submit(made.namespace.log_exists, "a")
            assert answer.result(timeout=60.0) is False
        finally:
            made.close()


def test_an_error_of_ours_comes_back_as_what_it_was() -> None:
    """Out of what Spark wraps around it."""
    spoken = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance\n  File x, line 7\n"
        'distributedlog.LogTruncated: log "a" was truncated: wanted 1.2.0\n\n'
        "\tat org.apache.spark.sql.execution\n"
    )

    with pytest.raises(LogTruncated) as caught, plain_errors():
        raise RuntimeError(spoken)
    assert str(caught.value) == 'log "a" was truncated: wanted 1.2.0'
    assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match="another's"), plain_errors():
        raise ValueError("another's")
    assert error_from_text("distributedlog.Unheard: of") is None


def test_the_error_of_a_worker_with_an_older_program_is_recognized() -> None:
    text = "distributedlog.runtime.interfaces.errors.LogEmpty: nothing there"

    assert isinstance(error_from_text(text), LogEmpty)


def spoken(setup: str) -> str:
    """What a process of Spark's prints of a warning."""
    program = (
        f"import logging; {setup}\n"
        "from distributedlog.spark.client.spark_errors import log_warnings_to_stderr\n"
        "log_warnings_to_stderr(); log_warnings_to_stderr()\n"
        "logging.getLogger('distributedlog.spark').warning('30 records are lost')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    return done.stderr


def test_a_warning_has_a_level_and_a_name_where_nobody_set_logging_up() -> None:
    """It was a bare line; where somebody has, it is said once and in their form."""
    assert spoken("pass").rstrip().endswith("WARNING distributedlog.spark: 30 records are lost")
    assert len(spoken("pass").splitlines()) == 1
    assert spoken("logging.basicConfig(format='mine %(message)s')") == "mine 30 records are lost\n"


def test_a_local_session_gives_its_workers_this_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``.venv/bin/python job.py`` without an activated environment ended in DATA_SOURCE_NOT_FOUND."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    settings.recommended_conf()
    assert "PYSPARK_PYTHON" not in os.environ  # another machine's path, perhaps

    settings.recommended_conf(local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/own")
    settings.recommended_conf(local=True)
    assert os.environ["PYSPARK_PYTHON"] == "/their/own"


@pytest.mark.extra
def test_a_batch_read_a_sink_and_positions_wait_for_the_store(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by its own ``readTimeout``: before any task starts, where the first answer that did not come was
    the end."""
    from distributedlog.spark.read.batch_reader import BatchReader, positions
    from distributedlog.spark.sink.spark_sink import BatchWriter

    monkeypatch.setattr(waiting, "Backoff", partial(Backoff, 0.001))
    run(uri, 10.0, lambda held: held.namespace.create_or_find("there"))
    found, failures = Namespace.resolve_name, [0]

    async def away(namespace: Namespace, name: str) -> int:
        if failures[0]:
            failures[0] -= 1
            raise QuorumUnreachable("nobody is there")
        return await found(namespace, name)

    monkeypatch.setattr(Namespace, "resolve_name", away)
    given = {"uri": uri, "log": "there", "readTimeout": "60s"}
    reader = BatchReader(SourceOptions.parse(given, "batch"), None)  # type: ignore[arg-type]
    writer = BatchWriter(SinkOptions.parse(given, "batch"), overwrite=False)
    calls = (reader.partitions, writer.check, lambda: positions(uri, ["there"]))
    for call in calls:
        failures[0] = 2
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            call()
        assert failures[0] == 0
    assert caplog.messages == ["the query is waiting: nobody is there (retrying)"] * 2 * len(calls)

    failures[0] = 1_000_000
    given["readTimeout"] = "20ms"
    with pytest.raises(QuorumUnreachable):
        BatchReader(SourceOptions.parse(given, "batch"), None).partitions()  # type: ignore[arg-type]
    failures[0] = 0
