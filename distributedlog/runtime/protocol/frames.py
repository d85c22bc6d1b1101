"""The envelope of every frame on a connection, and the control messages inside (pure).

    | length u32 | op u8 | flags u8 | status u16 | ident u64 | deadline left ms u32 | reserved u32 |

The envelope is little-endian and has 24 bytes. ``length`` is that of the whole frame, including the envelope.
It is checked against a limit before memory is allocated. ``ident`` is a request ID, or a stream number in
frames of an add stream. ``status`` is 0 or the code of an error
(`distributedlog/runtime/interfaces/errors.py`). The body of an error is a msgpack list [message, detail].
Other bodies are fixed structs and entry records, or msgpack.
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
"""Larger msgpack bodies are rejected without decoding."""
CONTROL_ITEMS_MAX = 256 * 1024
"""The limit for all lists and maps of a body together. Two million empty lists would fit into the byte limit
and take 110 MB."""
ERROR_CHARS_MAX = 4096

assert ENVELOPE_BYTES == 24


REPLY_MORE = 0x80
"""Flag of a REPLY: another reply to the same request follows (see `ClientLink.start_repeated_request`)."""


class Op:
    """The operation of a frame.

    Numbers from 16 are for bookies, from 64 for metadata nodes, and from 96 for proxies.
    """

    HELLO = 1
    AUTH = 2
    REPLY = 3  # the reply to any request: ident = request ID
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
    ADD_MANY = 26  # this and the next only if the peer's HELLO has the feature
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
    META_MEMBERS = 73  # the members of the quorum, and changes of them
    META_CAPS = 75  # capabilities of ledgers, and the keys with which bookies verify them
    META_DIFFERS = 79  # from a leader to a follower whose state differs from the majority; no reply
    META_RECALL = 78  # between metadata nodes: recover the hard state of a node that lost it
    META_TRUST = 76  # users, grants and the authorization mode
    META_SAVE = 77  # the whole state, in chunks (74 is reserved)

    MEMBERS = 97  # the list of proxies, with an update after each change (96 is reserved)
    PRODUCE_OPEN = 98
    PRODUCE = 99
    PRODUCE_ACKS = 100
    PRODUCE_REFUSED = 101
    PRODUCE_PUBLISH = 103  # (102 is reserved for windows that grow)
    PRODUCE_CLOSE = 104
    LOG_CALL = 106  # (105 is reserved)
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
    """Return the 24 bytes of the envelope for a body of this size."""
    return ENVELOPE.pack(
        ENVELOPE_BYTES + body_bytes, op, flags, status, ident, min(deadline_ms, 0xFFFFFFFF), 0
    )


HTTP_PREFIXES = (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP", b"OPTI", b"DELE")
HTTP_REPLY = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks the frame protocol of distributedlog, not HTTP.\n"
)


def is_http(length: int) -> bool:
    """Return whether the four bytes of an announced length are the start of an HTTP request."""
    return length.to_bytes(4, "little") in HTTP_PREFIXES


def check_length(length: int, peer: str) -> None:
    """Raise `ProtocolError` for an announced length that no frame has, and identify HTTP and TLS."""
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
    """Encode a control message with msgpack."""
    return bytes(msgpack.packb(value))


def unpack(
    body: Buffer,
    what: str,
    *,
    bytes_max: int = CONTROL_BYTES_MAX,
    items_max: int = CONTROL_ITEMS_MAX,
) -> Any:
    """Decode a control message from msgpack, with limits for each length and for their sum.

    The nesting depth of the result is below 1,024. Check it with a form of `schema.py` before printing or
    comparing it.

    Args:
        what: The name of the message, for errors.
        bytes_max: The limit for the size of the body.
        items_max: The limit for the items of all lists and maps together.

    Raises:
        ProtocolError: The message exceeds a limit or is malformed.
    """
    size = len(body)
    if size > bytes_max:
        raise ProtocolError(f"{what}: a control message of {size} bytes, allowed are {bytes_max}")
    hooks: dict[str, Any] = {}
    if size > items_max:  # otherwise, it cannot have more items: each takes at least one byte
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
    """Count the items of all lists and maps of a message during decoding."""

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
    """Return the body of a frame whose status is ``error.code``."""
    return pack([str(error)[:ERROR_CHARS_MAX], error.detail])


def error_from(status: int, body: Buffer) -> DistributedLogError:
    """Return the error in a frame with this status and body."""
    try:
        match unpack(body, "an error reply"):
            case [str() as message, str() as detail]:
                return from_code(status, message[:ERROR_CHARS_MAX], detail[:ERROR_CHARS_MAX])
    except ProtocolError:
        pass
    return from_code(status, f"error {status} with an unreadable message")
