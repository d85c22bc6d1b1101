"""The scrub: every live run is read once in two weeks, and what rotted is noted before the last copy does.

It goes through the index in order of ledger and entry, a megabyte at a time, at the rate that a pass in its
time asks for. Its place is kept with the index, so that restarts do not begin it anew; the time in which a
bookie is down does not count. Runs that come behind its place wait for the next pass: they were just written.
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
"""While somebody waits for it: a tenth of what a bookie takes."""
BATCH_BYTES = 1024 * 1024
EXTENT_COST_BYTES_MIN = 16 * 1024
"""What a run counts for at least: reading a small one costs a thread's turn, not its bytes."""
EXTENTS_PER_BATCH = 64
START_DELAY_S = 60.0
"""After a start, which has better things to do."""
VERIFY_PAUSE_S = 0.005
"""Between two pages of the index: a million pairs take half a minute, and one hundredth of a core."""
SAVE_INTERVAL_S = 60.0
"""Between two notes of its place: so much is read again after a crash."""
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
        """``begin``: with a pass at once, for its start has found a loss."""
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
        """The number under which `ask` asked for the last pass that came to its end."""
        self._counted_at = trio.current_time()
        self._saved_at = trio.current_time()

    def request_pass(self, number: int) -> None:
        """Begin a pass now, and do not be slow; ``number`` says who asks, and shows in `completed_number`."""
        if number == self._requested_number:
            return
        self._requested_number = number
        self.progress = ScrubProgress(
            under_way=True, rest_s=int(self._every_s), passes=self.progress.passes
        )
        self._requested.set()

    async def run(self) -> None:
        """Until cancelled. What it meets is noted, and ends nothing."""
        with trio.move_on_after(START_DELAY_S):
            await self._requested.wait()
        while True:
            self._count_down()
            if self.progress.under_way:
                try:
                    await self._scrub_batch()
                except IndexDamaged as error:
                    self._ledgers.damage = error  # the node ends, and builds it again
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
        """Read some runs from the place on, and wait as long as that may take."""
        progress = self.progress
        cost = 0
        extents = self._index.runs_from(progress.ledger, progress.entry, EXTENTS_PER_BATCH)
        for ledger_id, extent in extents:
            # A run that cannot be verified is skipped. The next pass tries it again.
            unit = f"the scrub of ledger {ledger_id} from entry {extent.first}"
            with self._failures.attempt(unit, every_s=self._every_s):
                await self._scrub_extent(progress, ledger_id, extent)
            if progress is not self.progress:
                return  # asked to begin anew meanwhile
            progress.ledger, progress.entry = ledger_id, extent.last + 1
            cost += max(extent.length, EXTENT_COST_BYTES_MIN)
            if cost >= BATCH_BYTES:
                break
        if not extents:
            await self._index.verify(lambda: VERIFY_PAUSE_S)  # also what no client asks for
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
        text = "scrubbed %d bytes, found %d rotten entries"
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
    """Where to go on. What cannot be read costs a pass that begins anew."""
    if value is not None:
        try:
            return ScrubProgress.decode(value)
        except (CorruptData, UnsupportedFormat) as error:
            log.warning("the scrub begins anew: %s", error)
    return ScrubProgress(under_way=True, rest_s=int(every_s))
