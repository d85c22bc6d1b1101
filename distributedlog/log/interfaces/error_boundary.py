"""Convert unexpected exceptions in a log's task to errors of that one writer or reader.

A process may have a thousand logs. If an assertion fails or an unforeseen exception occurs in the task of one
log, it is logged once with its traceback, and ends only the object that runs the task. Shared resources
(connections, the metadata client, leases) are background work instead, which is retried
(`distributedlog/runtime/schedule/work_failures.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...runtime.interfaces.errors import DistributedLogError, InternalError
from ...runtime.interfaces.log_lines import get_logger

log = get_logger("distributedlog.log")


def to_internal_error(what: str, error: BaseException) -> DistributedLogError:
    """Return an exception as a `DistributedLogError`.

    A `DistributedLogError` is returned unchanged. Any other exception is logged with its traceback, and
    becomes an `InternalError`.

    Args:
        what: The object that failed, for messages.
        error: The exception. Of an exception group, the first one counts.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, DistributedLogError):
        return error
    log.error("%s: ended by an unexpected error: %r", what, error, exc_info=error)
    return InternalError(
        f"{what} was ended by an unexpected error: {error!r}. Open another one; the traceback is in the"
        " log of this process"
    )


@contextmanager
def error_boundary(what: str, fail: Callable[[DistributedLogError], None]) -> Iterator[None]:
    """Run the body of a task, and pass an exception that it raises to ``fail``, once.

    A cancellation passes through.
    """
    try:
        yield
    except* Exception as group:
        fail(to_internal_error(what, group))
