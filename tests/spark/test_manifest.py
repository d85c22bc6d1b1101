"""What a manifest states, and that nothing else is taken for it. Pure: no Spark, no files."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    ForeignData,
    InvalidRequest,
    UnsupportedFormat,
)
from distributedlog.spark.archive.manifest import ArchiveFile, Manifest
from tests.examples import examples


def file(first_id: int, records: int, segment: int = 1, digest: int = 7) -> ArchiveFile:
    """Records of one entry each, whose number is their sequence id."""
    first, last = DLSN(segment, first_id, 0), DLSN(segment, first_id + records - 1, 0)
    return ArchiveFile(
        f"{first_id:019d}-{'0' * 32}.parquet", records, 10 * records, first, last, first_id, digest,
        100 + records, 9,
    )  # fmt: skip


def test_archive_with_keys_or_headers_has_a_format_that_older_versions_refuse() -> None:
    plain = manifest(3)
    keyed = plain.grown([replace(file(3, 4), keyed_records=1)])

    assert json.loads(plain.encode())["format"] == 1
    assert "keyed_records" not in plain.encode().decode()
    assert json.loads(keyed.encode())["format"] == 2
    assert Manifest.decode(keyed.encode(), "m") == keyed


def manifest(*records: int, first: int = 0) -> Manifest:
    """Of files with so many records each."""
    made = Manifest(
        "a" * 16, 0, "orders", "b" * 16, DLSN(1, first, 0), DLSN(1, first, 0), first, first
    )
    files = []
    for one in records:
        files.append(file(first, one))
        first += one
    return made.grown(files)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 1000), max_size=8), st.integers(0, 10**12))
def test_what_is_stated_is_read_back(records: list[int], first: int) -> None:
    made = manifest(*records, first=first)

    assert Manifest.decode(made.encode(), "m") == made
    assert made.records == sum(records)
    assert json.loads(made.encode())["records"] == sum(records)


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6), st.integers(0, 7))
@example(2, 5)
def test_a_flipped_bit_is_found(at: int, bit: int) -> None:
    text = bytearray(manifest(3, 4).encode())
    text[at % len(text)] ^= 1 << bit

    with pytest.raises((CorruptData, ForeignData)) as told:
        Manifest.decode(bytes(text), "dir/manifest.json")

    assert "dir/manifest.json" in str(told.value)


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6))
def test_a_part_of_a_manifest_is_none(at: int) -> None:
    text = manifest(3, 4).encode().rstrip()

    with pytest.raises((CorruptData, ForeignData)):
        Manifest.decode(text[: at % len(text)], "m")


def signed(**changes: object) -> bytes:
    """A manifest that somebody else wrote, with a right digest of its own."""
    from distributedlog.spark.archive.manifest import _digest_of

    body: dict[str, Any] = json.loads(manifest(3, 4).encode())
    del body["xxh3"]
    body |= changes
    return json.dumps({**body, "xxh3": _digest_of(body)}).encode()


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (b"[]", ForeignData, "not the manifest"),
        (b'{"kind": "another"}', ForeignData, "not the manifest"),
        (signed(format=3), UnsupportedFormat, "format 3"),
        (signed(format=2), CorruptData, "sums"),
        (signed(records=8), CorruptData, "sums"),
        (signed(digest="0" * 16), CorruptData, "sums"),
        (signed(end_sequence_id=9), CorruptData, "the manifest has records"),
        (signed(end="1.2.0"), CorruptData, "the manifest has records"),
        (signed(first="nowhere"), CorruptData, "not a DLSN"),
        (signed(log=7), CorruptData, "log must be str"),
        (signed(files=[]), CorruptData, "is inconsistent"),
        (signed(files=None), CorruptData, "is inconsistent"),
        (signed(files=[{**file(0, 7).to_json(), "name": "../x"}]), CorruptData, r"\.\./x"),
        (signed(files=[file(0, 3).to_json(), file(4, 3).to_json()]), CorruptData, "missing, repeated"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(
    text: bytes, error: type[DistributedLogError], said: str
) -> None:
    with pytest.raises(error, match=said):
        Manifest.decode(text, "m")


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(-5, 5))
def test_an_archive_grows_by_what_follows_and_nothing_else(records: list[int], off: int) -> None:
    """Neither a gap nor a record twice."""
    made = manifest(*records)
    more = file(made.records + off, 3) if made.records + off >= 0 else file(0, 3)

    if off == 0:
        grown = made.grown([more])
        assert (grown.records, grown.generation) == (made.records + 3, made.generation + 1)
        assert grown.end == more.last.next()
    else:
        with pytest.raises(InvalidRequest, match="missing, repeated or out of order"):
            made.grown([more])


def test_files_out_of_order_and_an_end_before_the_last_record_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="out of order"):
        manifest(3).grown([file(6, 3), file(3, 3)])
    with pytest.raises(InvalidRequest, match="the manifest has records"):
        manifest(3).grown([file(3, 3)], DLSN(1, 4, 0))


def test_a_missing_a_cut_and_an_extra_file_are_named() -> None:
    made = manifest(3, 4)
    first, second = (one.name for one in made.files)
    whole = {one.name: one.file_bytes for one in made.files}

    made.check_listing(whole, "dir", no_others=True)
    made.check_listing({**whole, "extra": 1}, "dir", no_others=False)
    with pytest.raises(CorruptData, match=f"dir/{second} is missing"):
        made.check_listing({first: whole[first]}, "dir", no_others=True)
    with pytest.raises(CorruptData, match=f"dir/{first} has 5 bytes, the manifest has 103"):
        made.check_listing({**whole, first: 5}, "dir", no_others=True)
    with pytest.raises(ForeignData, match="dir/extra is not in the manifest"):
        made.check_listing({**whole, "extra": 1}, "dir", no_others=True)
