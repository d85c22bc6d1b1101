"""Entries as Arrow batches: views without a copy, and only the requested columns (S2)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.extras import INSTALL_ARROW

pa = pytest.importorskip("pyarrow", reason=INSTALL_ARROW)
pytest.importorskip("numpy", reason=INSTALL_ARROW)

from distributedlog.log.arrow.arrow_batches import BatchBuilder, group_entries  # noqa: E402
from distributedlog.log.arrow.arrow_columns import (  # noqa: E402
    DEFAULT_COLUMNS,
    OPTIONAL_COLUMNS,
    Projection,
    choose_columns,
)
from distributedlog.log.format.record import (  # noqa: E402
    Columns,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.runtime.interfaces.errors import InvalidRequest  # noqa: E402

pytestmark = pytest.mark.extra
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
    return replace(choose_columns(names), txid_unit=unit)


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

    names = ("log", *DEFAULT_COLUMNS, "dlsn")
    batch = BatchBuilder(asked(*names)).batch("x", parts)

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


def test_keys_and_headers_are_empty_for_a_log_without_any() -> None:
    parts = [entry([1, 2], [b"a", b"b"]), entry([3], [b"c"])]

    batch = BatchBuilder(asked("key", "headers")).batch("x", parts)

    batch.validate(full=True)
    assert batch.column("key").to_pylist() == [None, None, None]
    assert batch.column("headers").to_pylist() == [[], [], []]


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


def test_keys_and_headers_count_for_the_size_of_a_batch() -> None:
    """Otherwise records without payload would fill the memory of a task."""
    keyed = [entry([n], [b""], keys=[bytes(1_000)]) for n in range(5)]
    headed = [entry([n], [b""], headers=[((b"n", bytes(1_000)),)]) for n in range(5)]

    groups = [len(group) for group in group_entries([*keyed, *headed], 4_000)]

    assert groups == [3, 3, 3, 1]


def test_batches_of_several_groups_are_those_of_each_group() -> None:
    """They share the columns that are built once, and each has the payloads of its own entries."""
    parts = [entry([2 * n, 2 * n + 1], [b"%d" % n, b""], number=n, before=2 * n) for n in range(5)]
    groups = [parts[:1], parts[1:3], parts[3:]]
    for names in (("txid", "payload", "slot", "dlsn"), ("payload",), ("entry", "headers")):
        builder = BatchBuilder(asked(*names))

        batches = builder.batches("x", groups)

        assert batches == [builder.batch("x", group) for group in groups]
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema == asked(*names).arrow


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


def test_schema_has_the_requested_columns_in_their_order() -> None:
    names = ("payload", *OPTIONAL_COLUMNS, "txid")

    assert choose_columns(names).arrow.names == [*names]
    assert choose_columns(None).arrow.names == [*DEFAULT_COLUMNS]


@pytest.mark.parametrize("names", [["value"], [], ["txid", "txid"], "payload", ["txid", 1]])
def test_unknown_repeated_or_missing_columns_are_refused(names: Any) -> None:
    with pytest.raises(InvalidRequest, match="columns must be"):
        choose_columns(names)
