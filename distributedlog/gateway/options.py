"""The options of a gateway (pure)."""

from dataclasses import dataclass

from ..runtime.declarations.options import MIB, check, option


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Of a gateway's process."""

    connections_max: int = option(
        1024, "connections", "open at a time; who comes then waits to be accepted"
    )
    requests_max: int = option(
        256, "requests", "under way at a time, but for tails; above: 503, and when to come again"
    )
    tails_max: int = option(500, "streams", "of server-sent events at a time; each holds a reader")
    body_bytes_max: int = option(
        4 * MIB, "bytes", "of a request's body: all of it is held", at_most=64 * MIB
    )
    records_max: int = option(10_000, "records", "of one request, written or read", at_most=100_000)
    read_bytes_max: int = option(
        4 * MIB, "bytes", "of payloads in one answer, and one record more", at_most=64 * MIB
    )
    held_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "of all requests and answers that are under way, counted three times their payloads; above: 429",
    )
    body_s: float = option(20.0, "s", "a request's body has so long to come")
    append_s: float = option(30.0, "s", "records have so long to be stored")
    read_s: float = option(30.0, "s", "a read, or any other question to the cluster, has so long")
    write_s: float = option(20.0, "s", "who takes nothing of an answer for so long is hung up on")
    idle_s: float = option(
        5.0, "s", "a connection without a request, or within its head, has so long"
    )
    quiet_s: float = option(15.0, "s", "a tail without news says that it lives, so often")
    writers_max: int = option(
        500, "logs", "open for writing at a time; above, the one that was idle longest is closed"
    )
    producers_max: int = option(
        1000, "producers", "that the gateway has a stream for; above, likewise"
    )
    writer_idle_s: float = option(
        60.0, "s", "a writer or a stream that nobody used is closed after"
    )
    sessions_max: int = option(
        200,
        "tokens",
        "of users that it has a session for at a time; above, the one that was idle longest ends, or 429",
    )
    session_idle_s: float = option(60.0, "s", "a session that nobody used ends after")
    stop_s: float = option(2.0, "s", "requests that are under way have so long when it ends")

    def __post_init__(self) -> None:
        check(self)
