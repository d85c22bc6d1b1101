"""How much of the store each namespace takes: keys, their bytes, ledgers (pure).

Told of every change of the state (`KeyValueState.subscribe`), and of what was there before by a walk, some
keys a turn; never by a list at a command. What a key belongs to is read off it (`classes.Place`): a path's
namespace; a log's, by the name that the log has now; a ledger's log, by its record. So a log that gets a name
in another namespace takes all of its own along, and the sums are a function of the state alone, whatever was
told in which order: all nodes have the same, after an election, a snapshot and a start too.

None of it is in the replicated state (decision 83). A version that counts differently decides differently
while it leads, and creates the same state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...runtime.interfaces.errors import DistributedLogError
from ..model.transaction import Put, Transaction
from ..state.kv_state import VALUE_HEADER, KeyValueState
from .key_space import KeyScope, KeySpace

KEYS_PER_STEP = 100
"""Keys that are counted in one turn, some milliseconds."""
LASTING_BYTES_MAX = 1024
"""Of the value of a note, or of a key that is there once a log (`KeyClass.is_made_once`), where it is
small."""
REOPENED_BYTES = 1024
"""What goes back from its end counts so much more: else going there again adds more."""


@dataclass(slots=True)
class NamespaceUsage:
    """Of a namespace, or of one log in it."""

    keys: int = 0
    size_bytes: int = 0
    """Of keys and values."""
    ledgers: int = 0

    def add(self, keys: int, size_bytes: int, ledgers: int) -> None:
        """Or take away, what is below 0."""
        self.keys += keys
        self.size_bytes += size_bytes
        self.ledgers += ledgers


@dataclass(slots=True)
class UsageGrowth(NamespaceUsage):
    """What a transaction would add to a namespace; below 0: take away."""

    new_keys: int = 0
    """Keys that are no notes (`KeyClass.note`), without those that go."""
    only_small: bool = True
    """Is all that it puts small by itself, and there once a log or ledger: states, notes?"""
    advances_stage: bool = False
    """Does it bring a ledger or a segment nearer to its end?"""
    by_reader: bool = False
    """Does it make keys that take no more than the right to read?"""


class _Log(NamespaceUsage):
    """A log's share, with that of its ledgers; the namespaces where it has a name, mostly one, in order."""

    __slots__ = ("namespaces",)

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: tuple[str, ...] = ()

    @property
    def counted_namespace(self) -> str | None:
        """Where it counts; None: it has no name, and counts nowhere."""
        return self.namespaces[0] if self.namespaces else None


NO_LOG = b""


class NamespaceUsageCounter:
    """Of one node, over one state at a time."""

    def __init__(self, key_space: KeySpace) -> None:
        self.usage_by_namespace: dict[str, NamespaceUsage] = {}
        self._key_space = key_space
        self._state: KeyValueState | None = None
        self._counted_to: bytes | None = b""
        """Up to here all keys are counted; None: all are."""
        self._logs: dict[bytes, _Log] = {}
        self._ledgers: dict[int, tuple[bytes, int, int, int]] = {}
        """By id: its log, and its keys, bytes, records (one, or none yet)."""

    # --- counting ---------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Is all counted that there is?"""
        return self._counted_to is None

    def is_counting(self, state: KeyValueState) -> bool:
        """Is it this state that is counted?"""
        return self._state is state

    def start_counting(self, state: KeyValueState) -> None:
        """Count this state from now on; `walk` follows, until it says that all is counted."""
        if self._state is not None:
            self._state.subscribe(None)
        self._state, self._counted_to = state, b""
        self.usage_by_namespace, self._logs, self._ledgers = {}, {}, {}
        state.subscribe(self._on_change)

    def count_some(self, keys_max: int = KEYS_PER_STEP) -> bool:
        """Count some of what was there before; True while there is more."""
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
            self._count_change(key, stored_before, stored_after)  # else the walk comes to it

    def _count_change(
        self, key: bytes, stored_before: bytes | None, stored_after: bytes | None
    ) -> None:
        """``before`` and ``after``: as stored, `VALUE_HEADER` and the value; None: no such key."""
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
            return NO_LOG  # it cannot be read: nobody's

    def _add_ledger(self, ledger: int, keys: int, size: int, records: int) -> None:
        log, keys_before, size_before, records_before = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        updated = (log, keys_before + keys, size_before + size, records_before + records)
        if updated[1]:
            self._ledgers[ledger] = updated
        else:
            self._ledgers.pop(ledger, None)
        self._add_log(log, keys, size, records)

    def _move_ledger(self, ledger: int, log: bytes) -> None:
        """Its record says another log than before, or says one at last."""
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
        """A log has one more name in that namespace (``times`` 1), or one less (-1)."""
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

    # --- what a transaction would add -------------------------------------------------------------

    def growth_by_namespace(self, transaction: Transaction) -> Mapping[str, UsageGrowth]:
        """By namespace, as the keys are now."""
        state, key_space = self._state, self._key_space
        assert state is not None, "asked of a state"
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
            is_note = key_class.is_note(key)
            if not is_note:
                growth.new_keys += keys
            is_small_key = is_note or key_class.is_made_once
            if value_after is not None and not (
                is_small_key and len(value_after) <= LASTING_BYTES_MAX
            ):
                growth.only_small = False
            if (
                key_class.stage is not None
                and stored_before is not None
                and value_after is not None
            ):
                progress = _stage_progress(
                    key_class.stage, key, stored_before[VALUE_HEADER.size :], value_after
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
        """A ledger that goes to a log of another namespace, or to its first one, brings all that it has."""
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
        """A log that has its name elsewhere now brings all that it has."""
        log_usage = self._logs.get(log)
        if log_usage is not None and log_usage.counted_namespace != namespace:
            growth.add(log_usage.keys, log_usage.size_bytes, log_usage.ledgers)
            growth.new_keys += log_usage.keys
            growth.only_small = False

    def _namespace_of(self, scope: KeyScope, puts: Mapping[bytes, bytes]) -> str | None:
        """Where it counts, or would after a transaction that puts these."""
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
    stage: Callable[[bytes, bytes], int], key: bytes, record_before: bytes, record_after: bytes
) -> int:
    """How much nearer it is to its end; below 0: it goes back. 0 where one cannot be read."""
    try:
        return stage(key, record_after) - stage(key, record_before)
    except DistributedLogError:
        return 0
