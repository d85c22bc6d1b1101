"""Cancelled and interrupted, wherever: what was opened is closed, what was taken has an outcome, what was
read is not lost. In the three faces, over a model of the ledger part.

200 opens of each kind and face, 10,000 interrupted writes: ``python -m tests.test_face_interrupts``.

Once, on an overloaded machine, two tasks of a reader that was interrupted during its open had not ended after
20 s. The cause is not known.
"""

import asyncio
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog import aio, blocking
from distributedlog.blocking import Namespace
from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace as TrioNamespace
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    ClaimLost,
    DistributedLogError,
    InvalidRequest,
    TransactionIdOutOfOrder,
)
from distributedlog.runtime.schedule.background_loop import Background, CallbackQueue
from distributedlog.thread_bridge import beside_loop
from distributedlog.write_buffer import open_buffer
from tests.face_world import model_namespace

pytestmark = pytest.mark.processes
"""Signals and threads in real time depend on the load of the machine (docs/internals/testing.md)."""

OPENS = 200
WRITES = 10_000
FREE_S = 5.0
"""How long an opening waits for the one before it, whose end may just be on its way."""
KINDS = (
    "writer", "reader", "segment writer", "ranges", "watch", "subscription", "work queue", "segments",
)  # fmt: skip


def rec(txid: int, payload: bytes = b"x") -> LogRecord:
    return LogRecord(txid, payload)


def opening(kind: str, namespace: Any, ranges: list[Any]) -> Any:
    """The call that opens it; a lock that an earlier one left refuses a writer."""
    log = namespace.open_log("l")
    if kind == "writer":
        return lambda: log.open_writer(wait_s=FREE_S)
    if kind == "reader":
        return log.open_reader
    if kind == "subscription":
        return lambda: log.subscribe("s", wait_s=FREE_S)
    if kind == "work queue":
        return lambda: log.work_queue("q")
    if kind == "segments":
        return log.watch_segments
    if kind == "segment writer":
        return log.open_segment_writer
    return (lambda: log.open_ranges(ranges)) if kind == "ranges" else namespace.watch_logs


async def tasks(namespace: TrioNamespace) -> int:
    """How many tasks the namespace has; those that are about to end get their time."""
    before = -1
    for _ in range(100):
        now = len(namespace._nursery.child_tasks)
        if now == before:
            return now
        before = now
        await trio.sleep(0.01)
    return before


def settle(background: Background, namespace: TrioNamespace, expected: int) -> None:
    """Until the namespace has so many tasks: what was given up ends, on a busy machine too."""
    end = time.monotonic() + 20
    while (found := background.run(tasks, namespace)) != expected:
        gc.collect()
        assert time.monotonic() < end, f"{found} tasks, {expected} before"


class Interrupted(KeyboardInterrupt):
    """What the alarm raises."""


@contextmanager
def alarms() -> Iterator[None]:
    """SIGALRM interrupts as Ctrl-C does. What is swallowed, in a finalizer, is kept by nobody.

    pytest keeps such an exception until the end of the test, and with it the frames below: in one of them is
    what an opening was about to return, which is then never dropped. So a reader's two tasks were left, once
    in thousands of opens, mostly on a busy machine.
    """

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is call_with_timer.__code__:
                raise Interrupted
            frame = frame.f_back

    before, kept_by = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = kept_by


def call_with_timer(call: Callable[[], Any], after_s: float) -> Any:
    """Start the timer, then call. An alarm interrupts only code that runs inside this function."""
    signal.setitimer(signal.ITIMER_REAL, after_s, 0.05)
    return call()


def interrupted(call: Callable[[], Any], after_s: float) -> Any:
    """What a call gives, or None when it was interrupted after that time; again after a while, where the
    first one was lost in a place that swallows exceptions (a finalizer, a callback)."""
    try:
        return call_with_timer(call, after_s)
    except Interrupted:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_an_alarm_that_comes_after_the_call_interrupts_nothing() -> None:
    """On a slow machine, an alarm that was repeated after the call could end pytest itself."""
    with alarms():
        signal.raise_signal(signal.SIGALRM)
        assert interrupted(lambda: signal.raise_signal(signal.SIGALRM), 60) is None
        signal.raise_signal(signal.SIGALRM)


# --- openings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_opens_leave_nothing_behind_in_the_blocking_face(kind: str) -> None:
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        warnings.catch_warnings(),
        alarms(),
    ):
        warnings.simplefilter("ignore", ResourceWarning)
        with namespace.open_log("l").open_writer() as writer:
            writer.write_bulk([rec(1), rec(2)])
        ranges = [one.range() for one in namespace.open_log("l").snapshot().segments]
        open_it = opening(kind, namespace, ranges)
        began = time.perf_counter()
        open_it().close()
        took_s = time.perf_counter() - began
        inner = namespace._namespace
        before = namespace._background.run(tasks, inner)
        came = 0
        for number in range(OPENS):
            found = interrupted(open_it, max(1e-6, took_s * 1.5 * number / OPENS))
            if found is not None:
                came += 1
                if number % 2:
                    found.close()
            del found  # every other one is dropped unclosed
        assert came < OPENS
        settle(namespace._background, inner, before)
        with namespace.open_log("l").open_writer(wait_s=FREE_S) as writer:
            writer.write(rec(9))


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_opens_leave_nothing_behind_in_the_asyncio_face(kind: str) -> None:
    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            async with namespace.open_log("l").open_writer() as writer:
                await writer.write(rec(1))
            ranges = [one.range() for one in (await namespace.open_log("l").snapshot()).segments]
            open_it = opening(kind, namespace, ranges)
            began = time.perf_counter()
            async with open_it():
                took_s = time.perf_counter() - began
            inner, background = namespace._namespace, namespace._background
            before = background.run(tasks, inner)
            came = 0

            async def awaited() -> Any:
                return await open_it()

            for number in range(OPENS):
                after_s = took_s * 1.5 * number / OPENS
                found = None
                if number % 3:
                    with suppress(asyncio.TimeoutError):
                        found = await asyncio.wait_for(awaited(), after_s)
                else:
                    task = asyncio.create_task(awaited())
                    await asyncio.sleep(after_s)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        found = await task
                    del task
                if found is not None:
                    came += 1
                    if number % 2:
                        await found.aclose()
                del found  # every other one is dropped unclosed
            assert came < OPENS
            settle(background, inner, before)
            async with namespace.open_log("l").open_writer(wait_s=FREE_S) as writer:
                await writer.write(rec(9))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_opens_leave_nothing_behind_in_the_trio_face(kind: str) -> None:
    async def main() -> None:
        async with model_namespace() as namespace:
            async with namespace.open_log("l").open_writer() as writer:
                await writer.write(rec(1))
            ranges = [one.range() for one in (await namespace.open_log("l").snapshot()).segments]
            open_it = opening(kind, namespace, ranges)
            before = await tasks(namespace)
            for steps in range(OPENS):
                async with trio.open_nursery() as nursery:
                    scope = trio.CancelScope()

                    async def opened(scope: trio.CancelScope) -> None:
                        with scope:
                            async with open_it():
                                pass

                    nursery.start_soon(opened, scope)
                    for _ in range(steps % 40):
                        await trio.lowlevel.checkpoint()
                    await trio.sleep((steps // 40) * 0.0007)
                    scope.cancel()
            assert await tasks(namespace) == before
            async with namespace.open_log("l").open_writer(wait_s=0) as writer:
                await writer.write(rec(9))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_is_dropped_unclosed_is_given_up_and_said() -> None:
    """An interrupt between the call's return and its caller's name for it is nobody's to catch."""
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        log = namespace.open_log("l")
        writer = log.open_writer()
        writer.submit(rec(1)).result()
        with pytest.warns(ResourceWarning, match='the writer of log "l" was dropped unclosed'):
            del writer
        with log.open_writer(wait_s=FREE_S) as writer:
            writer.submit(rec(2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del writer  # closed: nothing to say
            gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["writer", "watch"])
def test_what_is_dropped_is_given_up_though_an_interrupt_meets_its_finalizer(kind: str) -> None:
    """A second Ctrl-C while the first one unwinds: Python swallows what is raised there (H142)."""
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ResourceWarning)
        with namespace.open_log("l").open_writer() as writer:
            writer.write(rec(1))
        ranges = [one.range() for one in namespace.open_log("l").snapshot().segments]
        open_it = opening(kind, namespace, ranges)
        inner = namespace._namespace
        before = namespace._background.run(tasks, inner)
        for nth in range(1, 100):
            found = open_it()
            end = time.monotonic() + 10
            while sys.getrefcount(found) > 2:  # the loop is about to let it go
                assert time.monotonic() < end
                time.sleep(0.001)
            raise_at = RaiseAt(nth)
            try:
                sys.setprofile(raise_at)
                del found
            except Interrupted:
                pass
            finally:
                sys.setprofile(None)
            if raise_at.left > 0:
                break
            if nth % 10 == 1:
                settle(namespace._background, inner, before)
        settle(namespace._background, inner, before)
        assert 3 < nth < 99
        with namespace.open_log("l").open_writer(wait_s=FREE_S):
            pass


def test_an_interrupted_close_gives_the_log_back() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace, alarms():
        log = namespace.open_log("l")
        ledgers: Any = namespace._namespace.ledgers
        writer = log.open_writer()
        ledgers.held = True  # so that the close has something to wait for
        pending = writer.submit(rec(1))

        assert interrupted(writer.close, 0.05) is None

        with pytest.raises(Exception, match="may be stored"):
            pending.result(5)
        ledgers.held = False
        with log.open_writer(wait_s=FREE_S):
            pass


def stuck(namespace: Any) -> tuple[Any, trio.Event]:
    """A writer that nothing can be given back for before the event is set in the loop."""
    writer = namespace.open_log("l").open_writer()
    answers = trio.Event()
    claim = writer._buffer.writer._log_lock
    release = claim.release

    async def late() -> None:
        await answers.wait()
        await release()

    claim.release = late
    return writer, answers


def test_an_exception_in_the_block_waits_two_seconds_and_the_abort_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A metadata quorum that does not answer keeps no program from ending."""
    monkeypatch.setattr(blocking, "ABANDON_TIMEOUT_S", 0.1)
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        writer, answers = stuck(namespace)
        with pytest.raises(ValueError, match="mine"), writer:  # noqa: PT012
            pending = writer.submit(rec(1))
            raise ValueError("mine")
        assert pending.done() or pending.exception(5) is not None
        namespace._background.post(answers.set)
        with namespace.open_log("l").open_writer(wait_s=FREE_S):
            pass


def test_a_second_interrupt_ends_the_wait_and_not_the_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        blocking, "ABANDON_TIMEOUT_S", 120.0
    )  # the interrupt alone can end the wait earlier
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace, alarms():
        writer, answers = stuck(namespace)

        def body() -> None:
            with writer:
                time.sleep(10)

        began = time.monotonic()
        assert interrupted(body, 0.05) is None  # again after 0.05 s, and again
        assert time.monotonic() - began < 120.0
        namespace._background.post(answers.set)
        with namespace.open_log("l").open_writer(wait_s=FREE_S):
            pass


def test_a_cancelled_block_gives_up_and_a_second_cancel_does_not_stop_that() -> None:
    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            log = namespace.open_log("l")
            async with log.open_writer() as first:
                pass
            writer = await log.open_writer()
            answers = trio.Event()
            claim = writer._buffer.writer._log_lock
            release = claim.release

            async def late() -> None:
                await answers.wait()
                await release()

            claim.release = late  # type: ignore[method-assign]

            async def body() -> None:
                async with writer:
                    await asyncio.sleep(10)

            task = asyncio.create_task(body())
            for _ in range(2):
                await asyncio.sleep(0.02)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            first._background.post(answers.set)
            async with log.open_writer(wait_s=FREE_S):
                pass

    asyncio.run(main())


# --- writes ---------------------------------------------------------------------------------------


class CallAt:
    """Calls at the ``nth`` point at which CPython looks for signals, on top of what runs, as handlers do."""

    def __init__(self, nth: int, call: Callable[[], object]) -> None:
        self.left = nth
        self.outcome: object = None
        self._call = call

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                try:
                    self.outcome = self._call()
                except DistributedLogError as error:
                    self.outcome = error


@pytest.mark.parametrize("kind", ["submit", "write", "commit", "other writer", "bulk", "read"])
def test_a_call_from_a_handler_at_any_point_of_a_call_works_or_is_refused(kind: str) -> None:
    """A signal handler, or a finalizer: it never waits for what it has interrupted."""
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
        namespace.open_log("other").open_writer() as other,
        namespace.open_log("l").open_reader() as reader,
    ):
        calls: dict[str, Callable[[], object]] = {
            "submit": lambda: writer.submit(b"handler"),
            "write": lambda: writer.write(b"handler"),
            "commit": writer.commit,
            "other writer": lambda: other.write(b"handler"),
            "bulk": lambda: writer.write_bulk([b"handler", b"handler"]),
            "read": lambda: reader.read_next(wait_s=0),
        }
        worked = refused = 0
        for first in (True, False):
            for nth in range(1, 60):
                if not first:
                    writer.submit(b"before")
                call_at = CallAt(nth, calls[kind])
                sys.setprofile(call_at)
                try:
                    pending = writer.submit(b"%d" % nth)
                finally:
                    sys.setprofile(None)
                pending.result(30)
                if call_at.left > 0:
                    break
                if isinstance(call_at.outcome, InvalidRequest):
                    assert "signal handler" in str(call_at.outcome)
                    refused += 1
                else:
                    assert not isinstance(call_at.outcome, BaseException)
                    worked += 1
            else:
                pytest.fail("the call has no end")
        assert refused
        assert worked
        writer.commit()
        with namespace.open_log("l").open_reader(to="end") as check:
            payloads = [bytes(one.payload) for one in check]
    numbers = [one for one in payloads if one.isdigit()]
    assert all(numbers.count(one) <= 2 for one in set(numbers)), "once with each start"
    handlers = worked * {"submit": 1, "write": 1, "bulk": 2}.get(kind, 0)
    assert payloads.count(b"handler") == handlers


def test_a_handler_that_sits_on_a_step_of_one_writer_stops_no_other_one() -> None:
    """The loop waits for that mutex in a task: leases and the other logs go on."""
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
        namespace.open_log("other").open_writer() as other,
    ):
        with writer._buffer._mutex:  # as on top of `append`
            writer._buffer._chunk.records += (None, b"x")  # so that the loop wants it
            writer._buffer.wake_loop()
            for _ in range(3):
                other.write(b"goes on")
            with namespace.open_log("other").open_reader(to="end") as reader:
                assert len(list(reader)) == 3
        assert writer.commit() is not None


def test_a_blocking_wait_in_the_loop_is_refused_wherever() -> None:
    """A finalizer may run in the loop's thread."""
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
    ):
        ledgers: Any = namespace._namespace.ledgers
        ledgers.held = True
        pending = writer.submit(rec(1))
        bulk = writer.submit_bulk([rec(2)])
        refused: list[str] = []

        async def in_the_loop() -> None:
            for call in (
                pending.result, bulk.result, writer.commit, namespace.open_log("l").open_reader,
                lambda: next(iter(namespace.logs())),
            ):  # fmt: skip
                try:
                    call()
                except InvalidRequest as error:
                    refused.append(str(error))

        namespace._background.run(in_the_loop)
        ledgers.held = False
        assert len(refused) == 5
        pending.result(30)


def test_threads_that_share_a_reader_get_each_record_once_or_are_refused() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        log = namespace.open_log("l", config={"entry_bytes_max": 1000})
        with log.open_writer() as writer:
            writer.write_bulk([b"%d" % number for number in range(20_000)])
        found: list[bytes] = []
        refused: list[InvalidRequest] = []
        with log.open_reader() as reader:

            def read() -> None:
                try:
                    while (record := reader.read_next(wait_s=0.5)) is not None:
                        found.append(bytes(record.payload))
                except InvalidRequest as error:
                    refused.append(error)

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)

    assert sorted(map(int, found)) == list(range(20_000))
    assert refused, "they waited at the same time at the end"


def test_a_second_wait_of_a_reader_is_refused_in_the_asyncio_face() -> None:
    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            log = namespace.open_log("l")
            async with log.open_writer() as writer, log.open_reader() as reader:
                both = [asyncio.create_task(reader.read_next()) for _ in range(2)]
                (refused,), (waits,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                with pytest.raises(InvalidRequest, match="one thread or task at a time"):
                    await refused
                await writer.write(b"x")
                assert (await waits) is not None

    asyncio.run(main())


def test_an_opening_is_a_coroutine_too() -> None:
    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            log = namespace.open_log("l")
            log.open_writer()  # nothing is opened, nothing is warned of
            writer = await asyncio.create_task(log.open_writer(wait_s=0))
            await writer.write(b"x")
            await writer.aclose()
            readers = await asyncio.gather(log.open_reader(), log.open_reader())
            for reader in readers:
                assert (await reader.read_next()) is not None
                await reader.aclose()
            task = asyncio.create_task(log.open_writer())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with log.open_writer(wait_s=FREE_S):
                pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


def test_a_time_limit_has_one_spelling() -> None:
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
    ):
        pending, bulk = writer.submit(b"x"), writer.submit_bulk([b"y"])
        calls: Any = (
            pending.result, pending.exception, bulk.result, bulk.wait, bulk.outcomes,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(TypeError, match="'timeout': the limit is timeout_s, in seconds"):
                call(timeout=1)
            call(timeout_s=30)


def test_on_skipped_is_called_beside_the_loop() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        called: list[tuple[str, str]] = []
        done = threading.Event()

        def on_skipped(value: str) -> None:
            called.append((value, threading.current_thread().name))
            done.set()

        beside = beside_loop(namespace._background, on_skipped)
        assert beside is not None

        async def in_the_loop() -> None:
            beside("skipped")

        namespace._background.run(in_the_loop)
        assert done.wait(10)
        assert called == [("skipped", "test: callbacks")]


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["opening", "idle", "writing"])
def test_a_namespace_ends_though_its_task_is_cancelled_again_and_again(kind: str) -> None:
    """As by a scope of anyio, under FastAPI and Starlette: in each iteration of the event loop."""

    async def body() -> None:
        async with aio._Opened(model_namespace(), "cancelled", aio.Namespace) as namespace:
            if kind == "writing":
                async with namespace.open_log("l").open_writer() as writer:
                    while True:
                        await writer.write(b"x")
            await asyncio.sleep(60)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(12 if kind == "opening" else 3):  # an opening has many steps
            task = asyncio.create_task(body())
            await asyncio.sleep(0.002 * number if kind == "opening" else 0.02)

            def cancel(task: asyncio.Task[None] = task) -> None:
                if not task.done():
                    task.cancel()
                    loop.call_soon(cancel)

            cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not [one for one in threading.enumerate() if one.name.startswith("cancelled")]

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    asyncio.run(main())
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_namespace_that_is_closed_first_waits_for_what_was_submitted() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        writer = namespace.open_log("l").open_writer()
        pendings = [writer.submit(b"x") for _ in range(5000)]
    assert all(isinstance(one.result(), tuple) for one in pendings)

    async def main() -> list[Any]:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            writer = await namespace.open_log("l").open_writer()
            return [await writer.submit(b"x") for _ in range(5000)]

    assert all(isinstance(one.result(), tuple) for one in asyncio.run(main()))


def test_what_a_closed_namespace_has_lost_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blocking, "EXIT_S_MAX", 0.05)
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        ledgers: Any = namespace._namespace.ledgers
        writer = namespace.open_log("l").open_writer()
        writer.write(b"stored")
        ledgers.held = True
        for _ in range(7):
            writer.submit(b"x")
        with pytest.raises(ValueError, match="mine"), namespace.open_log("m").open_writer() as mine:  # noqa: PT012
            mine.submit(b"given up by its owner, who knows")
            raise ValueError("mine")
    (line,) = [one.message for one in caplog.records if "not known to be durable" in one.message]
    assert line.startswith('7 submitted records are not known to be durable: 7 of log "l"')


def test_a_namespace_that_is_dropped_unclosed_ends_with_a_warning() -> None:
    namespace = blocking._Opened(model_namespace(), "dropped", Namespace).__enter__()
    writer = namespace.open_log("l").open_writer()
    writer.write(b"x")
    del namespace
    gc.collect()
    writer.write(b"it is used")
    threads = [one for one in threading.enumerate() if one.name.startswith("dropped")]
    assert threads
    with pytest.warns(ResourceWarning, match="dropped: it was dropped unclosed"):
        writer.close()  # nobody can reach it any more
    for thread in threads:
        thread.join(10)
    assert not [one.name for one in threads if one.is_alive()]


PROGRAM = """
import atexit, sys
pendings = []
def check():
    durable = sum(one.done() and one.exception() is None for one in pendings)
    print(durable, "of", len(pendings))
atexit.register(check)  # before the product is loaded: it is called last
from distributedlog import blocking
from distributedlog.runtime.schedule import background_loop as background
from tests.face_world import model_namespace
namespace = blocking._Opened(model_namespace(), "client", blocking.Namespace).__enter__()
writer = namespace.open_log("l").open_writer()
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('mine')", 1)]
)
def test_a_program_that_does_not_close_loses_nothing_it_submitted(ending: str, code: int) -> None:
    ended = run_to_its_end("pendings += [writer.submit(b'x') for _ in range(20_000)]", ending)

    assert (ended.returncode, ended.stdout) == (code, "20000 of 20000\n")
    assert "not known to be durable" not in ended.stderr


def test_a_program_whose_records_are_not_stored_in_time_says_how_many() -> None:
    ended = run_to_its_end(
        "background.EXIT_S_MAX = 0.2",
        "writer.write(b'stored'); namespace._namespace.ledgers.held = True",
        "pendings += [writer.submit(b'x') for _ in range(1_500)]",
    )

    assert (ended.returncode, ended.stdout) == (0, "0 of 1500\n")
    assert ended.stderr.splitlines() == [
        'distributedlog: 1,500 submitted records are not known to be durable: 1,500 of log "l". '
        "Close writers, or call commit(), before the program ends."
    ]


def test_a_program_that_drops_its_writer_says_what_is_lost_with_it() -> None:
    ended = run_to_its_end(
        "import distributedlog.write_buffer as buffer; buffer.DROPPED_WAIT_S = 0.05",
        "writer.write(b'stored'); namespace._namespace.ledgers.held = True",
        "pendings += [writer.submit(b'x') for _ in range(30)]",
        "del writer",
        "import contextlib",
        "with contextlib.suppress(Exception): pendings[-1].result()",
    )

    assert ended.stdout == "0 of 30\n"
    assert '30 of log "l"' in ended.stderr


def test_a_byte_writer_that_is_not_closed_loses_nothing() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        namespace.create_log("b", txids="bytes")
        stream = namespace.open_log("b").open_byte_writer()
        for _ in range(2000):
            stream.write(b"x")
    assert stream._writer.not_durable == 0

    async def main() -> int:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            await namespace.create_log("b", txids="bytes")
            stream = await namespace.open_log("b").open_byte_writer()
            for _ in range(200):
                await stream.write(b"x")
        return stream._writer.not_durable

    assert asyncio.run(main()) == 0
    ended = run_to_its_end(
        "background.EXIT_S_MAX = 0.2",
        "namespace.create_log('b', txids='bytes')",
        "stream = namespace.open_log('b').open_byte_writer()",
        "stream.write(b'stored'); stream.flush()",
        "namespace._namespace.ledgers.held = True",
        "for _ in range(7): stream.write(b'x')",
    )
    assert '7 submitted records are not known to be durable: 7 of log "b"' in ended.stderr


def test_what_a_closed_writer_refused_is_not_reported_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        namespace.create_log("l", txids="strict")
        with namespace.open_log("l").open_writer() as writer:
            writer.write(b"its txid is filled in")
            with pytest.raises(TransactionIdOutOfOrder):
                writer.write(rec(50))
    assert not [one for one in caplog.records if "not known to be durable" in one.message]
    del writer  # the reference kept it in memory until here


def run_to_its_end(*lines: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + "\n".join(lines)],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip


class RaiseAt:
    """Interrupts the ``nth`` point at which CPython looks for signals: a call's begin, a C call's end."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise Interrupted


def test_a_write_interrupted_at_any_point_leaves_no_other_one_hanging() -> None:
    """The first of a burst and a later one. The record is in once, or not; the others have their outcome."""
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        log = namespace.open_log("l", config={"max_txid_check": False})
        points = 0
        with log.open_writer() as writer:
            for first in (True, False):
                for nth in range(1, 200):
                    pendings = [] if first else [writer.submit(rec(0, b"before"))]
                    raise_at = RaiseAt(nth)
                    try:
                        sys.setprofile(raise_at)
                        pendings.append(writer.submit(rec(0, b"%d.%d" % (first, nth))))
                    except Interrupted:
                        points += 1
                    finally:
                        sys.setprofile(None)
                    pendings.append(writer.submit(rec(0, b"after")))
                    for pending in pendings:
                        pending.result(10)
                    if raise_at.left > 0:
                        break
                else:
                    raise AssertionError("a write has no 200 points")
            assert points > 10
            writer.commit()
        with log.open_reader(to="end") as reader:
            found = [bytes(r.payload) for r in reader]
        numbered = [one for one in found if b"." in one]
        assert len(numbered) == len(set(numbered))


def test_a_call_interrupted_at_any_point_leaves_the_loop_running() -> None:
    """Nothing that the loop needs may stay locked in a thread that was interrupted inside of it."""
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        namespace.create_log("l")
        for nth in range(1, 500):
            raise_at = RaiseAt(nth)
            try:
                sys.setprofile(raise_at)
                assert namespace.log_exists("l")
            except Interrupted:
                pass
            finally:
                sys.setprofile(None)
            alive = threading.Event()
            namespace._background.post(alive.set)
            assert alive.wait(10)
            if raise_at.left > 0:
                break
        assert 10 < nth < 499


def points_of(call: Callable[[], Any], after: Callable[[Any], None]) -> int:
    """A call, interrupted at each point of it in turn, then left alone; how many there are. ``after`` is
    given what it gave, or None."""
    for nth in range(1, 1000):
        raise_at, found = RaiseAt(nth), None
        try:
            sys.setprofile(raise_at)
            found = call()
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        after(found)
        if raise_at.left > 0:
            return nth
    raise AssertionError("a call has no 1,000 points")


def test_a_claim_interrupted_at_any_point_is_had_by_the_next_who_asks() -> None:
    """And so is an end of one: it is done, or it is not, and then the next one has it."""
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        log = namespace.open_log("l")
        with log.open_writer() as writer:
            writer.write(rec(1))
        with log.work_queue("q", tries_max=10_000) as queue:

            def had(claim: Any) -> None:
                if claim is None:
                    claim = queue.claim(wait_s=FREE_S)
                assert claim is not None, "a stretch is nobody's"
                claim.release()

            assert points_of(lambda: queue.claim(wait_s=FREE_S), had) > 10

            claims: list[Any] = [queue.claim(wait_s=FREE_S)]

            def back(_: None) -> None:
                with suppress(ClaimLost):  # or it was given back before
                    claims.pop().release()
                claims.append(queue.claim(wait_s=FREE_S))
                assert claims[0] is not None, "a stretch is nobody's"

            assert points_of(lambda: claims[0].release(), back) > 10
            claims[0].done()
            assert queue.state().items == ()


def test_a_commit_interrupted_at_any_point_leaves_the_subscription_in_use() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        log = namespace.open_log("l")
        with log.open_writer() as writer:
            writer.write_bulk([rec(txid) for txid in range(1000)])
        with log.subscribe("s", wait_s=FREE_S) as subscription:
            txids = []

            def commit() -> None:
                subscription.commit(now=True)

            def read(_: None) -> None:
                record = subscription.reader.read_next(wait_s=FREE_S)
                assert record is not None
                txids.append(record.txid)

            assert points_of(commit, read) > 10
            commit()
            assert txids == list(range(len(txids)))
            assert subscription.committed == log.positions.get("s")
        with log.subscribe("s", wait_s=FREE_S) as subscription:
            read(None)
            assert txids[-2:] == [len(txids) - 2, len(txids) - 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_namespace_interrupted_at_any_point_of_its_life_ends() -> None:
    """From ``with open_namespace()`` to its end, the start of the thread included: ``__enter__`` and
    ``__exit__`` return, and no loop goes on that nobody can stop."""
    opened = []
    for nth in range(1, 2000):
        manager = blocking._Opened(model_namespace(), "test", Namespace)
        opened.append(manager._background)
        raise_at = RaiseAt(nth)
        ended = threading.Event()
        threading.Thread(target=abort_unless, args=(ended, 60), daemon=True).start()
        try:
            sys.setprofile(raise_at)
            with manager as namespace, namespace.open_log("l").open_writer() as writer:
                writer.submit(rec(1))
        except Interrupted:
            pass
        except RuntimeError:  # "release unlocked lock": `threading`, interrupted in its own code
            pass
        finally:
            sys.setprofile(None)
            ended.set()
        if raise_at.left > 0:
            break
    assert 100 < nth < 1999
    for background in opened:
        background.stop(10)
        hops = background._callback_queue
        if hops is not None:
            with pytest.raises(OSError):
                ends_soon(hops)


def ends_soon(hops: CallbackQueue) -> None:
    """Ask the loop for a sign of life until it says that it has ended."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        hops.post(lambda: None)
        time.sleep(0.001)


def abort_unless(ended: threading.Event, wait_s: float) -> None:
    """End the process with all its stacks, rather than wait for ever."""
    if not ended.wait(wait_s):
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


def test_nothing_is_waited_for_after_the_end_of_a_write_buffer() -> None:
    """The word that there is something comes late, or was the last of a write that was interrupted."""

    async def main() -> None:
        background: Any = Late()
        async with model_namespace() as namespace:
            log = namespace.open_log("l")
            buffer = await open_buffer(background, namespace, log, log.open_writer())
            buffer.append(rec(1))
            await buffer.abort()
            await trio.testing.wait_all_tasks_blocked()
            for callback in background.posted:
                callback()
            with trio.fail_after(1), pytest.raises(AlreadyClosed):
                await buffer.commit()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Late:
    """A background whose callbacks are called by the test."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], object]] = []

    def post(self, callback: Callable[[], object]) -> None:
        self.posted.append(callback)

    def watch_writes(self, writes: object) -> None:
        """Nothing ends here."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_is_told_so_whatever_the_parent_was_doing() -> None:
    """Also where a thread of the parent was in the middle of a write, and where a record was buffered."""
    with (
        blocking._Opened(model_namespace(), "test", Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
    ):
        writer.submit(rec(1)).result()
        with writer._buffer._mutex:  # another thread's, or the loop's
            child = os.fork()
            if child == 0:
                signal.alarm(10)  # ends it, rather than let it wait for ever
                try:
                    writer.submit(rec(2))
                except AlreadyClosed as error:
                    os._exit(0 if "forked" in str(error) else 2)
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        writer.submit(rec(2)).result()


def interrupt_writes(namespace: Namespace, number: int) -> int:
    """So many writes that are interrupted, at random moments; how many were written beside them."""
    chance = random.Random(7)
    log = namespace.open_log("l", config={"max_txid_check": False})
    pendings: list[Any] = []
    stopped = value = 0
    with log.open_writer() as writer:

        def burst() -> None:
            nonlocal value
            while True:
                value += 1
                pendings.append(writer.submit(rec(0, b"%d" % value)))

        with alarms():
            while stopped < number:
                assert interrupted(burst, chance.uniform(1e-6, 1e-4)) is None
                stopped += 1
                if stopped % 100 == 0:
                    for pending in pendings[-3:]:
                        pending.result(30)
        hanging = 0
        for pending in pendings:
            try:
                pending.result(30)
            except FutureTimeout:
                hanging += 1
        assert hanging == 0
        dlsns = [pending.result() for pending in pendings]
        assert dlsns == sorted(set(dlsns))
        writer.commit()
    with log.open_reader(to="end") as reader:
        found = [int(r.payload) for r in reader]
    assert found == sorted(set(found))  # each at most once, in order
    assert len(found) >= len(pendings)
    return len(pendings)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ten_thousand_interrupted_writes_leave_none_hanging() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        assert interrupt_writes(namespace, WRITES) > 0


# --- reads ----------------------------------------------------------------------------------------


async def write_slowly(write: Callable[[LogRecord], Awaitable[object]], sleep: Any) -> None:
    for txid in range(300):
        await write(rec(txid))
        await sleep(0.0005)


def test_cancelled_reads_lose_no_record_in_the_asyncio_face() -> None:
    """``asyncio.wait_for(reader.read_next(), t)`` is ordinary: what came meanwhile is the next call's."""

    async def main() -> None:
        chance = random.Random(3)
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            log = namespace.open_log("l")
            async with log.open_writer() as writer, log.open_reader() as reader:
                writing = asyncio.create_task(write_slowly(writer.write, asyncio.sleep))
                found: list[int] = []
                end = time.monotonic() + 30
                while len(found) < 300:
                    assert time.monotonic() < end, f"only {found}"
                    with suppress(asyncio.TimeoutError):
                        wait_s = chance.uniform(0, 0.002)
                        if chance.random() < 0.5:
                            record = await asyncio.wait_for(reader.read_next(), wait_s)
                            assert record is not None
                            found.append(record.txid)
                        else:
                            many = await asyncio.wait_for(reader.read_bulk(5, wait_s=9), wait_s)
                            found += [one.txid for one in many]
                await writing
        assert found == list(range(300))

    asyncio.run(main())


def test_cancelled_reads_lose_no_record_in_the_trio_face() -> None:
    async def main() -> None:
        chance = random.Random(3)
        async with model_namespace() as namespace, trio.open_nursery() as nursery:
            log = namespace.open_log("l")
            async with log.open_writer() as writer, log.open_reader() as reader:
                nursery.start_soon(write_slowly, writer.write, trio.sleep)
                found: list[int] = []
                while len(found) < 300:
                    with trio.move_on_after(chance.uniform(0, 0.01)):
                        if chance.random() < 0.5:
                            record = await reader.read_next()
                            assert record is not None
                            found.append(record.txid)
                        else:
                            found += [one.txid for one in await reader.read_bulk(5, wait_s=9)]
        assert found == list(range(300))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_cancelled_wait_for_a_change_loses_none() -> None:
    async def main() -> None:
        names = [f"l{number:03d}" for number in range(100)]
        opened = aio._Opened(model_namespace(), "test", aio.Namespace)
        async with opened as namespace, namespace.watch_logs() as watch:

            async def create() -> None:
                for name in names:
                    await namespace.create_log(name)

            creating = asyncio.create_task(create())
            found: list[str] = []
            end = time.monotonic() + 30
            while len(found) < len(names):
                assert time.monotonic() < end, f"only {found}"
                with suppress(asyncio.TimeoutError):
                    change = await asyncio.wait_for(watch.next(), 0.0003)
                    assert change is not None
                    found.append(change.name)
            await creating
        assert found == names

    asyncio.run(main())


if __name__ == "__main__":
    for kind in KINDS:
        for test in (
            test_interrupted_opens_leave_nothing_behind_in_the_blocking_face,
            test_cancelled_opens_leave_nothing_behind_in_the_asyncio_face,
            test_cancelled_opens_leave_nothing_behind_in_the_trio_face,
        ):
            test(kind)
            print(f"{test.__name__.rsplit('_', 2)[-2]}: {OPENS} opens of a {kind}: nothing is left")
    test_ten_thousand_interrupted_writes_leave_none_hanging()
    print(f"{WRITES} interrupted writes: none hangs")


async def let_it_end(call: Any) -> None:
    """Begin a call, and cancel it when the loop has done it and nobody was told yet."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 the event loop must not see the outcome
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_call_keeps_no_claim_and_loses_no_byte_in_the_asyncio_face() -> None:
    """What the loop found for it is the next one's, here or, a second later, anywhere."""

    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            await namespace.create_log("b", txids="bytes")
            log = namespace.open_log("b")
            async with log.open_byte_writer() as writer:
                await writer.write(bytes(range(100)))
            async with (
                log.open_byte_reader() as reader,
                log.work_queue("q") as mine,
                log.work_queue("q") as theirs,
            ):
                await let_it_end(reader.read(10))
                assert await reader.tell() == 0
                assert await reader.read(10) == bytes(range(10))
                await let_it_end(reader.read())
                assert await reader.seek(10, 1) == 20
                assert await reader.read() == bytes(range(20, 100))

                await let_it_end(mine.claim(wait_s=0))
                claim = await theirs.claim(wait_s=5)
                assert claim is not None
                assert claim.tries == 1
                await claim.done()

    asyncio.run(main())
