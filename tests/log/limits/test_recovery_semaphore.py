"""Many logs whose ends are made certain by one process: a few at once, none of them for the others' time."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from distributedlog.log.format.record import LogRecord
from distributedlog.log.limits.recovery_semaphore import RECOVERIES_MAX, RecoverySemaphore
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    NamespaceFull,
    OverQuota,
    RecoveryIncomplete,
    TooBusy,
    WriterFenced,
)
from tests.ledger.model_bookie import model_cluster
from tests.log.test_zombies import process

LOGS = 60


class Attempts:
    """What came of recoveries that take a while each."""

    def __init__(self, at_once: int) -> None:
        self.turns = RecoverySemaphore(at_once)
        self.running = self.most = 0
        self.ended: list[tuple[int, float, str]] = []

    async def recover(self, number: int, takes_s: float, error: DistributedLogError | None) -> None:
        async def attempt() -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await trio.sleep(takes_s)
            finally:
                self.running -= 1
            if error is not None:
                raise error

        try:
            await self.turns.run_with_retries(attempt, name=f"l{number}", timeout_s=30)
            outcome = "done"
        except DistributedLogError as raised:
            outcome = type(raised).__name__
        self.ended.append((number, trio.current_time(), outcome))


async def test_a_few_at_once_in_the_order_they_came(autojump_clock: MockClock) -> None:
    """The last one waits for 250 s of others' recoveries, and has its own 30 s then."""
    attempts = Attempts(2)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(attempts.recover, number, 5.0, None)
            await trio.sleep(0.001)

    assert attempts.most == 2
    assert [number for number, _, _ in attempts.ended] == list(range(100))
    assert {outcome for _, _, outcome in attempts.ended} == {"done"}
    assert attempts.ended[-1][1] == pytest.approx(250, abs=1)


async def test_when_nobody_gets_done_all_give_up_in_time(autojump_clock: MockClock) -> None:
    """The bookies are away: a thousand waits for nothing do not take a thousand times as long."""
    attempts = Attempts(2)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(attempts.recover, number, 1000.0, None)

    assert {outcome for _, _, outcome in attempts.ended} == {"RecoveryIncomplete"}
    assert attempts.ended[-1][1] <= 61


async def test_what_kept_it_from_it_is_said_where_that_is_no_bookie(
    autojump_clock: MockClock,
) -> None:
    """A namespace without room is nothing that a recovery could be short of."""
    attempts = Attempts(1)
    await attempts.recover(1, 1.0, OverQuota("namespace ns has 80 keys, allowed are 80"))
    assert attempts.ended[0][2] == "OverQuota"


async def test_a_log_that_cannot_be_recovered_holds_up_no_other(autojump_clock: MockClock) -> None:
    """It has no turn in its pauses, gives up after its own time, and the others' pass it by."""
    attempts = Attempts(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempts.recover, -1, 1.0, RecoveryIncomplete("two of three are away"))
        for number in range(20):
            await trio.sleep(0.01)
            nursery.start_soon(attempts.recover, number, 1.0, None)

    good = [at for number, at, outcome in attempts.ended if outcome == "done"]
    assert len(good) == 20
    assert max(good) <= 30
    assert attempts.ended[-1][0] == -1
    assert attempts.ended[-1][2] == "RecoveryIncomplete"


async def test_what_will_not_pass_is_raised_at_once_and_frees_the_turn(
    autojump_clock: MockClock,
) -> None:
    attempts = Attempts(1)
    await attempts.recover(0, 0.0, WriterFenced("taken over"))
    await attempts.recover(1, 0.0, NamespaceFull("has 80 keys, allowed are 80"))
    await attempts.recover(2, 0.0, None)
    said = [outcome for _, _, outcome in attempts.ended]
    assert said == ["WriterFenced", "NamespaceFull", "done"]
    assert attempts.ended[-1][1] < 0.1


@pytest.mark.parametrize("cancel_at_s", [0.5, 1.0])
async def test_who_is_cancelled_in_the_queue_leaves_it(
    autojump_clock: MockClock, cancel_at_s: float
) -> None:
    """Also in the very turn in which it would have been its turn."""
    attempts = Attempts(1)
    async with trio.open_nursery() as nursery:

        async def cancelled() -> None:
            with trio.move_on_after(cancel_at_s):
                await attempts.recover(1, 1.0, None)

        nursery.start_soon(attempts.recover, 0, 1.0, None)
        await trio.sleep(0.001)
        nursery.start_soon(cancelled)
        await trio.sleep(0.001)
        nursery.start_soon(attempts.recover, 2, 1.0, None)
    assert [number for number, _, _ in attempts.ended if number != 1] == [0, 2]
    assert attempts.ended[-1][1] <= 3.1
    await attempts.recover(3, 0.0, None)


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on() -> None:
    turns = RecoverySemaphore(1)
    assert await turns.acquire(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.acquire, 1)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        turns.release(is_final=True)
    with trio.fail_after(1):
        assert await turns.acquire(1)


async def test_many_logs_are_taken_over_from_bookies_with_small_budgets(
    autojump_clock: MockClock,
) -> None:
    """Each bookie answers as many questions at once as the turns may ask, where an open log asks two."""
    async with model_cluster(3) as cluster:
        async with process(cluster, "alpha", 1) as (a, _):
            for number in range(LOGS):
                writer = await a.open_log(f"l{number}").open_writer()
                await writer.write(LogRecord(1, b"of alpha"))
        busy_before = 0
        for node in cluster.pool.nodes.values():
            node.asking_max = 2 * RECOVERIES_MAX
            node.read_delay_s = 1.0
            busy_before += node.busy
        errors: list[DistributedLogError] = []
        last_txids: list[int] = []
        async with process(cluster, "beta", 2) as (b, _):

            async def take(number: int) -> None:
                try:
                    async with b.open_log(f"l{number}").open_writer() as taken:
                        last_txids.append(taken.last_txid)
                        await taken.write(LogRecord(2, b"of beta"))
                except DistributedLogError as error:
                    errors.append(error)

            async with trio.open_nursery() as nursery:
                for number in range(LOGS):
                    nursery.start_soon(take, number)

        assert errors == []
        assert last_txids == [1] * LOGS
        assert sum(node.busy for node in cluster.pool.nodes.values()) == busy_before == 0


async def test_a_recovery_asks_a_busy_bookie_again(autojump_clock: MockClock) -> None:
    """Others keep it busy for a few seconds: longer and longer pauses, within the deadline."""
    async with model_cluster(3) as cluster:
        writer = await (await cluster.client()).create()
        writer.add([b"x"], 1)
        await trio.sleep(1)
        nodes = list(cluster.pool.nodes.values())
        for node in nodes:
            node.asking_max = 0

        async def relax() -> None:
            await trio.sleep(3)
            for node in nodes:
                node.asking_max = 2

        async with trio.open_nursery() as nursery:
            nursery.start_soon(relax)
            closed = await (await cluster.client()).recover(writer.ledger_id)

        assert closed.last_entry == 0
        assert 3 * 3 <= sum(node.busy for node in nodes) <= 3 * 8


async def test_a_busy_store_is_asked_again_for_a_claim(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster, process(cluster, "alpha", 1) as (a, gate):
        await a.create_log("l")
        original = gate.transact
        refusals = 3

        async def busy(transaction):  # type: ignore[no-untyped-def]
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise TooBusy("bytes wait for a quorum")
            return await original(transaction)

        gate.transact = busy  # type: ignore[method-assign]
        async with a.open_log("l").open_writer(wait_s=0) as writer:
            await writer.write(LogRecord(1, b"x"))
        refusals = 1_000_000
        began = trio.current_time()
        with pytest.raises(TooBusy):
            await a.open_log("l").open_writer(wait_s=0)
        assert trio.current_time() - began <= 6
