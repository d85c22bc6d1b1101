"""The events of log writers (see `distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

CLOCK_OFF = EventDefinition(
    "clock.off",
    logging.WARNING,
    "The log time is ahead of the local clock. New records have that time until the clock "
    "reaches it.",
    ("log_name", "ahead_s"),
    "synchronize the clocks of the writers with NTP",
)

EVENTS = (CLOCK_OFF,)
"""In the order of docs/reference/events.md."""
