"""Turn entries into Arrow record batches, either gathered with one copy, or as views of the entry's bytes.

Transaction IDs, offsets and payloads of an entry have Arrow's own layout. The columns of an entry that fills
a batch are wrapped, not copied. The batch keeps the memory of the entry alive, which nothing else uses (H17).
A batch costs Spark's Python and JVM about 0.5 ms of CPU at any size, and a copy of 256 KiB a tenth of that.
Therefore small entries are gathered. Only the requested columns are built. No column costs work per record,
except the text of DLSNs, and the keys and headers of entries that have any.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...runtime.interfaces.errors import InvalidRequest
from ..format.record import Columns
from .arrow_columns import TXID_UNITS, Projection

BATCH_BYTES_MAX = 1 << 30
"""Arrow's offsets are limited to 2 GiB per column and batch."""
BATCH_RECORDS_MAX = 65_536
MICROSECONDS_MAX = 2**63 - 1
MILLISECONDS_MAX = MICROSECONDS_MAX // 1000
"""Clocks can have any value, but a column of microseconds ends in the year 294247."""


class BatchBuilder:
    """Builds the batches of one reader. ``built_columns`` counts the built columns by name."""

    def __init__(self, projection: Projection) -> None:
        self.built_columns: Counter[str] = Counter()
        self._projection = projection
        self._column_makers = [(name, getattr(self, f"_{name}")) for name in projection.names]
        self._others: BatchBuilder | None = None
        """Builds all columns except ``payload``. None if there is no other one, or no payload."""
        if "payload" in projection.names and len(projection.names) > 1:
            self._payload_index = projection.names.index("payload")
            names = tuple(name for name in projection.names if name != "payload")
            schema = projection.arrow.remove(self._payload_index)
            self._others = BatchBuilder(replace(projection, names=names, arrow=schema))
        self._last_constant: dict[str, tuple[Any, int, pa.Array]] = {}
        self._last_slots: tuple[list[tuple[int, int]], pa.Array] | None = None
        self._ramp: Any = np.arange(4096, dtype=np.int32)
        self._slots = pa.array(self._ramp)

    def batch(self, log: str, parts: Sequence[Columns]) -> pa.RecordBatch:
        """Return the records of one or more entries of a log, in order. Raises `InvalidRequest`."""
        arrays = []
        for name, make in self._column_makers:
            self.built_columns[name] += 1
            arrays.append(make(log, parts))
        if not arrays:  # count(*) requests no columns
            rows = sum(part.count for part in parts)
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._projection.arrow)

    def batches(self, log: str, groups: Sequence[Sequence[Columns]]) -> list[pa.RecordBatch]:
        """Return one batch per group of entries, as `batch`.

        All columns except the payloads are built once for all groups. The batches have slices of them, which
        costs less than half of building them for each batch of 256 KiB.
        """
        if self._others is None or len(groups) < 2:
            return [self.batch(log, group) for group in groups]
        whole = self._others.batch(log, [part for group in groups for part in group])
        batches, row = [], 0
        field = self._projection.arrow.field(self._payload_index)
        for group in groups:
            payloads = self._payload(log, group)
            others = whole.slice(row, len(payloads))
            batches.append(others.add_column(self._payload_index, field, payloads))
            row += len(payloads)
        return batches

    # --- one column each --------------------------------------------------------------------------

    def _log(self, log: str, parts: Sequence[Columns]) -> pa.Array:
        return self._constant("log", pa.string(), log, _rows(parts))

    def _segment(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        first = parts[0].origin.segment
        if all(part.origin.segment == first for part in parts):
            return self._constant("segment", pa.int64(), first, _rows(parts))
        return _repeat_per_entry(pa.int64(), [part.origin.segment for part in parts], parts)

    def _entry(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        return _repeat_per_entry(pa.int64(), [part.origin.entry for part in parts], parts)

    def _slot(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        slots = [(part.first_slot, part.count) for part in parts]
        last = self._last_slots
        if last is not None and last[0] == slots:  # a writer at full speed creates equal entries
            return last[1]
        longest = max(first + count for first, count in slots)
        if longest > len(self._ramp):
            self._ramp = np.arange(2 * longest, dtype=np.int32)
            self._slots = pa.array(self._ramp)
        if len(slots) == 1:
            return self._slots.slice(*slots[0])
        made = np.concatenate([self._ramp[first : first + count] for first, count in slots])
        column = _array_view(pa.int32(), len(made), made)
        self._last_slots = (slots, column)
        return column

    def _sequence_id(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        ids: list[Any] = [
            np.arange(first, stop, dtype=np.int64) for first, stop in _sequence_id_ranges(parts)
        ]
        made = ids[0] if len(ids) == 1 else np.concatenate(ids)
        return _array_view(pa.int64(), len(made), made)

    def _txid(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        if len(parts) == 1:
            return _array_view(pa.int64(), parts[0].count, parts[0].txids)
        txids = _txids(parts)
        return _array_view(pa.int64(), len(txids), txids)

    def _payload(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        columns = [
            pa.Array.from_buffers(
                pa.binary(),
                part.count,
                [None, pa.py_buffer(part.offsets), pa.py_buffer(part.payload)],
            )
            for part in parts
        ]
        # The only copy of small entries: into memory that Arrow reuses, and without the interpreter lock.
        return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)

    def _key(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        if all(part.keys is None for part in parts):
            return pa.nulls(_rows(parts), pa.binary())
        keys: list[bytes | None] = []
        for part in parts:
            keys += [None] * part.count if part.keys is None else part.keys
        return pa.array(keys, pa.binary())

    def _headers(self, _: str, parts: Sequence[Columns]) -> pa.Array:
        kind = self._projection.arrow.field("headers").type
        if all(part.headers is None for part in parts):
            return empty_lists(_rows(parts), kind)
        rows: list[list[dict[str, bytes]]] = []
        for part in parts:
            rows += (
                [
                    [{"name": name, "value": value} for name, value in pairs]
                    for pairs in part.headers
                ]
                if part.headers is not None
                else [[]] * part.count
            )
        return pa.array(rows, kind)

    def _timestamp(self, log: str, parts: Sequence[Columns]) -> pa.Array:
        unit, kind = self._projection.txid_unit, pa.timestamp("us", tz="UTC")
        if unit is None:  # log time, one per entry
            times = [min(part.time_ms, MILLISECONDS_MAX) * 1000 for part in parts]
            return _repeat_per_entry(kind, times, parts)
        factor = TXID_UNITS[unit]
        txids = _txids(parts)
        if len(txids) and int(txids.max()) > MICROSECONDS_MAX // factor:
            raise InvalidRequest(
                f'log "{log}": txid {int(txids.max())} is not a time in {unit}. A unit is for logs whose '
                "txids are times"
            )
        return _array_view(kind, len(txids), txids if factor == 1 else txids * factor)

    def _dlsn(self, log: str, parts: Sequence[Columns]) -> pa.Array:
        if self._projection.dlsn_as_text:
            texts = [
                f"{part.origin.segment}.{part.origin.entry}.{slot}"
                for part in parts
                for slot in range(part.first_slot, part.first_slot + part.count)
            ]
            return pa.array(texts, pa.string())
        fields = [self._segment(log, parts), self._entry(log, parts), self._slot(log, parts)]
        return pa.StructArray.from_arrays(
            fields, fields=list(self._projection.arrow.field("dlsn").type)
        )

    def _constant(self, name: str, kind: Any, value: Any, rows: int) -> pa.Array:
        """Return a column of one value. It is created again only if more rows are needed."""
        last = self._last_constant.get(name)
        if last is None or last[0] != value or last[1] < rows:
            last = (value, rows, pa.repeat(pa.scalar(value, kind), rows))
            self._last_constant[name] = last
        return last[2] if last[1] == rows else last[2].slice(0, rows)


def empty_lists(rows: int, kind: Any) -> pa.Array:
    """Return a column of empty lists, such as the headers of records without any."""
    offsets = pa.py_buffer(bytes(4 * (rows + 1)))
    items = pa.nulls(0, kind.value_type)
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[items])


def group_entries(entries: Iterable[Columns], batch_bytes: int) -> Iterator[list[Columns]]:
    """Yield entries of at least ``batch_bytes`` one by one, and smaller ones in groups of about this size."""
    group: list[Columns] = []
    group_bytes = records = 0
    bytes_max = min(batch_bytes, BATCH_BYTES_MAX)
    for part in entries:
        size = part.content_bytes
        if group and (group_bytes + size > bytes_max or records + part.count > BATCH_RECORDS_MAX):
            yield group
            group, group_bytes, records = [], 0, 0
        group.append(part)
        group_bytes += size
        records += part.count
        if group_bytes >= bytes_max:
            yield group
            group, group_bytes, records = [], 0, 0
    if group:
        yield group


def _rows(parts: Sequence[Columns]) -> int:
    return sum(part.count for part in parts)


def _array_view(kind: Any, rows: int, data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def _txids(parts: Sequence[Columns]) -> Any:
    views = [np.frombuffer(part.txids, np.int64, part.count) for part in parts]
    return views[0] if len(views) == 1 else np.concatenate(views)


def _repeat_per_entry(kind: Any, values: list[int], parts: Sequence[Columns]) -> pa.Array:
    """Return a 64-bit column with one value per entry."""
    made = np.array(values, np.int64).repeat([part.count for part in parts])
    return _array_view(kind, len(made), made)


def _sequence_id_ranges(parts: Sequence[Columns]) -> list[tuple[int, int]]:
    """Return the sequence IDs as (first, stop). Adjacent entries are one range."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        first = part.first_sequence_id
        if ranges and ranges[-1][1] == first:
            first = ranges.pop()[0]
        ranges.append((first, part.first_sequence_id + part.count))
    return ranges
