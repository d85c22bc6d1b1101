"""The envelope of every frame on a connection, and the control messages inside (pure).

    | length u32 | op u8 | flags u8 | status u16 | ident u64 | deadline left ms u32 | reserved u32 |

Little-endian, 24 bytes. ``length`` counts the whole frame, envelope included, and is checked against
a bound before anything is allocated. ``ident`` is a request id, or a stream number for frames that
belong to an add stream. ``status`` is 0 or an error's code (`distributedlog/runtime/interfaces/errors.py`),
whose body then is a msgpack list [message, detail]. Other bodies are fixed structs and entry records, or
msgpack.
"""

import struct
from typing import Any

import msgpack

from ..interfaces.errors import DistributedLogError, ProtocolError, from_code
from ..interfaces.host import Buffer

ENVELOPE = struct.Struct("<IBBHQII")
ENVELOPE_BYTES = ENVELOPE.size
FRAME_BYTES_MAX = 5 * 1024 * 1024
CONTROL_BYTES_MAX = 2 * 1024 * 1024
"""A msgpack body above this is refused unread."""
CONTROL_ITEMS_MAX = 256 * 1024
"""Of all lists and maps of a body in sum: two million empty lists fit into its bytes, and take 110 MB."""
ERROR_CHARS_MAX = 4096

assert ENVELOPE_BYTES == 24


REPLY_MORE = 0x80
"""Flag of a REPLY: another one to the same request follows (see `ClientLink.start_repeated_request`)."""


class Op:
    """What a frame asks or answers. From 16 on: bookies; from 64: metadata; from 96: proxies."""

    HELLO = 1
    AUTH = 2
    REPLY = 3  # the answer to a request, whatever it was: ident = request id
    PING = 4
    INFO = 5  # counters and gauges of a node, as a msgpack map

    STREAM_OPEN = 16
    ADD = 17
    ADD_ACKS = 18
    STREAM_REFUSED = 19
    WRITE_LAC = 20
    READ = 21
    FENCE = 22
    READ_LAC = 23
    WAIT_LAC = 24
    LIST_ENTRIES = 25
    ADD_MANY = 26  # this and the next only to who says in HELLO that it takes them
    WRITE_LACS = 27

    META_STATUS = 64
    META_FORM = 65  # between metadata nodes: forming a new cluster
    META_RAFT = 66  # between metadata nodes: Raft messages, no reply
    META_READ = 67
    META_TRANSACT = 68
    META_LEASE = 69
    META_WATCH = 70
    META_WATCH_EVENTS = 71
    META_WATCH_CANCEL = 72
    META_MEMBERS = 73  # who forms the quorum, and changes of that
    META_CAPS = 75  # capabilities of ledgers, and what bookies check them by
    META_DIFFERS = 79  # a leader to a follower whose state is not what most have; no reply
    META_RECALL = 78  # between metadata nodes: what one that has forgotten it may have promised
    META_TRUST = 76  # who may do what
    META_SAVE = 77  # the whole state, chunk by chunk (74 is kept)

    MEMBERS = 97  # which proxies there are; standing (96 is kept)
    PRODUCE_OPEN = 98
    PRODUCE = 99
    PRODUCE_ACKS = 100
    PRODUCE_REFUSED = 101
    PRODUCE_PUBLISH = 103  # (102 is kept for windows that grow)
    PRODUCE_CLOSE = 104
    LOG_CALL = 106  # (105 is kept)
    PROXY_CALL = 107
    PRODUCE_COMMIT = 108

    SUBSCRIBE = 112
    ENTRIES = 113
    CREDIT = 114
    SUBSCRIPTION_ENDED = 115
    UNSUBSCRIBE = 116


def envelope(
    op: int,
    body_bytes: int,
    *,
    ident: int = 0,
    flags: int = 0,
    status: int = 0,
    deadline_ms: int = 0,
) -> bytes:
    """The 24 bytes before a body of ``body_bytes``."""
    return ENVELOPE.pack(
        ENVELOPE_BYTES + body_bytes, op, flags, status, ident, min(deadline_ms, 0xFFFFFFFF), 0
    )


HTTP_PREFIXES = (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP", b"OPTI", b"DELE")
HTTP_REPLY = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks the frame protocol of distributedlog, not HTTP.\n"
)


def is_http(length: int) -> bool:
    """Are the four bytes of this announced length the start of an HTTP request?"""
    return length.to_bytes(4, "little") in HTTP_PREFIXES


def check_length(length: int, peer: str) -> None:
    """Refuse an announced length that no frame of ours has; say what it looks like."""
    if ENVELOPE_BYTES <= length <= FRAME_BYTES_MAX:
        return
    length_bytes = length.to_bytes(4, "little")
    hint = ""
    if length_bytes in HTTP_PREFIXES:
        hint = "; these bytes are HTTP: this port speaks the frame protocol of distributedlog"
    elif length_bytes[0] == 0x16 and length_bytes[1] == 0x03:
        hint = "; these bytes are a TLS hello: this port speaks plain frames"
    raise ProtocolError(
        f"{peer} announced a frame of {length} bytes, allowed are {ENVELOPE_BYTES} to {FRAME_BYTES_MAX}{hint}"
    )


def pack(value: Any) -> bytes:
    """A control message as msgpack."""
    return bytes(msgpack.packb(value))


def unpack(
    body: Buffer,
    what: str,
    *,
    bytes_max: int = CONTROL_BYTES_MAX,
    items_max: int = CONTROL_ITEMS_MAX,
) -> Any:
    """A control message from msgpack, with every length and their sum bounded. Raises `ProtocolError`.

    Its depth is below 1,024: whoever shows or compares what comes out bounds it first (`schema.py`).
    """
    size = len(body)
    if size > bytes_max:
        raise ProtocolError(f"{what}: a control message of {size} bytes, allowed are {bytes_max}")
    hooks: dict[str, Any] = {}
    if size > items_max:  # else it cannot hold more: an item takes a byte at least
        item_counter = _ItemCounter(items_max)
        hooks = {
            "list_hook": item_counter.count_list,
            "object_pairs_hook": item_counter.count_pairs,
        }
    try:
        return msgpack.unpackb(
            body,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=min(size, items_max, 65_536),
            max_map_len=min(size, items_max, 65_536),
            max_ext_len=0,
            strict_map_key=True,
            **hooks,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"{what}: not a control message ({type(error).__name__})") from None


class _ItemCounter:
    """Counts what the lists and maps of a message hold, while it is taken apart."""

    def __init__(self, items_max: int) -> None:
        self._remaining = items_max

    def count_list(self, items: list[Any]) -> list[Any]:
        self._remaining -= len(items) + 1
        if self._remaining < 0:
            raise ValueError("too many items")
        return items

    def count_pairs(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._remaining -= 2 * len(pairs) + 1
        if self._remaining < 0:
            raise ValueError("too many items")
        return dict(pairs)


def error_body(error: DistributedLogError) -> bytes:
    """The body of a frame whose status is ``error.code``."""
    return pack([str(error)[:ERROR_CHARS_MAX], error.detail])


def error_from(status: int, body: Buffer) -> DistributedLogError:
    """The error that a frame with this status and body carries."""
    try:
        match unpack(body, "an error reply"):
            case [str() as message, str() as detail]:
                return from_code(status, message[:ERROR_CHARS_MAX], detail[:ERROR_CHARS_MAX])
    except ProtocolError:
        pass
    return from_code(status, f"error {status} with an unreadable message")
