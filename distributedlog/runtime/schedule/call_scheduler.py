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

TURN_BYTES_MAX = 1024 * 1024
"""What is handed on in one turn of the loop; the rest goes in the next ones, in order."""
CALL_BYTES_MIN = 8 * 1024
"""What a call counts at least: 128 of them a turn."""
BEAT_S = 0.002
"""Between the beginnings of two turns while many are busy. Whatever is sent, to three bookies that sync it
and answer, costs as much for one entry as for forty."""
BUSY_OWNERS = 32
"""So many different owners within `BUSY_S` are many: fewer find little company in a beat."""
CROWD_BEAT_S = 0.004
CROWD_OWNERS = 128
CROWD_BYTES_MAX = 2 * 1024
"""Of so many, who send no more than that a call on average, a beat is longer: half as many commits at each
bookie, a fifth of what its CPU does for them. Who sends more has company enough of his own; LACs that readers
wait for, which count no bytes, are none of it."""
BUSY_S = 0.010
LOOKED_AT_A_TURN = 256


def _nothing() -> None:
    """Where nothing is sent together."""


class ScheduledCall:
    """What one owner has to do in a `CallScheduler`, made once and put there any number of times.

    ``call`` is synchronous and returns how many bytes it handed on; ``broken`` gets what it raised.
    """

    __slots__ = ("_turn", "broken", "call", "seen_in", "waits")

    def __init__(
        self, turn: "CallScheduler", call: Callable[[], int], broken: Callable[[Exception], None]
    ) -> None:
        self._turn = turn
        self.call = call
        self.broken = broken
        self.waits = False
        """Is it due, and not yet done?"""
        self.seen_in = -1
        """The last of the turn's spans of `BUSY_S` in which it was done."""

    def soon(self) -> None:
        """Have it done when those have run who are to run in this turn of the loop, or with the next beat."""
        if not self.waits:
            self.waits = True
            due = self._turn.due
            if not due:
                self._turn.wake()
            due.append(self)


class CallScheduler:
    """Calls that are due, done in the order in which they came to be. `run` must be running.

    ``gather`` and ``send_gathered`` are called before and after several: what they send leaves together.
    """

    def __init__(
        self, gather: Callable[[], None] = _nothing, send_gathered: Callable[[], None] = _nothing
    ) -> None:
        self.due: deque[ScheduledCall] = deque()
        """For `ScheduledCall.soon`."""
        self._gather = gather
        self._send_gathered = send_gathered
        self._wake = trio.Event()
        self._span = 0
        self._span_ends = -inf
        self._owners = 0
        """Those that were done in this span."""
        self.many = False
        """Were there many in the span before?"""
        self._beat_s = BEAT_S
        self._calls = self._bytes = 0
        """In this span, and what they handed on."""

    def wake(self) -> None:
        """Something is due."""
        self._wake.set()

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        due = self.due
        while True:
            await self._wake.wait()
            while due:
                began = trio.current_time()
                self._look_who_is_busy(began)
                whole = self._do(len(due))  # what these calls make due is the next turn's
                if whole and self.many:
                    await trio.sleep_until(began + self._beat_s)
                elif due:
                    await trio.lowlevel.checkpoint()
            self._wake = trio.Event()

    def _look_who_is_busy(self, now: float) -> None:
        if now >= self._span_ends:
            # A span that nobody ended in time says nothing of now.
            self.many = self._owners >= BUSY_OWNERS and now < self._span_ends + BUSY_S
            small = 0 < self._bytes <= self._calls * CROWD_BYTES_MAX
            crowd = small and self._owners >= CROWD_OWNERS
            self._beat_s = CROWD_BEAT_S if crowd else BEAT_S
            self._owners = self._calls = self._bytes = 0
            self._span += 1
            self._span_ends = now + BUSY_S

    def _do(self, number: int) -> bool:
        """Do that many; False: those were too much for one turn."""
        if number > 1:
            self._gather()
        due, span = self.due, self._span
        spent = calls = handed_on = 0
        try:
            for _ in range(number):
                if spent >= TURN_BYTES_MAX:
                    return False
                one = due.popleft()
                one.waits = False
                if one.seen_in != span:
                    one.seen_in = span
                    self._owners += 1
                size, call = CALL_BYTES_MIN, one.call
                try:
                    size = call()
                except Exception as error:
                    one.broken(error)
                calls += 1
                handed_on += size
                spent += size if size > CALL_BYTES_MIN else CALL_BYTES_MIN
            return True
        finally:
            self._calls += calls
            self._bytes += handed_on
            if number > 1:
                self._send_gathered()


class PeriodicCheck:
    """What one owner wants to be looked at for. ``call`` says whether it is to be looked at again."""

    __slots__ = ("broken", "call")

    def __init__(self, call: Callable[[], bool], broken: Callable[[Exception], None]) -> None:
        self.call = call
        self.broken = broken


class PeriodicChecks:
    """Looks at whoever has joined, every ``interval_s``, until there is nothing more to look for."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._joined: dict[PeriodicCheck, None] = {}
        self._any = trio.Event()

    def join(self, one: PeriodicCheck) -> None:
        """Look at it in the next round, and in each after it for which it says so. Idempotent."""
        if not self._joined:
            self._any.set()
        self._joined[one] = None

    def leave(self, one: PeriodicCheck) -> None:
        """Look at it no more. Idempotent."""
        self._joined.pop(one, None)

    async def run(self) -> None:
        """Go round, until cancelled."""
        joined = self._joined
        while True:
            if not joined:  # else it was ended among them, and is run again
                await self._any.wait()
            self._any = trio.Event()
            while joined:
                await trio.sleep(self._interval_s)
                for count, one in enumerate(tuple(joined), 1):
                    if one in joined:
                        self._look(one)
                    if count % LOOKED_AT_A_TURN == 0:
                        await trio.lowlevel.checkpoint()

    def _look(self, one: PeriodicCheck) -> None:
        del self._joined[one]  # who is looked at may join again by what is found
        try:
            again = one.call()
        except Exception as error:
            one.broken(error)
        else:
            if again:
                self._joined[one] = None
