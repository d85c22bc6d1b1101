"""The metrics of a gateway, with their public names (pure)."""

from dataclasses import dataclass
from typing import Any

from ..runtime.declarations.meters import Metric, Sample, samples

METRICS = (
    Metric("dlog_gateway_connections", "gauge", "connections", "Open connections."),
    Metric("dlog_gateway_requests_total", "counter", "requests", "Accepted requests."),
    Metric(
        "dlog_gateway_requests_turned_away_total",
        "counter",
        "turned_away",
        "Requests rejected before processing: foreign host or origin, no token, too many "
        "requests in total or from one address.",
        "0",
        "check `--allow-host` and the token, or add gateways; its log lists addresses",
    ),
    Metric(
        "dlog_gateway_requests_refused_total",
        "counter",
        "refused",
        "Requests answered with 4xx.",
        "",
    ),
    Metric(
        "dlog_gateway_requests_failed_total",
        "counter",
        "failed",
        "Requests answered with 5xx.",
        "0",
        "the cluster or its proxies do not answer: `dlog status`, `dlog proxy list`",
    ),
    Metric(
        "dlog_gateway_requests_under_way", "gauge", "under_way", "Pending requests, except tails."
    ),
    Metric(
        "dlog_gateway_held_bytes",
        "gauge",
        "held_bytes",
        "Bytes of pending requests and answers.",
        "well below `held_bytes_max`",
        "many large requests at the same time: add gateways",
    ),
    Metric("dlog_gateway_tails", "gauge", "tails", "Open event streams."),
    Metric(
        "dlog_gateway_hung_up_total",
        "counter",
        "hung_up",
        "Connections closed because the client read nothing for `write_s`.",
        "few",
        "clients open a tail and do not read it",
    ),
    Metric(
        "dlog_gateway_records_written_total", "counter", "records_written", "Acknowledged records."
    ),
    Metric(
        "dlog_gateway_bytes_written_total",
        "counter",
        "bytes_written",
        "Bytes of acknowledged records.",
    ),
    Metric(
        "dlog_gateway_records_read_total",
        "counter",
        "records_read",
        "Records sent, including tails.",
    ),
    Metric("dlog_gateway_bytes_read_total", "counter", "bytes_read", "Bytes of records sent."),
    Metric(
        "dlog_gateway_sessions",
        "gauge",
        "sessions",
        "User tokens with an open session.",
        "below `sessions_max`",
        "add gateways, or use fewer tokens per program",
    ),
    Metric(
        "dlog_gateway_tokens_refused_total",
        "counter",
        "tokens_refused",
        "Tokens that the cluster rejected: invalid, expired or revoked.",
        "few",
        "a program with an old token, or an unauthenticated peer",
    ),
    Metric("dlog_gateway_writers", "gauge", "writers", "Logs that are open for writing."),
    Metric("dlog_gateway_producers", "gauge", "producers", "Producers with an open stream."),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(slots=True)
class GatewayMeters:
    """Counters of one gateway since its start, and its present gauges."""

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
        """Return the values with their metrics."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return samples(METRICS, values)
