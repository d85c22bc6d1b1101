"""The requests of a recovery to its driver, and the entries that a read returns (pure)."""

from dataclasses import dataclass

from ...runtime.interfaces.host import Buffer
from ..model.ledger_metadata import LedgerMetadata
from ..model.missing_range import MissingRange


@dataclass(frozen=True, slots=True)
class FenceBookie:
    """Fence the ledger at this bookie. Report `on_fenced` or `on_fence_failed`."""

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """Read a range of entries. Report `on_read` or `on_read_failed`."""

    request_id: int
    bookie: str
    first: int
    last: int
    bytes_max: int
    fence: bool


@dataclass(frozen=True, slots=True)
class OpenRecoveryStream:
    """Open a recovery add stream for this slot, and send the entries that are unsent to it.

    Report `on_acked` and `on_write_failed`.
    """

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class SendEntries:
    """Send new entries, up to ``last_entry``, on every open stream whose slot stores them."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Store this record if the stored version is still the one that was read.

    Report `on_closed` or `on_close_conflict`.
    """

    metadata: LedgerMetadata
    missing_ranges: tuple[MissingRange, ...]


RecoveryAction = FenceBookie | ReadReplica | OpenRecoveryStream | SendEntries | CloseLedger


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """A record with a valid digest from a read reply."""

    entry: int
    length_so_far: int
    record: Buffer
