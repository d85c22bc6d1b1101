"""What a writer of ledgers tells, in programs and in nodes
(`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

BOOKIE_FAILED = EventDefinition(
    "ledger.bookie.failed",
    logging.INFO,
    "A bookie refused entries of a ledger, or its connection broke.",
    ("bookie", "ledger", "why"),
)
BOOKIE_SILENT = EventDefinition(
    "ledger.bookie.silent",
    logging.INFO,
    "A bookie acknowledges nothing for too long, and is replaced.",
    ("bookie", "ledger"),
    "is its machine overloaded, its disk slow?",
)
BOOKIE_BEHIND = EventDefinition(
    "ledger.bookie.behind",
    logging.INFO,
    "A bookie is too many bytes behind the others, and is replaced.",
    ("bookie", "ledger", "bytes"),
    "is its machine overloaded, its disk slow?",
)
BOOKIE_BACK = EventDefinition(
    "ledger.bookie.back", logging.INFO, "It gets new entries again.", ("bookie", "ledger")
)
DEGRADED = EventDefinition(
    "ledger.degraded",
    logging.WARNING,
    "A ledger goes on with a copy less, which is noted and repaired later: no other bookie takes its place.",
    ("bookie", "ledger"),
    "`dlog bookies`: start the bookie, or add one",
)

EVENTS = (BOOKIE_FAILED, BOOKIE_SILENT, BOOKIE_BEHIND, BOOKIE_BACK, DEGRADED)
"""In the order of docs/reference/events.md."""
