"""The pipelines of `examples/spark`, on a change feed with late and duplicate events, against its truth."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import trio

from distributedlog import DLSN, LogRecord, LogSnapshot, Namespace, SegmentInfo
from tests.cluster.story import Cluster
from tests.spark.conftest import ROOT, on, plain

pytest.importorskip("pyspark", reason="pip install '.[spark]'")

from examples.spark import audit, etl_to_parquet, windows_and_join
from examples.spark.change_feed import START_MS, ChangeFeed, write
from examples.spark.change_feed_truth import distinct_events, paid_orders, revenue

pytestmark = [pytest.mark.processes, pytest.mark.spark]

DAY_MS = 86_400_000
LOGS = ("orders", "payments")
FEED = ChangeFeed(seed=11, orders_per_minute=100, start_ms=START_MS + DAY_MS - 3_600_000)
"""Its first hour is in one day, the rest in the next."""


def put(uri: str, feed: ChangeFeed, records: int, first: int = 0) -> None:
    trio.run(write, uri, LOGS, feed, records, first)


def payloads(uri: str, log: str) -> list[bytes]:
    return [row[5] for row in plain(uri, log)]


@dataclass(frozen=True)
class Held:
    """A namespace that holds a feed."""

    uri: str
    orders: list[bytes]
    payments: list[bytes]


@pytest.fixture(scope="module")
def held(spark: Any, cluster: Cluster) -> Held:
    """24,000 records of both logs: some eighty minutes."""
    uri = f"{cluster.uri.rpartition('/')[0]}/{uuid4().hex[:12]}"
    put(uri, FEED, 24_000)
    return Held(uri, payloads(uri, "orders"), payloads(uri, "payments"))


# --- to Parquet -----------------------------------------------------------------------------------


def in_parquet(spark: Any, output: Path) -> list[Any]:
    """Every row of the table, by event id; the times as ms."""
    frame = spark.read.parquet(str(output))
    times = ("unix_millis(event_time) AS event_ms", "unix_millis(written) AS written_ms")
    return sorted(frame.selectExpr("*", *times).collect(), key=lambda row: str(row.event_id))


def test_etl_writes_each_change_once_and_goes_on_where_it_was(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    """Also what cannot be parsed; a second run reads what is new, and nothing else."""
    output, checkpoint = tmp_path / "orders", tmp_path / "checkpoint"

    def run() -> tuple[int, int]:
        return etl_to_parquet.run(spark, uri, str(output), str(checkpoint), max_records=8_000)

    put(uri, FEED, 16_000)
    first = len(payloads(uri, "orders"))
    batches, records = run()
    assert (batches, records) == (2, first)
    put(uri, FEED, 4_000, first=16_000)
    broken(uri, [b"{not json", b'{"event_id": "but no time"}'])
    assert run() == (1, len(payloads(uri, "orders")) - first)

    found = in_parquet(spark, output)
    good = payloads(uri, "orders")[:-2]
    truth = sorted(distinct_events(good).events, key=lambda event: str(event["event_id"]))
    assert len(truth) < len(good)  # there are duplicates
    rows = [row for row in found if row.raw is None]
    assert [row.event_id for row in rows] == [event["event_id"] for event in truth]
    for row, event in zip(rows, truth, strict=True):
        image = event["after"] or event["before"]
        for name in ("op", "order_id", "version", "event_ms"):
            assert row[name] == event[name]
        for name in ("customer_id", "country", "status", "amount_cents", "items"):
            assert row[name] == image[name]
        assert (row.day.day == 1) == (event["event_ms"] < START_MS + DAY_MS)
        assert row.written_ms >= row.event_ms
    assert {row.day.day for row in rows} == {1, 2}
    assert sorted(row.raw for row in found if row.raw) == [
        '{"event_id": "but no time"}',
        "{not json",
    ]


def broken(uri: str, found: list[bytes]) -> None:
    """Write records that are none of the feed's."""

    async def call(namespace: Namespace) -> None:
        async with namespace.open_log("orders").open_writer() as writer:
            for payload in found:
                await writer.write(LogRecord(writer.last_txid, payload))

    on(uri, call)


# --- windows and a join ---------------------------------------------------------------------------


def test_windows_and_join_find_what_is_true(spark: Any, held: Held, tmp_path: Path) -> None:
    """All that is within the patience counts, once; of what is later each may, and some was dropped."""
    output = str(tmp_path / "out")

    done = windows_and_join.run(
        spark, held.uri, output, str(tmp_path / "checkpoint"), max_records=6_000
    )

    orders, payments = distinct_events(held.orders), distinct_events(held.payments)
    assert orders.late
    assert payments.late
    dropped = [op.numRowsDroppedByWatermark for one in done["revenue"] for op in one.stateOperators]
    assert sum(dropped) > 0
    least, most = (revenue(orders, late=late) for late in (False, True))
    # A minute is written when the watermark has passed it, so the last ones are not there yet.
    closed_ms = orders.latest_ms - 10 * 60_000
    closed = {key for key in least if key[0] + 60_000 <= closed_ms}
    sums = {
        (row.start_ms, row.country): row
        for row in spark.read.parquet(f"{output}/revenue")
        .selectExpr("unix_millis(minute) AS start_ms", "country", "orders", "cents")
        .collect()
    }
    assert closed <= set(sums) <= {key for key in most if key[0] + 60_000 <= closed_ms}
    assert len(closed) > 200
    for key, row in sums.items():
        low, high = least.get(key), most[key]
        assert (low.orders if low else 0) <= row.orders <= high.orders
        assert (low.cents if low else 0) <= row.cents <= high.cents
    exact = [key for key in closed if least[key] == most[key]]
    assert len(exact) > 0.8 * len(closed)

    joined = spark.read.parquet(f"{output}/paid_orders").selectExpr(
        "order_id", "payment", "unix_millis(ordered)", "unix_millis(paid)", "paid_cents"
    )
    pairs = [tuple(row) for row in joined.collect()]
    assert len(pairs) == len(set(pairs))
    in_time, later = (
        paid_orders(orders, payments, within_ms=15 * 60_000, late=late) for late in (False, True)
    )
    assert in_time <= set(pairs) <= later
    assert len(in_time) > 4_000
    assert len(later) < len(payments.events)  # some paid too late, some for no order


# --- audit ----------------------------------------------------------------------------------------


def failed(found: list[audit.Finding]) -> set[tuple[str, str]]:
    return {(one.log, one.question) for one in found if not one.good}


def test_an_audit_passes_and_says_what_it_saw(spark: Any, uri: str) -> None:
    put(uri, ChangeFeed(seed=3, duplicate_share=0), 3_000)
    put(uri, ChangeFeed(seed=3, duplicate_share=0), 1_000, first=3_000)  # a second segment

    async def cut_and_subscribe(namespace: Namespace) -> None:
        log = namespace.open_log("orders")
        first = (await log.snapshot()).segments[0]
        await log.truncate(txid=first.first_txid + 5_000)
        await log.positions.advance("cold", await log.find(txid=first.last_txid))

    on(uri, cut_and_subscribe)

    found = audit.run(spark, uri, LOGS, unique="event_id", max_lag=2_000)

    assert failed(found) == set()
    rows = plain(uri, "orders")
    said = {one.question: one.detail for one in found if one.log == "orders"}
    assert said["no record is missing or there twice"].startswith(f"{len(rows)} records, ")
    assert said["segments hold what their metadata says"].startswith("2 segments, ")
    assert f"for {sum(len(row[5]) for row in rows)} of payload" in said[
        "segments hold what their metadata says"
    ]  # fmt: skip
    assert "records behind the end" in said["subscriber cold"]


def test_an_audit_names_what_is_wrong(spark: Any, held: Held, uri: str) -> None:
    """Duplicates, a subscriber far behind or cut off, txids that go back; each by its log."""
    put(uri, FEED, 1_000)

    async def spoil(namespace: Namespace) -> None:
        log = namespace.open_log("orders")
        first = (await log.snapshot()).first_dlsn
        await log.positions.advance("slow", first)
        await namespace.open_log("payments").positions.advance("cut", first)
        await namespace.open_log("payments").truncate(txid=FEED.start_ms + 200_000)
        await namespace.create_log("back")
        unchecked = namespace.open_log("back", config={"max_txid_check": False})
        async with unchecked.open_writer() as writer:
            for txid in (5, 6, 2, 7):
                await writer.write(LogRecord(txid, b"{}"))

    on(uri, spoil)

    found = audit.run(spark, uri, [*LOGS, "back"], unique="event_id", max_lag=500)

    events = distinct_events(payloads(uri, "orders"))
    assert failed(found) == {
        ("orders", "event_id is unique"),
        ("orders", "subscriber slow"),
        ("payments", "subscriber cut"),
        ("back", "txids never go back"),
    }
    said = {(one.log, one.question): one.detail for one in found}
    again = events.records - len(events.events)
    assert said["orders", "event_id is unique"].startswith(f"{again} records repeat one")
    assert f"{events.records} records behind" in said["orders", "subscriber slow"]


@pytest.mark.parametrize(
    ("change", "question", "said"),
    [
        ({"records": 9}, "no record is missing or there twice", "segment 1: 9 records 0 to 9"),
        ({"records": 11}, "no record is missing or there twice", "segment 1: 11 records 0 to 9"),
        ({"breaks": 1}, "no record is missing or there twice", "segment 1: 10 records 0 to 9"),
        ({"last_id": 8, "records": 9}, "no record is missing or there twice", "segment 2: "),
        ({"records": 9}, "segments hold what their metadata says", "holds 9 records, not 10"),
        ({"last_txid": 8}, "segments hold what their metadata says", "txids 0 to 8, not 0 to 9"),
        ({"payload_bytes": 900}, "segments hold what their metadata says", "1020 bytes of records"),
        ({"last_txid": 11}, "txids never go back", "segment 2 begins at 10, behind 11"),
    ],
)
def test_an_audit_sees_what_no_log_should_ever_do(
    change: dict[str, int], question: str, said: str
) -> None:
    """Two segments of ten records; the first one is not as it should be."""
    segments = [
        SegmentInfo("i", n, n, True, 0, 0, 10, 1_000, 10 * n - 10, 10 * n - 1, 10 * n - 10, 0, 0)
        for n in (1, 2)
    ]
    told_so = LogSnapshot(
        "a", "i", DLSN(1, 0, 0), 0, DLSN(2, 1, 0), 20, 19, False, "", tuple(segments)
    )

    def row(first: int, **other: int) -> SimpleNamespace:
        usual = {
            "records": 10, "payload_bytes": 500, "breaks": 0, "back": 0, "first_id": first,
            "last_id": first + 9, "first_txid": first, "last_txid": first + 9,
        }  # fmt: skip
        return SimpleNamespace(**usual | other)

    def asked(held: dict[int, Any]) -> dict[str, audit.Finding]:
        for number, one in held.items():
            one.segment = number
        questions = (audit.complete, audit.ordered, audit.matches_metadata)
        return {one.question: one for one in (ask(told_so, held) for ask in questions)}

    assert all(one.good for one in asked({1: row(0), 2: row(10)}).values())
    found = asked({1: row(0, **change), 2: row(10)})
    assert not found[question].good
    assert said in found[question].detail
    assert not asked({1: row(0)})["no record is missing or there twice"].good


@pytest.mark.campaigns
def test_an_audit_runs_as_a_program(spark: Any, held: Held) -> None:
    """As a user types it: a master, a session of its own, exit code 1 for what it finds."""
    program = ROOT / "examples" / "spark" / "audit.py"
    done = subprocess.run(
        [
            sys.executable,
            str(program),
            *f"--master local[2] --unique event_id --uri {held.uri}".split(),
        ],
        capture_output=True,
        timeout=300,
        check=False,
        env=os.environ,
    )

    lines = done.stdout.decode().splitlines()
    assert done.returncode == 1, done.stderr.decode()[-4000:]
    assert len(lines) == 8
    assert [line[:4] for line in lines] == ["ok  "] * 6 + ["FAIL"] * 2
    assert f"{len(held.orders)} records, 0 to {len(held.orders) - 1}" in lines[0]
