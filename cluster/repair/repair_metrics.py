"""The repair counters of a bookie, with their external names.

Every bookie reports its own repairs. Only the repair leader reports the remaining work. The names are
exported by `distributedlog/runtime/declarations/meters.py`.
"""

from dataclasses import dataclass

from ...runtime.declarations.meters import Metric
from .auditor_election import RepairLeaderElection
from .copier import Copier
from .ledger_audit import LedgerAudit
from .limbo_repair import LimboRepair
from .lost_bookies import LostBookieRepair
from .open_ledger_closer import OpenLedgerCloser
from .over_replication import OverReplication
from .replication_worker import ReplicationWorker

METRICS = (
    Metric(
        "dlog_cluster_repairer",
        "gauge",
        "repairer",
        "1 on the repair leader, as of its last check.",
        "1 on one bookie",
        "0 on all bookies: none is registered, or none has `repair = true`",
    ),
    Metric(
        "dlog_cluster_lost_bookies",
        "gauge",
        "lost_bookies",
        "Lost or decommissioned bookies whose ledgers are copied to others.",
        "0",
        "start them again, or wait until `dlog_cluster_ledgers_to_move` is 0",
    ),
    Metric(
        "dlog_cluster_ledgers_to_move",
        "gauge",
        "ledgers_to_move",
        "Closed ledgers to move off these bookies, as of the current or last pass.",
        "0, or falling",
        "the log of the repair leader states the cause; see `dlog under-replicated`",
    ),
    Metric(
        "dlog_cluster_underreplicated_ledgers",
        "gauge",
        "underreplicated_ledgers",
        "Ledgers of which a bookie lacks entries that it should store, as recorded.",
        "0, or falling",
        "`dlog status` lists the bookies that lack them",
    ),
    Metric(
        "dlog_cluster_blocked_ledgers",
        "gauge",
        "blocked_notes",
        "Under-replicated ledgers (`noted`) and ledgers to move (`to_move`) that are blocked, "
        "as of the last pass.",
        "0",
        "bookies are offline, or no bookie can accept a copy; see the log of the repair leader",
        label=("work", "noted"),
    ),
    Metric(
        "dlog_cluster_blocked_ledgers",
        "gauge",
        "blocked_moves",
        "Under-replicated ledgers (`noted`) and ledgers to move (`to_move`) that are blocked, "
        "as of the last pass.",
        "0",
        "bookies are offline, or no bookie can accept a copy; see the log of the repair leader",
        label=("work", "to_move"),
    ),
    Metric(
        "dlog_cluster_repaired_entries_total",
        "counter",
        "repaired_entries",
        "Entries copied by this bookie.",
    ),
    Metric(
        "dlog_cluster_repaired_bytes_total",
        "counter",
        "repaired_bytes",
        "Bytes of entries copied by this bookie.",
    ),
    Metric(
        "dlog_cluster_ledgers_moved_total",
        "counter",
        "ledgers_moved",
        "Ledgers that this bookie moved off lost bookies, except those that the replacement "
        "bookies fetch.",
    ),
    Metric(
        "dlog_cluster_limbo_healed_total",
        "counter",
        "limbo_healed",
        "Ledgers of this bookie that left the limbo state.",
    ),
    Metric(
        "dlog_cluster_logs_closed_total",
        "counter",
        "logs_closed",
        "Logs without a writer whose open segment was closed because a bookie is unavailable.",
    ),
    Metric(
        "dlog_cluster_audit_noted_total",
        "counter",
        "audit_noted",
        "Ledgers with missing entries that the audit found and that had no record.",
        "0, except after crashes of writers",
        "a steady increase points to a failing disk; compare with "
        "`dlog_bookie_damaged_reads_total`",
    ),
    Metric(
        "dlog_cluster_surplus_dropped_total",
        "counter",
        "surplus_dropped",
        "Dropped copies of this bookie that no ledger record lists.",
    ),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(frozen=True, slots=True)
class RepairParts:
    """The parts of one bookie that count repairs."""

    election: RepairLeaderElection
    copier: Copier
    replication_worker: ReplicationWorker
    lost_bookie_repair: LostBookieRepair
    open_ledger_closer: OpenLedgerCloser
    audit: LedgerAudit
    limbo_repair: LimboRepair
    over_replication: OverReplication

    def info(self) -> dict[str, object]:
        """Return the values for `Op.INFO`, without I/O."""
        values: dict[str, object] = {
            "repairer": self.election.was_elected,
            "repaired_entries": self.copier.copied_entries,
            "repaired_bytes": self.copier.copied_bytes,
            "ledgers_moved": self.lost_bookie_repair.moved_ledgers,
            "limbo_healed": self.limbo_repair.repaired_ledgers,
            "logs_closed": self.open_ledger_closer.closed_logs,
            "audit_noted": self.audit.recorded_ledgers,
            "surplus_dropped": self.over_replication.dropped_copies,
        }
        if self.election.was_elected:
            values |= {
                "underreplicated_ledgers": self.replication_worker.remaining,
                "blocked_notes": self.replication_worker.blocked_records,
                "lost_bookies": len(self.lost_bookie_repair.liveness.lost_bookies),
                "ledgers_to_move": self.lost_bookie_repair.remaining,
                "blocked_moves": self.lost_bookie_repair.blocked_ledgers,
            }
        return values
