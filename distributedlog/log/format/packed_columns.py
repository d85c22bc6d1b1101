"""An entry from columns that are packed already, as Arrow lays them out (pure): no work a record."""

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...runtime.interfaces.errors import InvalidRequest, RecordTooLarge
from ...runtime.interfaces.host import Buffer
from .record import (
    FLAG_TXID_AT_LINK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MAX,
    TXID_MAX,
    VERSION,
    is_ascending,
    uniform_payload_bytes,
)

_NATIVE_ORDER = "<" if sys.byteorder == "little" else ">"
PACKED_BYTES_MAX = RECORD_BYTES_MAX
"""Columns and payloads of one entry."""


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """The columns of one entry, checked. Who keeps it sees to it that nobody changes the buffers."""

    txids: memoryview
    """i64 each."""
    offsets: memoryview
    """i32 each, one more."""
    payloads: memoryview
    column_bytes: int
    """All three."""
    is_ascending: bool
    """Do the txids not decrease?"""
    flags: int

    def iter_payloads(self) -> Iterator[memoryview]:
        """One by one: views."""
        ends = self.offsets.tolist()
        return map(self.payloads.__getitem__, map(slice, ends, ends[1:]))

    def with_txids(self, txids: "array[int]") -> "PackedColumns":
        """The same records with these, int64 each, which do not decrease."""
        assert len(txids) == len(self.txids), "each record has one"
        return replace(self, txids=memoryview(txids), is_ascending=True)

    def build_entry(
        self, *, records_before: int, written_ms: int, max_txid: int = 0
    ) -> tuple[list[Buffer], int]:
        """As `record.build`: the buffers of the entry and their length in bytes."""
        txids = self.txids
        header = HEADER.pack(
            MAGIC, VERSION, self.flags, len(txids), len(self.payloads), self.column_bytes, 0,
            txids[0], txids[-1], records_before, written_ms, max_txid,
        )  # fmt: skip
        ids, offsets = txids.cast("B"), self.offsets.cast("B")
        return [header, ids, offsets, self.payloads], HEADER_BYTES + self.column_bytes


def check_packed(txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> PackedColumns:
    """Columns of an entry from an int64, an int32 and a byte buffer. Without txids: given at the link.

    Raises `InvalidRequest` for columns that do not fit each other, `RecordTooLarge`. A reader checks the
    offsets of every entry; here they are checked too, so that nobody writes what nobody can read. Next to
    nothing a record where all payloads are as long and all txids the same; else some 5 ns for the offsets and
    10 for the txids, in comparisons of whole columns (`is_ascending`), and 20 for txids that do decrease.
    """
    try:
        offset_view = memoryview(offsets).cast("B").cast("i")
        txid_buffer = bytes(8 * max(0, len(offset_view) - 1)) if txids is None else txids
        txid_view = memoryview(txid_buffer).cast("B").cast("q")
        data = memoryview(payloads).cast("B")
    except TypeError as error:
        raise InvalidRequest(f"columns of an entry are contiguous buffers: {error}") from None
    record_count = len(txid_view)
    if record_count == 0 or len(offset_view) != record_count + 1:
        raise InvalidRequest(f"an entry of {record_count} txids and {len(offset_view)} offsets")
    column_bytes = 12 * record_count + 4 + len(data)
    if column_bytes > PACKED_BYTES_MAX:
        raise RecordTooLarge(
            f"an entry of {record_count} records and {len(data)} payload bytes; the most are "
            f"{PACKED_BYTES_MAX} in sum with 12 bytes a record"
        )
    if offset_view[record_count] != len(data) or not (
        uniform_payload_bytes(offset_view, record_count)
        or (offset_view[0] == 0 and is_ascending(offset_view))
    ):
        raise InvalidRequest(
            f"offsets of an entry ascend from 0 to its {len(data)} payload bytes, these go from "
            f"{offset_view[0]} to {offset_view[record_count]}"
        )
    ascending, least, greatest = _txid_bounds(txid_view)
    if least < 0 or greatest > TXID_MAX:
        raise InvalidRequest(f"a txid is 0 to 2**63 - 2; here are {least} to {greatest}")
    return PackedColumns(
        txid_view,
        offset_view,
        data,
        column_bytes,
        ascending,
        FLAG_TXID_AT_LINK if txids is None else 0,
    )


def _txid_bounds(txid_view: memoryview) -> tuple[bool, int, int]:
    """Do txids not decrease? And their least and greatest. Where one is below 0 the first says nothing."""
    first, last = txid_view[0], txid_view[-1]
    data = txid_view.cast("B")
    if (first == last and (bytes(data[:8]) * len(txid_view)).startswith(data)) or is_ascending(
        txid_view
    ):
        return True, first, last
    txid_list = txid_view.tolist()
    return False, min(txid_list), max(txid_list)


def copy_and_check_packed(
    txids: Buffer | None, offsets: Buffer, payloads: Buffer, *, txids_at_link: bool = False
) -> PackedColumns:
    """As `check_packed`, of copies where the caller might still change what he gave. Raises as that.

    Without txids: zeros, until `PackedColumns.with_txids`; ``at_link``: as `check_packed`.
    """
    try:
        if txids is None and not txids_at_link:
            txids = bytes(2 * max(0, memoryview(offsets).nbytes - 4))
        txid_bytes = None if txids is None else _copy_column(txids, 8)
        return check_packed(txid_bytes, _copy_column(offsets, 4), _copy_column(payloads))
    except (TypeError, ValueError) as error:  # ValueError: of a released buffer
        raise InvalidRequest(f"columns of an entry are buffers: {error}") from None


_INTEGER_FORMATS = {8: "qQlLnN", 4: "iIlL"}
"""The formats of whole numbers, by their size in bytes."""
_BYTE_FORMATS = "bBc"


def _copy_column(column: Buffer, size: int = 0) -> bytes:
    """Return the bytes of a column. ``size`` is the size of its whole numbers, or 0 for payload bytes.

    Raises `InvalidRequest` for a column of another type, such as floating-point numbers or truth values.
    """
    if type(column) is bytes:
        return column
    view = memoryview(column)
    form = view.format.removeprefix("@").removeprefix(_NATIVE_ORDER)
    if (
        size
        and form not in _BYTE_FORMATS
        and (form not in _INTEGER_FORMATS[size] or view.itemsize != size)
    ):
        raise InvalidRequest(
            f"a column is int{8 * size} of this machine's byte order, or bytes; this one has the format "
            f"{view.format} of {view.itemsize} bytes"
        )
    return view.tobytes()
