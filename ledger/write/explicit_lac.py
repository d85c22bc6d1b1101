"""LACs that no add has carried, told together a little later, for all ledgers of a process.

Whoever writes one record after the other would otherwise pay a message a bookie for a LAC that its next add
says. So a LAC is told when its ledger has rested for a while, by one timer for all that rest; while many rest
and others send together, with what those send.
"""

from collections.abc import Callable
from math import inf

import trio

from ...runtime.schedule.call_scheduler import LOOKED_AT_A_TURN

LAC_REST_S = 0.005
"""A LAC that no add follows is told to bookies at which nobody waits after this at the latest."""

MANY_LACS = 8
"""So many at a look are told with the next beat (`distributedlog/runtime/schedule/call_scheduler.py`): three
messages less."""
BEAT_WITHIN_S = 0.010
"""After a beat the next one is waited for so long."""


class PendingLac:
    """A ledger's writer: ``tell`` tells a LAC unless an add has followed, ``broken`` gets what it raised."""

    __slots__ = ("broken", "tell")

    def __init__(self, tell: Callable[[int], None], broken: Callable[[Exception], None]) -> None:
        self.tell = tell
        self.broken = broken


class ExplicitLacFlusher:
    """See the module. `run` must be running."""

    def __init__(self, gather: Callable[[], None], send_gathered: Callable[[], None]) -> None:
        """Both are called around what is told together, as `Turn` does."""
        self._gather = gather
        self._send_gathered = send_gathered
        self._young: list[tuple[PendingLac, int]] = []
        """Since the last look."""
        self._old: list[tuple[PendingLac, int]] = []
        """Of the look before."""
        self._due: list[tuple[PendingLac, int]] = []
        """Have rested, and wait for a beat."""
        self._beat_at = -inf
        self._any = trio.Event()

    def rests(self, ledger: PendingLac, lac: int) -> None:
        """All that was added to it is confirmed, up to ``lac``."""
        if not self._young:
            self._any.set()
        self._young.append((ledger, lac))

    async def run(self) -> None:
        """Look twice within `LAC_REST_S`, until cancelled: what rested at one look is told at the next."""
        while True:
            if not (self._old or self._young or self._due):
                self._any = trio.Event()
                await self._any.wait()
            await trio.sleep(LAC_REST_S / 2)
            self._due += self._old
            self._old, self._young = self._young, []
            if len(self._due) >= MANY_LACS and trio.current_time() < self._beat_at + BEAT_WITHIN_S:
                continue
            while self._due:
                self._gather()
                try:
                    self._tell_due()
                finally:
                    self._send_gathered()
                if self._due:
                    await trio.lowlevel.checkpoint()

    def in_beat(self) -> None:
        """Others have gathered what they send: what waits for that goes with it."""
        self._beat_at = trio.current_time()
        if self._due:
            self._tell_due()

    def _tell_due(self) -> None:
        told, self._due = self._due[:LOOKED_AT_A_TURN], self._due[LOOKED_AT_A_TURN:]
        for ledger, lac in told:
            try:
                ledger.tell(lac)
            except Exception as error:
                ledger.broken(error)
