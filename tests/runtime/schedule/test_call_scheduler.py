"""One task for what thousands of logs have to do: `distributedlog/runtime/schedule/call_scheduler.py`."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.schedule.call_scheduler import (
    BATCH_BYTES_MAX,
    BATCH_INTERVAL_S,
    BUSY_OWNERS_MIN,
    CALL_BYTES_MIN,
    CROWD_BATCH_INTERVAL_S,
    CROWD_BYTES_MAX,
    CROWD_OWNERS_MIN,
    LOAD_SPAN_S,
    CallScheduler,
    PeriodicCheck,
    PeriodicChecks,
    ScheduledCall,
)

A_TURN = BATCH_BYTES_MAX // CALL_BYTES_MIN


class Calls:
    """Notes who was called, and what broke."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.broken: list[Exception] = []

    def due(self, turn: CallScheduler, name: object, size: int = 0) -> ScheduledCall:
        def call() -> int:
            self.done.append(name)
            return size

        return ScheduledCall(turn, call, self.broken.append)

    def round(self, name: object, again: Callable[[], bool]) -> PeriodicCheck:
        def call() -> bool:
            self.done.append(name)
            return again()

        return PeriodicCheck(call, self.broken.append)


async def turns(number: int) -> None:
    for _ in range(number):
        await trio.testing.wait_all_tasks_blocked()


async def test_what_is_due_is_done_once_in_order(nursery: trio.Nursery) -> None:
    turn, calls = CallScheduler(), Calls()
    nursery.start_soon(turn.run)
    dues = [calls.due(turn, n) for n in range(5)]

    for one in (*dues, *reversed(dues)):
        one.schedule()
    assert calls.done == []  # whoever is to run in this turn of the loop runs first
    await turns(1)

    assert calls.done == [0, 1, 2, 3, 4]
    dues[3].schedule()
    await turns(1)
    assert calls.done[5:] == [3]


async def test_a_turn_hands_on_so_many_bytes_and_the_rest_in_order_in_the_next(
    nursery: trio.Nursery,
) -> None:
    """H166: one log at full speed keeps the loop from nobody, and the others lose no turn to it."""
    turn, calls = CallScheduler(), Calls()
    nursery.start_soon(turn.run)
    full = calls.due(turn, "full", BATCH_BYTES_MAX)
    lone = [calls.due(turn, n) for n in range(3 * A_TURN)]
    seen: list[int] = []

    async def other() -> None:
        while len(calls.done) <= len(lone):
            seen.append(len(calls.done))
            await trio.lowlevel.checkpoint()
        seen.append(len(calls.done))

    full.schedule()
    for one in lone:
        one.schedule()
    nursery.start_soon(other)
    await turns(1)

    assert calls.done == ["full", *range(3 * A_TURN)]
    steps = [after - before for before, after in pairwise(seen)]
    assert (
        max(steps) <= 2 * A_TURN
    )  # within two turns another task runs, whose place in a turn is chance


async def test_what_a_call_makes_due_is_the_next_turns(nursery: trio.Nursery) -> None:
    """H166: a log that always has more lets the others, and the loop, go on."""
    turn = CallScheduler()
    done: list[str] = []

    def more() -> int:
        done.append("more")
        if len(done) < 9:
            again.schedule()
        return 0

    def lone() -> int:
        done.append("lone")
        return 0

    again, other = ScheduledCall(turn, more, print), ScheduledCall(turn, lone, print)
    nursery.start_soon(turn.run)
    again.schedule()
    other.schedule()
    await turns(1)

    assert done[:3] == ["more", "lone", "more"]
    assert len(done) == 9


async def test_what_breaks_is_its_owners_and_the_others_go_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H166, in a turn and in a round."""
    turn, rounds, calls = CallScheduler(), PeriodicChecks(0.001), Calls()
    nursery.start_soon(turn.run)
    nursery.start_soon(rounds.run)

    def breaks() -> bool:
        raise AssertionError("planted")

    dues = [
        calls.due(turn, 1),
        ScheduledCall(turn, breaks, calls.broken.append),
        calls.due(turn, 2),
    ]
    for one in dues:
        one.schedule()
    await turns(1)
    assert (calls.done, [str(one) for one in calls.broken]) == ([1, 2], ["planted"])

    for joins in (
        calls.round(3, bool),
        PeriodicCheck(breaks, calls.broken.append),
        calls.round(4, bool),
    ):
        rounds.add(joins)
    await trio.sleep(0.01)
    assert calls.done == [1, 2, 3, 4]
    assert [str(one) for one in calls.broken] == ["planted", "planted"]
    dues[1].call = calls.due(turn, "again").call
    dues[1].schedule()
    await turns(1)
    assert calls.done[-1] == "again"  # what broke once is no longer in the way


class Beats:
    """Owners that are due one after the other, and what each waited, by virtual time."""

    def __init__(self, turn: CallScheduler, owners: int, size: int = 100) -> None:
        self.size = size
        self.due_at = [0.0] * owners
        self.done_at: list[float] = []
        self.waited_s: list[float] = []
        self.owners = [ScheduledCall(turn, self._call(n), print) for n in range(owners)]

    def _call(self, number: int) -> Callable[[], int]:
        def call() -> int:
            now = trio.current_time()
            self.waited_s.append(now - self.due_at[number])
            if not self.done_at or now > self.done_at[-1]:
                self.done_at.append(now)
            return self.size

        return call

    async def go(self, calls: int, every_s: float) -> None:
        """The owners in turns, for so many calls."""
        self.done_at, self.waited_s = [], []
        for count in range(calls):
            number = count % len(self.owners)
            self.due_at[number] = trio.current_time()
            self.owners[number].schedule()
            await trio.sleep(every_s)


@pytest.mark.parametrize(
    ("busy", "size", "beat_s"),
    [
        (BUSY_OWNERS_MIN, 100, BATCH_INTERVAL_S),
        (CROWD_OWNERS_MIN, CROWD_BYTES_MAX, CROWD_BATCH_INTERVAL_S),
        (CROWD_OWNERS_MIN, CROWD_BYTES_MAX + 1, BATCH_INTERVAL_S),
        (CROWD_OWNERS_MIN, 0, BATCH_INTERVAL_S),
    ],
)
async def test_many_busy_owners_share_beats(
    busy: int, size: int, beat_s: float, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Forty entries cost little more than one: one of many waits for the others, for a beat at most, which is
    longer where there is a crowd of lone records."""
    turn = CallScheduler()
    nursery.start_soon(turn.run)
    many = Beats(turn, 2 * busy, size)
    every_s = LOAD_SPAN_S / busy / 2

    await many.go(4 * busy, every_s)  # until it is seen that there are many
    await many.go(20 * busy, every_s)
    await trio.sleep(1)

    assert min(b - a for a, b in pairwise(many.done_at)) >= beat_s * 0.999
    assert beat_s * 0.8 < max(many.waited_s) <= beat_s * 1.001
    await many.go(2, beat_s / 4)  # after a rest nobody waits
    assert many.waited_s == [0, 0]


async def test_few_busy_owners_wait_for_nobody(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H167: a lone record waits for no company; nor do those of one log at full speed."""
    turn = CallScheduler()
    nursery.start_soon(turn.run)
    for owners in (1, 8, BUSY_OWNERS_MIN // 2):
        few = Beats(turn, owners)
        await few.go(1000, 0.0001)
        assert max(few.waited_s) == 0
    slow = Beats(turn, 1000)
    await slow.go(3000, 0.001)
    assert max(slow.waited_s) == 0


async def test_a_beat_hands_on_so_many_bytes_and_the_rest_without_a_wait(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H166: a beat is no bound of what is sent."""
    turn = CallScheduler()
    nursery.start_soon(turn.run)
    many = Beats(turn, 4 * A_TURN)
    await many.go(200, LOAD_SPAN_S / BUSY_OWNERS_MIN / 2)
    many.waited_s = []
    now = trio.current_time()
    for number, one in enumerate(many.owners):
        many.due_at[number] = now
        one.schedule()
    await trio.sleep(1)

    assert len(many.waited_s) >= len(many.owners)
    assert max(many.waited_s) <= BATCH_INTERVAL_S * 1.001


async def test_several_calls_of_a_turn_send_together_and_a_lone_one_by_itself(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """What breaks between does not keep the others' frames."""
    calls = Calls()
    turn = CallScheduler(lambda: calls.done.append("gather"), lambda: calls.done.append("send"))
    nursery.start_soon(turn.run)

    def breaks() -> int:
        raise AssertionError("planted")

    def worse(error: Exception) -> None:
        calls.done.append(str(error))

    for one in (calls.due(turn, 1), ScheduledCall(turn, breaks, worse), calls.due(turn, 2)):
        one.schedule()
    await turns(1)
    calls.due(turn, 3).schedule()
    await turns(1)

    assert calls.done == ["gather", 1, "planted", 2, "send", 3]


async def test_who_has_joined_is_looked_at_until_there_is_nothing_more(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """And with nobody there is no timer: an idle process sleeps."""
    rounds, calls = PeriodicChecks(2.0), Calls()
    nursery.start_soon(rounds.run)
    left = [0, 1]
    first = calls.round("a", lambda: bool(left.pop()))
    rounds.add(first)
    rounds.add(first)

    await trio.sleep(2.5)
    assert calls.done == ["a"]  # once, after a whole interval
    await trio.sleep(10)
    assert calls.done == ["a", "a"]

    second, third = calls.round("b", lambda: True), calls.round("c", lambda: True)
    rounds.add(second)
    rounds.add(third)
    rounds.remove(second)
    await trio.sleep(5)
    assert calls.done[2:] == ["c", "c"]
    rounds.remove(third)
    rounds.remove(third)
    await trio.sleep(100)
    assert calls.done[4:] == []
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


async def test_who_joins_or_leaves_within_a_round(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A look may end its owner, or begin another thing to look for."""
    rounds, calls = PeriodicChecks(1.0), Calls()
    nursery.start_soon(rounds.run)

    def leaves() -> bool:
        rounds.remove(second)
        return False

    def joins() -> bool:
        rounds.add(third)
        return False

    first, second = calls.round(1, leaves), calls.round(2, lambda: True)
    third = calls.round(3, joins)
    for one in (first, second, third):
        rounds.add(one)
    await trio.sleep(3.5)

    assert calls.done == [1, 3, 3, 3]
