"""Events for operators: log lines with a stable name, in one table per part (pure).

Operators search, count and alert by event names. A name and its fields do not change within a major version;
the text of the line may change. A row is defined next to the part that emits it. docs/reference/events.md is
generated from the rows.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..interfaces.log_lines import Logger

SUBJECT_ATTRIBUTE = "about"
"""The attribute of a log record with the subject of the line."""


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """One row of a part's table."""

    name: str
    """``part.noun`` or ``part.noun.verb``."""
    level: int
    """A level of `logging`."""
    help: str
    """When the event is emitted."""
    fields: tuple[str, ...] = ()
    """The fields of a line in addition to its text. The first one is its subject. Lines with the same name
    and subject are suppressed if they are too frequent."""
    remedy: str = ""
    """The action that the operator should take."""
    traceback: bool = False
    """Whether a line includes the traceback of the exception among its values."""

    def emit(self, log: "Logger", text: str, *values: object, **fields: object) -> None:
        """Log one line with the text ``text % values``.

        ``fields`` has each field of the event; the values are numbers and short texts.
        """
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
