"""Waiting while the metadata store or bookies are away: planning, sinks, links and streams do it alike.

What may pass is asked again, with a warning, up to ``readTimeout``: as tasks do. What the user must decide
(a live writer owns the log) is no pause of the cluster's and is raised at once.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...runtime.interfaces.errors import DistributedLogError, OutcomeUnknown, OwnershipAcquireFailed
from ...runtime.primitives.backoff import Backoff

RETRY_S = 120.0
"""Where no option says it."""

T = TypeVar("T")

log = logging.getLogger("distributedlog.spark")


class RetryPolicy:
    """How long one call has waited, and whether it may go on."""

    def __init__(
        self, caller: str, timeout_s: float, now: float, *, repeatable: bool = False
    ) -> None:
        """``repeatable``: asked again, what is asked tells whether it had happened."""
        self._caller = caller
        self._deadline = now + timeout_s
        self._repeatable = repeatable
        self._backoff = Backoff()

    def pause_s(self, error: DistributedLogError, now: float) -> float:
        """How long to sleep before the next try. Raises the error when the time is over, or will not help."""
        is_temporary = error.retryable or (self._repeatable and isinstance(error, OutcomeUnknown))
        if not is_temporary or isinstance(error, OwnershipAcquireFailed) or now >= self._deadline:
            raise error
        log.warning("%s waits: %s; asked again", self._caller, error)
        return min(self._backoff.next_s(), max(0.0, self._deadline - now))


async def retry_unavailable(
    attempt: Callable[[], Awaitable[T]],
    timeout_s: float,
    caller: str = "the query",
    *,
    repeatable: bool = False,
) -> T:
    """In the background loop."""
    policy = RetryPolicy(caller, timeout_s, trio.current_time(), repeatable=repeatable)
    while True:
        try:
            return await attempt()
        except DistributedLogError as error:
            pause_s = policy.pause_s(error, trio.current_time())
        await trio.sleep(pause_s)


def retry_unavailable_blocking(
    attempt: Callable[[], T], timeout_s: float, caller: str = "the query"
) -> T:
    """In a plain thread."""
    policy = RetryPolicy(caller, timeout_s, time.monotonic())
    while True:
        try:
            return attempt()
        except DistributedLogError as error:
            pause_s = policy.pause_s(error, time.monotonic())
        time.sleep(pause_s)
