"""What must hold in the ledger world, looked at with every step.

An entry is acked only when Qa bookies of the *stored* ensemble have it (inv. 4, 7, 8); at the close and
after: no acked or delivered entry lies beyond the end (inv. 16, 20, D18), every entry has Qa copies in its
recorded fragment (inv. 20), what recovery saw it kept (inv. 17), no bookie's LAC is beyond the end (inv. 5).
"""

from ....ledger.model.ledger_metadata import LedgerMetadata
from ....ledger.model.striping import Striping
from .ledger_model import header_of
from .ledger_network import KEY, LEDGER, LedgerNet, SimStore


class LedgerViolation(AssertionError):
    """An oracle was not satisfied."""


def end_of(metadata: LedgerMetadata) -> int:
    """The last entry of a closed ledger."""
    assert metadata.last_entry is not None
    return metadata.last_entry


class LedgerOracles:
    """The stored record, and what was written, acked and delivered."""

    def __init__(self, net: LedgerNet, created: LedgerMetadata) -> None:
        self._net = net
        self.striping = Striping(created.ensemble_size, created.write_quorum, created.ack_quorum)
        self.store = SimStore(net, created, self.on_closed)
        self.records: dict[int, bytes] = {}
        """What was written, by entry."""
        self.acked = self.delivered = -1
        self.closed: LedgerMetadata | None = None

    def copies(self, entry: int) -> int:
        """How many bookies of the stored ensemble hold this entry (what a lost disk held counts)."""
        fragment = self.store.value.fragment_of(entry)
        return sum(
            entry in self._net.bookies[fragment.bookies[slot]].model.ledger(LEDGER, KEY).entries
            or self._net.bookies[fragment.bookies[slot]].damaged
            for slot in self.striping.write_set(entry)
        )

    def on_acked(self, lac: int) -> None:
        """The application was told: all up to ``lac`` is safe."""
        for entry in range(self.acked + 1, lac + 1):
            if self.copies(entry) < self.striping.ack_quorum:
                raise LedgerViolation(
                    f"inv. 4: entry {entry} acked with {self.copies(entry)} copies in the stored ensemble"
                )
        self.acked = max(self.acked, lac)
        if self.closed is not None and lac > end_of(self.closed):
            raise LedgerViolation(
                f"inv. 20: entry {lac} acked after the close at {end_of(self.closed)}"
            )

    def on_delivered(self, entry: int, record: bytes) -> None:
        """A reader handed this entry to its user."""
        if self.records.get(entry) != record:
            raise LedgerViolation(f"G5: entry {entry} delivered with other bytes")
        self.delivered = max(self.delivered, entry)
        if self.closed is not None and entry > end_of(self.closed):
            raise LedgerViolation(
                f"D18: entry {entry} delivered beyond the end {end_of(self.closed)}"
            )

    def on_closed(self, metadata: LedgerMetadata) -> None:
        """The store took a close."""
        if self.closed is not None:
            if (self.closed.last_entry, self.closed.length) != (
                metadata.last_entry,
                metadata.length,
            ):
                raise LedgerViolation("inv. 2: a closed ledger's end changed")
            return
        self.closed = metadata
        end = end_of(metadata)
        self._net.note(f"closed at {end}: {metadata.ensembles}")
        if self.acked > end:
            raise LedgerViolation(f"inv. 20: closed at {end}, entry {self.acked} was acked")
        if self.delivered > end:
            raise LedgerViolation(f"D18: closed at {end}, entry {self.delivered} was delivered")
        length = sum(header_of(self.records[e]).payload_bytes for e in range(end + 1))
        if metadata.length != length:
            raise LedgerViolation(f"closed with length {metadata.length}, it is {length}")
        for entry in range(end + 1):
            if self.copies(entry) < self.striping.ack_quorum:
                raise LedgerViolation(
                    f"inv. 20: closed at {end}, entry {entry} has {self.copies(entry)} copies"
                )

    def final_check(self, errors: str) -> None:
        """After the heal; ``errors``: what the recoverers met."""
        if self.closed is None:
            raise LedgerViolation(f"the ledger did not close after the heal: {errors}")
        end = end_of(self.closed)
        for bookie in self._net.bookies.values():
            if bookie.model.ledger(LEDGER, KEY).lac > end:
                raise LedgerViolation(f"inv. 5: {bookie.id} publishes a LAC beyond the end {end}")
