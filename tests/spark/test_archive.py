"""An archive's store: one step from state to state, whoever is killed or writes at the same time.

A directory, and an object store that refuses what object stores do not have.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    ForeignData,
    InvalidRequest,
    VersionConflict,
)
from distributedlog.spark.archive import archive_folder as folder
from distributedlog.spark.archive.archive_store import (
    ArchiveStore,
    BucketStore,
    DirectoryStore,
    store_of,
)
from distributedlog.spark.archive.manifest import ArchiveFile, Manifest
from tests.examples import examples

START = Manifest("a" * 16, 0, "orders", "b" * 16, DLSN(1, 0, 0), DLSN(1, 0, 0), 0, 0)


@pytest.fixture(scope="module", autouse=True)
def _no_syncs() -> Iterator[None]:
    """Thousands of them, on a disk that others use; what they are for no test of a living process can see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.extra)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    """Each test in both."""
    made = store_of(tmp_path) if request.param == "directory" else bucket(tmp_path)
    made.prepare()
    return made


def bucket(path: Path) -> BucketStore:
    """An object store over a directory. Skips where fsspec is not installed."""
    if importlib.util.find_spec("fsspec") is None:
        pytest.skip("fsspec is not installed: pip install '.[spark]'")
    import fsspec

    from tests.spark.write_once import WriteOnce

    fsspec.register_implementation("once", WriteOnce, clobber=True)
    made = store_of(f"once://{path}")
    assert isinstance(made, BucketStore)
    return made


def put(store: ArchiveStore, first_id: int, generation: int = 1) -> ArchiveFile:
    """A file of two records, as a task leaves it."""
    name, data = folder.file_name(first_id, generation), b"records %d" % first_id
    file = store.begin_object(name)
    file.write(data)
    file.close()
    first, last = DLSN(1, first_id, 0), DLSN(1, first_id + 1, 0)
    digest = xxhash.xxh3_64_intdigest(data)
    return ArchiveFile(name, 2, 20, first, last, first_id, 1, len(data), digest)


def raw(store: ArchiveStore, name: str, data: bytes) -> None:
    """As somebody else leaves it, by their own means."""
    (Path(store.location.removeprefix("once://")) / name).write_bytes(data)


def append(store: ArchiveStore, generation: int, *files: ArchiveFile) -> Manifest:
    folder.publish(store, START.id, generation, lambda current: (current or START).grown(files))
    return folder.read_manifest(store)


def names(store: ArchiveStore) -> set[str]:
    """Of files, whether they count or not."""
    return {name for name in store.list_sizes() if name.endswith(".parquet")}


def test_of_two_that_append_at_once_one_fails_and_what_it_left_goes(store: ArchiveStore) -> None:
    mine, theirs = put(store, 0), put(store, 0)

    made = append(store, 0, theirs)
    with pytest.raises(VersionConflict, match=r"generation 1 of archive a+, expected 0"):
        append(store, 0, mine)

    assert folder.read_manifest(store) == made
    assert names(store) == {theirs.name}


def test_of_two_that_begin_with_the_same_state_one_creates_the_next(store: ArchiveStore) -> None:
    """Both have looked, and both have files: the number decides, and no lock."""
    append(store, 0, put(store, 0))
    mine, theirs = put(store, 2, 2), put(store, 2, 2)

    def make(current: Manifest | None) -> Manifest:
        append(store, 1, theirs)  # between our look and our create
        assert current is not None
        return current.grown([mine])

    with pytest.raises(VersionConflict, match="has generation 2"):
        folder.publish(store, START.id, 1, make)

    assert [one.name for one in folder.read_manifest(store).files][1:] == [theirs.name]


def test_files_that_may_still_come_to_count_are_left_and_others_go(store: ArchiveStore) -> None:
    """An append that is under way is not robbed by one that ends, or begins; killed ones leave nothing for
    long. What is not ours stays."""
    kept = put(store, 0)
    dead = put(store, 0)
    append(store, 0, kept)
    under_way = put(store, 2, generation=2)
    raw(store, "notes.txt", b"")
    folder.clean(store)
    assert names(store) == {kept.name, under_way.name}
    assert dead.name not in names(store)

    winner = put(store, 2, generation=2)
    append(store, 1, winner)

    assert names(store) == {kept.name, winner.name}
    assert "notes.txt" in store.list_sizes()


def test_a_manifest_never_names_a_file_that_is_gone(store: ArchiveStore) -> None:
    late = put(store, 0)
    store.delete([late.name])

    with pytest.raises(VersionConflict, match="was deleted by another append"):
        append(store, 0, late)

    assert folder.read_manifest_if_any(store) is None


def test_an_append_that_slept_for_many_generations_counts_for_nothing(store: ArchiveStore) -> None:
    """Its number is free again, for old manifests go: created, it would be taken for published."""
    append(store, 0, put(store, 0))
    late = put(store, 2, 2)

    def make(current: Manifest | None) -> Manifest:
        for generation in range(1, folder.MANIFESTS_KEPT + 3):
            append(store, generation, put(store, 2 * generation, generation + 1))
        raw(store, late.name, b"as if nobody had removed it")
        assert current is not None
        return current.grown([late])

    with pytest.raises(VersionConflict, match=f"has generation {folder.MANIFESTS_KEPT + 3}"):
        folder.publish(store, START.id, 1, make)

    manifests = [name for name in store.list_sizes() if name.startswith("_manifest")]
    assert len(manifests) == folder.MANIFESTS_KEPT
    assert folder.manifest_name(2) not in manifests
    folder.verify(store, folder.read_manifest(store))


@pytest.mark.parametrize("happened", [True, False])
def test_a_create_whose_answer_is_lost_is_asked_again(
    store: ArchiveStore, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And known again by its bytes: not taken for another one's, nor published twice."""
    one = put(store, 0)
    create, lost = type(store).create, [2]

    def losing(self: Any, name: str, data: bytes) -> bool:
        if lost[0]:
            lost[0] -= 1
            if happened:
                create(self, name, data)
            raise ConnectionLost("no answer")
        return bool(create(self, name, data))

    monkeypatch.setattr(type(store), "create", losing)

    assert append(store, 0, one).generation == 1


def test_an_archive_of_an_older_program_is_read_and_grows(store: ArchiveStore) -> None:
    old = put(store, 0)
    made = START.grown([old])
    raw(store, folder.OLD_NAME, made.encode())
    assert folder.read_manifest(store) == made
    with pytest.raises(ForeignData, match="already contains an archive"):
        folder.prepare_new(store)

    grown = append(store, 1, put(store, 2, 2))

    assert grown.files[0].name == old.name
    assert folder.OLD_NAME not in store.list_sizes()
    folder.verify(store, grown)


def test_a_manifest_under_another_ones_number_is_not_taken_for_it(store: ArchiveStore) -> None:
    made = append(store, 0, put(store, 0))
    raw(store, folder.manifest_name(7), made.encode())

    with pytest.raises(CorruptData, match="has generation 1: it was renamed"):
        folder.read_manifest(store)


def test_a_new_archive_wants_a_place_that_is_empty_but_for_a_killed_attempt(
    store: ArchiveStore,
) -> None:
    killed = put(store, 0)
    folder.prepare_new(store)

    raw(store, "notes.txt", b"")
    with pytest.raises(ForeignData, match=r"contains notes\.txt"):
        folder.prepare_new(store)
    store.delete(["notes.txt"])
    append(store, 0, put(store, 0))
    assert killed.name not in names(store)
    with pytest.raises(ForeignData, match="already contains an archive"):
        folder.prepare_new(store)


def test_where_no_archive_is(store: ArchiveStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="did not finish"):
        folder.read_manifest(store)
    with pytest.raises(InvalidRequest, match="has no manifest"):
        folder.read_manifest(store_of(tmp_path / "nowhere"))
    assert store_of(f"file://{tmp_path}").location == store_of(tmp_path).location == str(tmp_path)
    assert isinstance(store_of(tmp_path), DirectoryStore)


@pytest.mark.extra
def test_a_store_that_is_not_known_or_not_safe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bucket(tmp_path)
    from tests.spark.write_once import WriteOnce

    monkeypatch.setattr(WriteOnce, "refuses_to_create_again", False)
    with pytest.raises(InvalidRequest, match="overwrites existing objects"):
        made.prepare()
    assert made.list_sizes() == {}
    with pytest.raises(InvalidRequest, match="nosuch://x: "):
        store_of("nosuch://x").list_sizes()
    (tmp_path / "_manifest-0000000000000000001.json").mkdir()
    with pytest.raises(ConnectionLost, match="IsADirectory"):
        made.read("_manifest-0000000000000000001.json")


def test_every_flipped_byte_of_a_file_is_found(store: ArchiveStore) -> None:
    one = put(store, 0)
    made = append(store, 0, one)
    whole = store.read(one.name)
    assert whole is not None
    folder.verify(store, made)

    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        raw(store, one.name, bytes(flipped))
        with pytest.raises(CorruptData, match=f"{one.name} is damaged"):
            folder.verify(store, made)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=14))
def test_whoever_appends_in_whatever_order_nothing_published_is_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    """Three appenders, whose steps (look and write; publish, or die) come in any order."""
    store = store_of(tmp_path_factory.mktemp("store"))
    held: dict[int, tuple[int, ArchiveFile]] = {}
    published: list[str] = []
    for who, dies in steps:
        current = folder.read_manifest_if_any(store)
        if who not in held:
            generation = 0 if current is None else current.generation
            end = 0 if current is None else current.end_sequence_id
            held[who] = generation, put(store, end, generation + 1)
            continue
        generation, file = held.pop(who)
        if dies:
            continue
        try:
            append(store, generation, file)
            published.append(file.name)
        except DistributedLogError:
            assert current is not None
            assert current.generation > generation
    found = folder.read_manifest_if_any(store)
    assert [one.name for one in found.files] == published if found else published == []
    if found is not None:
        folder.verify(store, found)


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


def written(store: ArchiveStore, *batches: Any) -> ArchiveFile:
    from distributedlog.spark.archive.parquet_file import ParquetFileWriter

    begin = batches[0].column("sequence_id")[0].as_py()
    part = ParquetFileWriter(store, "orders", "b" * 16, 100, begin, 1)
    for one in batches:
        part.add(one)
    return part.close()


def plain_digest(records: list[tuple[int, bytes]]) -> int:
    """As `manifest` defines it, a record at a time."""

    from distributedlog.spark.archive.manifest import POSITION_FACTOR, TXID_FACTOR

    seeds = [
        (k * POSITION_FACTOR + txid * TXID_FACTOR) % 2**64 for k, (txid, _) in enumerate(records)
    ]
    pairs = zip(records, seeds, strict=True)
    return sum(xxhash.xxh3_64_intdigest(payload, seed) for (_, payload), seed in pairs) % 2**64


@pytest.mark.extra
def test_a_file_is_read_back_as_it_was_written(store: ArchiveStore) -> None:
    """And its digests are those of its bytes and of its records, however they were cut."""
    from distributedlog.spark.archive.parquet_file import read_records

    one = written(store, batch("orders", range(100, 150)), batch("orders", range(150, 400)))
    head = written(store, batch("orders", range(100, 333)))
    tail = written(store, batch("orders", range(333, 400)))

    records = [
        (row["txid"], row["payload"])
        for found in read_records(store, one, 0)
        for row in found.to_pylist()
    ]
    assert records == [(10 * n, b"%d" % n * (n % 5)) for n in range(100, 400)]
    assert one.digest == plain_digest(records) == (head.digest + tail.digest) % 2**64
    assert (one.records, one.first, one.last) == (300, DLSN(1, 100, 0), DLSN(1, 399, 0))
    assert one.payload_bytes == sum(len(payload) for _, payload in records)


@pytest.mark.extra
def test_records_in_another_place_or_changed_have_another_digest() -> None:
    from distributedlog.spark.archive.parquet_file import records_digest

    some = batch("orders", range(100, 110))

    assert records_digest(some, 0) != records_digest(some, 1)
    assert records_digest(some.take([1, 0, *range(2, 10)]), 0) != records_digest(some, 0)
    assert records_digest(some.slice(3), 3) != records_digest(some.slice(3), 0)
    assert records_digest(some.slice(0, 3), 0) + records_digest(some.slice(3), 3) in (
        records_digest(some, 0),
        records_digest(some, 0) + 2**64,
    )


@pytest.mark.extra
@pytest.mark.parametrize(
    ("ids", "log", "said"),
    [
        ([range(100, 104), range(105, 109)], "orders", "record 105 instead of record 104"),
        ([range(100, 104), range(103, 109)], "orders", "record 103 instead of record 104"),
        ([range(109, 99, -1)], "orders", "record 108 instead of record 110"),
        ([range(100, 110, 2)], "orders", "record 102 instead of record 101"),
        ([range(100, 104)], "others", "a log other than"),
    ],
    ids=["gap", "twice", "backwards", "filtered", "other log"],
)
def test_records_that_do_not_follow_are_refused(
    store: ArchiveStore, ids: list[range], log: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        written(store, *(batch(log, some) for some in ids))


def keyed_batch(ids: range) -> Any:
    """Every third record is plain."""
    import pyarrow as pa

    from distributedlog.spark.archive.parquet_file import SCHEMA

    rows = batch("orders", ids).to_pylist()
    for row in rows:
        number = row["sequence_id"]
        row["key"] = b"k%d" % number if number % 3 == 1 else None
        pairs = [{"name": b"n", "value": b"v%d" % number}] * 2 if number % 3 == 2 else []
        row["headers"] = pairs
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@pytest.mark.extra
def test_keys_and_headers_are_read_back_and_are_in_the_digest(store: ArchiveStore) -> None:
    from dataclasses import replace

    import pyarrow as pa

    from distributedlog.log.segments.app_versions import LinkContent
    from distributedlog.spark.archive.parquet_file import read_records, records_digest
    from distributedlog.spark.sink.sink_columns import sink_columns_of

    columns = ("txid", "payload", "key", "headers")
    stored = keyed_batch(range(100, 400))
    one = written(store, stored.slice(0, 50), stored.slice(50))

    read = [row for found in read_records(store, one, 0, columns) for row in found.to_pylist()]
    assert read == stored.select(columns).to_pylist()
    assert one.keyed_records == 200
    without = list(read_records(store, one, 0, ("txid", "payload")))
    assert [row for found in without for row in found.to_pylist()] == [
        {"txid": row["txid"], "payload": row["payload"]} for row in read
    ]
    assert one.digest != written(store, batch("orders", range(100, 400))).digest
    # Of a single record it is the digest of a link, so that both cover the same bytes.
    second = keyed_batch(range(101, 102))
    rows = sink_columns_of(second.select(["payload", "key", "headers"]), "here")
    assert records_digest(second, 0) != rows.digest()  # with its transaction ID
    zero = second.set_column(5, "txid", pa.array([0], pa.int64()))
    assert records_digest(zero, 0) == LinkContent.of_contents([0], rows.contents()).digest

    posing = replace(one, keyed_records=0)  # then only the payloads are in the digest
    with pytest.raises(CorruptData, match="differ from the manifest"):
        list(read_records(store, posing, 0))


@pytest.mark.extra
def test_file_of_an_older_version_has_no_keys_and_headers(
    store: ArchiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributedlog.spark.archive import parquet_file

    older = parquet_file.SCHEMA.remove(9).remove(8)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_file, "SCHEMA", older)
        patch.setattr(parquet_file, "_count_keyed", lambda _: 0)
        one = written(store, batch("orders", range(100, 103)))

    columns = ("txid", "key", "headers")
    read = [
        row
        for found in parquet_file.read_records(store, one, 0, columns)
        for row in found.to_pylist()
    ]
    assert read == [{"txid": 10 * n, "key": None, "headers": []} for n in range(100, 103)]


@pytest.mark.extra
def test_a_damaged_file_is_not_read_to_its_end(store: ArchiveStore) -> None:
    """Also where only the records' digest can tell: a file that was written anew."""
    from dataclasses import replace

    from distributedlog.spark.archive.parquet_file import read_records

    one = written(store, batch("orders", range(100, 200)))
    other = written(store, batch("orders", range(101, 201)))
    posing = replace(one, name=other.name, file_bytes=other.file_bytes, file_xxh3=other.file_xxh3)

    with pytest.raises(CorruptData, match=f"{other.name} is damaged: its 100 records"):
        list(read_records(store, posing, 0))
    whole = store.read(one.name)
    assert whole is not None
    data = bytearray(whole)
    for at in (0, 5, len(data) // 2, len(data) - 1):
        data[at] ^= 64
        raw(store, one.name, bytes(data))
        with pytest.raises(CorruptData, match=f"{one.name} is damaged: its digest"):
            list(read_records(store, one, 0))
        data[at] ^= 64
    store.delete([one.name])
    with pytest.raises(CorruptData, match=f"{one.name} cannot be read"):
        list(read_records(store, one, 0))
