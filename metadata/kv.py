"""The replicated state: an ordered key space with revisions, as in etcd v3 (pure).

`apply` is deterministic: the same commands in the same order make the same state on every node, whatever
they hold; a command that cannot be meant is an error reply and changes nothing. There is no clock: a lease
ends by a command (H19). Answers to requests are remembered, in the state and its snapshots, so that a
command that is sent again is not done again (H20).
"""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..runtime.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    LeaseExpired,
    OutcomeUnknown,
)
from ..runtime.frames import pack, unpack
from .commands import Command, Expire, Grant, Nothing, Revoke, Transact, decode_command
from .interface import Event, RangePage
from .transaction import KeyValue, Put, Transaction, TransactionReply

ANSWERS_MAX = 65_536
ANSWER_BYTES_MAX = 8 * 1024 * 1024
HISTORY_BYTES_MAX = 8 * 1024 * 1024
TTL_MS_MIN = 100
TTL_MS_MAX = 24 * 3600 * 1000
CHUNK_BYTES = 256 * 1024
"""About the size of a snapshot's chunk, so that packing one never holds the loop for long (H39)."""
SNAPSHOT_FORMAT = 1
EVENT_OVERHEAD_BYTES = 120


@dataclass(slots=True)
class Lease:
    """A lease and the keys that live under it (a dict for its order)."""

    ttl_ms: int
    keys: dict[bytes, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to: a transaction's reply, a lease, or an error."""

    transaction: TransactionReply | None = None
    lease: int = 0
    error: DistributedLogError | None = None


class KeyValueState:
    """All keys in order. Revisions count changing commands from 1; 0: nothing has happened."""

    def __init__(
        self,
        *,
        answers_max: int = ANSWERS_MAX,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self.revision = 0
        self.index = 0
        """The log index of the last command applied."""
        self.leases: dict[int, Lease] = {}
        self._next_lease = 1
        self._keys: list[bytes] = []
        self._items: dict[bytes, KeyValue] = {}
        self._answers: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()
        self._answer_bytes = 0
        self._answers_max = answers_max
        self._forgotten_to = 0
        """Answers to commands up to this index may be forgotten."""
        self._history: deque[tuple[int, tuple[Event, ...], int]] = deque()
        self._history_bytes = 0
        self._history_bytes_max = history_bytes_max
        self.compacted_to = 0
        """Watches can begin behind this revision, not before it."""

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: bytes) -> KeyValue | None:
        """The key as it is, or None."""
        return self._items.get(key)

    def range(self, start: bytes, end: bytes, limit: int, bytes_max: int = 1 << 20) -> RangePage:
        """Up to ``limit`` keys and about ``bytes_max`` of values; at least one if there is one."""
        low, high = bisect_left(self._keys, start), bisect_left(self._keys, end)
        found: list[KeyValue] = []
        size = 0
        for key in self._keys[low : min(high, low + limit)]:
            item = self._items[key]
            size += len(key) + len(item.value)
            if found and size > bytes_max:
                break
            found.append(item)
        return RangePage(tuple(found), self.revision, low + len(found) < high)

    def events_after(
        self, revision: int, start: bytes, end: bytes
    ) -> list[tuple[int, tuple[Event, ...]]]:
        """The changes in a range behind ``revision``, a revision at a time. Raises `Compacted`."""
        if revision < self.compacted_to:
            raise Compacted(
                f"the changes behind revision {revision} are gone, kept are those behind {self.compacted_to}"
            )
        found = []
        for at, events, _ in reversed(self._history):
            if at <= revision:
                break
            inside = tuple(event for event in events if start <= event.item.key < end)
            if inside:
                found.append((at, inside))
        found.reverse()
        return found

    # --- commands ---------------------------------------------------------------------------------

    def apply(self, index: int, command: bytes) -> tuple[Answer, tuple[Event, ...]]:
        """Do the command at log position ``index``; return its answer and what it changed."""
        assert index > self.index, f"command {index} applied behind {self.index}"
        self.index = index
        if not command:
            return Answer(), ()
        try:
            meant = decode_command(command)
        except DistributedLogError as error:
            return Answer(error=error), ()
        client, request, base_index = meant.client, meant.request, meant.base_index
        if client:
            known = self._answers.get((client, request))
            if known is not None:
                return decode_answer(known[1]), ()
            if base_index < self._forgotten_to:
                return Answer(error=OutcomeUnknown(STALE_REQUEST)), ()
        revision = self.revision
        answer, events = self._do(meant)
        if client:
            self._remember(client, request, answer)
        if events:
            self._keep_history(events)
        self._check(revision, events)
        return answer, events

    def _do(self, meant: Command) -> tuple[Answer, tuple[Event, ...]]:
        if isinstance(meant, Transact):
            return self._transact(meant.transaction)
        if isinstance(meant, Grant):
            lease = self._next_lease
            self._next_lease += 1
            self.leases[lease] = Lease(min(max(meant.ttl_ms, TTL_MS_MIN), TTL_MS_MAX))
            return Answer(lease=lease), ()
        if isinstance(meant, (Revoke, Expire)):
            return Answer(lease=meant.lease), self._end_lease(meant.lease)
        assert isinstance(meant, Nothing)
        return Answer(), ()

    def _transact(self, transaction: Transaction) -> tuple[Answer, tuple[Event, ...]]:
        current = tuple(self._items.get(compare.key) for compare in transaction.compares)
        pairs = zip(transaction.compares, current, strict=True)
        if not all(compare.holds(found) for compare, found in pairs):
            return Answer(TransactionReply(False, self.revision, current)), ()
        for operation in transaction.operations:
            if (
                isinstance(operation, Put)
                and operation.lease
                and operation.lease not in self.leases
            ):
                return Answer(error=LeaseExpired(f"lease {operation.lease} is gone")), ()
        events: list[Event] = []
        revision = self.revision + 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            elif operation.key in self._items:
                events.append(self._delete(operation.key, revision))
        if events:
            self.revision = revision
        return Answer(TransactionReply(True, self.revision, current)), tuple(events)

    def _put(self, put: Put, revision: int) -> Event:
        before = self._items.get(put.key)
        if before is None:
            insort(self._keys, put.key)
            item = KeyValue(put.key, put.value, 1, revision, revision, put.lease)
        else:
            self._detach(before)
            item = KeyValue(
                put.key, put.value, before.version + 1, before.create_revision, revision, put.lease
            )
        self._items[put.key] = item
        if put.lease:
            self.leases[put.lease].keys[put.key] = None
        return Event("put", item)

    def _delete(self, key: bytes, revision: int) -> Event:
        before = self._items.pop(key)
        del self._keys[bisect_left(self._keys, key)]
        self._detach(before)
        return Event(
            "delete", KeyValue(key, b"", before.version, before.create_revision, revision, 0)
        )

    def _detach(self, item: KeyValue) -> None:
        if item.lease in self.leases:
            self.leases[item.lease].keys.pop(item.key, None)

    def _end_lease(self, lease: int) -> tuple[Event, ...]:
        ended = self.leases.get(lease)
        if ended is None:
            return ()
        events = tuple(self._delete(key, self.revision + 1) for key in list(ended.keys))
        del self.leases[lease]
        if events:
            self.revision += 1
        return events

    def _remember(self, client: str, request: int, answer: Answer) -> None:
        packed = encode_answer(answer)
        self._answers[client, request] = (self.index, packed)
        self._answer_bytes += len(packed)
        while len(self._answers) > self._answers_max or self._answer_bytes > ANSWER_BYTES_MAX:
            _, (index, old) = self._answers.popitem(last=False)
            self._answer_bytes -= len(old)
            self._forgotten_to = index

    def _keep_history(self, events: tuple[Event, ...]) -> None:
        size = sum(len(e.item.key) + len(e.item.value) + EVENT_OVERHEAD_BYTES for e in events)
        self._history.append((self.revision, events, size))
        self._history_bytes += size
        while self._history_bytes > self._history_bytes_max and len(self._history) > 1:
            revision, _, size = self._history.popleft()
            self._history_bytes -= size
            self.compacted_to = revision

    def _check(self, before: int, events: tuple[Event, ...]) -> None:
        assert self.revision == before + bool(events), "a change is one revision, nothing is none"
        assert len(self._keys) == len(self._items), "every key is in order once"

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """The whole state in chunks, as it is at this call, whatever is applied while they are taken."""
        head = pack(
            [
                SNAPSHOT_FORMAT,
                self.index,
                self.revision,
                self._next_lease,
                self._forgotten_to,
                [[lease, kept.ttl_ms] for lease, kept in self.leases.items()],
            ]
        )
        items = list(map(self._items.__getitem__, self._keys))
        answers = [(c, r, index, packed) for (c, r), (index, packed) in self._answers.items()]
        return _chunks(head, items, answers)

    @classmethod
    def restore(cls, chunks: Iterable[bytes], **options: int) -> "KeyValueState":
        """The state of a snapshot. Raises `CorruptData`."""
        state = cls(**options)
        try:
            pieces = iter(chunks)
            form, state.index, state.revision, state._next_lease, state._forgotten_to, leases = (
                _read(next(pieces))
            )
            if form != SNAPSHOT_FORMAT:
                raise CorruptData(f"a snapshot of format {form}, known is {SNAPSHOT_FORMAT}")
            state.leases = {lease: Lease(ttl_ms) for lease, ttl_ms in leases}
            for piece in pieces:
                kind, rows = _read(piece)
                for row in rows:
                    state._restore_row(kind, row)
        except (TypeError, ValueError, KeyError, StopIteration) as error:
            raise CorruptData(f"not a snapshot of the key space ({error!r:.100})") from None
        state.compacted_to = state.revision
        return state

    def _restore_row(self, kind: str, row: Any) -> None:
        if kind == "items":
            item = KeyValue(*row)
            self._keys.append(item.key)
            self._items[item.key] = item
            if item.lease:
                self.leases[item.lease].keys[item.key] = None
        else:
            client, request, index, packed = row
            self._answers[client, request] = (index, packed)
            self._answer_bytes += len(packed)


STALE_REQUEST = "the request is older than the answers that are remembered: it may have been done"


def encode_answer(answer: Answer) -> bytes:
    """An answer for the wire and for the memory of answers."""
    if answer.error is not None:
        return pack(["error", answer.error.code, str(answer.error)])
    if answer.transaction is None:
        return pack(["lease", answer.lease])
    reply = answer.transaction
    return pack(
        [
            "transaction",
            reply.succeeded,
            reply.revision,
            [item_to_list(item) for item in reply.current],
        ]
    )


def decode_answer(packed: bytes | memoryview) -> Answer:
    """Raises `ProtocolError` or, for nonsense inside, `CorruptData`."""
    from ..runtime.errors import from_code

    value = unpack(packed, "an answer of the metadata quorum")
    try:
        if value[0] == "error":
            return Answer(error=from_code(int(value[1]), str(value[2])))
        if value[0] == "lease":
            return Answer(lease=int(value[1]))
        _, succeeded, revision, current = value
        return Answer(
            TransactionReply(bool(succeeded), int(revision), tuple(map(item_from_list, current)))
        )
    except (TypeError, ValueError, IndexError):
        raise CorruptData("an answer of the metadata quorum that cannot be read") from None


def item_to_list(item: KeyValue | None) -> list[Any] | None:
    """A key for the wire."""
    if item is None:
        return None
    return [item.key, item.value, item.version, item.create_revision, item.mod_revision, item.lease]


def item_from_list(value: Any) -> KeyValue | None:
    """A key from the wire. Raises `TypeError`, `ValueError`."""
    if value is None:
        return None
    key, content, version, created, changed, lease = value
    if not isinstance(key, bytes) or not isinstance(content, bytes):
        raise ValueError(key)
    return KeyValue(key, content, int(version), int(created), int(changed), int(lease))


def _chunks(
    head: bytes, items: list[KeyValue], answers: list[tuple[str, int, int, bytes]]
) -> Iterator[bytes]:
    yield head
    rows: list[Any] = []
    size = 0
    for item in items:
        rows.append(item_to_list(item))
        size += len(item.key) + len(item.value) + 40
        if size > CHUNK_BYTES:
            yield pack(["items", rows])
            rows, size = [], 0
    yield pack(["items", rows])
    rows, size = [], 0
    for answer in answers:
        rows.append(list(answer))
        size += len(answer[3]) + 60
        if size > CHUNK_BYTES:
            yield pack(["answers", rows])
            rows, size = [], 0
    yield pack(["answers", rows])


def _read(piece: bytes) -> Any:
    return unpack(piece, "a snapshot's chunk")
