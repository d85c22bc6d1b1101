"""Who Spark's executors are: the driver alone has credentials, tasks a token of their logs."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.metadata.model.rights import MANAGE, READ, WRITE
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.interfaces.principals import Token
from distributedlog.runtime.protocol.tokens import encode_token, read_token
from distributedlog.spark.client import spark_client
from distributedlog.spark.client.delegation_token import (
    BATCH_S,
    CHARS_MAX,
    LOGS_MAX,
    STREAM_S,
    DelegatedToken,
    paths_of,
    token_scope,
)
from distributedlog.spark.options.options import SinkOptions, SourceOptions
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of
from tests.spark.conftest import why_not

URI = "distributedlog://h:1/ns"


def source(**given: str) -> SourceOptions:
    return SourceOptions.parse({"uri": URI, **given}, "batch")


def sink(**given: str) -> SinkOptions:
    return SinkOptions.parse({"uri": URI, **given}, "batch")


def test_tasks_are_lent_their_querys_logs_and_what_it_does_there() -> None:
    assert token_scope("ns", source(log="orders/eu")) == (("ns", "orders/eu", READ),)
    assert token_scope("ns", source(logs="b,a")) == (("ns", "a", READ), ("ns", "b", READ))
    assert token_scope("ns", source(logPattern="orders/*")) == (("ns", "orders/", READ),)
    assert token_scope("ns", sink(log="x")) == (("ns", "x", READ | WRITE),)
    assert token_scope("ns", sink(log="x", createLogs="true")) == (
        ("ns", "x", READ | WRITE | MANAGE),
    )
    assert token_scope("ns", sink()) == (("ns", "", READ | WRITE),)


@pytest.mark.parametrize(
    ("names", "pattern", "paths"),
    [
        ([f"a/b/{n}" for n in range(LOGS_MAX + 1)], None, ["a/b/"]),
        ([f"a/b{n}/c" for n in range(LOGS_MAX + 1)], None, ["a/"]),
        ([*(f"a/{n}" for n in range(LOGS_MAX)), "b"], None, [""]),
        (["a/" + "x" * CHARS_MAX, "a/y"], None, ["a/"]),
        (["a/" + "x" * CHARS_MAX], None, ["a/"]),
        (None, "orders-*", [""]),
        (None, "a/b[12]/c", ["a/"]),
        (None, "a/b", ["a/b"]),
    ],
)
def test_of_many_logs_the_directory_that_has_them_all(
    names: list[str] | None, pattern: str | None, paths: list[str]
) -> None:
    assert paths_of(names, pattern) == paths


def test_an_option_names_credentials_and_never_shows_a_secret_that_was_put_there() -> None:
    assert source(log="x", credentials="file:/a/b").credentials == "file:/a/b"
    for wrong in ("dlog1_AAAA", "file:", "env:X"):
        with pytest.raises(InvalidRequest, match="file:PATH") as caught:
            source(log="x", credentials=wrong)
        assert "AAAA" not in str(caught.value)


def test_what_is_lent_is_in_no_text_and_travels() -> None:
    lent = DelegatedToken(b"dlog1_marked", "-----BEGIN marked", (("ns", "x", READ),))

    assert "marked" not in repr(lent)
    assert pickle.loads(pickle.dumps(lent)) == lent


def test_two_users_of_one_worker_have_a_client_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their queries need the same: else one's tasks are done with the other's rights."""

    class Client:
        is_alive = True
        _use_count = 0

        def __init__(
            self, uri: str, timeout_s: float, credentials: str, lent: DelegatedToken
        ) -> None:
            self.lent = lent

        def update_token(self, lent: DelegatedToken) -> None:
            self.lent = lent

    def lent_to(user: str, name: bytes) -> DelegatedToken:
        token_scope = (("ns", "x", READ),)
        token = Token(user, 1 << 31, 1, 1, "00" * 16, name, token_scope)
        return DelegatedToken(encode_token(token, bytes(32)), "ca", token_scope)

    monkeypatch.setattr(spark_client, "SparkClient", Client)
    monkeypatch.setattr(spark_client, "_clients", {})
    first = spark_client.client(URI, 1.0, delegated_token=lent_to("etl", b"1" * 8))
    assert spark_client.client(URI, 1.0, delegated_token=lent_to("etl", b"2" * 8)) is first
    assert spark_client.client(URI, 1.0, delegated_token=lent_to("eve", b"3" * 8)) is not first


async def test_a_batch_is_not_lent_what_was_asked_for_a_stream(autojump_clock: object) -> None:
    """That ends sooner; two of a kind within a minute are one."""
    asked: list[int] = []

    class Metadata:
        async def make_token(self, *, valid_s: int, token_scope: object) -> bytes:
            asked.append(valid_s)
            return b"dlog1_%d" % valid_s

    held = object.__new__(spark_client.SparkClient)
    held.authority, held._issued_tokens = "ca", {}
    held.namespace = cast("Any", SimpleNamespace(metadata=Metadata()))
    for valid_s in (STREAM_S, BATCH_S, STREAM_S):
        lent = await held.delegate_token((("ns", "x", READ),), valid_s)
        assert lent is not None
        assert lent.token == b"dlog1_%d" % valid_s
    assert asked == [STREAM_S, BATCH_S]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster that requires rights, and the file of a token of ``etl``, who owns all its logs."""
    if missing := why_not():
        pytest.skip(missing)
    place = tmp_path_factory.mktemp("credentials")
    with Cluster.planned(place / "cluster", bookies=3, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        file = place / "etl" / "token"
        file.parent.mkdir()
        for words in (
            ("trust", "set-mode", "report", "--admin", "root"),
            ("user", "add", "etl"),
            *((("grant", "add", "etl", "owner", name)) for name in ("in", "out", "one")),
            ("trust", "set-mode", "enforce"),
            ("user", "token", "etl", "--output", str(file)),
        ):
            done = cluster.run("--credentials", f"file:{directory_of('user/root')}", *words)
            assert done.returncode == 0, done.stderr
        for name in ("in", "out", "one"):
            done = cluster.run("--credentials", f"file:{file}", "log", "create", name)
            assert done.returncode == 0, done.stderr
        yield cluster, file


@pytest.mark.processes
@pytest.mark.spark
def test_a_task_has_a_token_of_its_own_and_needs_no_other(world: tuple[Cluster, Path]) -> None:
    """Threat 5: what an executor holds reads that one log."""
    cluster, file = world
    from distributedlog.spark.client import spark_client as client
    from distributedlog.spark.client.spark_client import delegated_token_for

    given = {"uri": cluster.uri, "credentials": f"file:{file}", "requestTimeout": "60s"}
    options = SourceOptions.parse({**given, "log": "in"}, "batch")
    lent = delegated_token_for(options, is_stream=False)
    assert lent is not None
    said = read_token(lent.token)
    assert [(path, rights) for _, path, rights in said.token_scope] == [("in", READ)]
    assert said.ends_s <= read_token(file.read_bytes().strip()).ends_s

    held = client.client(cluster.uri, 60.0, "", lent)

    async def names() -> list[str]:
        return [name async for name in held.namespace.logs()]

    assert held.run(names) == ["in"]
    assert held.authority == ""  # it lends nothing on
    assert delegated_token_for(options, is_stream=False) == lent  # asked for a moment ago
    of_stream = delegated_token_for(options, is_stream=True)
    assert of_stream is not None
    assert read_token(of_stream.token).ends_s <= said.ends_s
    client.client(cluster.uri, 60.0, f"file:{file}")._issued_tokens.clear()
    newer = delegated_token_for(options, is_stream=False)
    assert newer is not None
    assert newer.token != lent.token
    assert client.client(cluster.uri, 60.0, "", newer) is held
    assert held._token() == newer.token


@pytest.mark.processes
@pytest.mark.spark
def test_every_task_of_a_query_is_lent_one(world: tuple[Cluster, Path]) -> None:
    """Or an executor without credentials of its own is nobody."""
    cluster, file = world
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from distributedlog.log.arrow.arrow_columns import Projection
    from distributedlog.spark.read.batch_reader import BatchReader, ReadTask
    from distributedlog.spark.read.stream_reader import StreamReader
    from distributedlog.spark.sink.spark_sink import BatchWriter, StreamWriter

    async def fill() -> None:
        async with (
            open_namespace(cluster.uri, config={"credentials": f"file:{file}"}) as namespace,
            namespace.open_log("one").open_writer() as writer,
        ):
            await writer.write(LogRecord(0, b"first"))

    trio.run(fill)
    given = {"uri": cluster.uri, "credentials": f"file:{file}", "requestTimeout": "60s"}
    sinks = [
        writer(SinkOptions.parse({**given, "log": "out"}, "batch"), overwrite=False)
        for writer in (BatchWriter, StreamWriter)
    ]
    for sink in sinks:
        sink.check()
        assert sink.delegated_token is not None
        assert [rights for _, _, rights in sink.delegated_token.scope] == [READ | WRITE]

    columns: Projection = Any  # type: ignore[assignment]
    batch = BatchReader(SourceOptions.parse({**given, "log": "one"}, "batch"), columns)
    begin = {**given, "log": "one", "startingPosition": "earliest"}
    stream = StreamReader(SourceOptions.parse(begin, "stream"), columns)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    for tasks in (batch.partitions(), stream.partitions(start, end)):
        assert tasks
        for task in tasks:
            assert isinstance(task, ReadTask)
            assert task.delegated_token is not None
            assert task.delegated_token.token.decode() not in repr(task)
    stream.stop()


@pytest.mark.processes
@pytest.mark.spark
def test_a_query_and_its_failures_show_no_token(
    world: tuple[Cluster, Path], tmp_path: Path
) -> None:
    """H240: one, and all that were made of it: not in output, event log, checkpoint, process list."""
    cluster, file = world
    command = [sys.executable, "-m", "tests.spark.credentials_driver", cluster.uri, str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment(), "DLOG_CREDENTIALS": f"file:{file}"},
    )

    said = done.stdout.decode()
    assert done.returncode == 0, (said[-3000:], done.stderr[-3000:])
    assert f"read {list(range(10))}" in said
    assert "copied 10" in said
    assert "failed" in said
    assert "refused" in said
    written = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert any("events" in one.parts for one in written)
    assert any("checkpoint" in one.parts for one in written)
    for name, content in [
        ("stdout", done.stdout),
        ("stderr", done.stderr),
        *((str(one), one.read_bytes()) for one in written),
        *((str(one), one.read_bytes()) for one in cluster.directory.rglob("*.stderr")),
    ]:
        assert b"dlog1_" not in content, name
