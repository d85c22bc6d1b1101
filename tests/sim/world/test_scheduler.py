"""The virtual run itself: time, walls, deadlocks, busy loops."""

import logging
import os
import random
import socket
import threading
import time
from functools import partial

import pytest
import trio
from trio._core import _run as trio_run

from distributedlog.log.interfaces.error_boundary import error_boundary
from distributedlog.runtime.interfaces.errors import WriteFailed
from distributedlog.testing.sim.world.isolation_guard import RealWorldTouched
from distributedlog.testing.sim.world.scheduler import (
    BusyLoop,
    Deadlock,
    OutOfTime,
    Simulation,
    check_trio,
)


def test_trio_has_the_private_names_that_the_scheduler_touches() -> None:
    """A trio release that moves them must fail here, not make runs differ silently."""
    check_trio()

    assert isinstance(trio_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert isinstance(trio_run._r, random.Random)


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_them_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio_run, name)

    with pytest.raises(RuntimeError, match=name):
        check_trio()


@pytest.mark.parametrize("disabled", [False, True])
def test_a_broken_rule_that_the_product_contains_fails_the_seed(disabled: bool) -> None:
    """It ended one log, the next writer went on, and the seed had passed."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL if disabled else logging.NOTSET)
    try:
        for error, fails in ((AssertionError("a rule"), True), (WriteFailed("no room"), False)):
            simulation = Simulation(1)
            simulation.run(partial(_contain, error))
            assert simulation.failures == ([error] if fails else [])
    finally:
        logging.disable(before)


async def _contain(error: Exception, _: Simulation) -> None:
    failed: list[Exception] = []
    with error_boundary("the writer of a log", failed.append):
        raise error
    assert failed


def test_time_jumps_exactly_to_the_next_deadline() -> None:
    seen: list[float] = []

    async def main(simulation: Simulation) -> None:
        simulation.call_at(0.3, lambda: seen.append(simulation.now))
        await trio.sleep_until(0.1)
        seen.append(trio.current_time())
        await trio.sleep_until(500.7)
        seen.append(trio.current_time())

    Simulation(1).run(main)

    assert seen == [0.1, 0.3, 500.7]


def test_tasks_run_in_an_order_that_the_seed_decides() -> None:
    def order(seed: int) -> list[int]:
        found: list[int] = []

        async def one(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                found.append(number)

        async def main(simulation: Simulation) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(one, number)

        Simulation(seed).run(main)
        return found

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_waiting_for_nothing_is_a_deadlock() -> None:
    simulation = Simulation(1, virtual_seconds_max=float("inf"))

    async def main(simulation: Simulation) -> None:
        await trio.sleep_forever()

    assert simulation.run(main) is None
    assert isinstance(simulation.failures[0], Deadlock)


def test_a_run_that_does_not_end_is_out_of_time() -> None:
    simulation = Simulation(1, virtual_seconds_max=5.0)

    async def main(simulation: Simulation) -> None:
        await trio.sleep(6.0)

    simulation.run(main)

    assert isinstance(simulation.failures[0], OutOfTime)


def test_a_loop_that_lets_no_time_pass_is_found() -> None:
    """H43f: a clock that jumps would hide it."""
    simulation = Simulation(1)
    simulation.steps_per_second_max = 2_000

    async def main(simulation: Simulation) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    simulation.run(main)

    assert isinstance(simulation.failures[0], BusyLoop)
    assert "main" in str(simulation.failures[0]) or "root" in str(simulation.failures[0])


def test_steps_are_counted_a_second_not_in_all() -> None:
    simulation = Simulation(1)
    simulation.steps_per_second_max = 2_000

    async def main(simulation: Simulation) -> int:
        for _ in range(100):
            await trio.sleep(1.0)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
        return 7

    assert simulation.run(main) == 7


@pytest.mark.parametrize(
    "touch",
    [
        lambda: time.time(),
        lambda: time.monotonic(),
        lambda: time.sleep(0),
        lambda: os.urandom(4),
        lambda: random.random(),
        lambda: random.SystemRandom().random(),
        lambda: socket.socket().connect(("127.0.0.1", 9)),
        lambda: socket.socket().bind(("127.0.0.1", 0)),
        lambda: threading.Thread(target=print).start(),
    ],
)
def test_the_real_world_is_walled_off(touch: object) -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(RealWorldTouched):
            touch()  # type: ignore[operator]
        with pytest.raises(RealWorldTouched):
            await trio.to_thread.run_sync(print)

    simulation = Simulation(1)
    simulation.run(main)

    assert simulation.failures == []
    assert time.time() > 0
    assert random.random() >= 0


def test_an_event_that_raises_is_a_failure() -> None:
    def explode() -> None:
        raise ValueError("in an event")

    async def main(simulation: Simulation) -> None:
        simulation.call_after(1.0, explode)
        await trio.sleep(2.0)

    simulation = Simulation(1)
    simulation.run(main)

    assert isinstance(simulation.failures[0], ValueError)
