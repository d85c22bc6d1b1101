"""Structured logs: one JSON object a line on stderr, with the fields a search wants first."""

import json
import logging
import sys
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``{"at", "level", "node", "part", "message", …}``; what a call passes as ``extra`` is added."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        value: dict[str, Any] = {
            "at": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "node": self._node,
            "part": record.name.removeprefix("distributedlog."),
            "message": record.getMessage(),
        }
        value |= {key: item for key, item in vars(record).items() if key not in _OWN}
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return json.dumps(value, default=str)


def log_to_stderr(node: str, level: int) -> None:
    """Send the package's logs of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node))
    logger = logging.getLogger("distributedlog")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
