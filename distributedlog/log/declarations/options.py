"""The options of logs (pure).

To add an option, add a field here. The checks and the ``config`` argument of `open_namespace` and `open_log`
read its description. ``python -m tests.test_options`` generates docs/reference/options.md. Code that works on
a log reads the values from `LogContext.options`.
"""

from dataclasses import dataclass

from ...ledger.declarations.options import READ_BYTES_MAX
from ...runtime.declarations.options import KIB, MIB, check, option
from .compression_codecs import CODEC_NAMES

LEASE_S_MIN, LEASE_S_MAX = 0.1, 24 * 3600.0
"""The lease lengths that the metadata quorum grants, in seconds."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of the logs of a namespace. `open_log` may override some of them for one log."""

    create_if_missing: bool = option(
        True, "", "create a missing log when its first writer opens it"
    )
    max_txid_check: bool = option(
        True, "", "reject a transaction ID below the last one, in logs with the strict policy"
    )
    entry_bytes_max: int = option(
        256 * KIB - 256,
        "bytes",
        "size of an entry under load; the default gives frames of 256 KiB",
        at_most=4 * MIB,
    )
    in_flight_bytes_max: int = option(
        8 * MIB, "bytes", "accepted records of the log that are not yet durable; see `at_limit`"
    )
    bytes_per_s_max: int = option(
        0,
        "bytes/s",
        "write rate in payload bytes plus 12 bytes per record (0: no limit)",
        at_least=0,
    )
    records_per_s_max: int = option(0, "records/s", "write rate (0: no limit)", at_least=0)
    at_limit: str = option(
        "wait",
        "",
        "a record above a limit waits, is rejected (`TooBusy`), or, above a rate, is only "
        "counted (`LogWriter.over_rate`)",
        one_of=("wait", "reject", "count"),
    )
    eager_entries: int = option(
        2,
        "entries",
        "with fewer entries in flight, a batch is sent immediately; otherwise it grows",
    )
    segment_bytes_max: int = option(
        1024 * MIB,
        "bytes",
        "the log rolls at this size; segments are the unit of retention and repair",
    )
    segment_age_max_s: float = option(
        2 * 3600.0, "s", "the log rolls when the segment has this age"
    )
    codec: str = option(
        "none",
        "",
        "the writer compresses entries, which needs CPU and saves network and disk",
        one_of=CODEC_NAMES,
    )
    keep_alive_s: float = option(
        0.0,
        "s",
        "an idle writer adds a keep-alive entry at this interval (0: never)",
        at_least=0,
    )
    rolls_at_once: int = option(
        16,
        "segments",
        "concurrent rolls by size or age in the process; only in the configuration of "
        "`open_namespace`",
    )
    lock_lease_s: float = option(
        10.0,
        "s",
        "the lock of an unreachable writer expires after this time, that of a killed writer "
        "within 1 s",
        at_least=LEASE_S_MIN,
        at_most=LEASE_S_MAX,
    )
    rolling: bool = option(
        True, "", "off: the log does not roll by size or age, only after an error"
    )
    recover_timeout_s: float = option(
        30.0, "s", "opening a log, or rolling after an error, times out after this time"
    )
    close_timeout_s: float = option(
        30.0, "s", "`close()` waits at most this time for pending writes"
    )
    read_ahead_bytes: int = option(
        4 * MIB, "bytes", "data fetched in advance that the caller has not read"
    )
    read_bytes: int = option(
        MIB, "bytes", "size of one read request during catch-up", at_most=READ_BYTES_MAX
    )
    read_retry_s: float = option(30.0, "s", "a reader fails if it receives no answer for this time")
    commit_interval_s: float = option(
        1.0, "s", "committed positions of subscriptions are stored together at this interval"
    )

    def __post_init__(self) -> None:
        check(self)
