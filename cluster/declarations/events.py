"""What nodes tell of their lives, and of what they mend (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

SERVES = EventDefinition("node.ready", logging.INFO, "It serves.", ("node_name", "kind", "address"))
DIED = EventDefinition(
    "node.died",
    logging.ERROR,
    "A node of `dlog local` ended by itself.",
    ("node_name", "why"),
    "its last lines say why",
)
OPENED = EventDefinition(
    "bookie.opened",
    logging.INFO,
    "A bookie's store was opened.",
    ("bookie", "start", "ledgers"),
)
BOUND = EventDefinition(
    "bookie.bound",
    logging.WARNING,
    "A bookie of before shows a certificate for the first time: from now on its id goes with that name.",
    ("bookie", "principal"),
    "nothing, if that is its name; else decommission it, and start an empty one",
)
LIMBO = EventDefinition(
    "bookie.limbo",
    logging.WARNING,
    "A bookie does not know what it lost, and denies nothing until it is healed.",
    ("bookie",),
    "docs/operate/replace-bookie.md, limbo state",
)
LEASE_LOST = EventDefinition(
    "bookie.lease.lost",
    logging.WARNING,
    "A bookie was taken for gone, and has registered again.",
    (),
    "was it stopped, or cut off from the metadata, or overloaded?",
)
REPAIRER = EventDefinition(
    "repair.elected", logging.INFO, "This bookie repairs from now on, or no more.", ("elected",)
)
LOST = EventDefinition(
    "bookie.lost",
    logging.WARNING,
    "A bookie was away for too long, or is to leave: what it holds is stored elsewhere.",
    ("bookie", "why"),
)
DECOMMISSIONED = EventDefinition(
    "bookie.decommissioned",
    logging.WARNING,
    "A bookie holds nothing any more, and is forgotten.",
    ("bookie",),
)
COPIED = EventDefinition(
    "repair.copied",
    logging.INFO,
    "Entries that a bookie missed are there.",
    ("bookie", "ledger", "entries"),
)
WAITS = EventDefinition(
    "repair.waits",
    logging.WARNING,
    "Work of one kind cannot go on, for these causes. Said again each five minutes.",
    ("work", "count"),
    "the causes name what is missing: a bookie that is away, no other one to take copies",
)
GOES_ON = EventDefinition(
    "repair.goes_on", logging.INFO, "No work of this kind waits any more.", ("work",)
)
LIMBO_HEALED = EventDefinition(
    "limbo.healed", logging.INFO, "A ledger is whole again on this bookie.", ("ledger", "entries")
)
ROT_HEALED = EventDefinition(
    "rot.healed",
    logging.WARNING,
    "Rotten entries were healed from other copies.",
    ("ledger", "entries"),
)
AUDIT_FOUND = EventDefinition(
    "audit.found",
    logging.WARNING,
    "Copies are missing that nobody had noted; they are made.",
    ("ledger", "bookies"),
    "a writer died before it could note them; without one, a bookie has lost them: look at its disk",
)

EVENTS = (
    SERVES, DIED, OPENED, BOUND, LIMBO, LEASE_LOST, REPAIRER, LOST, DECOMMISSIONED, COPIED, WAITS, GOES_ON,
    LIMBO_HEALED, ROT_HEALED, AUDIT_FOUND,
)  # fmt: skip
"""In the order of docs/reference/events.md."""
