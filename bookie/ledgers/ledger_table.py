"""What a bookie knows of a ledger in memory, of the streams that add to it, and of who waits for its LAC.

There is one `Ledger` object an id, whoever asks for it: fence and add meet on the same one (defect D10 of
the reference). The others, which nobody uses, are in the index's map alone, and are loaded at their next use.
"""

import hmac
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import trio

from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LedgerStateUnknown,
    NoSuchLedger,
    WrongLedgerKey,
)
from ...runtime.interfaces.host import OrderedMap
from ...runtime.protocol.capabilities import looks_like_one
from ..format import journal_format as jb
from ..format.extent_map import ExtentMap
from ..format.index_format import (
    STATE_KEY,
    IndexDamaged,
    counts_as_limbo,
    ledger_end,
    located,
    stated,
)
from ..format.read_sources import LoadedExtent

LIMBO_ALL = 0xFFFF_FFFF_FFFF_FFFF
"""All that are not known here are in limbo."""
STATES_A_TURN = 256
"""Of the map, looked at in one turn of the loop."""


class State(NamedTuple):
    """What is known of a ledger, apart from its entries."""

    ledger_id: int
    flags: int
    lac: int
    key: bytes


@dataclass(slots=True, eq=False)
class PendingExtent:
    """A run that is gathered and not synced yet."""

    ledger: "Ledger"
    first: int
    count: int
    buffer: memoryview
    """Of the ring, where it is gathered."""
    position: int
    """Of its first record in ``buffer``."""
    length: int


class Ledger:
    """The state of one ledger. Entry ids count from 0; -1 says none."""

    __slots__ = (
        "__weakref__",
        "fence_durable",
        "flags",
        "frozen",
        "going",
        "id",
        "journaled",
        "key",
        "lac",
        "lac_owed",
        "last_entry",
        "pending",
        "pending_in_order",
        "persisted_last",
        "runs",
        "stored",
        "top",
        "users",
        "waiters",
    )

    def __init__(self, ledger_id: int) -> None:
        self.id = ledger_id
        self.key = b""
        """Empty: not known yet."""
        self.flags = 0
        """FENCED, LIMBO, DELETED, DROPPED: in force at once, durable a little later; by
        `LedgerTable.mark`."""
        self.fence_durable = False
        self.lac = -1
        self.lac_owed = False
        """Was `lac` told by itself, and is nothing that says it in the journal, or on the way there?"""
        self.last_entry = -1
        """Highest id that is durable here."""
        self.top = -1
        """Highest id that is gathered or durable: above it nothing can be a duplicate."""
        self.persisted_last = -1
        """Highest id in the index's map: above it the map need not be asked."""
        self.runs: ExtentMap | None = None
        """Durable since the last checkpoint."""
        self.frozen: ExtentMap | None = None
        """Being written by a checkpoint."""
        self.pending: list[PendingExtent] = []
        """Gathered, and not durable yet; they become so in this order (`Commits.on_synced`)."""
        self.pending_in_order = True
        """By their ids, too?"""
        self.stored = False
        """Its state is in the journal or the index's map, or in a block on the way there. Set by
        `LedgerTable.mark`."""
        self.journaled = False
        """It is in the journal, or on the way there. Not known of one that was loaded: a checkpoint takes
        what is not synced yet, and a kill that is quicker than the sync leaves it in the map alone (H88)."""
        self.going = False
        """Its entries are being dropped: nothing is compared with them any more, nor added."""
        self.users = 0
        """Streams that are open on it: an unstored ledger without users or waiters is forgotten."""
        self.waiters: list[Waiter] = []

    @property
    def fenced(self) -> bool:
        """Refuses normal adds."""
        return bool(self.flags & jb.FENCED)

    @property
    def limbo(self) -> bool:
        """May have lost entries or a fence: gives no negative answers (inv. 22)."""
        return bool(self.flags & jb.LIMBO)

    @property
    def deleted(self) -> bool:
        """A tombstone."""
        return bool(self.flags & jb.DELETED)

    def check_key(self, key: bytes) -> None:
        """Raise `WrongLedgerKey` unless it is the ledger's, or that is not known yet.

        Empty: a capability was shown in its place (`bookie_authorizer.py`).
        """
        if key and self.key and not hmac.compare_digest(self.key, key):
            raise WrongLedgerKey(f"ledger {self.id}: the key shown is not the ledger's")

    def take_key(self, key: bytes) -> None:
        """From now on it is this one, where none was known. Raises `WrongLedgerKey`."""
        self.check_key(key)
        if not self.key:
            self.key = bytes(key)

    @property
    def state(self) -> State:
        """As it is now."""
        return State(self.id, self.flags, self.lac, self.key)

    def state_record(self) -> bytes:
        """Its state as a control record."""
        return jb.state_record(self.id, self.flags, self.lac, self.key)

    def add_pending(self, note: PendingExtent) -> None:
        """A run is gathered."""
        if self.pending and note.first < self.pending[-1].first:
            self.pending_in_order = False
        self.pending.append(note)
        top = note.first + note.count - 1
        if top > self.top:
            self.top = top

    def find_pending(self, entry: int) -> PendingExtent | None:
        """The gathered run that holds ``entry``, or None."""
        if self.pending_in_order:
            at = bisect_right(self.pending, entry, key=attrgetter("first")) - 1
            if at < 0:
                return None
            note = self.pending[at]
            return note if entry < note.first + note.count else None
        for note in self.pending:
            if note.first <= entry < note.first + note.count:
                return note
        return None


class LedgerTable:
    """All ledgers of a bookie, and what is said of those that it does not know.

    An object is there as long as anybody has it in hand: who adds, waits or reads, a checkpoint that is to
    write what has changed. Of those that nobody has, the last ones that were asked for are kept.
    """

    def __init__(self, stored: OrderedMap, loaded_max: int) -> None:
        """``stored``: of the index. ``loaded_max``: so many are kept without a use, about."""
        self._map = stored
        self._half = max(1, loaded_max // 2)
        self._loaded: WeakValueDictionary[int, Ledger] = WeakValueDictionary()
        """All that are in memory, whoever has them: never are there two of one id."""
        self._young: dict[int, Ledger] = {}
        self._old: dict[int, Ledger] = {}
        """Asked for before those; one that is asked for again is young again, the others go one by one."""
        self.damage: IndexDamaged | None = None
        """What a look into the index's map met: the node ends with it soon, and builds the index again."""
        self.limbo_below = 0
        """Those with a lower id that are not known here are in limbo."""
        self.gone_below = 0
        """Those with a lower id that are not known here may have been deleted, or fenced and moved away: an
        add waits until the metadata was asked (H89). Durable when it is set."""
        self.known = 0
        """How many are here, tombstones not included."""
        self.limbo = 0
        """How many of those are in limbo; stubs of dropped copies are not to be healed."""
        self.tombstones = 0
        """How many deleted ones are remembered."""

    # --- one --------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> Ledger | None:
        """The one object of this id; None where nothing is known of it here.

        Raises `LedgerStateUnknown` where the index is damaged.
        """
        ledger = self._young.get(ledger_id)
        if ledger is not None:
            return ledger
        ledger = self._loaded.get(ledger_id) or self._load(ledger_id)
        if ledger is not None:
            self._keep(ledger)
        return ledger

    def get_or_make(self, ledger_id: int) -> Ledger:
        """The one object of this id. Raises as `get`."""
        ledger = self.get(ledger_id)
        if ledger is None:
            ledger = self._loaded[ledger_id] = Ledger(ledger_id)
            self._keep(ledger)
        return ledger

    def look_up(self, ledger_id: int, key: bytes) -> Ledger:
        """One that is known here. Raises `NoSuchLedger`, `LedgerStateUnknown`, `WrongLedgerKey`."""
        ledger = self.get(ledger_id)
        if ledger is None or not ledger.stored:
            if ledger_id < self.limbo_below:
                raise LedgerStateUnknown(f"ledger {ledger_id}: this bookie lost data (limbo)")
            raise NoSuchLedger(f"ledger {ledger_id} is not known here")
        ledger.check_key(key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        return ledger

    def flags_of(self, ledger_id: int) -> int | None:
        """Those of a ledger that is known here, which is not loaded for it; None: it is not. As `get`."""
        ledger = self._loaded.get(ledger_id)
        if ledger is not None:
            return ledger.flags if ledger.stored else None
        state = self._state(ledger_id)
        return None if state is None else state.flags

    def loaded(self, ledger_id: int) -> Ledger | None:
        """The one object of this id if it is in memory."""
        return self._loaded.get(ledger_id)

    @property
    def loaded_count(self) -> int:
        """How many are in memory."""
        return len(self._loaded)

    def _keep(self, ledger: Ledger) -> None:
        self._old.pop(ledger.id, None)
        for _ in range(min(2, len(self._old))):  # none is left when the young ones are many
            self._old.popitem()
        self._young[ledger.id] = ledger
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}

    def _forget(self, ledger_id: int) -> None:
        for known in (self._young, self._old, self._loaded):
            known.pop(ledger_id, None)

    def _load(self, ledger_id: int) -> Ledger | None:
        """One that is not in memory, and so is in the map as it was left."""
        state = self._state(ledger_id)
        if state is None:
            return None
        try:
            last = self._last_entry(ledger_id)
        except CorruptData as error:
            raise self.note_damage(ledger_id, error) from error
        ledger = self._loaded[ledger_id] = Ledger(ledger_id)
        ledger.stored = True
        _take(ledger, state)
        ledger.persisted_last = ledger.last_entry = ledger.top = last
        return ledger

    def _state(self, ledger_id: int) -> State | None:
        """What the map says of a ledger. Nothing is known of it only if it has no runs either."""
        key = STATE_KEY.pack(b"s", ledger_id)
        try:
            value = self._map.get(key)
            if value is not None:
                return State(*stated(key, value))
            if self._last_entry(ledger_id) >= 0:
                raise IndexDamaged(f"ledger {ledger_id}: runs without a state")
        except CorruptData as error:
            raise self.note_damage(ledger_id, error) from error
        return None

    def _last_entry(self, ledger_id: int) -> int:
        pair = self._map.floor(ledger_end(ledger_id))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger_id):
            return -1
        return located(*pair).last

    def note_damage(self, ledger_id: int, error: CorruptData) -> LedgerStateUnknown:
        """A look into the map met damage; the answer for whoever asked."""
        self.damage = error if isinstance(error, IndexDamaged) else IndexDamaged(str(error))
        return LedgerStateUnknown(f"ledger {ledger_id}: the index is damaged")

    # --- what changes -----------------------------------------------------------------------------

    def mark(self, ledger: Ledger, flags: int) -> None:
        """Its flags from now on; it is stored.

        All changes go through here: what is counted is never walked.
        """
        if ledger.stored:
            self._count(ledger, -1)
        ledger.flags = flags
        ledger.stored = True
        self._count(ledger, 1)

    def _count(self, ledger: Ledger, step: int) -> None:
        if ledger.flags & jb.DELETED:
            self.tombstones += step
            return
        self.known += step
        if counts_as_limbo(ledger.flags):
            self.limbo += step

    def end_tombstone(self, ledger_id: int) -> None:
        """It is not known here any more; whoever has it in hand is refused by its flags all the same."""
        self.tombstones -= 1
        ledger = self._loaded.get(ledger_id)
        if ledger is not None and ledger.deleted:  # else it has come to be known anew
            self._forget(ledger_id)

    def set_state(self, ledger: Ledger, flags: int, lac: int, key: bytes) -> None:
        """Take a state from the disk: flags and key are the last written, the LAC never moves back."""
        self.mark(ledger, flags)
        _take(ledger, State(ledger.id, flags, lac, key))

    def release(self, ledger: Ledger) -> None:
        """Nobody waits on it any more: an unknown ledger without users is forgotten."""
        if not (ledger.stored or ledger.users or ledger.waiters):
            self._forget(ledger.id)

    # --- all --------------------------------------------------------------------------------------

    async def states(self) -> AsyncIterator[list[State]]:
        """The states of all that are known here, tombstones included, some at a time, ids ascending.

        Each as it is when it is given. All are given that are known when this begins, and throughout;
        of those that come to be known meanwhile some. Raises as `get`.
        """
        fresh = sorted(ledger.id for ledger in self.in_memory() if ledger.stored)
        at, start = 0, STATE_KEY.pack(b"s", 0)
        while page := self._map.scan(start, b"t", STATES_A_TURN):
            found: dict[int, State | None] = {}
            try:
                for key, value in page:
                    state = State(*stated(key, value))
                    found[state.ledger_id] = state
            except CorruptData as error:
                raise self.note_damage(-1, error) from error
            upto = bisect_right(fresh, state.ledger_id)
            found |= {id: found.get(id) for id in fresh[at:upto]}
            at, start = upto, page[-1][0] + b"\0"
            yield self._as_they_are(found)
            await trio.lowlevel.checkpoint()
        for first in range(at, len(fresh), STATES_A_TURN):
            yield self._as_they_are(dict.fromkeys(fresh[first : first + STATES_A_TURN]))
            await trio.lowlevel.checkpoint()

    def _as_they_are(self, found: dict[int, State | None]) -> list[State]:
        """What is in memory is newer than what the map said of it."""
        states: list[State] = []
        for ledger_id in sorted(found):
            ledger = self._loaded.get(ledger_id)
            state = found[ledger_id]
            if ledger is not None:
                state = ledger.state if ledger.stored else None
            elif state is None:  # it was in memory alone, and was written since
                state = self._state(ledger_id)
            if state is not None:
                states.append(state)
        return states

    def in_memory(self) -> Iterator[Ledger]:
        """All that are loaded, known or not."""
        return iter(list(self._loaded.values()))

    async def state_records(self) -> list[bytes]:
        """The state of each that is stored, as every journal file begins with it (H7)."""
        return [jb.state_record(*state) async for page in self.states() for state in page]


def _take(ledger: Ledger, state: State) -> None:
    ledger.flags = state.flags
    ledger.fence_durable = ledger.fenced
    ledger.lac = max(ledger.lac, state.lac)
    # What looks like a capability was taken for a key by a bookie of before: it locks nobody out any more.
    ledger.key = b"" if looks_like_one(state.key) or not any(state.key) else state.key


class StreamOwner(Protocol):
    """The connection behind a stream."""

    def on_acked(self, acks: list[tuple[int, int]]) -> None:
        """By one commit: (stream number, how many of its first records are durable)."""
        ...

    def on_refused(
        self, stream: "IncomingStream", error: DistributedLogError, position: int
    ) -> None:
        """Record ``position`` (from 0) was refused, and all after it are dropped."""
        ...


@dataclass(slots=True, eq=False)
class IncomingStream:
    """Adds of one connection to one ledger, counted in sending order (H1)."""

    number: int
    ledger: Ledger
    recovery: bool
    fragment_epoch: int
    owner: StreamOwner
    taken: int = 0
    """Records gathered or found to be here already."""
    loaded: LoadedExtent | None = None
    """What was read from the device to compare a duplicate with."""
    refused: bool = False
    """Poisoned: nothing of it is taken any more."""
    plain: bool = True
    """Neither refused nor waiting: what is sent may be taken at once."""
    looked_up: bool = False
    """The metadata allowed its adds while the ledger was not known here."""
    late: list[bytes] = field(default_factory=list)
    """What was sent while that was asked, in order."""


class WaiterOwner(Protocol):
    """The connection that waits."""

    def on_wait_over(self, waiter: "Waiter", error: DistributedLogError | None) -> None:
        """The LAC moved, the ledger was fenced, the time is over, or ``error``."""
        ...

    def on_wait_news(self, waiter: "Waiter") -> bool:
        """The LAC moved under a standing wait. False: it is to be over now, `on_wait_over` follows."""
        ...


@dataclass(slots=True, eq=False)
class Waiter:
    """One WAIT_LAC request."""

    owner: WaiterOwner
    ident: int
    ledger: Ledger
    key: bytes
    previous_lac: int
    bytes_max: int
    """What answers may carry; of a standing one all together."""
    deadline: float
    standing: bool = False
    over: bool = False
