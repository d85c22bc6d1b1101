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

    def __init__(self, claim: LogLock, pipeline: SendQueue, timeout_s: float) -> None:
        """``timeout_s``: a change of the state that cannot be made is tried again for so long."""
        self._claim = claim
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._checks = (0, 0)
        """The number of reads that were begun, and the last one that found the log to be ours."""
        self._turn = trio.Lock()

    async def check(self) -> None:
        """Read from the metadata whether the log is ours; before that a paused writer refuses nothing (H64).

        A read that began after this call and found our epoch serves all callers that wait. Raises
        `WriterFenced`, `LogNotFound`, which end the writer, and what keeps the metadata from answering.
        """
        asked, _ = self._checks
        async with self._turn:
            begun, found = self._checks
            if found > asked:
                return
            self._checks = (begun + 1, found)
            try:
                await self._claim.owned.refresh()
            except DistributedLogError as error:
                if not is_retryable(error):
                    self._pipeline.fail(error)
                raise
            self._checks = (begun + 1, begun + 1)

    async def change_state(
        self, apply: Callable[[LogState], LogState], done: Callable[[LogState], bool]
    ) -> None:
        """Store in the log's state what a record is, before that record is sent.

        Raises the writer's error, and `WriteCancelled` if the state cannot be changed: no record is taken.
        """
        pipeline, owned = self._pipeline, self._claim.owned
        pipeline.direct = False  # this waits, and others may submit meanwhile
        until = trio.current_time() + self._timeout_s
        while True:
            try:
                await owned.change(apply, done=done)
                break
            except DistributedLogError as error:
                if not is_retryable(error):
                    pipeline.fail(error)
                    raise
                if trio.current_time() >= until:
                    raise WriteCancelled(f"{error}; nothing was written") from error
            await trio.sleep(CHANGE_RETRY_S)
        pipeline.raise_if_over()
