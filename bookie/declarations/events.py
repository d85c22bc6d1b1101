"""What a bookie's store tells whoever runs it (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

READ_ONLY = EventDefinition(
    "bookie.readonly",
    logging.WARNING,
    "It takes no new entries any more.",
    ("bookie", "why"),
    "mostly a disk that is full: free space, delete logs, or add bookies",
)
WRITABLE = EventDefinition(
    "bookie.writable", logging.INFO, "It takes new entries again.", ("bookie",)
)
LOSS = EventDefinition(
    "bookie.loss",
    logging.ERROR,
    "A start found that something which was stored may be gone: it is in limbo, and not denied.",
    ("bookie", "why"),
    "docs/operate/replace-bookie.md, missing data at startup; look at the disk",
)
INDEX_REBUILT = EventDefinition(
    "bookie.index.rebuilt",
    logging.ERROR,
    "The index is gone or damaged, and made again from the journal.",
    ("bookie", "why"),
    "look at the disk",
)
ROTTED = EventDefinition(
    "bookie.rot",
    logging.WARNING,
    "Entries of a ledger are not what was written. They are healed from other copies.",
    ("ledger", "first", "last"),
    "again and again: replace the disk",
)
DEVICE_ERROR = EventDefinition(
    "bookie.device.error",
    logging.WARNING,
    "The device could not read, or gave other bytes.",
    ("why",),
    "after some of them it is read-only: `dlog decommission` it",
)
SCRUBBED = EventDefinition(
    "bookie.scrubbed", logging.INFO, "All that it holds was read once.", ("bytes", "rotten")
)

EVENTS = (READ_ONLY, WRITABLE, LOSS, INDEX_REBUILT, ROTTED, DEVICE_ERROR, SCRUBBED)
"""In the order of docs/reference/events.md."""
