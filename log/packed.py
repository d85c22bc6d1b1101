"""An entry from columns that are packed already, as Arrow lays them out (pure): no work a record."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ..runtime.errors import InvalidRequest, RecordTooLarge
from ..runtime.host import Buffer
from .record import (
    FLAG_TXID_AT_LINK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MAX,
    TXID_MAX,
    VERSION,
)

PACKED_BYTES_MAX = RECORD_BYTES_MAX
"""Columns and payloads of one entry."""


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """The columns of one entry, checked. Who keeps it sees to it that nobody changes the buffers."""

    txids: list[int]
    ids: Buffer
    """The txids, int64 each."""
    offsets: Buffer
    payloads: Buffer
    column_bytes: int
    """All three."""
    ascending: bool
    """Do the txids not decrease?"""
    flags: int

    @property
    def sizes(self) -> list[int]:
        """Of the payloads, bytes."""
        ends = memoryview(self.offsets).cast("B").cast("i").tolist()
        return [end - start for start, end in pairwise(ends)]

    def each_payload(self) -> Iterator[memoryview]:
        """One by one: views."""
        data, ends = (
            memoryview(self.payloads),
            memoryview(self.offsets).cast("B").cast("i").tolist(),
        )
        return map(data.__getitem__, map(slice, ends, ends[1:]))

    def with_txids(self, txids: list[int]) -> "PackedColumns":
        """The same records with these, which do not decrease."""
        ids = array("q", txids).tobytes()
        return replace(self, txids=txids, ids=ids, ascending=True)

    def build(self, *, records_before: int, wall_ms: int) -> tuple[list[Buffer], int]:
        """As `record.build`: the buffers of the entry and their length in bytes."""
        txids = self.txids
        header = HEADER.pack(
            MAGIC, VERSION, self.flags, len(txids), len(self.payloads), self.column_bytes, 0,
            txids[0], txids[-1], records_before, wall_ms, 0,
        )  # fmt: skip
        return [header, self.ids, self.offsets, self.payloads], HEADER_BYTES + self.column_bytes


def check_packed(txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> PackedColumns:
    """Columns of an entry from an int64, an int32 and a byte buffer. Without txids: given at the link.

    Raises `InvalidRequest` for columns that do not fit each other, `RecordTooLarge`. A reader checks the
    offsets of every entry; here they are checked too, so that nobody writes what nobody can read. Some 60 ns
    a record, in sorts and comparisons of whole columns.
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
    listed = ends.tolist()
    if listed[0] != 0 or listed[-1] != len(data) or sorted(listed) != listed:
        raise InvalidRequest(
            f"offsets of an entry ascend from 0 to its {len(data)} payload bytes, these go from "
            f"{listed[0]} to {listed[-1]}"
        )
    column_bytes = 12 * number + 4 + len(data)
    if column_bytes > PACKED_BYTES_MAX:
        raise RecordTooLarge(
            f"an entry of {number} records and {len(data)} payload bytes; the most are "
            f"{PACKED_BYTES_MAX} in sum with 12 bytes a record"
        )
    values = [0] * number if txids is None else ids.tolist()
    ascending = txids is None or sorted(values) == values
    least, most = (values[0], values[-1]) if ascending else (min(values), max(values))
    if least < 0 or most > TXID_MAX:
        raise InvalidRequest(f"a txid is 0 to 2**63 - 2; here are {least} to {most}")
    return PackedColumns(
        values,
        ids.cast("B"),
        ends.cast("B"),
        data,
        column_bytes,
        ascending,
        FLAG_TXID_AT_LINK if txids is None else 0,
    )


def own_packed(txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> PackedColumns:
    """As `check_packed`, of copies where the caller might still change what he gave. Raises as that.

    Without txids: zeros, until `PackedColumns.with_txids`.
    """
    try:
        if txids is None:
            txids = bytes(2 * max(0, memoryview(offsets).nbytes - 4))
        return check_packed(*map(_own, (txids, offsets, payloads)))
    except TypeError as error:
        raise InvalidRequest(f"columns of an entry are buffers: {error}") from None


def _own(given: Buffer) -> bytes:
    return given if type(given) is bytes else memoryview(given).tobytes()
