"""The options of ledgers (pure)."""

from dataclasses import dataclass

from ...runtime.declarations.options import MIB, check, option
from ...runtime.interfaces.errors import InvalidRequest

BOOKIES_MAX = 255
"""The largest ensemble that a ledger's record can hold."""
READ_BYTES_MAX = 1024 * MIB
"""The most bytes of one read request, whose field has 32 bits."""
LONG_POLL_S = 1.0
"""The longest time for which a bookie holds a long poll of a reader (H23). If the bookie is unresponsive, the
reader asks another one after this time."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Of all ledgers of a process."""

    ensemble_size: int = option(
        3, "bookies", "that a ledger's entries are spread over", at_most=BOOKIES_MAX
    )
    write_quorum: int = option(3, "bookies", "that store an entry", at_most=BOOKIES_MAX)
    ack_quorum: int = option(
        2, "bookies", "that have an entry durably before it is confirmed", at_most=BOOKIES_MAX
    )
    add_timeout_s: float = option(
        5.0,
        "s",
        "an add without its ack quorum after this fails the writer, as unknown (`WriteFailed`)",
    )
    slot_silence_s: float = option(
        2.0,
        "s",
        "a bookie that owes acks and gives none for this is replaced, or gone without (H22)",
    )
    slot_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "kept for the slowest bookie; at the bound the writer has no room until it caught up",
    )
    kept_bytes_max: int = option(
        256 * MIB, "bytes", "kept for slow bookies, all ledgers; then those have no room (H22)"
    )
    sent_bytes_max: int = option(
        64 * MIB, "bytes", "sent and not yet confirmed, all ledgers; then they take turns (H35)"
    )
    slot_stall_s: float = option(
        1.0,
        "s",
        "a bookie that keeps the writer at one of these bounds is replaced, or gone without",
    )
    window_bytes_max: int = option(
        16 * MIB, "bytes", "sent and not yet confirmed; at the bound the writer has no room"
    )
    request_timeout_s: float = option(5.0, "s", "a read, a fence, a question for the LAC")
    connect_timeout_s: float = option(
        1.0, "s", "a recovery or a read waits for a connection that is being made"
    )
    speculative_s: float = option(
        2.0, "s", "a read without an answer after this is asked of a second bookie as well"
    )

    @property
    def sweep_s(self) -> float:
        """Between two looks at a writer for what is late."""
        return self.slot_silence_s / 4

    def __post_init__(self) -> None:
        check(self)
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise InvalidRequest(
                f"ensemble {self.ensemble_size} >= write quorum {self.write_quorum} >= "
                f"ack quorum {self.ack_quorum} does not hold"
            )
