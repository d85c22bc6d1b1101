"""What a gateway counts, as it is called outside (pure)."""

from dataclasses import dataclass
from typing import Any

from ..runtime.declarations.meters import Metric, Sample, samples

METRICS = (
    Metric("dlog_gateway_connections", "gauge", "connections", "Open connections."),
    Metric("dlog_gateway_requests_total", "counter", "requests", "Requests that were let in."),
    Metric(
        "dlog_gateway_requests_turned_away_total",
        "counter",
        "turned_away",
        "At the door: a foreign name or page, no token, too many at once, or an address with its share.",
        "0",
        "`--allow-host`, the token, more gateways; its log names addresses",
    ),
    Metric(
        "dlog_gateway_requests_refused_total",
        "counter",
        "refused",
        "Answered with 4xx.",
        "",
    ),
    Metric(
        "dlog_gateway_requests_failed_total",
        "counter",
        "failed",
        "Answered with 5xx.",
        "0",
        "the cluster or its proxies do not answer: `dlog status`, `dlog proxy list`",
    ),
    Metric("dlog_gateway_requests_under_way", "gauge", "under_way", "But for tails."),
    Metric(
        "dlog_gateway_held_bytes",
        "gauge",
        "held_bytes",
        "Of requests and answers that are under way.",
        "well below `held_bytes_max`",
        "many large requests at once: more gateways",
    ),
    Metric("dlog_gateway_tails", "gauge", "tails", "Open streams of events."),
    Metric(
        "dlog_gateway_hung_up_total",
        "counter",
        "hung_up",
        "Connections of peers that took nothing for `write_s`.",
        "few",
        "clients that open a tail and never read it",
    ),
    Metric("dlog_gateway_records_written_total", "counter", "records_written", "Acknowledged."),
    Metric("dlog_gateway_bytes_written_total", "counter", "bytes_written", "Of those records."),
    Metric("dlog_gateway_records_read_total", "counter", "records_read", "Sent, tails included."),
    Metric("dlog_gateway_bytes_read_total", "counter", "bytes_read", "Of those records."),
    Metric(
        "dlog_gateway_sessions",
        "gauge",
        "sessions",
        "Users' tokens that it has a session for.",
        "below `sessions_max`",
        "more gateways, or fewer tokens a program",
    ),
    Metric(
        "dlog_gateway_tokens_refused_total",
        "counter",
        "tokens_refused",
        "That the cluster did not take: made up, ended, revoked.",
        "few",
        "a program with an old token, or a stranger who tries",
    ),
    Metric("dlog_gateway_writers", "gauge", "writers", "Logs that are open for writing."),
    Metric("dlog_gateway_producers", "gauge", "producers", "Producers that it has a stream for."),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(slots=True)
class GatewayMeters:
    """Counters of one gateway since its start, and what is open now."""

    connections: int = 0
    requests: int = 0
    turned_away: int = 0
    refused: int = 0
    failed: int = 0
    under_way: int = 0
    held_bytes: int = 0
    tails: int = 0
    hung_up: int = 0
    records_written: int = 0
    bytes_written: int = 0
    records_read: int = 0
    bytes_read: int = 0
    sessions: int = 0
    tokens_refused: int = 0
    writers: int = 0
    producers: int = 0

    def samples(self) -> list[Sample]:
        """With what each of them means."""
        said: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return samples(METRICS, said)
