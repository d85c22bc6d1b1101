"""Structured logs: one JSON object a line on stderr, with the fields a search wants first.

What repeats does not fill a disk (H265): ten lines of an event about one thing in ten seconds, a hundred
lines of a process in a second. Nor does the process wait for who reads them
(`distributedlog/runtime/process/stderr_writer.py`). The next line after that says how many were left out.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from ...runtime.declarations.events import SUBJECT_ATTRIBUTE
from ...runtime.process.stderr_writer import NonBlockingOutput, make_stderr_non_blocking

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    SUBJECT_ATTRIBUTE,
}

WINDOW_S = 10.0
LINES_PER_WINDOW = 10
"""Of one event about one thing."""
LINES_PER_SECOND = 100
"""Of the whole process."""
KEYS_MAX = 1000
TEXT_MAX = 4000
"""Characters of a message or a field: what a peer said may be in it."""


class RateLimitFilter(logging.Filter):
    """Leaves out what comes too fast, and says with the next line how much that was."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], list[float]] = {}
        """Key to when its window began, lines in it, lines left out."""
        self._second = [0.0, 0, 0]

    def filter(self, record: logging.LogRecord) -> bool:
        """May it be said?"""
        event = getattr(record, "event", None)
        if event is not None:
            key = (str(event), str(getattr(record, SUBJECT_ATTRIBUTE, "")))
            if len(self._windows) >= KEYS_MAX and key not in self._windows:
                self._windows.clear()
            window = self._windows.setdefault(key, [0.0, 0, 0])
            if not _allows(window, record, WINDOW_S, LINES_PER_WINDOW, "suppressed"):
                return False
        return _allows(self._second, record, 1.0, LINES_PER_SECOND, "dropped")


def _allows(
    window: list[float],
    record: logging.LogRecord,
    length_s: float,
    lines_max: int,
    left_out_field: str,
) -> bool:
    """Count a line; is it one of the first ``most`` of its window? The next window's first one tells."""
    window_start, lines, left_out = window
    if not 0 <= record.created - window_start < length_s:  # also where the wall clock went back
        window[:] = [record.created, 1, 0]
        if left_out:
            setattr(record, left_out_field, int(left_out))
        return True
    if lines >= lines_max:
        window[2] += 1
        return False
    window[1] += 1
    return True


class JsonFormatter(logging.Formatter):
    """``{"at", "level", "node", "part", "message", …}``; what a call passes as ``extra`` is added.

    ``at`` is UTC. An event (`distributedlog/runtime/declarations/events.py`) has its name in ``event``, and
    its fields.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created, UTC)
        value: dict[str, Any] = {
            "at": f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "part": record.name.removeprefix("distributedlog."),
            "message": record.getMessage()[:TEXT_MAX],
        }
        for key, item in vars(record).items():
            if key not in _STANDARD_FIELDS:
                value[key] = item[:TEXT_MAX] if isinstance(item, str) else item
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return json.dumps(value, default=str)


class OutputHandler(logging.Handler):
    """Hands lines to an output that nobody waits for; of those that it did not take the next one tells."""

    def __init__(self, out: NonBlockingOutput) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        left_out = self._out.dropped_writes
        if left_out:
            record.unread = left_out
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self._out.offer(line.encode(), reported_drops=left_out)


def log_to_stderr(node: str, level: int) -> None:
    """Send the package's logs of this process to stderr; from now on it waits for no stderr."""
    handler = OutputHandler(make_stderr_non_blocking())
    handler.setFormatter(JsonFormatter(node))
    handler.addFilter(RateLimitFilter())
    logger = logging.getLogger("distributedlog")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
