"""How long a writer's adds and slots have been waiting, by a clock of its own (pure).

The clock goes on by what lies between two sweeps, and by no more than should: whoever sweeps late was
stalled itself, and nobody else is to blame for that time (H25). Nor is a bookie for the time in which what
it is to acknowledge waits in this process behind the adds of other ledgers, while it takes those: it
owes an ack once all is sent that stood in the connection's queue when it was first seen to owe it.
"""

from collections import deque
from collections.abc import Callable

from .pending_adds import PendingAdds

MOVING_BYTES_MIN = 64 * 1024
"""From one sweep to the next: a queue that is taken more slowly excuses nobody, so that whoever takes a byte
now and then is silent in the end like one who takes none."""

Leaving = tuple[int, int]
"""Of a connection: bytes sent since it began, bytes that wait to be sent."""


class SlotTimers:
    """Told of the time a few times a second; seconds everywhere."""

    def __init__(self, window: PendingAdds) -> None:
        self.clock = 0.0
        """The writer's own time."""
        self._window = window
        self._swept_at = 0.0
        self._marks: deque[tuple[float, int]] = deque()  # (clock, last entry pushed by then)
        self._adds_clock = 0.0  # as the clock, without the time in which adds wait to be sent
        size = window.striping.ensemble_size
        self._progress: list[tuple[float, int]] = [(0.0, -1)] * size
        self._queued: list[tuple[int, int] | None] = [
            None
        ] * size  # (sent up to there, sent by now)

    def begin(self, now: float) -> None:
        """Sweeps begin."""
        self._swept_at = now

    def on_sweep(
        self, now: float, interval_s: float, leaving: Callable[[int], Leaving | None]
    ) -> None:
        """A sweep, ``interval_s`` after another unless this process was late itself.

        ``leaving`` is asked for the connections of slots that owe acks; None: there is none.
        """
        passed_s = min(now - self._swept_at, interval_s)
        self._swept_at = now
        self.clock += passed_s
        if not self._look_at_slots(leaving):
            self._adds_clock += passed_s
        window, marks = self._window, self._marks
        while marks and marks[0][1] <= window.lac:
            marks.popleft()
        if window.last > window.lac and (not marks or marks[-1][1] < window.last):
            marks.append((self._adds_clock, window.last))

    def _look_at_slots(self, leaving: Callable[[int], Leaving | None]) -> bool:
        """Note who has moved; does anything that a slot owes still wait to be sent, and is it going on?"""
        waits = False
        for number, slot in enumerate(self._window.slots):
            _, through = self._progress[number]
            if slot.through != through or not self._window.owed(number):
                self._progress[number] = (self.clock, slot.through)
                self._queued[number] = None
            elif self._waits_to_be_sent(number, leaving(number)):
                self._progress[number] = (self.clock, slot.through)
                waits = True
        return waits

    def _waits_to_be_sent(self, number: int, leaving: Leaving | None) -> bool:
        if leaving is None:
            return False
        sent, waiting = leaving
        before = self._queued[number]
        if before is None or sent < before[1]:  # owes since now, or on another connection
            self._queued[number] = (sent + waiting, sent)
            return waiting > 0
        self._queued[number] = (before[0], sent)
        return before[1] + MOVING_BYTES_MIN <= sent < before[0]

    @property
    def oldest_add_s(self) -> float:
        """How long the oldest add that is not confirmed has waited, seen by sweeps; 0 for none."""
        return self._adds_clock - self._marks[0][0] if self._marks else 0.0

    def silent_slots(self, silence_s: float) -> list[int]:
        """Slots that owe acks and have sent none for so long, by the last sweep."""
        return [
            number
            for number, (since, _) in enumerate(self._progress)
            if self.clock - since >= silence_s
        ]

    def forgive(self, slot: int) -> None:
        """The slot begins anew: it owes nothing from before."""
        self._progress[slot] = (self.clock, self._window.slots[slot].through)
        self._queued[slot] = None
