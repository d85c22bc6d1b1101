"""Log why work is blocked, in one line per change, not once per ledger and pass.

Otherwise, a bookie that is down for an hour while 10,000 ledgers lack entries causes 7 million log lines.
"""

import trio

from ...runtime.interfaces.log_lines import Logger
from ..declarations.events import BLOCKED, UNBLOCKED

AGAIN_S = 300.0
"""How often unchanged causes are logged again."""
CAUSES_MAX = 5
"""The number of causes that a line lists."""


class BlockedWorkLog:
    """Collects and logs the causes that block one kind of work, pass by pass."""

    def __init__(self, log: Logger, description: str) -> None:
        self._log = log
        self._description = description
        """Such as "ledgers wait for copies".

        The log lines are "5 ledgers wait for copies: …" and "no … any more".
        """
        self._causes: dict[str, tuple[int, str]] = {}
        """By cause: the number of blocked pieces, and one as an example."""
        self._reported_causes: frozenset[str] = frozenset()
        self._reported_at = float("-inf")
        self.waiting_count = 0
        """The number of pieces of work that were blocked in the last pass."""

    def record(self, cause: str, example: str) -> None:
        """Record that one piece of work is blocked in this pass.

        Args:
            cause: One of few causes, such as "bookie b3: ConnectionLost".
            example: The piece of work and its error in full.
        """
        count, first = self._causes.get(cause, (0, example))
        self._causes[cause] = (count + 1, first)
        self._log.debug("%s: %s", cause, example)

    def end_pass(self) -> None:
        """End a pass: log its causes if they changed, and start to collect again."""
        causes, self._causes = self._causes, {}
        self.waiting_count = sum(count for count, _ in causes.values())
        now = trio.current_time()
        names = frozenset(causes)
        if names == self._reported_causes and (not names or now - self._reported_at < AGAIN_S):
            return
        self._reported_causes, self._reported_at = names, now
        if not causes:
            UNBLOCKED.emit(self._log, "no %s any more", self._description, work=self._description)
            return
        most_frequent = sorted(causes.items(), key=lambda item: -item[1][0])
        parts = [
            f"{cause} ({count}, such as: {example})" for cause, (count, example) in most_frequent
        ]
        omitted = len(parts) - CAUSES_MAX
        if omitted > 0:
            parts[CAUSES_MAX:] = [f"and {omitted} other causes"]
        BLOCKED.emit(
            self._log,
            "%d %s: %s",
            self.waiting_count,
            self._description,
            "; ".join(parts),
            work=self._description,
            count=self.waiting_count,
        )
