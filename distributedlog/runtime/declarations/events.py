"""News for whoever runs a cluster: lines of the log with a name that stays, in one table a part (pure).

A name is searched for, counted, alarmed on: it and its fields do not change within a major version; the text
of the line may. A row stands beside the part that says it; docs/reference/events.md is made from them.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..interfaces.log_lines import Logger

SUBJECT_ATTRIBUTE = "about"
"""The attribute of a line that says what it is about."""


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """A row of a part's table."""

    name: str
    """``part.noun`` or ``part.noun.verb``."""
    level: int
    """As `logging` has them."""
    help: str
    """When it is said."""
    fields: tuple[str, ...] = ()
    """What a line has beside its text. The first one says what it is about: lines of one name about one thing
    are left out where they come too fast."""
    remedy: str = ""
    """What to do about it."""
    traceback: bool = False
    """A line has the traceback of the exception that is among its values."""

    def emit(self, log: "Logger", text: str, *values: object, **fields: object) -> None:
        """One line, from ``text % values``. ``fields``: each of the event's; numbers and short texts."""
        assert fields.keys() == set(self.fields), f"{self.name} has {', '.join(self.fields)}"
        subject = str(fields[self.fields[0]]) if self.fields else ""
        error = None
        if self.traceback:
            error = next(value for value in values if isinstance(value, BaseException))
        extra = {"event": self.name, SUBJECT_ATTRIBUTE: subject, **fields}
        log.log(self.level, text, *values, exc_info=error, extra=extra)


WORK_FAILED = EventDefinition(
    "work.failed",
    logging.ERROR,
    "A background task failed for an unexpected reason. It is retried. Other work continues.",
    ("unit", "error"),
    "report the traceback; status shows the unit until it succeeds",
    traceback=True,
)
WORK_RECOVERED = EventDefinition(
    "work.recovered",
    logging.INFO,
    "A background task succeeded after a failure.",
    ("unit", "tries"),
)
ADDRESS_UNANSWERED = EventDefinition(
    "node.address.unanswered",
    logging.WARNING,
    "An advertised address does not reach its node. The node checks it again.",
    ("address", "why"),
    "correct `--advertise`, `--listen` or the network; status shows the address until it "
    "is correct",
)
ADDRESS_LOOPBACK = EventDefinition(
    "node.address.loopback",
    logging.WARNING,
    "Other nodes receive a loopback address, which only this machine can reach.",
    ("address",),
    "set `--listen` or `--advertise` to a network address; Debian resolves a host name to "
    "127.0.1.1",
)
EVENTS = (WORK_FAILED, WORK_RECOVERED, ADDRESS_UNANSWERED, ADDRESS_LOOPBACK)
