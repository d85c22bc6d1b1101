"""Metrics of write proxies, then of read proxies, by their public names (pure)."""

from ...runtime.declarations.meters import Metric

METRICS = (
    Metric(
        "dlog_proxy_registered",
        "gauge",
        "registered",
        "1 while the node is registered in the metadata quorum.",
        "1",
        "check whether the node reaches a quorum: `dlog metadata show`",
    ),
    Metric("dlog_proxy_connections", "gauge", "connections", "Client connections."),
    Metric("dlog_proxy_calls_total", "counter", "calls", "Calls about logs, such as `create_log`."),
    Metric(
        "dlog_proxy_rights_refused_total",
        "counter",
        "rights_refused",
        "Client requests without the required right. In mode `report`, the proxy executes them "
        "anyway.",
        "0",
        "its log lists them (`proxy.refused`); see `dlog grant check`",
    ),
    Metric(
        "dlog_proxy_rights_ended_total",
        "counter",
        "rights_ended",
        "Streams, subscriptions and calls that ended because a right was revoked.",
    ),
    Metric(
        "dlog_proxy_accepting",
        "gauge",
        "accepting",
        "1 while the proxy accepts additional logs.",
        "1",
        "it drains because of `dlog proxy drain` or a shutdown",
    ),
    Metric("dlog_proxy_logs", "gauge", "logs", "Logs that the proxy writes."),
    Metric("dlog_proxy_streams", "gauge", "streams", "Open streams of producers."),
    Metric("dlog_proxy_frames_total", "counter", "frames", "Accepted frames."),
    Metric("dlog_proxy_records_total", "counter", "records", "Records in accepted frames."),
    Metric("dlog_proxy_bytes_total", "counter", "bytes", "Bytes of accepted frames."),
    Metric(
        "dlog_proxy_streams_refused_total",
        "counter",
        "frames_refused",
        "Streams that ended with a rejected frame, or because their log closed.",
        "increases when logs move",
        "limits, decreasing transaction IDs or unresponsive bookies; its log states the cause",
    ),
    Metric(
        "dlog_proxy_held_bytes",
        "gauge",
        "held_bytes",
        "Bytes of frames that are not acknowledged yet.",
        "well below `windows_bytes`",
        "producers send faster than bookies store",
    ),
    Metric(
        "dlog_proxy_windows_bytes",
        "gauge",
        "windows_bytes",
        "Window bytes granted to open streams.",
    ),
    Metric("dlog_proxy_logs_taken_total", "counter", "logs_taken", "Logs that the proxy opened."),
    Metric(
        "dlog_proxy_logs_taken_over_total",
        "counter",
        "logs_taken_over",
        "Logs taken over from a proxy whose address refused connections.",
        "0, except after killed proxies",
        "proxies terminate unexpectedly",
    ),
    Metric(
        "dlog_proxy_logs_given_up_total",
        "counter",
        "logs_given_up",
        "Logs closed because they moved, were idle or were drained.",
    ),
    Metric(
        "dlog_proxy_logs_lost_total",
        "counter",
        "logs_lost",
        "Logs whose writer failed: another writer took over, or bookies failed.",
        "0",
        "pauses longer than 3 s; see `dlog status`",
    ),
    Metric("dlog_proxy_subscriptions", "gauge", "subscriptions", "Readers of logs at this proxy."),
    Metric(
        "dlog_proxy_cold_subscriptions",
        "gauge",
        "cold_subscriptions",
        "Readers that are behind the recent-entry cache and wait for a read from bookies.",
    ),
    Metric("dlog_proxy_feeds", "gauge", "feeds", "Logs that the proxy tails."),
    Metric("dlog_proxy_ring_bytes", "gauge", "ring_bytes", "Bytes of the recent-entry cache."),
    Metric("dlog_proxy_frames_sent_total", "counter", "frames_sent", "Frames sent to readers."),
    Metric("dlog_proxy_bytes_sent_total", "counter", "bytes_sent", "Bytes sent to readers."),
    Metric(
        "dlog_proxy_entries_taken_total",
        "counter",
        "entries_taken",
        "Entries read from bookies at the ends of logs, once each, independent of the number "
        "of readers.",
    ),
    Metric(
        "dlog_proxy_range_bytes_total",
        "counter",
        "range_bytes_read",
        "Bytes read from bookies for readers that catch up.",
    ),
    Metric(
        "dlog_proxy_certificate_left_ratio",
        "gauge",
        "certificate_left",
        "Remaining part of the certificate lifetime: 1 for a new certificate, 0 for an expired "
        "one. Only with TLS.",
        "above 0.2",
        "run `dlog pki renew`; peers reject new connections with an expired certificate",
    ),
)
"""In the order of docs/reference/metrics.md."""
