"""The rules of the ledger world, checked at each step.

An entry is acked only if Qa bookies of the *stored* ensemble have it (inv. 4, 7, 8). At the close and later:

- No acked or delivered entry is after the end (inv. 16, 20, D18).
- Each entry has Qa copies in its recorded fragment (inv. 20).
- Entries that recovery has read are kept (inv. 17).
- No bookie's LAC is after the end (inv. 5).
"""

from ....ledger.model.ledger_metadata import LedgerMetadata
from ....ledger.model.striping import Striping
from .ledger_model import header_of
from .ledger_network import KEY, LEDGER, LedgerNet, SimStore


class LedgerViolation(AssertionError):
    """A rule of the ledger protocol was broken."""


def end_of(metadata: LedgerMetadata) -> int:
    """Return the last entry of a closed ledger."""
    assert metadata.last_entry is not None
    return metadata.last_entry


class LedgerOracles:
    """The stored metadata, and the written, acked and delivered entries."""

    def __init__(self, net: LedgerNet, created: LedgerMetadata) -> None:
        self._net = net
        self.striping = Striping(created.ensemble_size, created.write_quorum, created.ack_quorum)
        self.store = SimStore(net, created, self.on_closed)
        self.records: dict[int, bytes] = {}
        """The written records by entry ID."""
        self.acked_to = self.delivered_to = -1
        self.closed_metadata: LedgerMetadata | None = None

    def count_copies(self, entry: int) -> int:
        """Return how many bookies of the stored ensemble have this entry. Entries of a lost disk count."""
        fragment = self.store.value.fragment_of(entry)
        return sum(
            entry in self._net.bookies[fragment.bookies[slot]].model.ledger(LEDGER, KEY).entries
            or self._net.bookies[fragment.bookies[slot]].damaged
            for slot in self.striping.write_set(entry)
        )

    def on_acked(self, lac: int) -> None:
        """The application was notified that all entries up to ``lac`` are safe."""
        for entry in range(self.acked_to + 1, lac + 1):
            if self.count_copies(entry) < self.striping.ack_quorum:
                raise LedgerViolation(
                    f"inv. 4: entry {entry} acked with {self.count_copies(entry)} copies in the stored "
                    "ensemble"
                )
        self.acked_to = max(self.acked_to, lac)
        if self.closed_metadata is not None and lac > end_of(self.closed_metadata):
            raise LedgerViolation(
                f"inv. 20: entry {lac} acked after the close at {end_of(self.closed_metadata)}"
            )

    def on_delivered(self, entry: int, record: bytes) -> None:
        """A reader delivered this entry to its user."""
        if self.records.get(entry) != record:
            raise LedgerViolation(f"G5: entry {entry} delivered with other bytes")
        self.delivered_to = max(self.delivered_to, entry)
        if self.closed_metadata is not None and entry > end_of(self.closed_metadata):
            raise LedgerViolation(
                f"D18: entry {entry} delivered beyond the end {end_of(self.closed_metadata)}"
            )

    def on_closed(self, metadata: LedgerMetadata) -> None:
        """The store accepted a close."""
        if self.closed_metadata is not None:
            if (self.closed_metadata.last_entry, self.closed_metadata.length) != (
                metadata.last_entry,
                metadata.length,
            ):
                raise LedgerViolation("inv. 2: a closed ledger's end changed")
            return
        self.closed_metadata = metadata
        end = end_of(metadata)
        self._net.record_event(f"closed at {end}: {metadata.ensembles}")
        if self.acked_to > end:
            raise LedgerViolation(f"inv. 20: closed at {end}, entry {self.acked_to} was acked")
        if self.delivered_to > end:
            raise LedgerViolation(f"D18: closed at {end}, entry {self.delivered_to} was delivered")
        length = sum(header_of(self.records[e]).payload_bytes for e in range(end + 1))
        if metadata.length != length:
            raise LedgerViolation(f"closed with length {metadata.length}, it is {length}")
        for entry in range(end + 1):
            if self.count_copies(entry) < self.striping.ack_quorum:
                raise LedgerViolation(
                    f"inv. 20: closed at {end}, entry {entry} has {self.count_copies(entry)} copies"
                )

    def final_check(self, errors: str) -> None:
        """Check the end state after all faults have ended. ``errors`` lists the errors of the recoverers."""
        if self.closed_metadata is None:
            raise LedgerViolation(f"the ledger did not close after the faults ended: {errors}")
        end = end_of(self.closed_metadata)
        for bookie in self._net.bookies.values():
            if bookie.model.ledger(LEDGER, KEY).lac > end:
                raise LedgerViolation(f"inv. 5: {bookie.id} publishes a LAC beyond the end {end}")
