"""What a process does for each of its thousands of logs, done by one task for all of them.

A task a log that is woken for each burst costs several times what it does when it is awake; so does a timer
a log. `Turn`: what is due soon is done together, once a turn of the loop. `Rounds`: who has something to be
looked at is looked at every so often, by one timer, and costs nothing while it has not.

What breaks in a call is its owner's, and stops none of the others.
"""

from collections import deque
from collections.abc import Callable

import trio

TURN_BYTES_MAX = 1024 * 1024
"""What is handed on in one turn of the loop; the rest goes in the next ones, in order."""
CALL_BYTES_MIN = 8 * 1024
"""What a call counts at least: 128 of them a turn."""
LOOKED_AT_A_TURN = 256


class Due:
    """What one owner has to do in a `Turn`, made once and put there any number of times.

    ``call`` is synchronous and returns how many bytes it handed on; ``broken`` gets what it raised.
    """

    __slots__ = ("_turn", "broken", "call", "waits")

    def __init__(
        self, turn: "Turn", call: Callable[[], int], broken: Callable[[Exception], None]
    ) -> None:
        self._turn = turn
        self.call = call
        self.broken = broken
        self.waits = False
        """Is it due, and not yet done?"""

    def soon(self) -> None:
        """Have it done when those have run who are to run in this turn of the loop."""
        if not self.waits:
            self.waits = True
            self._turn.put(self)


class Turn:
    """Calls that are due, done in the order in which they came to be. `run` must be running."""

    def __init__(self) -> None:
        self._due: deque[Due] = deque()
        self._wake = trio.Event()

    def put(self, due: Due) -> None:
        """For `Due.soon`."""
        if not self._due:
            self._wake.set()
        self._due.append(due)

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        due = self._due
        while True:
            await self._wake.wait()
            while due:
                self._do(len(due))  # what these calls make due is the next turn's
                if due:
                    await trio.lowlevel.checkpoint()
            self._wake = trio.Event()

    def _do(self, number: int) -> None:
        spent = 0
        for _ in range(number):
            one = self._due.popleft()
            one.waits = False
            try:
                spent += max(one.call(), CALL_BYTES_MIN)
            except Exception as error:
                one.broken(error)
            if spent >= TURN_BYTES_MAX:
                return


class Round:
    """What one owner wants to be looked at for. ``call`` says whether it is to be looked at again."""

    __slots__ = ("broken", "call")

    def __init__(self, call: Callable[[], bool], broken: Callable[[Exception], None]) -> None:
        self.call = call
        self.broken = broken


class Rounds:
    """Looks at whoever has joined, every ``interval_s``, until there is nothing more to look for."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._joined: dict[Round, None] = {}
        self._any = trio.Event()

    def join(self, one: Round) -> None:
        """Look at it in the next round, and in each after it for which it says so. Idempotent."""
        if not self._joined:
            self._any.set()
        self._joined[one] = None

    def leave(self, one: Round) -> None:
        """Look at it no more. Idempotent."""
        self._joined.pop(one, None)

    async def run(self) -> None:
        """Go round, until cancelled."""
        joined = self._joined
        while True:
            await self._any.wait()
            self._any = trio.Event()
            while joined:
                await trio.sleep(self._interval_s)
                for count, one in enumerate(tuple(joined), 1):
                    if one in joined:
                        self._look(one)
                    if count % LOOKED_AT_A_TURN == 0:
                        await trio.lowlevel.checkpoint()

    def _look(self, one: Round) -> None:
        del self._joined[one]  # who is looked at may join again by what is found
        try:
            again = one.call()
        except Exception as error:
            one.broken(error)
        else:
            if again:
                self._joined[one] = None
