"""Build an entry from columns in Arrow's layout, without work per record (pure)."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from .record_headers import FLAGS_KEYED, KeyedContent, encode_keyed, split_contents

_NATIVE_ORDER = "<" if sys.byteorder == "little" else ">"
PACKED_BYTES_MAX = RECORD_BYTES_MAX
"""Maximum size of the columns and payloads of one entry."""


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """The checked columns of one entry. Their owner ensures that the buffers do not change."""

    txids: memoryview
    """One int64 per record."""
    offsets: memoryview
    """One int32 per record, and one for the end."""
    payloads: memoryview
    column_bytes: int
    """The size of all columns."""
    is_ascending: bool
    """Whether the txids never decrease."""
    flags: int
    keyed_columns: bytes = b""
    """The columns of keys and headers, if ``flags`` has theirs."""
    contents: tuple[Any, ...] = ()
    """The `KeyedContent` or payload of each record, if a record has a key or headers. Otherwise empty."""

    @property
    def is_keyed(self) -> bool:
        """Whether a record has a key or headers."""
        return bool(self.flags & FLAGS_KEYED)

    def iter_payloads(self) -> Iterator[memoryview]:
        """Yield each payload as a view."""
        ends = self.offsets.tolist()
        return map(self.payloads.__getitem__, map(slice, ends, ends[1:]))

    def with_txids(self, txids: "array[int]") -> "PackedColumns":
        """Return the same records with other txids, one int64 per record, which must not decrease."""
        assert len(txids) == len(self.txids), "each record has one"
        return replace(self, txids=memoryview(txids), is_ascending=True)

    def build_entry(
        self, *, records_before: int, written_ms: int, max_txid: int = 0
    ) -> tuple[list[Buffer], int]:
        """Return the buffers of the entry and their length in bytes, as `record.build_entry` does."""
        txids = self.txids
        header = HEADER.pack(
            MAGIC, VERSION, self.flags, len(txids), len(self.payloads), self.column_bytes, 0,
            txids[0], txids[-1], records_before, written_ms, max_txid,
        )  # fmt: skip
        ids, offsets = txids.cast("B"), self.offsets.cast("B")
        buffers: list[Buffer] = [header, ids, offsets, self.payloads]
        if self.keyed_columns:
            buffers.append(self.keyed_columns)
        return buffers, HEADER_BYTES + self.column_bytes

    def with_keyed(
        self,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Sequence[tuple[bytes, bytes]]] | None,
    ) -> "PackedColumns":
        """Return the same records with keys and headers, after checking these.

        Args:
            keys: One per record, None for a record without. None if no record has a key.
            headers: One sequence of pairs per record. None if no record has headers.
        Raises:
            InvalidRequest: A column has another length or a wrong type.
            RecordTooLarge: A key, a record, or all columns exceed their limits.
        """
        record_count = len(self.txids)
        try:
            key_list = [None] * record_count if keys is None else list(keys)
            header_list = [()] * record_count if headers is None else list(headers)
            lengths = len(key_list), len(header_list)
        except TypeError as error:
            raise InvalidRequest(f"keys and headers must be sequences: {error}") from None
        if lengths != (record_count, record_count):
            raise InvalidRequest(
                f"an entry of {record_count} records, {lengths[0]} keys and {lengths[1]} headers"
            )
        contents = tuple(
            content.to_checked() if content.key is not None or content.headers else content.payload
            for content in map(KeyedContent, self.iter_payloads(), key_list, header_list)
        )
        _, some_keys, some_headers = split_contents(contents)
        flags, keyed_columns = encode_keyed(some_keys, some_headers)
        if not flags:
            return self
        column_bytes = self.column_bytes + len(keyed_columns)
        if column_bytes > PACKED_BYTES_MAX:
            raise RecordTooLarge(
                f"an entry of {record_count} records has {column_bytes} bytes with its keys and headers; "
                f"the maximum is {PACKED_BYTES_MAX}"
            )
        return replace(
            self,
            column_bytes=column_bytes,
            flags=self.flags | flags,
            keyed_columns=keyed_columns,
            contents=contents,
        )


def check_packed(txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> PackedColumns:
    """Return the columns of an entry after checking them.

    Readers check the offsets of every entry. They are checked here too, so that no unreadable entry is
    written.

    The cost per record is almost zero if all payloads have the same length and all txids are equal. Otherwise
    it is about 5 ns for the offsets and 10 ns for the txids, by comparing whole columns (`is_ascending`), or
    20 ns for txids that decrease.

    Args:
        txids: An int64 buffer, or None if the records get their txids when the segment is linked.
        offsets: An int32 buffer with one element more than there are records.
        payloads: A byte buffer.
    Raises:
        InvalidRequest: The columns do not match each other, or a txid is out of range.
        RecordTooLarge: The columns exceed `PACKED_BYTES_MAX`.
    """
    try:
        offset_view = memoryview(offsets).cast("B").cast("i")
        txid_buffer = bytes(8 * max(0, len(offset_view) - 1)) if txids is None else txids
        txid_view = memoryview(txid_buffer).cast("B").cast("q")
        data = memoryview(payloads).cast("B")
    except TypeError as error:
        raise InvalidRequest(
            f"the columns of an entry must be contiguous buffers: {error}"
        ) from None
    record_count = len(txid_view)
    if record_count == 0 or len(offset_view) != record_count + 1:
        raise InvalidRequest(f"an entry of {record_count} txids and {len(offset_view)} offsets")
    column_bytes = 12 * record_count + 4 + len(data)
    if column_bytes > PACKED_BYTES_MAX:
        raise RecordTooLarge(
            f"an entry of {record_count} records and {len(data)} payload bytes; the maximum is "
            f"{PACKED_BYTES_MAX} bytes, including 12 bytes per record"
        )
    if offset_view[record_count] != len(data) or not (
        uniform_payload_bytes(offset_view, record_count)
        or (offset_view[0] == 0 and is_ascending(offset_view))
    ):
        raise InvalidRequest(
            f"offsets of an entry must ascend from 0 to its {len(data)} payload bytes; the first "
            f"is {offset_view[0]}, the last {offset_view[record_count]}"
        )
    ascending, least, greatest = _txid_bounds(txid_view)
    if least < 0 or greatest > TXID_MAX:
        raise InvalidRequest(f"a txid must be 0 to 2**63 - 2; these are {least} to {greatest}")
    return PackedColumns(
        txid_view,
        offset_view,
        data,
        column_bytes,
        ascending,
        FLAG_TXID_AT_LINK if txids is None else 0,
    )


def _txid_bounds(txid_view: memoryview) -> tuple[bool, int, int]:
    """Return whether the txids never decrease, and the least and the greatest.

    If the least is below 0, the first result is meaningless.
    """
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
    """Check the columns of an entry after copying those that the caller could still change.

    Args:
        txids: As for `check_packed`. None gives zeros, until `PackedColumns.with_txids` replaces them.
        offsets: As for `check_packed`.
        payloads: As for `check_packed`.
        txids_at_link: Without ``txids``, the records get their txids when the segment is linked.
    Raises:
        InvalidRequest: A column is not a buffer of the right type, or `check_packed` rejects the columns.
        RecordTooLarge: The columns exceed `PACKED_BYTES_MAX`.
    """
    try:
        if txids is None and not txids_at_link:
            txids = bytes(2 * max(0, memoryview(offsets).nbytes - 4))
        txid_bytes = None if txids is None else _copy_column(txids, 8)
        return check_packed(txid_bytes, _copy_column(offsets, 4), _copy_column(payloads))
    except (TypeError, ValueError) as error:  # ValueError: a released buffer
        raise InvalidRequest(f"the columns of an entry must be buffers: {error}") from None


_INTEGER_FORMATS = {8: "qQlLnN", 4: "iIlL"}
"""The `memoryview` formats of integers, by their size in bytes."""
_BYTE_FORMATS = "bBc"


def _copy_column(column: Buffer, size: int = 0) -> bytes:
    """Return the bytes of a column. ``size`` is the size of its integers, or 0 for payload bytes.

    Raises `InvalidRequest` for a column of another type, such as floating-point numbers or booleans.
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
            f"a column must be int{8 * size} in this machine's byte order, or bytes; this one has the "
            f"format {view.format} of {view.itemsize} bytes"
        )
    return view.tobytes()
