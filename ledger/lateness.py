"""How long a writer's adds and slots have been waiting, by a clock of its own (pure).

The clock goes on by what lies between two sweeps, and by no more than a sweep may take: whoever sweeps late
was stalled itself, and nobody else is to blame for that time (H25).
"""

from collections import deque

from .add_window import AddWindow


class Lateness:
    """Told of the time a few times a second; seconds everywhere."""

    def __init__(self, window: AddWindow) -> None:
        self.clock = 0.0
        """The writer's own time."""
        self._window = window
        self._swept_at = 0.0
        self._marks: deque[tuple[float, int]] = deque()  # (clock, last entry pushed by then)
        self._progress: list[tuple[float, int]] = [(0.0, -1)] * window.striping.ensemble_size

    def begin(self, now: float) -> None:
        """Sweeps begin."""
        self._swept_at = now

    def on_sweep(self, now: float, late_s: float) -> None:
        """A sweep, which is at most ``late_s`` after another unless this process stood still."""
        self.clock += min(now - self._swept_at, late_s)
        self._swept_at = now
        window, marks = self._window, self._marks
        while marks and marks[0][1] <= window.lac:
            marks.popleft()
        if window.last > window.lac and (not marks or marks[-1][1] < window.last):
            marks.append((self.clock, window.last))

    @property
    def oldest_add_s(self) -> float:
        """How long the oldest add that is not confirmed has waited, seen by sweeps; 0 for none."""
        return self.clock - self._marks[0][0] if self._marks else 0.0

    def silent_slots(self, silence_s: float) -> list[int]:
        """Slots that owe acks and have sent none for so long; ask once a sweep."""
        silent = []
        for number, slot in enumerate(self._window.slots):
            since, through = self._progress[number]
            if slot.through != through or not self._window.owed(number):
                self._progress[number] = (self.clock, slot.through)
            elif self.clock - since >= silence_s:
                silent.append(number)
        return silent

    def forgive(self, slot: int) -> None:
        """The slot begins anew: it owes nothing from before."""
        self._progress[slot] = (self.clock, self._window.slots[slot].through)
