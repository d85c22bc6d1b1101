"""Columns of keys and headers: round trips, parts of an entry, and every kind of damage."""

import random
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.declarations.compression_codecs import CODEC_NAMES
from distributedlog.log.format.compression import Compression
from distributedlog.log.format.record import (
    FLAG_CONTROL,
    HEADER_BYTES,
    Columns,
    KeyedRecord,
    LogRecord,
    Origin,
    build_entry,
    build_single_record_entry,
    decode_columns,
    decode_header,
    split_columns,
)
from distributedlog.log.format.record_headers import (
    FLAG_HEADERS,
    FLAG_KEYS,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    KeyedContent,
    decode_keyed,
    encode_keyed,
    join_contents,
    split_contents,
)
from distributedlog.runtime.interfaces.errors import CorruptData, UnsupportedFormat
from tests.examples import examples

headers = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4).map(tuple)
keyed_rows = st.lists(
    st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=9), headers),
    min_size=1,
    max_size=20,
)
PAIR = ((b"name", b"value"), (b"name", b""))


def entry_of(rows: list[Any], codec: str = "none", **options: Any) -> bytes:
    """One entry of rows of payload, key and headers."""
    payloads, keys, row_headers = zip(*rows, strict=True)
    parts = build_entry(
        range(len(rows)),
        payloads,
        records_before=3,
        written_ms=4,
        keys=keys if any(key is not None for key in keys) else None,
        headers=row_headers if any(row_headers) else None,
        **options,
    )
    if codec != "none":
        parts = Compression("l", codec).compress(*parts)
    entry = b"".join(parts[0])
    assert len(entry) == parts[1]
    return entry


def read(entry: bytes) -> Columns:
    return decode_columns(entry, decode_header(entry), Origin(1, 0, 0))


def rows_of(columns: Columns) -> list[Any]:
    return [(one.payload, one.key, one.headers) for one in columns.records()]


@pytest.mark.properties
@settings(max_examples=examples(200))
@given(keyed_rows, st.sampled_from(CODEC_NAMES), st.data())
def test_rows_are_read_as_they_were_built_and_so_is_each_part(
    rows: list[Any], codec: str, data: st.DataObject
) -> None:
    columns = read(entry_of(rows, codec))

    assert rows_of(columns) == rows
    assert (columns.keys is None) == all(key is None for _, key, _ in rows)
    assert (columns.headers is None) == (not any(pairs for _, _, pairs in rows))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part = columns.cut(start, stop)
    assert rows_of(part) == rows[start:stop]
    assert part.held_bytes + columns.cut(stop, len(rows)).held_bytes <= columns.held_bytes


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_columns_of_keys_and_headers_are_compressed_with_the_others(codec: str) -> None:
    rows = [(b"payload", b"key", PAIR)] * 100

    entry = entry_of(rows, codec)

    assert len(entry) < len(entry_of(rows)) // 4
    assert rows_of(read(entry)) == rows


def test_an_entry_without_keys_and_headers_keeps_its_bytes() -> None:
    """No flag, and no byte more: also if all keys are None and no record has headers."""
    plain, _ = build_single_record_entry(7, b"payload", 3, 4)
    content = KeyedRecord(7, b"payload").content

    built, _ = build_entry([7], [content], records_before=3, written_ms=4)

    assert type(content) is bytes
    assert b"".join(built) == b"".join(plain)
    assert split_contents([content]) == ([b"payload"], None, None)


def test_the_bytes_of_keys_and_headers() -> None:
    """Other bytes are another format."""
    flags, keyed = encode_keyed([b"k", None, b""], [(), ((b"n", b"vv"), (b"n", b"")), ()])

    assert flags == 0x0300
    assert keyed == (
        struct.pack("<3i", 1, -1, 0) + b"k"
        + bytes([0, 2, 0]) + struct.pack("<4I", 1, 2, 1, 0) + b"nvvn"
    )  # fmt: skip
    entry = entry_of([(b"a", b"k", ())])
    assert entry[6:8] == b"\x00\x01"
    assert entry[HEADER_BYTES + 16 :] == b"a" + struct.pack("<i", 1) + b"k"


@settings(max_examples=examples(100))
@given(keyed_rows)
def test_contents_are_split_and_joined(rows: list[Any]) -> None:
    contents = [KeyedRecord(1, *row).content for row in rows]

    joined = join_contents(*split_contents(contents))

    assert [split_contents([one]) for one in joined] == [split_contents([one]) for one in contents]
    assert list(map(len, joined)) == list(map(len, contents))


def test_every_truncation_extension_and_flip_is_refused_or_stays_in_bounds() -> None:
    rows = [(b"ab", b"key", PAIR), (b"", None, ()), (b"c", b"", PAIR[:1])]
    for codec in CODEC_NAMES:
        entry = entry_of([(b"x" * 600, b"k", PAIR), *rows], codec)
        for length in range(len(entry)):
            with pytest.raises(CorruptData):
                read(entry[:length])
        with pytest.raises(CorruptData):
            read(entry + b"\x00")
    entry = entry_of(rows)
    for bit in range(8 * len(entry)):
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(flipped))
        except (CorruptData, UnsupportedFormat):
            continue
        assert found.count == 3
        assert sum(len(payload) for payload, _, _ in rows_of(found)) == 3
        kept = [len(key or b"") + sum(map(len, sum(pairs, ()))) for _, key, pairs in rows_of(found)]
        assert sum(kept) <= len(entry)


@settings(max_examples=examples(300))
@given(
    st.binary(max_size=80), st.sampled_from([FLAG_KEYS, FLAG_HEADERS, 0x0300]), st.integers(1, 9)
)
def test_random_columns_are_bounded_values_or_corrupt(data: bytes, flags: int, count: int) -> None:
    try:
        keys, row_headers = decode_keyed(data, flags, count)
    except CorruptData:
        return
    assert (keys is None, row_headers is None) == (not flags & FLAG_KEYS, not flags & FLAG_HEADERS)
    for column in (keys, row_headers):
        assert column is None or len(column) == count


@pytest.mark.parametrize(
    ("flags", "data"),
    [
        (FLAG_KEYS, struct.pack("<i", -2)),
        (FLAG_KEYS, struct.pack("<i", KEY_BYTES_MAX + 1) + bytes(KEY_BYTES_MAX + 1)),
        (FLAG_KEYS, struct.pack("<i", 2) + b"k"),
        (FLAG_KEYS, struct.pack("<i", 1) + b"kk"),
        (FLAG_KEYS, b"\x00"),
        (FLAG_HEADERS, b""),
        (FLAG_HEADERS, bytes([HEADERS_MAX + 1]) + bytes(8 * (HEADERS_MAX + 1))),
        (FLAG_HEADERS, bytes([1]) + bytes(7)),
        (FLAG_HEADERS, bytes([1]) + struct.pack("<2I", 2**32 - 1, 2**32 - 1)),
        (FLAG_HEADERS, bytes([1]) + struct.pack("<2I", 1, 1) + b"n"),
        (FLAG_HEADERS, bytes([0]) + b"more"),
    ],
)
def test_counts_and_lengths_out_of_range_are_corrupt(flags: int, data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_keyed(data, flags, 1)


def test_control_entries_and_entries_without_flags_have_no_keys() -> None:
    entry = bytearray(entry_of([(b"", b"key", ())], flags=FLAG_CONTROL))
    with pytest.raises(CorruptData):
        decode_header(bytes(entry))
    entry = bytearray(entry_of([(b"a", b"key", ())]))
    struct.pack_into("<H", entry, 6, 0)
    with pytest.raises(CorruptData):
        decode_header(bytes(entry))


def test_an_older_program_refuses_the_flags() -> None:
    """Its known flags are 0x00df: it raises `UnsupportedFormat` for each other one."""
    for row in ((b"a", b"k", ()), (b"a", None, PAIR)):
        assert decode_header(entry_of([row])).flags & ~0x00DF


def test_records_differ_by_key_and_headers() -> None:
    plain, keyed = LogRecord(1, b"a"), KeyedRecord(1, b"a", b"k", list(PAIR))

    assert plain == KeyedRecord(1, b"a", None, None)
    different = [plain, keyed, KeyedRecord(1, b"a", b""), KeyedRecord(1, b"a", b"k")]
    assert all(one != other for one, other in pairwise(different))
    assert keyed == KeyedRecord(1, b"a", b"k", PAIR)
    assert "key=b'k', 2 headers" in repr(keyed)
    txids, contents = split_columns([plain, keyed, b"bare"])
    assert txids == [1, 1, None]
    assert [type(one) for one in contents] == [bytes, KeyedContent, bytes]


def test_a_large_entry_of_keys_and_headers_is_read() -> None:
    draw = random.Random(7)
    rows = [
        (draw.randbytes(9), draw.choice((None, draw.randbytes(8))), PAIR * draw.randrange(32))
        for _ in range(5000)
    ]
    assert rows_of(read(entry_of(rows))) == rows
