"""When a writer has had nothing to write for so long that it should say so."""

from collections.abc import Callable

import trio

from ..runtime.turns import Round, Rounds

LOOK_S = 0.25
"""How late it may be noticed."""


class KeepAlive:
    """One writer's; costs nothing where it is off."""

    def __init__(
        self,
        rounds: Rounds,
        *,
        sent: Callable[[], object],
        on_quiet: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """``sent``: something that is another with each entry; ``on_quiet``: nothing was sent for so long."""
        self._rounds = rounds
        self._round = Round(self._look, broken)
        self._sent = sent
        self._on_quiet = on_quiet
        self._after_s = 0.0
        self._last: object = None
        self._since = 0.0

    def follow(self, after_s: float) -> None:
        """Look from now on; 0: not any more."""
        if after_s and not self._after_s:
            self._last, self._since = self._sent(), trio.current_time()
            self._rounds.join(self._round)
        self._after_s = after_s

    def end(self) -> None:
        """Look no more. Idempotent."""
        self._after_s = 0.0
        self._rounds.leave(self._round)

    def _look(self) -> bool:
        sent, now = self._sent(), trio.current_time()
        if sent != self._last:
            self._last, self._since = sent, now
        elif self._after_s and now - self._since >= self._after_s:
            self._on_quiet()
        return self._after_s > 0
