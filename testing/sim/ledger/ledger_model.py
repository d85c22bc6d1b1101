"""A minimal model of a bookie in the ledger protocol, simple enough to be evidently correct.

Stored entries are durable at once, because durability is tested with real bookies. The seeded world
(`ledger_world.py`) and the tests of the drivers share the model.
"""

from dataclasses import dataclass, field

from ....bookie.format.entry import HEADER
from ....runtime.interfaces.errors import (
    BookieReadOnly,
    DistributedLogError,
    EntryConflict,
    LedgerFenced,
    WrongLedgerKey,
)
from ....runtime.interfaces.host import Buffer


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a record that a bookie reads."""

    entry: int
    length_so_far: int
    payload_bytes: int
    lac: int


def header_of(record: Buffer) -> Header:
    """Return the fields of a record that the protocol uses."""
    _, _, payload_bytes, _, _, _, _, entry, length_so_far, lac = HEADER.unpack_from(record)
    return Header(entry, length_so_far, payload_bytes, lac)


@dataclass(slots=True)
class ModelLedger:
    """The state of one ledger on one bookie."""

    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    lac: int = -1
    limbo: bool = False
    key: bytes | None = None
    damaged: set[int] = field(default_factory=set)
    """Corrupt entries."""


class ModelBookie:
    """A bookie that implements only the rules of invariants 11 to 13, 22 and 30."""

    def __init__(self, bookie_id: str) -> None:
        self.id = bookie_id
        self.ledgers: dict[int, ModelLedger] = {}
        self.read_only = False

    def ledger(self, ledger_id: int, key: bytes) -> ModelLedger:
        """Return the state of a ledger. The first request creates it, also if it is a fence (inv. 12)."""
        model_ledger = self.ledgers.setdefault(ledger_id, ModelLedger())
        if model_ledger.key is None:
            model_ledger.key = key
        elif model_ledger.key != key:
            raise WrongLedgerKey(f"{self.id}: ledger {ledger_id} has another key")
        return model_ledger

    def add(self, ledger_id: int, key: bytes, record: Buffer, *, recovery: bool) -> None:
        """Check the fence and store the record in one step (inv. 11). Raises the same errors as a bookie."""
        ledger = self.ledger(ledger_id, key)
        if ledger.fenced and not recovery:
            raise LedgerFenced(f"{self.id}: ledger {ledger_id} is fenced")
        if self.read_only and not recovery:
            raise BookieReadOnly(f"{self.id} is read-only")
        header = header_of(record)
        stored = ledger.entries.get(header.entry)
        if stored is not None and stored != record:
            raise EntryConflict(f"{self.id}: ledger {ledger_id} entry {header.entry}")
        ledger.entries[header.entry] = bytes(record)
        ledger.lac = max(ledger.lac, header.lac)

    def write_lac(self, ledger_id: int, key: bytes, lac: int) -> None:
        """Apply an explicit LAC of the writer. It is ignored if the ledger is fenced (H24)."""
        ledger = self.ledger(ledger_id, key)
        if not ledger.fenced:
            ledger.lac = max(ledger.lac, lac)

    def fence(self, ledger_id: int, key: bytes) -> tuple[int, int, bool]:
        """Fence the ledger. Return its LAC, its last entry, and whether its entries are known (no limbo)."""
        ledger = self.ledger(ledger_id, key)
        ledger.fenced = True
        return ledger.lac, max(ledger.entries, default=-1), not ledger.limbo

    def read(
        self,
        ledger_id: int,
        key: bytes,
        first: int,
        last: int,
        entries_max: int,
        *,
        fence: bool = False,
    ) -> tuple[int, int, bool, list[bytes]]:
        """Return complete_to, the LAC, whether entries are known, and the records (H9).

        Corrupt ones stay corrupt.
        """
        ledger = self.ledger(ledger_id, key)
        if fence:
            ledger.fenced = True
        entry_ids = [e for e in ledger.entries if first <= e <= last]
        entry_ids.sort()
        complete_to = last
        if len(entry_ids) > entries_max:
            entry_ids = entry_ids[:entries_max]
            complete_to = entry_ids[-1]
        records = [
            _damage(ledger.entries[e]) if e in ledger.damaged else ledger.entries[e]
            for e in entry_ids
        ]
        return complete_to, ledger.lac, not ledger.limbo, records


def _damage(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


class ModelStream:
    """The bookie's side of one add stream.

    It counts its entries, and rejects all after the first error (H1).
    """

    def __init__(self, bookie: ModelBookie, ledger_id: int, key: bytes, *, recovery: bool) -> None:
        self._bookie = bookie
        self._ledger_id = ledger_id
        self._key = key
        self._recovery = recovery
        self.count = 0
        self.refusal: DistributedLogError | None = None

    def write_lac(self, lac: int) -> None:
        """Apply an explicit LAC, except for recovery streams and after a rejected entry."""
        if self.refusal is None and not self._recovery:
            self._bookie.write_lac(self._ledger_id, self._key, lac)

    def add(self, record: Buffer) -> bool:
        """Store a record. Return False if it, or an earlier one of this stream, was rejected."""
        if self.refusal is not None:
            return False
        try:
            self._bookie.add(self._ledger_id, self._key, record, recovery=self._recovery)
        except DistributedLogError as error:
            self.refusal = error
            return False
        self.count += 1
        return True
