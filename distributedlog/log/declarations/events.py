"""What a log's writer tells (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

CLOCK_OFF = EventDefinition(
    "clock.off",
    logging.WARNING,
    "A log's time is ahead of this machine's clock: its records have that time until the clock is there.",
    ("log_name", "ahead_s"),
    "set the clocks of the machines that write, by NTP",
)

EVENTS = (CLOCK_OFF,)
"""In the order of docs/reference/events.md."""
