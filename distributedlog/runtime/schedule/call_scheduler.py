"""One task and one timer for the work of thousands of logs in a process.

A task per log that wakes for each burst costs several times as much as its work; so does a timer per log.

- `CallScheduler` runs due calls together, once per event-loop iteration, or once per batching interval while
  many owners are busy.
- `PeriodicChecks` runs the registered checks at a fixed interval with one timer. An owner without a check
  costs nothing.

An error in a call is passed to its owner, and does not stop the other calls.
"""

from collections import deque
from collections.abc import Callable
from math import inf

import trio

BATCH_BYTES_MAX = 1024 * 1024
"""The bytes that are sent in one event-loop iteration. The remaining calls run in the next ones, in order."""
CALL_BYTES_MIN = 8 * 1024
"""The number of bytes that a call counts as at least, so at most 128 calls run per iteration."""
BATCH_INTERVAL_S = 0.002
"""The batching interval: the time between the starts of two batches while many owners are busy. A request to
three bookies, with its syncs and answers, costs about the same for one entry as for forty."""
BUSY_OWNERS_MIN = 32
"""This many different owners within `LOAD_SPAN_S` count as many. With fewer, a batch would combine little."""
CROWD_BATCH_INTERVAL_S = 0.004
CROWD_OWNERS_MIN = 128
CROWD_BYTES_MAX = 2 * 1024
"""With at least `CROWD_OWNERS_MIN` owners and no more bytes than this per call on average, the batching
interval is longer.

It halves the number of commits at each bookie and saves a fifth of their CPU. Owners with larger calls gain
nothing from it. Calls for LACs that readers wait for count no bytes and do not cause it.
"""
LOAD_SPAN_S = 0.010
CHECKS_PER_TURN = 256


def _nothing() -> None:
    """Do nothing, for schedulers that do not send calls together."""


class ScheduledCall:
    """The work of one owner in a `CallScheduler`, created once and scheduled any number of times.

    ``call`` is synchronous and returns the number of bytes that it sent. ``on_error`` receives its exception.
    """

    __slots__ = ("_scheduler", "call", "is_due", "last_span", "on_error")

    def __init__(
        self,
        scheduler: "CallScheduler",
        call: Callable[[], int],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._scheduler = scheduler
        self.call = call
        self.on_error = on_error
        self.is_due = False
        """Whether the call is scheduled and has not run yet."""
        self.last_span = -1
        """The number of the last period of `LOAD_SPAN_S` in which the call ran."""

    def schedule(self) -> None:
        """Run the call at the end of this event-loop iteration, or with the next batch."""
        if not self.is_due:
            self.is_due = True
            due = self._scheduler.due
            if not due:
                self._scheduler.wake()
            due.append(self)


class CallScheduler:
    """Run due calls in the order in which they were scheduled. `run` must be running.

    ``defer_sends`` and ``send_deferred`` are called before and after several calls, so that their frames are
    sent together.
    """

    def __init__(
        self,
        defer_sends: Callable[[], None] = _nothing,
        send_deferred: Callable[[], None] = _nothing,
    ) -> None:
        self.due: deque[ScheduledCall] = deque()
        """The due calls. `ScheduledCall.schedule` appends to it."""
        self._defer_sends = defer_sends
        self._send_deferred = send_deferred
        self._wake_event = trio.Event()
        self._span_number = 0
        self._span_ends = -inf
        self._owners_in_span = 0
        """The number of owners whose calls ran in this period."""
        self.is_busy = False
        """Whether many owners had calls in the previous period."""
        self._batch_interval_s = BATCH_INTERVAL_S
        self._calls_in_span = self._bytes_in_span = 0
        """The number of calls in this period, and of the bytes that they sent."""

    def wake(self) -> None:
        """Wake `run`, because a call is due."""
        self._wake_event.set()

    async def run(self) -> None:
        """Run due calls until cancelled."""
        due_calls = self.due
        while True:
            await self._wake_event.wait()
            while due_calls:
                started_at = trio.current_time()
                self._update_load(started_at)
                all_done = self._run_calls(
                    len(due_calls)
                )  # calls that these calls schedule run in the next iteration
                if all_done and self.is_busy:
                    await trio.sleep_until(started_at + self._batch_interval_s)
                elif due_calls:
                    await trio.lowlevel.checkpoint()
            self._wake_event = trio.Event()

    def _update_load(self, now: float) -> None:
        if now >= self._span_ends:
            # A period that ended long ago does not describe the present load.
            self.is_busy = (
                self._owners_in_span >= BUSY_OWNERS_MIN and now < self._span_ends + LOAD_SPAN_S
            )
            sends_little = 0 < self._bytes_in_span <= self._calls_in_span * CROWD_BYTES_MAX
            is_crowd = sends_little and self._owners_in_span >= CROWD_OWNERS_MIN
            self._batch_interval_s = CROWD_BATCH_INTERVAL_S if is_crowd else BATCH_INTERVAL_S
            self._owners_in_span = self._calls_in_span = self._bytes_in_span = 0
            self._span_number += 1
            self._span_ends = now + LOAD_SPAN_S

    def _run_calls(self, count: int) -> bool:
        """Run this many calls. Return False if they exceeded the limit of one iteration."""
        if count > 1:
            self._defer_sends()
        due_calls, span = self.due, self._span_number
        charged_bytes = calls = handed_on_bytes = 0
        try:
            for _ in range(count):
                if charged_bytes >= BATCH_BYTES_MAX:
                    return False
                scheduled = due_calls.popleft()
                scheduled.is_due = False
                if scheduled.last_span != span:
                    scheduled.last_span = span
                    self._owners_in_span += 1
                size, call = CALL_BYTES_MIN, scheduled.call
                try:
                    size = call()
                except Exception as error:
                    scheduled.on_error(error)
                calls += 1
                handed_on_bytes += size
                charged_bytes += size if size > CALL_BYTES_MIN else CALL_BYTES_MIN
            return True
        finally:
            self._calls_in_span += calls
            self._bytes_in_span += handed_on_bytes
            if count > 1:
                self._send_deferred()


class PeriodicCheck:
    """The check of one owner. ``call`` returns whether to check again in the next round."""

    __slots__ = ("call", "on_error")

    def __init__(self, call: Callable[[], bool], on_error: Callable[[Exception], None]) -> None:
        self.call = call
        self.on_error = on_error


class PeriodicChecks:
    """Run registered checks every ``interval_s``, and stop the timer while there are none."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._checks: dict[PeriodicCheck, None] = {}
        self._has_checks = trio.Event()

    def add(self, check: PeriodicCheck) -> None:
        """Run a check in the next round, and then as long as it returns True. Idempotent."""
        if not self._checks:
            self._has_checks.set()
        self._checks[check] = None

    def remove(self, check: PeriodicCheck) -> None:
        """Remove a check. Idempotent."""
        self._checks.pop(check, None)

    async def run(self) -> None:
        """Run the checks until cancelled."""
        checks = self._checks
        while True:
            if not checks:  # otherwise, it was cancelled during a round and runs again
                await self._has_checks.wait()
            self._has_checks = trio.Event()
            while checks:
                await trio.sleep(self._interval_s)
                for count, check in enumerate(tuple(checks), 1):
                    if check in checks:
                        self._run_check(check)
                    if count % CHECKS_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()

    def _run_check(self, check: PeriodicCheck) -> None:
        del self._checks[check]  # the call may add the check again
        try:
            again = check.call()
        except Exception as error:
            check.on_error(error)
        else:
            if again:
                self._checks[check] = None
