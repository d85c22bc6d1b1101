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
from ...runtime.protocol.capabilities import may_be_capability
from ..format import journal_format as jb
from ..format.extent_map import ExtentMap
from ..format.index_format import (
    STATE_KEY,
    IndexDamaged,
    decode_extent,
    decode_state,
    extents_end_key,
    is_repairable_limbo,
)
from ..format.read_sources import LoadedExtent

LIMBO_ALL = 0xFFFF_FFFF_FFFF_FFFF
"""All that are not known here are in limbo."""
STATES_PER_PAGE = 256
"""Of the map, looked at in one turn of the loop."""


class KnownLedgerState(NamedTuple):
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
        "extents",
        "fence_durable",
        "flags",
        "frozen_extents",
        "id",
        "is_journaled",
        "is_known",
        "key",
        "lac",
        "lac_unjournaled",
        "last_added_entry",
        "last_entry",
        "last_indexed_entry",
        "long_polls",
        "pending_extents",
        "pending_in_order",
        "removing",
        "stream_count",
    )

    def __init__(self, ledger_id: int) -> None:
        self.id = ledger_id
        self.key = b""
        """Empty: not known yet."""
        self.flags = 0
        """FENCED, LIMBO, DELETED, DROPPED: in force at once, durable a little later; by
        `LedgerTable.set_flags`."""
        self.fence_durable = False
        self.lac = -1
        self.lac_unjournaled = False
        """Was `lac` told by itself, and is nothing that says it in the journal, or on the way there?"""
        self.last_entry = -1
        """Highest id that is durable here."""
        self.last_added_entry = -1
        """Highest id that is gathered or durable: above it nothing can be a duplicate."""
        self.last_indexed_entry = -1
        """Highest id in the index's map: above it the map need not be asked."""
        self.extents: ExtentMap | None = None
        """Durable since the last checkpoint."""
        self.frozen_extents: ExtentMap | None = None
        """Being written by a checkpoint."""
        self.pending_extents: list[PendingExtent] = []
        """Gathered, and not durable yet; they become so in this order (`Commits.on_synced`)."""
        self.pending_in_order = True
        """By their ids, too?"""
        self.is_known = False
        """Its state is in the journal or the index's map, or in a block on the way there. Set by
        `LedgerTable.set_flags`."""
        self.is_journaled = False
        """It is in the journal, or on the way there. Not known of one that was loaded: a checkpoint takes
        what is not synced yet, and a kill that is quicker than the sync leaves it in the map alone (H88)."""
        self.removing = False
        """Its entries are being dropped: nothing is compared with them any more, nor added."""
        self.stream_count = 0
        """Streams that are open on it: an unstored ledger without users or waiters is forgotten."""
        self.long_polls: list[LongPoll] = []

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

    def learn_key(self, key: bytes) -> None:
        """From now on it is this one, where none was known. Raises `WrongLedgerKey`."""
        self.check_key(key)
        if not self.key:
            self.key = bytes(key)

    @property
    def state(self) -> KnownLedgerState:
        """As it is now."""
        return KnownLedgerState(self.id, self.flags, self.lac, self.key)

    def state_record(self) -> bytes:
        """Its state as a control record."""
        return jb.state_record(self.id, self.flags, self.lac, self.key)

    def add_pending(self, extent: PendingExtent) -> None:
        """A run is gathered."""
        if self.pending_extents and extent.first < self.pending_extents[-1].first:
            self.pending_in_order = False
        self.pending_extents.append(extent)
        last_entry = extent.first + extent.count - 1
        if last_entry > self.last_added_entry:
            self.last_added_entry = last_entry

    def find_pending(self, entry: int) -> PendingExtent | None:
        """The gathered run that holds ``entry``, or None."""
        if self.pending_in_order:
            index = bisect_right(self.pending_extents, entry, key=attrgetter("first")) - 1
            if index < 0:
                return None
            extent = self.pending_extents[index]
            return extent if entry < extent.first + extent.count else None
        for extent in self.pending_extents:
            if extent.first <= entry < extent.first + extent.count:
                return extent
        return None


class LedgerTable:
    """All ledgers of a bookie, and what is said of those that it does not know.

    An object is there as long as anybody has it in hand: who adds, waits or reads, a checkpoint that is to
    write what has changed. Of those that nobody has, the last ones that were asked for are kept.
    """

    def __init__(self, ordered_map: OrderedMap, loaded_max: int) -> None:
        """``stored``: of the index. ``loaded_max``: so many are kept without a use, about."""
        self._map = ordered_map
        self._generation_max = max(1, loaded_max // 2)
        self._loaded: WeakValueDictionary[int, Ledger] = WeakValueDictionary()
        """All that are in memory, whoever has them: never are there two of one id."""
        self._recent: dict[int, Ledger] = {}
        self._less_recent: dict[int, Ledger] = {}
        """Asked for before those; one that is asked for again is young again, the others go one by one."""
        self.damage: IndexDamaged | None = None
        """What a look into the index's map met: the node ends with it soon, and builds the index again."""
        self.limbo_below = 0
        """Those with a lower id that are not known here are in limbo."""
        self.must_verify_below = 0
        """Those with a lower id that are not known here may have been deleted, or fenced and moved away: an
        add waits until the metadata was asked (H89). Durable when it is set."""
        self.known_count = 0
        """How many are here, tombstones not included."""
        self.limbo_count = 0
        """How many of those are in limbo; stubs of dropped copies are not to be healed."""
        self.tombstone_count = 0
        """How many deleted ones are remembered."""

    # --- one --------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> Ledger | None:
        """The one object of this id; None where nothing is known of it here.

        Raises `LedgerStateUnknown` where the index is damaged.
        """
        ledger = self._recent.get(ledger_id)
        if ledger is not None:
            return ledger
        ledger = self._loaded.get(ledger_id) or self._load(ledger_id)
        if ledger is not None:
            self._cache(ledger)
        return ledger

    def get_or_make(self, ledger_id: int) -> Ledger:
        """The one object of this id. Raises as `get`."""
        ledger = self.get(ledger_id)
        if ledger is None:
            ledger = self._loaded[ledger_id] = Ledger(ledger_id)
            self._cache(ledger)
        return ledger

    def get_known(self, ledger_id: int, key: bytes) -> Ledger:
        """One that is known here. Raises `NoSuchLedger`, `LedgerStateUnknown`, `WrongLedgerKey`."""
        ledger = self.get(ledger_id)
        if ledger is None or not ledger.is_known:
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
            return ledger.flags if ledger.is_known else None
        state = self._stored_state(ledger_id)
        return None if state is None else state.flags

    def get_loaded(self, ledger_id: int) -> Ledger | None:
        """The one object of this id if it is in memory."""
        return self._loaded.get(ledger_id)

    @property
    def loaded_count(self) -> int:
        """How many are in memory."""
        return len(self._loaded)

    def _cache(self, ledger: Ledger) -> None:
        self._less_recent.pop(ledger.id, None)
        for _ in range(min(2, len(self._less_recent))):  # none is left when the young ones are many
            self._less_recent.popitem()
        self._recent[ledger.id] = ledger
        if len(self._recent) >= self._generation_max:
            self._less_recent, self._recent = self._recent, {}

    def _evict(self, ledger_id: int) -> None:
        for ledgers in (self._recent, self._less_recent, self._loaded):
            ledgers.pop(ledger_id, None)

    def _load(self, ledger_id: int) -> Ledger | None:
        """One that is not in memory, and so is in the map as it was left."""
        state = self._stored_state(ledger_id)
        if state is None:
            return None
        try:
            last_entry = self._stored_last_entry(ledger_id)
        except CorruptData as error:
            raise self.record_damage(ledger_id, error) from error
        ledger = self._loaded[ledger_id] = Ledger(ledger_id)
        ledger.is_known = True
        _apply_state(ledger, state)
        ledger.last_indexed_entry = ledger.last_entry = ledger.last_added_entry = last_entry
        return ledger

    def _stored_state(self, ledger_id: int) -> KnownLedgerState | None:
        """What the map says of a ledger. Nothing is known of it only if it has no runs either."""
        key = STATE_KEY.pack(b"s", ledger_id)
        try:
            value = self._map.get(key)
            if value is not None:
                return KnownLedgerState(*decode_state(key, value))
            if self._stored_last_entry(ledger_id) >= 0:
                raise IndexDamaged(f"ledger {ledger_id}: runs without a state")
        except CorruptData as error:
            raise self.record_damage(ledger_id, error) from error
        return None

    def _stored_last_entry(self, ledger_id: int) -> int:
        pair = self._map.floor(extents_end_key(ledger_id))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger_id):
            return -1
        return decode_extent(*pair).last

    def record_damage(self, ledger_id: int, error: CorruptData) -> LedgerStateUnknown:
        """A look into the map met damage; the answer for whoever asked."""
        self.damage = error if isinstance(error, IndexDamaged) else IndexDamaged(str(error))
        return LedgerStateUnknown(f"ledger {ledger_id}: the index is damaged")

    # --- what changes -----------------------------------------------------------------------------

    def set_flags(self, ledger: Ledger, flags: int) -> None:
        """Its flags from now on; it is stored.

        All changes go through here: what is counted is never walked.
        """
        if ledger.is_known:
            self._adjust_counts(ledger, -1)
        ledger.flags = flags
        ledger.is_known = True
        self._adjust_counts(ledger, 1)

    def _adjust_counts(self, ledger: Ledger, step: int) -> None:
        if ledger.flags & jb.DELETED:
            self.tombstone_count += step
            return
        self.known_count += step
        if is_repairable_limbo(ledger.flags):
            self.limbo_count += step

    def remove_tombstone(self, ledger_id: int) -> None:
        """It is not known here any more; whoever has it in hand is refused by its flags all the same."""
        self.tombstone_count -= 1
        ledger = self._loaded.get(ledger_id)
        if ledger is not None and ledger.deleted:  # else it has come to be known anew
            self._evict(ledger_id)

    def set_state(self, ledger: Ledger, flags: int, lac: int, key: bytes) -> None:
        """Take a state from the disk: flags and key are the last written, the LAC never moves back."""
        self.set_flags(ledger, flags)
        _apply_state(ledger, KnownLedgerState(ledger.id, flags, lac, key))

    def release_if_unused(self, ledger: Ledger) -> None:
        """Nobody waits on it any more: an unknown ledger without users is forgotten."""
        if not (ledger.is_known or ledger.stream_count or ledger.long_polls):
            self._evict(ledger.id)

    # --- all --------------------------------------------------------------------------------------

    async def state_pages(self) -> AsyncIterator[list[KnownLedgerState]]:
        """The states of all that are known here, tombstones included, some at a time, ids ascending.

        Each as it is when it is given. All are given that are known when this begins, and throughout;
        of those that come to be known meanwhile some. Raises as `get`.
        """
        known_ids = sorted(ledger.id for ledger in self.loaded_ledgers() if ledger.is_known)
        position, start = 0, STATE_KEY.pack(b"s", 0)
        while page := self._map.scan(start, b"t", STATES_PER_PAGE):
            states_by_id: dict[int, KnownLedgerState | None] = {}
            try:
                for key, value in page:
                    state = KnownLedgerState(*decode_state(key, value))
                    states_by_id[state.ledger_id] = state
            except CorruptData as error:
                raise self.record_damage(-1, error) from error
            page_end = bisect_right(known_ids, state.ledger_id)
            states_by_id |= {
                ledger_id: states_by_id.get(ledger_id) for ledger_id in known_ids[position:page_end]
            }
            position, start = page_end, page[-1][0] + b"\0"
            yield self._current_states(states_by_id)
            await trio.lowlevel.checkpoint()
        for first in range(position, len(known_ids), STATES_PER_PAGE):
            yield self._current_states(dict.fromkeys(known_ids[first : first + STATES_PER_PAGE]))
            await trio.lowlevel.checkpoint()

    def _current_states(
        self, states_by_id: dict[int, KnownLedgerState | None]
    ) -> list[KnownLedgerState]:
        """What is in memory is newer than what the map said of it."""
        states: list[KnownLedgerState] = []
        for ledger_id in sorted(states_by_id):
            ledger = self._loaded.get(ledger_id)
            state = states_by_id[ledger_id]
            if ledger is not None:
                state = ledger.state if ledger.is_known else None
            elif state is None:  # it was in memory alone, and was written since
                state = self._stored_state(ledger_id)
            if state is not None:
                states.append(state)
        return states

    def loaded_ledgers(self) -> Iterator[Ledger]:
        """All that are loaded, known or not."""
        return iter(list(self._loaded.values()))

    async def state_records(self) -> list[bytes]:
        """The state of each that is stored, as every journal file begins with it (H7)."""
        return [jb.state_record(*state) async for page in self.state_pages() for state in page]


def _apply_state(ledger: Ledger, state: KnownLedgerState) -> None:
    ledger.flags = state.flags
    ledger.fence_durable = ledger.fenced
    ledger.lac = max(ledger.lac, state.lac)
    # What looks like a capability was taken for a key by a bookie of before: it locks nobody out any more.
    ledger.key = b"" if may_be_capability(state.key) or not any(state.key) else state.key


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
    loaded_extent: LoadedExtent | None = None
    """What was read from the device to compare a duplicate with."""
    refused: bool = False
    """Poisoned: nothing of it is taken any more."""
    accepting: bool = True
    """Neither refused nor waiting: what is sent may be taken at once."""
    lookup_passed: bool = False
    """The metadata allowed its adds while the ledger was not known here."""
    deferred_frames: list[bytes] = field(default_factory=list)
    """What was sent while that was asked, in order."""


class LongPollOwner(Protocol):
    """The connection that waits."""

    def on_poll_done(self, poll: "LongPoll", error: DistributedLogError | None) -> None:
        """The LAC moved, the ledger was fenced, the time is over, or ``error``."""
        ...

    def on_lac_advanced(self, poll: "LongPoll") -> bool:
        """The LAC moved under a standing wait. False: it is to be over now, `on_poll_done` follows."""
        ...


@dataclass(slots=True, eq=False)
class LongPoll:
    """One WAIT_LAC request."""

    owner: LongPollOwner
    ident: int
    ledger: Ledger
    key: bytes
    previous_lac: int
    bytes_max: int
    """What answers may carry; of a standing one all together."""
    deadline: float
    persistent: bool = False
    is_done: bool = False
