"""The state of ledgers in memory, their add streams, and the requests that wait for their LAC.

There is one `Ledger` object per ID for all users, so that a fence and an add always use the same object
(defect D10 of the reference). Ledgers without a user are only in the index's map, and are loaded on use.
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
"""The value of `LedgerTable.limbo_below` with which all unknown ledgers are in limbo state."""
STATES_PER_PAGE = 256
"""The states of the map that are read in one event-loop iteration."""


class KnownLedgerState(NamedTuple):
    """The stored state of a ledger, without its entries."""

    ledger_id: int
    flags: int
    lac: int
    key: bytes


@dataclass(slots=True, eq=False)
class PendingExtent:
    """An extent in the journal buffer that is not synced yet."""

    ledger: "Ledger"
    first: int
    count: int
    buffer: memoryview
    """The ring buffer that contains the records."""
    position: int
    """The position of its first record in `buffer`."""
    length: int


class Ledger:
    """The state of one ledger. Entry IDs count from 0; -1 means none."""

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
        """Empty if the key is not known yet."""
        self.flags = 0
        """FENCED, LIMBO, DELETED and DROPPED. They apply at once, and are durable a little later. Only
        `LedgerTable.set_flags` and loading a state change them."""
        self.fence_durable = False
        self.lac = -1
        self.lac_unjournaled = False
        """Whether `lac` came without an entry, and no record in the journal or on its way there
        contains it."""
        self.last_entry = -1
        """The highest ID that is durable here."""
        self.last_added_entry = -1
        """The highest ID that is pending or durable. An entry above it cannot be a duplicate."""
        self.last_indexed_entry = -1
        """The highest ID in the index's map. The map has no entry above it, so it need not be
        read for one."""
        self.extents: ExtentMap | None = None
        """Extents that became durable since the last checkpoint."""
        self.frozen_extents: ExtentMap | None = None
        """Extents that a checkpoint is writing."""
        self.pending_extents: list[PendingExtent] = []
        """Extents that are not durable yet. They become durable in this order (`GroupCommit.on_synced`)."""
        self.pending_in_order = True
        """Whether `pending_extents` is also sorted by entry ID."""
        self.is_known = False
        """Whether its state is in the journal or the index's map, or in a block on its way there. Set by
        `LedgerTable.set_flags`."""
        self.is_journaled = False
        """Whether its state is in the journal, or on its way there. False for a ledger that was loaded from
        the map. A checkpoint may store a state before it is synced, and after a kill only the map has this
        state (H88)."""
        self.removing = False
        """Whether its entries are being dropped. They are then not compared with added entries, and adds are
        refused."""
        self.stream_count = 0
        """The number of open add streams. An unknown ledger without streams and long polls is forgotten."""
        self.long_polls: list[LongPoll] = []

    @property
    def fenced(self) -> bool:
        """Whether the ledger refuses normal adds."""
        return bool(self.flags & jb.FENCED)

    @property
    def limbo(self) -> bool:
        """Whether entries or a fence may be lost.

        The bookie gives no negative answers for such a ledger (inv. 22).
        """
        return bool(self.flags & jb.LIMBO)

    @property
    def deleted(self) -> bool:
        """Whether this is a tombstone."""
        return bool(self.flags & jb.DELETED)

    def check_key(self, key: bytes) -> None:
        """Raise `WrongLedgerKey` if the key differs from the ledger's key, and this is known.

        An empty ``key`` means that a capability was shown in place of a key (`bookie_authorizer.py`).
        """
        if key and self.key and not hmac.compare_digest(self.key, key):
            raise WrongLedgerKey(f"ledger {self.id}: the presented key is not the ledger's")

    def set_key_if_unknown(self, key: bytes) -> None:
        """Take over the key if the ledger has none yet. Raises `WrongLedgerKey` if it has another one."""
        self.check_key(key)
        if not self.key:
            self.key = bytes(key)

    @property
    def state(self) -> KnownLedgerState:
        """The present state."""
        return KnownLedgerState(self.id, self.flags, self.lac, self.key)

    def state_record(self) -> bytes:
        """Return its state as a control record."""
        return jb.state_record(self.id, self.flags, self.lac, self.key)

    def add_pending(self, extent: PendingExtent) -> None:
        """Add an extent that is in the journal buffer."""
        if self.pending_extents and extent.first < self.pending_extents[-1].first:
            self.pending_in_order = False
        self.pending_extents.append(extent)
        last_entry = extent.first + extent.count - 1
        if last_entry > self.last_added_entry:
            self.last_added_entry = last_entry

    def find_pending(self, entry: int) -> PendingExtent | None:
        """Return the pending extent that contains ``entry``, or None."""
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
    """All ledgers of a bookie, and the bounds that apply to unknown ones.

    A `Ledger` object stays in memory while a stream, a long poll, a read or a pending checkpoint refers to
    it. Of the others, the most recently used ones are cached.
    """

    def __init__(self, ordered_map: OrderedMap, loaded_max: int) -> None:
        """Create an empty table.

        Args:
            ordered_map: The map of the index.
            loaded_max: About this many unused ledgers are kept in memory.
        """
        self._map = ordered_map
        self._generation_max = max(1, loaded_max // 2)
        self._loaded: WeakValueDictionary[int, Ledger] = WeakValueDictionary()
        """All objects in memory. There are never two with one ID."""
        self._recent: dict[int, Ledger] = {}
        self._less_recent: dict[int, Ledger] = {}
        """Ledgers that were used before those in `_recent`. A used one moves there; the others are evicted
        one by one."""
        self.damage: IndexDamaged | None = None
        """Damage that was found in the index's map. The node ends soon because of it, and
        rebuilds the index."""
        self.limbo_below = 0
        """Unknown ledgers with a lower ID are in limbo state."""
        self.must_verify_below = 0
        """An unknown ledger with a lower ID may have been deleted, or fenced and moved away. An add to it
        waits for a query of the metadata (H89). The value is durable when it is set."""
        self.known_count = 0
        """The number of known ledgers, without tombstones."""
        self.limbo_count = 0
        """The number of known ledgers in limbo state, without stubs of dropped copies, which need
        no repair."""
        self.tombstone_count = 0

    # --- one --------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> Ledger | None:
        """Return the object of a ledger, or None if nothing is known of it here.

        Raises:
            LedgerStateUnknown: The index is damaged.
        """
        ledger = self._recent.get(ledger_id)
        if ledger is not None:
            return ledger
        ledger = self._loaded.get(ledger_id) or self._load(ledger_id)
        if ledger is not None:
            self._cache(ledger)
        return ledger

    def get_or_make(self, ledger_id: int) -> Ledger:
        """Return the object of a ledger, and create it if necessary. Raises as `get`."""
        ledger = self.get(ledger_id)
        if ledger is None:
            ledger = self._loaded[ledger_id] = Ledger(ledger_id)
            self._cache(ledger)
        return ledger

    def get_known(self, ledger_id: int, key: bytes) -> Ledger:
        """Return the object of a known ledger.

        Raises:
            NoSuchLedger: The ledger is unknown and not in limbo state, or it was deleted.
            LedgerStateUnknown: The ledger is unknown and in limbo state, or the index is damaged.
            WrongLedgerKey: The ledger has another key.
        """
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
        """Return the flags of a known ledger without loading it; None for an unknown one. Raises as `get`."""
        ledger = self._loaded.get(ledger_id)
        if ledger is not None:
            return ledger.flags if ledger.is_known else None
        state = self._stored_state(ledger_id)
        return None if state is None else state.flags

    def get_loaded(self, ledger_id: int) -> Ledger | None:
        """Return the object of a ledger if it is in memory, otherwise None."""
        return self._loaded.get(ledger_id)

    @property
    def loaded_count(self) -> int:
        """The number of objects in memory."""
        return len(self._loaded)

    def _cache(self, ledger: Ledger) -> None:
        self._less_recent.pop(ledger.id, None)
        # Two per call, so that `_less_recent` is empty before `_recent` is full.
        for _ in range(min(2, len(self._less_recent))):
            self._less_recent.popitem()
        self._recent[ledger.id] = ledger
        if len(self._recent) >= self._generation_max:
            self._less_recent, self._recent = self._recent, {}

    def _evict(self, ledger_id: int) -> None:
        for ledgers in (self._recent, self._less_recent, self._loaded):
            ledgers.pop(ledger_id, None)

    def _load(self, ledger_id: int) -> Ledger | None:
        """Load a ledger that is not in memory from the map, which has its latest state."""
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
        """Return a ledger's state in the map, or None for a ledger without a state and without extents."""
        key = STATE_KEY.pack(b"s", ledger_id)
        try:
            value = self._map.get(key)
            if value is not None:
                return KnownLedgerState(*decode_state(key, value))
            if self._stored_last_entry(ledger_id) >= 0:
                raise IndexDamaged(f"ledger {ledger_id}: extents without a state")
        except CorruptData as error:
            raise self.record_damage(ledger_id, error) from error
        return None

    def _stored_last_entry(self, ledger_id: int) -> int:
        pair = self._map.floor(extents_end_key(ledger_id))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger_id):
            return -1
        return decode_extent(*pair).last

    def record_damage(self, ledger_id: int, error: CorruptData) -> LedgerStateUnknown:
        """Record damage that was found in the map, and return the error for the caller to raise."""
        self.damage = error if isinstance(error, IndexDamaged) else IndexDamaged(str(error))
        return LedgerStateUnknown(f"ledger {ledger_id}: the index is damaged")

    # --- what changes -----------------------------------------------------------------------------

    def set_flags(self, ledger: Ledger, flags: int) -> None:
        """Set the flags of a ledger, which makes it known.

        All changes use this function, so that the counts need no pass over all ledgers.
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
        """Forget a tombstone. Its flags still refuse operations that hold the object."""
        self.tombstone_count -= 1
        ledger = self._loaded.get(ledger_id)
        if ledger is not None and ledger.deleted:  # otherwise the ledger became known again
            self._evict(ledger_id)

    def set_state(self, ledger: Ledger, flags: int, lac: int, key: bytes) -> None:
        """Apply a state from the disk.

        The flags and the key of the last state apply; the LAC never decreases.
        """
        self.set_flags(ledger, flags)
        _apply_state(ledger, KnownLedgerState(ledger.id, flags, lac, key))

    def release_if_unused(self, ledger: Ledger) -> None:
        """Forget an unknown ledger without streams and long polls."""
        if not (ledger.is_known or ledger.stream_count or ledger.long_polls):
            self._evict(ledger.id)

    # --- all --------------------------------------------------------------------------------------

    async def state_pages(self) -> AsyncIterator[list[KnownLedgerState]]:
        """Yield the states of all known ledgers, including tombstones, in pages sorted by ID.

        Each state is the current one when its page is yielded. Ledgers that become known during the iteration
        may be missing. Raises as `get`.
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
        """Replace states from the map by the newer states in memory."""
        states: list[KnownLedgerState] = []
        for ledger_id in sorted(states_by_id):
            ledger = self._loaded.get(ledger_id)
            state = states_by_id[ledger_id]
            if ledger is not None:
                state = ledger.state if ledger.is_known else None
            elif state is None:  # it was only in memory before, and was written since
                state = self._stored_state(ledger_id)
            if state is not None:
                states.append(state)
        return states

    def loaded_ledgers(self) -> Iterator[Ledger]:
        """Iterate over all objects in memory, known or not."""
        return iter(list(self._loaded.values()))

    async def state_records(self) -> list[bytes]:
        """Return the states of all known ledgers as control records, for the head of a journal file (H7)."""
        return [jb.state_record(*state) async for page in self.state_pages() for state in page]


def _apply_state(ledger: Ledger, state: KnownLedgerState) -> None:
    ledger.flags = state.flags
    ledger.fence_durable = ledger.fenced
    ledger.lac = max(ledger.lac, state.lac)
    # An older version stored capabilities as keys. Such a key is ignored, because it locks out all clients.
    ledger.key = b"" if may_be_capability(state.key) or not any(state.key) else state.key


class StreamOwner(Protocol):
    """The connection of an add stream."""

    def on_acked(self, acks: list[tuple[int, int]]) -> None:
        """Handle the acks of one commit, as (stream number, how many of its first records are durable)."""
        ...

    def on_refused(
        self, stream: "IncomingStream", error: DistributedLogError, position: int
    ) -> None:
        """Handle the refusal of record ``position`` (from 0). All later records of the stream are dropped."""
        ...


@dataclass(slots=True, eq=False)
class IncomingStream:
    """Adds of one connection to one ledger, counted in sending order (H1)."""

    number: int
    ledger: Ledger
    recovery: bool
    fragment_epoch: int
    owner: StreamOwner
    accepted: int = 0
    """The number of records that were put into the buffer, or that were stored already."""
    loaded_extent: LoadedExtent | None = None
    """Bytes that were read from the device, for comparison with duplicates."""
    refused: bool = False
    """Whether the stream was refused. No more of its records are accepted."""
    accepting: bool = True
    """Whether records can be accepted at once: the stream was not refused, and does not wait for a lookup."""
    lookup_passed: bool = False
    """Whether the metadata allowed its adds while the ledger was unknown here."""
    deferred_frames: list[bytes] = field(default_factory=list)
    """Frames that arrived during the lookup, in order."""


class LongPollOwner(Protocol):
    """The connection of a long poll."""

    def on_poll_done(self, poll: "LongPoll", error: DistributedLogError | None) -> None:
        """End a poll after an advance of the LAC, a fence, a timeout or ``error``."""
        ...

    def on_lac_advanced(self, poll: "LongPoll") -> bool:
        """Answer a persistent poll; return False if it must end now with `on_poll_done`."""
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
    """Maximum bytes of records in one answer, or in all answers of a persistent poll together."""
    deadline: float
    persistent: bool = False
    is_done: bool = False
