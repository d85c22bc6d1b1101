"""What can be set about ledgers, with the defaults."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Times are seconds, sizes bytes."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    add_timeout_s: float = 5.0
    """An add without its ack quorum after this long fails the writer, as unknown (`WriteFailed`)."""
    slot_silence_s: float = 2.0
    """A bookie that owes acks and gives none for this long is replaced, or gone without (H22)."""
    slot_bytes_max: int = 32 * MIB
    """Records kept for the slowest bookie; at the bound the writer has no room until it caught up."""
    kept_bytes_max: int = 256 * MIB
    """Records kept for slow bookies over all ledgers of the process; then those have no room (H22)."""
    sent_bytes_max: int = 64 * MIB
    """Records sent and not yet confirmed over all ledgers of the process; then they take turns (H35)."""
    slot_stall_s: float = 1.0
    """A bookie that keeps the writer at one of these bounds for this long is replaced, or gone without."""
    window_bytes_max: int = 16 * MIB
    """Records sent and not yet confirmed; at the bound the writer has no room."""
    request_timeout_s: float = 5.0
    """A read, a fence, a question for the LAC."""
    connect_timeout_s: float = 1.0
    """How long a recovery or a read waits for a connection that is being made."""
    speculative_s: float = 2.0
    """A read that has no answer after this long is asked of a second bookie as well."""
    long_poll_s: float = 1.0
    """The longest a bookie is asked to hold a long poll (H23)."""
    read_bytes_max: int = MIB
