"""The adds in flight of one ledger, and the LAC (pure).

Bookies acknowledge by *count*: "the first n records of this stream are durable" (H1). A stream belongs to
one slot and one bookie. It carries every entry of the slot from its first one, in ascending order. The
entry ID of the n-th record can therefore be computed, and the progress of a slot is one number: all its
entries up to ``acked_through`` are durable at the current bookie.

A new stream of a slot (after a reconnect or replacement) starts with the first unacknowledged entry. No
stream carries entries out of order, so no set of entry IDs is necessary.

Entries are confirmed in order only, when an ack quorum of slots has them, and never while an ensemble
change is pending. Records are kept by reference until all attached slots have them. Entry IDs count from 0,
and ``lac`` is -1 while no entry is confirmed. Source: G1, G2 and inv. 3-9.
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
"""After this many confirmed entries, an add releases records that are no longer needed.

For each single-record entry, a release would cost as much as its add. Large entries are released sooner, by
their bytes (`LedgerWriter.has_capacity`).
"""


class SlotStream:
    """A stream of the entries from ``first_entry`` of one slot, sent in ascending order to one bookie."""

    __slots__ = ("acked_count", "bookie", "epoch", "first_entry", "slot")

    def __init__(self, slot: int, bookie: str, epoch: int, first: int) -> None:
        self.slot = slot
        self.bookie = bookie
        self.epoch = epoch
        """The fragment's epoch when the stream was opened."""
        self.first_entry = first
        """The stream contains no lower entry."""
        self.acked_count = 0
        """The number of records that the bookie reported as durable."""


@dataclass(slots=True)
class Slot:
    """One position of the ensemble."""

    bookie: str
    acked_through: int
    """All entries of the slot up to this one are durable at ``bookie``.

    Entries before the start, or before the last replacement, do not count.
    """
    stream: SlotStream | None = None
    detached: bool = False
    """Whether the slot receives and acknowledges nothing, and delays the release of no record (H22)."""
    missing_from: int = 0
    """While detached: the first entry that the bookie may lack."""


class PendingAdds:
    """The records that are added and not released, and the acknowledgements of each slot.

    The owner adds records, sends the result of `initial_records` after `begin_stream`, and reports
    acknowledged counts.
    """

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
        """The last entry added."""
        self.pushed_bytes = 0
        """Record bytes added since the start."""
        self.lac_bytes = 0
        """The part of ``pushed_bytes`` that is confirmed."""
        self.released_bytes = 0
        """The part of ``pushed_bytes`` that all attached slots have, as of the last `release`."""
        self.missing_ranges: list[MissingRange] = []
        """Entries that bookies may lack because they were replaced or detached."""
        self.ensemble_changing = False
        self.notify_every_ack = 0
        """1 if a task waits for each acknowledgement, otherwise 0."""
        self._unstriped = striping.is_unstriped
        self._ack_quorum = striping.ack_quorum
        self._slots_above_lac = 0
        """The number of attached slots with entries above the LAC. Used only if every slot stores every
        entry."""
        self._start_lac = lac
        self._records: list[Buffer | None] = []
        self._cumulative_bytes: list[int] = []  # pushed_bytes after each record
        self._first_kept_entry = lac + 1  # the entry of _records[0]
        self._released_through = lac  # all entries up to this one are dropped
        self._attached_slots = [slot for slot in self.slots if not slot.detached]
        self._check_invariants()

    # --- sending ----------------------------------------------------------------------------------

    def add(self, record: Buffer) -> int:
        """Add the next entry's record and return its ID.

        The caller sends it on every open stream whose slot stores it.
        """
        if self._released_through + RELEASE_BATCH <= self.lac:
            self.release()
        entry = self.last_entry = self.last_entry + 1
        pushed_bytes = self.pushed_bytes = self.pushed_bytes + len(record)
        self._records.append(record)
        self._cumulative_bytes.append(pushed_bytes)
        return entry

    def begin_stream(self, number: int) -> SlotStream:
        """Start a stream to the bookie in slot ``number``. An older stream of the slot no longer counts.

        The caller sends the result of `initial_records` at once, then every new entry of the slot.
        """
        slot = self.slots[number]
        assert not slot.detached, "H22: a detached slot has no stream"
        slot.stream = SlotStream(number, slot.bookie, self.epoch, slot.acked_through + 1)
        self._check_invariants()
        return slot.stream

    def initial_records(self, stream: SlotStream) -> Iterator[Buffer]:
        """Yield the records with which a new stream starts, in order.

        These are all added records of its slot from its first entry on. An earlier stream of the slot may
        have sent some of them.
        """
        entry = self.striping.next_held(stream.slot, stream.first_entry)
        while entry <= self.last_entry:
            record = self._records[entry - self._first_kept_entry]
            assert record is not None, f"entry {entry} is kept until slot {stream.slot} has it"
            yield record
            entry = self.striping.next_held(stream.slot, entry + 1)

    def end_stream(self, stream: SlotStream) -> None:
        """End a broken or rejected stream. Its late acknowledgements do not count."""
        slot = self.slots[stream.slot]
        if slot.stream is stream:
            slot.stream = None
            self._check_invariants()

    # --- acks -------------------------------------------------------------------------------------

    def on_acked(self, stream: SlotStream, count: int) -> int:
        """Count that the first ``count`` records of ``stream`` are durable.

        Returns:
            The number of entries that this confirms. While ``notify_every_ack`` is 1, at least 1 if the
            acknowledgement was counted, so not outdated or repeated.

        Raises:
            ProtocolError: The bookie decreased its count or counted more records than were sent.
        """
        slot = self.slots[stream.slot]
        if slot.stream is not stream:
            return 0  # inv. 8: an outdated report of a previous bookie or connection
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
        if acked_through <= lac:  # confirmed already; a later add releases the record
            return self.notify_every_ack
        if self._unstriped:
            if previous_through <= lac:
                self._slots_above_lac += 1
            if self._slots_above_lac < self._ack_quorum:
                return self.notify_every_ack
            if acked_through == last_entry == lac + 1 and not self.ensemble_changing:
                # As `_confirm`, for a single entry: the slots above the LAC have exactly this one.
                self.lac, self.lac_bytes, self._slots_above_lac = (
                    acked_through,
                    self.pushed_bytes,
                    0,
                )
                return 1
        return self._confirm() or self.notify_every_ack

    def _confirm(self) -> int:
        """Advance the LAC as far as ack quorums allow, and return by how many entries."""
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
            "inv. 5: the LAC never decreases, nor exceeds the last entry"
        )
        self._slots_above_lac = len(acked_entries) - bisect_right(acked_entries, lac)
        return lac - previous_lac

    def _highest_confirmable(self) -> int:
        """Return the last entry up to which all entries have an ack quorum (inv. 4), with E > Qw."""
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
        """Drop records that are confirmed and that all attached slots have."""
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
        # Keep one entry more, so that `_cumulative_bytes` has the bytes up to the LAC.
        if dropped_count > _COMPACT_THRESHOLD and dropped_count > len(self._records) // 2:
            del self._records[: dropped_count - 1], self._cumulative_bytes[: dropped_count - 1]
            self._first_kept_entry += dropped_count - 1

    # --- slots that fail --------------------------------------------------------------------------

    def detach(self, number: int) -> int:
        """Continue without slot ``number``, and return how many entries that confirms (always 0).

        The caller has checked that every write set keeps its ack quorum.
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
        """Attach a detached slot whose bookie is back. It receives all unconfirmed entries and new ones.

        Earlier entries that it lacks are recorded as missing.
        """
        slot = self.slots[number]
        assert slot.detached, "only a detached slot is attached"
        assert not self.ensemble_changing, (
            "inv. 7: no slot changes while an ensemble change is pending"
        )
        self._add_missing_range(slot.bookie, slot.missing_from, self.lac + 1)
        slot.detached, slot.acked_through = False, self.lac
        self._attached_slots = [candidate for candidate in self.slots if not candidate.detached]
        self._check_invariants()

    def begin_change(self) -> int:
        """Stop confirming entries until `end_change` (inv. 7). Return the new fragment's first entry."""
        assert not self.ensemble_changing, "one ensemble change at a time"
        self.ensemble_changing = True
        self._check_invariants()
        return self.lac + 1

    def end_change(self, replaced: Mapping[int, str], epoch: int) -> int:
        """Continue after the new ensemble is stored, or unchanged. Return how many entries that confirms.

        The acknowledgements of all replaced bookies are discarded before any entry is confirmed (D5). The
        caller then starts streams for the replaced slots.
        """
        assert self.ensemble_changing, "an ensemble change is pending"
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
        """Record bytes added and not yet confirmed."""
        return self.pushed_bytes - self.lac_bytes

    @property
    def retained_bytes(self) -> int:
        """Record bytes in memory, because they are unconfirmed or the slowest attached slot lacks them."""
        if self._released_through < self.lac:
            self.release()
        return self.pushed_bytes - self.released_bytes

    def unacked_bytes(self, number: int) -> int:
        """Return the record bytes that were added and that slot ``number`` has not acknowledged."""
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
        """Whether slot ``number`` owes acknowledgements."""
        slot = self.slots[number]
        return (
            not slot.detached
            and self.striping.next_held(number, slot.acked_through + 1) <= self.last_entry
        )

    @property
    def is_fully_acked(self) -> bool:
        """Whether every slot is attached and has every entry, and no change is pending."""
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
        """Return the record of an entry; None if it was released or does not exist."""
        if not self._first_kept_entry <= entry <= self.last_entry:
            return None
        return self._records[entry - self._first_kept_entry]

    def all_missing_ranges(self, end: int | None) -> list[MissingRange]:
        """Return the recorded missing entries and those of slots that are behind now.

        Args:
            end: One past the last entry of the ledger; None if the ledger stays open.
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
        assert self._start_lac <= self.lac <= self.last_entry, "inv. 5: start <= LAC <= last added"
        assert self._released_through <= self.lac, "unconfirmed entries are kept"
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
