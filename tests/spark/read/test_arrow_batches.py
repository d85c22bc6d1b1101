"""Entries as Arrow batches: views without a copy, only what is asked for, the types Spark demands (S2)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.extras import INSTALL

pa = pytest.importorskip("pyarrow", reason=INSTALL)
pytest.importorskip("numpy", reason=INSTALL)

from distributedlog.log.format.record import (  # noqa: E402
    Columns,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.runtime.interfaces.errors import InvalidRequest  # noqa: E402
from distributedlog.spark.options.options import SourceOptions  # noqa: E402
from distributedlog.spark.read.arrow_batches import BatchBuilder, group_entries  # noqa: E402
from distributedlog.spark.read.table_schema import (  # noqa: E402
    COLUMNS,
    KEYED_COLUMNS,
    Projection,
    projection,
)

pytestmark = pytest.mark.extra
TYPES = {
    "log": pa.string(),
    "segment": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int32(),
    "sequence_id": pa.int64(),
    "txid": pa.int64(),
    "payload": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "dlsn": pa.string(),
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())])),
}
WALL_MS = 1_700_000_000_123


def entry(
    txids: Sequence[int],
    payloads: Sequence[bytes],
    *,
    number: int = 0,
    before: int = 0,
    **keyed: Any,
) -> Columns:
    buffers, _ = build_entry(
        txids, payloads, records_before=before, written_ms=WALL_MS + number, **keyed
    )
    data = b"".join(buffers)
    header = decode_header(data)
    return decode_columns(data, header, Origin(3, number, 100 + before, time_ms=header.written_ms))


def time_of(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def asked(*names: str, unit: str | None = None) -> Projection:
    kinds = COLUMNS | KEYED_COLUMNS | {"dlsn": "string"}
    schema = pa.schema([(name, TYPES[name]) for name in names])
    return projection([(name, kinds[name]) for name in names], schema, unit)


@settings(max_examples=examples(100))
@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_rows_are_the_records_whether_viewed_or_gathered(
    entries: list[list[bytes]], front: int, back: int
) -> None:
    parts, wanted, before = [], [], 0
    for number, payloads in enumerate(entries):
        txids = [10 * number + k for k in range(len(payloads))]
        part = entry(txids, payloads, number=number, before=before)
        start, stop = (
            min(front, part.count - 1),
            max(min(front, part.count - 1) + 1, part.count - back),
        )
        parts.append(part.cut(start, stop))
        wanted += [
            ("x", 3, number, k, 100 + before + k, txids[k], payloads[k], time_of(WALL_MS + number),
             f"3.{number}.{k}")
            for k in range(start, stop)
        ]  # fmt: skip
        before += len(payloads)

    batch = BatchBuilder(asked(*COLUMNS, "dlsn")).batch("x", parts)

    batch.validate(full=True)
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == wanted


def test_keys_and_headers_are_built_for_entries_with_and_without_them() -> None:
    pairs = ((b"n", b"v"), (b"n", b""))
    parts = [
        entry([1, 2], [b"a", b"b"], keys=[b"k", None], headers=[(), pairs]),
        entry([3], [b"c"]),
        entry([4, 5], [b"d", b"e"], keys=[None, b""]).cut(1, 2),
    ]

    batch = BatchBuilder(asked("payload", "key", "headers")).batch("x", parts)

    batch.validate(full=True)
    assert batch.column("payload").to_pylist() == [b"a", b"b", b"c", b"e"]
    assert batch.column("key").to_pylist() == [b"k", None, None, b""]
    named = [{"name": name, "value": value} for name, value in pairs]
    assert batch.column("headers").to_pylist() == [[], named, [], []]


def test_payloads_and_txids_of_an_entry_are_not_copied() -> None:
    part = entry([1, 2], [b"one", b"two"])

    batch = BatchBuilder(asked("txid", "payload")).batch("x", [part])

    address = pa.py_buffer(part.payload).address
    assert batch.column("payload").buffers()[2].address == address
    assert batch.column("txid").buffers()[1].address == pa.py_buffer(part.txids).address
    assert batch.column("txid").buffers()[1].address % 8 == 0


def test_only_the_columns_that_are_asked_for_are_built() -> None:
    """S2."""
    builder = BatchBuilder(asked("txid"))

    builder.batch("x", [entry([1, 2], [b"one", b"two"])])

    assert dict(builder.built_columns) == {"txid": 1}


def test_small_entries_share_a_batch_and_large_ones_do_not() -> None:
    small = [entry([n], [bytes(1_000)]) for n in range(10)]
    large = entry([11], [bytes(100_000)])

    groups = [len(group) for group in group_entries([*small, large, *small], 4_000)]

    assert groups == [4, 4, 2, 1, 4, 4, 2]
    default = SourceOptions.parse(
        {"uri": "distributedlog://h:1/n", "log": "a"}, "batch"
    ).batch_bytes
    # A batch of its own costs Spark more than a copy of 100 kB does.
    assert [len(group) for group in group_entries([large] * 50, default)] == [20, 20, 10]


def test_a_txid_that_is_no_time_is_refused_by_name() -> None:
    builder = BatchBuilder(asked("timestamp", unit="s"))

    assert builder.batch("x", [entry([2], [b""])]).column(0).cast(pa.int64()).to_pylist() == [
        2_000_000
    ]
    with pytest.raises(InvalidRequest, match=f'log "x": txid {2**62} is not a time in s'):
        builder.batch("x", [entry([2**62], [b""])])


def test_a_time_beyond_the_calendar_is_the_last_one() -> None:
    """A clock may say anything; the column says what it can, and no task fails."""
    part = entry([2], [b""])
    part.origin.time_ms = 2**62

    (said,) = (
        BatchBuilder(asked("timestamp")).batch("x", [part]).column(0).cast(pa.int64()).to_pylist()
    )

    assert said == (2**63 - 1) // 1000 * 1000


def test_a_column_that_is_not_there_is_refused_with_the_list() -> None:
    """S24."""
    with pytest.raises(
        InvalidRequest, match='unknown column "value": a log has log string, segment bigint'
    ):
        projection([("value", "binary")], pa.schema([]), None)
    with pytest.raises(InvalidRequest, match='"txid" must be bigint, not int'):
        projection([("txid", "int")], pa.schema([]), None)
