"""Read and verify each live extent, by default once in two weeks, so that corruption is found in time.

The scrub reads the extents in the order of the index, about a megabyte at a time. Its rate is chosen so that
a pass takes the configured time. Its progress is stored in the index, so that a pass continues after a
restart. Time in which the bookie is down does not count. Extents that are added behind the present position
wait for the next pass, because they were just written.
"""

import trio

from ...runtime.interfaces.errors import CorruptData, TooBusy, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.events import SCRUBBED
from ..declarations.options import BookieOptions
from ..format.extent_map import ExtentLocation
from ..format.index_format import SCRUB_KEY, IndexDamaged, ScrubProgress
from ..ledgers.ledger_table import LedgerTable
from ..storage.index import Index
from .corruption_tracker import CorruptionTracker

BYTES_PER_S_MIN = 1024 * 1024
REQUESTED_BYTES_PER_S = 32 * 1024 * 1024
"""The rate of a requested pass: a tenth of the write rate of a bookie."""
BATCH_BYTES = 1024 * 1024
EXTENT_COST_BYTES_MIN = 16 * 1024
"""The minimum cost of an extent, because reading a small one costs a thread switch rather than bytes."""
EXTENTS_PER_BATCH = 64
START_DELAY_S = 60.0
"""The delay after a start, when the bookie has more urgent work."""
VERIFY_PAUSE_S = 0.005
"""The pause between two pages of the index. A million pairs then take half a minute and one percent of a
core."""
SAVE_INTERVAL_S = 60.0
"""The interval at which the progress is saved. After a crash, up to this much work is repeated."""
RETRY_S = 5.0

log = get_logger("distributedlog.bookie.integrity.scrubber")


class Scrubber:
    """The scrub of one bookie's store."""

    def __init__(
        self,
        index: Index,
        ledgers: LedgerTable,
        corruption_tracker: CorruptionTracker,
        options: BookieOptions,
        failures: WorkFailures,
        *,
        start_now: bool,
    ) -> None:
        """Create the scrub.

        Args:
            start_now: Whether to begin a pass at once, because this start found a loss.
        """
        self._index = index
        self._ledgers = ledgers
        self._corruption_tracker = corruption_tracker
        self._failures = failures
        self._every_s = options.scrub_s
        self.progress = _load_progress(index.extra_values.get(SCRUB_KEY), self._every_s)
        if start_now:
            self.progress = ScrubProgress(under_way=True, rest_s=int(self._every_s))
        self._requested = trio.Event()
        self._requested_number = 0
        self.completed_number = 0
        """The number that `request_pass` received for the last completed pass."""
        self._counted_at = trio.current_time()
        self._saved_at = trio.current_time()

    def request_pass(self, number: int) -> None:
        """Begin a pass now, at the higher rate. `completed_number` is set to ``number`` when it completes."""
        if number == self._requested_number:
            return
        self._requested_number = number
        self.progress = ScrubProgress(
            under_way=True, rest_s=int(self._every_s), passes=self.progress.passes
        )
        self._requested.set()

    async def run(self) -> None:
        """Scrub until cancelled. Errors are recorded, and do not end the task."""
        with trio.move_on_after(START_DELAY_S):
            await self._requested.wait()
        while True:
            self._count_down()
            if self.progress.under_way:
                try:
                    await self._scrub_batch()
                except IndexDamaged as error:
                    self._ledgers.damage = error  # the node ends, and rebuilds the index
                    return
                except TooBusy:
                    await trio.sleep(RETRY_S)
            elif self.progress.rest_s <= 0:
                self.progress = ScrubProgress(
                    under_way=True, rest_s=int(self._every_s), passes=self.progress.passes
                )
            else:
                with trio.move_on_after(min(self.progress.rest_s, 60 * SAVE_INTERVAL_S)):
                    await self._requested.wait()
            if trio.current_time() >= self._saved_at + SAVE_INTERVAL_S:
                self._save_progress()

    def _count_down(self) -> None:
        passed = int(trio.current_time() - self._counted_at)
        self._counted_at += passed
        self.progress.rest_s = max(0, self.progress.rest_s - passed)

    def _save_progress(self) -> None:
        self._saved_at = trio.current_time()
        self._index.put_extra(SCRUB_KEY, self.progress.encode())

    async def _scrub_batch(self) -> None:
        """Verify some extents from the present position on, and wait for the time that this may take."""
        progress = self.progress
        cost = 0
        extents = self._index.extents_from(progress.ledger, progress.entry, EXTENTS_PER_BATCH)
        for ledger_id, extent in extents:
            # An extent that cannot be verified is skipped. The next pass tries it again.
            unit = f"the scrub of ledger {ledger_id} from entry {extent.first}"
            with self._failures.attempt(unit, every_s=self._every_s):
                await self._scrub_extent(progress, ledger_id, extent)
            if progress is not self.progress:
                return  # a new pass was requested
            progress.ledger, progress.entry = ledger_id, extent.last + 1
            cost += max(extent.length, EXTENT_COST_BYTES_MIN)
            if cost >= BATCH_BYTES:
                break
        if not extents:
            await self._index.verify(lambda: VERIFY_PAUSE_S)  # also pairs that no client reads
            if progress is self.progress:
                self._end_pass()
        await trio.sleep(cost / self._bytes_per_s())

    async def _scrub_extent(
        self, progress: ScrubProgress, ledger_id: int, extent: ExtentLocation
    ) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            return
        corrupt = await self._corruption_tracker.examine(ledger, extent)
        progress.read_bytes += extent.length
        if corrupt is not None:
            progress.found += corrupt.corrupt_entry_count
            ranges = corrupt.corrupt_ranges
            self._corruption_tracker.record(ledger_id, ranges[0][0], ranges[-1][1])

    def _bytes_per_s(self) -> float:
        if self._requested_number != self.completed_number:
            return REQUESTED_BYTES_PER_S
        live = sum(self._index.live_bytes.values())
        total_bytes = max(live, self._index.stored_totals.extent_count * EXTENT_COST_BYTES_MIN)
        return max(BYTES_PER_S_MIN, total_bytes / self._every_s)

    def _end_pass(self) -> None:
        progress = self.progress
        bytes_read, corrupt_entries = progress.read_bytes, progress.found
        text = "scrubbed %d bytes, found %d corrupt entries"
        SCRUBBED.emit(
            log, text, bytes_read, corrupt_entries, bytes=bytes_read, rotten=corrupt_entries
        )
        self.progress = ScrubProgress(
            rest_s=progress.rest_s,
            read_bytes=progress.read_bytes,
            found=progress.found,
            passes=progress.passes + 1,
        )
        self.completed_number = self._requested_number
        self._requested = trio.Event()
        self._save_progress()


def _load_progress(value: bytes | None, every_s: float) -> ScrubProgress:
    """Decode the stored progress. If it is missing or invalid, a new pass begins."""
    if value is not None:
        try:
            return ScrubProgress.decode(value)
        except (CorruptData, UnsupportedFormat) as error:
            log.warning("the scrub starts from the beginning: %s", error)
    return ScrubProgress(under_way=True, rest_s=int(every_s))
