"""Usage of the metadata per namespace: keys, their bytes, and ledgers (pure).

The counter receives every change of the state (`KeyValueState.subscribe`), and counts existing keys by a
scan in small steps. No command causes a complete scan. The scope of a key determines its namespace
(`key_space.KeyScope`). A path contains its namespace. A key of a log counts in the namespace of the log's
present name, and a ledger in that of the log in its record.

So a log that is renamed to another namespace takes all its keys along. The sums depend only on the state
and not on the order of the changes. All nodes have the same sums, also after an election, a snapshot or a
restart.

The sums are not part of the replicated state (decision 83). A version that counts differently accepts other
commands while it leads, but computes the same state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...runtime.interfaces.errors import DistributedLogError
from ..model.transaction import Put, Transaction
from ..state.kv_state import VALUE_HEADER, KeyValueState
from .key_space import KeyScope, KeySpace

KEYS_PER_STEP = 100
"""Number of keys that are counted in one step, which takes some milliseconds."""
LASTING_BYTES_MAX = 1024
"""Size limit of a small value.

It applies to keys that exist once per log (`KeyClass.is_marker`, `KeyClass.is_created_once`).
"""
REOPENED_BYTES = 1024
"""Bytes added for a record that moves back from its final state. Otherwise the way back to it would grow."""


@dataclass(slots=True)
class NamespaceUsage:
    """The usage of a namespace, or of one log in it."""

    keys: int = 0
    size_bytes: int = 0
    """Size of keys and values."""
    ledgers: int = 0

    def add(self, keys: int, size_bytes: int, ledgers: int) -> None:
        """Add to the usage, or subtract negative numbers."""
        self.keys += keys
        self.size_bytes += size_bytes
        self.ledgers += ledgers


@dataclass(slots=True)
class UsageGrowth(NamespaceUsage):
    """The change of a namespace by a transaction. Negative numbers are a decrease."""

    new_keys: int = 0
    """Number of added keys, minus deleted ones, without those of `KeyClass.is_marker`."""
    only_small: bool = True
    """Whether all values are small and belong to keys that exist once per log or ledger."""
    advances_stage: bool = False
    """Whether a ledger or a segment moves closer to its final state."""
    by_reader: bool = False
    """Whether keys are added that need only the right to read."""


class _Log(NamespaceUsage):
    """The usage of a log and its ledgers, and the sorted namespaces of its names, usually one."""

    __slots__ = ("namespaces",)

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: tuple[str, ...] = ()

    @property
    def counted_namespace(self) -> str | None:
        """The namespace in which the log is counted, or None without a name."""
        return self.namespaces[0] if self.namespaces else None


NO_LOG = b""


class NamespaceUsageCounter:
    """Counts the usage on one node, over one state at a time."""

    def __init__(self, key_space: KeySpace) -> None:
        self.usage_by_namespace: dict[str, NamespaceUsage] = {}
        self._key_space = key_space
        self._state: KeyValueState | None = None
        self._counted_to: bytes | None = b""
        """All keys up to this one are counted. None if the scan is complete."""
        self._logs: dict[bytes, _Log] = {}
        self._ledgers: dict[int, tuple[bytes, int, int, int]] = {}
        """By ledger ID: its log, keys, bytes, and records (0 or 1)."""

    # --- counting ---------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all keys are counted."""
        return self._counted_to is None

    def is_counting(self, state: KeyValueState) -> bool:
        """Whether this state is being counted."""
        return self._state is state

    def start_counting(self, state: KeyValueState) -> None:
        """Start to count this state. The caller then calls `count_some` until it returns False."""
        if self._state is not None:
            self._state.subscribe(None)
        self._state, self._counted_to = state, b""
        self.usage_by_namespace, self._logs, self._ledgers = {}, {}, {}
        state.subscribe(self._on_change)

    def count_some(self, keys_max: int = KEYS_PER_STEP) -> bool:
        """Continue the scan by up to ``keys_max`` keys. Return whether there are more.

        Changes of keys up to the scan position are counted immediately (`_on_change`). Later keys are counted
        when the scan reaches them.
        """
        state = self._state
        if state is None or self._counted_to is None:
            return False
        keys = state.keys.after(self._counted_to, keys_max)
        for key in keys:
            self._count_change(key, None, state.stored_values[key])
        self._counted_to = keys[-1] if len(keys) == keys_max else None
        return self._counted_to is not None

    def _on_change(
        self, key: bytes, stored_before: bytes | None, stored_after: bytes | None
    ) -> None:
        if self._counted_to is None or key <= self._counted_to:
            self._count_change(key, stored_before, stored_after)  # otherwise the scan will count it

    def _count_change(
        self, key: bytes, stored_before: bytes | None, stored_after: bytes | None
    ) -> None:
        """Count a change.

        The values are as stored, with `VALUE_HEADER`, or None if the key does not exist.
        """
        scope = self._key_space.of(key).scope_of(key)
        if scope is None:
            return
        key_delta = (stored_after is not None) - (stored_before is not None)
        size_delta = _stored_bytes(key, stored_after) - _stored_bytes(key, stored_before)
        if scope.path is not None:
            self._add_namespace(scope.path[0], key_delta, size_delta, 0)
            if key.startswith(self._key_space.names_prefix):
                self._add_log_name(scope.path[0], stored_before, -1)
                self._add_log_name(scope.path[0], stored_after, 1)
        elif scope.ledger:
            ledger = int(scope.ledger[len(self._key_space.ledgers_prefix) :], 16)
            if key == scope.ledger:
                log = (
                    NO_LOG
                    if stored_after is None
                    else self._log_of_ledger(key, stored_after[VALUE_HEADER.size :])
                )
                self._move_ledger(ledger, log)
                self._add_ledger(ledger, key_delta, size_delta, key_delta)
            else:
                self._add_ledger(ledger, key_delta, size_delta, 0)
        elif scope.log:
            self._add_log(scope.log, key_delta, size_delta, 0)

    def _log_of_ledger(self, key: bytes, record: bytes) -> bytes:
        try:
            return self._key_space.log_of_ledger(key, record)
        except DistributedLogError:
            return NO_LOG  # an unreadable record belongs to no log

    def _add_ledger(self, ledger: int, keys: int, size: int, records: int) -> None:
        log, keys_before, size_before, records_before = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        updated = (log, keys_before + keys, size_before + size, records_before + records)
        if updated[1]:
            self._ledgers[ledger] = updated
        else:
            self._ledgers.pop(ledger, None)
        self._add_log(log, keys, size, records)

    def _move_ledger(self, ledger: int, log: bytes) -> None:
        """Set the log of a ledger, whose record may have changed."""
        previous_log, keys, size, records = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        if previous_log == log:
            return
        self._add_log(previous_log, -keys, -size, -records)
        self._ledgers[ledger] = (log, keys, size, records)
        self._add_log(log, keys, size, records)

    def _add_log(self, log: bytes, keys: int, size: int, ledgers: int) -> None:
        if log == NO_LOG:
            return
        log_usage = self._logs.get(log)
        if log_usage is None:
            log_usage = self._logs[log] = _Log()
        log_usage.add(keys, size, ledgers)
        if log_usage.counted_namespace is not None:
            self._add_namespace(log_usage.counted_namespace, keys, size, ledgers)
        elif not log_usage.keys:
            del self._logs[log]

    def _add_log_name(self, namespace: str, stored: bytes | None, step: int) -> None:
        """Add a name of a log in that namespace (``step`` 1), or remove one (-1)."""
        if stored is None:
            return
        log = stored[VALUE_HEADER.size :]
        if log == NO_LOG:
            return
        log_usage = self._logs.get(log)
        if log_usage is None:
            log_usage = self._logs[log] = _Log()
        previous_namespace = log_usage.counted_namespace
        namespaces = list(log_usage.namespaces)
        if step > 0:
            namespaces.append(namespace)
        elif namespace in namespaces:
            namespaces.remove(namespace)
        log_usage.namespaces = tuple(sorted(namespaces))
        if log_usage.counted_namespace != previous_namespace:
            if previous_namespace is not None:
                self._add_namespace(
                    previous_namespace, -log_usage.keys, -log_usage.size_bytes, -log_usage.ledgers
                )
            if log_usage.counted_namespace is not None:
                self._add_namespace(
                    log_usage.counted_namespace,
                    log_usage.keys,
                    log_usage.size_bytes,
                    log_usage.ledgers,
                )
        if not log_usage.namespaces and not log_usage.keys:
            del self._logs[log]

    def _add_namespace(self, namespace: str, keys: int, size: int, ledgers: int) -> None:
        usage = self.usage_by_namespace.get(namespace)
        if usage is None:
            usage = self.usage_by_namespace[namespace] = NamespaceUsage()
        usage.add(keys, size, ledgers)
        if not usage.keys:
            del self.usage_by_namespace[namespace]

    # --- growth by a transaction ------------------------------------------------------------------

    def growth_by_namespace(self, transaction: Transaction) -> Mapping[str, UsageGrowth]:
        """Return the growth by namespace if the transaction is applied to the present state."""
        state, key_space = self._state, self._key_space
        assert state is not None, "a state is being counted"
        growth_by_namespace: dict[str, UsageGrowth] = {}
        puts: dict[bytes, bytes] | None = None
        for operation in transaction.operations:
            key = operation.key
            key_class = key_space.of(key)
            scope = key_class.scope_of(key)
            if scope is None:
                continue
            if puts is None:
                puts = {
                    put.key: put.value for put in transaction.operations if isinstance(put, Put)
                }
            if key == scope.ledger and key in puts:
                self._add_moved_ledger(scope, puts, growth_by_namespace)
            namespace = self._namespace_of(scope, puts)
            if namespace is None:
                continue
            growth = growth_by_namespace.get(namespace)
            if growth is None:
                growth = growth_by_namespace[namespace] = UsageGrowth()
            stored_before, value_after = state.stored_values.get(key), puts.get(key)
            keys = (value_after is not None) - (stored_before is not None)
            size = (0 if value_after is None else len(key) + len(value_after)) - _stored_bytes(
                key, stored_before
            )
            growth.add(keys, size, keys if key == scope.ledger else 0)
            growth.by_reader = growth.by_reader or (keys > 0 and bool(scope.user))
            is_marker = key_class.is_marker(key)
            if not is_marker:
                growth.new_keys += keys
            is_small_key = is_marker or key_class.is_created_once
            if value_after is not None and not (
                is_small_key and len(value_after) <= LASTING_BYTES_MAX
            ):
                growth.only_small = False
            if (
                key_class.completion_stage is not None
                and stored_before is not None
                and value_after is not None
            ):
                progress = _stage_progress(
                    key_class.completion_stage, key, stored_before[VALUE_HEADER.size :], value_after
                )
                growth.advances_stage = growth.advances_stage or progress > 0
                if progress < 0:
                    growth.size_bytes += REOPENED_BYTES
            if (
                value_after is not None
                and scope.path is not None
                and key.startswith(key_space.names_prefix)
            ):
                self._add_moved_log(value_after, namespace, growth)
        return growth_by_namespace

    def _add_moved_ledger(
        self,
        scope: KeyScope,
        puts: Mapping[bytes, bytes],
        growth_by_namespace: dict[str, UsageGrowth],
    ) -> None:
        """Add all keys of a ledger that moves to a log of another namespace, or gets its first log."""
        ledger = int(scope.ledger[len(self._key_space.ledgers_prefix) :], 16)
        log, keys, size, records = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        new_log = self._log_of_ledger(scope.ledger, puts[scope.ledger])
        if log == new_log:
            return
        namespace = self._namespace_of(KeyScope(log=new_log), puts)
        if namespace is None or namespace == self._namespace_of(KeyScope(log=log), puts):
            return
        growth = growth_by_namespace.setdefault(namespace, UsageGrowth())
        growth.add(keys, size, records)
        growth.new_keys += keys
        growth.only_small = False

    def _add_moved_log(self, log: bytes, namespace: str, growth: UsageGrowth) -> None:
        """Add all keys of a log whose name moves to this namespace."""
        log_usage = self._logs.get(log)
        if log_usage is not None and log_usage.counted_namespace != namespace:
            growth.add(log_usage.keys, log_usage.size_bytes, log_usage.ledgers)
            growth.new_keys += log_usage.keys
            growth.only_small = False

    def _namespace_of(self, scope: KeyScope, puts: Mapping[bytes, bytes]) -> str | None:
        """Return the namespace of a scope, possibly after a transaction with these puts."""
        if scope.path is not None:
            return scope.path[0]
        log = scope.log
        if scope.ledger:
            counted = self._ledgers.get(
                int(scope.ledger[len(self._key_space.ledgers_prefix) :], 16)
            )
            log = counted[0] if counted is not None else NO_LOG
            if log == NO_LOG and scope.ledger in puts:
                log = self._log_of_ledger(scope.ledger, puts[scope.ledger])
        log_usage = self._logs.get(log)
        if log_usage is not None and log_usage.counted_namespace is not None:
            return log_usage.counted_namespace
        for key, value in puts.items():
            if value == log and log and key.startswith(self._key_space.names_prefix):
                name_scope = self._key_space.of(key).scope_of(key)
                if name_scope is not None and name_scope.path is not None:
                    return name_scope.path[0]
        return None


def _stored_bytes(key: bytes, stored: bytes | None) -> int:
    return 0 if stored is None else len(key) + len(stored) - VALUE_HEADER.size


def _stage_progress(
    completion_stage: Callable[[bytes, bytes], int],
    key: bytes,
    record_before: bytes,
    record_after: bytes,
) -> int:
    """Return how much closer a record is to its final state.

    Negative if it moves back, 0 if it is unreadable.
    """
    try:
        return completion_stage(key, record_after) - completion_stage(key, record_before)
    except DistributedLogError:
        return 0
