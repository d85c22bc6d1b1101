"""What a bookie knows of a ledger in memory, of the streams that add to it, and of who waits for its LAC.

There is one `Ledger` object an id, whoever asks for it: fence and add meet on the same one (defect D10 of
the reference).
"""

import hmac
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from ..runtime.errors import (
    DistributedLogError,
    LedgerStateUnknown,
    NoSuchLedger,
    WrongLedgerKey,
)
from . import journal_blocks as jb
from .read_sources import Extent
from .runs import Runs

LIMBO_ALL = 0xFFFF_FFFF_FFFF_FFFF
"""All that are not known here are in limbo."""


@dataclass(slots=True, eq=False)
class Note:
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
        "fence_durable",
        "flags",
        "frozen",
        "going",
        "id",
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
        """FENCED, LIMBO, DELETED, DROPPED: in force at once, durable a little later; by `Ledgers.mark`."""
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
        self.runs: Runs | None = None
        """Durable since the last checkpoint."""
        self.frozen: Runs | None = None
        """Being written by a checkpoint."""
        self.pending: list[Note] = []
        self.pending_in_order = True
        self.stored = False
        """Its state is in the journal, or in a block on the way there. Set by `Ledgers.mark`."""
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
        """Raise `WrongLedgerKey` unless it is the ledger's, or that is not known yet."""
        if self.key and not hmac.compare_digest(self.key, key):
            raise WrongLedgerKey(f"ledger {self.id}: the key shown is not the ledger's")

    def take_key(self, key: bytes) -> None:
        """From now on it is this one, where none was known. Raises `WrongLedgerKey`."""
        self.check_key(key)
        if not self.key:
            self.key = bytes(key)

    def state_record(self) -> bytes:
        """Its state as a control record."""
        return jb.state_record(self.id, self.flags, self.lac, self.key)

    def add_pending(self, note: Note) -> None:
        """A run is gathered."""
        if self.pending and note.first < self.pending[-1].first:
            self.pending_in_order = False
        self.pending.append(note)
        top = note.first + note.count - 1
        if top > self.top:
            self.top = top

    def drop_pending(self, note: Note) -> None:
        """The oldest gathered run is durable; they become so in the order they were gathered."""
        assert self.pending[0] is note, "runs become durable in the order they were gathered"
        del self.pending[0]
        if not self.pending:
            self.pending_in_order = True

    def find_pending(self, entry: int) -> Note | None:
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


class Ledgers:
    """All ledgers of a bookie, and what is said of those that it does not know."""

    def __init__(self) -> None:
        self.by_id: dict[int, Ledger] = {}
        self.limbo_below = 0
        """Those with a lower id that are not known here are in limbo."""
        self.gone_below = 0
        """Those with a lower id that are not known here may have been deleted, or fenced and moved away: an
        add waits until the metadata was asked (H89). Durable when it is set."""
        self.known = 0
        """How many are here, tombstones not included."""
        self.limbo = 0
        """How many of those are in limbo; stubs of dropped copies are not to be healed."""
        self.tombstones: dict[Ledger, None] = {}
        """The deleted ones, in the order they were."""

    def mark(self, ledger: Ledger, flags: int) -> None:
        """Its flags from now on; it is stored.

        All changes go through here: what is counted is never walked.
        """
        if ledger.stored:
            self._count(ledger, -1)
        ledger.flags = flags
        ledger.stored = True
        if flags & jb.DELETED:
            self.tombstones[ledger] = None
        self._count(ledger, 1)

    def _count(self, ledger: Ledger, step: int) -> None:
        if not ledger.flags & jb.DELETED:
            self.known += step
            if ledger.flags & (jb.LIMBO | jb.DROPPED) == jb.LIMBO:
                self.limbo += step

    def end_tombstone(self, ledger: Ledger) -> None:
        """It is not known here any more; whoever has it in hand is refused by its flags all the same."""
        del self.by_id[ledger.id], self.tombstones[ledger]

    def set_state(self, ledger: Ledger, flags: int, lac: int, key: bytes) -> None:
        """Take a state from the disk: flags and key are the last written, the LAC never moves back."""
        self.mark(ledger, flags)
        ledger.fence_durable = ledger.fenced
        ledger.lac = max(ledger.lac, lac)
        ledger.key = key if any(key) else b""

    def clear(self) -> None:
        """Nothing is known any more: the index that said so is built again."""
        self.by_id.clear()
        self.tombstones.clear()
        self.known = self.limbo = 0

    def ids(self) -> list[int]:
        """Of the ledgers that are here, ascending, tombstones not included."""
        return sorted(
            id for id, ledger in self.by_id.items() if ledger.stored and not ledger.deleted
        )

    def state_records(self) -> list[bytes]:
        """The state of each that is stored, as every journal file begins with it (H7)."""
        return [ledger.state_record() for ledger in self.by_id.values() if ledger.stored]

    def look_up(self, ledger_id: int, key: bytes) -> Ledger:
        """One that is known here. Raises `NoSuchLedger`, `LedgerStateUnknown`, `WrongLedgerKey`."""
        ledger = self.by_id.get(ledger_id)
        if ledger is None or not ledger.stored:
            if ledger_id < self.limbo_below:
                raise LedgerStateUnknown(f"ledger {ledger_id}: this bookie lost data (limbo)")
            raise NoSuchLedger(f"ledger {ledger_id} is not known here")
        ledger.check_key(key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        return ledger

    def get_or_make(self, ledger_id: int) -> Ledger:
        """The one object of this id."""
        ledger = self.by_id.get(ledger_id)
        if ledger is None:
            ledger = self.by_id[ledger_id] = Ledger(ledger_id)
        return ledger

    def release(self, ledger: Ledger) -> None:
        """Nobody waits on it any more: an unknown ledger without users is forgotten."""
        if not (ledger.stored or ledger.users or ledger.waiters):
            self.by_id.pop(ledger.id, None)


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
    loaded: Extent | None = None
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
