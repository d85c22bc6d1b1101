"""LACs that no add has carried, told together a little later, for all ledgers of a process.

Whoever writes one record after the other would otherwise pay a message a bookie for a LAC that its next add
says. So a LAC is told when its ledger has rested for a while, by one timer for all that rest; while many rest
and others send together, with what those send.
"""

from collections.abc import Callable
from math import inf

import trio

from ...runtime.schedule.call_scheduler import CHECKS_PER_TURN

LAC_DELAY_S = 0.005
"""A LAC that no add follows is told to bookies at which nobody waits after this at the latest."""

BATCH_LACS_MIN = 8
"""So many at a look are told with the next beat (`distributedlog/runtime/schedule/call_scheduler.py`): three
messages less."""
SEND_WAIT_S = 0.010
"""After a beat the next one is waited for so long."""


class PendingLac:
    """A ledger's writer: ``tell`` tells a LAC unless an add has followed, ``broken`` gets what it raised."""

    __slots__ = ("on_internal_error", "send_lac")

    def __init__(
        self, send_lac: Callable[[int], None], on_internal_error: Callable[[Exception], None]
    ) -> None:
        self.send_lac = send_lac
        self.on_internal_error = on_internal_error


class ExplicitLacFlusher:
    """See the module. `run` must be running."""

    def __init__(self, gather: Callable[[], None], send_gathered: Callable[[], None]) -> None:
        """Both are called around what is told together, as `Turn` does."""
        self._gather = gather
        self._send_gathered = send_gathered
        self._new_lacs: list[tuple[PendingLac, int]] = []
        """Since the last look."""
        self._previous_lacs: list[tuple[PendingLac, int]] = []
        """Of the look before."""
        self._due_lacs: list[tuple[PendingLac, int]] = []
        """Have rested, and wait for a beat."""
        self._last_send_at = -inf
        self._wake = trio.Event()

    def schedule(self, pending_lac: PendingLac, lac: int) -> None:
        """All that was added to it is confirmed, up to ``lac``."""
        if not self._new_lacs:
            self._wake.set()
        self._new_lacs.append((pending_lac, lac))

    async def run(self) -> None:
        """Look twice within `LAC_DELAY_S`, until cancelled: what rested at one look is told at the next."""
        while True:
            if not (self._previous_lacs or self._new_lacs or self._due_lacs):
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep(LAC_DELAY_S / 2)
            self._due_lacs += self._previous_lacs
            self._previous_lacs, self._new_lacs = self._new_lacs, []
            if (
                len(self._due_lacs) >= BATCH_LACS_MIN
                and trio.current_time() < self._last_send_at + SEND_WAIT_S
            ):
                continue
            while self._due_lacs:
                self._gather()
                try:
                    self._flush_due()
                finally:
                    self._send_gathered()
                if self._due_lacs:
                    await trio.lowlevel.checkpoint()

    def flush_with_gathered(self) -> None:
        """Others have gathered what they send: what waits for that goes with it."""
        self._last_send_at = trio.current_time()
        if self._due_lacs:
            self._flush_due()

    def _flush_due(self) -> None:
        batch, self._due_lacs = self._due_lacs[:CHECKS_PER_TURN], self._due_lacs[CHECKS_PER_TURN:]
        for pending_lac, lac in batch:
            try:
                pending_lac.send_lac(lac)
            except Exception as error:
                pending_lac.on_internal_error(error)
