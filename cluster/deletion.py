"""A bookie's to-do list of deleted ledgers (H21).

Deleting a ledger puts ``delete/<bookie>/<ledger>`` for each of its bookies, in the transaction that makes
it DELETING. Each bookie removes what it holds, durably, and then its key; whoever takes away the last
key takes the ledger's record away too. A bookie that was down does its part when it is back.
"""

from collections.abc import Awaitable, Callable, Sequence

from ..ledger import keys
from ..ledger.metadata import LedgerMetadata
from ..metadata.client import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, Transaction
from .watching import at_each_change

EVERY_S = 30.0
PAGE = 100


class Deletion:
    """Works off one bookie's list."""

    def __init__(
        self,
        metadata: Metadata,
        bookie_id: str,
        delete_local: Callable[[int], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._delete_local = delete_local
        """Removes a ledger here; durable when it returns; no error where there is none."""

    async def run(self) -> None:
        """Until cancelled."""
        prefixes = (keys.delete_prefix(self._bookie_id),)
        await at_each_change(self._metadata, prefixes, self.work, every_s=EVERY_S)

    async def work(self) -> None:
        """Do all that is on the list now."""
        prefix = keys.delete_prefix(self._bookie_id)
        more = True
        while more:
            page = await self._metadata.range(prefix, prefix_end(prefix), limit=PAGE)
            for item in page.items:
                ledger_id = keys.ledger_id_of(item.key)
                await self._delete_local(ledger_id)
                await self._tick_off(ledger_id)
            more = page.more

    async def _tick_off(self, ledger_id: int) -> None:
        """Remove our key, and with the last one the record."""
        own = Delete(keys.delete_key(self._bookie_id, ledger_id))
        record = keys.ledger_key(ledger_id)
        while True:
            found = await self._metadata.get(record)
            others: Sequence[bytes] = ()
            if found is not None:
                others = [
                    keys.delete_key(bookie, ledger_id)
                    for bookie in LedgerMetadata.decode(found.value).bookies()
                    if bookie != self._bookie_id
                ]
            last = Transaction(
                tuple(Compare.version(key, 0) for key in others),
                (own, Delete(record), Delete(keys.under_key(ledger_id))),
            )
            reply = await self._metadata.transact(last)
            if reply.succeeded:
                return
            waiting = [
                key for key, state in zip(others, reply.current, strict=True) if state is not None
            ]
            if not waiting:
                continue  # the answer was lost and given again: the others have ticked off since
            # Conditional on one that has its part still to do: of two who tick off at once, one is last.
            ours = Transaction((Compare.exists(waiting[0]),), (own,))
            if (await self._metadata.transact(ours)).succeeded:
                return
