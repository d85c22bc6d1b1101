"""The options of ledgers (pure)."""

from dataclasses import dataclass

from ...runtime.declarations.options import MIB, check, option
from ...runtime.interfaces.errors import InvalidRequest

BOOKIES_MAX = 255
"""The largest ensemble that a ledger's record can hold."""
READ_BYTES_MAX = 1024 * MIB
"""The most bytes of one read request, whose field has 32 bits."""
LONG_POLL_S = 1.0
"""The longest time for which a bookie holds a long poll of a reader (H23).

If the bookie is unresponsive, the reader polls another one after this time.
"""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The options of all ledgers of a process."""

    ensemble_size: int = option(
        3, "bookies", "bookies that store the entries of a ledger", at_most=BOOKIES_MAX
    )
    write_quorum: int = option(3, "bookies", "bookies that store one entry", at_most=BOOKIES_MAX)
    ack_quorum: int = option(
        2,
        "bookies",
        "bookies that store an entry durably before it is acknowledged",
        at_most=BOOKIES_MAX,
    )
    add_timeout_s: float = option(
        5.0,
        "s",
        "an add without its ack quorum after this time fails the writer with an unknown "
        "outcome (`WriteFailed`)",
    )
    slot_silence_s: float = option(
        2.0,
        "s",
        "a bookie that sends no due acknowledgement for this time is replaced, or its slot is "
        "detached",
    )
    slot_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "data buffered for the slowest bookie; at the limit the writer blocks until the bookie "
        "catches up",
    )
    kept_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "data buffered for slow bookies, over all ledgers; at the limit their writers block",
    )
    sent_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "data sent and not yet acknowledged, over all ledgers; at the limit writers send in turn",
    )
    slot_stall_s: float = option(
        1.0,
        "s",
        "a bookie that blocks the writer at a limit for this time is replaced, or its slot is "
        "detached",
    )
    window_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "data of a ledger sent and not yet acknowledged; at the limit the writer blocks",
    )
    request_timeout_s: float = option(5.0, "s", "time limit of a read, a fence or an LAC request")
    connect_timeout_s: float = option(
        1.0, "s", "a recovery or a read waits this long for a connection"
    )
    speculative_s: float = option(
        2.0, "s", "a read without an answer after this time is also sent to a second bookie"
    )

    @property
    def sweep_s(self) -> float:
        """The interval of a writer's timeout checks, in seconds."""
        return self.slot_silence_s / 4

    def __post_init__(self) -> None:
        check(self)
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise InvalidRequest(
                f"ensemble {self.ensemble_size} >= write quorum {self.write_quorum} >= "
                f"ack quorum {self.ack_quorum} does not hold"
            )
