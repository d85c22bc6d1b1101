"""The options of a proxy (pure)."""

from dataclasses import dataclass

from ...runtime.declarations.options import KIB, MIB, check, option


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Of a proxy's process, whichever kind it is."""

    logs_max: int = option(
        2700,
        "logs",
        "open here; above, the one that was idle longest is closed; "
        "one connection has three quarters of them at most",
    )
    idle_s: float = option(600.0, "s", "a log that nobody writes is closed here after this")
    namespaces_max: int = option(64, "namespaces", "in use here at a time")
    calls_max: int = option(
        256,
        "calls",
        "about logs, under way here at a time; one connection has half of them at most",
    )
    window_bytes: int = option(
        MIB, "bytes", "of one stream that may be unanswered, while there is room", at_least=64 * KIB
    )
    windows_bytes: int = option(
        128 * MIB,
        "bytes",
        "of all streams' windows in sum: a new stream gets a part of what is left",
    )
    open_wait_s: float = option(
        10.0, "s", "how long a stream's opening waits for a log that another one has"
    )
    settle_s: float = option(2.0, "s", "a log that moves away has so long to end")
    drain_s: float = option(30.0, "s", "all logs of a proxy that ends have so long to end")
    records_per_s_max: int = option(
        0,
        "records/s",
        "of the whole proxy; above, frames are refused for a time; 0: no limit",
        at_least=0,
    )
    bytes_per_s_max: int = option(0, "bytes/s", "likewise", at_least=0)

    def __post_init__(self) -> None:
        check(self)
