"""The options of a proxy (pure)."""

from dataclasses import dataclass

from ...runtime.declarations.options import KIB, MIB, check, option


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """The options of a proxy of either kind."""

    logs_max: int = option(
        2700,
        "logs",
        "open logs; above, the log that was idle longest is closed. One connection has at most "
        "three quarters",
    )
    idle_s: float = option(600.0, "s", "a log without writes is closed after this time")
    namespaces_max: int = option(64, "namespaces", "namespaces in use at the same time")
    calls_max: int = option(
        256,
        "calls",
        "concurrent calls about logs; one connection has at most half of them",
    )
    window_bytes: int = option(
        MIB,
        "bytes",
        "unacknowledged bytes per stream, while memory is available",
        at_least=64 * KIB,
    )
    windows_bytes: int = option(
        128 * MIB,
        "bytes",
        "windows of all streams together; a new stream receives a part of the remainder",
    )
    open_wait_s: float = option(
        10.0, "s", "a new stream waits this long for a log that another owner holds"
    )
    settle_s: float = option(
        2.0, "s", "pending writes of a log that moves to another proxy have this time to complete"
    )
    drain_s: float = option(30.0, "s", "all logs of a stopping proxy have this time to close")
    records_per_s_max: int = option(
        0,
        "records/s",
        "write rate of the whole proxy; above, frames are rejected for some time (0: no limit)",
        at_least=0,
    )
    bytes_per_s_max: int = option(
        0,
        "bytes/s",
        "write rate of the whole proxy; above, frames are rejected for some time (0: no limit)",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)
