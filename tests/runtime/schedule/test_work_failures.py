"""Background work: an unexpected exception ends one try of one unit, is shown, and is logged once."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.interfaces.errors import ConnectionLost, DiskFailed, NotAllowed
from distributedlog.runtime.schedule.work_failures import (
    DROP_AFTER_S,
    OTHER_WORK,
    RECOVERED_AFTER_S,
    RETRY_MAX_S,
    UNITS_MAX,
    FailedWork,
    WorkFailures,
)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if vars(one).get("event") == event]


async def test_an_unexpected_exception_is_recorded_until_a_try_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    failures = WorkFailures()
    for _ in range(3):
        with failures.attempt("retention of log 7") as attempt:
            raise OverflowError("cannot convert float infinity to integer")
        assert attempt.failed
    assert failures.failed() == (FailedWork("retention of log 7", "OverflowError", 3),)
    told = condition(Code.WORK_FAILED, unit="retention of log 7", error="OverflowError", tries=3)
    assert failures.conditions() == [told]
    [line] = lines(caplog, "work.failed")
    assert line.exc_info
    assert vars(line)["unit"] == "retention of log 7"

    with failures.attempt("retention of log 7"):
        pass

    assert failures.failed() == ()
    assert failures.conditions() == []
    assert len(lines(caplog, "work.recovered")) == 1


async def test_a_failed_unit_rests_longer_each_time(autojump_clock: MockClock) -> None:
    failures = WorkFailures()
    waits = []
    for _ in range(9):
        with failures.attempt("unit"):
            raise ValueError
        waits.append(failures.next_try_s("unit", 1000.0))
        assert failures.is_waiting("unit")
        await trio.sleep(waits[-1])
        assert not failures.is_waiting("unit")

    assert waits == [1, 2, 4, 8, 16, 32, RETRY_MAX_S, RETRY_MAX_S, RETRY_MAX_S]
    assert not failures.is_waiting("another unit")
    assert failures.next_try_s("another unit", 1000.0) == 1000.0


async def test_errors_of_ours_pass_and_say_nothing_about_the_unit() -> None:
    failures = WorkFailures()
    with pytest.raises(ConnectionLost), failures.attempt("unit"):
        raise ConnectionLost("away")
    assert failures.failed() == ()

    with failures.attempt("unit"):
        raise KeyError("x")
    with pytest.raises(ConnectionLost), failures.attempt("unit"):
        raise ConnectionLost("away")
    assert len(failures.failed()) == 1


async def test_a_group_of_errors_of_ours_passes_as_its_worst_member() -> None:
    failures = WorkFailures()
    for errors, passes in (
        ([ConnectionLost("one"), ConnectionLost("two")], ConnectionLost),
        ([ConnectionLost("one"), DiskFailed("two")], DiskFailed),
        ([ValueError("one"), DiskFailed("two")], DiskFailed),
    ):
        with pytest.raises(passes), failures.attempt("unit"):
            raise ExceptionGroup("of a nursery", errors)
    assert [one.error for one in failures.failed()] == ["ValueError"]


async def test_an_unexpected_exception_in_a_group_is_contained() -> None:
    failures = WorkFailures()

    async def breaks() -> None:
        raise AssertionError("a rule of ours")

    with failures.attempt("unit"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaks)
            await trio.sleep_forever()

    assert failures.failed() == (FailedWork("unit", "AssertionError", 1),)


async def test_a_cancellation_passes() -> None:
    failures = WorkFailures()
    with trio.CancelScope() as scope:
        scope.cancel()
        with failures.attempt("unit"):
            await trio.sleep_forever()
        pytest.fail("it was swallowed")

    assert failures.failed() == ()


async def test_a_cancellation_passes_beside_an_unexpected_exception() -> None:
    failures = WorkFailures()

    async def breaks_as_it_ends() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in a finally")

    after = False
    with trio.CancelScope() as scope:
        with failures.attempt("unit"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(breaks_as_it_ends)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
        after = True
    assert scope.cancelled_caught
    assert not after
    assert [one.error for one in failures.failed()] == ["ValueError"]


def failing(times: int, begun: list[float]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        begun.append(trio.current_time())
        if len(begun) <= times:
            raise RuntimeError("unexpected")
        await trio.sleep_forever()

    return run


async def test_an_endless_task_is_started_again_later_each_time(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures, begun = WorkFailures(), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.keep_running, "leases", failing(3, begun))
        await trio.sleep(8)
        assert begun == [0, 1, 3, 7]
        assert failures.failed() == (FailedWork("leases", "RuntimeError", 3),)

        await trio.sleep(RECOVERED_AFTER_S)

        assert failures.failed() == ()
        nursery.cancel_scope.cancel()
    assert len(lines(caplog, "work.failed")) == len(lines(caplog, "work.recovered")) == 1


async def test_a_task_that_returns_or_is_cancelled_is_not_started_again() -> None:
    failures = WorkFailures()
    calls = []

    async def run(value: int) -> None:
        calls.append(value)

    await failures.keep_running("unit", run, 7)
    assert calls == [7]


async def test_an_error_of_ours_that_is_final_ends_a_task_and_a_retryable_one_does_not(
    autojump_clock: MockClock,
) -> None:
    failures, calls = WorkFailures(), list[int]()

    async def run() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ExceptionGroup("of a nursery", [ConnectionLost("away")])
        raise NotAllowed("not for this process")

    with pytest.raises(NotAllowed):
        await failures.keep_running("unit", run)
    assert len(calls) == 2


async def test_a_task_that_starts_once_is_contained_from_then_on(
    autojump_clock: MockClock,
) -> None:
    failures, begun = WorkFailures(), list[float]()

    async def run(*, task_status: trio.TaskStatus[int]) -> None:
        begun.append(trio.current_time())
        task_status.started(len(begun))
        if len(begun) == 1:
            await trio.sleep(1)
            raise RuntimeError("unexpected")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        assert await nursery.start(failures.keep_running_started, "unit", run) == 1
        await trio.sleep(5)
        assert begun == [0, 2]
        nursery.cancel_scope.cancel()


async def test_a_start_that_fails_is_no_background_work() -> None:
    failures = WorkFailures()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        raise RuntimeError("at the start")

    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(failures.keep_running_started, "unit", run)
    assert failures.failed() == ()


async def test_memory_and_log_are_bounded_where_everything_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = WorkFailures()
    for log in range(10_000):
        with failures.attempt(f"retention of log {log}"):
            raise ValueError

    failed = failures.failed()
    assert len(failed) == UNITS_MAX + 1
    assert failed[-1].unit == OTHER_WORK
    assert len(lines(caplog, "work.failed")) == UNITS_MAX + 1
    assert not failures.is_waiting("retention of log 9999")


async def test_a_unit_that_is_not_tried_again_is_forgotten(autojump_clock: MockClock) -> None:
    """Its log was deleted."""
    failures = WorkFailures()
    with failures.attempt("often"):
        raise ValueError
    with failures.attempt("daily", every_s=86400):
        raise ValueError

    await trio.sleep(DROP_AFTER_S + 2)
    assert [one.unit for one in failures.failed()] == ["daily"]
    await trio.sleep(2 * 86400)
    assert failures.failed() == ()
