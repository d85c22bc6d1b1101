"""Limit the concurrent recoveries of a process, in the order of their arrival.

A process that takes over a thousand logs of a dead one would otherwise send a thousand recoveries to its
bookies at once. They reject requests above their limits, and the timeout of each recovery expires while it
waits for the others. Here the timeout of a log runs only during its turns and the pauses between its
attempts. A log waits in the queue as long as recoveries before it finish.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...runtime.interfaces.errors import (
    DistributedLogError,
    NotEnoughBookies,
    OverQuota,
    RecoveryIncomplete,
)
from ...runtime.primitives.backoff import Backoff
from ..model.writer_log_state import is_retryable

RECOVERIES_MAX = 16
"""The number of concurrent recoveries. Each sends a fence and one or two reads to every bookie, far below
the 256 requests that can wait per connection. At 32 MiB per recovery they hold at most half a gigabyte."""
RETRY_MAX_S = 5.0

T = TypeVar("T")


class RecoverySemaphore:
    """One per process and namespace."""

    def __init__(self, permits: int = RECOVERIES_MAX) -> None:
        self._free_permits = permits
        self._waiters: deque[trio.Event] = deque()
        self._last_done_at = float("-inf")

    async def run_with_retries(
        self, attempt: Callable[[], Awaitable[T]], *, name: str, timeout_s: float
    ) -> T:
        """Run ``attempt`` when it is its turn, and retry retryable errors.

        Args:
            name: The log, for the error.
            timeout_s: The time for turns and pauses. It is also the longest wait without any finished
                recovery.
        Raises:
            NotEnoughBookies, OverQuota, RecoveryIncomplete: The timeout has expired.
            DistributedLogError: The attempt failed with an error that is not retryable.
        """
        last_error: DistributedLogError = RecoveryIncomplete("no answer from the bookies")
        remaining_s, backoff = timeout_s, Backoff(longest_s=RETRY_MAX_S)
        while remaining_s > 0 and await self.acquire(timeout_s):
            started = trio.current_time()
            is_final = False
            try:
                with trio.move_on_after(remaining_s):
                    result = await attempt()
                    is_final = True
                    return result
            except DistributedLogError as error:
                if not is_retryable(error):
                    is_final = True
                    raise
                last_error = error
            finally:
                self.release(is_final=is_final)
            remaining_s -= trio.current_time() - started
            pause_s = backoff.next_s()
            await trio.sleep(max(0.0, min(pause_s, remaining_s)))
            remaining_s -= pause_s
        if isinstance(last_error, NotEnoughBookies | OverQuota):
            raise last_error
        raise RecoveryIncomplete(
            f'log "{name}" could not be recovered within {timeout_s:g} s: {last_error}'
        ) from last_error

    async def acquire(self, timeout_s: float) -> bool:
        """Wait for a turn, which `release` ends. Return False if no recovery finished for ``timeout_s``."""
        if self._free_permits:
            self._free_permits -= 1
            return True
        wait_started = trio.current_time()
        permit_event = trio.Event()
        self._waiters.append(permit_event)
        try:
            while True:
                with trio.move_on_at(max(wait_started, self._last_done_at) + timeout_s):
                    await permit_event.wait()
                if permit_event.is_set():
                    return True
                if trio.current_time() >= max(wait_started, self._last_done_at) + timeout_s:
                    self._waiters.remove(permit_event)
                    return False
        except trio.Cancelled:
            if permit_event.is_set():
                self.release(is_final=False)
            else:
                self._waiters.remove(permit_event)
            raise

    def release(self, *, is_final: bool) -> None:
        """End the turn.

        Args:
            is_final: The recovery has finished and needs no further turn.
        """
        if is_final:
            self._last_done_at = trio.current_time()
        if self._waiters:
            self._waiters.popleft().set()
        else:
            self._free_permits += 1
