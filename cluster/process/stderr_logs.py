"""Write logs to stderr: text on a terminal, otherwise one JSON object per line.

Repeated lines are limited so that they cannot fill a disk (H265): ten lines per event and subject in ten
seconds, and 100 lines per process and second. The next line reports how many were left out. The process never
waits for the reader of stderr (`distributedlog/runtime/process/stderr_writer.py`).
"""

import json
import logging
import sys
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
"""Lines of one event about one subject."""
LINES_PER_SECOND = 100
"""Lines of the whole process."""
KEYS_MAX = 1000
TEXT_MAX = 4000
"""Characters of a message or field, which may contain text from a peer."""


class RateLimitFilter(logging.Filter):
    """Leaves out lines above the limits, and reports their number in a field of the next line."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], list[float]] = {}
        """By key: when the window began, its lines, and the lines left out."""
        self._second = [0.0, 0, 0]

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is within the limits."""
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
    """Count a line, and return whether it is one of the first ``lines_max`` of its window.

    The first line of the next window reports the lines that were left out.
    """
    window_start, lines, left_out = window
    if not 0 <= record.created - window_start < length_s:  # also if the wall clock was set back
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
    """Formats a record as one JSON object per line.

    The fields are ``{"at", "level", "node", "part", "message", …}`` and those passed as ``extra``. ``at`` is
    UTC. An event (`distributedlog/runtime/declarations/events.py`) has its name in ``event``, and its own
    fields.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
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


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text for a terminal, with the fields of `JsonFormatter`.

    The time is UTC. Control characters are escaped, because messages and fields may contain text from a peer.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the lines of the traceback if there is one."""
        time = datetime.fromtimestamp(record.created, UTC)
        fields = "".join(
            f" {key}={value}" for key, value in vars(record).items() if key not in _STANDARD_FIELDS
        )
        part = record.name.removeprefix("distributedlog.")
        text = f"{self._node} {part}: {record.getMessage()[:TEXT_MAX]}{fields[:TEXT_MAX]}"
        lines = [
            f"{time:%H:%M:%S}.{time.microsecond // 1000:03d} {record.levelname.lower():7} {text}"
        ]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        return "\n".join(map(_escape_controls, lines))


def _escape_controls(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class OutputHandler(logging.Handler):
    """Sends lines to an output without waiting.

    If the output drops lines, the next line reports their number.
    """

    def __init__(self, out: NonBlockingOutput) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        left_out = self._out.dropped_writes
        if left_out:
            record.unread = left_out
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        self._out.offer(line.encode(), reported_drops=left_out)


def log_to_stderr(node: str, level: int, *, as_json: bool = False) -> None:
    """Send the package's logs of this process to stderr. Afterwards the process never waits for stderr.

    Args:
        node: The name of the node, which is in each line.
        level: The least level that is logged.
        as_json: Whether to write JSON to a terminal, too.
    """
    is_text = sys.stderr.isatty() and not as_json
    handler = OutputHandler(make_stderr_non_blocking())
    handler.setFormatter(TextFormatter(node) if is_text else JsonFormatter(node))
    handler.addFilter(RateLimitFilter())
    logger = logging.getLogger("distributedlog")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
