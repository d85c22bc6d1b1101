"""The replicated state as a sequence of chunks (pure; H39, H109).

Tasks write and read one chunk per event-loop iteration.

The chunks in order::

    [format, index, revision, next lease, dedup floor, leases, keys, requests]      the last three are counts
    ["leases",   [[lease, ttl ms], ...]]
    K | key length u16 | stored length u32 | key | stored | key length ...             in key order
    ["requests", [[index, client, request, code, outcome], ...]]                      oldest first

``stored`` are the bytes that the state keeps for a key: `VALUE_HEADER` and the value. So neither side packs
or unpacks them. No chunk of msgpack begins with a K. In format 1, the keys were msgpack rows::

    ["items",    [[key, value, version, create revision, mod revision, lease], ...]]

From format 3 on, the head ends with the revision of the last authorization change, and each lease has its
owner::

    [3, …, requests, trust revision]                ["leases", [[lease, ttl ms, principal or ""], ...]]

The history of changes is omitted on purpose, see `watch_history.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from sys import maxsize
from typing import Any

from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    Form,
    SchemaError,
    decode_stored,
    list_of_any,
    number,
    one_of,
    row,
    rows,
    text,
)
from ..model.command_results import item_from_list
from ..model.interface import prefix_end
from ..model.request_identity import CLIENT_CHARS_MAX, PRINCIPAL_CHARS_MAX
from ..model.transaction import KEY_BYTES_MAX, KeyValue
from .kv_state import VALUE_HEADER, KeyValueState, StateView, pack_item
from .request_dedup import MESSAGE_CHARS_MAX, RememberedRequest, RememberedRow

SNAPSHOT_FORMAT = 3
FORMAT_WITHOUT_OWNERS = 2
"""Written if no lease has an owner and no authorization change was applied.

Older versions read only this format.
"""
CHUNK_BYTES = 64 * 1024
"""Approximate size of a chunk, which is half a millisecond of work. One large key may exceed it."""
CHUNK_ROWS_MAX = 4096
KEYS_CHUNK_MARKER = b"K"
KEY_ROW = Struct("<HI")
KEYS_PER_STEP = 256
"""Number of keys that are read from the state at once."""


def snapshot_chunks(
    state: KeyValueState, changes_bytes_max: int = maxsize, *, excluded_prefix: bytes = b""
) -> Iterator[bytes]:
    """Return the whole state in chunks, as of this call, even if commands are applied during the iteration.

    Args:
        state: The state.
        changes_bytes_max: Limit of the changes that are kept, see `StateView`. Beyond it, the next chunk
            raises `InvalidRequest`.
        excluded_prefix: Keys with this prefix are omitted.
    """
    excluded_count = (
        len(state.keys.between(excluded_prefix, prefix_end(excluded_prefix), maxsize))
        if excluded_prefix
        else 0
    )
    return _chunks(state.snapshot_view(changes_bytes_max), excluded_prefix, excluded_count)


def _chunks(view: StateView, excluded_prefix: bytes, excluded_count: int) -> Iterator[bytes]:
    has_owners = any(owner for _, _, owner in view.leases)
    form = SNAPSHOT_FORMAT if has_owners or view.authorization_revision else FORMAT_WITHOUT_OWNERS
    head = [form, view.index, view.revision, view.next_lease, view.dedup_floor]
    counts = [len(view.leases), view.key_count - excluded_count, len(view.requests)]
    yield pack(
        [*head, *counts, *([view.authorization_revision] if form == SNAPSHOT_FORMAT else [])]
    )
    if form == FORMAT_WITHOUT_OWNERS:
        yield from _group_rows("leases", ((16, lease[:2]) for lease in view.leases))
    else:
        yield from _group_rows("leases", ((24 + len(lease[2]), lease) for lease in view.leases))
    yield from _key_chunks(view, excluded_prefix)
    yield from _group_rows("requests", map(_request_row, view.requests))


def _key_chunks(view: StateView, excluded_prefix: bytes) -> Iterator[bytes]:
    chunk = bytearray(KEYS_CHUNK_MARKER)
    while key_values := view.next_keys(KEYS_PER_STEP):
        for key, content in key_values:
            if excluded_prefix and key.startswith(excluded_prefix):
                continue
            if len(chunk) > 1 and len(chunk) + len(key) + len(content) > CHUNK_BYTES:
                yield bytes(chunk)
                chunk = bytearray(KEYS_CHUNK_MARKER)
            chunk += KEY_ROW.pack(len(key), len(content)) + key + content
    if len(chunk) > 1:
        yield bytes(chunk)


class SnapshotBuilder:
    """Builds a state from its chunks, in order."""

    def __init__(self, state: KeyValueState) -> None:
        """Create a builder for ``state``, which is empty.

        The caller adds one chunk per event-loop iteration, so that other tasks run in between (H39).
        """
        self._state = state
        self._missing_counts: list[int] | None = (
            None  # leases, keys and requests that have not arrived yet
        )
        self._last_key = b""
        self._last_request = -1

    def add(self, chunk: bytes) -> None:
        """Add the next chunk.

        Raises:
            CorruptData: The chunk is invalid or out of order.
            UnsupportedFormat: A newer version wrote the snapshot.
        """
        if self._missing_counts is None:
            self._read_head(decode_stored(chunk, _HEAD, "the head of a snapshot"))
            return
        try:
            if chunk[:1] == KEYS_CHUNK_MARKER:
                self._missing_counts[1] -= self._take_keys(chunk)
                return
            kind, chunk_rows = decode_stored(chunk, _CHUNK, "a snapshot's chunk")
            self._missing_counts[_KINDS.index(kind)] -= len(chunk_rows)
            form: Form = {"leases": _lease, "items": item_from_list, "requests": _REQUEST}[kind]
            decoders: dict[str, Callable[[Any], None]] = {
                "leases": self._add_lease,
                "items": self._add_item,
                "requests": self._add_request,
            }
            add_row = decoders[kind]
            for chunk_row in chunk_rows:
                add_row(form(chunk_row))
        except SchemaError as error:
            raise CorruptData(f"not a snapshot of the key space: {error}") from None

    def finish(self) -> KeyValueState:
        """Return the state, or raise `CorruptData` if chunks are missing."""
        if self._missing_counts != [0, 0, 0]:
            raise CorruptData(f"a snapshot is incomplete: {self._missing_counts} rows are missing")
        return self._state

    def _read_head(self, head: tuple[int, ...]) -> None:
        state = self._state
        if head[0] > SNAPSHOT_FORMAT:
            raise UnsupportedFormat(
                f"a snapshot of format {head[0]} of a newer version:"
                f" this version reads formats up to {SNAPSHOT_FORMAT}"
            )
        if len(head) != HEAD_FIELDS + (head[0] == SNAPSHOT_FORMAT):
            raise CorruptData(f"the head of a snapshot has {len(head)} fields")
        (
            _,
            state.index,
            state.revision,
            state.next_lease,
            state.request_dedup.forgotten_through,
            *missing,
        ) = head
        if head[0] == SNAPSHOT_FORMAT:
            state.authorization_revision = missing.pop()
        state.watch_history.compacted_to = state.revision
        self._missing_counts = missing

    def _add_lease(self, lease: tuple[int, int] | tuple[int, int, str]) -> None:
        self._state.add_lease(*lease)

    def _take_keys(self, chunk: bytes) -> int:
        offset, end, count = 1, len(chunk), 0
        while offset < end:
            if offset + KEY_ROW.size > end:
                raise SchemaError("a row is cut off")
            key_bytes, stored_bytes = KEY_ROW.unpack_from(chunk, offset)
            offset += KEY_ROW.size
            row_end = offset + key_bytes + stored_bytes
            if (
                not 0 < key_bytes <= KEY_BYTES_MAX
                or stored_bytes < VALUE_HEADER.size
                or row_end > end
            ):
                raise SchemaError("a row has lengths that do not fit")
            self._take(chunk[offset : offset + key_bytes], chunk[offset + key_bytes : row_end])
            offset, count = row_end, count + 1
        return count

    def _add_item(self, item: KeyValue | None) -> None:
        if item is None:
            raise SchemaError("a row without a key")
        self._take(item.key, pack_item(item))

    def _take(self, key: bytes, stored_value: bytes) -> None:
        if key <= self._last_key:
            raise SchemaError("keys out of order")
        version, lease, created, changed = VALUE_HEADER.unpack_from(stored_value)
        if version < 0 or created < 0 or changed < 0:
            raise SchemaError("a key has a number below 0")
        if lease and lease not in self._state.leases:
            raise SchemaError("a key has a lease that does not exist")
        self._last_key = key
        self._state.add_stored(key, stored_value, lease)

    def _add_request(self, request: tuple[int, str, int, int, int | str]) -> None:
        remembered = RememberedRequest(*request)
        if self._state.request_dedup.find(remembered.client, remembered.request) is not None:
            raise SchemaError("a request is listed twice")
        if remembered.log_index <= self._last_request:
            raise SchemaError("requests out of order")  # the oldest is forgotten first
        self._last_request = remembered.log_index
        self._state.request_dedup.add(*remembered)


HEAD_FIELDS = 8


def _outcome(value: Any) -> int | str:
    """Decode a revision, a lease, or the message of an error."""
    outcome: int | str = _MESSAGE(value) if type(value) is str else _NUMBER(value)
    return outcome


_NUMBER = number()
_MESSAGE = text(MESSAGE_CHARS_MAX)
_HEAD = rows(_NUMBER, 64, 1)
_KINDS = ("leases", "items", "requests")
_CHUNK = row(one_of(*_KINDS), list_of_any)
_LEASE_WITH_OWNER = row(_NUMBER, _NUMBER, text(PRINCIPAL_CHARS_MAX))
_LEASE_WITHOUT_OWNER = row(_NUMBER, _NUMBER)


def _lease(value: Any) -> tuple[int, int] | tuple[int, int, str]:
    """Decode a lease. From format 3 on, it contains its owner."""
    lease: tuple[int, int] = (
        _LEASE_WITH_OWNER(value) if len(list_of_any(value)) == 3 else _LEASE_WITHOUT_OWNER(value)
    )
    return lease


_REQUEST = row(_NUMBER, text(CLIENT_CHARS_MAX, 1), _NUMBER, _NUMBER, _outcome)


def _request_row(remembered: RememberedRow) -> tuple[int, Any]:
    _, client, _, _, outcome = remembered
    return 40 + 4 * (len(client) + len(str(outcome))), remembered


def _group_rows(kind: str, sized_rows: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Group rows into chunks, each below the limits of size and number."""
    group: list[Any] = []
    total = 0
    for size, content in sized_rows:
        if group and (total + size > CHUNK_BYTES or len(group) == CHUNK_ROWS_MAX):
            yield pack([kind, group])
            group, total = [], 0
        group.append(content)
        total += size
    if group:
        yield pack([kind, group])
