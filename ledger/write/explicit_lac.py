"""Send LACs that no add carries after a short delay, batched over all ledgers of a process.

A client that writes one record after another would otherwise send one more message per bookie for each LAC,
although its next add carries the LAC. A LAC is therefore sent only when its ledger has been idle for a
short time, by one timer for all ledgers. If many LACs are due and other ledgers send a batch, the LACs are
sent with it.
"""

from collections.abc import Callable
from math import inf

import trio

from ...runtime.schedule.call_scheduler import CHECKS_PER_TURN

LAC_DELAY_S = 0.005
"""The maximum delay of a LAC that no add follows, for bookies at which no reader waits."""

BATCH_LACS_MIN = 8
"""At least this many due LACs wait for the next batch
(`distributedlog/runtime/schedule/call_scheduler.py`).

This saves one message per bookie.
"""
SEND_WAIT_S = 0.010
"""How long due LACs wait for the next batch after the last one."""


class PendingLac:
    """The callbacks of one ledger's writer.

    ``send_lac`` sends a LAC unless an add has followed. ``on_internal_error`` receives its exceptions.
    """

    __slots__ = ("on_internal_error", "send_lac")

    def __init__(
        self, send_lac: Callable[[int], None], on_internal_error: Callable[[Exception], None]
    ) -> None:
        self.send_lac = send_lac
        self.on_internal_error = on_internal_error


class ExplicitLacFlusher:
    """Sends the LACs of idle ledgers while `run` runs."""

    def __init__(self, defer_sends: Callable[[], None], send_deferred: Callable[[], None]) -> None:
        """Create the flusher. Both callbacks are called around each batch, as in `CallScheduler`."""
        self._defer_sends = defer_sends
        self._send_deferred = send_deferred
        self._new_lacs: list[tuple[PendingLac, int]] = []
        """LACs since the last timer interval."""
        self._previous_lacs: list[tuple[PendingLac, int]] = []
        """LACs of the interval before."""
        self._due_lacs: list[tuple[PendingLac, int]] = []
        """LACs of idle ledgers that wait for a batch."""
        self._last_send_at = -inf
        self._wake = trio.Event()

    def schedule(self, pending_lac: PendingLac, lac: int) -> None:
        """Schedule ``lac``, up to which all entries of the ledger are confirmed."""
        if not self._new_lacs:
            self._wake.set()
        self._new_lacs.append((pending_lac, lac))

    async def run(self) -> None:
        """Check twice per `LAC_DELAY_S`, until cancelled.

        LACs of one interval are due at the end of the next one.
        """
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
                self._defer_sends()
                try:
                    self._flush_due()
                finally:
                    self._send_deferred()
                if self._due_lacs:
                    await trio.lowlevel.checkpoint()

    def flush_with_deferred(self) -> None:
        """Send due LACs together with a batch of other messages."""
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
