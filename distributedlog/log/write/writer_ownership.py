"""The log's ownership as its writer uses it: is the log still ours, and changes of its state before a record.

Both reads and changes may show that another writer owns the log. Then the writer ends here
(`SendQueue.fail`).
"""

from collections.abc import Callable

import trio

from ...runtime.interfaces.errors import DistributedLogError, WriteCancelled
from ..model.log_state import LogState
from ..model.writer_log_state import is_retryable
from ..services.lease_session import LogLock
from .send_queue import SendQueue

CHANGE_RETRY_S = 0.2


class WriterOwnership:
    """Checks that a writer owns its log, and changes the log's state for it."""

    def __init__(self, log_lock: LogLock, send_queue: SendQueue, timeout_s: float) -> None:
        """``timeout_s``: a change of the state that cannot be made is tried again for so long."""
        self._log_lock = log_lock
        self._send_queue = send_queue
        self._timeout_s = timeout_s
        self._checks = (0, 0)
        """The number of reads that were begun, and the last one that found the log to be ours."""
        self._check_lock = trio.Lock()

    async def check(self) -> None:
        """Read from the metadata whether the log is ours; before that a paused writer refuses nothing (H64).

        A read that began after this call and found our epoch serves all callers that wait. Raises
        `WriterFenced`, `LogNotFound`, which end the writer, and what keeps the metadata from answering.
        """
        earlier_checks, _ = self._checks
        async with self._check_lock:
            started_checks, last_confirmed = self._checks
            if last_confirmed > earlier_checks:
                return
            self._checks = (started_checks + 1, last_confirmed)
            try:
                await self._log_lock.writer_state.refresh()
            except DistributedLogError as error:
                if not is_retryable(error):
                    self._send_queue.fail(error)
                raise
            self._checks = (started_checks + 1, started_checks + 1)

    async def change_state(
        self, apply: Callable[[LogState], LogState], is_done: Callable[[LogState], bool]
    ) -> None:
        """Store in the log's state what a record is, before that record is sent.

        Raises the writer's error, and `WriteCancelled` if the state cannot be changed: no record is taken.
        """
        send_queue, writer_state = self._send_queue, self._log_lock.writer_state
        send_queue.is_direct_write = False  # this waits, and others may submit meanwhile
        deadline = trio.current_time() + self._timeout_s
        while True:
            try:
                await writer_state.change(apply, is_done=is_done)
                break
            except DistributedLogError as error:
                if not is_retryable(error):
                    send_queue.fail(error)
                    raise
                if trio.current_time() >= deadline:
                    raise WriteCancelled(f"{error}; nothing was written") from error
            await trio.sleep(CHANGE_RETRY_S)
        send_queue.raise_if_over()
