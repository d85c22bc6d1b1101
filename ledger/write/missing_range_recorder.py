"""The note of what a writer's slots miss, kept beside the ledger's record for repair (H22b)."""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ..model import ledger_transactions as transactions
from ..model.ledger_metadata import LedgerMetadata
from ..model.missing_range import MissingRange, merged
from .ensemble_change import EnsembleChange, why_ended
from .pending_adds import PendingAdds

STORE_RETRY_S = 0.2

log = get_logger("distributedlog.ledger")


class MissingRangeRecorder:
    """Written whenever the holes of an open ledger are others than those noted, off the path of acks."""

    def __init__(
        self,
        store: Metadata,
        window: PendingAdds,
        change: EnsembleChange,
        ended: Callable[[DistributedLogError], None],
    ) -> None:
        """``ended`` is told when the note, and so the ledger, is somebody else's."""
        self._store = store
        self._window = window
        self._change = change
        self._ended = ended
        self._ledger_id = change.metadata.ledger_id
        self._noted: tuple[MissingRange, ...] = merged(window.all_holes(None))

    def look(self, spawn: Callable[..., None]) -> None:
        """Begin to write where there is news; ``spawn`` runs the writing."""
        holes = merged(self._window.all_holes(None))
        if holes and holes != self._noted:
            self._noted = holes
            spawn(self._write, holes)

    async def _write(self, holes: tuple[MissingRange, ...]) -> None:
        version = self._change.version
        while self._noted is holes:
            share = transactions.missing_range_ops(self._ledger_id, version, holes)
            try:
                reply = await self._store.transact(share)
            except DistributedLogError as error:
                log.info("ledger %d: its holes cannot be noted now: %s", self._ledger_id, error)
                await trio.sleep(STORE_RETRY_S)
                continue
            if reply.succeeded:
                return
            found = reply.current[0]
            ended = why_ended(
                self._ledger_id,
                None if found is None else LedgerMetadata.decode(found.key, found.value),
            )
            if ended is not None:  # the ledger is somebody else's: so is its note
                self._ended(ended)
                return
            assert found is not None
            version = found.version
