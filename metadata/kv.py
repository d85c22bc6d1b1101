"""The replicated state: an ordered key space with revisions, as in etcd v3 (pure).

`apply` is deterministic: the same commands in the same order make the same state on every node, whatever
they hold; a command that cannot be meant is an error reply and changes nothing. There is no clock: a lease
ends by a command (H19). What requests came to is remembered, in the state and its snapshots: a command
that is sent again is not done again. The changes of one revision fit into one message: a transaction
and the keys of a lease have the same bounds.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from weakref import WeakSet

from ..runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    LeaseExpired,
    OutcomeUnknown,
    ProtocolError,
    TooBusy,
    TransactionTooLarge,
    from_code,
)
from .answers import (
    STALE_REQUEST,
    Answer,
)
from .commands import Command, Expire, Grant, Revoke, Transact, decode_command
from .history import HISTORY_BYTES_MAX, History
from .interface import Event, RangePage
from .request_ring import DONE, MESSAGE_CHARS_MAX, REFUSED, RING_SIZE, Remembered, RequestRing
from .transaction import (
    BYTES_MAX,
    OPERATIONS_MAX,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)

TTL_MS_MIN = 100
TTL_MS_MAX = 24 * 3600 * 1000
LEASES_MAX = 50_000
ITEM_BYTES = 100
"""What a key takes beside its bytes, about."""
RANGE_BYTES_MAX = 1024 * 1024
CURRENT_BYTES_MAX = 1024 * 1024
"""Keys and values of ``TransactionReply.current``."""


@dataclass(slots=True)
class Lease:
    """A lease and the keys that live under it (a dict for its order)."""

    ttl_ms: int
    keys: dict[bytes, None] = field(default_factory=dict)
    key_bytes: int = 0


class KeyValueState:
    """All keys in order. Revisions count changing commands from 1; 0: nothing has happened."""

    def __init__(
        self,
        *,
        requests_max: int = RING_SIZE,
        history_bytes_max: int = HISTORY_BYTES_MAX,
        leases_max: int = LEASES_MAX,
    ) -> None:
        self.revision = 0
        self.index = 0
        """The log index of the last command applied."""
        self.leases: dict[int, Lease] = {}
        self.next_lease = 1
        self.keys: list[bytes] = []
        """The keys of ``items``, in order."""
        self.items: dict[bytes, KeyValue] = {}
        self.ring = RequestRing(requests_max)
        self.history = History(history_bytes_max)
        self._leases_max = leases_max
        self._views: WeakSet[StateView] = WeakSet()
        """Snapshots that are being taken: told of every item before it changes."""

    # --- reading ----------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Watches can begin after this revision, not before it."""
        return self.history.compacted_to

    def get(self, key: bytes) -> KeyValue | None:
        """The key as it is, or None."""
        return self.items.get(key)

    def growth(self, transaction: Transaction) -> int:
        """About how many bytes the transaction would add to what stays, as the keys are now.

        What lives under a lease does not stay; a key without a value is a note of what is to be done.
        """
        grown = 0
        for operation in transaction.operations:
            before = self.items.get(operation.key)
            if isinstance(operation, Delete) or operation.lease:
                grown -= len(before.value) + ITEM_BYTES if before is not None else 0
            elif before is not None:
                grown += len(operation.value) - len(before.value)
            elif operation.value:
                grown += len(operation.key) + len(operation.value) + ITEM_BYTES
        return grown

    def range(
        self, start: bytes, end: bytes, limit: int, bytes_max: int = RANGE_BYTES_MAX
    ) -> RangePage:
        """Up to ``limit`` keys and about ``bytes_max`` of values; at least one if there is one."""
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        found: list[KeyValue] = []
        size = 0
        for key in self.keys[low : min(high, low + limit)]:
            item = self.items[key]
            size += len(key) + len(item.value)
            if found and size > bytes_max:
                break
            found.append(item)
        return RangePage(tuple(found), self.revision, low + len(found) < high)

    def events_after(
        self, revision: int, start: bytes, end: bytes
    ) -> list[tuple[int, tuple[Event, ...]]]:
        """The changes in a range after ``revision``, a revision at a time. Raises `Compacted`."""
        return self.history.after(revision, start, end)

    # --- commands ---------------------------------------------------------------------------------

    def apply(
        self, index: int, command: bytes, meant: Command | None = None
    ) -> tuple[Answer, tuple[Event, ...]]:
        """Do the command at log position ``index``; return its answer and what it changed.

        ``meant``: what `decode_command` made of these bytes, where that was done already.
        Raises nothing, whatever the bytes: every node would end by it, again at each start.
        """
        assert index == self.index + 1, f"command {index} applied after {self.index}"
        self.index = index
        if not command:
            return Answer(), ()
        try:
            meant = meant or decode_command(command)
        except ProtocolError as error:
            return Answer(error=InvalidRequest(str(error))), ()
        except DistributedLogError as error:
            return Answer(error=error), ()
        if meant.client:
            known = self.ring.find(meant.client, meant.request)
            if known is not None:
                return self._again(meant, known), ()
            if self.ring.may_be_forgotten(meant.base_index):
                return Answer(error=OutcomeUnknown(STALE_REQUEST)), ()
        revision = self.revision
        answer, events = self._do(meant)
        if meant.client:
            self.ring.add(Remembered(index, meant.client, meant.request, *_outcome(answer)))
        if events:
            self.history.append(self.revision, events)
        assert self.revision == revision + bool(events), "a change is one revision, nothing is none"
        assert len(self.keys) == len(self.items), "every key is in order once"
        return answer, events

    def _do(self, meant: Command) -> tuple[Answer, tuple[Event, ...]]:
        if isinstance(meant, Transact):
            return self._transact(meant.transaction)
        if isinstance(meant, Grant):
            return self._grant(meant.ttl_ms), ()
        if isinstance(meant, Revoke | Expire):
            return Answer(lease=meant.lease), self._end_lease(meant.lease)
        return Answer(), ()

    def answered(self, meant: Command) -> Answer | None:
        """What a client's request came to, if that is known: it need not be in the log once more."""
        known = self.ring.find(meant.client, meant.request)
        return self._again(meant, known) if known is not None else None

    def _again(self, meant: Command, known: Remembered) -> Answer:
        """The answer to a command that was done before, or refused before."""
        if known.code == REFUSED:
            return self._refusal(meant.transaction) if isinstance(meant, Transact) else Answer()
        if known.code != DONE:
            return Answer(error=from_code(known.code, str(known.outcome)))
        if isinstance(meant, Transact):
            return Answer(TransactionReply(True, int(known.outcome)))
        return Answer(lease=int(known.outcome))

    # --- transactions -----------------------------------------------------------------------------

    def _transact(self, transaction: Transaction) -> tuple[Answer, tuple[Event, ...]]:
        for compare in transaction.compares:
            if not compare.holds(self.items.get(compare.key)):
                return self._refusal(transaction), ()
        error = self._why_leases_refuse(transaction)
        if error is not None:
            return Answer(error=error), ()
        events: list[Event] = []
        revision = self.revision + 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            elif operation.key in self.items:
                events.append(self._delete(operation.key, revision))
        if events:
            self.revision = revision
        return Answer(TransactionReply(True, self.revision)), tuple(events)

    def _refusal(self, transaction: Transaction) -> Answer:
        """A compare did not hold: say how the keys are now. Said again, it may say something newer."""
        current = tuple(self.items.get(compare.key) for compare in transaction.compares)
        size = sum(len(item.key) + len(item.value) for item in current if item is not None)
        if size > CURRENT_BYTES_MAX:
            return Answer(
                error=TransactionTooLarge(
                    f"a condition does not hold, and the {len(current)} compared keys are {size} bytes,"
                    f" more than the {CURRENT_BYTES_MAX} of an answer: compare fewer of them at once"
                )
            )
        return Answer(TransactionReply(False, self.revision, current))

    def _why_leases_refuse(self, transaction: Transaction) -> DistributedLogError | None:
        added: dict[int, list[int]] = {}
        for operation in transaction.operations:
            if not isinstance(operation, Put) or not operation.lease:
                continue
            lease = self.leases.get(operation.lease)
            if lease is None:
                return LeaseExpired(f"lease {operation.lease} is gone")
            if operation.key not in lease.keys:
                added.setdefault(operation.lease, []).append(len(operation.key))
        for lease_id, sizes in added.items():
            lease = self.leases[lease_id]
            count, size = len(lease.keys) + len(sizes), lease.key_bytes + sum(sizes)
            if (
                count > OPERATIONS_MAX or size > BYTES_MAX
            ):  # its end is one change, as a transaction
                return TransactionTooLarge(
                    f"lease {lease_id} would hold {count} keys of {size} bytes;"
                    f" allowed are {OPERATIONS_MAX} and {BYTES_MAX}"
                )
        return None

    def _put(self, put: Put, revision: int) -> Event:
        before = self.items.get(put.key)
        if before is None:
            insort(self.keys, put.key)
            item = KeyValue(put.key, put.value, 1, revision, revision, put.lease)
        else:
            self._leave(before)
            item = KeyValue(
                put.key, put.value, before.version + 1, before.create_revision, revision, put.lease
            )
        self._enter(item)
        return Event("put", item)

    def _delete(self, key: bytes, revision: int) -> Event:
        before = self.items.pop(key)
        del self.keys[bisect_left(self.keys, key)]
        self._leave(before)
        return Event(
            "delete", KeyValue(key, b"", before.version, before.create_revision, revision, 0)
        )

    def _enter(self, item: KeyValue) -> None:
        self.items[item.key] = item
        if item.lease:
            lease = self.leases[item.lease]
            lease.keys[item.key] = None
            lease.key_bytes += len(item.key)

    def _leave(self, item: KeyValue) -> None:
        """The item is replaced or deleted."""
        if item.lease:
            lease = self.leases[item.lease]
            del lease.keys[item.key]
            lease.key_bytes -= len(item.key)
        if self._views:
            for view in self._views:
                view.on_change(item)

    # --- leases -----------------------------------------------------------------------------------

    def _grant(self, ttl_ms: int) -> Answer:
        if len(self.leases) >= self._leases_max:
            return Answer(error=TooBusy(f"there are {len(self.leases)} leases already"))
        lease = self.next_lease
        self.next_lease += 1
        self.leases[lease] = Lease(min(max(ttl_ms, TTL_MS_MIN), TTL_MS_MAX))
        return Answer(lease=lease)

    def _end_lease(self, lease_id: int) -> tuple[Event, ...]:
        lease = self.leases.get(lease_id)
        if lease is None:
            return ()
        revision = self.revision + 1
        # In key order: a node that was restored from a snapshot knows no other.
        events = tuple(self._delete(key, revision) for key in sorted(lease.keys))
        del self.leases[lease_id]
        if events:
            self.revision = revision
        return events

    # --- snapshots --------------------------------------------------------------------------------

    def view(self) -> "StateView":
        """The state as it is at this call, for `kv_snapshot.py`."""
        view = StateView(self)
        self._views.add(view)
        return view

    def add_lease(self, lease_id: int, ttl_ms: int) -> None:
        """A snapshot has it."""
        self.leases[lease_id] = Lease(ttl_ms)

    def add_item(self, item: KeyValue) -> None:
        """A snapshot has it, after all that were added."""
        self.keys.append(item.key)
        self._enter(item)


class StateView:
    """The state as it was when this was made, while it goes on changing.

    Nothing is copied but the list of keys and the small parts: 10 ms for a million keys. The state tells the
    view of each item before it changes it.
    """

    def __init__(self, state: KeyValueState) -> None:
        self.index = state.index
        self.revision = state.revision
        self.next_lease = state.next_lease
        self.leases = [(lease_id, lease.ttl_ms) for lease_id, lease in state.leases.items()]
        self.floor = state.ring.floor
        self.requests = state.ring.rows()
        self.keys = state.keys.copy()
        self._items = state.items
        self._before: dict[bytes, KeyValue] = {}

    def on_change(self, item: KeyValue) -> None:
        """The item is about to be replaced or deleted; only what it was first counts."""
        self._before.setdefault(item.key, item)

    def item(self, key: bytes) -> KeyValue:
        """One of ``keys``."""
        return self._before.get(key) or self._items[key]


def _outcome(answer: Answer) -> tuple[int, int | str]:
    """What to remember of an answer: (code, outcome) of `Remembered`."""
    if answer.error is not None:
        return answer.error.code, str(answer.error)[:MESSAGE_CHARS_MAX]
    if answer.transaction is None:
        return DONE, answer.lease
    if answer.transaction.succeeded:
        return DONE, answer.transaction.revision
    return REFUSED, 0
