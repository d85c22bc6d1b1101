"""Delete a bookie's copies of deleted ledgers, from its list in the metadata store (H21).

The transaction that marks a ledger as DELETING puts a key ``delete/<bookie>/<ledger>`` for each of its
bookies. Each bookie durably removes its entries, and then deletes its key. The bookie that deletes the last
key also deletes the ledger's record. A bookie that was down does its part when it runs again.

The key alone proves nothing, because any client may have written it. A linearizable read of the ledger's
record must show that the ledger is being deleted, and the record is deleted only unchanged. A key that the
record does not confirm is deleted, and logged as a warning.
"""

from collections.abc import Awaitable, Callable

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.stored_ledger import UnreadableRecords
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, Transaction
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import HOLD, hold_reason
from ..coordination.reconcile_loop import reconcile_on_change

EVERY_S = 30.0
PAGE = 100

log = get_logger("distributedlog.cluster.repair.ledger_deletion")


class LedgerDeletion:
    """Processes one bookie's list of ledgers to delete."""

    def __init__(
        self,
        metadata: Metadata,
        bookie_id: str,
        delete_local: Callable[[int], Awaitable[None]],
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._delete_local = delete_local
        """Removes a ledger durably from this bookie. Raises no error if the ledger is not there."""
        self._unreadable = UnreadableRecords()

    async def run(self) -> None:
        """Process the list when it changes and every 30 s, until cancelled.

        `HOLD` is watched too, so that deletions continue as soon as an operator ends the hold.
        """
        prefixes = (keys.delete_prefix(self._bookie_id), HOLD)
        await reconcile_on_change(
            self._metadata,
            prefixes,
            self.run_pass,
            every_s=EVERY_S,
            failures=self._failures,
            unit="deletion of ledgers",
        )

    async def run_pass(self) -> None:
        """Process the present list once; do nothing while deletions are on hold (H104)."""
        if await hold_reason(self._metadata):
            return
        async for item in Scan(self._metadata, keys.delete_prefix(self._bookie_id), limit=PAGE):
            unit = f"the deletion of {item.key!r}"
            if self._failures.is_waiting(unit):
                continue
            try:
                with self._failures.attempt(unit):
                    await self._delete_ledger(keys.ledger_id_of(item.key))
            except (CorruptData, UnsupportedFormat) as error:
                self._unreadable.log_once(item.key, error)

    async def _delete_ledger(self, ledger_id: int) -> None:
        """Remove the ledger here if its record confirms it.

        Then delete this bookie's key, and the record with the last key.
        """
        own_key = Delete(keys.delete_key(self._bookie_id, ledger_id))
        ledger_key = keys.ledger_key(ledger_id)
        is_deleted_here = False
        while True:
            item = await self._metadata.get(ledger_key)
            ledger = None if item is None else LedgerMetadata.decode(item.key, item.value)
            unchanged = Compare.version(ledger_key, 0 if item is None else item.version)
            if ledger is None or ledger.state is not LedgerState.DELETING:
                # This is also the second pass of a request whose answer was lost: then all is done.
                if not is_deleted_here:
                    why = "does not exist" if ledger is None else f"is {ledger.state.value}"
                    log.warning("ledger %d is kept on this bookie: it %s", ledger_id, why)
                if (await self._metadata.transact(Transaction((unchanged,), (own_key,)))).succeeded:
                    return
                continue
            await self._delete_local(ledger_id)
            is_deleted_here = True
            other_keys = [
                keys.delete_key(bookie, ledger_id)
                for bookie in ledger.bookies()
                if bookie != self._bookie_id
            ]
            delete_record = Transaction(
                (unchanged, *(Compare.version(key, 0) for key in other_keys)),
                (own_key, Delete(ledger_key), Delete(keys.missing_ranges_key(ledger_id))),
            )
            reply = await self._metadata.transact(delete_record)
            if reply.succeeded:
                return
            waiting_keys = [
                key
                for key, state in zip(other_keys, reply.current[1:], strict=True)
                if state is not None
            ]
            if not waiting_keys:
                continue  # this is the repeated answer to a lost one: the other keys were deleted since
            # The condition is a key that still exists, so of two bookies that finish at once, one is the
            # last.
            delete_own_key = Transaction((Compare.exists(waiting_keys[0]),), (own_key,))
            if (await self._metadata.transact(delete_own_key)).succeeded:
                return
