"""What proxies tell (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

CHANGED = EventDefinition(
    "proxy.log.changed",
    logging.INFO,
    "A proxy has made, renamed, truncated, sealed, set or deleted a log for a client.",
    ("log_name", "namespace", "call", "principal"),
)
REFUSED = EventDefinition(
    "proxy.refused",
    logging.WARNING,
    "A client's request at a proxy lacked a right. `would` is true if it was done anyway (mode report).",
    ("principal", "reason", "would"),
    "`dlog grant check USER PATH`; in mode report `would` names who `enforce` would stop",
)

LOST = EventDefinition(
    "proxy.log.lost",
    logging.WARNING,
    "A log's writer ended at a proxy: somebody else took the log over, or its bookies failed.",
    ("log_name", "namespace", "why"),
    "`dlog log show` says who writes it now; `dlog status`",
)

EVENTS = (CHANGED, REFUSED, LOST)
"""In the order of docs/reference/events.md."""
