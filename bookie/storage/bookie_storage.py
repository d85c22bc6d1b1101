"""The parts that hold the data of a bookie. The start creates them, and all work on the data shares them."""

from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.options import BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace
from ..disk.disk_reserve import Reserve
from ..ledgers.ledger_table import LedgerTable
from .entry_reader import JournalFiles
from .index import Index
from .journal import Journal
from .journal_buffer import JournalBuffer

INVALIDATE_TIMEOUT_S = 5.0
"""For one small transaction of the map while the node ends."""

log = get_logger("distributedlog.bookie.storage")


@dataclass(frozen=True, slots=True)
class BookieStorage:
    """The journal, index and ledgers of one bookie, and their disk space."""

    disk: Disk
    """The disk of the journal and the compacted files."""
    journal: Journal
    buffer: JournalBuffer
    """Collects the next blocks of the journal."""
    index: Index
    ledgers: LedgerTable
    files: JournalFiles
    """Journal and compacted files that are open for reads."""
    space: BookieDiskSpace
    reserves: dict[str, Reserve]
    """By the disk's role."""
    options: BookieOptions

    @property
    def bookie_id(self) -> str:
        """The ID of the bookie."""
        return self.space.bookie_id

    async def ensure_reserves(self) -> None:
        """Restore incomplete reserves, if there is enough space."""
        for reserve in self.reserves.values():
            if not reserve.is_complete:
                await reserve.ensure()

    async def invalidate_index(self) -> None:
        """Make the next start rebuild the index. If this write fails, that start finds the damage.

        Shielded with a timeout, because damage of the index ends the node and cancels its tasks.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + INVALIDATE_TIMEOUT_S):
            try:
                await self.index.invalidate()
            except DistributedLogError as error:
                log.warning(
                    "bookie %s: the damaged index was not removed (%s)", self.bookie_id, error
                )

    def close(self) -> None:
        """Close the files and the index without a checkpoint."""
        self.journal.close()
        self.files.close()
        self.index.close()
