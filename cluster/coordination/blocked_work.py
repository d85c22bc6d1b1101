"""Why work waits, said in one line when it is news: not once a ledger and pass.

A bookie that was down for an hour with 10,000 holes wrote 7 million lines of "not copied yet".
"""

import trio

from ...runtime.interfaces.log_lines import Logger
from ..declarations.events import GOES_ON, WAITS

AGAIN_S = 300.0
"""What has not changed is said again so often."""
CAUSES_MAX = 5
"""Told one by one."""


class BlockedWorkLog:
    """What keeps one kind of work waiting, pass by pass."""

    def __init__(self, log: Logger, description: str) -> None:
        self._log = log
        self._description = description
        """Such as "ledgers wait for copies"."""
        self._causes: dict[str, tuple[int, str]] = {}
        """Cause to (how many, one of them in full)."""
        self._reported_causes: frozenset[str] = frozenset()
        self._reported_at = float("-inf")
        self.waiting_count = 0
        """How many pieces of work did in the last pass."""

    def record(self, cause: str, example: str) -> None:
        """One piece of work waits in this pass. Few causes, such as "bookie b3: ConnectionLost"."""
        count, first = self._causes.get(cause, (0, example))
        self._causes[cause] = (count + 1, first)
        self._log.debug("%s: %s", cause, example)

    def end_pass(self) -> None:
        """Say what is new, and begin again."""
        causes, self._causes = self._causes, {}
        self.waiting_count = sum(count for count, _ in causes.values())
        now = trio.current_time()
        names = frozenset(causes)
        if names == self._reported_causes and (not names or now - self._reported_at < AGAIN_S):
            return
        self._reported_causes, self._reported_at = names, now
        if not causes:
            GOES_ON.emit(self._log, "no %s any more", self._description, work=self._description)
            return
        most_frequent = sorted(causes.items(), key=lambda item: -item[1][0])
        parts = [
            f"{cause} ({count}, such as: {example})" for cause, (count, example) in most_frequent
        ]
        omitted = len(parts) - CAUSES_MAX
        if omitted > 0:
            parts[CAUSES_MAX:] = [f"and {omitted} other causes"]
        WAITS.emit(
            self._log,
            "%d %s: %s",
            self.waiting_count,
            self._description,
            "; ".join(parts),
            work=self._description,
            count=self.waiting_count,
        )
