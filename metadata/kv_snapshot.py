"""The replicated state as a sequence of chunks, taken and put together a chunk a turn (pure; H39).

    [format, index, revision, next lease, ring's floor, leases, items, requests]      the last three: how many
    ["leases",   [[lease, ttl ms], ...]]
    ["items",    [[key, value, version, create revision, mod revision, lease], ...]]  in key order
    ["requests", [[index, client, request, code, outcome], ...]]                      oldest first

The history of changes is left out on purpose, see `history.py`.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..runtime.errors import CorruptData, ProtocolError, UnsupportedFormat
from ..runtime.frames import pack, unpack
from .answers import item_from_list, item_to_list
from .request_ring import Remembered
from .transaction import KeyValue

if TYPE_CHECKING:
    from .kv import KeyValueState

SNAPSHOT_FORMAT = 1
CHUNK_BYTES = 256 * 1024
"""About the size of a chunk (one item may make it larger): some 3 ms of packing or unpacking."""
CHUNK_ROWS_MAX = 4096


class SnapshotView:
    """The state as it was when this was made, while it goes on changing.

    Nothing is copied but the list of keys and the small parts: 10 ms for a million keys. The state tells the
    view of each item before it changes it.
    """

    def __init__(self, state: "KeyValueState") -> None:
        self._state = state
        self._head = [SNAPSHOT_FORMAT, state.index, state.revision, state.next_lease]
        self._keys = state.keys.copy()
        self._leases = [(lease_id, lease.ttl_ms) for lease_id, lease in state.leases.items()]
        self._floor = state.ring.floor
        self._requests = state.ring.rows()
        self._before: dict[bytes, KeyValue] = {}

    def on_change(self, item: KeyValue) -> None:
        """The item is about to be replaced or deleted; only what it was first counts."""
        self._before.setdefault(item.key, item)

    def chunks(self) -> Iterator[bytes]:
        """All chunks, in order."""
        counts = [len(self._leases), len(self._keys), len(self._requests)]
        yield pack([*self._head, self._floor, *counts])
        yield from _grouped("leases", ((16, lease) for lease in self._leases))
        yield from _grouped("items", map(self._item_row, self._keys))
        yield from _grouped("requests", map(_request_row, self._requests))

    def _item_row(self, key: bytes) -> tuple[int, Any]:
        item = self._before.get(key) or self._state.items[key]
        return 40 + len(key) + len(item.value), item_to_list(item)


class SnapshotBuilder:
    """Puts a state together from its chunks, in order. ``state`` is empty at first, and theirs when done."""

    def __init__(self, state: "KeyValueState") -> None:
        self._state = state
        self._missing: list[int] | None = None  # leases, items, requests that are still to come
        self._last_key = b""

    def add(self, chunk: bytes) -> None:
        """Take the next chunk. Raises `CorruptData`, `UnsupportedFormat`."""
        try:
            value = unpack(chunk, "a snapshot's chunk")
            if self._missing is None:
                self._begin(value)
                return
            kind, rows = value
            self._missing[_KINDS.index(kind)] -= len(rows)
            take = (self._take_lease, self._take_item, self._take_request)[_KINDS.index(kind)]
            for row in rows:
                take(*row)
        except (ProtocolError, TypeError, ValueError, KeyError) as error:
            raise CorruptData(f"not a snapshot of the key space ({error!r:.100})") from None

    def done(self) -> "KeyValueState":
        """The state. Raises `CorruptData` if it is not whole."""
        if self._missing != [0, 0, 0]:
            raise CorruptData(f"a snapshot that is not whole: {self._missing} rows are missing")
        return self._state

    def _begin(self, head: list[Any]) -> None:
        state = self._state
        if head[0] != SNAPSHOT_FORMAT:
            raise UnsupportedFormat(
                f"a snapshot of format {head[0]}, known is {SNAPSHOT_FORMAT}: written by a newer version"
            )
        _, state.index, state.revision, state.next_lease, state.ring.floor, *missing = head
        state.history.compacted_to = state.revision
        self._missing = missing

    def _take_lease(self, lease_id: int, ttl_ms: int) -> None:
        self._state.add_lease(lease_id, ttl_ms)

    def _take_item(self, *row: Any) -> None:
        item = item_from_list(row)
        if item is None or item.key <= self._last_key:
            raise ValueError("keys out of order")
        self._last_key = item.key
        self._state.add_item(item)

    def _take_request(self, *row: Any) -> None:
        self._state.ring.add(Remembered(*row))


_KINDS = ("leases", "items", "requests")


def _request_row(answer: Remembered) -> tuple[int, Any]:
    return 40 + 4 * (len(answer.client) + len(str(answer.outcome))), answer


def _grouped(kind: str, sized_rows: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Rows in chunks, each cut before it grows above its bounds."""
    rows: list[Any] = []
    total = 0
    for size, row in sized_rows:
        if rows and (total + size > CHUNK_BYTES or len(rows) == CHUNK_ROWS_MAX):
            yield pack([kind, rows])
            rows, total = [], 0
        rows.append(row)
        total += size
    if rows:
        yield pack([kind, rows])
