"""How far somebody is behind, asked without Spark: real metadata and bookies in this process, in memory."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from distributedlog import DLSN, Namespace, blocking
from distributedlog.log.model.position import Position
from distributedlog.log.model.position_outcome import HeldPosition
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogNotFound
from distributedlog.spark import Lag, lag
from distributedlog.spark.client.spark_client import SparkClient, run
from distributedlog.spark.monitor.consumer_lag import _subscriber_positions
from distributedlog.spark.options.options import SourceOptions
from distributedlog.spark.read.offsets import Offset
from distributedlog.spark.read.source_logs import SourceLogs
from tests.spark.read.test_stream_progress import fill


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with blocking.local_cluster(memory=True, metadata_nodes=1) as made:
        yield made.uri


@pytest.fixture
def uri(cluster: str, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    return f"{cluster.rpartition('/')[0]}/{request.node.name[:40]}"


def do(uri: str, call: Any, *arguments: Any) -> Any:
    return run(uri, 10.0, lambda held: call(held.namespace, *arguments))


async def truth(namespace: Namespace, name: str, first: int) -> tuple[int, int]:
    """Records from a sequence id on, and the log time of the first of them, by reading all."""
    async with namespace.open_log(name).open_reader(to="end") as reader:
        left = [one for one in [one async for one in reader] if one.sequence_id >= first]
    return len(left), left[0].time_ms if left else 0


def short(one: Lag) -> tuple[str, str | None, str | None, int, int | None]:
    def said(dlsn: DLSN | None) -> str | None:
        return None if dlsn is None else str(dlsn)

    return one.log, said(one.position), said(one.end), one.records, one.lost


def test_a_query_is_behind_by_what_it_has_not_read(uri: str) -> None:
    """By its progress, as an object, a mapping or JSON; the lower position of two sources; others' sources
    do not count. Counted as a plain reader counts."""
    do(uri, fill, "a", range(95))
    do(uri, fill, "b", range(20))
    identity = {
        name: do(uri, lambda ns, name: ns.open_log(name).snapshot(), name).incarnation
        for name in ("a", "b")
    }
    low, high = Offset(), Offset()
    low.put("a", DLSN(1, 3, 4), identity["a"], 34)
    high.put("a", DLSN(1, 5, 0), identity["a"], 50)
    high.put("b", DLSN(2, 0, 0), identity["b"], 20)
    progress: dict[str, Any] = {
        "sources": [
            {"endOffset": json.dumps(high.to_json())}, {"endOffset": '{"topic": {"0": 7}}'},
            {"endOffset": json.dumps(low.to_json())}, {"endOffset": None},
        ]
    }  # fmt: skip

    class Query:
        lastProgress = progress

    for query in (Query(), progress, json.dumps(progress)):
        rows = lag(uri, query=query)
        assert [short(one) for one in rows] == [
            ("a", "1.3.4", "2.0.0", 61, 0),
            ("b", "2.0.0", "2.0.0", 0, 0),
        ]
    records, first_ms = do(uri, truth, "a", 34)
    assert rows[0].records == records
    assert 0 < rows[0].bytes < 61 * 200
    assert 0 <= rows[0].seconds < 3600
    assert (rows[1].bytes, rows[1].seconds) == (0, 0.0)
    with pytest.raises(InvalidRequest, match="no progress yet"):
        lag(uri, query=type("New", (), {"lastProgress": None})())
    with pytest.raises(InvalidRequest, match="does not read logs"):
        lag(uri, query={"sources": [{"endOffset": '{"topic": {"0": 7}}'}]})
    assert first_ms > 0


def test_a_subscriber_is_behind_in_the_logs_where_it_has_a_position(uri: str) -> None:
    """Or in those that are named, from their first record where it has none."""
    for name in ("a", "b", "c"):
        do(uri, fill, name, range(30))

    async def move(namespace: Namespace) -> None:
        await namespace.open_log("a").positions.advance("cold", DLSN(1, 1, 0))
        await namespace.open_log("b").positions.advance("cold", DLSN(2, 0, 0))

    do(uri, move)

    assert [short(one) for one in lag(uri, subscriber="cold")] == [
        ("a", "1.1.0", "2.0.0", 20, 0),
        ("b", "2.0.0", "2.0.0", 0, 0),
    ]
    assert [short(one) for one in lag(uri, subscriber="cold", logs=["c", "a"])] == [
        ("a", "1.1.0", "2.0.0", 20, 0),
        ("c", None, "2.0.0", 30, 0),
    ]
    with pytest.raises(LogNotFound, match='"z" does not exist'):
        lag(uri, subscriber="cold", logs=["a", "z"])


def test_position_of_a_subscriber_and_its_proof_are_of_one_moment(uri: str) -> None:
    """They were read by two requests. A subscriber that commits in between made a pair that never existed."""
    do(uri, fill, "a", range(30))

    async def held_while_it_moves(held: SparkClient) -> HeldPosition | None:
        namespace: Any = held.namespace
        logs = SourceLogs(namespace, SourceOptions(uri=uri, logs=("a",), fail_on_data_loss=False))
        await logs.discover(required=False)
        log, incarnation = namespace.open_log("a"), logs.views["a"].incarnation
        await log.positions.advance("cold", Position(incarnation, DLSN(1, 1, 0), 10))
        read = namespace.metadata.get

        async def read_and_move(key: bytes) -> Any:
            item = await read(key)
            if key.endswith(b"/position/cold"):
                namespace.metadata.get = read
                await log.positions.advance("cold", Position(incarnation, DLSN(1, 2, 0), 20))
            return item

        namespace.metadata.get = read_and_move
        try:
            return (await _subscriber_positions(held, logs, "cold"))["a"]
        finally:
            namespace.metadata.get = read
            logs.close()

    found = run(uri, 10.0, held_while_it_moves)

    assert found is not None
    assert (found.dlsn, found.sequence_id) in [(DLSN(1, 1, 0), 10), (DLSN(1, 2, 0), 20)]


def test_what_was_truncated_deleted_or_made_again_is_said(uri: str) -> None:
    """By the one function that decides for queries, and no row is missing."""
    for name in ("cut", "gone", "again"):
        do(uri, fill, name, range(50))
    at = {
        name: do(uri, lambda ns, name: ns.open_log(name).snapshot(), name).incarnation
        for name in ("cut", "gone", "again")
    }
    held = Offset()
    for name, identity in at.items():
        held.put(name, DLSN(1, 1, 0), identity, 10)

    async def change(namespace: Namespace) -> None:
        await namespace.open_log("cut").truncate(DLSN(1, 3, 0))
        await namespace.delete_log("gone")
        await namespace.delete_log("again")
        await fill(namespace, "again", range(7))

    do(uri, change)
    rows = lag(uri, positions=json.dumps(held.to_json()))

    assert [short(one) for one in rows] == [
        ("again", "1.0.0", "2.0.0", 7, 40),
        ("cut", "1.3.0", "2.0.0", 20, 20),
        ("gone", None, None, 0, 40),
    ]
    assert ["created again" in rows[0].note, "truncated" in rows[1].note, "deleted" in rows[2].note] == [
        True, True, True,
    ]  # fmt: skip
    with pytest.raises(LogNotFound):
        lag(uri, positions={"gone": "1.1.0"})
    assert short(lag(uri, positions={"cut": "1.4.0"})[0]) == ("cut", "1.4.0", "2.0.0", 10, 0)
    assert short(lag(uri, positions="latest", logs="cut")[0])[3:] == (0, 0)


def test_seconds_are_by_log_time(uri: str) -> None:
    """How long the first unread record has been there: not a txid's, and never less for a clock behind."""
    do(uri, fill, "a", range(30))
    _, first_ms = do(uri, truth, "a", 10)

    async def set_clock(namespace: Namespace, now_ms: int) -> None:
        namespace.wall_ms = lambda: now_ms

    def seconds(now_ms: int) -> float:
        do(uri, set_clock, now_ms)
        return lag(uri, positions={"a": "1.1.0"})[0].seconds

    assert seconds(first_ms + 90_000) == 90.0
    assert 0 <= seconds(first_ms - 90_000) < 60


def test_exactly_one_says_whose_lag() -> None:
    for given in ({}, {"query": {}, "subscriber": "s"}):
        with pytest.raises(InvalidRequest, match="exactly one of query, subscriber, positions"):
            lag("distributedlog://h:1/n", **given)  # type: ignore[arg-type]
