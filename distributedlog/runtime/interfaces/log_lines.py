"""Loggers of this package. A line that is logged in a client's loop is handled in another thread.

Handlers, filters and record factories are users' code. A handler may write to the same client and wait for
it, and users' code may hold a lock of `logging` while it waits. Therefore a client's loop does not call
`logging`. It puts the line into a queue, and a separate thread of `Background` handles it. In any other
thread a line is handled immediately.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import current_thread, get_ident
from types import TracebackType
from typing import Any, TypeAlias

ErrorInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_line_queues: dict[int, Callable[[Callable[[], object]], object]] = {}
"""The queue of each thread in which a client's loop runs, by thread identifier."""


class Logger:
    """The calls of a `logging.Logger` that this package uses. Made by `get_logger`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, text: str, *values: object) -> None:
        """Log a line at level DEBUG."""
        self._log(logging.DEBUG, text, values)

    def info(self, text: str, *values: object) -> None:
        """Log a line at level INFO."""
        self._log(logging.INFO, text, values)

    def warning(self, text: str, *values: object, exc_info: BaseException | None = None) -> None:
        """Log a line at level WARNING."""
        self._log(logging.WARNING, text, values, exc_info)

    def error(self, text: str, *values: object, exc_info: BaseException | None = None) -> None:
        """Log a line at level ERROR."""
        self._log(logging.ERROR, text, values, exc_info)

    def exception(self, text: str, *values: object) -> None:
        """Log a line at level ERROR, with the exception that is handled now."""
        self._log(logging.ERROR, text, values, sys.exception())

    def log(
        self,
        level: int,
        text: str,
        *values: object,
        exc_info: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a line; ``extra`` are further attributes of its record."""
        self._log(level, text, values, exc_info, extra)

    def _log(
        self,
        level: int,
        text: str,
        values: tuple[object, ...],
        error: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        enqueue = _line_queues.get(get_ident())
        if enqueue is None:
            logger = logging.getLogger(self.name)
            logger.log(level, text, *values, exc_info=error, extra=extra, stacklevel=3)
            return
        caller = sys._getframe(2)
        origin = {
            "created": time.time(),
            "thread": get_ident(),
            "threadName": current_thread().name,
        }
        source_location = caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name
        enqueue(
            partial(
                _handle_line, self.name, level, text, values, error, extra, source_location, origin
            )
        )


def get_logger(name: str) -> Logger:
    """Return a logger of this name. The lines of all go through this module."""
    return Logger(name)


def start_queueing_lines(put: Callable[[Callable[[], object]], object]) -> None:
    """Give lines that are logged in this thread to ``put``, as calls that handle them."""
    _line_queues[get_ident()] = put


def stop_queueing_lines() -> None:
    """Handle lines of this thread in this thread again."""
    _line_queues.pop(get_ident(), None)


def _handle_line(
    name: str,
    level: int,
    text: str,
    values: tuple[object, ...],
    error: BaseException | None,
    extra: Mapping[str, object] | None,
    source_location: tuple[str, int, str],
    origin: dict[str, Any],
) -> None:
    """Handle a queued line as `logging.Logger.log` would have handled it at its time and place."""
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    error_info: ErrorInfo | None = None
    if error is not None:
        error_info = type(error), error, error.__traceback__
    path, line, function = source_location
    record = logger.makeRecord(name, level, path, line, text, values, error_info, function, extra)
    record.relativeCreated -= (record.created - origin["created"]) * 1000
    record.msecs = origin["created"] % 1 * 1000
    vars(record).update(origin)
    logger.handle(record)
