"""Turn Arrow batches into the columns of entries, without work per record.

The payload column of a batch already consists of offsets and bytes, and an entry is a slice of both. The rest
of a batch that does not fill an entry waits for the next batch. Only batches with keys or headers cost work
per record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...log.format.record import RECORD_COLUMN_BYTES, TXID_MAX
from ...log.format.record_headers import Headers, KeyedContent, join_contents
from ...log.segments.app_versions import LinkContent
from ...runtime.interfaces.errors import InvalidRequest
from ..read.table_schema import KEYED_COLUMNS

COLUMNS = {
    "payload": ("binary", "string"),
    "txid": ("bigint",),
    "log": ("string",),
    "key": ("binary", "string"),
    "headers": (KEYED_COLUMNS["headers"],),
}
"""Columns that a written frame can have. `payload` is required."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The keys and headers of some records, from a frame that has one of these columns."""

    keys: list[bytes | None]
    headers: list[Headers]
    ends: Any
    """int64[n + 1]: the bytes of keys and headers before record k, from any number on.

    A record without them counts as well: in an entry where another record has some, it has lengths.
    """

    @property
    def size_bytes(self) -> int:
        """The size in an entry, in addition to payloads and the columns of each record."""
        return int(self.ends[-1]) - int(self.ends[0])

    @property
    def is_empty(self) -> bool:
        """Whether no record has a key or headers."""
        return self.keys.count(None) == len(self.keys) and not any(self.headers)

    def slice_rows(self, start: int, stop: int) -> "KeyedRows":
        """Return some of the rows."""
        return KeyedRows(
            self.keys[start:stop], self.headers[start:stop], self.ends[start : stop + 1]
        )


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Some records as columns. Payload k is ``data[offsets[k]:offsets[k + 1]]``."""

    txids: Any
    """int64[n]; None if they are set at the link or by the log's writer."""
    offsets: Any
    """int32[n + 1]. The first offset can be any number."""
    data: memoryview
    keyed: KeyedRows | None = None
    """None if the frame has no such column."""

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.offsets) - 1

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of these records."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def size_bytes(self) -> int:
        """The approximate size in an entry."""
        keyed_bytes = 0 if self.keyed is None else self.keyed.size_bytes
        return self.payload_bytes + RECORD_COLUMN_BYTES * self.count + keyed_bytes

    def slice_rows(self, start: int, stop: int) -> "SinkColumns":
        """Return some of the records, as views."""
        txids = None if self.txids is None else self.txids[start:stop]
        keyed = None if self.keyed is None else self.keyed.slice_rows(start, stop)
        return SinkColumns(txids, self.offsets[start : stop + 1], self.data, keyed)

    def packed(self) -> tuple[bytes | None, bytes, memoryview]:
        """Return transaction IDs, offsets from 0 and payloads, in the form of a segment writer."""
        first = int(self.offsets[0])
        offsets = self.offsets if first == 0 else self.offsets - np.int32(first)
        txids = None if self.txids is None else self.txids.tobytes()
        return txids, offsets.tobytes(), self.data[first : int(self.offsets[-1])]

    def packed_keyed(self) -> dict[str, Any]:
        """Return keys and headers as arguments of a segment writer, next to those of `packed`."""
        keyed = self.keyed
        if keyed is None or keyed.is_empty:
            return {}
        return {"keys": keyed.keys, "headers": keyed.headers}

    def listed_txids(self) -> list[int] | None:
        """Return the transaction IDs as a list, or None."""
        return None if self.txids is None else list(self.txids.tolist())

    def digest(self) -> int:
        """Return the sum of the records' digests, independent of their order, as in `LinkContent`.

        It distinguishes a repetition from other records.
        """
        seeds = repeat(0) if self.txids is None else self.txids.tolist()
        if self.keyed is not None and not self.keyed.is_empty:
            return LinkContent.of_contents(islice(seeds, self.count), self.contents()).digest
        ends, data = self.offsets.tolist(), self.data
        total = 0
        for (start, stop), seed in zip(pairwise(ends), seeds, strict=False):
            total += xxhash.xxh3_64_intdigest(data[start:stop], seed)
        return total % (1 << 64)

    def contents(self) -> list[Any]:
        """Return each payload, as a `KeyedContent` for a record with a key or headers.

        For the few records that are too large for a packed entry, and for digests of keyed records.
        """
        ends = self.offsets.tolist()
        payloads = [bytes(self.data[a:b]) for a, b in pairwise(ends)]
        keyed = self.keyed
        return payloads if keyed is None else join_contents(payloads, keyed.keys, keyed.headers)


def check_schema(fields: Sequence[tuple[str, str]], *, log_given: bool) -> None:
    """Check that a frame can be written, by its columns as (name, Spark type). Raises `InvalidRequest`."""
    legal = "payload binary or string, and optionally " + ", ".join(
        f"{name} {' or '.join(kinds)}" for name, kinds in COLUMNS.items() if name != "payload"
    )
    for name, kind in fields:
        if name not in COLUMNS:
            raise InvalidRequest(
                f'column "{name}" cannot be written: a record has {legal}. Select only these columns'
            )
        if kind not in COLUMNS[name]:
            raise InvalidRequest(
                f'column "{name}" must be {" or ".join(COLUMNS[name])}, not {kind}'
            )
    names = [name for name, _ in fields]
    if "payload" not in names:
        raise InvalidRequest(f"the frame has no column payload: a record has {legal}")
    if log_given and "log" in names:
        raise InvalidRequest(
            'the frame has a column log, and the option "log" is given: remove one of them'
        )
    if not log_given and "log" not in names:
        raise InvalidRequest(
            'no log specified: use the option "log", or a column log of type string'
        )


def sink_columns_of(batch: pa.RecordBatch, where: str) -> SinkColumns:
    """Return the records of a batch, with ``txids`` None if the batch has no such column.

    Args:
        batch: The batch.
        where: Log, partition and position, for errors.

    Raises:
        InvalidRequest: A value is null, or a transaction ID is out of range.
    """
    payload = batch.column("payload")
    _check_no_nulls(payload, "payload", where)
    if payload.type not in (pa.binary(), pa.string()):
        payload = payload.cast(
            pa.binary()
        )  # large or view types, depending on Spark's configuration
    _, offsets, data = payload.buffers()
    count = len(payload)
    if count:
        ends: Any = np.frombuffer(offsets, np.int32, count + 1, 4 * payload.offset)
    else:
        ends = np.zeros(1, np.int32)
    if "txid" in batch.schema.names:
        column = batch.column("txid")
        _check_no_nulls(column, "txid", where)
        txids = column.to_numpy(zero_copy_only=False)
        if count and not 0 <= int(txids.min()) <= int(txids.max()) <= TXID_MAX:
            raise InvalidRequest(f"{where}: a txid must be 0 to 2^63 - 2, got {int(txids.min())}")
    else:
        txids = None
    data_view = memoryview(b"") if data is None else memoryview(data)
    return SinkColumns(txids, ends, data_view, _keyed_rows(batch, where))


def _keyed_rows(batch: pa.RecordBatch, where: str) -> KeyedRows | None:
    """Return keys and headers of a batch, or None if it has no such column. A null is the same as none."""
    if KEYED_COLUMNS.keys().isdisjoint(batch.schema.names):
        return None
    count = batch.num_rows
    keys, headers = keys_and_headers(batch, where) or ([None] * count, [()] * count)
    sizes = [len(KeyedContent(b"", *content)) for content in zip(keys, headers, strict=True)]
    ends: Any = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return KeyedRows(keys, headers, ends)


def keys_and_headers(
    batch: pa.RecordBatch, where: str
) -> tuple[list[bytes | None], list[Headers]] | None:
    """Return keys and headers of a batch, or None if no record has any. A null is the same as none.

    Args:
        batch: The batch, with or without the columns ``key`` and ``headers``.
        where: The subject of errors.

    Raises:
        InvalidRequest: The name or value of a header is null.
    """
    count, names = batch.num_rows, batch.schema.names
    keys: list[bytes | None] = [None] * count
    headers: list[Headers] = [()] * count
    is_keyed = False
    if "key" in names and batch.column("key").null_count < count:
        is_keyed = True
        keys = batch.column("key").cast(pa.binary()).to_pylist()
    if "headers" in names:
        column = batch.column("headers")
        counts = pc.fill_null(pc.list_value_length(column), 0)
        if pc.any(pc.greater(counts, 0)).as_py():
            is_keyed = True
            parts = column.flatten().flatten()  # a null struct becomes a null name
            for part, what in zip(parts, ("name", "value"), strict=True):
                if part.null_count:
                    raise InvalidRequest(f"{where}: the {what} of a header is null")
            pairs = iter(zip(*(part.to_pylist() for part in parts), strict=True))
            headers = [tuple(islice(pairs, header_count)) for header_count in counts.to_pylist()]
    return (keys, headers) if is_keyed else None


def by_log(batch: pa.RecordBatch, where: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each log, in the order of the batch. Logs are ordered by their first row."""
    column = batch.column("log")
    _check_no_nulls(column, "log", where)
    encoded = column.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), batch
        return
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, batch.filter(pc.equal(encoded.indices, number))


def _check_no_nulls(column: pa.Array, name: str, where: str) -> None:
    if column.null_count:
        row = int(pc.index(column.is_null(), True).as_py())
        raise InvalidRequest(f"{where}, row {row} of an Arrow batch: {name} is null")


class Packer:
    """Cuts rows into entries of about ``entry_bytes``. The rest waits for more rows.

    Only the records of entries that span two batches are copied.
    """

    def __init__(self, entry_bytes: int) -> None:
        self._entry_bytes = entry_bytes
        self._waiting: list[SinkColumns] = []
        self._waiting_bytes = 0

    def add(self, rows: SinkColumns) -> Iterator[SinkColumns]:
        """Add rows, and yield the complete entries."""
        row, count = 0, rows.count
        # Row k ends at element k + 1, its columns included: one sum for all entries of the batch.
        ends = rows.offsets + RECORD_COLUMN_BYTES * np.arange(count + 1, dtype=np.int64)
        if rows.keyed is not None:
            ends = ends + rows.keyed.ends
        if self._waiting:
            row = _last_fitting_row(ends, 0, self._entry_bytes - self._waiting_bytes)
            self._keep_rows(rows.slice_rows(0, row))
            if row < count:
                yield self._take_waiting()
        while row < count:
            stop = max(row + 1, _last_fitting_row(ends, row, self._entry_bytes))
            if stop == count and int(ends[stop] - ends[row]) < self._entry_bytes:
                self._keep_rows(rows.slice_rows(row, stop))
                return
            yield rows.slice_rows(row, stop)
            row = stop

    def flush(self) -> Iterator[SinkColumns]:
        """Yield the waiting rows as a last entry."""
        if self._waiting:
            yield self._take_waiting()

    def _keep_rows(self, rows: SinkColumns) -> None:
        if rows.count:
            self._waiting.append(rows)
            self._waiting_bytes += rows.size_bytes

    def _take_waiting(self) -> SinkColumns:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(waiting) == 1:
            return waiting[0]
        offsets: Any = np.zeros(sum(rows.count for rows in waiting) + 1, np.int32)
        index, end = 1, 0
        for rows in waiting:
            offsets[index : index + rows.count] = rows.offsets[1:] + (end - int(rows.offsets[0]))
            index += rows.count
            end += rows.payload_bytes
        data = b"".join(rows.data[int(rows.offsets[0]) : int(rows.offsets[-1])] for rows in waiting)
        txids = (
            None if waiting[0].txids is None else np.concatenate([rows.txids for rows in waiting])
        )
        return SinkColumns(txids, offsets, memoryview(data), _joined_keyed(waiting))


def _joined_keyed(waiting: Sequence[SinkColumns]) -> KeyedRows | None:
    """Return the keys and headers of several groups of rows of one frame."""
    groups = [rows.keyed for rows in waiting if rows.keyed is not None]
    if not groups:
        return None
    assert len(groups) == len(waiting), "all rows of a task have the same columns"
    sizes = [np.diff(group.ends) for group in groups]
    return KeyedRows(
        [key for group in groups for key in group.keys],
        [headers for group in groups for headers in group.headers],
        np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes])),
    )


def _last_fitting_row(ends: Any, row: int, free_bytes: int) -> int:
    """Return the index after the last row, from ``row`` on, that fits into ``free_bytes``."""
    return int(np.searchsorted(ends, ends[row] + free_bytes, side="right")) - 1
