"""An archive's directory: one step from state to state, whoever is killed or writes at the same time."""

from pathlib import Path
from typing import Any

import pytest

from distributedlog.log.dlsn import DLSN
from distributedlog.runtime.errors import (
    CorruptData,
    ForeignData,
    InvalidRequest,
    VersionConflict,
)
from distributedlog.spark.archive import folder
from distributedlog.spark.archive.manifest import ArchiveFile, Manifest

START = Manifest("a" * 16, 0, "orders", "b" * 16, DLSN(1, 0, 0), DLSN(1, 0, 0), 0, 0)


def put(directory: Path, first_id: int) -> ArchiveFile:
    """A file of two records, as a task leaves it."""
    import xxhash

    name, data = folder.file_name(first_id), b"records %d" % first_id
    (directory / name).write_bytes(data)
    first, last = DLSN(1, first_id, 0), DLSN(1, first_id + 1, 0)
    digest = xxhash.xxh3_64_intdigest(data)
    return ArchiveFile(name, 2, 20, first, last, first_id, 1, len(data), digest)


def append(directory: Path, generation: int, *files: ArchiveFile) -> Manifest:
    folder.publish(directory, START.id, generation, lambda current: (current or START).grown(files))
    return folder.read(directory)


def test_of_two_that_append_at_once_one_fails_and_leaves_nothing(tmp_path: Path) -> None:
    mine, theirs = put(tmp_path, 0), put(tmp_path, 0)

    made = append(tmp_path, 0, theirs)
    with pytest.raises(VersionConflict, match=r"at generation 1 of archive a+, not 0"):
        append(tmp_path, 0, mine)
    folder.discard(tmp_path, [mine.name, theirs.name])  # the latter: a commit that raised too late

    assert folder.read(tmp_path) == made
    assert set(folder.sizes(tmp_path)) == {theirs.name}


def test_a_manifest_never_names_a_file_that_was_removed_as_a_leftover(tmp_path: Path) -> None:
    late = put(tmp_path, 0)
    folder.clean(tmp_path)

    with pytest.raises(VersionConflict, match="was removed by another append"):
        append(tmp_path, 0, late)

    assert folder.read_if_any(tmp_path) is None


def test_leftovers_go_and_what_counts_or_is_not_ours_stays(tmp_path: Path) -> None:
    kept = put(tmp_path, 0)
    append(tmp_path, 0, kept)
    put(tmp_path, 2)
    (tmp_path / ".manifest.json.killed").write_bytes(b"half")
    (tmp_path / "notes.txt").write_bytes(b"")

    folder.clean(tmp_path)

    assert set(folder.sizes(tmp_path)) == {kept.name, "notes.txt"}
    assert not (tmp_path / ".manifest.json.killed").exists()


def test_a_new_archive_wants_a_directory_that_is_empty_but_for_a_killed_attempt(
    tmp_path: Path,
) -> None:
    put(tmp_path, 0)
    folder.prepare(tmp_path)
    assert folder.sizes(tmp_path) == {}

    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(ForeignData, match=r"holds notes\.txt"):
        folder.prepare(tmp_path)
    (tmp_path / "notes.txt").unlink()
    append(tmp_path, 0, put(tmp_path, 0))
    with pytest.raises(ForeignData, match="holds an archive already"):
        folder.prepare(tmp_path)


def test_where_no_archive_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="did not finish"):
        folder.read(tmp_path)
    with pytest.raises(InvalidRequest, match=r"has no manifest\.json"):
        folder.read(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="s3://bucket/x"):
        folder.local("s3://bucket/x")


def test_every_flipped_byte_of_a_file_is_found(tmp_path: Path) -> None:
    one = put(tmp_path, 0)
    made = append(tmp_path, 0, one)
    whole = (tmp_path / one.name).read_bytes()
    folder.verify(tmp_path, made)

    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        (tmp_path / one.name).write_bytes(flipped)
        with pytest.raises(CorruptData, match=f"{one.name} is damaged"):
            folder.verify(tmp_path, made)


# --- files of records -----------------------------------------------------------------------------


def batch(log: str, ids: range) -> Any:
    """Records whose txid and payload follow from their sequence id."""
    import pyarrow as pa

    from distributedlog.spark.archive.parquet_file import SCHEMA

    rows = [
        {"log": log, "segment": 1, "entry": one, "slot": 0, "sequence_id": one, "txid": 10 * one,
         "payload": b"%d" % one * (one % 5)}
        for one in ids
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def written(directory: Path, *batches: Any) -> ArchiveFile:
    from distributedlog.spark.archive.parquet_file import PartWriter

    begin = batches[0].column("sequence_id")[0].as_py()
    part = PartWriter(directory, "orders", "b" * 16, 100, begin)
    for one in batches:
        part.add(one)
    return part.close()


def plain_digest(records: list[tuple[int, bytes]]) -> int:
    """As `manifest` defines it, a record at a time."""
    import xxhash

    from distributedlog.spark.archive.manifest import PLACE, TXID

    seeds = [(k * PLACE + txid * TXID) % 2**64 for k, (txid, _) in enumerate(records)]
    pairs = zip(records, seeds, strict=True)
    return sum(xxhash.xxh3_64_intdigest(payload, seed) for (_, payload), seed in pairs) % 2**64


@pytest.mark.extra
def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """And its digests are those of its bytes and of its records, however they were cut."""
    from distributedlog.spark.archive.parquet_file import records_of

    one = written(tmp_path, batch("orders", range(100, 150)), batch("orders", range(150, 400)))
    head = written(tmp_path, batch("orders", range(100, 333)))
    tail = written(tmp_path, batch("orders", range(333, 400)))

    records = [
        (row["txid"], row["payload"])
        for found in records_of(tmp_path, one, 0)
        for row in found.to_pylist()
    ]
    assert records == [(10 * n, b"%d" % n * (n % 5)) for n in range(100, 400)]
    assert one.digest == plain_digest(records) == (head.digest + tail.digest) % 2**64
    assert (one.records, one.first, one.last) == (300, DLSN(1, 100, 0), DLSN(1, 399, 0))
    assert one.payload_bytes == sum(len(payload) for _, payload in records)


@pytest.mark.extra
def test_records_in_another_place_or_changed_have_another_digest() -> None:
    from distributedlog.spark.archive.parquet_file import digest

    some = batch("orders", range(100, 110))

    assert digest(some, 0) != digest(some, 1)
    assert digest(some.take([1, 0, *range(2, 10)]), 0) != digest(some, 0)
    assert digest(some.slice(3), 3) != digest(some.slice(3), 0)
    assert digest(some.slice(0, 3), 0) + digest(some.slice(3), 3) in (
        digest(some, 0),
        digest(some, 0) + 2**64,
    )


@pytest.mark.extra
@pytest.mark.parametrize(
    ("ids", "log", "said"),
    [
        ([range(100, 104), range(105, 109)], "orders", "record 105 where record 104"),
        ([range(100, 104), range(103, 109)], "orders", "record 103 where record 104"),
        ([range(109, 99, -1)], "orders", "record 108 where record 110"),
        ([range(100, 110, 2)], "orders", "record 102 where record 101"),
        ([range(100, 104)], "others", "another log"),
    ],
    ids=["gap", "twice", "backwards", "filtered", "other log"],
)
def test_records_that_do_not_follow_are_refused(
    tmp_path: Path, ids: list[range], log: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        written(tmp_path, *(batch(log, some) for some in ids))


@pytest.mark.extra
def test_a_damaged_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Also where only the records' digest can tell: a file that was written anew."""
    from dataclasses import replace

    from distributedlog.spark.archive.parquet_file import records_of

    one = written(tmp_path, batch("orders", range(100, 200)))
    other = written(tmp_path, batch("orders", range(101, 201)))
    posing = replace(one, name=other.name, file_bytes=other.file_bytes, file_xxh3=other.file_xxh3)

    with pytest.raises(CorruptData, match=f"{other.name} is damaged: its 100 records"):
        list(records_of(tmp_path, posing, 0))
    path = tmp_path / one.name
    data = bytearray(path.read_bytes())
    for at in (0, 5, len(data) // 2, len(data) - 1):
        data[at] ^= 64
        path.write_bytes(data)
        with pytest.raises(CorruptData, match=f"{one.name} is damaged: its bytes"):
            list(records_of(tmp_path, one, 0))
        data[at] ^= 64
    path.unlink()
    with pytest.raises(CorruptData, match=f"{one.name} cannot be read"):
        list(records_of(tmp_path, one, 0))
