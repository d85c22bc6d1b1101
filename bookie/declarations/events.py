"""Log events of a bookie's store, by their public names."""

import logging

from ...runtime.declarations.events import EventDefinition

READ_ONLY = EventDefinition(
    "bookie.readonly",
    logging.WARNING,
    "The bookie no longer accepts new entries.",
    ("bookie", "why"),
    "usually a full disk: free space, delete logs or add bookies",
)
WRITABLE = EventDefinition(
    "bookie.writable", logging.INFO, "The bookie accepts new entries again.", ("bookie",)
)
LOSS = EventDefinition(
    "bookie.loss",
    logging.ERROR,
    "At startup, the bookie found that stored data may be lost. The affected ledgers are "
    "in limbo state.",
    ("bookie", "why"),
    "docs/operate/replace-bookie.md, missing data at startup; check the disk",
)
INDEX_REBUILT = EventDefinition(
    "bookie.index.rebuilt",
    logging.ERROR,
    "The index was missing or damaged, and was rebuilt from the journal.",
    ("bookie", "why"),
    "check the disk",
)
ROTTED = EventDefinition(
    "bookie.rot",
    logging.WARNING,
    "Entries of a ledger are corrupt. They are repaired from other replicas.",
    ("ledger", "first", "last"),
    "repeated: replace the disk",
)
DEVICE_ERROR = EventDefinition(
    "bookie.device.error",
    logging.WARNING,
    "The disk failed to read, or returned corrupt data.",
    ("why",),
    "after some errors the bookie is read-only: use `dlog decommission`",
)
SCRUBBED = EventDefinition(
    "bookie.scrubbed", logging.INFO, "A scrub of all stored data completed.", ("bytes", "rotten")
)

EVENTS = (READ_ONLY, WRITABLE, LOSS, INDEX_REBUILT, ROTTED, DEVICE_ERROR, SCRUBBED)
"""In the order of docs/reference/events.md."""
