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
from ..state.kv_state import HEAD, KeyValueState
from .key_space import KeyScope, KeySpace

WALKED_KEYS = 100
"""Keys that are counted in one turn, some milliseconds."""
LASTING_BYTES_MAX = 1024
"""Of the value of a note, or of a key that is there once a log (`KeyClass.lasting`), where it is small."""
REOPENED_BYTES = 1024
"""What goes back from its end counts so much more: else going there again adds more."""


@dataclass(slots=True)
class Use:
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
class Growth(Use):
    """What a transaction would add to a namespace; below 0: take away."""

    made: int = 0
    """Keys that are no notes (`KeyClass.note`), without those that go."""
    only_small: bool = True
    """Is all that it puts small by itself, and there once a log or ledger: states, notes?"""
    ends: bool = False
    """Does it bring a ledger or a segment nearer to its end?"""
    of_readers: bool = False
    """Does it make keys that take no more than the right to read?"""


class _Log(Use):
    """A log's share, with that of its ledgers; the namespaces where it has a name, mostly one, in order."""

    __slots__ = ("spaces",)

    def __init__(self) -> None:
        super().__init__()
        self.spaces: tuple[str, ...] = ()

    @property
    def space(self) -> str | None:
        """Where it counts; None: it has no name, and counts nowhere."""
        return self.spaces[0] if self.spaces else None


NO_LOG = b""


class NamespaceUse:
    """Of one node, over one state at a time."""

    def __init__(self, classes: KeySpace) -> None:
        self.spaces: dict[str, Use] = {}
        self._classes = classes
        self._state: KeyValueState | None = None
        self._walked_to: bytes | None = b""
        """Up to here all keys are counted; None: all are."""
        self._logs: dict[bytes, _Log] = {}
        self._ledgers: dict[int, tuple[bytes, int, int, int]] = {}
        """By id: its log, and its keys, bytes, records (one, or none yet)."""

    # --- counting ---------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Is all counted that there is?"""
        return self._walked_to is None

    def follows(self, state: KeyValueState) -> bool:
        """Is it this state that is counted?"""
        return self._state is state

    def begin(self, state: KeyValueState) -> None:
        """Count this state from now on; `walk` follows, until it says that all is counted."""
        if self._state is not None:
            self._state.subscribe(None)
        self._state, self._walked_to = state, b""
        self.spaces, self._logs, self._ledgers = {}, {}, {}
        state.subscribe(self._on_change)

    def walk(self, keys_max: int = WALKED_KEYS) -> bool:
        """Count some of what was there before; True while there is more."""
        state = self._state
        if state is None or self._walked_to is None:
            return False
        keys = state.keys.after(self._walked_to, keys_max)
        for key in keys:
            self._count(key, None, state.stored[key])
        self._walked_to = keys[-1] if len(keys) == keys_max else None
        return self._walked_to is not None

    def _on_change(self, key: bytes, before: bytes | None, after: bytes | None) -> None:
        if self._walked_to is None or key <= self._walked_to:
            self._count(key, before, after)  # else the walk comes to it

    def _count(self, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """``before`` and ``after``: as stored, `HEAD` and the value; None: no such key."""
        place = self._classes.of(key).place(key)
        if place is None:
            return
        keys = (after is not None) - (before is not None)
        size = _size(key, after) - _size(key, before)
        if place.path is not None:
            self._add_space(place.path[0], keys, size, 0)
            if key.startswith(self._classes.names):
                self._name(place.path[0], before, -1)
                self._name(place.path[0], after, 1)
        elif place.ledger:
            ledger = int(place.ledger[len(self._classes.ledgers) :], 16)
            if key == place.ledger:
                log = NO_LOG if after is None else self._log_of(key, after[HEAD.size :])
                self._move_ledger(ledger, log)
                self._add_ledger(ledger, keys, size, keys)
            else:
                self._add_ledger(ledger, keys, size, 0)
        elif place.log:
            self._add_log(place.log, keys, size, 0)

    def _log_of(self, key: bytes, record: bytes) -> bytes:
        try:
            return self._classes.log_of_ledger(key, record)
        except DistributedLogError:
            return NO_LOG  # it cannot be read: nobody's

    def _add_ledger(self, ledger: int, keys: int, size: int, records: int) -> None:
        log, keys_before, size_before, records_before = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        now = (log, keys_before + keys, size_before + size, records_before + records)
        if now[1]:
            self._ledgers[ledger] = now
        else:
            self._ledgers.pop(ledger, None)
        self._add_log(log, keys, size, records)

    def _move_ledger(self, ledger: int, log: bytes) -> None:
        """Its record says another log than before, or says one at last."""
        before, keys, size, records = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        if before == log:
            return
        self._add_log(before, -keys, -size, -records)
        self._ledgers[ledger] = (log, keys, size, records)
        self._add_log(log, keys, size, records)

    def _add_log(self, log: bytes, keys: int, size: int, ledgers: int) -> None:
        if log == NO_LOG:
            return
        of = self._logs.get(log)
        if of is None:
            of = self._logs[log] = _Log()
        of.add(keys, size, ledgers)
        if of.space is not None:
            self._add_space(of.space, keys, size, ledgers)
        elif not of.keys:
            del self._logs[log]

    def _name(self, namespace: str, stored: bytes | None, times: int) -> None:
        """A log has one more name in that namespace (``times`` 1), or one less (-1)."""
        if stored is None:
            return
        log = stored[HEAD.size :]
        if log == NO_LOG:
            return
        of = self._logs.get(log)
        if of is None:
            of = self._logs[log] = _Log()
        was = of.space
        spaces = list(of.spaces)
        if times > 0:
            spaces.append(namespace)
        elif namespace in spaces:
            spaces.remove(namespace)
        of.spaces = tuple(sorted(spaces))
        if of.space != was:
            if was is not None:
                self._add_space(was, -of.keys, -of.size_bytes, -of.ledgers)
            if of.space is not None:
                self._add_space(of.space, of.keys, of.size_bytes, of.ledgers)
        if not of.spaces and not of.keys:
            del self._logs[log]

    def _add_space(self, namespace: str, keys: int, size: int, ledgers: int) -> None:
        use = self.spaces.get(namespace)
        if use is None:
            use = self.spaces[namespace] = Use()
        use.add(keys, size, ledgers)
        if not use.keys:
            del self.spaces[namespace]

    # --- what a transaction would add -------------------------------------------------------------

    def growth(self, transaction: Transaction) -> Mapping[str, Growth]:
        """By namespace, as the keys are now."""
        state, classes = self._state, self._classes
        assert state is not None, "asked of a state"
        found: dict[str, Growth] = {}
        puts: dict[bytes, bytes] | None = None
        for operation in transaction.operations:
            key = operation.key
            row = classes.of(key)
            place = row.place(key)
            if place is None:
                continue
            if puts is None:
                puts = {
                    one.key: one.value for one in transaction.operations if isinstance(one, Put)
                }
            if key == place.ledger and key in puts:
                self._bring(place, puts, found)
            namespace = self._space_of(place, puts)
            if namespace is None:
                continue
            grown = found.get(namespace)
            if grown is None:
                grown = found[namespace] = Growth()
            before, after = state.stored.get(key), puts.get(key)
            keys = (after is not None) - (before is not None)
            size = (0 if after is None else len(key) + len(after)) - _size(key, before)
            grown.add(keys, size, keys if key == place.ledger else 0)
            grown.of_readers = grown.of_readers or (keys > 0 and bool(place.user))
            note = row.note(key)
            if not note:
                grown.made += keys
            once = note or row.lasting
            if after is not None and not (once and len(after) <= LASTING_BYTES_MAX):
                grown.only_small = False
            if row.stage is not None and before is not None and after is not None:
                step = _step(row.stage, key, before[HEAD.size :], after)
                grown.ends = grown.ends or step > 0
                if step < 0:
                    grown.size_bytes += REOPENED_BYTES
            if after is not None and place.path is not None and key.startswith(classes.names):
                self._take_along(after, namespace, grown)
        return found

    def _bring(
        self, place: KeyScope, puts: Mapping[bytes, bytes], found: dict[str, Growth]
    ) -> None:
        """A ledger that goes to a log of another namespace, or to its first one, brings all that it has."""
        ledger = int(place.ledger[len(self._classes.ledgers) :], 16)
        log, keys, size, records = self._ledgers.get(ledger, (NO_LOG, 0, 0, 0))
        goes_to = self._log_of(place.ledger, puts[place.ledger])
        if log == goes_to:
            return
        namespace = self._space_of(KeyScope(log=goes_to), puts)
        if namespace is None or namespace == self._space_of(KeyScope(log=log), puts):
            return
        grown = found.setdefault(namespace, Growth())
        grown.add(keys, size, records)
        grown.made += keys
        grown.only_small = False

    def _take_along(self, log: bytes, namespace: str, grown: Growth) -> None:
        """A log that has its name elsewhere now brings all that it has."""
        of = self._logs.get(log)
        if of is not None and of.space != namespace:
            grown.add(of.keys, of.size_bytes, of.ledgers)
            grown.made += of.keys
            grown.only_small = False

    def _space_of(self, place: KeyScope, puts: Mapping[bytes, bytes]) -> str | None:
        """Where it counts, or would after a transaction that puts these."""
        if place.path is not None:
            return place.path[0]
        log = place.log
        if place.ledger:
            held = self._ledgers.get(int(place.ledger[len(self._classes.ledgers) :], 16))
            log = held[0] if held is not None else NO_LOG
            if log == NO_LOG and place.ledger in puts:
                log = self._log_of(place.ledger, puts[place.ledger])
        of = self._logs.get(log)
        if of is not None and of.space is not None:
            return of.space
        for key, value in puts.items():
            if value == log and log and key.startswith(self._classes.names):
                named = self._classes.of(key).place(key)
                if named is not None and named.path is not None:
                    return named.path[0]
        return None


def _size(key: bytes, stored: bytes | None) -> int:
    return 0 if stored is None else len(key) + len(stored) - HEAD.size


def _step(stage: Callable[[bytes, bytes], int], key: bytes, before: bytes, after: bytes) -> int:
    """How much nearer it is to its end; below 0: it goes back. 0 where one cannot be read."""
    try:
        return stage(key, after) - stage(key, before)
    except DistributedLogError:
        return 0
