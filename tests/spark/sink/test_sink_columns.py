"""From Arrow batches to entries: every record once, in order, in entries of the right size."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.extras import INSTALL

pa = pytest.importorskip("pyarrow", reason=INSTALL)
pytest.importorskip("numpy", reason=INSTALL)

from distributedlog.log.format.packed_columns import check_packed  # noqa: E402
from distributedlog.log.format.record_headers import split_contents  # noqa: E402
from distributedlog.log.segments.app_versions import LinkContent  # noqa: E402
from distributedlog.runtime.interfaces.errors import InvalidRequest  # noqa: E402
from distributedlog.spark.sink.sink_columns import (  # noqa: E402
    Packer,
    SinkColumns,
    by_log,
    check_schema,
    sink_columns_of,
)

pytestmark = pytest.mark.extra


def batch(payloads: Sequence[bytes | None], **columns: list[Any]) -> Any:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary()), **columns})


def records(entries: list[SinkColumns]) -> list[tuple[int, bytes]]:
    return [
        pair for one in entries for pair in zip(one.txids.tolist(), one.contents(), strict=True)
    ]


@settings(max_examples=examples(100))
@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=12), max_size=6),
    st.integers(20, 300),
    st.integers(0, 3),
)
def test_every_record_once_in_order_and_no_entry_above_its_size(
    batches: list[list[bytes]], entry_bytes: int, cut: int
) -> None:
    packer, txid = Packer(entry_bytes), 0
    entries: list[SinkColumns] = []
    wanted: list[tuple[int, bytes]] = []
    for payloads in batches:
        txids = list(range(txid, txid + len(payloads)))
        txid += len(payloads)
        made = batch(payloads, txid=txids).slice(
            min(cut, len(payloads))
        )  # offsets that begin anywhere
        wanted += list(zip(txids, payloads, strict=True))[cut:]
        entries += packer.add(sink_columns_of(made, "here"))
    entries += packer.flush()

    assert records(entries) == wanted
    assert all(one.size_bytes <= entry_bytes or one.count == 1 for one in entries)
    assert all(one.count for one in entries)
    for one in entries:
        packed, offsets, data = one.packed()
        assert packed is not None
        assert len(packed) == 8 * one.count
        assert offsets[:4] == bytes(4)
        assert int.from_bytes(offsets[-4:], "little") == len(data)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=5)), max_size=9), st.randoms())
def test_a_digest_tells_records_apart_and_not_their_order(
    pairs: list[tuple[int, bytes]], random: Random
) -> None:
    """However they are cut into batches: a repetition is cut otherwise."""

    def digest(some: list[tuple[int, bytes]]) -> int:
        made = batch([payload for _, payload in some], txid=[txid for txid, _ in some])
        return sink_columns_of(made, "here").digest()

    mixed = random.sample(pairs, len(pairs))
    at = random.randint(0, len(pairs))

    assert (digest(mixed[:at]) + digest(mixed[at:])) % (1 << 64) == digest(pairs)
    assert digest([*pairs, (0, b"one more")]) != digest(pairs)


def test_rows_without_txids_leave_them_to_the_link() -> None:
    rows = sink_columns_of(batch([b"one", b"three"]), "here")
    packer = Packer(1000)
    (entry,) = [*packer.add(rows), *packer.flush()]

    assert (entry.count, entry.packed()[0], entry.listed_txids()) == (2, None, None)
    assert (
        entry.digest() == sink_columns_of(batch([b"one", b"three"], txid=[0, 0]), "here").digest()
    )


def keyed_batch(
    payloads: Sequence[bytes], keys: Sequence[bytes | None], headers: Sequence[Any]
) -> Any:
    header = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
    rows = [
        None if pairs is None else [{"name": name, "value": value} for name, value in pairs]
        for pairs in headers
    ]
    return batch(payloads, key=pa.array(keys, pa.binary()), headers=pa.array(rows, header))


PAIRS = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=9)), max_size=3)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.lists(
            st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9), st.none() | PAIRS),
            max_size=9,
        ),
        max_size=5,
    ),
    st.integers(20, 300),
    st.integers(0, 3),
)
def test_keys_and_headers_stay_with_their_records(
    batches: list[list[tuple[bytes, Any, Any]]], entry_bytes: int, cut: int
) -> None:
    packer = Packer(entry_bytes)
    entries: list[SinkColumns] = []
    expected: list[tuple[bytes, Any, Any]] = []
    digest = 0
    for rows in batches:
        columns = zip(*rows, strict=True) if rows else ([], [], [])
        columns_of_batch = sink_columns_of(
            keyed_batch(*map(list, columns)).slice(min(cut, len(rows))), "here"
        )
        expected += [(payload, key, tuple(pairs or ())) for payload, key, pairs in rows[cut:]]
        digest += columns_of_batch.digest()
        entries += packer.add(columns_of_batch)
    entries += packer.flush()

    contents = [content for entry in entries for content in entry.contents()]
    payloads, keys, headers = split_contents(contents)
    count = len(payloads)
    assert expected == list(
        zip(payloads, keys or [None] * count, headers or [()] * count, strict=True)
    )
    assert all(entry.size_bytes <= entry_bytes or entry.count == 1 for entry in entries)
    # The log's own digest of the same records: a repeated batch is recognized by it.
    assert digest % (1 << 64) == LinkContent.of_contents([0] * count, contents).digest


def test_rows_with_null_keys_and_headers_are_plain_records() -> None:
    rows = sink_columns_of(keyed_batch([b"a", b"b"], [None, None], [None, []]), "here")

    assert (rows.packed_keyed(), rows.contents()) == ({}, [b"a", b"b"])
    assert rows.digest() == sink_columns_of(batch([b"a", b"b"]), "here").digest()


def test_entries_with_one_key_among_many_small_records_stay_within_the_limit() -> None:
    """The column of keys has a length for every record of the entry."""
    count = 300_000
    packer = Packer(1_000_000)
    keys: list[bytes | None] = [None] * (count - 1)
    entries = [
        *packer.add(sink_columns_of(keyed_batch([b""] * count, [*keys, b"k"], [[]] * count), "")),
        *packer.flush(),
    ]

    for entry in entries:
        keyed = entry.packed_keyed()
        assert keyed.keys() <= {"keys", "headers"}
        assert check_packed(*entry.packed()).with_keyed(
            **(keyed or {"keys": None, "headers": None})
        )


def test_header_with_a_null_part_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="log a: the value of a header is null"):
        sink_columns_of(keyed_batch([b"a"], [None], [[(b"n", None)]]), "log a")


def test_a_null_is_named_with_its_place() -> None:
    """S24."""
    with pytest.raises(
        InvalidRequest, match=r"log a, partition 3, row 1 of an Arrow batch: payload is null"
    ):
        sink_columns_of(batch([b"x", None]), "log a, partition 3")
    with pytest.raises(InvalidRequest, match="a txid must be 0 to"):
        sink_columns_of(batch([b"x"], txid=[-1]), "log a")


def test_rows_go_to_their_logs_in_order() -> None:
    made = batch([b"1", b"2", b"3"], log=["b", "a", "b"])

    assert [(name, part.column("payload").to_pylist()) for name, part in by_log(made, "")] == [
        ("b", [b"1", b"3"]),
        ("a", [b"2"]),
    ]


@pytest.mark.parametrize(
    ("fields", "log_given", "said"),
    [
        ([("txid", "bigint")], True, "no column payload"),
        ([("payload", "int")], True, "binary or string, not int"),
        ([("payload", "binary"), ("value", "string")], True, 'column "value" cannot be written'),
        ([("payload", "binary"), ("headers", "binary")], True, "must be array<struct"),
        ([("payload", "binary"), ("log", "string")], True, "remove one of them"),
        ([("payload", "binary")], False, "no log specified"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_by_name(
    fields: list[tuple[str, str]], log_given: bool, said: str
) -> None:
    """S24."""
    with pytest.raises(InvalidRequest, match=said):
        check_schema(fields, log_given=log_given)
