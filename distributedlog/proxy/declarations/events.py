"""Log events of proxies (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

CHANGED = EventDefinition(
    "proxy.log.changed",
    logging.INFO,
    "A proxy created, renamed, truncated, sealed, configured or deleted a log for a client.",
    ("log_name", "namespace", "call", "principal"),
)
REFUSED = EventDefinition(
    "proxy.refused",
    logging.WARNING,
    "A client request at a proxy lacked a right. `would` is true if the proxy executed it "
    "anyway (mode `report`).",
    ("principal", "reason", "would"),
    "`dlog grant check USER PATH`; in mode `report`, `would` marks requests that `enforce` "
    "would reject",
)

LOST = EventDefinition(
    "proxy.log.lost",
    logging.WARNING,
    "The writer of a log failed at a proxy: another writer took over, or bookies failed.",
    ("log_name", "namespace", "why"),
    "`dlog log show` names the current writer; see `dlog status`",
)

EVENTS = (CHANGED, REFUSED, LOST)
"""In the order of docs/reference/events.md."""
