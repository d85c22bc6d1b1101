"""What a bookie counts of bringing copies back, under the names that it has outside
(`distributedlog/runtime/declarations/meters.py`).

Every bookie says what it did itself; what is left to do is known to the one that repairs, and said by
it alone.
"""

from dataclasses import dataclass

from ...runtime.declarations.meters import Metric
from .auditor_election import AuditorElection
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
        "1 on the bookie that repairs, when it looked last.",
        "1 on one bookie",
        "0 on all of them: none is registered, or none has `repair = true`",
    ),
    Metric(
        "dlog_cluster_lost_bookies",
        "gauge",
        "lost_bookies",
        "Bookies whose ledgers are stored elsewhere: gone, or to leave.",
        "0",
        "start them again, or wait until `dlog_cluster_ledgers_to_move` is 0",
    ),
    Metric(
        "dlog_cluster_ledgers_to_move",
        "gauge",
        "ledgers_to_move",
        "Closed ledgers that are to leave those bookies, as of the pass that is under way or the last one.",
        "0, or falling",
        "the log of the bookie that repairs says what they wait for; `dlog under-replicated`",
    ),
    Metric(
        "dlog_cluster_underreplicated_ledgers",
        "gauge",
        "underreplicated_ledgers",
        "Ledgers of which a bookie lacks entries that it should hold, as noted.",
        "0, or falling",
        "`dlog status` says which bookies lack them",
    ),
    Metric(
        "dlog_cluster_blocked_ledgers",
        "gauge",
        "blocked_notes",
        "Of these, and of those to move: they wait for something, as of the last pass.",
        "0",
        "bookies that are down, no bookie that can take a copy: the log of the one that repairs says which",
        label=("work", "noted"),
    ),
    Metric(
        "dlog_cluster_blocked_ledgers",
        "gauge",
        "blocked_moves",
        "Of these, and of those to move: they wait for something, as of the last pass.",
        "0",
        "bookies that are down, no bookie that can take a copy: the log of the one that repairs says which",
        label=("work", "to_move"),
    ),
    Metric(
        "dlog_cluster_repaired_entries_total", "counter", "repaired_entries", "Copied by this one."
    ),
    Metric(
        "dlog_cluster_repaired_bytes_total",
        "counter",
        "repaired_bytes",
        "Of those entries' records.",
    ),
    Metric(
        "dlog_cluster_ledgers_moved_total",
        "counter",
        "ledgers_moved",
        "Taken off lost bookies by this one; those that their new bookies fetch are not counted.",
    ),
    Metric(
        "dlog_cluster_limbo_healed_total",
        "counter",
        "limbo_healed",
        "Ledgers of this bookie that are out of limbo.",
    ),
    Metric(
        "dlog_cluster_logs_closed_total",
        "counter",
        "logs_closed",
        "Logs that nobody wrote any more, closed because a bookie is away.",
    ),
    Metric(
        "dlog_cluster_audit_noted_total",
        "counter",
        "audit_noted",
        "Ledgers of which the audit found entries missing that nobody had noted.",
        "0 but after crashes of writers",
        "it rises by itself: a disk forgets; compare with `dlog_bookie_damaged_reads_total`",
    ),
    Metric(
        "dlog_cluster_surplus_dropped_total",
        "counter",
        "surplus_dropped",
        "Copies of this bookie that no ledger's record names, dropped.",
    ),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(frozen=True, slots=True)
class RepairParts:
    """What counts on one bookie: each part its own work."""

    election: AuditorElection
    copier: Copier
    notes: ReplicationWorker
    lost: LostBookieRepair
    open_ledgers: OpenLedgerCloser
    audit: LedgerAudit
    limbo: LimboRepair
    surplus: OverReplication

    def info(self) -> dict[str, object]:
        """For `Op.INFO`; from memory alone."""
        shown: dict[str, object] = {
            "repairer": self.election.was_elected,
            "repaired_entries": self.copier.copied_entries,
            "repaired_bytes": self.copier.copied_bytes,
            "ledgers_moved": self.lost.moved,
            "limbo_healed": self.limbo.healed,
            "logs_closed": self.open_ledgers.closed_logs,
            "audit_noted": self.audit.noted_ledgers,
            "surplus_dropped": self.surplus.dropped,
        }
        if self.election.was_elected:
            shown |= {
                "underreplicated_ledgers": self.notes.left,
                "blocked_notes": self.notes.blocked,
                "lost_bookies": len(self.lost.absences.lost),
                "ledgers_to_move": self.lost.left,
                "blocked_moves": self.lost.blocked,
            }
        return shown
