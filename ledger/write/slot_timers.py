"""How long a writer's adds and slots have been waiting, by a clock of its own (pure).

The clock goes on by what lies between two sweeps, and by no more than should: whoever sweeps late was
stalled itself, and nobody else is to blame for that time (H25). Nor is a bookie for the time in which what
it is to acknowledge waits in this process behind the adds of other ledgers, while it takes those: it
owes an ack once all is sent that stood in the connection's queue when it was first seen to owe it.
"""

from collections import deque
from collections.abc import Callable

from .pending_adds import PendingAdds

PROGRESS_BYTES_MIN = 64 * 1024
"""From one sweep to the next: a queue that is taken more slowly excuses nobody, so that whoever takes a byte
now and then is silent in the end like one who takes none."""

SendProgress = tuple[int, int]
"""Of a connection: bytes sent since it began, bytes that wait to be sent."""


class SlotTimers:
    """Told of the time a few times a second; seconds everywhere."""

    def __init__(self, pending_adds: PendingAdds) -> None:
        self.elapsed_s = 0.0
        """The writer's own time."""
        self._pending_adds = pending_adds
        self._checked_at = 0.0
        self._add_times: deque[tuple[float, int]] = deque()  # (clock, last entry pushed by then)
        self._adds_elapsed_s = 0.0  # as the clock, without the time in which adds wait to be sent
        size = pending_adds.striping.ensemble_size
        self._last_progress: list[tuple[float, int]] = [(0.0, -1)] * size
        self._queue_positions: list[tuple[int, int] | None] = [
            None
        ] * size  # (sent up to there, sent by now)

    def start(self, now: float) -> None:
        """Sweeps begin."""
        self._checked_at = now

    def on_timer(
        self, now: float, interval_s: float, send_progress: Callable[[int], SendProgress | None]
    ) -> None:
        """A sweep, ``interval_s`` after another unless this process was late itself.

        ``leaving`` is asked for the connections of slots that owe acks; None: there is none.
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
        """Note who has moved; does anything that a slot owes still wait to be sent, and is it going on?"""
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
        ):  # owes since now, or on another connection
            self._queue_positions[number] = (sent_bytes + waiting_bytes, sent_bytes)
            return waiting_bytes > 0
        self._queue_positions[number] = (queue_position[0], sent_bytes)
        return queue_position[1] + PROGRESS_BYTES_MIN <= sent_bytes < queue_position[0]

    @property
    def oldest_add_s(self) -> float:
        """How long the oldest add that is not confirmed has waited, seen by sweeps; 0 for none."""
        return self._adds_elapsed_s - self._add_times[0][0] if self._add_times else 0.0

    def silent_slots(self, silence_s: float) -> list[int]:
        """Slots that owe acks and have sent none for so long, by the last sweep."""
        return [
            number
            for number, (since, _) in enumerate(self._last_progress)
            if self.elapsed_s - since >= silence_s
        ]

    def reset(self, slot: int) -> None:
        """The slot begins anew: it owes nothing from before."""
        self._last_progress[slot] = (self.elapsed_s, self._pending_adds.slots[slot].acked_through)
        self._queue_positions[slot] = None
