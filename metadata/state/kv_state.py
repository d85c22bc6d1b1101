"""The replicated state: an ordered key space with revisions, as in etcd v3 (pure).

`apply` is deterministic: the same commands in the same order make the same state on every node, whatever
they hold; a command that cannot be meant is an error reply and changes nothing. There is no clock: a lease
ends by a command (H19). What requests came to is remembered, in the state and its snapshots: a command
that is sent again is not done again. The changes of one revision fit into one message: a transaction
and the keys of a lease have the same bounds.

What a key has is one `bytes`: its numbers, then its value. An object a key would take more memory than most
values, and the search for cyclic garbage would look at each of them: 0.3 s in one turn at a million keys.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct
from sys import maxsize
from weakref import WeakSet

from xxhash import xxh3_64_intdigest

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LeaseExpired,
    OutcomeUnknown,
    ProtocolError,
    TooBusy,
    TransactionTooLarge,
    UnsupportedFormat,
    from_code,
)
from ...runtime.primitives.sorted_keys import SortedKeys
from ..model.command_results import (
    STALE_REQUEST,
    CommandResult,
)
from ..model.commands import (
    Expire,
    Grant,
    ReplicatedCommand,
    Revoke,
    Transact,
    TrustChange,
    decode_command,
)
from ..model.interface import RangePage, WatchEvent
from ..model.request_identity import owner_of
from ..model.transaction import (
    BYTES_MAX,
    OPERATIONS_MAX,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from .request_dedup import DONE, MESSAGE_CHARS_MAX, REFUSED, RING_SIZE, Remembered, RequestDedup
from .watch_history import HISTORY_BYTES_MAX, WatchHistory

TTL_MS_MIN = 100
TTL_MS_MAX = 24 * 3600 * 1000
LEASES_MAX = 50_000
ITEM_BYTES = 100
"""What a key takes beside its bytes, about."""
RANGE_BYTES_MAX = 1024 * 1024
CURRENT_BYTES_MAX = 1024 * 1024
"""Keys and values of ``TransactionReply.current``."""


HEAD = Struct("<qqqq")
"""What is stored before a key's value: version, lease, create revision, mod revision."""
_DIGEST = Struct("<QqqqqQ")
_SUM_MASK = (1 << 64) - 1
DIGEST_BITS = 62
CHANGES = (Transact, TrustChange)

OnChange = Callable[[bytes, bytes | None, bytes | None], None]
"""Gets each key that is made, replaced or deleted, with the stored bytes before and after."""


@dataclass(slots=True)
class Lease:
    """A lease and the keys that live under it (a dict for its order)."""

    ttl_ms: int
    owner: str = ""
    """The principal that it was granted to; "": to an anonymous client, or by a node of before."""
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
        self.trust_revision = 0
        """Of the last change of who may do what (`commands.TrustChange`); 0: there was none, and nothing is
        judged."""
        self.leases: dict[int, Lease] = {}
        self.leases_of: dict[str, int] = {}
        """How many each owner has; "": anonymous clients."""
        self.next_lease = 1
        self.keys = SortedKeys()
        """The keys of ``stored``."""
        self.stored: dict[bytes, bytes] = {}
        """What each key has: `HEAD` and the value."""
        self.ring = RequestDedup(requests_max)
        self.history = WatchHistory(history_bytes_max)
        self._sum = 0
        """Of what all keys have: see `digest`."""
        self._leases_max = leases_max
        self._on_change: OnChange | None = None
        self._is_viewed = False
        """There may be some of these:"""
        self._views: WeakSet[StateView] = WeakSet()
        """Snapshots that are being taken: told of every item before it changes."""

    def subscribe(self, on_change: OnChange | None) -> None:
        """Call ``on_change`` at each change of a key. A state has one subscriber; None ends it."""
        self._on_change = on_change

    # --- reading ----------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Watches can begin after this revision, not before it."""
        return self.history.compacted_to

    def get(self, key: bytes) -> KeyValue | None:
        """The key as it is, or None."""
        stored = self.stored.get(key)
        return _item(key, stored) if stored is not None else None

    def growth(self, transaction: Transaction) -> int:
        """About how many bytes the transaction would add to what stays, as the keys are now.

        What lives under a lease does not stay; a key without a value is a note of what is to be done.
        """
        grown = 0
        for operation in transaction.operations:
            before = self.stored.get(operation.key)
            if isinstance(operation, Delete) or operation.lease:
                grown -= len(before) - HEAD.size + ITEM_BYTES if before is not None else 0
            elif before is not None:
                grown += len(operation.value) - (len(before) - HEAD.size)
            elif operation.value:
                grown += len(operation.key) + len(operation.value) + ITEM_BYTES
        return grown

    def range(
        self, start: bytes, end: bytes, limit: int, bytes_max: int = RANGE_BYTES_MAX
    ) -> RangePage:
        """Up to ``limit`` keys and about ``bytes_max`` of values; at least one if there is one."""
        keys = self.keys.between(start, end, limit + 1)
        found: list[KeyValue] = []
        size = 0
        for key in keys[:limit]:
            stored = self.stored[key]
            size += len(key) + len(stored) - HEAD.size
            if found and size > bytes_max:
                break
            found.append(_item(key, stored))
        return RangePage(tuple(found), self.revision, len(found) < len(keys))

    def range_of(self, parts: Iterable[tuple[bytes, bytes]], limit: int) -> RangePage:
        """The same, of parts of a range, in order."""
        found: list[KeyValue] = []
        parts = list(parts)
        for number, (start, end) in enumerate(parts):
            page = self.range(start, end, limit - len(found))
            found += page.items
            if page.more or len(found) >= limit:
                return RangePage(tuple(found), self.revision, page.more or number + 1 < len(parts))
        return RangePage(tuple(found), self.revision, False)

    def events_after(
        self, revision: int, start: bytes, end: bytes
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """The changes in a range after ``revision``, a revision at a time. Raises `Compacted`."""
        return self.history.after(revision, start, end)

    def digest(self) -> int:
        """`DIGEST_BITS` bits that are the same on every node after the same entry, and hardly otherwise.

        Nodes of all versions compare it: what goes in here is never changed. A sum over all keys, so that a
        change costs what it changes, and a snapshot need not store it.
        """
        assert len(self.keys) == len(self.stored), "every key is in order once"
        numbers = (self.revision, self.next_lease, len(self.stored), len(self.leases))
        words = _DIGEST.pack(self._sum & _SUM_MASK, *numbers, self.ring.floor)
        return xxh3_64_intdigest(words) >> 64 - DIGEST_BITS

    # --- commands ---------------------------------------------------------------------------------

    def apply(
        self, index: int, command: bytes, meant: ReplicatedCommand | None = None
    ) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        """Do the command at log position ``index``; return its answer and what it changed.

        ``meant``: what `decode_command` made of these bytes, where that was done already.
        Raises nothing, whatever the bytes: every node would end by it, again at each start. But
        `UnsupportedFormat`, with nothing done, where only a newer version knows what is meant: who took that
        for an error, and went on, would have another state than those who know it (H105).
        """
        assert index == self.index + 1, f"command {index} applied after {self.index}"
        refusal: DistributedLogError | None = None
        if command and meant is None:
            try:
                meant = decode_command(command)
            except UnsupportedFormat:
                raise  # a snapshot of before it must not say that it was applied
            except ProtocolError as error:
                refusal = InvalidRequest(str(error))
            except DistributedLogError as error:
                refusal = error
        self.index = index
        if meant is None:
            return CommandResult(error=refusal), ()
        if meant.client:
            known = self.ring.find(meant.client, meant.request)
            if known is not None:
                return self._again(meant, known), ()
            if self.ring.may_be_forgotten(meant.base_index):
                return CommandResult(error=OutcomeUnknown(STALE_REQUEST, OutcomeUnknown.STALE)), ()
        revision = self.revision
        answer, events = self._do(meant)
        if meant.client:
            self.ring.add(index, meant.client, meant.request, *_outcome(answer))
        if events:
            self.history.append(self.revision, events)
        assert self.revision == revision + bool(events), "a change is one revision, nothing is none"
        return answer, events

    def _do(self, meant: ReplicatedCommand) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        if isinstance(meant, Transact):
            return self._transact(meant.transaction)
        if isinstance(meant, TrustChange):
            answer, events = self._transact(meant.transaction)
            if events:
                self.trust_revision = self.revision
            return answer, events
        if isinstance(meant, Grant):
            return self._grant(meant.ttl_ms, owner_of(meant.client)), ()
        if isinstance(meant, Revoke | Expire):
            return CommandResult(lease=meant.lease), self._end_lease(meant.lease)
        return CommandResult(), ()

    def answered(self, meant: ReplicatedCommand) -> CommandResult | None:
        """What a client's request came to, if that is known: it need not be in the log once more."""
        known = self.ring.find(meant.client, meant.request)
        return self._again(meant, known) if known is not None else None

    def _again(self, meant: ReplicatedCommand, known: Remembered) -> CommandResult:
        """The answer to a command that was done before, or refused before."""
        if known.code == REFUSED:
            return (
                self._refusal(meant.transaction) if isinstance(meant, CHANGES) else CommandResult()
            )
        if known.code != DONE:
            return CommandResult(error=from_code(known.code, str(known.outcome)))
        if isinstance(meant, CHANGES):
            return CommandResult(TransactionReply(True, int(known.outcome)))
        return CommandResult(lease=int(known.outcome))

    # --- transactions -----------------------------------------------------------------------------

    def _transact(self, transaction: Transaction) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        for compare in transaction.compares:
            if not compare.holds(self.get(compare.key)):
                return self._refusal(transaction), ()
        error = self._why_leases_refuse(transaction)
        if error is not None:
            return CommandResult(error=error), ()
        events: list[WatchEvent] = []
        revision = self.revision + 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            elif operation.key in self.stored:
                events.append(self._delete(operation.key, revision))
        if events:
            self.revision = revision
        return CommandResult(TransactionReply(True, self.revision)), tuple(events)

    def _refusal(self, transaction: Transaction) -> CommandResult:
        """A compare did not hold: say how the keys are now. Said again, it may say something newer."""
        current = tuple(self.get(compare.key) for compare in transaction.compares)
        size = sum(len(item.key) + len(item.value) for item in current if item is not None)
        if size > CURRENT_BYTES_MAX:
            return CommandResult(
                error=TransactionTooLarge(
                    f"a condition does not hold, and the {len(current)} compared keys are {size} bytes,"
                    f" more than the {CURRENT_BYTES_MAX} of an answer: compare fewer of them at once"
                )
            )
        return CommandResult(TransactionReply(False, self.revision, current))

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

    def _put(self, put: Put, revision: int) -> WatchEvent:
        key, value, lease = put.key, put.value, put.lease
        before = self.stored.get(key)
        if before is None:
            self.keys.add(key)
            version, created = 1, revision
        else:
            version, _, created, _ = HEAD.unpack_from(before)
            version += 1
        stored = HEAD.pack(version, lease, created, revision) + value
        self._leave(key, before)
        self._enter(key, lease, stored)
        if self._on_change is not None:
            self._on_change(key, before, stored)
        return WatchEvent("put", KeyValue(key, value, version, created, revision, lease))

    def _delete(self, key: bytes, revision: int) -> WatchEvent:
        before = self.stored.pop(key)
        self.keys.remove(key)
        self._leave(key, before)
        if self._on_change is not None:
            self._on_change(key, before, None)
        version, _, created, _ = HEAD.unpack_from(before)
        return WatchEvent("delete", KeyValue(key, b"", version, created, revision, 0))

    def _enter(self, key: bytes, lease_id: int, stored: bytes) -> None:
        self.stored[key] = stored
        self._sum += xxh3_64_intdigest(key + stored)
        if lease_id:
            lease = self.leases[lease_id]
            lease.keys[key] = None
            lease.key_bytes += len(key)

    def _leave(self, key: bytes, stored: bytes | None) -> None:
        """What the key has is replaced or deleted; None: it is made."""
        if stored is not None:
            self._sum -= xxh3_64_intdigest(key + stored)
            if lease_id := HEAD.unpack_from(stored)[1]:
                lease = self.leases[lease_id]
                del lease.keys[key]
                lease.key_bytes -= len(key)
        if self._is_viewed:
            for view in self._views:
                view.on_change(key, stored)
            self._is_viewed = bool(self._views)

    # --- leases -----------------------------------------------------------------------------------

    def _grant(self, ttl_ms: int, owner: str) -> CommandResult:
        if len(self.leases) >= self._leases_max:
            return CommandResult(error=TooBusy(f"there are {len(self.leases)} leases already"))
        lease = self.next_lease
        self.next_lease += 1
        self.add_lease(lease, min(max(ttl_ms, TTL_MS_MIN), TTL_MS_MAX), owner)
        return CommandResult(lease=lease)

    def _end_lease(self, lease_id: int) -> tuple[WatchEvent, ...]:
        lease = self.leases.get(lease_id)
        if lease is None:
            return ()
        revision = self.revision + 1
        # In key order: a node that was restored from a snapshot knows no other.
        events = tuple(self._delete(key, revision) for key in sorted(lease.keys))
        del self.leases[lease_id]
        self.leases_of[lease.owner] -= 1
        if not self.leases_of[lease.owner]:
            del self.leases_of[lease.owner]
        if events:
            self.revision = revision
        return events

    # --- snapshots --------------------------------------------------------------------------------

    def view(self, changes_bytes_max: int = maxsize) -> "StateView":
        """The state as it is at this call, for `kv_snapshot.py`; see `StateView`."""
        view = StateView(self, changes_bytes_max)
        self._views.add(view)
        self._is_viewed = True
        return view

    def add_lease(self, lease_id: int, ttl_ms: int, owner: str = "") -> None:
        """It was granted, or a snapshot has it."""
        self.leases[lease_id] = Lease(ttl_ms, owner)
        self.leases_of[owner] = self.leases_of.get(owner, 0) + 1

    def add_stored(self, key: bytes, stored: bytes, lease_id: int) -> None:
        """A snapshot has it, after all that were added."""
        self.keys.add(key)
        self._enter(key, lease_id, stored)


class StateView:
    """The state as it was when this was made, while it goes on changing; its keys are taken in order.

    Nothing is copied but the small parts. The state tells of each key before it changes it; what the key
    had is kept here, unless it was taken already.
    """

    def __init__(self, state: KeyValueState, changes_bytes_max: int) -> None:
        """``changes_bytes_max``: of what changes ahead; with more of it, this view has come to nothing."""
        self.changes_bytes = 0
        """Of what is kept of them."""
        self._is_lost = False
        self._changes_bytes_max = changes_bytes_max
        self.index = state.index
        self.revision = state.revision
        self.next_lease = state.next_lease
        self.trust_revision = state.trust_revision
        self.leases = [
            (lease_id, lease.ttl_ms, lease.owner) for lease_id, lease in state.leases.items()
        ]
        self.floor = state.ring.floor
        self.requests = state.ring.rows()
        self.count = len(state.stored)
        """Keys."""
        self._keys = state.keys
        self._stored = state.stored
        self._taken_to = b""
        self._before: dict[bytes, bytes | None] = {}
        """What changed keys had that are to be taken still; None: there was no such key."""
        self._changed = SortedKeys()
        """The keys of ``_before``."""

    def on_change(self, key: bytes, stored: bytes | None) -> None:
        """The key is about to be made, replaced or deleted; only what it was first counts."""
        if self._is_lost or key <= self._taken_to or key in self._before:
            return
        self._before[key] = stored
        self._changed.add(key)
        self.changes_bytes += _kept_bytes(key, stored)
        if self.changes_bytes > self._changes_bytes_max:
            self._is_lost = True
            self._before, self._changed = {}, SortedKeys()

    def take(self, keys_max: int) -> list[tuple[bytes, bytes]]:
        """The next keys with what they had, some ``keys_max`` of them; none: that was all.

        Raises `InvalidRequest` where more has changed meanwhile than this view was to keep.
        """
        if self._is_lost:
            raise InvalidRequest(
                f"more than {self._changes_bytes_max} bytes have changed before this save was fetched:"
                " begin again"
            )
        found: list[tuple[bytes, bytes]] = []
        while not found:
            now = self._keys.after(self._taken_to, keys_max)
            then = self._changed.after(self._taken_to, keys_max)
            keys = sorted({*now, *then})
            if not keys:
                break
            # After the end of a list that was cut there may be others before the next of the other one.
            until = min(cut[-1] if len(cut) == keys_max else keys[-1] for cut in (now, then))
            for key in keys:
                if key > until:
                    break
                if key in self._before:
                    stored = self._before.pop(key)
                    self.changes_bytes -= _kept_bytes(key, stored)
                else:
                    stored = self._stored[key]
                if stored is not None:
                    found.append((key, stored))
            for key in then:
                if key <= until:
                    self._changed.remove(key)
            self._taken_to = until
        return found


def _kept_bytes(key: bytes, stored: bytes | None) -> int:
    return len(key) + ITEM_BYTES + (len(stored) if stored is not None else 0)


def pack_item(item: KeyValue) -> bytes:
    """What is stored for a key."""
    return HEAD.pack(item.version, item.lease, item.create_revision, item.mod_revision) + item.value


def _item(key: bytes, stored: bytes) -> KeyValue:
    version, lease, created, changed = HEAD.unpack_from(stored)
    return KeyValue(key, stored[HEAD.size :], version, created, changed, lease)


def _outcome(answer: CommandResult) -> tuple[int, int | str]:
    """What to remember of an answer: (code, outcome) of `Remembered`."""
    if answer.error is not None:
        return answer.error.code, str(answer.error)[:MESSAGE_CHARS_MAX]
    if answer.transaction is None:
        return DONE, answer.lease
    if answer.transaction.succeeded:
        return DONE, answer.transaction.revision
    return REFUSED, 0
