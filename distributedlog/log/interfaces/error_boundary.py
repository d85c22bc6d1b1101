"""What breaks in one log's task is that writer's, that reader's error, and nobody else's.

A process may hold a thousand logs: a rule of ours that is broken in one (an assertion, any exception that
nobody foresaw) is logged once, with its traceback, and ends the object whose task it was. What logs share
(connections, the metadata client, leases) is background work
(`distributedlog/runtime/schedule/work_failures.py`): it is tried again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...runtime.interfaces.errors import DistributedLogError, InternalError
from ...runtime.interfaces.log_lines import get_logger

log = get_logger("distributedlog.log")


def to_internal_error(what: str, error: BaseException) -> DistributedLogError:
    """The error of whoever it is about; logged, with the traceback, unless it is one of ours already."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, DistributedLogError):
        return error
    log.error("%s: broken, and ended: %r", what, error, exc_info=error)
    return InternalError(
        f"{what} broke a rule of its own and was ended: {error!r}. Open another one; the traceback is in the"
        " log of this process"
    )


@contextmanager
def error_boundary(what: str, fail: Callable[[DistributedLogError], None]) -> Iterator[None]:
    """Around all of a task: what it raises goes to ``fail``, once. A cancellation passes."""
    try:
        yield
    except* Exception as group:
        fail(to_internal_error(what, group))
