"""Write one Parquet file of an archive with its digests, and read it back verified.

The digest of the file detects any changed byte before the file is used. The digest of the records
(`manifest.py`) identifies them independent of the encoding.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from ...log.arrow.arrow_batches import empty_lists
from ...log.format.dlsn import DLSN
from ...log.format.record_headers import KeyedContent, join_contents
from ...runtime.interfaces.errors import CorruptData, InvalidRequest
from ..read.table_schema import KEYED_COLUMNS
from ..sink.sink_columns import keys_and_headers
from .archive_folder import file_name
from .archive_store import ArchiveStore, NewObject
from .manifest import DIGEST_MODULUS, POSITION_FACTOR, TXID_FACTOR, ArchiveFile

ROW_GROUP_BYTES = 32 * 1024 * 1024
FILE_BYTES = 256 * 1024 * 1024
"""Approximate maximum size of a file before compression. A file is verified as a whole."""
BATCH_BYTES = 2 * 1024 * 1024
"""Approximate size of the batches for Spark."""
SCHEMA = pa.schema(
    [
        ("log", pa.string()),
        ("segment", pa.int64()),
        ("entry", pa.int64()),
        ("slot", pa.int32()),
        ("sequence_id", pa.int64()),
        ("txid", pa.int64()),
        ("payload", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))),
    ]
)
"""All columns of the source. ``timestamp`` is stored as in the frame, and null if the frame has none.

Files of older versions have no ``key`` and ``headers``, and possibly no ``timestamp``.
"""


def records_digest(batch: pa.RecordBatch, first_index: int) -> int:
    """Return the digest of the records of a batch, from 0 up to 2^64 (exclusive).

    Args:
        batch: The columns ``txid`` and ``payload``, and ``key`` and ``headers`` if the file has any.
        first_index: The index of the first record in the archive.
    """
    count = batch.num_rows
    payload, txids = batch.column("payload"), batch.column("txid").to_numpy()
    _, offsets, data = payload.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * payload.offset).tolist()
    indexes = np.arange(first_index, first_index + count, dtype=np.uint64)
    seeds = indexes * np.uint64(POSITION_FACTOR) + txids.astype(np.uint64) * np.uint64(
        TXID_FACTOR
    )  # wraps
    view = memoryview(b"" if data is None else data)
    pieces: list[Any] = [view[a:b] for a, b in pairwise(ends)]
    keyed = keys_and_headers(batch, "a record of an archive")
    if keyed is not None:
        pieces = [
            content.digest_input() if type(content) is KeyedContent else content
            for content in join_contents(pieces, *keyed)
        ]
    return sum(map(xxhash.xxh3_64_intdigest, pieces, seeds.tolist())) % DIGEST_MODULUS


class ParquetFileWriter:
    """Writes one file. `close` syncs it and returns its description.

    Raises `InvalidRequest` for records that are not consecutive records of the log.
    """

    def __init__(
        self,
        store: ArchiveStore,
        log: str,
        incarnation: str,
        first_sequence_id: int,
        next_: int,
        generation: int,
    ) -> None:
        """Create the file.

        Args:
            store: The archive.
            log: The log.
            incarnation: The incarnation of the log.
            first_sequence_id: The first sequence ID of the archive.
            next_: The first sequence ID of the file.
            generation: The generation of the manifest that will list the file.
        """
        self.name = file_name(next_, generation)
        self._log = log
        self._archive_first_id = first_sequence_id
        self._first_id = self._next_sequence_id = next_
        self._metadata = {"log": log, "incarnation": incarnation}
        self._sink = _DigestingFile(store.begin_object(self.name))
        self._parquet = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            use_dictionary=["log"],
            write_statistics=["segment", "entry", "slot", "sequence_id", "txid"],
        )
        self._row_group_batches: list[pa.RecordBatch] = []
        self._row_group_bytes = 0
        self.size_bytes = 0
        """Size before compression."""
        self._payload_bytes = 0
        self._keyed_records = 0
        self._digest = 0
        self._first: DLSN | None = None
        self._last: DLSN | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Write records that directly follow the previous ones."""
        sequence_ids = batch.column("sequence_id").to_numpy()
        expected = np.arange(self._next_sequence_id, self._next_sequence_id + len(sequence_ids))
        if not np.array_equal(sequence_ids, expected):
            index = int(np.argmax(sequence_ids != expected))
            raise InvalidRequest(
                f'log "{self._log}": record {sequence_ids[index]} instead of record {expected[index]}: '
                "records must "
                "be in the order of the source, without gaps (coalesce keeps the order, repartition does "
                "not)"
            )
        if pc.all(pc.equal(batch.column("log"), self._log)).as_py() is not True:
            raise InvalidRequest(f'the frame has records of a log other than "{self._log}"')
        batch = _with_missing(batch, SCHEMA.names).select(SCHEMA.names).cast(SCHEMA)
        self._keyed_records += _count_keyed(batch)
        self._digest += records_digest(batch, self._next_sequence_id - self._archive_first_id)
        self._next_sequence_id += len(sequence_ids)
        self._payload_bytes += pc.sum(pc.binary_length(batch.column("payload"))).as_py()
        self._first = self._first or _position(batch, 0)
        self._last = _position(batch, batch.num_rows - 1)
        self._row_group_batches.append(batch)
        self._row_group_bytes += batch.nbytes
        self.size_bytes += batch.nbytes
        if self._row_group_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> ArchiveFile:
        """Make the file durable, and return its description. The file must have a record."""
        assert self._first is not None
        assert self._last is not None
        self._write_row_group()
        records = self._next_sequence_id - self._first_id
        metadata = {
            **self._metadata,
            "first": str(self._first),
            "last": str(self._last),
            "first_sequence_id": self._first_id,
            "records": records,
            "digest": f"{self._digest % DIGEST_MODULUS:016x}",
        }
        self._parquet.add_key_value_metadata({"distributedlog": json.dumps(metadata)})
        self._parquet.close()
        self._sink.file.close()
        return ArchiveFile(
            self.name,
            records,
            self._payload_bytes,
            self._first,
            self._last,
            self._first_id,
            self._digest % DIGEST_MODULUS,
            self._sink.size,
            self._sink.xxh3.intdigest(),
            self._keyed_records,
        )

    def abort(self) -> None:
        """Delete the file."""
        with suppress(Exception):  # the original error is reported
            self._parquet.close()
        self._sink.file.discard()

    def _write_row_group(self) -> None:
        if self._row_group_batches:
            table = pa.Table.from_batches(self._row_group_batches, SCHEMA)
            self._parquet.write_table(table, row_group_size=table.num_rows)
            self._row_group_batches, self._row_group_bytes = [], 0


def read_records(
    store: ArchiveStore,
    archive_file: ArchiveFile,
    first_index: int,
    columns: Sequence[str] = ("txid", "payload"),
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in order, with some of their columns.

    The caller must consume the iterator to its end, because the digest of the records is checked only there.

    Args:
        store: The archive.
        archive_file: The file.
        first_index: The index of its first record in the archive.
        columns: The columns to return.

    Raises:
        CorruptData: The file is damaged.
    """
    damage_text = f"{store.path(archive_file.name)} is damaged: "
    data = store.read_buffer(archive_file.name)
    if xxhash.xxh3_64_intdigest(data) != archive_file.file_xxh3:
        raise CorruptData(damage_text + "its digest differs from the manifest")
    parquet = pq.ParquetFile(pa.BufferReader(data))
    batch_rows = max(
        100, min(65_536, BATCH_BYTES * archive_file.records // max(1, archive_file.payload_bytes))
    )
    keyed_columns = KEYED_COLUMNS if archive_file.keyed_records else ()  # the digest covers them
    columns_read = list(dict.fromkeys([*columns, "txid", "payload", *keyed_columns]))
    digest_sum = records_seen = 0
    for batch in parquet.iter_batches(batch_rows, columns=columns_read, use_threads=False):
        digest_sum += records_digest(batch, first_index + records_seen)
        records_seen += batch.num_rows
        yield _with_missing(batch, columns).select(list(columns))
    if (records_seen, digest_sum % DIGEST_MODULUS) != (archive_file.records, archive_file.digest):
        raise CorruptData(damage_text + f"its {records_seen} records differ from the manifest")


def _with_missing(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Add the requested columns that a batch of an older file or of a frame lacks, without values."""
    for name in ("timestamp", *KEYED_COLUMNS):
        if name in columns and name not in batch.schema.names:
            field, rows = SCHEMA.field(name), batch.num_rows
            is_list = pa.types.is_list(field.type)
            values = empty_lists(rows, field.type) if is_list else pa.nulls(rows, field.type)
            batch = batch.append_column(field, values)
    return batch


def _count_keyed(batch: pa.RecordBatch) -> int:
    """Return the number of records with a key or headers, of a batch that has both columns."""
    has_headers = pc.greater(pc.fill_null(pc.list_value_length(batch.column("headers")), 0), 0)
    return int(pc.sum(pc.or_(pc.is_valid(batch.column("key")), has_headers)).as_py() or 0)


def _position(batch: pa.RecordBatch, row: int) -> DLSN:
    return DLSN(*(batch.column(name)[row].as_py() for name in ("segment", "entry", "slot")))


class _DigestingFile:
    """A file object for Arrow that writes sequentially to an archive object and computes its digest."""

    closed = False

    def __init__(self, file: NewObject) -> None:
        self.file = file
        self.size = 0
        self.xxh3 = xxhash.xxh3_64()

    def write(self, data: Any) -> int:
        self.xxh3.update(data)
        self.size += len(data)
        self.file.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing. Data becomes durable and visible when the object is closed."""

    def close(self) -> None:
        """Do nothing. Arrow calls this, but the owner of the object closes it."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
