"""Determine the slots that store an entry, and the answers that cover a quorum (pure).

Entry ``e`` is stored in the slots (e + k) mod E for k = 0..Qw-1, which are its write set. There are E
different write sets (one if E = Qw). A slot is a position in the ensemble. If its bookie is replaced, the
slot remains. Source: docs/internals/invariants.md, striping.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Striping:
    """The three quorum sizes of a ledger, E >= Qw >= Qa >= 1."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1, "inv. 1: E, Qw, Qa"

    @property
    def is_unstriped(self) -> bool:
        """Whether every slot stores every entry."""
        return self.ensemble_size == self.write_quorum

    @property
    def absent_quorum(self) -> int:
        """The number of definite negative answers that prove an entry absent (inv. 16).

        No ack quorum then has it or will have it.
        """
        return self.write_quorum - self.ack_quorum + 1

    def write_set(self, entry: int) -> tuple[int, ...]:
        """Return the slots that store ``entry``, in the order in which readers try them."""
        size = self.ensemble_size
        return tuple((entry + k) % size for k in range(self.write_quorum))

    def holds(self, slot: int, entry: int) -> bool:
        """Whether ``slot`` is in the write set of ``entry``."""
        return (slot - entry) % self.ensemble_size < self.write_quorum

    def next_held(self, slot: int, entry: int) -> int:
        """Return the smallest entry >= ``entry`` that ``slot`` stores."""
        distance = (slot - entry) % self.ensemble_size
        return entry + max(0, distance - self.write_quorum + 1)

    def nth_held(self, slot: int, start: int, n: int) -> int:
        """Return entry number ``n`` (from 0) of the entries >= ``start`` that ``slot`` stores."""
        size, quorum = self.ensemble_size, self.write_quorum
        if size == quorum:
            return start + n
        first = self.next_held(slot, start)
        # A slot stores Qw consecutive IDs, then none for E - Qw. `phase` is the position among the Qw IDs.
        phase = (first - slot + quorum - 1) % size
        rows, remainder = divmod(phase + n, quorum)
        return first - phase + rows * size + remainder

    def all_write_sets(self) -> list[tuple[int, ...]]:
        """Return all different write sets."""
        return [self.write_set(e) for e in range(1 if self.is_unstriped else self.ensemble_size)]

    def covering_slot_sets(self, entry: int) -> list[tuple[int, ...]]:
        """Return small sets of slots that together store every entry.

        The first set starts with the first slot of ``entry``.
        """
        size, steps = self.ensemble_size, range(0, self.ensemble_size, self.write_quorum)
        return [tuple((entry + turn + k) % size for k in steps) for turn in range(size)]

    def covered(self, slots: Collection[int]) -> bool:
        """Whether the slots with a definite answer intersect every possible ack quorum.

        No entry can then still reach its ack quorum, and none that reached it is unseen (inv. 14).
        """
        slots_min = self.absent_quorum
        return all(
            sum(slot in slots for slot in window) >= slots_min for window in self.all_write_sets()
        )

    def keeps_ack_quorums(self, slots: Collection[int]) -> bool:
        """Whether every write set still has its ack quorum with only these slots (H22)."""
        slots_min = self.ack_quorum
        return all(
            sum(slot in slots for slot in window) >= slots_min for window in self.all_write_sets()
        )
