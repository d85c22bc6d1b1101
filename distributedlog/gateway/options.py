"""The options of a gateway (pure)."""

from dataclasses import dataclass

from ..runtime.declarations.options import MIB, check, option


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of a gateway process."""

    connections_max: int = option(
        1024, "connections", "open connections; further clients wait to be accepted"
    )
    requests_max: int = option(
        256, "requests", "concurrent requests except tails (above: 503 with `Retry-After`)"
    )
    tails_max: int = option(
        500, "streams", "concurrent streams of server-sent events; each uses a reader"
    )
    body_bytes_max: int = option(
        4 * MIB, "bytes", "size of a request body, which is held in memory", at_most=64 * MIB
    )
    records_max: int = option(
        10_000, "records", "records per request, written or read", at_most=100_000
    )
    read_bytes_max: int = option(
        4 * MIB,
        "bytes",
        "bytes of payloads, keys and headers per answer, plus one record",
        at_most=64 * MIB,
    )
    held_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "memory of all pending requests and answers, at three times their payload size (above: "
        "429)",
    )
    body_s: float = option(20.0, "s", "time limit for receiving a request body")
    append_s: float = option(30.0, "s", "time limit for storing the records of a request")
    read_s: float = option(30.0, "s", "time limit of a read or any other cluster request")
    write_s: float = option(
        20.0, "s", "a client that reads nothing of an answer for this time is disconnected"
    )
    idle_s: float = option(
        5.0,
        "s",
        "time limit for a connection without a request, or with an incomplete request head",
    )
    quiet_s: float = option(15.0, "s", "interval of keep-alive messages on an idle tail")
    writers_max: int = option(
        500, "logs", "logs open for writing; above, the log that was idle longest is closed"
    )
    producers_max: int = option(
        1000,
        "producers",
        "open streams of producers; above, the stream that was idle longest is closed",
    )
    writer_idle_s: float = option(60.0, "s", "an unused writer or stream is closed after this time")
    sessions_max: int = option(
        200,
        "tokens",
        "user tokens with an open session; above, the session that was idle longest ends, or "
        "the request gets 429",
    )
    session_idle_s: float = option(60.0, "s", "an unused session ends after this time")
    stop_s: float = option(
        2.0, "s", "pending requests have this time to complete when the gateway stops"
    )

    def __post_init__(self) -> None:
        check(self)
