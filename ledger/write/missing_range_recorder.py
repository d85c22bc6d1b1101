"""Store the entries that a writer's detached slots lack, next to the ledger's record, for repair (H22b)."""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ..model import ledger_transactions as transactions
from ..model.ledger_metadata import LedgerMetadata
from ..model.missing_range import MissingRange, merge_ranges
from .ensemble_change import EnsembleChange, writer_end_error
from .pending_adds import PendingAdds

STORE_RETRY_S = 0.2

log = get_logger("distributedlog.ledger")


class MissingRangeRecorder:
    """Stores the missing entries of an open ledger when they change, outside the acknowledgement path."""

    def __init__(
        self,
        store: Metadata,
        pending_adds: PendingAdds,
        change: EnsembleChange,
        on_writer_ended: Callable[[DistributedLogError], None],
    ) -> None:
        """Create the recorder. ``on_writer_ended`` is called if another client has taken over the ledger."""
        self._store = store
        self._pending_adds = pending_adds
        self._change = change
        self._on_writer_ended = on_writer_ended
        self._ledger_id = change.metadata.ledger_id
        self._recorded_ranges: tuple[MissingRange, ...] = merge_ranges(
            pending_adds.all_missing_ranges(None)
        )

    def store_if_changed(self, spawn: Callable[..., None]) -> None:
        """Start to store the missing entries if they changed. ``spawn`` starts the task."""
        missing_ranges = merge_ranges(self._pending_adds.all_missing_ranges(None))
        if missing_ranges and missing_ranges != self._recorded_ranges:
            self._recorded_ranges = missing_ranges
            spawn(self._write_ranges, missing_ranges)

    async def _write_ranges(self, missing_ranges: tuple[MissingRange, ...]) -> None:
        version = self._change.version
        while self._recorded_ranges is missing_ranges:
            operations = transactions.missing_range_ops(self._ledger_id, version, missing_ranges)
            try:
                reply = await self._store.transact(operations)
            except DistributedLogError as error:
                log.info(
                    "ledger %d: missing entries cannot be recorded now (%s)", self._ledger_id, error
                )
                await trio.sleep(STORE_RETRY_S)
                continue
            if reply.succeeded:
                return
            stored = reply.current[0]
            end_error = writer_end_error(
                self._ledger_id,
                None if stored is None else LedgerMetadata.decode(stored.key, stored.value),
            )
            if end_error is not None:  # another client has taken over the ledger
                self._on_writer_ended(end_error)
                return
            assert stored is not None
            version = stored.version
