"""The layouts of the frame bodies between clients and proxies (pure).

All numbers are little-endian. A *stream* carries one producer's frames to one log over one connection. The
client assigns its number, and does not use it again on the connection. Sequences count records, from 0 at
the first frame of a plain producer's stream. A frame is never divided or merged on its way into the log.

The operations are::

    MEMBERS       nothing                          REPLY flag 128, at once and at each change: msgpack rows
    PRODUCE_OPEN  msgpack [stream, path, log, incarnation, producer, number, through, suspect, create]
      REPLY       msgpack [incarnation, number, known, next sequence, window bytes, txid rule, last txid]
    PRODUCE       ident = stream | xxh3_64 of the following u64 | first sequence u64 | acked through u64
                  | count u32 | flags u32                                                       32 bytes
                  | expected segment u64, entry i64, slot u64 (flag 2) | txids i64[count] (flag 1)
                  | record flags u8[count] (flag 4) | ends of the payloads u32[count] | payloads
                  | keys (flag 8) | headers (flag 16), as in an entry; only to a proxy with
                  FEATURE_RECORD_HEADERS
    PRODUCE_ACKS  ident = 0 | n x (stream u32 | records u32 | first sequence u64 | segment u64 | entry u64
                  | first slot u32 | flags u32 | first txid i64)                                48 bytes each
                  each acknowledges one frame; flag 1: stored before, flag 2: its position is unknown
    PRODUCE_REFUSED  ident = stream, status = code | msgpack [message, detail, unknown from, refused from,
                  retry ms]: unanswered frames from the first sequence on may be stored, those from the
                  second sequence on are not; the stream accepts no more frames
    PRODUCE_PUBLISH  ident = stream | nothing: make acknowledged records readable
    PRODUCE_COMMIT   stream u32: as PRODUCE_PUBLISH, to a proxy with FEATURE_COMMIT
      REPLY          nothing: readers see every acknowledged record of the log
    PRODUCE_CLOSE    ident = stream | nothing
    LOG_CALL      msgpack [path, call, log, incarnation, arguments]      REPLY msgpack, by call
    PROXY_CALL    msgpack [call, arguments]                              REPLY msgpack, by call
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import le
from typing import Any, NamedTuple

import xxhash

from ...log.format.record import RECORD_BYTES_MAX, TXID_MAX
from ...log.format.record_headers import (
    FLAG_HEADERS,
    FLAG_KEYS,
    decode_keyed,
    encode_keyed,
    join_contents,
    split_contents,
)
from ...log.model.stored_settings import COUNT_MAX, METADATA_BYTES_MAX
from ...metadata.model.acl_records import REPORTED_DENIALS_MAX
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, ProtocolError, from_code
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import ENVELOPE, ENVELOPE_BYTES, ERROR_CHARS_MAX, Op, envelope, pack
from ...runtime.protocol.schema import (
    Form,
    SchemaError,
    blob,
    decode_message,
    flag,
    list_of_any,
    mapping,
    number,
    one_of,
    optional,
    row,
    rows,
    text,
)

NAME_BYTES_MAX = 1024
"""The maximum characters of a log's name or a namespace's path."""
PRODUCER_CHARS_MAX = 255
SEQUENCE_MAX = (1 << 62) - 1
STREAM_MAX = (1 << 32) - 1
MEMBERS_MAX = 1000
SEGMENTS_MAX = 1000
"""The maximum segments in a log's description."""
WAIT_MAX_S = 60.0
OWNED_LOGS_PER_PAGE = 1000
"""The maximum logs of a proxy in one reply."""
RECORDS_MAX = 65_536
"""The maximum records of a frame."""
FRAME_BYTES = 256 * 1024
"""The approximate size of a frame, unless a single record is larger."""
PRODUCE_BYTES_MAX = 2 * 1024 * 1024
"""The maximum bytes of a PRODUCE body: the largest record set and its columns."""

PERMIT_RECORD_HEADERS = "permit_record_headers"
"""The call that records in a log's state that its entries may have keys and headers."""
FLAG_TXIDS = 1
FLAG_EXPECT = 2
FLAG_RECORD_FLAGS = 4
FLAG_PRODUCE_KEYS = 8
FLAG_PRODUCE_HEADERS = 16
_FLAGS_KEYED = FLAG_PRODUCE_KEYS | FLAG_PRODUCE_HEADERS
_ENTRY_FLAGS_SHIFT = 5
"""The number of bits by which the flags of keys and headers in an entry are above those of a frame."""
ACK_STORED_BEFORE = 1
ACK_NO_POSITION = 2

assert (FLAG_KEYS, FLAG_HEADERS) == (
    FLAG_PRODUCE_KEYS << _ENTRY_FLAGS_SHIFT,
    FLAG_PRODUCE_HEADERS << _ENTRY_FLAGS_SHIFT,
)

_DIGEST = struct.Struct("<Q")
_HEAD = struct.Struct("<QQII")
HEAD_BYTES = _DIGEST.size + _HEAD.size
_EXPECT = struct.Struct("<Qqq")
_SINGLE_RECORD = struct.Struct("<QQIII")
"""The body after the digest of a single record without a txid, the most frequent frame if many logs are
busy."""
_SINGLE_RECORD_BODY = struct.Struct("<QQQIII")
_SINGLE_RECORD_HEAD = struct.Struct(ENVELOPE.format + "Q")
SINGLE_RECORD_BYTES = _DIGEST.size + _SINGLE_RECORD.size
ACK = struct.Struct("<IIQQQIIq")

_SEQUENCE = number(0, SEQUENCE_MAX)
_OPEN = row(
    number(1, STREAM_MAX),
    text(NAME_BYTES_MAX),
    text(NAME_BYTES_MAX, 1),
    text(16),
    text(PRODUCER_CHARS_MAX),
    number(),
    _SEQUENCE,
    text(64),
    flag,
)
_OPENED = row(text(16), number(), flag, _SEQUENCE, number(), text(16), number(-1))
_REFUSAL = row(
    text(ERROR_CHARS_MAX), text(ERROR_CHARS_MAX), _SEQUENCE, _SEQUENCE, number(0, 3_600_000)
)
_MEMBERS = rows(
    row(one_of("write", "read"), text(64, 1), text(255, 1), number(1, 65_535), flag), MEMBERS_MAX
)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A proxy in the list for clients, with the address for the listener that the client uses."""

    kind: str
    """``write`` or ``read``."""
    id: str
    host: str
    port: int
    accepting: bool
    """Whether the proxy accepts additional logs."""


def encode_members(members: Sequence[MemberRow]) -> bytes:
    """Encode the reply to MEMBERS."""
    return pack(
        [[member.kind, member.id, member.host, member.port, member.accepting] for member in members]
    )


def decode_members(body: Buffer) -> list[MemberRow]:
    """Decode the reply to MEMBERS.

    Raises:
        ProtocolError: The body is invalid.
    """
    return [
        MemberRow(*member_fields) for member_fields in decode_message(body, _MEMBERS, "MEMBERS")
    ]


@dataclass(frozen=True, slots=True)
class ProduceOpen:
    """The request to open a stream to a log."""

    stream: int
    path: str
    log: str
    incarnation: str = ""
    """The incarnation of the log; "" accepts any log of this name."""
    producer: str = ""
    """The name of a producer whose frames are stored once; "" for a plain producer."""
    producer_number: int = 0
    """The producer's number from an earlier opening by this client; 0 if there is none."""
    acked_through: int = 0
    """The client has the outcomes of all lower sequences."""
    suspect_proxy_id: str = ""
    """The proxy that should have the log and could not be reached; "" if there is none."""
    create: bool = True
    """Whether a missing log is created."""

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(
            [
                self.stream,
                self.path,
                self.log,
                self.incarnation,
                self.producer,
                self.producer_number,
                self.acked_through,
                self.suspect_proxy_id,
                self.create,
            ]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "ProduceOpen":
        """Decode a request.

        Raises:
            ProtocolError: The body is invalid.
        """
        return cls(*decode_message(body, _OPEN, "PRODUCE_OPEN"))


@dataclass(frozen=True, slots=True)
class ProduceOpened:
    """The reply to PRODUCE_OPEN."""

    incarnation: str
    producer_number: int
    has_stored_records: bool
    """Whether the log has records of this producer."""
    next_sequence: int
    """The sequence of the first record that the owner has not accepted."""
    window_bytes: int
    txid_rule: str
    last_txid: int

    def encode(self) -> bytes:
        """Encode the reply as a frame body."""
        return pack(
            [
                self.incarnation,
                self.producer_number,
                self.has_stored_records,
                self.next_sequence,
                self.window_bytes,
                self.txid_rule,
                self.last_txid,
            ]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "ProduceOpened":
        """Decode a reply.

        Raises:
            ProtocolError: The body is invalid.
        """
        return cls(*decode_message(body, _OPENED, "the reply to PRODUCE_OPEN"))


# --- records --------------------------------------------------------------------------------------


class ProducedFrame(NamedTuple):
    """The records of a PRODUCE."""

    first_sequence: int
    """The sequence of the first record."""
    acked_through: int
    txids: Sequence[int] | None
    payloads: list[bytes]
    """A `KeyedContent` for a record with a key or headers."""
    record_flags: bytes | None
    expect: tuple[int, int, int] | None
    """Segment, entry and slot of the required last record of the log; None for any."""
    bytes: int
    """The size of the frame body."""


def encode_produce(
    stream: int,
    first_sequence: int,
    acked_through: int,
    txids: Sequence[int] | None,
    payloads: Sequence[Buffer],
    *,
    record_flags: Buffer | None = None,
    expect: tuple[int, int, int] | None = None,
    has_keyed: bool = False,
) -> bytes:
    """Encode a complete PRODUCE frame, with envelope and digest.

    With ``has_keyed``, some payloads are a `KeyedContent`.
    """
    keyed_flags, keyed_columns = 0, b""
    if has_keyed:
        payloads, keys, headers = split_contents(payloads)
        entry_flags, keyed_columns = encode_keyed(keys, headers)
        keyed_flags = entry_flags >> _ENTRY_FLAGS_SHIFT
    count = len(payloads)
    if (
        count == 1
        and txids is None
        and expect is None
        and record_flags is None
        and not keyed_columns
    ):
        payload = payloads[0]
        size = len(payload)
        body = _SINGLE_RECORD.pack(first_sequence, acked_through, 1, 0, size) + payload
        digest = xxhash.xxh3_64_intdigest(body)
        size += SINGLE_RECORD_BYTES
        return (
            _SINGLE_RECORD_HEAD.pack(ENVELOPE_BYTES + size, Op.PRODUCE, 0, 0, stream, 0, 0, digest)
            + body
        )
    flags = (
        (0 if txids is None else FLAG_TXIDS)
        | (0 if expect is None else FLAG_EXPECT)
        | (0 if record_flags is None else FLAG_RECORD_FLAGS)
        | keyed_flags
    )
    body = b"".join(
        [
            _HEAD.pack(first_sequence, acked_through, count, flags),
            b"" if expect is None else _EXPECT.pack(*expect),
            b"" if txids is None else struct.pack(f"<{count}q", *txids),
            b"" if record_flags is None else record_flags,
            struct.pack(f"<{count}I", *accumulate(map(len, payloads))),
            *payloads,
            keyed_columns,
        ]
    )
    head = envelope(Op.PRODUCE, _DIGEST.size + len(body), ident=stream)
    return b"".join([head, _DIGEST.pack(xxhash.xxh3_64_intdigest(body)), body])


def decode_produce(body: memoryview) -> ProducedFrame:
    """Decode the body of a PRODUCE.

    Raises:
        ProtocolError: The body is invalid.
        CorruptData: The digest does not match. Nothing of the frame may be used.
    """
    size = len(body)
    if SINGLE_RECORD_BYTES <= size <= SINGLE_RECORD_BYTES + RECORD_BYTES_MAX:
        digest, first_sequence, acked_through, count, flags, end = _SINGLE_RECORD_BODY.unpack_from(
            body
        )
        if (
            count == 1
            and not flags
            and end == size - SINGLE_RECORD_BYTES
            and acked_through <= first_sequence < SEQUENCE_MAX
            and xxhash.xxh3_64_intdigest(body[_DIGEST.size :]) == digest
        ):  # otherwise the general checks below apply
            return ProducedFrame(
                first_sequence,
                acked_through,
                None,
                [bytes(body[SINGLE_RECORD_BYTES:])],
                None,
                None,
                size,
            )
    if not HEAD_BYTES <= size <= PRODUCE_BYTES_MAX:
        raise ProtocolError(f"PRODUCE of {size} bytes")
    (digest,) = _DIGEST.unpack_from(body)
    if xxhash.xxh3_64_intdigest(body[_DIGEST.size :]) != digest:
        raise CorruptData(
            f"a frame of {size} bytes was corrupted in transit, and nothing of it is stored"
        )
    first_sequence, acked_through, count, flags = _HEAD.unpack_from(body, _DIGEST.size)
    if flags & ~(FLAG_TXIDS | FLAG_EXPECT | FLAG_RECORD_FLAGS | _FLAGS_KEYED):
        raise ProtocolError(f"PRODUCE with flags {flags:#x}")
    if (
        not 1 <= count <= RECORDS_MAX
        or first_sequence + count > SEQUENCE_MAX
        or acked_through > first_sequence
    ):
        raise ProtocolError(
            f"PRODUCE of {count} records from {first_sequence}, acknowledged through {acked_through}"
        )
    expect, txids, record_flags, ends, position = _unpack_columns(body, count, flags)
    payloads_end = position + ends[-1] if flags & _FLAGS_KEYED else size
    if (
        ends[-1] != payloads_end - position
        or payloads_end > size
        or not all(map(le, ends, ends[1:]))
    ):
        raise ProtocolError(
            f"PRODUCE: {size - position} bytes of payloads that {count} records do not fill"
        )
    if txids is not None and not (min(txids) >= 0 and max(txids) <= TXID_MAX):
        raise ProtocolError(f"PRODUCE with a txid that is not 0 to {TXID_MAX}")
    data = bytes(body[position:payloads_end])
    payloads = [data[a:b] for a, b in pairwise((0, *ends))] if count > 1 else [data]
    if size - position > RECORD_BYTES_MAX and max(map(len, payloads)) > RECORD_BYTES_MAX:
        raise ProtocolError(f"PRODUCE with a record above {RECORD_BYTES_MAX} bytes")
    if flags & _FLAGS_KEYED:
        payloads = _join_keyed(payloads, body[payloads_end:], flags)
    return ProducedFrame(first_sequence, acked_through, txids, payloads, record_flags, expect, size)


def _join_keyed(payloads: list[bytes], keyed_columns: memoryview, flags: int) -> list[bytes]:
    """Return the payloads, with a `KeyedContent` for a record with a key or headers."""
    try:
        keys, headers = decode_keyed(
            keyed_columns, (flags & _FLAGS_KEYED) << _ENTRY_FLAGS_SHIFT, len(payloads)
        )
    except CorruptData as error:
        raise ProtocolError(f"PRODUCE: {error}") from None
    contents = join_contents(payloads, keys, headers)
    if max(map(len, contents)) > RECORD_BYTES_MAX:
        raise ProtocolError(
            f"PRODUCE with a record above {RECORD_BYTES_MAX} bytes, counting its key and headers"
        )
    return contents


def _unpack_columns(
    body: memoryview, count: int, flags: int
) -> tuple[tuple[int, int, int] | None, tuple[int, ...] | None, bytes | None, tuple[int, ...], int]:
    """Return the expected position, txids, record flags and ends, and the offset after them."""
    position = HEAD_BYTES
    expect = txids = record_flags = None
    try:
        if flags & FLAG_EXPECT:
            expect = _EXPECT.unpack_from(body, position)
            position += _EXPECT.size
        if flags & FLAG_TXIDS:
            txids = struct.unpack_from(f"<{count}q", body, position)
            position += 8 * count
        if flags & FLAG_RECORD_FLAGS:
            record_flags = bytes(body[position : position + count])
            position += count
        ends = struct.unpack_from(f"<{count}I", body, position)
    except struct.error:
        raise ProtocolError(f"PRODUCE of {count} records ends within its columns") from None
    return expect, txids, record_flags, ends, position + 4 * count


class Ack(NamedTuple):
    """The acknowledgement of one stored frame."""

    stream: int
    records: int
    first_sequence: int
    """The sequence of its first record."""
    segment: int
    entry: int
    slot: int
    """The slot of its first record."""
    flags: int
    first_txid: int


def encode_acks(items: Sequence[bytes]) -> bytes:
    """Encode a complete PRODUCE_ACKS frame of packed items (`ACK`)."""
    return b"".join([envelope(Op.PRODUCE_ACKS, ACK.size * len(items)), *items])


def decode_acks(body: memoryview) -> Iterator[Ack]:
    """Decode the body of a PRODUCE_ACKS.

    Raises:
        ProtocolError: The body is invalid.
    """
    if not len(body) or len(body) % ACK.size:
        raise ProtocolError(f"PRODUCE_ACKS of {len(body)} bytes")
    return map(Ack._make, ACK.iter_unpack(body))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a stream accepts no more frames, and the outcome of its unanswered frames."""

    error: DistributedLogError
    unknown_from: int
    """Records from this sequence on may be stored."""
    refused_from: int
    """Records from this sequence on are not stored."""
    retry_ms: int = 0

    def encode_frame(self, stream: int) -> bytes:
        """Encode a complete PRODUCE_REFUSED frame."""
        message_text, error = str(self.error)[:ERROR_CHARS_MAX], self.error
        body = pack(
            [
                message_text,
                error.detail,
                self.unknown_from,
                self.refused_from,
                min(self.retry_ms, 3_600_000),
            ]
        )
        return envelope(Op.PRODUCE_REFUSED, len(body), ident=stream, status=error.code) + body

    @classmethod
    def decode(cls, status: int, body: Buffer) -> "Refusal":
        """Decode the body of a PRODUCE_REFUSED.

        Raises:
            ProtocolError: The body is invalid.
        """
        message_text, detail, unknown_from, refused_from, retry_ms = decode_message(
            body, _REFUSAL, "PRODUCE_REFUSED"
        )
        if unknown_from > refused_from:
            raise ProtocolError(
                f"PRODUCE_REFUSED: unknown from {unknown_from}, refused from {refused_from}"
            )
        return cls(from_code(status, message_text, detail), unknown_from, refused_from, retry_ms)


def encode_stream_notice(op: int, stream: int) -> bytes:
    """Encode a complete PRODUCE_PUBLISH or PRODUCE_CLOSE frame."""
    return envelope(op, 0, ident=stream)


_COMMIT = struct.Struct("<I")


def encode_commit(stream: int) -> bytes:
    """Return the body of a PRODUCE_COMMIT."""
    return _COMMIT.pack(stream)


def decode_commit(body: Buffer) -> int:
    """Return the stream of a PRODUCE_COMMIT.

    Raises:
        ProtocolError: The body is invalid.
    """
    if len(body) != _COMMIT.size:
        raise ProtocolError(f"PRODUCE_COMMIT: {len(body)} bytes instead of {_COMMIT.size}")
    stream: int = _COMMIT.unpack(body)[0]
    return stream


# --- calls ----------------------------------------------------------------------------------------


def _setting(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise SchemaError("a setting is a number, a text, true, false or nil")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= WAIT_MAX_S:
        raise SchemaError(f"not 0 to {WAIT_MAX_S:g} seconds")
    return float(value)


_SETTINGS = mapping(_setting, COUNT_MAX)
_NOTES = mapping(optional(blob(METADATA_BYTES_MAX)), COUNT_MAX)
_POSITION = row(number(1), number(), number())
_OPTIONAL_POSITION = optional(_POSITION)
_OPTIONAL_NUMBER = optional(number())

LOG_CALLS: dict[str, Form] = {
    "create": row(one_of("standard", "all"), _SETTINGS, _NOTES, text(16)),
    "exists": row(),
    "page": row(text(1024), text(1024), number(1, 10_000)),
    "rename": row(text(1024, 1)),
    "delete": row(_seconds),
    "truncate": row(_OPTIONAL_POSITION, _OPTIONAL_NUMBER, _OPTIONAL_NUMBER),
    "seal": row(flag, optional(_seconds)),
    "describe": row(number(1, SEGMENTS_MAX)),
    "settings": row(),
    PERMIT_RECORD_HEADERS: row(),
    "set": row(_SETTINGS, _NOTES),
    "find": row(_OPTIONAL_NUMBER, _OPTIONAL_NUMBER),
    "count": row(_OPTIONAL_POSITION, _OPTIONAL_POSITION),
}
"""The form of the arguments of each call about a log or namespace."""
PROXY_CALLS: dict[str, Form] = {
    "owned": row(text(2 * NAME_BYTES_MAX), number(1, OWNED_LOGS_PER_PAGE)),
    "drain": row(),
    "move": row(text(NAME_BYTES_MAX), text(NAME_BYTES_MAX, 1), text(64)),
    "take": row(text(NAME_BYTES_MAX), text(NAME_BYTES_MAX, 1), text(16, 16)),
    "would_refuse": row(),
}
"""The form of the arguments of each call to one proxy. A read proxy accepts only the last one."""


def _decode_arguments(calls: Mapping[str, Form], name: str, values: Any) -> tuple[Any, ...]:
    form = calls.get(name)
    if form is None:
        raise SchemaError("an unknown call")
    arguments: tuple[Any, ...] = form(values)
    return arguments


def _log_call(value: Any) -> tuple[Any, ...]:
    path, call, name, incarnation, values = _LOG_CALL(value)
    return path, call, name, incarnation, _decode_arguments(LOG_CALLS, call, values)


def _proxy_call(value: Any) -> tuple[Any, ...]:
    call, values = _PROXY_CALL(value)
    return call, _decode_arguments(PROXY_CALLS, call, values)


_LOG_CALL = row(text(NAME_BYTES_MAX), text(32, 1), text(NAME_BYTES_MAX), text(16), list_of_any)
_PROXY_CALL = row(text(32, 1), list_of_any)


@dataclass(frozen=True, slots=True)
class LogCall:
    """A call about a log or a namespace."""

    path: str
    call: str
    log: str
    """The log's name; "" for calls about the namespace."""
    incarnation: str
    arguments: Sequence[Any]
    """By the call's form in `LOG_CALLS`."""

    def encode(self) -> bytes:
        """Encode the call as a frame body."""
        return pack([self.path, self.call, self.log, self.incarnation, list(self.arguments)])

    @classmethod
    def decode(cls, body: Buffer) -> "LogCall":
        """Decode a call.

        Raises:
            ProtocolError: The body is invalid.
        """
        return cls(*decode_message(body, _log_call, "LOG_CALL"))


def decode_answer(body: Buffer, form: Form, what: str) -> Any:
    """Decode the result of a call.

    Raises:
        ProtocolError: The body does not have this form.
    """
    return decode_message(body, form, what)


@dataclass(frozen=True, slots=True)
class ProxyCall:
    """A request to one proxy."""

    call: str
    arguments: Sequence[Any]

    def encode(self) -> bytes:
        """Encode the call as a frame body."""
        return pack([self.call, list(self.arguments)])

    @classmethod
    def decode(cls, body: Buffer) -> "ProxyCall":
        """Decode a call.

        Raises:
            ProtocolError: The body is invalid.
        """
        return cls(*decode_message(body, _proxy_call, "PROXY_CALL"))


_OWNED = rows(
    row(text(NAME_BYTES_MAX), text(NAME_BYTES_MAX), number(), number()), OWNED_LOGS_PER_PAGE
)


def decode_owned(body: Buffer) -> list[tuple[str, str, int, int]]:
    """Decode the logs that a proxy writes: namespace, name, number of producers, and segment of each.

    Raises:
        ProtocolError: The body is invalid.
    """
    return list(decode_message(body, _OWNED, "the reply to owned"))


_WOULD_REFUSE = rows(row(text(256), text(4096), number()), REPORTED_DENIALS_MAX)


def decode_would_refuse(body: Buffer) -> list[tuple[str, str, int]]:
    """Decode the requests that a proxy would refuse: principal, reason and count of each.

    Raises:
        ProtocolError: The body is invalid.
    """
    return list(decode_message(body, _WOULD_REFUSE, "the reply to would_refuse"))


assert HEAD_BYTES == 32
assert ENVELOPE_BYTES == 24
assert ACK.size == 48
