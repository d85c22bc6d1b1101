"""Long polls end in time, whichever came first, and cost no timer while they wait."""

import trio
from trio.testing import MockClock

from distributedlog.bookie.ledgers.ledger_table import Ledger, LongPoll
from distributedlog.bookie.ledgers.long_poll import SWEEP_S, LongPolls
from distributedlog.runtime.interfaces.errors import DistributedLogError


class Owner:
    """A connection that notes when its polls end."""

    def __init__(self) -> None:
        self.ended: dict[int, float] = {}

    def on_poll_done(self, poll: LongPoll, error: DistributedLogError | None) -> None:
        assert error is None
        self.ended[poll.ident] = trio.current_time()

    def on_lac_advanced(self, poll: LongPoll) -> bool:
        return True


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop that were made for a timer."""

    timers = 0

    def after_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self.timers += 1


async def test_polls_end_in_time_whatever_the_order_they_came_in(
    autojump_clock: MockClock,
) -> None:
    waiters, owner, ledger = LongPolls(100), Owner(), Ledger(7)
    asked = [5.0, 1.0, 9.0, 1.01, 0.3, 7.5]
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiters.run)
        await trio.sleep(10)
        due = []
        for ident, wait_s in enumerate(asked):
            due.append(trio.current_time() + wait_s)
            waiters.add(LongPoll(owner, ident, ledger, b"", 0, 0, due[-1]))
            await trio.sleep(0.1)
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()

    for ident, deadline in enumerate(due):
        assert deadline <= owner.ended[ident] <= deadline + SWEEP_S + 1e-9
    assert waiters.waiting_count == 0
    assert ledger.long_polls == []
    assert turns.timers <= len(asked) + 2
