"""Decode the formats of docs/reference/formats.md without any module of this project.

It is an example for authors of clients in other languages, written from that page. It has at most 200 lines.
`decode` decodes each test vector. `wire_client.py` appends and reads through proxies with it.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import lz4.block
import msgpack
import zstandard
from xxhash import xxh3_64_intdigest

HELLO, AUTH, REPLY, PRODUCE_OPEN, PRODUCE, PRODUCE_ACKS = 1, 2, 3, 98, 99, 100
PRODUCE_COMMIT, SUBSCRIBE, ENTRIES, CREDIT = 108, 112, 113, 114
ENVELOPE = struct.Struct("<IBBHQII")
SEGMENT = struct.Struct("<QqQqqII")
SEGMENT_NAMES = (
    "segment", "start_sequence_id", "base_entry", "txid_base", "time_floor_ms", "txid_rule",
)  # fmt: skip
ENTRY_RECORD = struct.Struct("<QIIHHIQQQq")
LOG_ENTRY = struct.Struct("<IHHIIIIqqQqQ")
BLOCK = struct.Struct("<QIHHIIIIQQQ")
ACK = struct.Struct("<IIQQQIIq")
ACK_NAMES = ("stream", "records", "first_sequence", "segment", "entry", "slot", "flags", "txid")


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def plain(value: Any) -> Any:
    """Return a value with bytes as hex digits, as the index of the vectors has them."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def decode(form: str, data: bytes, **inputs: Any) -> Any:
    """Return the value of a test vector."""
    if form == "log_state":
        return msgpack.unpackb(data)
    decoders: dict[str, Any] = {"frame": frame, "log_entry": log_entry, "block": block}
    return plain(decoders.get(form, entry_record)(data, **inputs))


def frame(data: bytes) -> dict[str, Any]:
    length, op, flags, status, ident, time_left, _ = ENVELOPE.unpack_from(data)
    check(length == len(data), "length of the frame")
    head = {"op": op, "flags": flags, "status": status, "ident": ident, "time_left_ms": time_left}
    return {"envelope": head, "body": body_of(op, data[24:])}


def body_of(op: int, body: bytes) -> Any:
    if not body:
        return None
    if op == PRODUCE:
        return produce(body)
    if op == PRODUCE_ACKS:
        return [dict(zip(ACK_NAMES, ack, strict=True)) for ack in ACK.iter_unpack(body)]
    if op == PRODUCE_COMMIT:
        return {"stream": struct.unpack("<I", body)[0]}
    if op == CREDIT:
        return struct.unpack("<Q", body)[0]
    if op == ENTRIES:
        segment = dict(zip(SEGMENT_NAMES, SEGMENT.unpack_from(body), strict=False))
        found = [one for entry in entry_records(body[48:], segment) for one in entry["records"]]
        return {"segment": segment, "records": found}
    return msgpack.unpackb(body)


def produce(body: bytes) -> dict[str, Any]:
    digest, first, through, count, flags = struct.unpack_from("<QQQII", body)
    check(digest == xxh3_64_intdigest(body[8:]), "digest of PRODUCE")
    check(flags < 32, "flags of PRODUCE")
    columns = Columns(body[32:])
    expected = columns.take("Qqq") if flags & 2 else None
    txids = columns.take(f"{count}q") if flags & 1 else None
    record_flags = columns.take(f"{count}B") if flags & 4 else None
    ends = columns.take(f"{count}I")
    payloads = columns.pieces(b - a for a, b in pairwise((0, *ends)))
    keys = columns.keys(count) if flags & 8 else None
    headers = columns.headers(count) if flags & 16 else None
    columns.check_end()
    return {
        "first_sequence": first, "acked_through": through, "payloads": payloads, "keys": keys,
        "expected": expected, "txids": txids, "record_flags": record_flags, "headers": headers,
    }  # fmt: skip


class Columns:
    """Columns, read from front to end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> list[Any]:
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return list(values)

    def pieces(self, sizes: Any) -> list[bytes]:
        return [self.take(f"{size}s")[0] for size in sizes]

    def keys(self, count: int) -> list[bytes | None]:
        lengths = self.take(f"{count}i")
        return [None if length < 0 else self.pieces([length])[0] for length in lengths]

    def headers(self, count: int) -> list[Any]:
        counts = self.take(f"{count}B")
        parts = self.pieces(self.take(f"{2 * sum(counts)}I"))
        pairs = iter(list(zip(parts[::2], parts[1::2], strict=True)))
        return [[next(pairs) for _ in range(number)] for number in counts]

    def check_end(self) -> None:
        check(self.at == len(self.data), "bytes after the columns")


def entry_records(data: bytes, segment: dict[str, int]) -> Iterator[dict[str, Any]]:
    while data:
        digest, length, size, version, *_ = fields = ENTRY_RECORD.unpack_from(data)
        check(digest == xxh3_64_intdigest(data[8:length]) and version == 1, "entry record")
        found = dict(zip(("ledger", "entry", "length_so_far", "lac"), fields[6:], strict=True))
        yield found | {"records": log_entry(data[56 : 56 + size], segment, found["entry"])}
        data = data[length:]


def entry_record(data: bytes, segment: dict[str, int]) -> dict[str, Any]:
    return next(entry_records(data, segment))


def log_entry(data: bytes, segment: dict[str, int], entry: int) -> list[dict[str, Any]]:
    magic, version, flags, count, size, columns_size, sections, _, _, before, wall_ms, _ = (
        LOG_ENTRY.unpack_from(data)
    )
    check(magic == 0x45474C44 and version == 1 and not flags & ~0x03DF, "log entry")
    at = 64
    while at < 64 + sections:
        _, section_flags, length = struct.unpack_from("<HHI", data, at)
        check(not section_flags & 1, "critical section")
        at += 8 + length + -length % 8
    raw, codec = data[at:], flags & 15
    if codec:
        raw = lz4.block.decompress(raw, columns_size) if codec == 1 else zstandard.decompress(raw)
    check(codec < 3 and len(raw) == columns_size, "columns")
    columns = Columns(raw)
    txids = columns.take(f"{count}q")
    offsets = columns.take(f"{count + 1}i")
    more = columns.take(f"{count}B") if flags & 0x40 else [0] * count
    payloads = columns.pieces(b - a for a, b in pairwise(offsets))
    keys = columns.keys(count) if flags & 0x100 else [None] * count
    headers = columns.headers(count) if flags & 0x200 else [[]] * count
    columns.check_end()
    check(offsets[0] == 0 and offsets[-1] == size and max(more) <= 1 and not more[-1], "records")
    if flags & 0x10:
        return []
    rule, base = segment["txid_rule"], segment["txid_base"]
    return [
        {"dlsn": [segment["segment"], entry - segment["base_entry"], slot],
         "sequence_id": segment["start_sequence_id"] + before + slot,
         "txid": txids[slot] if rule == 0 else base + (before + slot if rule == 2 else 0),
         "time_ms": max(wall_ms, segment["time_floor_ms"]), "payload": payloads[slot],
         "key": keys[slot], "headers": headers[slot], "more": bool(more[slot])}
        for slot in range(count)
    ]  # fmt: skip


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def block(data: bytes, seed: int, file_number: int, file_offset: int) -> dict[str, Any]:
    digest, magic, version, kind, padded, size, starts, note, sequence, durable_to, number = (
        BLOCK.unpack_from(data)
    )
    check((magic, version, number, padded) == (0x4B424C44, 1, file_number, len(data)), "block")
    seed ^= mix(mix(file_number) ^ file_offset)
    check(digest == xxh3_64_intdigest(data[8 : 56 + size], seed), "digest of the block")
    return {"kind": kind, "start_count": starts, "note": note, "sequence": sequence,
            "durable_to": durable_to, "payload": data[56 : 56 + size]}  # fmt: skip
