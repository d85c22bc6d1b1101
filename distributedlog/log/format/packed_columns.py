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
    ascends,
    even_bytes,
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
    ascending: bool
    """Do the txids not decrease?"""
    flags: int

    def each_payload(self) -> Iterator[memoryview]:
        """One by one: views."""
        ends = self.offsets.tolist()
        return map(self.payloads.__getitem__, map(slice, ends, ends[1:]))

    def with_txids(self, txids: "array[int]") -> "PackedColumns":
        """The same records with these, int64 each, which do not decrease."""
        assert len(txids) == len(self.txids), "each record has one"
        return replace(self, txids=memoryview(txids), ascending=True)

    def build(
        self, *, records_before: int, wall_ms: int, max_txid: int = 0
    ) -> tuple[list[Buffer], int]:
        """As `record.build`: the buffers of the entry and their length in bytes."""
        txids = self.txids
        header = HEADER.pack(
            MAGIC, VERSION, self.flags, len(txids), len(self.payloads), self.column_bytes, 0,
            txids[0], txids[-1], records_before, wall_ms, max_txid,
        )  # fmt: skip
        ids, offsets = txids.cast("B"), self.offsets.cast("B")
        return [header, ids, offsets, self.payloads], HEADER_BYTES + self.column_bytes


def check_packed(txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> PackedColumns:
    """Columns of an entry from an int64, an int32 and a byte buffer. Without txids: given at the link.

    Raises `InvalidRequest` for columns that do not fit each other, `RecordTooLarge`. A reader checks the
    offsets of every entry; here they are checked too, so that nobody writes what nobody can read. Next to
    nothing a record where all payloads are as long and all txids the same; else some 5 ns for the offsets and
    10 for the txids, in comparisons of whole columns (`ascends`), and 20 for txids that do decrease.
    """
    try:
        ends = memoryview(offsets).cast("B").cast("i")
        given = bytes(8 * max(0, len(ends) - 1)) if txids is None else txids
        ids = memoryview(given).cast("B").cast("q")
        data = memoryview(payloads).cast("B")
    except TypeError as error:
        raise InvalidRequest(f"columns of an entry are contiguous buffers: {error}") from None
    number = len(ids)
    if number == 0 or len(ends) != number + 1:
        raise InvalidRequest(f"an entry of {number} txids and {len(ends)} offsets")
    column_bytes = 12 * number + 4 + len(data)
    if column_bytes > PACKED_BYTES_MAX:
        raise RecordTooLarge(
            f"an entry of {number} records and {len(data)} payload bytes; the most are "
            f"{PACKED_BYTES_MAX} in sum with 12 bytes a record"
        )
    if ends[number] != len(data) or not (
        even_bytes(ends, number) or (ends[0] == 0 and ascends(ends))
    ):
        raise InvalidRequest(
            f"offsets of an entry ascend from 0 to its {len(data)} payload bytes, these go from "
            f"{ends[0]} to {ends[number]}"
        )
    ascending, least, most = _bounds(ids)
    if least < 0 or most > TXID_MAX:
        raise InvalidRequest(f"a txid is 0 to 2**63 - 2; here are {least} to {most}")
    return PackedColumns(
        ids, ends, data, column_bytes, ascending, FLAG_TXID_AT_LINK if txids is None else 0
    )


def _bounds(ids: memoryview) -> tuple[bool, int, int]:
    """Do txids not decrease? And their least and greatest. Where one is below 0 the first says nothing."""
    first, last = ids[0], ids[-1]
    data = ids.cast("B")
    if (first == last and (bytes(data[:8]) * len(ids)).startswith(data)) or ascends(ids):
        return True, first, last
    listed = ids.tolist()
    return False, min(listed), max(listed)


def own_packed(
    txids: Buffer | None, offsets: Buffer, payloads: Buffer, *, at_link: bool = False
) -> PackedColumns:
    """As `check_packed`, of copies where the caller might still change what he gave. Raises as that.

    Without txids: zeros, until `PackedColumns.with_txids`; ``at_link``: as `check_packed`.
    """
    try:
        if txids is None and not at_link:
            txids = bytes(2 * max(0, memoryview(offsets).nbytes - 4))
        ids = None if txids is None else _own(txids, 8)
        return check_packed(ids, _own(offsets, 4), _own(payloads))
    except (TypeError, ValueError) as error:  # ValueError: of a released buffer
        raise InvalidRequest(f"columns of an entry are buffers: {error}") from None


_WHOLE = {8: "qQlLnN", 4: "iIlL"}
"""The formats of whole numbers, by their size in bytes."""
_NO_TYPE = "bBc"


def _own(given: Buffer, size: int = 0) -> bytes:
    """Return the bytes of a column. ``size`` is the size of its whole numbers, or 0 for payload bytes.

    Raises `InvalidRequest` for a column of another type, such as floating-point numbers or truth values.
    """
    if type(given) is bytes:
        return given
    view = memoryview(given)
    form = view.format.removeprefix("@").removeprefix(_NATIVE_ORDER)
    if size and form not in _NO_TYPE and (form not in _WHOLE[size] or view.itemsize != size):
        raise InvalidRequest(
            f"a column is int{8 * size} of this machine's byte order, or bytes; this one has the format "
            f"{view.format} of {view.itemsize} bytes"
        )
    return view.tobytes()
