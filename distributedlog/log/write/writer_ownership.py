"""Check the ownership of a log for its writer, and change the log's state before a record is sent.

Both can show that another writer owns the log. In that case this writer ends (`SendQueue.fail`).
"""

from collections.abc import Callable

import trio

from ...metadata.model.cluster_version import require_format
from ...runtime.declarations.versions import GatedFormat
from ...runtime.interfaces.errors import DistributedLogError, UpgradeNotFinalized, WriteCancelled
from ..model.log_state import LogState
from ..model.writer_log_state import is_retryable
from ..services.lease_session import LogLock
from ..services.settings_update import require_record_headers
from .send_queue import SendQueue

CHANGE_RETRY_S = 0.2


class WriterOwnership:
    """Checks that a writer owns its log, and changes the log's state for it."""

    def __init__(
        self, log_lock: LogLock, send_queue: SendQueue, namespace: str, timeout_s: float
    ) -> None:
        """Start without any check.

        Args:
            namespace: The path of the log's namespace.
            timeout_s: How long a failed change of the state is retried.
        """
        self._log_lock = log_lock
        self._send_queue = send_queue
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._checks = (0, 0)
        """The number of reads that were started, and the last one that confirmed the ownership."""
        self._check_lock = trio.Lock()

    async def check(self) -> None:
        """Read from the metadata whether this writer still owns the log.

        A writer that was paused must not reject a request before this check (H64). A read that started after
        this call and confirmed the epoch serves all waiting callers.

        Raises:
            WriterFenced, LogNotFound: The writer has lost the log and ends.
            DistributedLogError: The metadata could not be read.
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

    async def permit_record_headers(self) -> None:
        """Record in the log's state that its entries may have keys and headers, if the log permits them.

        Raises:
            UpgradeNotFinalized: The cluster is not finalized for a version that reads them. The writer stays
                usable.
            InvalidRequest: The option ``record_headers`` is off. The writer stays usable.
            DistributedLogError: As for `change_state`, or the settings could not be read.
        """
        self._send_queue.is_direct_write = False  # other tasks can submit during the wait
        await self.check()  # a client behind a proxy may have changed the state
        writer_state = self._log_lock.writer_state
        if not writer_state.state.has_record_headers:
            await require_record_headers(
                writer_state.metadata, self._namespace, writer_state.log_id, self._send_queue.name
            )
            await self.change_state(
                LogState.with_record_headers, lambda state: state.has_record_headers
            )
        self._send_queue.raise_if_over()

    async def record_unordered(self, *, checks_txids: bool) -> None:
        """Record in the log's state that transaction IDs decrease, as the version of the cluster permits.

        The owner of a log behind a proxy does this when the record arrives there.

        Args:
            checks_txids: The option ``max_txid_check``. Without the check, version 0.1 accepted such records,
                too, and ended all searches by transaction ID. So does this program in a cluster of 0.1.
        Raises:
            UpgradeNotFinalized: The cluster is not finalized for a version that searches such logs. The
                writer stays usable.
            DistributedLogError: As for `change_state`, or the version could not be read.
        """
        record = LogState.with_unordered
        self._send_queue.is_direct_write = False  # other tasks can submit during the wait
        if self._send_queue.sink.conditional_append is None:
            try:
                await require_format(
                    self._log_lock.writer_state.metadata,
                    GatedFormat.DECREASING_TXIDS,
                    f'log "{self._send_queue.name}"',
                )
            except UpgradeNotFinalized:
                if checks_txids:
                    raise
                record = LogState.with_unsearchable_txids
        await self.change_state(record, lambda state: state.had_unordered_txids)

    async def change_state(
        self, apply: Callable[[LogState], LogState], is_done: Callable[[LogState], bool]
    ) -> None:
        """Store a property of the next record in the log's state, before that record is sent.

        Raises:
            WriteCancelled: The state could not be changed in time. No record was accepted.
            DistributedLogError: The error that ended the writer.
        """
        send_queue, writer_state = self._send_queue, self._log_lock.writer_state
        send_queue.is_direct_write = False  # other tasks can submit during the wait
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
