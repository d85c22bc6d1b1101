"""The replicated state: an ordered key space with revisions, as in etcd v3 (pure).

`apply` is deterministic: the same commands in the same order produce the same state on every node, whatever
they contain. An invalid command returns an error and changes nothing. The state has no clock, so a lease
ends by a command (H19). The results of requests are stored in the state and its snapshots, so a command
that is sent again is not executed again. A transaction and the keys of a lease have the same limits, so
that the changes of one revision fit into one message.

The stored value of a key is one `bytes` object: its numbers, then its value. An object per key would use
more memory than most values. The garbage collector would also visit each of these objects: 0.3 s in one
event-loop iteration with a million keys.
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
    AuthorizationChange,
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    decode_command,
)
from ..model.interface import RangePage, WatchEvent
from ..model.request_identity import principal_of_client
from ..model.transaction import (
    BYTES_MAX,
    OPERATIONS_MAX,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from .request_dedup import (
    CONDITION_FAILED,
    MESSAGE_CHARS_MAX,
    REMEMBERED_REQUESTS,
    SUCCEEDED,
    RememberedRequest,
    RequestDedup,
)
from .watch_history import HISTORY_BYTES_MAX, WatchHistory

TTL_MS_MIN = 100
TTL_MS_MAX = 24 * 3600 * 1000
LEASES_MAX = 50_000
KEY_OVERHEAD_BYTES = 100
"""Approximate memory of a key in addition to its bytes."""
RANGE_BYTES_MAX = 1024 * 1024
CURRENT_BYTES_MAX = 1024 * 1024
"""Size limit of keys and values in ``TransactionReply.current``."""


VALUE_HEADER = Struct("<qqqq")
"""The header before a key's value: version, lease, create revision, mod revision."""
_DIGEST = Struct("<QqqqqQ")
_SUM_MASK = (1 << 64) - 1
DIGEST_BITS = 62
TRANSACTION_COMMANDS = (Transact, AuthorizationChange)

OnChange = Callable[[bytes, bytes | None, bytes | None], None]
"""Receives each key that is created, replaced or deleted, with the stored bytes before and after."""


@dataclass(slots=True)
class Lease:
    """A lease and the keys that are bound to it. They are a dict to keep their order."""

    ttl_ms: int
    owner: str = ""
    """The principal of the lease. "" for an anonymous client, or if an older version granted it."""
    keys: dict[bytes, None] = field(default_factory=dict)
    key_bytes: int = 0


class KeyValueState:
    """All keys in order. Revisions count the commands with changes, from 1. A new state has revision 0."""

    def __init__(
        self,
        *,
        requests_max: int | None = None,
        history_bytes_max: int | None = None,
        leases_max: int = LEASES_MAX,
    ) -> None:
        """Start empty.

        Args:
            requests_max: The number of requests whose results are remembered. Default `REMEMBERED_REQUESTS`.
            history_bytes_max: The bytes of changes that are kept for watches. Default `HISTORY_BYTES_MAX`.
            leases_max: The number of leases that may exist.
        """
        self.revision = 0
        self.index = 0
        """The log index of the last applied command."""
        self.authorization_revision = 0
        """Revision of the last `AuthorizationChange`.

        0 if there was none. Then all requests are executed without a check.
        """
        self.leases: dict[int, Lease] = {}
        self.lease_count_by_owner: dict[str, int] = {}
        """Number of leases per owner. "" stands for all anonymous clients."""
        self.next_lease = 1
        self.keys = SortedKeys()
        """The keys of `stored_values`, in order."""
        self.stored_values: dict[bytes, bytes] = {}
        """The stored bytes of each key: `VALUE_HEADER` and the value."""
        self.request_dedup = RequestDedup(
            REMEMBERED_REQUESTS if requests_max is None else requests_max
        )
        self.watch_history = WatchHistory(
            HISTORY_BYTES_MAX if history_bytes_max is None else history_bytes_max
        )
        self._hash_sum = 0
        """Sum of the hashes of all stored keys, see `digest`."""
        self._leases_max = leases_max
        self._on_change: OnChange | None = None
        self._has_views = False
        """Whether `_views` may contain a view."""
        self._views: WeakSet[StateView] = WeakSet()
        """The views of snapshots in progress. They receive each stored value before it changes."""

    def subscribe(self, on_change: OnChange | None) -> None:
        """Call ``on_change`` for each change of a key. The state has one subscriber, and None removes it."""
        self._on_change = on_change

    # --- reading ----------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Oldest revision after which a watch can begin."""
        return self.watch_history.compacted_to

    def get(self, key: bytes) -> KeyValue | None:
        """Return the present state of a key, or None."""
        stored = self.stored_values.get(key)
        return _item(key, stored) if stored is not None else None

    def growth_bytes(self, transaction: Transaction) -> int:
        """Return approximately how many bytes the transaction would add permanently to the present state.

        Keys bound to a lease are temporary and do not count. A key without a value does not count either,
        because it is a request for work that will be done.
        """
        total_bytes = 0
        for operation in transaction.operations:
            stored = self.stored_values.get(operation.key)
            if isinstance(operation, Delete) or operation.lease:
                total_bytes -= (
                    len(stored) - VALUE_HEADER.size + KEY_OVERHEAD_BYTES
                    if stored is not None
                    else 0
                )
            elif stored is not None:
                total_bytes += len(operation.value) - (len(stored) - VALUE_HEADER.size)
            elif operation.value:
                total_bytes += len(operation.key) + len(operation.value) + KEY_OVERHEAD_BYTES
        return total_bytes

    def range(
        self, start: bytes, end: bytes, limit: int, bytes_max: int = RANGE_BYTES_MAX
    ) -> RangePage:
        """Return up to ``limit`` keys of about ``bytes_max`` bytes, but at least one if any exists."""
        keys = self.keys.between(start, end, limit + 1)
        items: list[KeyValue] = []
        size = 0
        for key in keys[:limit]:
            stored = self.stored_values[key]
            size += len(key) + len(stored) - VALUE_HEADER.size
            if items and size > bytes_max:
                break
            items.append(_item(key, stored))
        return RangePage(tuple(items), self.revision, len(items) < len(keys))

    def range_of_parts(self, parts: Iterable[tuple[bytes, bytes]], limit: int) -> RangePage:
        """Return keys of several parts of a range, which are in order, as `range` does."""
        items: list[KeyValue] = []
        parts = list(parts)
        for number, (start, end) in enumerate(parts):
            page = self.range(start, end, limit - len(items))
            items += page.items
            if page.more or len(items) >= limit:
                return RangePage(tuple(items), self.revision, page.more or number + 1 < len(parts))
        return RangePage(tuple(items), self.revision, False)

    def events_after(
        self, revision: int, start: bytes, end: bytes
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """Return the changes in a range after ``revision``, grouped by revision, or raise `Compacted`."""
        return self.watch_history.after(revision, start, end)

    def digest(self) -> int:
        """Return `DIGEST_BITS` bits that are equal on every node after the same entry.

        Different states have different digests with high probability. Nodes of all versions compare
        digests, so their input never changes. The digest is based on a sum over all keys. Therefore a
        change of a key costs little, and a snapshot need not store the digest.
        """
        assert len(self.keys) == len(self.stored_values), "every key is in order once"
        numbers = (self.revision, self.next_lease, len(self.stored_values), len(self.leases))
        words = _DIGEST.pack(
            self._hash_sum & _SUM_MASK, *numbers, self.request_dedup.forgotten_through
        )
        return xxh3_64_intdigest(words) >> 64 - DIGEST_BITS

    # --- commands ---------------------------------------------------------------------------------

    def apply(
        self, index: int, command: bytes, decoded_command: ReplicatedCommand | None = None
    ) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        """Apply the command at log index ``index`` and return its result and its changes.

        Invalid bytes give an error result and no exception, because an exception would end every node,
        again at each start. `UnsupportedFormat` is the one exception: a node that skipped the command of a
        newer version would have a different state from the nodes that support it (H105).

        Args:
            index: The index of the command, one above `self.index`.
            command: The encoded command. Empty bytes change nothing.
            decoded_command: The result of `decode_command` for these bytes, if the caller has it.

        Raises:
            UnsupportedFormat: Only a newer version supports the command. Nothing was changed.
        """
        assert index == self.index + 1, f"command {index} applied after {self.index}"
        refusal: DistributedLogError | None = None
        if command and decoded_command is None:
            try:
                decoded_command = decode_command(command)
            except UnsupportedFormat:
                raise  # before the index changes, so that a snapshot does not include this command
            except ProtocolError as error:
                refusal = InvalidRequest(str(error))
            except DistributedLogError as error:
                refusal = error
        self.index = index
        if decoded_command is None:
            return CommandResult(error=refusal), ()
        if decoded_command.client:
            remembered = self.request_dedup.find(
                decoded_command.client, decoded_command.request_number
            )
            if remembered is not None:
                return self._result_of_remembered(decoded_command, remembered), ()
            if self.request_dedup.may_be_forgotten(decoded_command.base_index):
                return CommandResult(error=OutcomeUnknown(STALE_REQUEST, OutcomeUnknown.STALE)), ()
        revision = self.revision
        result, events = self._execute(decoded_command)
        if decoded_command.client:
            self.request_dedup.add(
                index, decoded_command.client, decoded_command.request_number, *_outcome(result)
            )
        if events:
            self.watch_history.append(self.revision, events)
        assert self.revision == revision + bool(events), "a change is one revision, nothing is none"
        return result, events

    def _execute(
        self, decoded_command: ReplicatedCommand
    ) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        if isinstance(decoded_command, Transact):
            return self._transact(decoded_command.transaction)
        if isinstance(decoded_command, AuthorizationChange):
            result, events = self._transact(decoded_command.transaction)
            if events:
                self.authorization_revision = self.revision
            return result, events
        if isinstance(decoded_command, GrantLease):
            return self._grant(
                decoded_command.ttl_ms, principal_of_client(decoded_command.client)
            ), ()
        if isinstance(decoded_command, RevokeLease | ExpireLease):
            return CommandResult(lease=decoded_command.lease), self._end_lease(
                decoded_command.lease
            )
        return CommandResult(), ()

    def earlier_result(self, decoded_command: ReplicatedCommand) -> CommandResult | None:
        """Return the result of a client's request if it is remembered.

        The request need not be added to the log again.
        """
        remembered = self.request_dedup.find(decoded_command.client, decoded_command.request_number)
        return (
            self._result_of_remembered(decoded_command, remembered)
            if remembered is not None
            else None
        )

    def _result_of_remembered(
        self, decoded_command: ReplicatedCommand, remembered: RememberedRequest
    ) -> CommandResult:
        """Return the result of a command that was executed or refused earlier."""
        if remembered.code == CONDITION_FAILED:
            return (
                self._condition_failed_result(decoded_command.transaction)
                if isinstance(decoded_command, TRANSACTION_COMMANDS)
                else CommandResult()
            )
        if remembered.code != SUCCEEDED:
            return CommandResult(error=from_code(remembered.code, str(remembered.outcome)))
        if isinstance(decoded_command, TRANSACTION_COMMANDS):
            return CommandResult(TransactionReply(True, int(remembered.outcome)))
        return CommandResult(lease=int(remembered.outcome))

    # --- transactions -----------------------------------------------------------------------------

    def _transact(self, transaction: Transaction) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
        for compare in transaction.compares:
            if not compare.holds(self.get(compare.key)):
                return self._condition_failed_result(transaction), ()
        error = self._lease_error(transaction)
        if error is not None:
            return CommandResult(error=error), ()
        events: list[WatchEvent] = []
        revision = self.revision + 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            elif operation.key in self.stored_values:
                events.append(self._delete(operation.key, revision))
        if events:
            self.revision = revision
        return CommandResult(TransactionReply(True, self.revision)), tuple(events)

    def _condition_failed_result(self, transaction: Transaction) -> CommandResult:
        """Return the compared keys, because a compare failed. For a repeated request they may be newer."""
        current = tuple(self.get(compare.key) for compare in transaction.compares)
        size = sum(len(item.key) + len(item.value) for item in current if item is not None)
        if size > CURRENT_BYTES_MAX:
            return CommandResult(
                error=TransactionTooLarge(
                    f"a condition does not hold, and the {len(current)} compared keys are {size} bytes,"
                    f" more than the {CURRENT_BYTES_MAX} of a reply. Compare fewer keys at once"
                )
            )
        return CommandResult(TransactionReply(False, self.revision, current))

    def _lease_error(self, transaction: Transaction) -> DistributedLogError | None:
        added: dict[int, list[int]] = {}
        for operation in transaction.operations:
            if not isinstance(operation, Put) or not operation.lease:
                continue
            lease = self.leases.get(operation.lease)
            if lease is None:
                return LeaseExpired(f"lease {operation.lease} does not exist or has ended")
            if operation.key not in lease.keys:
                added.setdefault(operation.lease, []).append(len(operation.key))
        for lease_id, sizes in added.items():
            lease = self.leases[lease_id]
            count, size = len(lease.keys) + len(sizes), lease.key_bytes + sum(sizes)
            if (
                count > OPERATIONS_MAX or size > BYTES_MAX
            ):  # the end of a lease is one change, with the limits of a transaction
                return TransactionTooLarge(
                    f"lease {lease_id} would hold {count} keys of {size} bytes;"
                    f" allowed are {OPERATIONS_MAX} and {BYTES_MAX}"
                )
        return None

    def _put(self, put: Put, revision: int) -> WatchEvent:
        key, value, lease = put.key, put.value, put.lease
        stored_before = self.stored_values.get(key)
        if stored_before is None:
            self.keys.add(key)
            version, created = 1, revision
        else:
            version, _, created, _ = VALUE_HEADER.unpack_from(stored_before)
            version += 1
        stored = VALUE_HEADER.pack(version, lease, created, revision) + value
        self._release_stored(key, stored_before)
        self._set_stored(key, lease, stored)
        if self._on_change is not None:
            self._on_change(key, stored_before, stored)
        return WatchEvent("put", KeyValue(key, value, version, created, revision, lease))

    def _delete(self, key: bytes, revision: int) -> WatchEvent:
        stored_before = self.stored_values.pop(key)
        self.keys.remove(key)
        self._release_stored(key, stored_before)
        if self._on_change is not None:
            self._on_change(key, stored_before, None)
        version, _, created, _ = VALUE_HEADER.unpack_from(stored_before)
        return WatchEvent("delete", KeyValue(key, b"", version, created, revision, 0))

    def _set_stored(self, key: bytes, lease_id: int, stored: bytes) -> None:
        self.stored_values[key] = stored
        self._hash_sum += xxh3_64_intdigest(key + stored)
        if lease_id:
            lease = self.leases[lease_id]
            lease.keys[key] = None
            lease.key_bytes += len(key)

    def _release_stored(self, key: bytes, stored: bytes | None) -> None:
        """Remove the stored bytes of a key from the digest, its lease and the views.

        None if the key is new.
        """
        if stored is not None:
            self._hash_sum -= xxh3_64_intdigest(key + stored)
            if lease_id := VALUE_HEADER.unpack_from(stored)[1]:
                lease = self.leases[lease_id]
                del lease.keys[key]
                lease.key_bytes -= len(key)
        if self._has_views:
            for view in self._views:
                view.on_change(key, stored)
            self._has_views = bool(self._views)

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
        # In key order, because this is the order in which a node restores the keys from a snapshot.
        events = tuple(self._delete(key, revision) for key in sorted(lease.keys))
        del self.leases[lease_id]
        self.lease_count_by_owner[lease.owner] -= 1
        if not self.lease_count_by_owner[lease.owner]:
            del self.lease_count_by_owner[lease.owner]
        if events:
            self.revision = revision
        return events

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot_view(self, changes_bytes_max: int = maxsize) -> "StateView":
        """Return a view of the state as of this call, for `kv_snapshot.py`. See `StateView`."""
        view = StateView(self, changes_bytes_max)
        self._views.add(view)
        self._has_views = True
        return view

    def add_lease(self, lease_id: int, ttl_ms: int, owner: str = "") -> None:
        """Add a lease that was granted or is in a snapshot."""
        self.leases[lease_id] = Lease(ttl_ms, owner)
        self.lease_count_by_owner[owner] = self.lease_count_by_owner.get(owner, 0) + 1

    def add_stored(self, key: bytes, stored: bytes, lease_id: int) -> None:
        """Add a key of a snapshot, in key order."""
        self.keys.add(key)
        self._set_stored(key, lease_id, stored)


class StateView:
    """A view of the state at one revision, while the state continues to change. Its keys are read in order.

    Only the small parts are copied. The state reports each key before it changes. The view keeps the old
    value, unless the key has been read already.
    """

    def __init__(self, state: KeyValueState, changes_bytes_max: int) -> None:
        """``changes_bytes_max`` limits the old values that the view keeps. Above it, the view is unusable."""
        self.changes_bytes = 0
        """Size of the old values that are kept."""
        self._is_over_limit = False
        self._changes_bytes_max = changes_bytes_max
        self.index = state.index
        self.revision = state.revision
        self.next_lease = state.next_lease
        self.authorization_revision = state.authorization_revision
        self.leases = [
            (lease_id, lease.ttl_ms, lease.owner) for lease_id, lease in state.leases.items()
        ]
        self.dedup_floor = state.request_dedup.forgotten_through
        self.requests = state.request_dedup.rows()
        self.key_count = len(state.stored_values)
        """Number of keys in the view."""
        self._keys = state.keys
        self._stored = state.stored_values
        self._read_to = b""
        self._values_before: dict[bytes, bytes | None] = {}
        """Old values of changed keys that have not been read yet. None if the key did not exist."""
        self._changed_keys = SortedKeys()
        """The keys of `_values_before`, in order."""

    def on_change(self, key: bytes, stored: bytes | None) -> None:
        """Keep the value of a key that is about to change. Only its first change counts."""
        if self._is_over_limit or key <= self._read_to or key in self._values_before:
            return
        self._values_before[key] = stored
        self._changed_keys.add(key)
        self.changes_bytes += _view_bytes(key, stored)
        if self.changes_bytes > self._changes_bytes_max:
            self._is_over_limit = True
            self._values_before, self._changed_keys = {}, SortedKeys()

    def next_keys(self, keys_max: int) -> list[tuple[bytes, bytes]]:
        """Return the next keys with their values in the view, about ``keys_max`` of them. Empty at the end.

        Raises:
            InvalidRequest: More old values than the limit would have to be kept.
        """
        if self._is_over_limit:
            raise InvalidRequest(
                f"more than {self._changes_bytes_max} bytes changed before this backup was fetched:"
                " start the backup again"
            )
        values: list[tuple[bytes, bytes]] = []
        while not values:
            current_keys = self._keys.after(self._read_to, keys_max)
            changed_keys = self._changed_keys.after(self._read_to, keys_max)
            keys = sorted({*current_keys, *changed_keys})
            if not keys:
                break
            # A list with ``keys_max`` keys may be incomplete, so keys after its last one are not read yet.
            page_end = min(
                key_page[-1] if len(key_page) == keys_max else keys[-1]
                for key_page in (current_keys, changed_keys)
            )
            for key in keys:
                if key > page_end:
                    break
                if key in self._values_before:
                    stored = self._values_before.pop(key)
                    self.changes_bytes -= _view_bytes(key, stored)
                else:
                    stored = self._stored[key]
                if stored is not None:
                    values.append((key, stored))
            for key in changed_keys:
                if key <= page_end:
                    self._changed_keys.remove(key)
            self._read_to = page_end
        return values


def _view_bytes(key: bytes, stored: bytes | None) -> int:
    return len(key) + KEY_OVERHEAD_BYTES + (len(stored) if stored is not None else 0)


def pack_item(item: KeyValue) -> bytes:
    """Return the stored bytes of a key."""
    return (
        VALUE_HEADER.pack(item.version, item.lease, item.create_revision, item.mod_revision)
        + item.value
    )


def _item(key: bytes, stored: bytes) -> KeyValue:
    version, lease, created, changed = VALUE_HEADER.unpack_from(stored)
    return KeyValue(key, stored[VALUE_HEADER.size :], version, created, changed, lease)


def _outcome(result: CommandResult) -> tuple[int, int | str]:
    """Return code and outcome of a result for `RememberedRequest`."""
    if result.error is not None:
        return result.error.code, str(result.error)[:MESSAGE_CHARS_MAX]
    if result.transaction is None:
        return SUCCEEDED, result.lease
    if result.transaction.succeeded:
        return SUCCEEDED, result.transaction.revision
    return CONDITION_FAILED, 0
