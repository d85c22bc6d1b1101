"""Metrics of a metadata node under their public names (`distributedlog/runtime/declarations/meters.py`)."""

from ...runtime.declarations.meters import Metric

METRICS = (
    Metric(
        "dlog_metadata_leader",
        "gauge",
        "leader",
        "1 on the leader, 0 on other nodes.",
        "1 on one node",
        "0 on all nodes for more than some seconds means no quorum; see `dlog status`",
    ),
    Metric(
        "dlog_metadata_term",
        "gauge",
        "term",
        "Raft term, which increases with each election.",
        "constant",
        "repeated elections: slow disks, or a slow network between the nodes",
    ),
    Metric("dlog_metadata_applied_index", "gauge", "applied", "Index of the last applied command."),
    Metric("dlog_metadata_revision", "gauge", "revision", "Number of key changes so far."),
    Metric("dlog_metadata_leases", "gauge", "leases", "Active leases."),
    Metric(
        "dlog_metadata_differing_states",
        "gauge",
        "differs",
        "Leader: nodes whose state differs from its own at the same entry. Other nodes: 1 if "
        "their own state is wrong.",
        "0",
        "`dlog status` names the node; restart it, and replace it if the difference returns",
    ),
    Metric("dlog_metadata_syncs_total", "counter", "syncs", "Syncs of the Raft log."),
    Metric(
        "dlog_metadata_log_bytes_total",
        "counter",
        "bytes_written",
        "Bytes written to the Raft log.",
    ),
    Metric("dlog_metadata_connections", "gauge", "connections", "Open connections."),
    Metric(
        "dlog_metadata_refused_connections_total",
        "counter",
        "refused",
        "Rejected connections: no connection slot, or an invalid handshake.",
        "0",
        "too many clients, or clients with another protocol; the log of the node lists them",
    ),
    Metric(
        "dlog_metadata_certificate_left_ratio",
        "gauge",
        "certificate_left",
        "Remaining part of the certificate lifetime: 1 for a new certificate, 0 for an expired "
        "one. Only with TLS.",
        "above 0.2",
        "run `dlog pki renew`; peers reject new connections with an expired certificate",
    ),
)
"""Listed in the order of docs/reference/metrics.md."""
