"""Keys and headers of records, and their columns in an entry (pure).

A record can have a key, and headers: pairs of a name and a value, whose order and duplicates are kept. They
are stored and returned unchanged, and nothing depends on them (decision 117). Their columns are the last ones
of an entry, after the payloads. Each is present only if the entry's header has its flag:

    keys     (0x0100)  lengths i32[count], -1 for a record without key | keys
    headers  (0x0200)  headers per record u8[count] | lengths u32[2 x headers], name and value in turn
                       | names and values

An entry without them has neither flag nor bytes for them. The columns must end with the entry. Writers put
records with a key or headers into their lists of payloads as `KeyedContent`, so records without them cost
nothing.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import xxhash

from ...runtime.interfaces.errors import CorruptData, InvalidRequest, RecordTooLarge
from ...runtime.interfaces.host import Buffer

FLAG_KEYS = 0x0100
FLAG_HEADERS = 0x0200
FLAGS_KEYED = FLAG_KEYS | FLAG_HEADERS
"""The header flags of an entry with keys, with headers, or with both."""

KEY_BYTES_MAX = 64 * 1024
HEADERS_MAX = 64
"""The maximum number of headers of one record."""
KEYED_RECORD_BYTES = 5
"""The size of a record with a key or headers in addition to these and its payload, as counted against the
limit of a record."""
HEADER_COLUMN_BYTES = 8
"""The size of a header in addition to its name and value."""
KEY_MEMORY_BYTES = 48
HEADER_MEMORY_BYTES = 160
"""The approximate memory of a decoded key, and of a decoded header, in addition to its bytes."""

Header = tuple[bytes, bytes]
"""The name and the value of a header."""
Headers = tuple[Header, ...]


class KeyedContent:
    """The payload, key and headers of one record that is written, in place of its payload.

    It is not `bytes`, so that code without support for keys and headers refuses it.
    """

    __slots__ = ("headers", "key", "payload")

    def __init__(self, payload: Any, key: Any, headers: Any) -> None:
        self.payload = payload
        self.key = key
        """None for a record without key."""
        self.headers = headers
        """Pairs of bytes."""

    def __len__(self) -> int:
        """Return the size that counts against the limits of records, entries and memory."""
        size = len(self.payload) + KEYED_RECORD_BYTES + (0 if self.key is None else len(self.key))
        for name, value in self.headers:
            size += HEADER_COLUMN_BYTES + len(name) + len(value)
        return size

    def to_checked(self) -> "KeyedContent":
        """Return an exact copy: bytes, and a tuple of pairs of bytes.

        Raises:
            InvalidRequest: A part has another type, or there are more than `HEADERS_MAX` headers.
            RecordTooLarge: The key is above `KEY_BYTES_MAX`.
        """
        payload = _to_bytes(self.payload, "a payload")
        key = None if self.key is None else _to_bytes(self.key, "a key")
        if key is not None and len(key) > KEY_BYTES_MAX:
            raise RecordTooLarge(f"a key of {len(key)} bytes is above the limit of {KEY_BYTES_MAX}")
        return KeyedContent(payload, key, check_headers(self.headers))

    def digest_input(self) -> bytes:
        """Return the bytes that take the place of the payload in digests of records.

        They differ for different payloads, keys or headers: the digest of the payload, and the columns of the
        key and of the headers of this record alone.
        """
        keys, headers = encode_keys([self.key]), encode_headers([self.headers])
        return b"".join((xxhash.xxh3_64_digest(self.payload), *keys, *headers))


def check_headers(headers: Any) -> Headers:
    """Return headers as a tuple of pairs of bytes.

    Raises:
        InvalidRequest: They are not pairs of bytes, or more than `HEADERS_MAX`.
    """
    try:
        pairs = [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise InvalidRequest(
            "headers must be a sequence of pairs of a name and a value, both bytes"
        ) from None
    if len(pairs) > HEADERS_MAX:
        raise InvalidRequest(f"a record has {len(pairs)} headers; the maximum is {HEADERS_MAX}")
    return tuple(
        (_to_bytes(name, "the name of a header"), _to_bytes(value, "the value of a header"))
        for name, value in pairs
    )


def _to_bytes(value: Any, what: str) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRequest(f"{what} must be bytes, got {type(value).__name__}")
    return bytes(value)


def content_bytes(content: Any) -> int:
    """Return the size of a record's content, which is a `KeyedContent` or the payload itself."""
    return len(content) if type(content) is KeyedContent else memoryview(content).nbytes


def split_contents(
    contents: Sequence[Any],
) -> tuple[list[bytes], list[bytes | None] | None, list[Headers] | None]:
    """Return payloads, keys and headers. A column that no record has is None."""
    payloads: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[Headers] = []
    for content in contents:
        if type(content) is KeyedContent:
            payloads.append(content.payload)
            keys.append(content.key)
            headers.append(content.headers)
        else:
            payloads.append(content)
            keys.append(None)
            headers.append(())
    has_keys = keys.count(None) < len(keys)
    return payloads, keys if has_keys else None, headers if any(headers) else None


def join_contents(
    payloads: Sequence[Buffer],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
) -> list[Any]:
    """Return the contents of records, the inverse of `split_contents`."""
    return [
        payload
        if key is None and not record_headers
        else KeyedContent(payload, key, record_headers)
        for payload, key, record_headers in zip(
            payloads,
            [None] * len(payloads) if keys is None else keys,
            [()] * len(payloads) if headers is None else headers,
            strict=True,
        )
    ]


def encode_keyed(
    keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None
) -> tuple[int, bytes]:
    """Return the flags and the bytes of both columns. A column that is None is left out."""
    flags, parts = 0, []
    if keys is not None:
        flags |= FLAG_KEYS
        parts += encode_keys(keys)
    if headers is not None:
        flags |= FLAG_HEADERS
        parts += encode_headers(headers)
    return flags, b"".join(parts)


def encode_keys(keys: Sequence[bytes | None]) -> list[bytes]:
    """Return the parts of the column of keys."""
    lengths = [-1 if key is None else len(key) for key in keys]
    return [struct.pack(f"<{len(lengths)}i", *lengths), *(key for key in keys if key)]


def encode_headers(headers: Sequence[Headers]) -> list[bytes]:
    """Return the parts of the column of headers."""
    names_and_values = list(chain.from_iterable(chain.from_iterable(headers)))
    lengths = struct.pack(f"<{len(names_and_values)}I", *map(len, names_and_values))
    return [bytes(map(len, headers)), lengths, *names_and_values]


def least_keyed_bytes(flags: int, record_count: int) -> int:
    """Return the least size of the columns of an entry with these flags."""
    return (4 * record_count if flags & FLAG_KEYS else 0) + (
        record_count if flags & FLAG_HEADERS else 0
    )


def decode_keyed(
    data: Buffer, flags: int, record_count: int
) -> tuple[list[bytes | None] | None, list[Headers] | None]:
    """Decode both columns. A column without a flag is None.

    Raises:
        CorruptData: A count or length is out of range, or the columns do not end with the data.
    """
    view = memoryview(data)
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    position = 0
    if flags & FLAG_KEYS:
        keys, position = _decode_keys(view, record_count)
    if flags & FLAG_HEADERS:
        headers, position = _decode_headers(view, position, record_count)
    if position != len(view):
        raise CorruptData(
            f"the keys and headers of {record_count} records have {position} of {len(view)} bytes"
        )
    return keys, headers


def _decode_keys(view: memoryview, record_count: int) -> tuple[list[bytes | None], int]:
    position = 4 * record_count
    if position > len(view):
        raise CorruptData(f"{len(view)} bytes for the lengths of {record_count} keys")
    lengths = struct.unpack_from(f"<{record_count}i", view)
    if min(lengths) < -1 or max(lengths) > KEY_BYTES_MAX:
        raise CorruptData(
            f"keys of {min(lengths)} to {max(lengths)} bytes; the limits are -1 and {KEY_BYTES_MAX}"
        )
    _check_sizes([length for length in lengths if length > 0], len(view) - position, "keys")
    keys: list[bytes | None] = []
    for length in lengths:
        if length < 0:
            keys.append(None)
        else:
            keys.append(bytes(view[position : position + length]))
            position += length
    return keys, position


def _decode_headers(
    view: memoryview, position: int, record_count: int
) -> tuple[list[Headers], int]:
    counts = bytes(view[position : position + record_count])
    if len(counts) != record_count or max(counts) > HEADERS_MAX:
        raise CorruptData(
            f"{len(counts)} counts of headers for {record_count} records; "
            f"the greatest is {max(counts, default=0)}, the maximum {HEADERS_MAX}"
        )
    position += record_count
    part_count = 2 * sum(counts)
    if 4 * part_count > len(view) - position:
        raise CorruptData(f"{len(view) - position} bytes for the lengths of {part_count} parts")
    lengths = struct.unpack_from(f"<{part_count}I", view, position)
    position += 4 * part_count
    _check_sizes(lengths, len(view) - position, "headers")
    parts: list[bytes] = []
    for length in lengths:
        parts.append(bytes(view[position : position + length]))
        position += length
    pairs: Iterator[Header] = iter(list(zip(parts[::2], parts[1::2], strict=True)))
    return [tuple(next(pairs) for _ in range(count)) for count in counts], position


def _check_sizes(lengths: Sequence[int], available_bytes: int, what: str) -> None:
    if sum(lengths) > available_bytes:
        raise CorruptData(f"{what} of {sum(lengths)} bytes in a column of {available_bytes}")


def memory_bytes(keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None) -> int:
    """Return the approximate memory of decoded keys and headers."""
    size = 0
    for key in keys or ():
        if key is not None:
            size += KEY_MEMORY_BYTES + len(key)
    for name, value in chain.from_iterable(headers or ()):
        size += HEADER_MEMORY_BYTES + len(name) + len(value)
    return size
