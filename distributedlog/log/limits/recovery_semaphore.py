"""Whose turn it is to have a log's end made certain: a few of a process at once, first come, first served.

A process that takes a thousand logs over from one that died would else ask its bookies a thousand things at
once; they refuse what is above their bounds, and each recovery's own time runs out while it waits for the
others. Here the time of a log runs while it is its turn, and in the pauses between its tries; the queue is
waited in as long as anybody in front of it gets done.
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
"""Each asks every bookie for a fence and a range or two: far below the 256 that a connection may have
waiting there, and of 32 MiB at the most that a recovery holds this is half a gigabyte."""
RETRY_MAX_S = 5.0

T = TypeVar("T")


class RecoverySemaphore:
    """One a process and namespace."""

    def __init__(self, permits: int = RECOVERIES_MAX) -> None:
        self._free_permits = permits
        self._waiters: deque[trio.Event] = deque()
        self._last_done_at = float("-inf")

    async def run_with_retries(
        self, attempt: Callable[[], Awaitable[T]], *, name: str, timeout_s: float
    ) -> T:
        """Try what may pass until it has: for ``timeout_s`` of its own time.

        Raises what will not pass; when the time is over `NotEnoughBookies`, `OverQuota`, or
        `RecoveryIncomplete`.
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
            f'log "{name}": its end could not be made certain within {timeout_s:g} s: {last_error}'
        ) from last_error

    async def acquire(self, timeout_s: float) -> bool:
        """Wait for a turn, which `release` ends; False: nobody got done for ``timeout_s``."""
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
        """The turn is over; ``done``: it need not come again."""
        if is_final:
            self._last_done_at = trio.current_time()
        if self._waiters:
            self._waiters.popleft().set()
        else:
            self._free_permits += 1
