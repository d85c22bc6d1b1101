"""Which slots of an ensemble hold an entry, and which answers cover a quorum (pure).

Entry ``e`` lies in the slots (e + k) mod E for k = 0..Qw-1: its write set. There are E different write
sets, called windows here (one if E = Qw). A slot is a place in the ensemble; when a bookie is replaced the
slot stays. Source: docs/internals/invariants.md, striping.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Striping:
    """The three quorum sizes of a ledger, E >= Qw >= Qa >= 1, and what follows from them."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1, "inv. 1: E, Qw, Qa"

    @property
    def is_unstriped(self) -> bool:
        """Does every slot hold every entry?"""
        return self.ensemble_size == self.write_quorum

    @property
    def absent_quorum(self) -> int:
        """So many explicit negatives prove that an entry was never acked, nor will be (inv. 16)."""
        return self.write_quorum - self.ack_quorum + 1

    def write_set(self, entry: int) -> tuple[int, ...]:
        """The slots that hold ``entry``, in the order readers try them."""
        size = self.ensemble_size
        return tuple((entry + k) % size for k in range(self.write_quorum))

    def holds(self, slot: int, entry: int) -> bool:
        """Is ``slot`` in the write set of ``entry``?"""
        return (slot - entry) % self.ensemble_size < self.write_quorum

    def next_held(self, slot: int, entry: int) -> int:
        """The smallest entry >= ``entry`` that ``slot`` holds."""
        distance = (slot - entry) % self.ensemble_size
        return entry + max(0, distance - self.write_quorum + 1)

    def nth_held(self, slot: int, start: int, n: int) -> int:
        """The entry that is number ``n`` (from 0) among those >= ``start`` that ``slot`` holds."""
        size, quorum = self.ensemble_size, self.write_quorum
        if size == quorum:
            return start + n
        first = self.next_held(slot, start)
        # A slot holds Qw ids in a row, then none for E - Qw: `phase` is the place in that row.
        phase = (first - slot + quorum - 1) % size
        rows, remainder = divmod(phase + n, quorum)
        return first - phase + rows * size + remainder

    def all_write_sets(self) -> list[tuple[int, ...]]:
        """Every write set that occurs."""
        return [self.write_set(e) for e in range(1 if self.is_unstriped else self.ensemble_size)]

    def covering_slot_sets(self, entry: int) -> list[tuple[int, ...]]:
        """Sets of few slots that together hold every entry; the one that begins with ``entry``'s first slot
        is the first."""
        size, steps = self.ensemble_size, range(0, self.ensemble_size, self.write_quorum)
        return [tuple((entry + turn + k) % size for k in steps) for turn in range(size)]

    def covered(self, slots: Collection[int]) -> bool:
        """Do the slots with a known answer reach into every possible ack quorum?

        Then no entry can still reach its ack quorum after them, and none that did is unseen (inv. 14).
        """
        slots_min = self.absent_quorum
        return all(
            sum(slot in slots for slot in window) >= slots_min for window in self.all_write_sets()
        )

    def keeps_ack_quorums(self, slots: Collection[int]) -> bool:
        """Does every write set keep its ack quorum with these slots alone (H22)?"""
        slots_min = self.ack_quorum
        return all(
            sum(slot in slots for slot in window) >= slots_min for window in self.all_write_sets()
        )
