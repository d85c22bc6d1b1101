"""Decode the formats for clients. Written from docs/reference/formats.md alone."""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import lz4.block
import msgpack
import xxhash
import zstandard

MIB, MASK = 1 << 20, (1 << 64) - 1
ENVELOPE = "op", "flags", "status", "ident", "time_left_ms"
SEGMENT = "segment", "start_sequence_id", "base_entry", "txid_base", "time_floor_ms", "txid_rule"
BLOCK = "kind", "start_count", "note", "sequence", "durable_to", "payload"
ACK = "stream", "records", "first_sequence", "segment", "entry", "slot", "flags", "txid"


def require(condition: bool, reason: str) -> None:
    """Refuse the bytes if the condition is false."""
    if not condition:
        raise ValueError(reason)


def named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values by their names."""
    return dict(zip(names, values, strict=True))


class Reader:
    """Take consecutive fields from bytes, and refuse to read past their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        require(0 <= size <= len(self.data) - self.at, "a field ends past the end of the data")
        self.at += size
        return self.data[self.at - size : self.at]

    def fields(self, layout: str) -> tuple[Any, ...]:
        """Return the next little-endian fields without padding."""
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))


def read_payloads(reader: Reader, ends: tuple[int, ...]) -> list[bytes]:
    """Read the column of payloads, whose ends must ascend."""
    return [reader.take(end - start) for start, end in pairwise((0, *ends))]


def read_keys(reader: Reader, count: int) -> list[bytes | None]:
    """Read the column of keys: the length -1 is no key."""
    lengths = reader.fields(f"{count}i")
    require(all(-1 <= length <= 65536 for length in lengths), "wrong length of a key")
    return [None if length < 0 else reader.take(length) for length in lengths]


def read_headers(reader: Reader, count: int) -> list[list[list[bytes]]]:
    """Read the column of headers: for each record, its pairs of name and value."""
    counts = reader.fields(f"{count}B")
    require(max(counts) <= 64, "too many headers")
    parts = iter([reader.take(length) for length in reader.fields(f"{2 * sum(counts)}I")])
    return [[[next(parts), next(parts)] for _ in range(number)] for number in counts]


def decode_produce(body: bytes) -> Any:
    """Decode and verify the records of a writer."""
    reader = Reader(body)
    digest, first, acked, count, flags = reader.fields("QQQII")
    require(digest == xxhash.xxh3_64_intdigest(body[8:]), "wrong digest of a PRODUCE")
    require(1 <= count <= 65536 and acked <= first and not flags & ~31, "wrong fields of a PRODUCE")
    value: dict[str, Any] = {"first_sequence": first, "acked_through": acked}
    value["expected"] = reader.fields("Qqq") if flags & 2 else None
    value["txids"] = reader.fields(f"{count}q") if flags & 1 else None
    value["record_flags"] = reader.fields(f"{count}B") if flags & 4 else None
    value["payloads"] = read_payloads(reader, reader.fields(f"{count}I"))
    value["keys"] = read_keys(reader, count) if flags & 8 else None
    value["headers"] = read_headers(reader, count) if flags & 16 else None
    require(reader.at == len(body), "bytes after the last column")
    return value


def decode_entries(body: bytes) -> Any:
    """Decode the entries of one segment."""
    reader = Reader(body)
    segment = named(SEGMENT, reader.fields("QqQqqI4x"))
    records: list[Any] = []
    while reader.at < len(body):
        (length,) = struct.unpack_from("<I", body, reader.at + 8)
        records += decode_entry_record(reader.take(length), segment)["records"]
    return {"segment": segment, "records": records}


BODIES: dict[int, Callable[[bytes], Any]] = {
    **dict.fromkeys((1, 2, 3, 98, 112), msgpack.unpackb),  # HELLO, AUTH, REPLY, the two openings
    99: decode_produce,
    100: lambda body: [named(ACK, row) for row in struct.iter_unpack("<IIQQQIIq", body)],
    108: lambda body: {"stream": struct.unpack("<I", body)[0]},  # PRODUCE_COMMIT
    113: decode_entries,
    114: lambda body: struct.unpack("<Q", body)[0],  # CREDIT
}


def decode_frame(data: bytes) -> Any:
    """Decode one frame: its envelope, and its body or its error."""
    length, *envelope = Reader(data).fields("IBBHQI4x")
    require(length == len(data) and length <= 5 * MIB, "wrong length of a frame")
    op, _, status, *_, body = *envelope, data[24:]
    decode_body = msgpack.unpackb if status else BODIES.get(op, bytes)
    return {"envelope": named(ENVELOPE, envelope), "body": decode_body(body) if body else None}


def decode_entry_record(data: bytes, segment: Mapping[str, int]) -> Any:
    """Decode and verify an entry record, and the log entry in it."""
    reader = Reader(data)
    digest, length, size, version, _, ledger, entry, so_far, lac = reader.fields("QIIHH4xQQQq")
    require(version == 1 and length == len(data) == (56 + size + 7) // 8 * 8, "wrong entry record")
    require(digest == xxhash.xxh3_64_intdigest(data[8:]), "wrong digest of an entry record")
    return {"ledger": ledger, "entry": entry, "length_so_far": so_far, "lac": lac,
            "records": decode_log_entry(reader.take(size), segment, entry)}  # fmt: skip


def decompress(packed: bytes, codec: int, size: int) -> bytes:
    """Decompress the columns of a log entry, which have `size` bytes."""
    require(codec <= 2 and size <= 5 * MIB, "unknown codec, or too large")
    if codec == 1:
        packed = lz4.block.decompress(packed, uncompressed_size=size)
    elif codec == 2:
        require(zstandard.frame_content_size(packed) == size, "wrong size of a zstd frame")
        packed = zstandard.ZstdDecompressor(max_window_size=5 * MIB).decompress(packed)
    require(len(packed) == size, "wrong size of the columns")
    return packed


def decode_log_entry(data: bytes, segment: Mapping[str, int], entry: int) -> list[Any]:
    """Decode the records of a log entry, and complete them with the fields of the segment."""
    reader = Reader(data)
    magic, version, flags, count, payload_bytes, size = reader.fields("IHHIII")
    section_bytes, before, wall_ms = reader.fields("I16xQq8x")
    require((magic, version) == (0x45474C44, 1) and not flags & ~0x03DF and count > 0, "log entry")
    sections = Reader(reader.take(section_bytes))
    while sections.at < section_bytes:
        _, section_flags, length = sections.fields("HHI")
        require(not section_flags & 1, "critical section")
        sections.take(length + -length % 8)
    columns = Reader(decompress(data[reader.at :], flags & 15, size))
    txids, offsets = columns.fields(f"{count}q"), columns.fields(f"{count + 1}i")
    require(offsets[0] == 0 and offsets[-1] == payload_bytes, "wrong size of the payloads")
    more = columns.fields(f"{count}B") if flags & 0x40 else [0] * count
    require(max(more) <= 1 and not more[-1], "unknown flag of a record, or an unfinished set")
    payloads = read_payloads(columns, offsets[1:])
    keys = read_keys(columns, count) if flags & 0x100 else [None] * count
    headers = read_headers(columns, count) if flags & 0x200 else [[] for _ in range(count)]
    require(columns.at == size, "bytes after the last column")
    number, base, rule = entry - segment["base_entry"], segment["txid_base"], segment["txid_rule"]
    records = [
        {"dlsn": [segment["segment"], number, slot],
         "sequence_id": segment["start_sequence_id"] + before + slot,
         "txid": (txids[slot], base, base + before + slot)[rule],
         "time_ms": max(wall_ms, segment["time_floor_ms"]), "payload": payloads[slot],
         "key": keys[slot], "headers": headers[slot], "more": more[slot] == 1}
        for slot in range(count)]  # fmt: skip
    return [] if flags & 0x10 else records


def mix(v: int) -> int:
    """Mix the bits of a number: the finalizer of SplitMix64."""
    v = v + 0x9E3779B97F4A7C15 & MASK
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & MASK
    v = (v ^ v >> 27) * 0x94D049BB133111EB & MASK
    return v ^ v >> 31


def decode_block(data: bytes, seed: int, file_number: int, file_offset: int) -> Any:
    """Decode and verify a checksummed block."""
    reader = Reader(data)
    digest, magic, version, kind, padded, size = reader.fields("QIHHII")
    starts, note, sequence, durable_to, number = reader.fields("IIQQQ")
    require(magic == 0x4B424C44 and version == 1 and number == file_number, "wrong block")
    require(padded == len(data) == (56 + size + 4095) // 4096 * 4096, "wrong length of a block")
    expected = xxhash.xxh3_64_intdigest(data[8 : 56 + size], seed ^ mix(mix(number) ^ file_offset))
    require(digest == expected, "wrong digest of a block")
    return named(BLOCK, (kind, starts, note, sequence, durable_to, reader.take(size)))


def decode_log_state(data: bytes) -> Any:
    """Decode the state of a log, and refuse formats after 2."""
    state = msgpack.unpackb(data)
    require(isinstance(state, list) and state[0] <= 2, "unknown format of a log state")
    return state


def decode(kind: str, data: bytes, **additional: Any) -> Any:
    """Decode a vector of the given format with the additional input of its row."""
    decoders: dict[str, Callable[..., Any]] = {
        "frame": decode_frame, "entry_record": decode_entry_record, "log_entry": decode_log_entry,
        "block": decode_block, "log_state": decode_log_state}  # fmt: skip
    return decoders[kind](data, **additional)
