"""Records from bytes and bytes from records: ``lines``, ``jsonl``, ``frames``. No I/O here.

Lines are any bytes but a newline; empty ones count; a last one without a newline counts; nothing makes
no record. A record that holds a newline does not come back from ``lines`` as one: use the others.
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...log.format.record import RECORD_BYTES_MAX, Columns
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, RecordTooLarge

FORMATS = ("lines", "jsonl", "frames")
LENGTH = struct.Struct("<I")
JSON_LINE_BYTES_MAX = 8 * RECORD_BYTES_MAX

TxidAndPayload = tuple[int | None, bytes]
"""A txid, where the input gives one, and a payload."""


class RecordParser(Protocol):
    """Cuts a stream into payloads. After `error` is set it takes no more."""

    error: DistributedLogError | None

    def feed(self, chunk: bytes) -> "Sequence[bytes] | Sequence[TxidAndPayload]":
        """What ``chunk`` completes, up to the first error."""
        ...

    def finish(self) -> "Sequence[bytes] | Sequence[TxidAndPayload]":
        """What the end completes."""
        ...


class LineParser:
    """A record a line."""

    def __init__(self, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self.error: DistributedLogError | None = None
        self._bytes_max = bytes_max
        self._incomplete = b""
        self._count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes."""
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
        """The last line, if it has no newline."""
        last, self._incomplete = self._incomplete, b""
        return [last] if last and self.error is None else []

    def _up_to_oversize(self, lines: list[bytes]) -> list[bytes]:
        first_oversize = next(n for n, line in enumerate(lines) if len(line) > self._bytes_max)
        self.error = RecordTooLarge(
            f"line {self._count + first_oversize + 1} has {len(lines[first_oversize])} bytes or more, "
            f"the most are {self._bytes_max};"
            " the lines before it are stored"
        )
        return lines[:first_oversize]


class JsonLineParser:
    """A JSON object a line: ``{"txid"?, "payload" or "payload_base64"}``."""

    def __init__(self) -> None:
        self.error: DistributedLogError | None = None
        self._lines = LineParser(JSON_LINE_BYTES_MAX)
        self._count = 0

    def feed(self, chunk: bytes) -> list[TxidAndPayload]:
        """The records that ``chunk`` completes."""
        return self._parse(self._lines.feed(chunk))

    def finish(self) -> list[TxidAndPayload]:
        """The last line, if it has no newline."""
        return self._parse(self._lines.finish())

    def _parse(self, lines: list[bytes]) -> list[TxidAndPayload]:
        records: list[TxidAndPayload] = []
        for line in lines:
            if self.error is not None:
                break
            self._count += 1
            try:
                records.append(_record_of_json(json.loads(line)))
            except (ValueError, InvalidRequest, RecursionError) as error:
                problem = "it is nested too deep" if isinstance(error, RecursionError) else error
                self.error = InvalidRequest(
                    f"line {self._count}: {problem}; those before it are stored"
                )
                break
            if len(records[-1][1]) > RECORD_BYTES_MAX:
                self.error = RecordTooLarge(
                    f"line {self._count} has a payload of {len(records.pop()[1])} bytes, a record takes"
                    f" {RECORD_BYTES_MAX}; the lines before it are stored"
                )
        if self.error is None:
            self.error = self._lines.error
        return records


class FrameParser:
    """u32 little-endian length, then so many bytes."""

    def __init__(self) -> None:
        self.error: DistributedLogError | None = None
        self._incomplete = b""
        self._count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that ``chunk`` completes."""
        if self.error is not None:
            return []
        data = self._incomplete + chunk
        records: list[bytes] = []
        start = 0
        while len(data) - start >= 4:
            (length,) = LENGTH.unpack_from(data, start)
            if length > RECORD_BYTES_MAX:
                self.error = RecordTooLarge(
                    f"frame {self._count + len(records) + 1} announces {length} bytes, a record takes"
                    f" {RECORD_BYTES_MAX}; those before it are stored"
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
        """Nothing; half a frame is an error."""
        if self._incomplete and self.error is None:
            self.error = InvalidRequest(
                f"the input ends within frame {self._count + 1}; those before it are stored"
            )
        return []


def parser(name: str) -> RecordParser:
    """For one of `FORMATS`."""
    parsers: dict[str, Callable[[], RecordParser]] = {
        "lines": LineParser,
        "jsonl": JsonLineParser,
        "frames": FrameParser,
    }
    return parsers[name]()


def as_lines(columns: Columns) -> bytes:
    """Payloads, a newline after each."""
    payloads = _payloads(columns)
    return b"\n".join(payloads) + b"\n" if payloads else b""


def as_frames(columns: Columns) -> bytes:
    """Length and payload of each."""
    parts: list[bytes] = []
    for payload in _payloads(columns):
        parts += (LENGTH.pack(len(payload)), payload)
    return b"".join(parts)


def as_jsonl(columns: Columns) -> bytes:
    """An object a line; ``payload`` where it is UTF-8, else ``payload_base64``."""
    lines = []
    for record in columns.records():
        value: dict[str, Any] = {
            "dlsn": str(record.dlsn),
            "txid": record.txid,
            "sequence_id": record.sequence_id,
        }
        try:
            value["payload"] = record.payload.decode()
        except UnicodeDecodeError:
            value["payload_base64"] = base64.b64encode(record.payload).decode()
        lines.append(json.dumps(value, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


WRITERS: dict[str, Callable[[Columns], bytes]] = {
    "lines": as_lines,
    "jsonl": as_jsonl,
    "frames": as_frames,
}


def _payloads(columns: Columns) -> list[bytes]:
    ends = columns.offsets.tolist()
    data = bytes(columns.payload)
    return list(map(data.__getitem__, map(slice, ends, ends[1:])))


def _record_of_json(value: Any) -> TxidAndPayload:
    if not isinstance(value, dict):
        raise InvalidRequest("wanted is an object")
    txid = value.get("txid")
    if txid is not None and (not isinstance(txid, int) or isinstance(txid, bool)):
        raise InvalidRequest(f"txid is {txid!r}, wanted is a number")
    if isinstance(value.get("payload"), str):
        return txid, value["payload"].encode("utf-8", "surrogatepass")
    if isinstance(value.get("payload_base64"), str):
        try:
            return txid, base64.b64decode(value["payload_base64"], validate=True)
        except binascii.Error as error:
            raise InvalidRequest(f"payload_base64: {error}") from None
    raise InvalidRequest('it has neither "payload" nor "payload_base64" as a text')
