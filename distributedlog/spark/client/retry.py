"""Retry while the metadata store or bookies are unavailable, for planning, sinks, links and streams.

Temporary errors are retried with a warning, up to ``readTimeout``, as in tasks. Errors that the user must
resolve (another writer owns the log) are raised at once.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...runtime.interfaces.errors import DistributedLogError, OutcomeUnknown, OwnershipAcquireFailed
from ...runtime.primitives.backoff import Backoff

RETRY_S = 120.0
"""Time of retries in seconds, if no option sets it."""

T = TypeVar("T")

log = logging.getLogger("distributedlog.spark")


class RetryPolicy:
    """The deadline and the pauses of one call."""

    def __init__(
        self, caller: str, timeout_s: float, now: float, *, repeatable: bool = False
    ) -> None:
        """``repeatable``: whether a repeated call detects that an earlier one succeeded."""
        self._caller = caller
        self._deadline = now + timeout_s
        self._repeatable = repeatable
        self._backoff = Backoff()

    def pause_s(self, error: DistributedLogError, now: float) -> float:
        """Return the seconds until the next attempt.

        Raises:
            DistributedLogError: The given error, if it is not temporary or the deadline has passed.
        """
        is_temporary = error.retryable or (self._repeatable and isinstance(error, OutcomeUnknown))
        if not is_temporary or isinstance(error, OwnershipAcquireFailed) or now >= self._deadline:
            raise error
        log.warning("%s is waiting: %s (retrying)", self._caller, error)
        return min(self._backoff.next_s(), max(0.0, self._deadline - now))


async def retry_unavailable(
    attempt: Callable[[], Awaitable[T]],
    timeout_s: float,
    caller: str = "the query",
    *,
    repeatable: bool = False,
) -> T:
    """Call until it succeeds or the deadline passes, in the background loop."""
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
    """Call until it succeeds or the deadline passes, in a plain thread."""
    policy = RetryPolicy(caller, timeout_s, time.monotonic())
    while True:
        try:
            return attempt()
        except DistributedLogError as error:
            pause_s = policy.pause_s(error, time.monotonic())
        time.sleep(pause_s)
