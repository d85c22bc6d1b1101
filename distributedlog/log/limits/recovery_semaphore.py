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

AT_ONCE = 16
"""Each asks every bookie for a fence and a range or two: far below the 256 that a connection may have
waiting there, and of 32 MiB at the most that a recovery holds this is half a gigabyte."""
RETRY_MAX_S = 5.0

T = TypeVar("T")


class RecoverySemaphore:
    """One a process and namespace."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._queue: deque[trio.Event] = deque()
        self._done_at = float("-inf")

    async def patiently(
        self, attempt: Callable[[], Awaitable[T]], *, name: str, timeout_s: float
    ) -> T:
        """Try what may pass until it has: for ``timeout_s`` of its own time.

        Raises what will not pass; when the time is over `NotEnoughBookies`, `OverQuota`, or
        `RecoveryIncomplete`.
        """
        last: DistributedLogError = RecoveryIncomplete("no answer from the bookies")
        left_s, backoff = timeout_s, Backoff(longest_s=RETRY_MAX_S)
        while left_s > 0 and await self.take(timeout_s):
            began = trio.current_time()
            done = False
            try:
                with trio.move_on_after(left_s):
                    result = await attempt()
                    done = True
                    return result
            except DistributedLogError as error:
                if not is_retryable(error):
                    done = True
                    raise
                last = error
            finally:
                self.give(done=done)
            left_s -= trio.current_time() - began
            pause_s = backoff.next_s()
            await trio.sleep(max(0.0, min(pause_s, left_s)))
            left_s -= pause_s
        if isinstance(last, NotEnoughBookies | OverQuota):
            raise last
        raise RecoveryIncomplete(
            f'log "{name}": its end could not be made certain within {timeout_s:g} s: {last}'
        ) from last

    async def take(self, timeout_s: float) -> bool:
        """Wait for a turn, which `give` ends; False: nobody got done for ``timeout_s``."""
        if self._free:
            self._free -= 1
            return True
        since = trio.current_time()
        turn = trio.Event()
        self._queue.append(turn)
        try:
            while True:
                with trio.move_on_at(max(since, self._done_at) + timeout_s):
                    await turn.wait()
                if turn.is_set():
                    return True
                if trio.current_time() >= max(since, self._done_at) + timeout_s:
                    self._queue.remove(turn)
                    return False
        except trio.Cancelled:
            if turn.is_set():
                self.give(done=False)
            else:
                self._queue.remove(turn)
            raise

    def give(self, *, done: bool) -> None:
        """The turn is over; ``done``: it need not come again."""
        if done:
            self._done_at = trio.current_time()
        if self._queue:
            self._queue.popleft().set()
        else:
            self._free += 1
