"""The adds in flight on one ledger, and how far they are confirmed (pure).

Bookies acknowledge by *count*: "the first n records of this stream are durable" (H1). A stream belongs to
one slot and one bookie and carries every entry that the slot holds from its first one on, in ascending
order; so the n-th record's entry id is arithmetic, and a slot's progress is one number: all entries it
holds up to ``through`` are durable at the bookie that is in the slot now. A slot that gets a new stream
(reconnect, replacement) is sent again from the first entry that is not acknowledged; nothing is ever sent
out of order on a stream, which is why no set of entry ids is needed.

Confirmed (the LAC moves) in order only, when an entry's ack quorum of slots has it, and never while an
ensemble change is undecided. Records are kept by reference until all attached slots have them.
Entry ids count from 0; ``lac`` is -1 while nothing is confirmed. Source: G1, G2; inv. 3-9.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...runtime.interfaces.errors import ProtocolError
from ...runtime.interfaces.host import Buffer
from ..model.missing_range import MissingRange
from ..model.striping import Striping

_COMPACT_THRESHOLD = 4096
RELEASE_BATCH = 8
"""So many entries are confirmed before an add drops what need not be kept: of a lone record it would cost as
much as its add. Large ones are asked for sooner, by their bytes (`LedgerWriter.room`)."""


class SlotStream:
    """Entries ``first``, ... of one slot, sent in ascending order to one bookie."""

    __slots__ = ("acked_count", "bookie", "epoch", "first_entry", "slot")

    def __init__(self, slot: int, bookie: str, epoch: int, first: int) -> None:
        self.slot = slot
        self.bookie = bookie
        self.epoch = epoch
        """The fragment's epoch when the stream was opened."""
        self.first_entry = first
        """No entry below this one is on the stream."""
        self.acked_count = 0
        """How many records the bookie has said are durable."""


@dataclass(slots=True)
class Slot:
    """One place of the ensemble."""

    bookie: str
    acked_through: int
    """All entries <= this that the slot holds, from the window's start or the last replacement on, are
    durable at ``bookie``."""
    stream: SlotStream | None = None
    detached: bool = False
    """Goes without: gets nothing, counts for nothing, pins nothing (H22)."""
    missing_from: int = 0
    """While detached: the first entry that the bookie may lack."""


class PendingAdds:
    """See the module. The driver pushes records, sends what `begin_stream` says, reports counts."""

    __slots__ = (
        "_ack_quorum",
        "_attached_slots",
        "_cumulative_bytes",
        "_first_kept_entry",
        "_records",
        "_released_through",
        "_slots_above_lac",
        "_start_lac",
        "_unstriped",
        "ensemble_changing",
        "epoch",
        "lac",
        "lac_bytes",
        "last_entry",
        "missing_ranges",
        "notify_every_ack",
        "pushed_bytes",
        "released_bytes",
        "slots",
        "striping",
    )

    def __init__(
        self,
        striping: Striping,
        bookies: Sequence[str],
        *,
        lac: int = -1,
        epoch: int = 0,
        detached: Sequence[int] = (),
    ) -> None:
        assert len(bookies) == striping.ensemble_size, "a bookie in every slot"
        self.striping = striping
        self.slots = [
            Slot(bookie, lac, None, slot in detached, lac + 1)
            for slot, bookie in enumerate(bookies)
        ]
        self.epoch = epoch
        self.lac = lac
        self.last_entry = lac
        """The last entry pushed."""
        self.pushed_bytes = 0
        """Record bytes pushed since the start."""
        self.lac_bytes = 0
        """Of these, those of confirmed entries."""
        self.released_bytes = 0
        """Of these, those that all attached slots have, as of the last `release`: dropped."""
        self.missing_ranges: list[MissingRange] = []
        """What bookies that left a slot, or were away, may lack."""
        self.ensemble_changing = False
        self.notify_every_ack = 0
        """1: somebody waits for each acknowledgement."""
        self._unstriped = striping.is_unstriped
        self._ack_quorum = striping.ack_quorum
        self._slots_above_lac = 0
        """Attached slots with entries after the LAC; counted where every slot holds every entry."""
        self._start_lac = lac
        self._records: list[Buffer | None] = []
        self._cumulative_bytes: list[int] = []  # pushed_bytes after each record
        self._first_kept_entry = lac + 1  # the entry of _records[0]
        self._released_through = lac  # all entries up to this one are dropped
        self._attached_slots = [slot for slot in self.slots if not slot.detached]
        self._check_invariants()

    # --- sending ----------------------------------------------------------------------------------

    def add(self, record: Buffer) -> int:
        """Take the next entry's record; return its id. The caller sends it on every live stream
        whose slot holds it.
        """
        if self._released_through + RELEASE_BATCH <= self.lac:
            self.release()
        entry = self.last_entry = self.last_entry + 1
        pushed_bytes = self.pushed_bytes = self.pushed_bytes + len(record)
        self._records.append(record)
        self._cumulative_bytes.append(pushed_bytes)
        return entry

    def begin_stream(self, number: int) -> SlotStream:
        """A new stream to the bookie in slot ``number``; any older one counts no more.

        The caller sends `unsent` of it at once, then every new entry that the slot holds.
        """
        slot = self.slots[number]
        assert not slot.detached, "H22: a detached slot gets nothing"
        slot.stream = SlotStream(number, slot.bookie, self.epoch, slot.acked_through + 1)
        self._check_invariants()
        return slot.stream

    def unsent(self, stream: SlotStream) -> Iterator[Buffer]:
        """The records that a new stream begins with, in sending order."""
        entry = self.striping.next_held(stream.slot, stream.first_entry)
        while entry <= self.last_entry:
            record = self._records[entry - self._first_kept_entry]
            assert record is not None, f"entry {entry} is kept until slot {stream.slot} has it"
            yield record
            entry = self.striping.next_held(stream.slot, entry + 1)

    def end_stream(self, stream: SlotStream) -> None:
        """The stream is broken or refused: its late acks count no more."""
        slot = self.slots[stream.slot]
        if slot.stream is stream:
            slot.stream = None
            self._check_invariants()

    # --- acks -------------------------------------------------------------------------------------

    def on_acked(self, stream: SlotStream, count: int) -> int:
        """The first ``count`` records of ``stream`` are durable. Return how many entries that confirms.

        Never 0 while `awaited`, but where nothing is counted: late, or told before. Raises `ProtocolError`
        when the bookie counts backwards or beyond what was sent.
        """
        slot = self.slots[stream.slot]
        if slot.stream is not stream:
            return 0  # inv. 8: of a bookie, or a connection, that is in the slot no more
        if count <= stream.acked_count:
            if count == stream.acked_count:
                return 0
            raise ProtocolError(
                f"{stream.bookie} acknowledged {count} records after {stream.acked_count}"
            )
        if self._unstriped:
            acked_through = last_acked = stream.first_entry + count - 1
        else:
            last_acked = self.striping.nth_held(stream.slot, stream.first_entry, count - 1)
            acked_through = self.striping.next_held(stream.slot, last_acked + 1) - 1
        last_entry = self.last_entry
        if last_acked > last_entry:
            raise ProtocolError(
                f"{stream.bookie} acknowledged {count} records, more than were sent"
            )
        stream.acked_count = count
        previous_through, slot.acked_through = slot.acked_through, acked_through
        lac = self.lac
        if (
            acked_through <= lac
        ):  # confirmed already: it is kept for fewer, and released with a later add
            return self.notify_every_ack
        if self._unstriped:
            if previous_through <= lac:
                self._slots_above_lac += 1
            if self._slots_above_lac < self._ack_quorum:
                return self.notify_every_ack
            if acked_through == last_entry == lac + 1 and not self.ensemble_changing:
                # As `_confirm`, of a lone entry: whoever is ahead has it, and nothing comes after it.
                self.lac, self.lac_bytes, self._slots_above_lac = (
                    acked_through,
                    self.pushed_bytes,
                    0,
                )
                return 1
        return self._confirm() or self.notify_every_ack

    def _confirm(self) -> int:
        """Move the LAC as far as ack quorums reach; return by how many entries."""
        previous_lac = lac = self.lac
        acked_entries: list[int] = []
        if self._unstriped:
            acked_entries = sorted([slot.acked_through for slot in self._attached_slots])
        if not self.ensemble_changing:  # inv. 7
            if not self._unstriped:
                lac = self._highest_confirmable()
            elif len(acked_entries) >= self._ack_quorum:
                lac = max(lac, acked_entries[-self._ack_quorum])
            if lac > previous_lac:
                self.lac = lac
                self.lac_bytes = self._cumulative_bytes[lac - self._first_kept_entry]
        assert previous_lac <= lac <= self.last_entry, (
            "inv. 5: it never moves back, nor beyond the last pushed"
        )
        self._slots_above_lac = len(acked_entries) - bisect_right(acked_entries, lac)
        return lac - previous_lac

    def _highest_confirmable(self) -> int:
        """The last entry of the unbroken run from the LAC on that ack quorums hold (inv. 4), where slots hold
        a part of them."""
        quorum = self.striping.ack_quorum
        size, width, slots = self.striping.ensemble_size, self.striping.write_quorum, self.slots
        entry = self.lac
        while entry < self.last_entry:
            entry += 1
            acks = 0
            for k in range(width):
                slot = slots[(entry + k) % size]
                if slot.acked_through >= entry and not slot.detached:
                    acks += 1
            if acks < quorum:
                return entry - 1
        return entry

    def release(self) -> None:
        """Drop what is confirmed and all attached slots have: every few adds, and for whoever asks."""
        release_through = self.lac
        for slot in self._attached_slots:
            if slot.acked_through < release_through:
                release_through = slot.acked_through
        if release_through <= self._released_through:
            assert release_through == self._released_through, (
                "an entry is kept until all attached slots have it"
            )
            return
        first_kept = self._first_kept_entry
        if release_through == self._released_through + 1:
            self._records[release_through - first_kept] = None
        else:
            self._records[
                self._released_through + 1 - first_kept : release_through + 1 - first_kept
            ] = [None] * (release_through - self._released_through)
        self._released_through = release_through
        self.released_bytes = self._cumulative_bytes[release_through - first_kept]
        dropped_count = release_through + 1 - first_kept
        # One entry stays after the end, so that `_ends` knows the bytes up to the LAC.
        if dropped_count > _COMPACT_THRESHOLD and dropped_count > len(self._records) // 2:
            del self._records[: dropped_count - 1], self._cumulative_bytes[: dropped_count - 1]
            self._first_kept_entry += dropped_count - 1

    # --- slots that fail --------------------------------------------------------------------------

    def detach(self, number: int) -> int:
        """Go on without slot ``number``; return how many entries that confirms (always 0).

        The caller has seen that every write set keeps its ack quorum.
        """
        slot = self.slots[number]
        if not slot.detached:
            remaining_slots = [
                n
                for n, candidate in enumerate(self.slots)
                if not candidate.detached and n != number
            ]
            assert self.striping.keeps_ack_quorums(remaining_slots), (
                "H22: every write set keeps its ack quorum"
            )
            slot.detached, slot.stream, slot.missing_from = True, None, slot.acked_through + 1
            self._attached_slots.remove(slot)
        return self._confirm()

    def attach(self, number: int) -> None:
        """The bookie of a detached slot is back: it is sent all that is not confirmed, and new entries.

        What it missed before is noted as a hole.
        """
        slot = self.slots[number]
        assert slot.detached, "only a detached slot is attached"
        assert not self.ensemble_changing, "inv. 7: nothing moves while a change is undecided"
        self._add_missing_range(slot.bookie, slot.missing_from, self.lac + 1)
        slot.detached, slot.acked_through = False, self.lac
        self._attached_slots = [candidate for candidate in self.slots if not candidate.detached]
        self._check_invariants()

    def begin_change(self) -> int:
        """No entry is confirmed until `end_change` (inv. 7). Return the new fragment's first entry."""
        assert not self.ensemble_changing, "one ensemble change at a time"
        self.ensemble_changing = True
        self._check_invariants()
        return self.lac + 1

    def end_change(self, replaced: Mapping[int, str], epoch: int) -> int:
        """The store holds the new ensemble (or nothing was changed); return how many that confirms.

        Every replaced slot forgets what its old bookie had, all of them before anything is evaluated
        (D5); the caller then begins streams for them.
        """
        assert self.ensemble_changing, "an ensemble change ends that began"
        for number, bookie in replaced.items():
            slot = self.slots[number]
            assert bookie != slot.bookie, "a bookie is not replaced by itself"
            self._add_missing_range(
                slot.bookie,
                slot.missing_from if slot.detached else slot.acked_through + 1,
                self.lac + 1,
            )
            self.slots[number] = Slot(bookie, self.lac)
        self._attached_slots = [candidate for candidate in self.slots if not candidate.detached]
        self.epoch = epoch
        self.ensemble_changing = False
        return self._confirm()

    def _add_missing_range(self, bookie: str, first: int, end: int) -> None:
        if first < end:
            self.missing_ranges.append(MissingRange(bookie, first, end))

    # --- what the driver asks ---------------------------------------------------------------------

    @property
    def in_flight_bytes(self) -> int:
        """Record bytes pushed and not yet confirmed."""
        return self.pushed_bytes - self.lac_bytes

    @property
    def retained_bytes(self) -> int:
        """Record bytes kept in memory: for confirmation, or for the slowest attached slot."""
        if self._released_through < self.lac:
            self.release()
        return self.pushed_bytes - self.released_bytes

    def unacked_bytes(self, number: int) -> int:
        """Record bytes that slot ``number`` keeps in memory: pushed and not acknowledged by it."""
        slot = self.slots[number]
        if slot.detached:
            return 0
        through = min(slot.acked_through, self.last_entry)
        if through < self._first_kept_entry:
            bytes_before = (
                self._cumulative_bytes[0] - len(self._records[0] or b"")
                if self._cumulative_bytes
                else self.pushed_bytes
            )
            return self.pushed_bytes - bytes_before
        return self.pushed_bytes - self._cumulative_bytes[through - self._first_kept_entry]

    def has_unacked(self, number: int) -> bool:
        """Has slot ``number`` something outstanding?"""
        slot = self.slots[number]
        return (
            not slot.detached
            and self.striping.next_held(number, slot.acked_through + 1) <= self.last_entry
        )

    @property
    def is_fully_acked(self) -> bool:
        """Does every slot have every entry? None is detached, and no change is under way."""
        if (
            self.ensemble_changing
            or self.lac < self.last_entry
            or len(self._attached_slots) < len(self.slots)
        ):
            return False
        if self._unstriped:
            return min([slot.acked_through for slot in self.slots]) >= self.last_entry
        return not any(map(self.has_unacked, range(len(self.slots))))

    def record(self, entry: int) -> Buffer | None:
        """The record of a kept entry; None when it was released."""
        if not self._first_kept_entry <= entry <= self.last_entry:
            return None
        return self._records[entry - self._first_kept_entry]

    def all_missing_ranges(self, end: int | None) -> list[MissingRange]:
        """Noted holes and those of slots that are behind now, for a ledger that ends before ``end``.

        ``end`` None: the ledger goes on.
        """
        missing_ranges = list(self.missing_ranges)
        for number, slot in enumerate(self.slots):
            if slot.detached:
                missing_ranges.append(MissingRange(slot.bookie, slot.missing_from, end))
            elif end is not None and self.striping.next_held(number, slot.acked_through + 1) < end:
                missing_ranges.append(MissingRange(slot.bookie, slot.acked_through + 1, end))
        return missing_ranges

    # --- invariants -------------------------------------------------------------------------------

    def _check_invariants(self) -> None:
        assert self._start_lac <= self.lac <= self.last_entry, "inv. 5: start <= LAC <= last pushed"
        assert self._released_through <= self.lac, "what is not confirmed is kept"
        assert self._first_kept_entry + len(self._records) == self.last_entry + 1, (
            "a record for each entry kept"
        )
        for slot in self._attached_slots:
            assert slot.acked_through >= self._released_through, (
                "an entry is kept until all attached slots have it"
            )
            assert slot.stream is None or slot.stream.bookie == slot.bookie, (
                "inv. 8: a stream belongs to the bookie in the slot"
            )
