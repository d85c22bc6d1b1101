"""Measure how long a writer's adds and slots have waited, by a separate clock (pure).

The clock advances by the time between two checks, but at most by the check interval. If a check is late,
this process was stalled, and no bookie is responsible for that time (H25).

A bookie is also not responsible while its adds wait in this process behind the adds of other ledgers, as
long as it receives those. It owes an acknowledgement only after the data is sent that was queued on the
connection when the acknowledgement was first missing.
"""

from collections import deque
from collections.abc import Callable

from .pending_adds import PendingAdds

PROGRESS_BYTES_MIN = 64 * 1024
"""The bytes that must be sent from one check to the next for a queue to count as progressing.

A bookie that receives only a few bytes now and then is therefore silent in the end.
"""

SendProgress = tuple[int, int]
"""Of a connection: the bytes sent since its start, and the bytes that wait to be sent."""


class SlotTimers:
    """Timers that are updated several times per second. All times are in seconds."""

    def __init__(self, pending_adds: PendingAdds) -> None:
        self.elapsed_s = 0.0
        """The writer's own clock."""
        self._pending_adds = pending_adds
        self._checked_at = 0.0
        self._add_times: deque[tuple[float, int]] = deque()  # (clock, last entry added by then)
        self._adds_elapsed_s = 0.0  # the clock without the time in which adds wait to be sent
        size = pending_adds.striping.ensemble_size
        self._last_progress: list[tuple[float, int]] = [(0.0, -1)] * size
        self._queue_positions: list[tuple[int, int] | None] = [
            None
        ] * size  # (bytes to send first, bytes sent by now)

    def start(self, now: float) -> None:
        """Start the timers."""
        self._checked_at = now

    def on_timer(
        self, now: float, interval_s: float, send_progress: Callable[[int], SendProgress | None]
    ) -> None:
        """Process a check, ``interval_s`` after the last one unless this process was late.

        Args:
            now: The current time.
            interval_s: The intended interval.
            send_progress: Returns the progress of the connection of a slot that owes acknowledgements; None
                if there is no connection.
        """
        passed_s = min(now - self._checked_at, interval_s)
        self._checked_at = now
        self.elapsed_s += passed_s
        if not self._check_slots(send_progress):
            self._adds_elapsed_s += passed_s
        pending_adds, add_times = self._pending_adds, self._add_times
        while add_times and add_times[0][1] <= pending_adds.lac:
            add_times.popleft()
        if pending_adds.last_entry > pending_adds.lac and (
            not add_times or add_times[-1][1] < pending_adds.last_entry
        ):
            add_times.append((self._adds_elapsed_s, pending_adds.last_entry))

    def _check_slots(self, send_progress: Callable[[int], SendProgress | None]) -> bool:
        """Record slots with progress.

        Returns:
            Whether the data of a slot without progress still waits to be sent in a progressing queue.
        """
        is_waiting_to_send = False
        for number, slot in enumerate(self._pending_adds.slots):
            _, acked_through = self._last_progress[number]
            if slot.acked_through != acked_through or not self._pending_adds.has_unacked(number):
                self._last_progress[number] = (self.elapsed_s, slot.acked_through)
                self._queue_positions[number] = None
            elif self._waits_to_be_sent(number, send_progress(number)):
                self._last_progress[number] = (self.elapsed_s, slot.acked_through)
                is_waiting_to_send = True
        return is_waiting_to_send

    def _waits_to_be_sent(self, number: int, send_progress: SendProgress | None) -> bool:
        if send_progress is None:
            return False
        sent_bytes, waiting_bytes = send_progress
        queue_position = self._queue_positions[number]
        if (
            queue_position is None or sent_bytes < queue_position[1]
        ):  # owes from now on, or on another connection
            self._queue_positions[number] = (sent_bytes + waiting_bytes, sent_bytes)
            return waiting_bytes > 0
        self._queue_positions[number] = (queue_position[0], sent_bytes)
        return queue_position[1] + PROGRESS_BYTES_MIN <= sent_bytes < queue_position[0]

    @property
    def oldest_add_s(self) -> float:
        """How long the oldest unconfirmed add has waited, as of the last check; 0 if there is none."""
        return self._adds_elapsed_s - self._add_times[0][0] if self._add_times else 0.0

    def silent_slots(self, silence_s: float) -> list[int]:
        """Return the slots that owe acknowledgements and have sent none for ``silence_s``.

        The last check decides.
        """
        return [
            number
            for number, (since, _) in enumerate(self._last_progress)
            if self.elapsed_s - since >= silence_s
        ]

    def reset(self, slot: int) -> None:
        """Restart the timer of a slot that has a new bookie or stream."""
        self._last_progress[slot] = (self.elapsed_s, self._pending_adds.slots[slot].acked_through)
        self._queue_positions[slot] = None
