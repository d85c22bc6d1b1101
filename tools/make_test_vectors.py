"""Write the test vectors of the formats for clients: ``python -m tools.make_test_vectors``.

The vectors are in tests/vectors. `index.json` has the name, format, offset, size and expected value of each,
and `vectors.bin` has their bytes. The codecs of this project make the bytes. The expected values are written
here by hand, next to the inputs. docs/reference/formats.md, "Test vectors", describes the files.

tests/vectors/test_vectors.py makes the vectors again and compares them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack
from typing import Any

from xxhash import xxh3_64_intdigest

from distributedlog.bookie.format.entry import encode as encode_entry_record
from distributedlog.log.declarations.compression_codecs import CODEC_NAMES, ZSTD
from distributedlog.log.format.compression import Compression
from distributedlog.log.format.control_record import LastRecord, build_control_entry
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.packed_columns import check_packed
from distributedlog.log.format.record import (
    FLAG_TXID_AT_LINK,
    TXIDS_CONSTANT,
    TXIDS_IN_ENTRIES,
    TXIDS_INDEXED,
    build_entry,
    build_single_record_entry,
)
from distributedlog.log.format.record_headers import KeyedContent
from distributedlog.log.model.log_state import COUNT, MS, LogEnd, LogState
from distributedlog.proxy.protocol import proxy_messages, read_messages
from distributedlog.proxy.protocol.read_messages import SegmentHead
from distributedlog.runtime.disk.checksummed_blocks import HEADER_BYTES, padded_length, write_header
from distributedlog.runtime.interfaces.errors import LogNotFound, Moved
from distributedlog.runtime.interfaces.host import Buffer
from distributedlog.runtime.interfaces.principals import Welcome
from distributedlog.runtime.protocol import handshake
from distributedlog.runtime.protocol.frames import Op, envelope, error_body
from distributedlog.runtime.protocol.handshake import Hello

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "vectors"
INDEX_FILE, BYTES_FILE = "index.json", "vectors.bin"
CLUSTER = "00112233445566778899aabbccddeeff"
INCARNATION = "00000000000000a7"
WRITTEN_MS = 1_700_000_000_123
NONCE = bytes(range(16))
FEATURES = 127
"""The features of the HELLOs. A fixed number, so that a new feature changes no vector."""
IN_ENTRIES = SegmentHead(3, 1000, 10, -1, 1_600_000_000_000, TXIDS_IN_ENTRIES)
CONSTANT = SegmentHead(4, 2000, 0, 77, 1_800_000_000_000, TXIDS_CONSTANT)
INDEXED = SegmentHead(5, 3000, 0, 500, 0, TXIDS_INDEXED)
PACKED_PAYLOADS = [b"row %02d" % row for row in range(16)]
COMPRESSED_PAYLOADS = [
    b'{"id": %d, "state": "shipped", "text": "the same words"}' % row for row in range(40)
]
STATE = LogState(
    0xA7, "orders/eu", 1_700_000_000_000, 0, 5, "writer-a", "w1", 2, 4, 5, 13, 1003, DLSN(2, 1, 0), 3,
    quorums=(3, 3, 2), time_ms=1_700_000_001_000, bytes_total=900, txid_rule=COUNT, last_dlsn=DLSN(3, 7, 1),
)  # fmt: skip


@dataclass
class VectorFile:
    """The vectors so far: their rows of the index, and their bytes."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def add(self, name: str, form: str, vector: Buffer, value: Any, **inputs: Any) -> None:
        """Add one vector.

        Args:
            name: Its unique name.
            form: The format, as in the table of the page.
            vector: The bytes.
            value: The expected value, of types that JSON has.
            inputs: The values that a decoder needs in addition to the bytes.
        """
        place = {"name": name, "format": form, "offset": len(self.data), "size": len(vector)}
        self.rows.append({**place, **inputs, "value": value})
        self.data += vector

    def add_refused(self, name: str, form: str, vector: Buffer, **inputs: Any) -> None:
        """Add one vector that readers must refuse."""
        self.add(name, form, vector, None, **inputs, error=True)

    def add_frame(self, name: str, frame: Buffer, value: Any, **fields: int) -> None:
        """Add a complete frame whose envelope has these fields; the others are 0."""
        envelope_fields = {
            "op": 0,
            "flags": 0,
            "status": 0,
            "ident": 0,
            "time_left_ms": 0,
            **fields,
        }
        self.add(name, "frame", frame, {"envelope": envelope_fields, "body": value})

    def add_message(self, name: str, op: int, body: bytes, value: Any, **fields: int) -> None:
        """Add a frame with this body."""
        head = envelope(
            op,
            len(body),
            ident=fields.get("ident", 0),
            flags=fields.get("flags", 0),
            status=fields.get("status", 0),
            deadline_ms=fields.get("time_left_ms", 0),
        )
        self.add_frame(name, head + body, value, op=op, **fields)


def make_vectors() -> VectorFile:
    """Return all vectors, always with the same bytes."""
    vectors = VectorFile()
    _add_handshake(vectors)
    _add_append(vectors)
    _add_read(vectors)
    _add_log_entries(vectors)
    _add_block(vectors)
    _add_log_state(vectors)
    _add_refused(vectors)
    return vectors


def encode_index(vectors: VectorFile) -> str:
    """Return the content of the index."""
    rows = ",\n".join(json.dumps(row) for row in vectors.rows)
    return f"[\n{rows}\n]\n"


# --- frames ---------------------------------------------------------------------------------------


def _hello_value(**values: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("cluster", "node", "label", "durability", "expected", "listener"), "")
    return {
        "magic": "distributedlog",
        "protocol_min": 1,
        "protocol_max": 1,
        "features_required": [],
        "features": FEATURES,
        "frame_bytes_max": 5 * 1024 * 1024,
        **empty,
        **values,
    }


def _add_handshake(vectors: VectorFile) -> None:
    client = Hello(label="sample", features=FEATURES)
    vectors.add_message(
        "hello of a client",
        Op.HELLO,
        handshake.encode_hello(client, nonce=NONCE, methods=["token", "none"]),
        _hello_value(kind="client", label="sample", auth=["token", "none"], nonce=NONCE.hex()),
    )
    server = Hello(CLUSTER, "p1", "write-proxy", "proxy one", "fdatasync", features=FEATURES)
    names = {"cluster": CLUSTER, "node": "p1", "kind": "write-proxy", "label": "proxy one"}
    vectors.add_message(
        "hello of a write proxy",
        Op.HELLO,
        handshake.encode_hello(server, listener="public"),
        _hello_value(**names, durability="fdatasync", listener="public", auth=["none"]),
    )
    vectors.add_message("auth none", Op.AUTH, handshake.encode_auth(), {"method": "none"})
    vectors.add_message("answer to auth none", Op.AUTH, handshake.encode_welcome(Welcome()), None)
    vectors.add_message(
        "auth token",
        Op.AUTH,
        handshake.encode_auth("token", b"dlog1_c2FtcGxl"),
        {"method": "token", "proof": b"dlog1_c2FtcGxl".hex()},
    )
    vectors.add_message(
        "answer to auth token",
        Op.AUTH,
        handshake.encode_welcome(Welcome("user/etl", 2, 3, b"pass")),
        ["user/etl", 2, 3, b"pass".hex()],
    )
    error = LogNotFound('log "orders/eu" does not exist', "orders/eu")
    vectors.add_message(
        "reply with an error",
        Op.REPLY,
        error_body(error),
        ['log "orders/eu" does not exist', "orders/eu"],
        ident=7,
        status=510,
    )


def _add_append(vectors: VectorFile) -> None:
    proxies = [
        proxy_messages.MemberRow("write", "p1", "10.0.0.1", 4300, True),
        proxy_messages.MemberRow("read", "p2", "10.0.0.2", 4400, False),
    ]
    vectors.add_message(
        "members",
        Op.REPLY,
        proxy_messages.encode_members(proxies),
        [["write", "p1", "10.0.0.1", 4300, True], ["read", "p2", "10.0.0.2", 4400, False]],
        ident=1,
        flags=0x80,
    )
    vectors.add_message(
        "open of a plain producer",
        Op.PRODUCE_OPEN,
        proxy_messages.ProduceOpen(1, "default", "orders/eu").encode(),
        [1, "default", "orders/eu", "", "", 0, 0, "", True],
        ident=2,
        time_left_ms=15_000,
    )
    vectors.add_message(
        "open of a named producer",
        Op.PRODUCE_OPEN,
        proxy_messages.ProduceOpen(
            2, "default", "orders/eu", INCARNATION, "loader", 9, 120, "p3", False
        ).encode(),
        [2, "default", "orders/eu", INCARNATION, "loader", 9, 120, "p3", False],
        ident=3,
        time_left_ms=15_000,
    )
    vectors.add_message(
        "answer to an open",
        Op.REPLY,
        proxy_messages.ProduceOpened(INCARNATION, 9, True, 120, 1_048_576, "auto", 99).encode(),
        [INCARNATION, 9, True, 120, 1_048_576, "auto", 99],
        ident=3,
    )
    _add_produce_frames(vectors)
    _add_produce_answers(vectors)


def _produce_value(
    first_sequence: int, acked_through: int, payloads: Sequence[bytes], **columns: Any
) -> dict[str, Any]:
    value = {
        "first_sequence": first_sequence,
        "acked_through": acked_through,
        "payloads": [payload.hex() for payload in payloads],
    }
    names = ("expected", "txids", "record_flags", "keys", "headers")
    return {**value, **dict.fromkeys(names), **columns}


_KEYED_COLUMNS = {
    "keys": [b"k1".hex(), None, ""],
    "headers": [[[b"type".hex(), b"created".hex()], [b"type".hex(), ""]], [], []],
}


def _add_produce_frames(vectors: VectorFile) -> None:
    encode = proxy_messages.encode_produce
    vectors.add_frame(
        "produce one record",
        encode(1, 0, 0, None, [b"hello"]),
        _produce_value(0, 0, [b"hello"]),
        op=Op.PRODUCE,
        ident=1,
    )
    vectors.add_frame(
        "produce with txids and record flags",
        encode(1, 1, 1, [10, 11, 11], [b"a", b"", b"ccc"], record_flags=b"\1\1\0"),
        _produce_value(1, 1, [b"a", b"", b"ccc"], txids=[10, 11, 11], record_flags=[1, 1, 0]),
        op=Op.PRODUCE,
        ident=1,
    )
    vectors.add_frame(
        "produce at an expected position",
        encode(1, 4, 4, None, [b"next"], expect=(3, 13, 2)),
        _produce_value(4, 4, [b"next"], expected=[3, 13, 2]),
        op=Op.PRODUCE,
        ident=1,
    )
    contents: list[Any] = [
        KeyedContent(b"one", b"k1", ((b"type", b"created"), (b"type", b"")),),
        b"two",
        KeyedContent(b"three", b"", ()),
    ]  # fmt: skip
    vectors.add_frame(
        "produce with all columns",
        encode(
            1,
            5,
            3,
            [12, 12, 13],
            contents,
            record_flags=b"\1\0\0",
            expect=(3, 13, 2),
            has_keyed=True,
        ),
        _produce_value(
            5,
            3,
            [b"one", b"two", b"three"],
            expected=[3, 13, 2],
            txids=[12, 12, 13],
            record_flags=[1, 0, 0],
            **_KEYED_COLUMNS,
        ),
        op=Op.PRODUCE,
        ident=1,
    )
    vectors.add_frame(
        "produce with keys and headers",
        encode(2, 120, 120, None, contents, has_keyed=True),
        _produce_value(
            120,
            120,
            [b"one", b"two", b"three"],
            **_KEYED_COLUMNS,
        ),
        op=Op.PRODUCE,
        ident=2,
    )


def _add_produce_answers(vectors: VectorFile) -> None:
    names = ("stream", "records", "first_sequence", "segment", "entry", "slot", "flags", "txid")
    acks = [
        (1, 1, 0, 3, 6, 0, 0, 10),
        (1, 3, 1, 3, 13, 0, 1, 10),
        (2, 3, 120, 0, 0, 0, 2, 0),
    ]
    vectors.add_frame(
        "acknowledgements",
        proxy_messages.encode_acks([proxy_messages.ACK.pack(*ack) for ack in acks]),
        [dict(zip(names, ack, strict=True)) for ack in acks],
        op=Op.PRODUCE_ACKS,
    )
    refusal = proxy_messages.Refusal(Moved("another proxy has the log", "p4"), 4, 7, 250)
    vectors.add_frame(
        "refusal",
        refusal.encode_frame(1),
        ["another proxy has the log", "p4", 4, 7, 250],
        op=Op.PRODUCE_REFUSED,
        ident=1,
        status=2093,
    )
    vectors.add_message(
        "commit", Op.PRODUCE_COMMIT, proxy_messages.encode_commit(1), {"stream": 1}, ident=4
    )
    for name, op in (("publish", Op.PRODUCE_PUBLISH), ("close", Op.PRODUCE_CLOSE)):
        vectors.add_frame(name, proxy_messages.encode_stream_notice(op, 1), None, op=op, ident=1)


def _add_read(vectors: VectorFile) -> None:
    subscribe = read_messages.Subscribe("default", "orders/eu", to=DLSN(3, 20, 0), credit=65_536)
    value = {
        "path": "default",
        "name": "orders/eu",
        "incarnation": "",
        "resumes": False,
        "at": "earliest",
        "dlsn": None,
        "sequence_id": -1,
        "proven": False,
        "txid": None,
        "since_ms": None,
        "to": [3, 20, 0],
        "to_end": False,
        "credit": 65_536,
    }
    vectors.add_message("subscribe", Op.SUBSCRIBE, subscribe.encode(), value, ident=5)
    resumed = read_messages.Subscribe(
        "default", "orders/eu", INCARNATION, True, "earliest", DLSN(3, 7, 1), 1002, True
    )
    changes = {"incarnation": INCARNATION, "resumes": True, "dlsn": [3, 7, 1], "sequence_id": 1002}
    vectors.add_message(
        "subscribe again at a position",
        Op.SUBSCRIBE,
        resumed.encode(),
        {**value, **changes, "proven": True, "to": None, "credit": 1_048_576},
        ident=6,
    )
    vectors.add_message(
        "answer to subscribe",
        Op.REPLY,
        read_messages.Subscribed(
            "orders/eu", INCARNATION, DLSN(3, 6, 0), 1000, None, False
        ).encode(),
        {
            "name": "orders/eu",
            "incarnation": INCARNATION,
            "start": [3, 6, 0],
            "sequence_id": 1000,
            "to": None,
            "nothing": False,
        },
        ident=5,
    )
    first, second = _record(16, _single()), _record(17, _with_keys())
    vectors.add_message(
        "entries",
        Op.ENTRIES,
        IN_ENTRIES.encode() + first + second,
        {"segment": _segment_value(IN_ENTRIES), "records": [*_SINGLE_VALUES, *_KEYED_VALUES]},
        ident=5,
    )
    vectors.add_message("credit", Op.CREDIT, read_messages.encode_credit(131_072), 131_072, ident=5)
    vectors.add_message("end of a sealed log", Op.SUBSCRIPTION_ENDED, b"", None, ident=5)
    vectors.add_message(
        "end of a subscription with an error",
        Op.SUBSCRIPTION_ENDED,
        error_body(LogNotFound("the log was deleted")),
        ["the log was deleted", ""],
        ident=5,
        status=510,
    )
    vectors.add_message("unsubscribe", Op.UNSUBSCRIBE, b"", None, ident=5)


# --- entries --------------------------------------------------------------------------------------


def _record_value(
    segment: SegmentHead, place: tuple[int, int, int], txid: int, payload: bytes, **more: Any
) -> dict[str, Any]:
    """Return the value of the record with this entry, slot and number in the segment."""
    entry, slot, index = place
    return {
        "dlsn": [segment.segment, entry, slot],
        "sequence_id": segment.start_sequence_id + index,
        "txid": txid,
        "time_ms": max(WRITTEN_MS, segment.time_floor_ms),
        "payload": payload.hex(),
        "key": None,
        "headers": [],
        "more": False,
        **more,
    }


def _segment_value(head: SegmentHead) -> dict[str, int]:
    return {
        "segment": head.segment,
        "start_sequence_id": head.start_sequence_id,
        "base_entry": head.base_entry,
        "txid_base": head.txid_base,
        "time_floor_ms": head.time_floor_ms,
        "txid_rule": head.txid_rule,
    }


def _single() -> bytes:
    return b"".join(build_single_record_entry(10, b"hello", 0, WRITTEN_MS)[0])


def _with_keys() -> bytes:
    buffers, _ = build_entry(
        [11, 13],
        [b"one", b"two"],
        records_before=1,
        written_ms=WRITTEN_MS,
        keys=[b"k1", None],
        headers=[((b"type", b"created"), (b"type", b"")), ()],
    )
    return b"".join(buffers)


def _record(entry: int, log_entry: bytes) -> bytes:
    return bytes(encode_entry_record(900, entry, 4096, entry - 1, [log_entry], len(log_entry)))


_SINGLE_VALUES = [_record_value(IN_ENTRIES, (6, 0, 0), 10, b"hello")]
_KEYED_VALUES = [
    _record_value(
        IN_ENTRIES,
        (7, 0, 1),
        11,
        b"one",
        key=b"k1".hex(),
        headers=[[b"type".hex(), b"created".hex()], [b"type".hex(), ""]],
    ),
    _record_value(IN_ENTRIES, (7, 1, 2), 13, b"two"),
]


def _add_log_entries(vectors: VectorFile) -> None:
    segment = _segment_value(IN_ENTRIES)
    value = {
        "ledger": 900,
        "entry": 16,
        "length_so_far": 4096,
        "lac": 15,
        "records": _SINGLE_VALUES,
    }
    vectors.add("entry record", "entry_record", _record(16, _single()), value, segment=segment)
    _add_log_entry(vectors, "one record", IN_ENTRIES, 16, _single(), _SINGLE_VALUES)
    _add_log_entry(vectors, "keys and headers", IN_ENTRIES, 17, _with_keys(), _KEYED_VALUES)
    last, producer_section = LastRecord(7, 1, 10), (3, 0, b"skipped")
    buffers, _ = build_control_entry(
        last, 13, records_before=3, written_ms=WRITTEN_MS, sections=[producer_section]
    )
    _add_log_entry(vectors, "control entry", IN_ENTRIES, 18, b"".join(buffers), [])
    buffers, _ = build_entry(
        [20, 20, 15],
        [b"s1", b"s2", b""],
        records_before=3,
        written_ms=WRITTEN_MS,
        record_flags=b"\1\0\0",
        sections=[(3, 0, b"skip")],
        max_txid=20,
    )
    values = [
        _record_value(IN_ENTRIES, (9, 0, 3), 20, b"s1", more=True),
        _record_value(IN_ENTRIES, (9, 1, 4), 20, b"s2"),
        _record_value(IN_ENTRIES, (9, 2, 5), 15, b""),
    ]
    _add_log_entry(vectors, "record set", IN_ENTRIES, 19, b"".join(buffers), values)
    for name, head in (("constant txid", CONSTANT), ("indexed txids", INDEXED)):
        buffers, _ = build_entry(
            [0, 0], [b"x", b"y"], records_before=6, written_ms=WRITTEN_MS, flags=FLAG_TXID_AT_LINK
        )
        step = head.txid_rule == TXIDS_INDEXED
        values = [
            _record_value(head, (2, slot, 6 + slot), head.txid_base + step * (6 + slot), payload)
            for slot, payload in enumerate((b"x", b"y"))
        ]
        _add_log_entry(vectors, name, head, 2, b"".join(buffers), values)
    _add_large_entries(vectors)


def _add_large_entries(vectors: VectorFile) -> None:
    txids = b"".join((100 + row).to_bytes(8, "little") for row in range(len(PACKED_PAYLOADS)))
    ends = [6 * row for row in range(len(PACKED_PAYLOADS) + 1)]
    offsets = b"".join(end.to_bytes(4, "little") for end in ends)
    packed = check_packed(txids, offsets, b"".join(PACKED_PAYLOADS))
    buffers, _ = packed.build_entry(records_before=6, written_ms=WRITTEN_MS)
    values = [
        _record_value(IN_ENTRIES, (10, slot, 6 + slot), 100 + slot, payload)
        for slot, payload in enumerate(PACKED_PAYLOADS)
    ]
    _add_log_entry(vectors, "sixteen records", IN_ENTRIES, 20, b"".join(buffers), values)
    for codec, codec_name in enumerate(CODEC_NAMES[1:], start=1):
        entry = 20 + codec
        buffers, size = build_entry(
            [200] * len(COMPRESSED_PAYLOADS),
            COMPRESSED_PAYLOADS,
            records_before=22,
            written_ms=WRITTEN_MS,
            keys=[None, *[b"key"] * (len(COMPRESSED_PAYLOADS) - 1)],
        )
        compressed, compressed_size = Compression("sample", codec_name).compress(buffers, size)
        assert compressed_size < size, "the codec saves enough"
        values = [
            _record_value(IN_ENTRIES, (entry - 10, slot, 22 + slot), 200, payload)
            for slot, payload in enumerate(COMPRESSED_PAYLOADS)
        ]
        for row in values[1:]:
            row["key"] = b"key".hex()
        name = f"compressed with {codec_name}"
        _add_log_entry(vectors, name, IN_ENTRIES, entry, b"".join(compressed), values)
    assert codec == ZSTD, "the codecs are numbered from 1 without gaps"


def _add_log_entry(
    vectors: VectorFile, name: str, head: SegmentHead, entry: int, log_entry: bytes, values: Any
) -> None:
    vectors.add(name, "log_entry", log_entry, values, segment=_segment_value(head), entry=entry)


# --- stored formats -------------------------------------------------------------------------------


def _add_block(vectors: VectorFile) -> None:
    place = {"file_number": 7, "file_offset": 8192, "seed": 0x1234_5678_9ABC_DEF0}
    header = {"kind": 2, "start_count": 3, "note": 1, "sequence": 42, "durable_to": 40}
    payload = b"".join(b"%d," % number for number in range(100))
    block = bytearray(padded_length(len(payload)))
    block[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload
    write_header(block, 0, payload_bytes=len(payload), **header, **place)
    vectors.add("block", "block", block, {**header, "payload": payload.hex()}, **place)


def _add_log_state(vectors: VectorFile) -> None:
    value = [
        2, 0xA7, "orders/eu", 1_700_000_000_000, 0, 5, "writer-a", "w1", 2, 4, 5, 13, 1003, [2, 1, 0], 3,
        False, False, [3, 3, 2], None, 1_700_000_001_000, 900, "count", False, 2, 0, [3, 7, 1],
    ]  # fmt: skip
    vectors.add("state of a log", "log_state", STATE.encode(), value)
    deleted = replace(
        STATE, quorums=None, deleting=True, end=LogEnd(DLSN(4, 0, 0), 1003, True), bytes_total=-1,
        last_dlsn=None, txid_policy=MS,
    )  # fmt: skip
    changes = {16: True, 17: None, 18: [4, 0, 0, 1003, True], 20: -1, 25: None}
    fields = [changes.get(place, value[place]) for place in range(len(value))]
    vectors.add(
        "state of a log that is being deleted", "log_state", deleted.encode(), [*fields, MS]
    )


# --- refused bytes --------------------------------------------------------------------------------


def _add_refused(vectors: VectorFile) -> None:
    produce = bytearray(proxy_messages.encode_produce(1, 0, 0, None, [b"hello"]))
    produce[-1] ^= 1
    vectors.add_refused("produce with a changed byte", "frame", produce)
    body = pack("<QQIII", 0, 0, 1, 32, 5) + b"hello"
    head = envelope(Op.PRODUCE, 8 + len(body), ident=1)
    unknown_flag = head + pack("<Q", xxh3_64_intdigest(body)) + body
    vectors.add_refused("produce with an unknown flag", "frame", unknown_flag)
    segment = _segment_value(IN_ENTRIES)
    record = bytearray(_record(16, _single()))
    record[-8] ^= 1
    vectors.add_refused("entry record with a changed byte", "entry_record", record, segment=segment)
    entries: list[tuple[str, dict[str, Any]]] = [
        ("log entry with a critical section", {"sections": [(9, 1, b"new")]}),
        ("log entry with an unknown flag", {"flags": 0x0400}),
        ("log entry with the unused flag", {"flags": 0x0020}),
        ("log entry with an unknown codec", {"flags": 3}),
        ("log entry with an unknown record flag", {"record_flags": b"\0\2"}),
        ("log entry that ends inside a set", {"record_flags": b"\0\1"}),
    ]
    for name, changes in entries:
        buffers, _ = build_entry(
            [30, 31], [b"x", b"y"], records_before=6, written_ms=WRITTEN_MS, **changes
        )
        log_entry = b"".join(buffers)
        vectors.add_refused(name, "log_entry", log_entry, segment=segment, entry=23)


def main() -> None:
    """Write both files."""
    vectors = make_vectors()
    (FOLDER / INDEX_FILE).write_text(encode_index(vectors))
    (FOLDER / BYTES_FILE).write_bytes(vectors.data)


if __name__ == "__main__":
    main()
