"""A loop in a thread: results, errors, cancellation, bursts, its end."""

import asyncio
import logging
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator

import pytest
import trio

from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    UnsupportedPlatform,
    WriterFenced,
)
from distributedlog.runtime.interfaces.log_lines import get_logger
from distributedlog.runtime.schedule.background_loop import (
    Background,
    CallbackQueue,
    PendingOpen,
    uninterrupted,
)


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
    wakes: list[int] = []
    hops = CallbackQueue(lambda: wakes.append(1))
    seen: list[int] = []

    for n in range(100):
        hops.post(lambda n=n: seen.append(n))  # type: ignore[misc]
    assert len(wakes) == 1
    hops.drain()
    assert seen == list(range(100))

    hops.post(lambda: hops.post(lambda: seen.append(-1)))
    assert len(wakes) == 2
    hops.drain()
    assert seen[-1] == 99  # a callback that posts does not keep the loop for itself
    assert len(wakes) == 3
    hops.drain()
    assert seen[-1] == -1


def test_a_wake_that_failed_is_tried_again() -> None:
    wakes: list[int] = []

    def wake() -> None:
        wakes.append(1)
        if len(wakes) == 1:
            raise OSError

    hops = CallbackQueue(wake)
    with pytest.raises(OSError):
        hops.post(lambda: None)

    hops.post(lambda: None)

    assert len(wakes) == 2


def test_an_urgent_post_wakes_the_loop_in_any_case() -> None:
    """The thread that was to wake it may be in a signal handler, between its mark and the wake-up."""
    hops: CallbackQueue

    def wake() -> None:
        wakes.append(1)
        if len(wakes) == 1:  # a handler on top of the first post
            hops.post(lambda: seen.append("not urgent"))
            hops.post(lambda: seen.append("urgent"), urgent=True)

    wakes: list[int] = []
    seen: list[str] = []
    hops = CallbackQueue(wake)
    hops.post(lambda: seen.append("first"))

    assert len(wakes) == 2
    hops.drain()
    assert seen == ["first", "not urgent", "urgent"]


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
from distributedlog.runtime.schedule.background_loop import Background
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
from distributedlog.runtime.schedule.background_loop import Background
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

    handover = PendingOpen(background, open_it, close_it)
    if given_up == "before it is asked for":
        handover.abandon()
    outcome = handover.start()
    assert opening.wait(5)
    if given_up == "while it opens":
        handover.abandon()
    background.post(go_on.set)
    if given_up == "when it is open":
        assert outcome.wait(5) is kept[0]
        handover.abandon()

    assert closed.wait(5)
    assert len(kept) == 1


def test_what_is_put_aside_is_called_also_where_the_loop_has_ended() -> None:
    """A callback may be left in the moment in which the namespace is closed by another thread."""
    loop = Background("test loop")
    loop.start()
    seen: list[str] = []
    loop.call_in_thread(lambda: seen.append(threading.current_thread().name))
    loop.stop()

    loop.call_in_thread(lambda: seen.append(threading.current_thread().name))

    assert seen == ["test loop: callbacks", threading.current_thread().name]


def on_top(loop: Background, call: Callable[[], object]) -> list[object]:
    """What a call gives, or raises, in a finalizer that runs on top of a step of this client."""
    found: list[object] = []

    class Client:
        _background = loop

        @uninterrupted
        def step(self) -> None:
            try:
                found.append(call())
            except DistributedLogError as error:
                found.append(error)

    Client().step()
    return found


def test_a_call_that_interrupts_a_step_of_its_client_is_refused(background: Background) -> None:
    """It would wait for a loop that waits for the step."""
    other = Background("other client")
    other.start()
    try:
        for call in (
            lambda: background.run(double, 1),
            lambda: background.wait(background.settle(1.0)),
            background.stop,
        ):
            (error,) = on_top(background, call)
            assert isinstance(error, InvalidRequest)
            assert "a signal handler or a finalizer" in str(error)

        assert on_top(background, lambda: other.run(double, 2)) == [4]
        assert background.run(double, 3) == 6  # nothing of it is left
    finally:
        other.stop()


def test_a_line_that_is_logged_in_the_loop_is_handled_beside_it(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler may use the client, and wait: it is users' code."""
    seen: list[tuple[str, int]] = []
    handled = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((threading.current_thread().name, background.run(double, 4)))
            handled.set()

    logger = logging.getLogger("distributedlog.test")
    handler = Handler()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "distributedlog"):
            background.run(tell, "said in the loop")
            assert handled.wait(10)
            background.stop()  # waits for handlers, for a while
    finally:
        logger.removeHandler(handler)

    assert seen == [("test loop: log lines", 8)]
    (record,) = [one for one in caplog.records if one.name == "distributedlog.test"]
    assert (record.message, record.threadName) == ("said in the loop", "test loop")
    assert (record.funcName, record.filename) == ("tell", "test_background_loop.py")


async def tell(text: str) -> None:
    get_logger("distributedlog.test").info("%s", text)


def test_a_loop_does_not_wait_for_a_lock_of_logging(background: Background) -> None:
    """`logging.config.dictConfig` holds it while it makes users' handlers, which may open a client."""
    logging.getLogger("distributedlog.test").manager._clear_cache()  # type: ignore[attr-defined]
    logging._acquireLock() if hasattr(logging, "_acquireLock") else logging._lock.acquire()  # type: ignore[attr-defined]
    try:
        background.run(tell, "logged while the configuration is made")
        assert background.run(double, 1) == 2
    finally:
        logging._lock.release()  # type: ignore[attr-defined]


def test_lines_that_are_handled_too_slowly_are_counted(
    background: Background, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("distributedlog.runtime.schedule.background_loop.LOG_LINES_MAX", 2)
    go_on, stuck = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            stuck.set()
            go_on.wait(10)

    handler = Slow()
    logger = logging.getLogger("distributedlog.test")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "distributedlog"):
            background.run(tell, "1")
            assert stuck.wait(10)
            for number in range(2, 7):
                background.run(tell, str(number))
            go_on.set()
            while any(one.message == "3" for one in caplog.records) is False:
                background.run(double, 1)
            background.run(tell, "last")
            background.stop()
    finally:
        logger.removeHandler(handler)

    texts = [one.message for one in caplog.records]
    assert texts == [
        "1",
        "2",
        "3",
        "3 log lines were dropped: their handlers were too slow",
        "last",
    ]


@pytest.mark.parametrize(
    ("module", "asked"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_threads_that_are_greenlets_are_refused(
    module: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patcher = types.ModuleType(module)
    setattr(patcher, asked, lambda part: part in ("thread", "threading"))
    monkeypatch.setitem(sys.modules, module, patcher)

    with pytest.raises(UnsupportedPlatform, match=f"{module} has replaced threads"):
        Background("never").start()


def test_time_that_a_program_has_frozen_does_not_stop_the_loop(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As freezegun does it, in every module that has such a function."""
    monkeypatch.setattr("time.perf_counter", lambda: 1.0)
    monkeypatch.setattr("trio._core._run.perf_counter", lambda: 1.0)

    background.run(trio.sleep, 0.001)

    frozen = Background("started while it is frozen")
    frozen.start()
    frozen.run(trio.sleep, 0.001)
    frozen.stop()


def test_what_nobody_can_reach_any_more_ends_with_a_warning() -> None:
    class User:
        pass

    loop = Background("dropped client")
    loop.start()
    first, second = User(), User()
    loop.register_user(first)
    loop.register_user(second)
    ended = threading.Event()

    async def note_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    loop.submit(note_the_end)
    del first
    assert loop.run(double, 1) == 2
    with pytest.warns(ResourceWarning, match="dropped client: it was dropped unclosed"):
        del second

    assert ended.wait(10)
    loop.stop()
