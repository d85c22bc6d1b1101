"""What a process does for each of its thousands of logs, done by one task for all of them.

A task a log that is woken for each burst costs several times what it does when it is awake; so does a timer
a log. `CallScheduler`: what is due soon is done together, once a turn of the loop, or once a beat while many
are busy. `PeriodicChecks`: who has something to be looked at is looked at every so often, by one timer, and
costs nothing while it has not.

What breaks in a call is its owner's, and stops none of the others.
"""

from collections import deque
from collections.abc import Callable
from math import inf

import trio

BATCH_BYTES_MAX = 1024 * 1024
"""What is handed on in one turn of the loop; the rest goes in the next ones, in order."""
CALL_BYTES_MIN = 8 * 1024
"""What a call counts at least: 128 of them a turn."""
BATCH_INTERVAL_S = 0.002
"""Between the beginnings of two turns while many are busy. Whatever is sent, to three bookies that sync it
and answer, costs as much for one entry as for forty."""
BUSY_OWNERS_MIN = 32
"""So many different owners within `LOAD_SPAN_S` are many: fewer find little company in a beat."""
CROWD_BATCH_INTERVAL_S = 0.004
CROWD_OWNERS_MIN = 128
CROWD_BYTES_MAX = 2 * 1024
"""Of so many, who send no more than that a call on average, a beat is longer: half as many commits at each
bookie, a fifth of what its CPU does for them. Who sends more has company enough of his own; LACs that readers
wait for, which count no bytes, are none of it."""
LOAD_SPAN_S = 0.010
CHECKS_PER_TURN = 256


def _nothing() -> None:
    """Where nothing is sent together."""


class ScheduledCall:
    """What one owner has to do in a `CallScheduler`, made once and put there any number of times.

    ``call`` is synchronous and returns how many bytes it handed on; ``broken`` gets what it raised.
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
        """Is it due, and not yet done?"""
        self.last_span = -1
        """The last of the turn's spans of `LOAD_SPAN_S` in which it was done."""

    def schedule(self) -> None:
        """Have it done when those have run who are to run in this turn of the loop, or with the next beat."""
        if not self.is_due:
            self.is_due = True
            due = self._scheduler.due
            if not due:
                self._scheduler.wake()
            due.append(self)


class CallScheduler:
    """Calls that are due, done in the order in which they came to be. `run` must be running.

    ``gather`` and ``send_gathered`` are called before and after several: what they send leaves together.
    """

    def __init__(
        self, gather: Callable[[], None] = _nothing, send_gathered: Callable[[], None] = _nothing
    ) -> None:
        self.due: deque[ScheduledCall] = deque()
        """For `ScheduledCall.schedule`."""
        self._gather = gather
        self._send_gathered = send_gathered
        self._wake_event = trio.Event()
        self._span_number = 0
        self._span_ends = -inf
        self._owners_in_span = 0
        """Those that were done in this span."""
        self.is_busy = False
        """Were there many in the span before?"""
        self._batch_interval_s = BATCH_INTERVAL_S
        self._calls_in_span = self._bytes_in_span = 0
        """In this span, and what they handed on."""

    def wake(self) -> None:
        """Something is due."""
        self._wake_event.set()

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        due_calls = self.due
        while True:
            await self._wake_event.wait()
            while due_calls:
                started_at = trio.current_time()
                self._update_load(started_at)
                all_done = self._run_calls(
                    len(due_calls)
                )  # what these calls make due is the next turn's
                if all_done and self.is_busy:
                    await trio.sleep_until(started_at + self._batch_interval_s)
                elif due_calls:
                    await trio.lowlevel.checkpoint()
            self._wake_event = trio.Event()

    def _update_load(self, now: float) -> None:
        if now >= self._span_ends:
            # A span that nobody ended in time says nothing of now.
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
        """Do that many; False: those were too much for one turn."""
        if count > 1:
            self._gather()
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
                self._send_gathered()


class PeriodicCheck:
    """What one owner wants to be looked at for. ``call`` says whether it is to be looked at again."""

    __slots__ = ("call", "on_error")

    def __init__(self, call: Callable[[], bool], on_error: Callable[[Exception], None]) -> None:
        self.call = call
        self.on_error = on_error


class PeriodicChecks:
    """Looks at whoever has joined, every ``interval_s``, until there is nothing more to look for."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._checks: dict[PeriodicCheck, None] = {}
        self._has_checks = trio.Event()

    def add(self, check: PeriodicCheck) -> None:
        """Look at it in the next round, and in each after it for which it says so. Idempotent."""
        if not self._checks:
            self._has_checks.set()
        self._checks[check] = None

    def remove(self, check: PeriodicCheck) -> None:
        """Look at it no more. Idempotent."""
        self._checks.pop(check, None)

    async def run(self) -> None:
        """Go round, until cancelled."""
        checks = self._checks
        while True:
            if not checks:  # else it was ended among them, and is run again
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
        del self._checks[check]  # who is looked at may join again by what is found
        try:
            again = check.call()
        except Exception as error:
            check.on_error(error)
        else:
            if again:
                self._checks[check] = None
