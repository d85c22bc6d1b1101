"""What a recovery asks of its driver, and what a read brings back (pure)."""

from dataclasses import dataclass

from ...runtime.interfaces.host import Buffer
from ..model.ledger_metadata import LedgerMetadata
from ..model.missing_range import MissingRange


@dataclass(frozen=True, slots=True)
class FenceBookie:
    """Ask this bookie to fence the ledger; answer with `on_fenced` or `on_fence_failed`."""

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """Ask for a range; answer with `on_read` or `on_read_failed`."""

    request_id: int
    bookie: str
    first: int
    last: int
    bytes_max: int
    fence: bool


@dataclass(frozen=True, slots=True)
class OpenRecoveryStream:
    """Open a recovery add stream for this slot, beginning with what the window says is unsent to it.
    Report `on_acked` and `on_write_failed`.
    """

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class SendEntries:
    """The window has new entries, up to ``through``: send them on every open stream that holds them."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Write this record, if the store's is still the version read; answer with `on_closed` or
    `on_close_conflict`.
    """

    metadata: LedgerMetadata
    missing_ranges: tuple[MissingRange, ...]


RecoveryAction = FenceBookie | ReadReplica | OpenRecoveryStream | SendEntries | CloseLedger


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """One digest-valid record of a read reply."""

    entry: int
    length_so_far: int
    record: Buffer
