"""Restore errors that come back through Spark as text, so that users see one line instead of sixty.

From an exception of a Python process, the JVM passes on only the text. Therefore all methods that Spark calls
are decorated with `marks_errors`: their errors end with ``[dlog {"code": 511, "detail": "3.0.1"}]``. These
are the fields with which errors are sent over the network, too, and `cause` restores the error from them.

In Spark's Python processes, no program has configured logging, and Python prints only the text of a warning.
`log_warnings_to_stderr` adds time, level and name, unless a handler is configured.
"""

import functools
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from ...runtime.interfaces.errors import BY_CODE, DistributedLogError, from_code

P = ParamSpec("P")
T = TypeVar("T")

MARK = "[dlog "
DETAIL_CHARS_MAX = 1024
_NAMED = re.compile(r"^\s*distributedlog\.(?:(?:\w+\.)*errors\.)?(\w+): (.*)$", re.MULTILINE)
"""An error in a traceback. Programs of an older version print the module that defines it."""
_JSON = json.JSONDecoder()
LOGGER_NAME = "distributedlog.spark"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the original error, with its own message, instead of Spark's exception about it.

    Use it as a context manager or a decorator, ``@plain_errors()``. Callers can then catch the class
    (``except LogTruncated``). Spark's exception is the ``__context__``. Other errors are not changed. It
    works in the driver's Python process only and does not change the log of the JVM.
    """
    try:
        yield
    except Exception as error:
        own_error = cause(error)
        if own_error is None:
            raise
        raise own_error from None


def cause(exception: BaseException) -> DistributedLogError | None:
    """Return the `DistributedLogError` in an exception of Spark, or None.

    The error has its original class, message and fields. Use this where `plain_errors` cannot be used, such
    as ``query.exception()``, a listener, or the log of a job.
    """
    seen_ids: set[int] = set()
    current: BaseException | None = exception
    while current is not None and id(current) not in seen_ids:
        seen_ids.add(id(current))
        converted = (
            current if isinstance(current, DistributedLogError) else error_from_text(str(current))
        )
        if converted is not None:
            return _without_mark(converted)
        current = current.__cause__ or current.__context__
    return None


def error_from_text(text: str) -> DistributedLogError | None:
    """Return the `DistributedLogError` at the end of a stack trace of Spark; None if there is none."""
    kinds = {kind.__name__: kind for kind in BY_CODE.values()}
    for name, message in reversed(_NAMED.findall(text)):
        parsed = _split_mark(message)
        if parsed is not None:
            text_part, fields = parsed
            return from_code(fields["code"], text_part, fields.get("detail", ""))
        if name in kinds:  # from a worker with an older version
            return kinds[name](message.strip())
    return None


def marks_errors(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls, so that its errors end with their fields."""

    @functools.wraps(call)
    def telling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except DistributedLogError as error:
            raise _with_mark(error).with_traceback(error.__traceback__) from error.__cause__

    return telling


def marks_errors_of_rows(call: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As `marks_errors`, for a method that yields rows to Spark."""

    @functools.wraps(call)
    def telling(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from call(*args, **kwargs)
        except DistributedLogError as error:
            raise _with_mark(error).with_traceback(error.__traceback__) from error.__cause__

    return telling


def _with_mark(error: DistributedLogError) -> DistributedLogError:
    message = " ".join(str(error).splitlines())
    if _split_mark(message) is not None:
        return error  # already marked
    fields = {"code": error.code, "detail": error.detail[:DETAIL_CHARS_MAX]}
    if not error.detail:
        del fields["detail"]
    return error.again(f"{message} {MARK}{json.dumps(fields)}]")


def _without_mark(error: DistributedLogError) -> DistributedLogError:
    marked = _split_mark(str(error))
    return error if marked is None else error.again(marked[0])


def _split_mark(message: str) -> tuple[str, dict[str, Any]] | None:
    """Return a message without its mark, and the fields of the mark; None without a mark."""
    text, mark, rest = message.rpartition(MARK)
    if not mark:
        return None
    try:
        fields, end = _JSON.raw_decode(rest)
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(fields, dict) and type(fields.get("code")) is int
    if not is_valid or not isinstance(fields.get("detail", ""), str) or rest[end : end + 1] != "]":
        return None
    return text.strip(), fields


class StderrHandler(logging.Handler):
    """Print warnings and errors to stderr, unless another handler is configured."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(LOG_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line. stderr is looked up each time, because Spark's workers replace it."""
        other_handlers = (
            logging.getLogger("distributedlog").handlers or logging.getLogger().handlers
        )
        if not other_handlers:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def log_warnings_to_stderr() -> None:
    """Print warnings with time, level and name. Idempotent."""
    logger = logging.getLogger(LOGGER_NAME)
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
