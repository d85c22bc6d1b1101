"""Log events of nodes and of repair (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

SERVES = EventDefinition(
    "node.ready", logging.INFO, "The node serves requests.", ("node_name", "kind", "address")
)
DIED = EventDefinition(
    "node.died",
    logging.ERROR,
    "A node of `dlog local` terminated unexpectedly.",
    ("node_name", "why"),
    "its last log lines state the cause",
)
OPENED = EventDefinition(
    "bookie.opened",
    logging.INFO,
    "The store of a bookie was opened.",
    ("bookie", "start", "ledgers"),
)
BOUND = EventDefinition(
    "bookie.bound",
    logging.WARNING,
    "A bookie of an older version presented its first certificate. Its ID is now bound to "
    "that name.",
    ("bookie", "principal"),
    "none, if the name is correct; otherwise decommission the bookie and start an empty one",
)
LIMBO = EventDefinition(
    "bookie.limbo",
    logging.WARNING,
    'A bookie is in limbo state: it never answers "no such entry" until its ledgers are repaired.',
    ("bookie",),
    "docs/operate/replace-bookie.md, limbo state",
)
LEASE_LOST = EventDefinition(
    "bookie.lease.lost",
    logging.WARNING,
    "The lease of a bookie expired, and the bookie registered again.",
    (),
    "check whether it was stopped, disconnected from the metadata quorum or overloaded",
)
REPAIRER = EventDefinition(
    "repair.elected",
    logging.INFO,
    "This bookie became the repair leader, or stepped down.",
    ("elected",),
)
LOST = EventDefinition(
    "bookie.lost",
    logging.WARNING,
    "A bookie was unavailable for too long, or is decommissioned. Its data is copied to "
    "other bookies.",
    ("bookie", "why"),
)
DECOMMISSIONED = EventDefinition(
    "bookie.decommissioned",
    logging.WARNING,
    "A bookie stores no more data and was removed from the cluster.",
    ("bookie",),
)
COPIED = EventDefinition(
    "repair.copied",
    logging.INFO,
    "Missing entries of a bookie were copied to it.",
    ("bookie", "ledger", "entries"),
)
BLOCKED = EventDefinition(
    "repair.waits",
    logging.WARNING,
    "Repair work of one kind is blocked. The event repeats every five minutes.",
    ("work", "count"),
    "the causes state the requirement, such as an unavailable bookie or a bookie for "
    "further copies",
)
UNBLOCKED = EventDefinition(
    "repair.goes_on", logging.INFO, "No repair work of this kind is blocked any more.", ("work",)
)
LIMBO_HEALED = EventDefinition(
    "limbo.healed",
    logging.INFO,
    "A ledger is complete again on this bookie.",
    ("ledger", "entries"),
)
CORRUPTION_REPAIRED = EventDefinition(
    "rot.healed",
    logging.WARNING,
    "Corrupt entries were repaired from other replicas.",
    ("ledger", "entries"),
)
AUDIT_FOUND = EventDefinition(
    "audit.found",
    logging.WARNING,
    "The audit found missing copies without a record. They are repaired.",
    ("ledger", "bookies"),
    "a writer crashed before it recorded them; otherwise check the disk of the bookie",
)

EVENTS = (
    SERVES, DIED, OPENED, BOUND, LIMBO, LEASE_LOST, REPAIRER, LOST, DECOMMISSIONED, COPIED, BLOCKED,
    UNBLOCKED, LIMBO_HEALED, CORRUPTION_REPAIRED, AUDIT_FOUND,
)  # fmt: skip
"""In the order of docs/reference/events.md."""
