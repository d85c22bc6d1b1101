"""LACs that no add has carried, told together a little later, for all ledgers of a process.

Whoever writes one record after the other would otherwise pay a message a bookie for a LAC that its next add
says. So a LAC is told when its ledger has rested for a while, by one timer for all that rest.
"""

from collections.abc import Callable

import trio

from ..runtime.turns import LOOKED_AT_A_TURN

LAC_REST_S = 0.005
"""A LAC that no add follows is told to bookies at which nobody waits after this at the latest."""


class Resting:
    """A ledger's writer: ``tell`` tells a LAC unless an add has followed, ``broken`` gets what it raised."""

    __slots__ = ("broken", "tell")

    def __init__(self, tell: Callable[[int], None], broken: Callable[[Exception], None]) -> None:
        self.tell = tell
        self.broken = broken


class RestingLacs:
    """See the module. `run` must be running."""

    def __init__(self, gather: Callable[[], None], send_gathered: Callable[[], None]) -> None:
        """Both are called around what is told together, as `Turn` does."""
        self._gather = gather
        self._send_gathered = send_gathered
        self._young: list[tuple[Resting, int]] = []
        """Since the last look."""
        self._any = trio.Event()

    def rests(self, ledger: Resting, lac: int) -> None:
        """All that was added to it is confirmed, up to ``lac``."""
        if not self._young:
            self._any.set()
        self._young.append((ledger, lac))

    async def run(self) -> None:
        """Look twice within `LAC_REST_S`, until cancelled: what rested at one look is told at the next."""
        old: list[tuple[Resting, int]] = []
        while True:
            if not old and not self._young:
                self._any = trio.Event()
                await self._any.wait()
            await trio.sleep(LAC_REST_S / 2)
            told, old, self._young = old, self._young, []
            while told:
                self._tell(told[:LOOKED_AT_A_TURN])
                if told := told[LOOKED_AT_A_TURN:]:
                    await trio.lowlevel.checkpoint()

    def _tell(self, told: list[tuple[Resting, int]]) -> None:
        self._gather()
        try:
            for ledger, lac in told:
                try:
                    ledger.tell(lac)
                except Exception as error:
                    ledger.broken(error)
        finally:
            self._send_gathered()
