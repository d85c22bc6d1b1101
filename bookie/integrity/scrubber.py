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
from ..format.index_format import SCRUB_KEY, IndexDamaged, ScrubPlace
from ..ledgers.ledger_table import LedgerTable
from ..storage.index import Index
from .corruption_tracker import CorruptionTracker

BYTES_PER_S_MIN = 1024 * 1024
BYTES_PER_S_ASKED = 32 * 1024 * 1024
"""While somebody waits for it: a tenth of what a bookie takes."""
BATCH_BYTES = 1024 * 1024
RUN_BYTES_MIN = 16 * 1024
"""What a run counts for at least: reading a small one costs a thread's turn, not its bytes."""
RUNS_AT_ONCE = 64
SETTLE_S = 60.0
"""After a start, which has better things to do."""
VERIFY_REST_S = 0.005
"""Between two pages of the index: a million pairs take half a minute, and one hundredth of a core."""
SAVE_S = 60.0
"""Between two notes of its place: so much is read again after a crash."""
RETRY_S = 5.0

log = get_logger("distributedlog.bookie.integrity.scrubber")


class Scrubber:
    """The scrub of one bookie's store."""

    def __init__(
        self,
        index: Index,
        ledgers: LedgerTable,
        rot: CorruptionTracker,
        options: BookieOptions,
        failures: WorkFailures,
        *,
        begin: bool,
    ) -> None:
        """``begin``: with a pass at once, for its start has found a loss."""
        self._index = index
        self._ledgers = ledgers
        self._rot = rot
        self._failures = failures
        self._every_s = options.scrub_s
        self.place = _place_of(index.kept.get(SCRUB_KEY), self._every_s)
        if begin:
            self.place = ScrubPlace(under_way=True, rest_s=int(self._every_s))
        self._asked = trio.Event()
        self._asked_as = 0
        self.done_as = 0
        """The number under which `ask` asked for the last pass that came to its end."""
        self._counted_at = trio.current_time()
        self._saved_at = trio.current_time()

    def ask(self, number: int) -> None:
        """Begin a pass now, and do not be slow; ``number`` says who asks, and shows in `done_as`."""
        if number == self._asked_as:
            return
        self._asked_as = number
        self.place = ScrubPlace(under_way=True, rest_s=int(self._every_s), passes=self.place.passes)
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled. What it meets is noted, and ends nothing."""
        with trio.move_on_after(SETTLE_S):
            await self._asked.wait()
        while True:
            self._count_down()
            if self.place.under_way:
                try:
                    await self._go_on()
                except IndexDamaged as error:
                    self._ledgers.damage = error  # the node ends, and builds it again
                    return
                except TooBusy:
                    await trio.sleep(RETRY_S)
            elif self.place.rest_s <= 0:
                self.place = ScrubPlace(
                    under_way=True, rest_s=int(self._every_s), passes=self.place.passes
                )
            else:
                with trio.move_on_after(min(self.place.rest_s, 60 * SAVE_S)):
                    await self._asked.wait()
            if trio.current_time() >= self._saved_at + SAVE_S:
                self._save()

    def _count_down(self) -> None:
        passed = int(trio.current_time() - self._counted_at)
        self._counted_at += passed
        self.place.rest_s = max(0, self.place.rest_s - passed)

    def _save(self) -> None:
        self._saved_at = trio.current_time()
        self._index.keep(SCRUB_KEY, self.place.encode())

    async def _go_on(self) -> None:
        """Read some runs from the place on, and wait as long as that may take."""
        place = self.place
        cost = 0
        runs = self._index.runs_from(place.ledger, place.entry, RUNS_AT_ONCE)
        for ledger_id, run in runs:
            # A run that cannot be verified is skipped. The next pass tries it again.
            unit = f"the scrub of ledger {ledger_id} from entry {run.first}"
            with self._failures.contained(unit, every_s=self._every_s):
                await self._look_at(place, ledger_id, run)
            if place is not self.place:
                return  # asked to begin anew meanwhile
            place.ledger, place.entry = ledger_id, run.last + 1
            cost += max(run.length, RUN_BYTES_MIN)
            if cost >= BATCH_BYTES:
                break
        if not runs:
            await self._index.verify(lambda: VERIFY_REST_S)  # also what no client asks for
            if place is self.place:
                self._end_pass()
        await trio.sleep(cost / self._bytes_per_s())

    async def _look_at(self, place: ScrubPlace, ledger_id: int, run: ExtentLocation) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            return
        rotten = await self._rot.examine(ledger, run)
        place.read_bytes += run.length
        if rotten is not None:
            place.found += rotten.entries
            stretches = rotten.rotten
            self._rot.note(ledger_id, stretches[0][0], stretches[-1][1])

    def _bytes_per_s(self) -> float:
        if self._asked_as != self.done_as:
            return BYTES_PER_S_ASKED
        live = sum(self._index.live_bytes.values())
        all_of_it = max(live, self._index.in_map.runs * RUN_BYTES_MIN)
        return max(BYTES_PER_S_MIN, all_of_it / self._every_s)

    def _end_pass(self) -> None:
        place = self.place
        read, found = place.read_bytes, place.found
        text = "scrubbed %d bytes, found %d rotten entries"
        SCRUBBED.say(log, text, read, found, bytes=read, rotten=found)
        self.place = ScrubPlace(
            rest_s=place.rest_s,
            read_bytes=place.read_bytes,
            found=place.found,
            passes=place.passes + 1,
        )
        self.done_as = self._asked_as
        self._asked = trio.Event()
        self._save()


def _place_of(value: bytes | None, every_s: float) -> ScrubPlace:
    """Where to go on. What cannot be read costs a pass that begins anew."""
    if value is not None:
        try:
            return ScrubPlace.decode(value)
        except (CorruptData, UnsupportedFormat) as error:
            log.warning("the scrub begins anew: %s", error)
    return ScrubPlace(under_way=True, rest_s=int(every_s))
