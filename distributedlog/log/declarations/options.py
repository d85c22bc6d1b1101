"""The options of the log part (pure).

A new option of a log is a field here and nothing else: the checks and the ``config`` of `open_namespace` and
`open_log` read its description; ``python -m tests.test_options`` generates docs/reference/options.md.
What is done with a log finds it in `LogContext.options`.
"""

from dataclasses import dataclass

from ...ledger.declarations.options import READ_BYTES_MAX
from ...runtime.declarations.options import KIB, MIB, check, option
from .compression_codecs import NAMES

LEASE_S_MIN, LEASE_S_MAX = 0.1, 24 * 3600.0
"""As the metadata quorum grants leases."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Of the logs of a namespace; `open_log` may replace single ones for one log."""

    create_if_missing: bool = option(True, "", "a log appears with its first writer, as upstream")
    max_txid_check: bool = option(
        True, "", "of a strict log: refuse a given txid below the last one"
    )
    entry_bytes_max: int = option(
        256 * KIB - 256,
        "bytes",
        "of one entry under load: a frame of 256 KiB (H35)",
        at_most=4 * MIB,
    )
    in_flight_bytes_max: int = option(8 * MIB, "bytes", "not yet durable; above, see `at_limit`")
    bytes_per_s_max: int = option(
        0, "bytes/s", "of payloads and 12 bytes a record; 0: no limit", at_least=0
    )
    records_per_s_max: int = option(0, "records/s", "0: no limit", at_least=0)
    at_limit: str = option(
        "wait",
        "",
        "what a record above a limit meets: it waits, is refused (`TooBusy`), or, above a rate, is only "
        "counted (`LogWriter.over_rate`)",
        one_of=("wait", "reject", "count"),
    )
    eager_entries: int = option(
        2, "entries", "while fewer are in flight a batch goes out at once, else it grows"
    )
    segment_bytes_max: int = option(
        1024 * MIB, "bytes", "a segment is the unit of retention and of repair"
    )
    segment_age_max_s: float = option(2 * 3600.0, "s", "upstream's roll by time")
    codec: str = option(
        "none",
        "",
        "entries are compressed by their writer: less on the wire and on the disks, for its CPU",
        one_of=NAMES,
    )
    keep_alive_s: float = option(
        0.0,
        "s",
        "a writer without records to write says that it lives, so often; 0: it does not",
        at_least=0,
    )
    rolls_at_once: int = option(
        16, "segments", "of a process end for size or age together; of open_namespace's config"
    )
    lock_lease_s: float = option(
        10.0,
        "s",
        "a writer's lock is free after this, where it is cut off; within 1 s, where it was killed",
        at_least=LEASE_S_MIN,
        at_most=LEASE_S_MAX,
    )
    rolling: bool = option(True, "", "off: no segment ends by its size or age; by an error it does")
    recover_timeout_s: float = option(
        30.0, "s", "opening or rolling after an error gives up after this"
    )
    close_timeout_s: float = option(30.0, "s", "close() gives up waiting for writes after this")
    read_ahead_bytes: int = option(
        4 * MIB, "bytes", "fetched and not yet taken by the reader's caller"
    )
    read_bytes: int = option(
        MIB, "bytes", "of one request while catching up", at_most=READ_BYTES_MAX
    )
    read_retry_s: float = option(30.0, "s", "a reader that gets no answer for this long gives up")
    commit_interval_s: float = option(
        1.0, "s", "positions that subscribers commit are written together, this often"
    )

    def __post_init__(self) -> None:
        check(self)
