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
        pair for one in entries for pair in zip(one.txids.tolist(), one.payloads(), strict=True)
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
        ([("payload", "binary"), ("key", "string")], True, 'column "key" cannot be written'),
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
