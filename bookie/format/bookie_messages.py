"""The frame bodies of requests and replies between clients and bookies (pure).

All structs are little-endian. ``key`` is the ledger's secret of 16 random bytes. Entry IDs count from 0; -1
means none. The envelope of each frame (`distributedlog/runtime/protocol/frames.py`) has the operation, the
request or stream number (ident) and the flags. Entry records (`entry.py`) follow the fixed part of a body
unchanged and back to back::

    STREAM_OPEN  ident = stream | ledger u64 | key 16s | flags u32 | fragment epoch u32
                 flags: 1 recovery, 2 close: the stream of that number has ended
    ADD          ident = stream | entry records of the stream's ledger
    ADD_MANY     ident = n      | n x (stream u32, bytes u32) | the records of each: n ADDs in one frame
    ADD_ACKS     ident = 0      | n x (stream u64, count u64): the first ``count`` records are durable (H1)
                 flag 1: a long poll waits here for the LAC of one of these streams' ledgers
    STREAM_REFUSED ident = stream, status = code | msgpack [message, detail, position]
    WRITE_LAC    ident = stream | lac i64                                              no reply
    WRITE_LACS   ident = 0      | n x (stream u64, lac i64): n WRITE_LACs in one frame no reply
    READ         ledger u64 | key 16s | first u64 | last u64 | bytes max u32 | flags u32
       REPLY     flag 1: proves absence | complete_to i64 | lac i64 | records, ascending
    FENCE, READ_LAC  ledger u64 | key 16s
       REPLY     flag 1: proves absence | lac i64 | last entry i64
    WAIT_LAC     ledger u64 | key 16s | previous lac i64 | wait ms u32 | bytes max u32
                 flag 1: persistent: answered each time the LAC advances, until the time is over, all
                 answers together have bytes max, or an answer lacked some of its records
       REPLY     flag 128: more follow | lac i64 | fenced u32 | reserved u32
                 | records previous+1..lac that are loaded and fit
    LIST_ENTRIES ledger u64 | key 16s
       REPLY     flag 1: proves absence | n x (first u64, count u64), ascending
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...runtime.interfaces.errors import DistributedLogError, ProtocolError, from_code
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import ENVELOPE, ERROR_CHARS_MAX, Op, pack
from ...runtime.protocol.schema import decode_message, number, row, text

KEY_BYTES = 16
FLAG_PROVES_ABSENCE = 1
"""Reply flag: entries that the reply omits are proven to be absent here (no limbo state)."""
ACK_HAS_LONG_POLLS = 1
"""Flag of ADD_ACKS: a long poll waits, so an explicit LAC is useful now."""
STREAM_RECOVERY = 1
STREAM_CLOSE = 2
READ_FENCE = 1
"""Fence the ledger before the read. Recovery uses this."""
WAIT_PERSISTENT = 1
"""Flag of a WAIT_LAC's envelope."""
READ_PAST_LAC = 2
"""Read entries above the LAC as well, which may not be confirmed."""

ADD_MANY_ITEMS_MAX = 4096
"""The maximum number of items in an ADD_MANY."""
ADD_MANY_ITEM_BYTES = 8
WRITE_LACS_ITEMS_MAX = 65_536
"""The maximum number of items in a WRITE_LACS."""

_STREAM_OPEN = struct.Struct("<Q16sII")
_LEDGER = struct.Struct("<Q16s")
_READ = struct.Struct("<Q16sQQII")
# Each read carries the key again, 16 bytes per reply of up to a MiB. A table of keys per connection would
# need a limit, and a message for evicted keys.
_WAIT_LAC = struct.Struct("<Q16sqII")
_LAC = struct.Struct("<q")
_LAC_FRAME = struct.Struct(ENVELOPE.format + "q")
_MANY_ITEM = struct.Struct("<II")
_STREAM_LAC = struct.Struct("<Qq")
_PAIR_I64 = struct.Struct("<qq")
_PAIR_U64 = struct.Struct("<QQ")
_WAIT_REPLY = struct.Struct("<qII")
_REFUSAL = row(text(ERROR_CHARS_MAX), text(ERROR_CHARS_MAX), number())
READ_REPLY_BYTES = _PAIR_I64.size
WAIT_REPLY_BYTES = _WAIT_REPLY.size


@dataclass(frozen=True, slots=True)
class StreamOpenRequest:
    """Open an add stream, or close it (``close``). There is no reply."""

    ledger: int
    key: bytes
    recovery: bool
    fragment_epoch: int
    close: bool = False

    def encode(self) -> bytes:
        """Return the frame body."""
        flags = (STREAM_RECOVERY if self.recovery else 0) | (STREAM_CLOSE if self.close else 0)
        return _STREAM_OPEN.pack(self.ledger, self.key, flags, self.fragment_epoch)

    @classmethod
    def decode(cls, body: Buffer) -> "StreamOpenRequest":
        """Decode a frame body. Raises `ProtocolError`."""
        ledger, key, flags, epoch = _unpack_exact(_STREAM_OPEN, body, "STREAM_OPEN")
        _check_flags(flags, STREAM_RECOVERY | STREAM_CLOSE, "STREAM_OPEN")
        return cls(ledger, key, bool(flags & STREAM_RECOVERY), epoch, bool(flags & STREAM_CLOSE))


@dataclass(frozen=True, slots=True)
class LedgerRequest:
    """The body of FENCE, READ_LAC and LIST_ENTRIES: a ledger and its key."""

    ledger: int
    key: bytes

    def encode(self) -> bytes:
        """Return the frame body."""
        return _LEDGER.pack(self.ledger, self.key)

    @classmethod
    def decode(cls, body: Buffer) -> "LedgerRequest":
        """Decode a frame body. Raises `ProtocolError`."""
        return cls(*_unpack_exact(_LEDGER, body, "a ledger and its key"))


@dataclass(frozen=True, slots=True)
class ReadEntriesRequest:
    """Read entries ``first`` to ``last`` (inclusive): at least one, and at most about ``bytes_max``."""

    ledger: int
    key: bytes
    first: int
    last: int
    bytes_max: int
    fence: bool = False
    past_lac: bool = False

    def encode(self) -> bytes:
        """Return the frame body."""
        flags = (READ_FENCE if self.fence else 0) | (READ_PAST_LAC if self.past_lac else 0)
        return _READ.pack(self.ledger, self.key, self.first, self.last, self.bytes_max, flags)

    @classmethod
    def decode(cls, body: Buffer) -> "ReadEntriesRequest":
        """Decode a frame body. Raises `ProtocolError`."""
        ledger, key, first, last, bytes_max, flags = _unpack_exact(_READ, body, "READ")
        _check_flags(flags, READ_FENCE | READ_PAST_LAC, "READ")
        if not first <= last < 1 << 63:
            raise ProtocolError(f"READ of entries {first} to {last}")
        return cls(
            ledger,
            key,
            first,
            last,
            bytes_max,
            bool(flags & READ_FENCE),
            bool(flags & READ_PAST_LAC),
        )


@dataclass(frozen=True, slots=True)
class WaitLacRequest:
    """Wait until the LAC is above ``previous_lac``, the ledger is fenced, or ``wait_ms`` have passed."""

    ledger: int
    key: bytes
    previous_lac: int
    wait_ms: int
    bytes_max: int

    def encode(self) -> bytes:
        """Return the frame body."""
        return _WAIT_LAC.pack(
            self.ledger, self.key, self.previous_lac, self.wait_ms, self.bytes_max
        )

    @classmethod
    def decode(cls, body: Buffer) -> "WaitLacRequest":
        """Decode a frame body. Raises `ProtocolError`."""
        request = cls(*_unpack_exact(_WAIT_LAC, body, "WAIT_LAC"))
        if request.previous_lac < -1:
            raise ProtocolError(f"WAIT_LAC after {request.previous_lac}")
        return request


# --- adds -----------------------------------------------------------------------------------------


def encode_acks(acks: list[tuple[int, int]]) -> bytes:
    """Encode ADD_ACKS: pairs of stream and how many of its records are durable since its opening."""
    return struct.pack(f"<{2 * len(acks)}Q", *chain.from_iterable(acks))


def decode_pairs(body: Buffer, what: str) -> list[tuple[int, int]]:
    """Decode ADD_ACKS or a LIST_ENTRIES reply: pairs of u64. Raises `ProtocolError`."""
    if len(body) % _PAIR_U64.size:
        raise ProtocolError(f"{what}: {len(body)} bytes are not whole pairs")
    return list(_PAIR_U64.iter_unpack(body))


def encode_add_many_items(streams: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Encode the items before the records of an ADD_MANY: the stream and the bytes of each record."""
    items = [0] * (2 * len(sizes))
    items[0::2] = streams
    items[1::2] = sizes
    return struct.pack(f"<{len(items)}I", *items)


def decode_add_many_items(item_count: int, body: Buffer) -> list[tuple[int, int]]:
    """Decode the (stream, bytes) items of an ADD_MANY, whose ident is ``item_count``.

    Raises:
        ProtocolError: The number of items is invalid, or their records do not fill the rest of the body.
    """
    start = ADD_MANY_ITEM_BYTES * item_count
    if not 0 < item_count <= ADD_MANY_ITEMS_MAX or start > len(body):
        raise ProtocolError(f"ADD_MANY: {item_count} items in {len(body)} bytes")
    items = list(_MANY_ITEM.iter_unpack(memoryview(body)[:start]))
    records_bytes = sum([size for _, size in items])
    if records_bytes != len(body) - start:
        raise ProtocolError(f"ADD_MANY: items of {records_bytes} bytes, {len(body) - start} follow")
    return items


def encode_refusal(error: DistributedLogError, position: int) -> bytes:
    """Encode STREAM_REFUSED. ``position`` counts the records of the stream from 0 in sending order."""
    return pack([str(error)[:ERROR_CHARS_MAX], "", position])


def decode_refusal(status: int, body: Buffer) -> tuple[DistributedLogError, int]:
    """Return the error and the first refused position. Raises `ProtocolError`."""
    text, detail, position = decode_message(body, _REFUSAL, "STREAM_REFUSED")
    return from_code(status, text, detail), position


def lac_frame(stream: int, lac: int) -> bytes:
    """Return the complete frame of a WRITE_LAC.

    One step, because a thousand logs send thousands per second.
    """
    return _LAC_FRAME.pack(_LAC_FRAME.size, Op.WRITE_LAC, 0, 0, stream, 0, 0, lac)


def decode_lac(body: Buffer) -> int:
    """Decode a WRITE_LAC. Raises `ProtocolError`."""
    lac: int = _unpack_exact(_LAC, body, "WRITE_LAC")[0]
    if lac < -1:
        raise ProtocolError(f"WRITE_LAC of {lac}")
    return lac


def encode_lacs(lacs: Collection[tuple[int, int]]) -> bytes:
    """Encode WRITE_LACS: pairs of stream and LAC, at most `WRITE_LACS_ITEMS_MAX`."""
    # Stream numbers are below 2^63, because they are counted from 1.
    return struct.pack(f"<{2 * len(lacs)}q", *chain.from_iterable(lacs))


def decode_lacs(body: Buffer) -> list[tuple[int, int]]:
    """Decode WRITE_LACS: pairs of stream and LAC. Raises `ProtocolError` if any pair is invalid."""
    if len(body) % _STREAM_LAC.size or len(body) > WRITE_LACS_ITEMS_MAX * _STREAM_LAC.size:
        raise ProtocolError(
            f"WRITE_LACS: {len(body)} bytes are not up to {WRITE_LACS_ITEMS_MAX} whole pairs"
        )
    lacs = list(_STREAM_LAC.iter_unpack(body))
    for stream, lac in lacs:
        if lac < -1:
            raise ProtocolError(f"WRITE_LACS of {lac} on stream {stream}")
    return lacs


# --- replies --------------------------------------------------------------------------------------


def encode_read_head(complete_to: int, lac: int) -> bytes:
    """Encode the fixed part of a READ reply, which the records follow."""
    return _PAIR_I64.pack(complete_to, lac)


def decode_read(body: memoryview) -> tuple[int, int, memoryview]:
    """Return complete_to, LAC and the unverified records. Raises `ProtocolError`."""
    complete_to, lac = _unpack_prefix(_PAIR_I64, body, "a READ reply")
    return complete_to, lac, body[READ_REPLY_BYTES:]


def encode_lac_and_last(lac: int, last_entry: int) -> bytes:
    """Encode the reply to FENCE and READ_LAC."""
    return _PAIR_I64.pack(lac, last_entry)


def decode_lac_and_last(body: Buffer) -> tuple[int, int]:
    """Return LAC and last entry. Raises `ProtocolError`."""
    lac, last_entry = _unpack_exact(_PAIR_I64, body, "a FENCE or READ_LAC reply")
    return lac, last_entry


def encode_wait_head(lac: int, fenced: bool) -> bytes:
    """Encode the fixed part of a WAIT_LAC reply, which the records follow."""
    return _WAIT_REPLY.pack(lac, fenced, 0)


def decode_wait(body: memoryview) -> tuple[int, bool, memoryview]:
    """Return LAC, fenced and the unverified records. Raises `ProtocolError`."""
    lac, fenced, _ = _unpack_prefix(_WAIT_REPLY, body, "a WAIT_LAC reply")
    return lac, bool(fenced), body[WAIT_REPLY_BYTES:]


def encode_entry_ranges(entry_ranges: list[tuple[int, int]]) -> bytes:
    """Encode the LIST_ENTRIES reply: pairs of first ID and count, ascending and disjoint."""
    return b"".join([_PAIR_U64.pack(first, count) for first, count in entry_ranges])


# --- helpers --------------------------------------------------------------------------------------


def _unpack_exact(layout: struct.Struct, body: Buffer, what: str) -> tuple[Any, ...]:
    if len(body) != layout.size:
        raise ProtocolError(f"{what}: {len(body)} bytes instead of {layout.size}")
    return layout.unpack(body)


def _unpack_prefix(layout: struct.Struct, body: Buffer, what: str) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise ProtocolError(f"{what}: {len(body)} bytes, at least {layout.size} are expected")
    return layout.unpack_from(body)


def _check_flags(flags: int, known_flags: int, what: str) -> None:
    if flags & ~known_flags:
        raise ProtocolError(f"{what}: unknown flags {flags:#x}")
