"""What a metadata node counts, under the names that it has outside
(`distributedlog/runtime/declarations/meters.py`)."""

from ...runtime.declarations.meters import Metric

METRICS = (
    Metric(
        "dlog_metadata_leader",
        "gauge",
        "leader",
        "1 while it leads.",
        "1 on one node",
        "0 on all of them for more than some seconds: no quorum, `dlog status`",
    ),
    Metric(
        "dlog_metadata_term",
        "gauge",
        "term",
        "Rises with each election.",
        "rests",
        "it rises again and again: slow disks or a slow network between the nodes",
    ),
    Metric("dlog_metadata_applied_index", "gauge", "applied", "The last command applied."),
    Metric("dlog_metadata_revision", "gauge", "revision", "Changes of keys so far."),
    Metric("dlog_metadata_leases", "gauge", "leases", "Leases held."),
    Metric(
        "dlog_metadata_differing_states",
        "gauge",
        "differs",
        "A leader: nodes whose state is not its own after the same entry. Others: whether theirs is wrong.",
        "0",
        "`dlog status` says which node is wrong: start it again, and replace it if it says so again",
    ),
    Metric("dlog_metadata_syncs_total", "counter", "syncs", "Syncs of the log."),
    Metric("dlog_metadata_log_bytes_total", "counter", "bytes_written", "Written to the log."),
    Metric("dlog_metadata_connections", "gauge", "connections", "Connections held."),
    Metric(
        "dlog_metadata_refused_connections_total",
        "counter",
        "refused",
        "Connections refused: no place, not understood.",
        "0",
        "too many clients, or somebody who speaks something else: the node's log says who",
    ),
    Metric(
        "dlog_metadata_certificate_left_ratio",
        "gauge",
        "certificate_left",
        "Of the life of its certificate: 1 when it is new, 0 when it has ended. Only with TLS.",
        "above 0.2",
        "`dlog pki renew`: from its end on whoever meets it anew refuses it",
    ),
)
"""In the order of docs/reference/metrics.md."""
