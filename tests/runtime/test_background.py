"""A loop in a thread: results, errors, cancellation, bursts, its end."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import trio

from distributedlog.runtime.background import Background, Handover, Hops
from distributedlog.runtime.errors import AlreadyClosed, InvalidRequest, WriterFenced


@pytest.fixture
def background() -> Iterator[Background]:
    loop = Background("test loop")
    loop.start()
    yield loop
    loop.stop()


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


async def fail() -> None:
    await trio.lowlevel.checkpoint()
    raise WriterFenced("another writer has the log")


def test_results_and_errors_come_back(background: Background) -> None:
    assert background.run(double, 21) == 42
    with pytest.raises(WriterFenced, match="another writer has the log"):
        background.run(fail)
    assert background.run(double, 1) == 2  # one call's error is not another's


def test_calls_run_side_by_side(background: Background) -> None:
    ready = background.run(make_event)

    waiting = background.submit(ready.wait)
    background.post(ready.set)

    waiting.result(5)


async def make_event() -> trio.Event:
    return trio.Event()


def test_callbacks_run_in_order_in_the_loop(background: Background) -> None:
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    for n in range(1000):
        background.post(lambda n=n: seen.append((n, threading.current_thread().name)))  # type: ignore[misc]
    background.post(done.set)

    assert done.wait(5)
    assert seen == [(n, "test loop") for n in range(1000)]


def test_a_burst_costs_one_wake_up() -> None:
    wakes: list[Callable[[], None]] = []
    hops = Hops(wakes.append)
    seen: list[int] = []

    for n in range(100):
        hops.post(lambda n=n: seen.append(n))  # type: ignore[misc]
    assert len(wakes) == 1
    wakes.pop()()
    assert seen == list(range(100))

    hops.post(lambda: hops.post(lambda: seen.append(-1)))
    assert len(wakes) == 1
    wakes.pop()()
    assert seen[-1] == 99  # a callback that posts does not keep the loop for itself
    wakes.pop()()
    assert seen[-1] == -1


def test_a_wake_that_failed_is_tried_again() -> None:
    wakes: list[Callable[[], None]] = []

    def wake(drain: Callable[[], None]) -> None:
        wakes.append(drain)
        if len(wakes) == 1:
            raise trio.RunFinishedError

    hops = Hops(wake)
    with pytest.raises(trio.RunFinishedError):
        hops.post(lambda: None)

    hops.post(lambda: None)

    assert len(wakes) == 2


def test_posts_from_many_threads_all_arrive(background: Background) -> None:
    count = 0

    def add() -> None:
        nonlocal count
        count += 1

    def post_many() -> None:
        for _ in range(2000):
            background.post(add)

    threads = [threading.Thread(target=post_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    background.run(double, 0)  # after all that was posted

    assert count == 8000


def test_a_cancelled_future_cancels_its_call(background: Background) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    future = background.submit(wait)
    assert begun.wait(5)

    assert future.cancel()

    assert ended.wait(5)
    assert background.run(double, 4) == 8


def test_asyncio_waits_for_a_future(background: Background) -> None:
    async def main() -> int:
        return await asyncio.wrap_future(background.submit(double, 5))

    assert asyncio.run(main()) == 10


def test_a_blocking_call_in_the_loop_is_refused(background: Background) -> None:
    async def call_back() -> None:
        background.run(double, 1)

    with pytest.raises(InvalidRequest):
        background.run(call_back)


def test_stop_ends_calls_and_says_so() -> None:
    loop = Background("short-lived")
    with pytest.raises(AlreadyClosed, match="was not started"):
        loop.run(double, 1)
    loop.start()
    waiting = loop.submit(trio.sleep_forever)

    loop.stop()
    loop.stop()

    with pytest.raises(AlreadyClosed, match="was stopped"):
        waiting.result(5)
    with pytest.raises(AlreadyClosed, match="was stopped"):
        loop.run(double, 1)
    with pytest.raises(AlreadyClosed):
        loop.post(lambda: None)


def test_a_callback_that_raises_ends_the_loop_and_hangs_nobody() -> None:
    loop = Background("doomed")
    loop.start()
    waiting = loop.submit(trio.sleep_forever)

    def broken() -> None:
        raise AssertionError("a rule of ours")

    loop.post(broken)
    with pytest.raises(AlreadyClosed, match="failed"):
        waiting.result(5)
    with pytest.raises(AlreadyClosed, match="failed"):
        loop.run(double, 1)
    with pytest.raises(AssertionError, match="a rule of ours"):
        loop.stop()


def test_the_switch_interval_is_set_when_asked() -> None:
    """H27: a busy main thread must not hold the loop for 5 ms at a time."""
    before = sys.getswitchinterval()
    try:
        loop = Background(quick_switches=True)
        loop.start()
        loop.stop()

        assert sys.getswitchinterval() == pytest.approx(0.0005)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.processes
def test_a_program_that_stops_nothing_exits_at_once() -> None:
    program = """
import trio, atexit
from distributedlog.runtime.background import Background
loop = Background()
loop.start()
future = loop.submit(trio.sleep_forever)
async def hello(): return "hello"
print(loop.run(hello))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


@pytest.mark.processes
def test_ctrl_c_cancels_a_blocking_call() -> None:
    program = """
import os, signal, threading, trio
from distributedlog.runtime.background import Background
loop = Background()
loop.start()
ended = threading.Event()
async def wait():
    try:
        await trio.to_thread.run_sync(os.kill, os.getpid(), signal.SIGINT)
        await trio.sleep_forever()
    finally:
        ended.set()
try:
    loop.run(wait)
except KeyboardInterrupt:
    print("interrupted", ended.wait(5))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True\n", "")


@pytest.mark.parametrize(
    "given_up", ["while it opens", "when it is open", "before it is asked for"]
)
def test_what_nobody_waits_for_any_more_is_closed_by_who_opens_it(
    background: Background, given_up: str
) -> None:
    """Also what comes out of an opening that a cancellation could not stop; no finalizer has to."""
    opening, go_on, closed = threading.Event(), trio.Event(), threading.Event()
    kept: list[object] = []

    async def open_it() -> object:
        opening.set()
        with trio.CancelScope(shield=True):
            await go_on.wait()
        kept.append(object())
        return kept[0]

    async def close_it(value: object) -> None:
        assert value is kept[0]
        closed.set()

    handover = Handover(background, open_it, close_it)
    if given_up == "before it is asked for":
        handover.give_up()
    outcome = handover.begin()
    assert opening.wait(5)
    if given_up == "while it opens":
        handover.give_up()
    background.post(go_on.set)
    if given_up == "when it is open":
        assert outcome.wait(5) is kept[0]
        handover.give_up()

    assert closed.wait(5)
    assert len(kept) == 1


def test_what_is_put_aside_is_called_also_where_the_loop_has_ended() -> None:
    """A callback may be left in the moment in which the namespace is closed by another thread."""
    loop = Background("test loop")
    loop.start()
    seen: list[str] = []
    loop.aside(lambda: seen.append(threading.current_thread().name))
    loop.stop()

    loop.aside(lambda: seen.append(threading.current_thread().name))

    assert seen == ["test loop: callbacks", threading.current_thread().name]
