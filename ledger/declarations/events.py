"""Log events of ledger writers (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

BOOKIE_FAILED = EventDefinition(
    "ledger.bookie.failed",
    logging.INFO,
    "A bookie rejected entries of a ledger, or its connection failed.",
    ("bookie", "ledger", "why"),
)
BOOKIE_SILENT = EventDefinition(
    "ledger.bookie.silent",
    logging.INFO,
    "A bookie sent no acknowledgement for too long, and is replaced.",
    ("bookie", "ledger"),
    "check whether its machine is overloaded or its disk is slow",
)
BOOKIE_BEHIND = EventDefinition(
    "ledger.bookie.behind",
    logging.INFO,
    "A bookie is too many bytes behind the others, and is replaced.",
    ("bookie", "ledger", "bytes"),
    "check whether its machine is overloaded or its disk is slow",
)
BOOKIE_BACK = EventDefinition(
    "ledger.bookie.back", logging.INFO, "A bookie receives new entries again.", ("bookie", "ledger")
)
DEGRADED = EventDefinition(
    "ledger.degraded",
    logging.WARNING,
    "A ledger continues with one copy less, because no replacement bookie is available. "
    "The missing copy is recorded for repair.",
    ("bookie", "ledger"),
    "`dlog bookies`: start the bookie, or add one",
)

EVENTS = (BOOKIE_FAILED, BOOKIE_SILENT, BOOKIE_BEHIND, BOOKIE_BACK, DEGRADED)
"""In the order of docs/reference/events.md."""
