"""Convert bytes to records and back: ``lines``, ``jsonl``, ``frames``. No I/O here.

Lines contain any bytes except a newline. Empty lines are records. The last line needs no newline. An empty
input has no record. A record that contains a newline cannot be restored from ``lines``; use another format.
Only ``jsonl`` has keys and headers (`encodable_count`).
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Protocol

from ...log.format.record import RECORD_BYTES_MAX, Columns
from ...log.format.record_headers import KeyedContent
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, RecordTooLarge

FORMATS = ("lines", "jsonl", "frames")
LENGTH = struct.Struct("<I")
JSON_LINE_BYTES_MAX = 8 * RECORD_BYTES_MAX

TxidAndPayload = tuple[int | None, Any]
"""The transaction ID, or None if the input has none, and the payload.

A record with a key or headers has a `KeyedContent` in place of its payload.
"""


class RecordParser(Protocol):
    """Splits a stream into payloads. After `error` is set, it accepts no more input."""

    error: DistributedLogError | None

    def feed(self, chunk: bytes) -> "Sequence[bytes] | Sequence[TxidAndPayload]":
        """Return the records that ``chunk`` completes, up to the first error."""
        ...

    def finish(self) -> "Sequence[bytes] | Sequence[TxidAndPayload]":
        """Return the record that the end of the input completes, if any."""
        ...


class LineParser:
    """Parses one record per line."""

    def __init__(self, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self.error: DistributedLogError | None = None
        self._bytes_max = bytes_max
        self._incomplete = b""
        self._count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes."""
        if self.error is not None:
            return []
        lines = (self._incomplete + chunk).split(b"\n")
        self._incomplete = lines.pop()
        if len(self._incomplete) > self._bytes_max or (
            lines and len(max(lines, key=len)) > self._bytes_max
        ):
            lines = self._up_to_oversize([*lines, self._incomplete])
        self._count += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no newline."""
        last, self._incomplete = self._incomplete, b""
        return [last] if last and self.error is None else []

    def _up_to_oversize(self, lines: list[bytes]) -> list[bytes]:
        first_oversize = next(n for n, line in enumerate(lines) if len(line) > self._bytes_max)
        self.error = RecordTooLarge(
            f"line {self._count + first_oversize + 1} has {len(lines[first_oversize])} bytes or more, "
            f"the maximum is {self._bytes_max};"
            " the lines before it are stored"
        )
        return lines[:first_oversize]


class JsonLineParser:
    """Parses one JSON object per line: ``{"txid"?, "payload" or "payload_base64", "key"?, "headers"?}``.

    ``key``, and ``name`` and ``value`` of each object in ``headers``, have the suffix ``_base64`` if they are
    not UTF-8, as the payload has.
    """

    def __init__(self) -> None:
        self.error: DistributedLogError | None = None
        self._lines = LineParser(JSON_LINE_BYTES_MAX)
        self._count = 0

    def feed(self, chunk: bytes) -> list[TxidAndPayload]:
        """Return the records that ``chunk`` completes."""
        return self._parse(self._lines.feed(chunk))

    def finish(self) -> list[TxidAndPayload]:
        """Return the last record if its line has no newline."""
        return self._parse(self._lines.finish())

    def _parse(self, lines: list[bytes]) -> list[TxidAndPayload]:
        records: list[TxidAndPayload] = []
        for line in lines:
            if self.error is not None:
                break
            self._count += 1
            try:
                records.append(_record_of_json(json.loads(line)))
            except (ValueError, InvalidRequest, RecordTooLarge, RecursionError) as error:
                problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
                self.error = InvalidRequest(
                    f"line {self._count}: {problem}; the lines before it are stored"
                )
                break
            if len(records[-1][1]) > RECORD_BYTES_MAX:
                self.error = RecordTooLarge(
                    f"line {self._count} has a payload of {len(records.pop()[1])} bytes, the maximum is"
                    f" {RECORD_BYTES_MAX}; the lines before it are stored"
                )
        if self.error is None:
            self.error = self._lines.error
        return records


class FrameParser:
    """Parses frames: a u32 little-endian length, then this number of bytes."""

    def __init__(self) -> None:
        self.error: DistributedLogError | None = None
        self._incomplete = b""
        self._count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the records that ``chunk`` completes."""
        if self.error is not None:
            return []
        data = self._incomplete + chunk
        records: list[bytes] = []
        start = 0
        while len(data) - start >= 4:
            (length,) = LENGTH.unpack_from(data, start)
            if length > RECORD_BYTES_MAX:
                self.error = RecordTooLarge(
                    f"frame {self._count + len(records) + 1} has a length of {length} bytes, the maximum is"
                    f" {RECORD_BYTES_MAX}; the frames before it are stored"
                )
                break
            end = start + 4 + length
            if end > len(data):
                break
            records.append(data[start + 4 : end])
            start = end
        self._incomplete = data[start:]
        self._count += len(records)
        return records

    def finish(self) -> list[bytes]:
        """Return no record; set `error` if the input ends within a frame."""
        if self._incomplete and self.error is None:
            self.error = InvalidRequest(
                f"the input ends within frame {self._count + 1}; the frames before it are stored"
            )
        return []


def parser(name: str) -> RecordParser:
    """Return a new parser for one of `FORMATS`."""
    parsers: dict[str, Callable[[], RecordParser]] = {
        "lines": LineParser,
        "jsonl": JsonLineParser,
        "frames": FrameParser,
    }
    return parsers[name]()


def as_lines(columns: Columns) -> bytes:
    """Return the payloads, with a newline after each."""
    payloads = _payloads(columns)
    return b"\n".join(payloads) + b"\n" if payloads else b""


def as_frames(columns: Columns) -> bytes:
    """Return length and payload of each record."""
    parts: list[bytes] = []
    for payload in _payloads(columns):
        parts += (LENGTH.pack(len(payload)), payload)
    return b"".join(parts)


def as_jsonl(columns: Columns) -> bytes:
    """Return one object per line, with ``payload`` if it is UTF-8 and ``payload_base64`` otherwise."""
    lines = []
    for record in columns.records():
        value: dict[str, Any] = {
            "dlsn": str(record.dlsn),
            "txid": record.txid,
            "sequence_id": record.sequence_id,
        }
        value |= _json_bytes("payload", record.payload)
        if record.key is not None:
            value |= _json_bytes("key", record.key)
        if record.headers:
            value["headers"] = [
                {**_json_bytes("name", name), **_json_bytes("value", header_value)}
                for name, header_value in record.headers
            ]
        lines.append(json.dumps(value, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def _json_bytes(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


WRITERS: dict[str, Callable[[Columns], bytes]] = {
    "lines": as_lines,
    "jsonl": as_jsonl,
    "frames": as_frames,
}


def encodable_count(format_name: str, columns: Columns) -> int:
    """Return the number of records before the first one that the format cannot represent.

    Only ``jsonl`` has keys and headers. Another format would lose them without an error.
    """
    if format_name == "jsonl" or (columns.keys is None and columns.headers is None):
        return columns.count
    keys, headers = columns.keys or repeat(None), columns.headers or repeat(())
    rows = zip(range(columns.count), keys, headers, strict=False)
    return next((row for row, key, pairs in rows if key is not None or pairs), columns.count)


def _payloads(columns: Columns) -> list[bytes]:
    ends = columns.offsets.tolist()
    data = bytes(columns.payload)
    return list(map(data.__getitem__, map(slice, ends, ends[1:])))


def _record_of_json(value: Any) -> TxidAndPayload:
    if not isinstance(value, dict):
        raise InvalidRequest("it is not a JSON object")
    txid = value.get("txid")
    if txid is not None and (not isinstance(txid, int) or isinstance(txid, bool)):
        raise InvalidRequest(f"txid must be an integer, got {txid!r}")
    payload = _bytes_of_json(value, "payload")
    has_key = any(value.get(name) is not None for name in ("key", "key_base64"))
    key = _bytes_of_json(value, "key") if has_key else None
    headers = value.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(header, dict) for header in headers):
        raise InvalidRequest("headers must be a list of objects with a name and a value")
    if key is None and not headers:
        return txid, payload
    pairs = [
        (_bytes_of_json(header, "name"), _bytes_of_json(header, "value")) for header in headers
    ]
    return txid, KeyedContent(payload, key, pairs).to_checked()


def _bytes_of_json(value: dict[str, Any], name: str) -> bytes:
    if isinstance(value.get(name), str):
        text: str = value[name]
        return text.encode("utf-8", "surrogatepass")
    encoded = value.get(f"{name}_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise InvalidRequest(f"{name}_base64: {error}") from None
    raise InvalidRequest(f'it has neither "{name}" nor "{name}_base64" as a string')
