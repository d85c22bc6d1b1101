"""A trio run in a background thread, on which the blocking and asyncio APIs are built.

Longer calls (open, close, read) are one task each: `Background.run`, or `submit` for callers that do not
block. Work per record is a callback (`post`). Callbacks gather in a deque, and a burst of them costs one
wakeup of the event loop (`CallbackQueue`).

Signal handlers and finalizers interrupt the code of their thread at any point. The event loop never blocks on
a lock that a caller holds. A call that would wait for a step that its own thread has interrupted raises
`InvalidRequest` (`Background.check_may_wait`). The event loop itself calls no users' code: other threads call
callbacks and handle log lines (`CallbackThread`).

The thread is a daemon thread, and stops when the interpreter exits. The exit waits for submitted records for
`EXIT_S_MAX`. A child of ``fork()`` has no such thread, and its first call raises an error (H15).
"""

import atexit
import contextlib
import socket
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from functools import partial
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import trio

from ..interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    UnsupportedPlatform,
)
from ..interfaces.log_lines import get_logger, start_queueing_lines, stop_queueing_lines
from ..process.fork_safety import forked_message, watch_forks

SWITCH_INTERVAL_S = 0.0005
"""How long a computing thread may keep the interpreter from the event loop. With the default of 5 ms, a write
of 0.1 ms takes 10 ms next to a busy main thread (H27)."""
EXIT_S_MAX = 5.0
"""How long the interpreter's exit waits for submitted records, and then for the event loop to end."""
DROP_CHECK_INTERVAL_S = 0.5
"""How often the event loop checks for dropped objects whose finalizer was interrupted."""
CALLBACK_WAIT_MAX_S = 2.0
"""How long the end of an event loop waits for users' callbacks, and for handlers of log lines."""
LOGS_NAMED_MAX = 5
"""The number of logs that a line about lost records names."""
LOG_LINES_MAX = 10_000
"""The number of log lines that wait for their handlers. Further lines are dropped and counted."""

WAKE_BYTES_READ = 4096
"""The number of wakeups that are handled as one; further ones wake the event loop again."""

Mutex = threading.RLock
"""Guards data that an API's callers and its event loop share. It is held for a few statements, never while
waiting.

It is reentrant, because a signal handler or a finalizer may interrupt those statements and call again. Each
entry checks for that and raises an error (`has_interrupted`), because blocking there would never end.
"""

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

log = get_logger("distributedlog.runtime")

INTERRUPTING_TEXT = (
    "a signal handler or a finalizer has interrupted a call of this client, and calls it again"
)

_UNINTERRUPTED: set[CodeType] = set()


def uninterrupted(function: F) -> F:
    """Mark a method that must end before another call of the same thread can wait for the event loop.

    Its object is a `Background`, or has one as ``_background``. The mark adds no cost to calls.
    """
    _UNINTERRUPTED.add(function.__code__)
    return function


def has_interrupted(background: "Background", depth: int = 0) -> bool:
    """Return whether this thread has interrupted a method of this client that is marked `uninterrupted`.

    This is the case in a signal handler or a finalizer that runs in the middle of such a method, because
    Python calls it on top of that frame.

    Args:
        depth: The number of frames above the caller's that are skipped.
    """
    frame = sys._getframe(depth + 1)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code in _UNINTERRUPTED:
            interrupted = frame.f_locals["self"]
            if interrupted is background or getattr(interrupted, "_background", None) is background:
                return True
    return False


class CallbackQueue:
    """Callbacks for another thread's event loop, with one wakeup per burst.

    ``wake`` makes the loop call `drain` soon. Callbacks run in the order of their posts, and must not raise.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._posted: deque[Callable[[], object]] = deque()
        self._wake_pending = False
        """True if a drain will follow, or if a thread is about to wake the loop for one."""

    def post(self, callback: Callable[[], object], *, urgent: bool = False) -> None:
        """Call ``callback`` in the event loop soon. From any thread. Raises the errors of ``wake``.

        There is no lock. A signal handler or a finalizer may interrupt this method anywhere and post too, and
        the loop waits for neither.

        Args:
            urgent: Wake the loop in any case, because the thread that should wake it may be in such a handler
                for long.
        """
        self._posted.append(callback)
        if urgent or not self._wake_pending:
            try:
                self._wake_pending = True
                self._wake()
            except BaseException:
                self._wake_pending = False  # after an interrupt too, the next post wakes the loop
                raise

    def drain(self) -> None:
        """Call all callbacks that were posted so far, in the event loop."""
        self._wake_pending = False  # later posts wake the loop again
        for _ in range(len(self._posted)):
            self._posted.popleft()()


def _send_wakeup(sender: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):  # the full socket already wakes the loop
        sender.send(b"\0")


class CrossThreadFuture(Generic[T]):
    """A result that the event loop passes to a waiting thread. The loop sets it once.

    This is not a `concurrent.futures.Future`. The condition of that class is Python code, and an interrupt
    (Ctrl-C) in the middle of it leaves it locked forever. The event loop needs that lock to set the result,
    and would block. Here, the loop takes no lock.
    """

    __slots__ = ("_callbacks", "_done_lock", "_error", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[], object]] = deque()
        self._done_lock = threading.Lock()
        self._done_lock.acquire()

    def set(self, value: T) -> None:
        """Set the value, unless there is an outcome already."""
        if not self.is_done:
            self._value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Set an error, unless there is an outcome already."""
        if not self.is_done:
            self._error = error
            self._finish()

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the outcome, and return the value or raise the error.

        Raises:
            TimeoutError: There is no outcome within ``timeout_s``.
        """
        if not self.is_done and self._done_lock.acquire(
            timeout=-1 if timeout_s is None else max(0.0, timeout_s)
        ):
            self._done_lock.release()  # for other waiting threads
        if not self.is_done:
            raise TimeoutError
        return self.result()

    def result(self) -> T:
        """Return the value or raise the error of an existing outcome."""
        assert self.is_done, "the outcome is not set yet"
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a callback once, in the event loop, or here if the outcome exists. It must not raise."""
        self._callbacks.append(callback)
        if self.is_done:
            self._run_callbacks()

    def _finish(self) -> None:
        self.is_done = True
        self._done_lock.release()
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()


class MonotonicClock(trio.abc.Clock):
    """The monotonic clock, with the function that the `time` module had when this module was loaded.

    Trio's default clock looks up its function in a module, where freezegun replaces it. Then no timeout would
    ever end.
    """

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds

    def start_clock(self) -> None:
        """Do nothing, because the clock runs already."""

    def current_time(self) -> float:
        """Return seconds since an arbitrary time."""
        return self._seconds()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the seconds until the deadline."""
        return deadline - self.current_time()


def check_threads_are_real() -> None:
    """Raise `UnsupportedPlatform` if threads were replaced by greenlets: the loop needs a real thread."""
    for module, patched, part in (
        ("gevent.monkey", "is_module_patched", "threading"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ):
        if module in sys.modules and getattr(sys.modules[module], patched)(part):
            raise UnsupportedPlatform(
                f"{module} has replaced threads by greenlets, and the client needs real ones. Do not patch "
                "threads in this process, use the client in a separate process (multiprocessing, start "
                "method spawn), or write through the HTTP gateway"
            )


class CallbackThread:
    """Call users' code in a separate thread, in order.

    That code may take long, or wait for the event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        """True when the thread has ended; `put` then makes the calls."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return self._calls.qsize()

    def put(self, call: Callable[[], object]) -> None:
        """Call ``call`` in the thread. From any thread; does not wait while the thread runs."""
        self._calls.put(call)
        if self._has_ended:
            self._make_calls(wait=False)

    def start(self) -> None:
        """Start the thread once, before the event loop, which must not wait for the lock in this call."""
        if not self._has_ended:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self, *, wait: bool = True) -> None:
        """Make the waiting calls, and end the thread.

        Waits for `CALLBACK_WAIT_MAX_S`, except in that thread itself.
        """
        thread = self._thread
        if thread is None:
            self._has_ended = True
            self._make_calls(wait=False)
        elif thread.is_alive():
            self._calls.put(None)
            if wait and thread is not threading.current_thread():
                thread.join(CALLBACK_WAIT_MAX_S)

    def _run(self) -> None:
        self._make_calls(wait=True)
        self._has_ended = True
        self._make_calls(wait=False)  # calls that were put before `_has_ended` was set

    def _make_calls(self, *, wait: bool) -> None:
        with contextlib.suppress(Empty):
            while (call := self._calls.get(block=wait)) is not None:
                try:
                    call()
                except BaseException:  # users' code must not end this thread by an exit either
                    with contextlib.suppress(Exception):
                        traceback.print_exc()  # not a log line: a handler of log lines may have failed


class UnsettledWrites(Protocol):
    """A buffer of submitted records, for the end of its namespace or of the interpreter."""

    name: str
    """The name of the log."""

    async def settle(self) -> None:
        """Wait, in the event loop, until the outcome of each record is known.

        Raises no `DistributedLogError`.
        """
        ...

    @property
    def not_durable(self) -> int:
        """The number of accepted records that are not known to be durable."""
        ...


class Background:
    """A trio run in a separate thread.

    Args:
        name: The name of the thread.
        quick_switches: Set the interpreter's switch interval to half a millisecond, for the whole process and
            permanently (H27).
    """

    def __init__(self, name: str = "distributedlog", *, quick_switches: bool = False) -> None:
        self.name = name
        self._quick_switches = quick_switches
        self._thread: threading.Thread | None = None
        self._ident = 0
        """The identifier of that thread while it runs."""
        self._callback_queue: CallbackQueue | None = None
        self._sockets: tuple[socket.socket, ...] = ()
        """A socket pair that wakes the event loop."""
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._pending_outcomes: set[CrossThreadFuture[Any]] = set()
        self._started = False
        """True if `Thread.start` has returned. If it was interrupted, the thread may run, or never start."""
        self._stopping = False
        """True if all present and future calls must end."""
        self._closed_reason = f"{name}: the background loop was not started"
        self._close_on_drop: dict[weakref.ref[object], Callable[[], Awaitable[object]]] = {}
        self._dropped_refs: deque[weakref.ref[object]] = deque()
        self._users: set[weakref.ref[object]] = set()
        self._had_user = self._is_ending = False
        """True if there was a user object and all of them were dropped, so that the event loop ends."""
        self._writes: weakref.WeakSet[UnsettledWrites] = weakref.WeakSet()
        self._lost_records: dict[str, int] = {}
        """Records that were not known to be durable when their writer was dropped, by log."""
        self._callback_thread = CallbackThread(f"{name}: callbacks")
        self._log_line_thread = CallbackThread(f"{name}: log lines")
        self._dropped_lines = 0

    def start(self) -> None:
        """Start the thread, and return when it accepts calls. Only once."""
        assert self._thread is None, "started once only"
        check_threads_are_real()
        if self._quick_switches:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        running: CrossThreadFuture[None] = CrossThreadFuture()
        self._thread = threading.Thread(
            target=self._run_thread, args=(running,), name=self.name, daemon=True
        )
        self._thread.start()
        self._started = True
        running.wait()
        self._raise_failure()
        _running.add(self)
        watch_forks(self)

    def run(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run a call in the event loop and return its result. From any thread except that of the loop.

        If the caller is interrupted (Ctrl-C), the call is cancelled.

        Raises:
            AlreadyClosed: The event loop does not run, or was stopped during the call.
            InvalidRequest: Waiting here would last forever (`check_may_wait`).
        """
        self.check_may_wait()
        outcome: CrossThreadFuture[T] = CrossThreadFuture()
        scope = trio.CancelScope()
        try:
            self.begin(outcome, scope, partial(call, *args, **options))
            return outcome.wait()
        except BaseException:
            self.cancel(scope)
            raise

    def wait(self, outcome: CrossThreadFuture[T], timeout_s: float | None = None) -> T:
        """Wait for an outcome as `CrossThreadFuture.wait` does.

        Raises `InvalidRequest` as `check_may_wait` does.
        """
        self.check_may_wait()
        return outcome.wait(timeout_s)

    def check_may_wait(self) -> None:
        """Raise `InvalidRequest` if waiting for the event loop in this thread would last forever.

        This is the case in the loop's own thread, where a finalizer may run. It is also the case in a signal
        handler or a finalizer that has interrupted a step of this client that the loop needs.
        """
        if threading.get_ident() == self._ident:
            raise InvalidRequest(f"{self.name}: a blocking call in the loop that would serve it")
        if has_interrupted(self):
            raise InvalidRequest(
                f"{self.name}: {INTERRUPTING_TEXT}; nothing was done. Set a flag or use another thread"
            )

    def submit(self, call: Callable[..., Awaitable[T]], *args: object) -> "Future[T]":
        """Run ``call(*args)`` in the event loop as a task. Cancelling the future cancels it.

        Raises `AlreadyClosed`, as the future does when the loop is stopped. For threads that no signal
        interrupts (see `CrossThreadFuture`).
        """
        future: Future[T] = Future()
        outcome: CrossThreadFuture[T] = CrossThreadFuture()
        scope = trio.CancelScope()

        def settle() -> None:
            with contextlib.suppress(InvalidStateError):  # the future was cancelled concurrently
                try:
                    future.set_result(outcome.result())
                except InvalidStateError:
                    raise
                except BaseException as error:
                    future.set_exception(error)

        outcome.add_done_callback(settle)
        self.begin(outcome, scope, call, *args)
        future.add_done_callback(lambda done: self.cancel(scope) if done.cancelled() else None)
        return future

    def begin(
        self,
        outcome: CrossThreadFuture[T],
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        *args: object,
    ) -> None:
        """Start ``call(*args)`` in the event loop as a task, in ``scope``. Raises `AlreadyClosed`.

        The outcome is always set, with `AlreadyClosed` if the call was cancelled or the loop is stopped.
        """
        # Before the check whether the loop runs, because the end of the loop fails these outcomes.
        self._pending_outcomes.add(outcome)
        try:
            self.post(lambda: self._start_call(outcome, scope, call, args), urgent=True)
        except BaseException:  # after an interrupt no caller waits, and the call may run or not
            self._pending_outcomes.discard(outcome)
            raise

    def fail_when_ended(
        self, outcome: CrossThreadFuture[None], check: Callable[[], object]
    ) -> None:
        """Fail an outcome with `AlreadyClosed` if the event loop ends before the outcome is set.

        ``check`` is called in the loop, as with `post`. No task is needed, so callers can wait often.
        """
        self._pending_outcomes.add(outcome)  # before the check whether the loop runs, as in `begin`
        outcome.add_done_callback(partial(self._pending_outcomes.discard, outcome))
        try:
            self.post(check, urgent=True)
        except AlreadyClosed as error:
            outcome.fail(error)

    def call_in_thread(self, callback: Callable[[], object]) -> None:
        """Call a callback in a separate thread, in order, because users' code may take long or wait.

        From any thread. After the event loop has ended, it is called here. Its exceptions are printed.
        """
        self._callback_thread.put(callback)

    def handle_log_line(self, handler: Callable[[], object]) -> None:
        """Handle a log line in a separate thread."""
        if len(self._log_line_thread) >= LOG_LINES_MAX:
            self._dropped_lines += 1
            return
        dropped_count, self._dropped_lines = self._dropped_lines, 0
        if dropped_count:
            text = "%d log lines were dropped: their handlers were too slow"
            self._log_line_thread.put(partial(log.warning, text, dropped_count))
        self._log_line_thread.put(handler)

    def warn(self, text: str, stacklevel: int) -> None:
        """Issue a `ResourceWarning` from a finalizer, but not in the event loop: users' code may show it."""
        if threading.get_ident() == self._ident:
            self.handle_log_line(partial(warnings.warn, text, ResourceWarning, 1))
        else:
            warnings.warn(text, ResourceWarning, stacklevel + 1)

    def cancel(self, scope: trio.CancelScope) -> None:
        """Cancel a call that was started in a scope. From any thread; does not wait."""
        with contextlib.suppress(AlreadyClosed):
            self.post(scope.cancel)

    def post(self, callback: Callable[[], object], *, urgent: bool = False) -> None:
        """Call ``callback`` in the event loop, soon and in order. A burst costs one wakeup.

        A callback that raises an error ends the loop. Raises `AlreadyClosed`. For ``urgent``, see
        `CallbackQueue.post`.
        """
        self.check_running()
        assert self._callback_queue is not None
        try:
            self._callback_queue.post(callback, urgent=urgent)
        except OSError:  # the socket is closed
            raise AlreadyClosed(self._closed_reason or f"{self.name}: the loop has ended") from None

    def check_running(self) -> None:
        """Raise `AlreadyClosed`, with the reason, if the event loop does not run."""
        if self._closed_reason:
            raise AlreadyClosed(self._closed_reason)

    def spawn(self, call: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a call from the event loop without a waiting caller. Its errors are logged."""
        if self._nursery is not None:
            self._nursery.start_soon(self._run_detached, call, args)

    async def _run_detached(
        self, call: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> None:
        try:
            await call(*args)
        except DistributedLogError as error:
            log.info("%s: %s", self.name, error)
        except Exception:
            log.exception("%s: a background call failed", self.name)

    def close_on_drop(
        self, owned: object, close: Callable[[], Awaitable[object]]
    ) -> "weakref.ref[object]":
        """Run ``close`` in the event loop soon after ``owned`` was dropped, unless it is unregistered first.

        A weak reference records the drop in C code. A finalizer would be faster but is not reliable. It is
        Python code in the thread that drops the object, where an interrupt (a second Ctrl-C) may end it
        unnoticed.

        Returns:
            A reference for `unregister` and `close_dropped`.
        """
        drop_ref = weakref.ref(owned, self._dropped_refs.append)
        self._close_on_drop[drop_ref] = close
        return drop_ref

    def unregister(self, drop_ref: "weakref.ref[object]") -> None:
        """Remove an object that was closed. From any thread."""
        self._close_on_drop.pop(drop_ref, None)
        self._end_if_unused()

    def close_dropped(self, drop_ref: "weakref.ref[object]") -> None:
        """Close an object that was dropped. Only in the event loop."""
        close = self._close_on_drop.pop(drop_ref, None)
        if close is not None:
            self.spawn(close)
            self._end_if_unused()

    def register_user(self, user: object) -> None:
        """Record an object through which a caller uses this client.

        When all of them and all objects of `close_on_drop` are dropped, no caller can close the client. It
        then ends with a `ResourceWarning`.
        """
        self._had_user = True
        self._users.add(weakref.ref(user, self._on_user_dropped))

    def _on_user_dropped(self, user: "weakref.ref[object]") -> None:
        self._users.discard(user)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if (
            self._users
            or self._close_on_drop
            or self._closed_reason
            or self._is_ending
            or not self._had_user
        ):
            return
        self._is_ending = True
        with contextlib.suppress(AlreadyClosed):
            self.post(lambda: self.spawn(self._end_unused))
            self.warn(f"{self.name}: it was dropped unclosed, and is closed now", stacklevel=3)

    async def _end_unused(self) -> None:
        await self._settle(EXIT_S_MAX)
        if lost_by_log := self.not_durable():
            log.warning(
                "%s; their writers and their namespace were dropped unclosed",
                lost_records_text(lost_by_log),
            )
        self.begin_stop()
        self._callback_thread.end(wait=False)
        self._log_line_thread.end(wait=False)
        _running.discard(self)

    def watch_writes(self, writes: UnsettledWrites) -> None:
        """Wait for these records when the namespace or the interpreter ends, and report those that remain."""
        self._writes.add(writes)

    def record_lost(self, writes: UnsettledWrites) -> None:
        """Record the writes whose writer was dropped without being closed. Only in the event loop."""
        if record_count := writes.not_durable:
            self._lost_records[writes.name] = self._lost_records.get(writes.name, 0) + record_count

    def settle(self, wait_s: float) -> CrossThreadFuture[None]:
        """Wait, in the event loop, for all accepted records, for at most ``wait_s``."""
        settled: CrossThreadFuture[None] = CrossThreadFuture()
        try:
            self.begin(settled, trio.CancelScope(), self._settle, wait_s)
        except AlreadyClosed:
            settled.set(None)
        return settled

    async def _settle(self, wait_s: float) -> None:
        with trio.move_on_after(wait_s):
            async with trio.open_nursery() as nursery:
                for writes in list(self._writes):
                    nursery.start_soon(writes.settle)

    def not_durable(self) -> dict[str, int]:
        """Return how many accepted records are not known to be durable, by log."""
        counts = dict(self._lost_records)
        for writes in list(self._writes):
            if record_count := writes.not_durable:
                counts[writes.name] = counts.get(writes.name, 0) + record_count
        return counts

    def stop(self, wait_s: float | None = None) -> None:
        """Cancel all calls, and wait for the end (at most ``wait_s``). Idempotent.

        Raises the error that ended the event loop, if any. If it was interrupted, it may be called again.
        """
        self.check_may_wait()
        thread = self._thread
        self.begin_stop()
        if thread is not None and self._started:
            thread.join(wait_s)
        self._callback_thread.end()
        self._log_line_thread.end()
        _running.discard(self)
        self._raise_failure()

    def begin_stop(self, reason: str = "the background loop was stopped") -> None:
        """Cancel all calls without waiting."""
        self._stopping = True
        self._closed_reason = self._closed_reason or f"{self.name}: {reason}"
        if self._callback_queue is not None:  # otherwise, the loop ends when it starts
            with contextlib.suppress(OSError):
                self._callback_queue.post(self._cancel, urgent=True)

    def on_forked(self) -> None:
        """Mark the copy in a forked child as closed, because the child has no such thread (H15)."""
        self._closed_reason = forked_message(f"{self.name}: the background loop")
        self._thread = self._callback_queue = None
        for wake_socket in self._sockets:
            wake_socket.close()
        self._callback_thread, self._log_line_thread = CallbackThread(""), CallbackThread("")
        self._writes, self._lost_records = weakref.WeakSet(), {}
        _running.discard(self)

    def _run_thread(self, running: CrossThreadFuture[None]) -> None:
        self._ident = threading.get_ident()
        start_queueing_lines(self.handle_log_line)
        try:
            self._callback_thread.start()
            self._log_line_thread.start()
            trio.run(self._main, running, clock=MonotonicClock())
        except BaseException as error:
            self._fail(error)
        finally:
            stop_queueing_lines()
            self._ident = 0  # another thread may get this identifier
            self._closed_reason = (
                self._closed_reason or f"{self.name}: the background loop has ended"
            )
            for outcome in list(self._pending_outcomes):  # their callbacks will never run
                outcome.fail(AlreadyClosed(self._closed_reason))
            running.set(None)

    async def _main(self, running: CrossThreadFuture[None]) -> None:
        receiver, sender = socket.socketpair()
        with receiver, sender:
            receiver.setblocking(False)
            sender.setblocking(False)
            self._sockets = receiver, sender
            self._callback_queue = CallbackQueue(partial(_send_wakeup, sender))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._stopping:
                    return
                self._closed_reason = ""
                running.set(None)
                nursery.start_soon(self._run_posted, receiver)
                while True:
                    await trio.sleep(DROP_CHECK_INTERVAL_S)
                    self._drain()  # callbacks of threads that were interrupted before they woke the loop
                    while self._dropped_refs:
                        self.close_dropped(self._dropped_refs.popleft())

    async def _run_posted(self, receiver: socket.socket) -> None:
        """Call posted callbacks until cancelled.

        Trio's ``run_sync_soon`` is not used. It has a lock that a thread may hold while a finalizer runs on
        top of it, and the event loop takes the same lock when it posts.
        """
        while True:
            await trio.lowlevel.wait_readable(receiver)
            with contextlib.suppress(BlockingIOError):
                receiver.recv(WAKE_BYTES_READ)
            self._drain()

    def _drain(self) -> None:
        assert self._callback_queue is not None
        try:
            self._callback_queue.drain()
        except Exception as error:
            self._fail(error)
            self._cancel()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._closed_reason = f"{self.name}: the background loop failed: {self._failure!r}"

    def _cancel(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def _start_call(
        self,
        outcome: CrossThreadFuture[T],
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
    ) -> None:
        if self._closed_reason or self._nursery is None:
            self._pending_outcomes.discard(outcome)
            outcome.fail(AlreadyClosed(self._closed_reason))
            return
        self._nursery.start_soon(self._run_call, outcome, scope, call, args)

    async def _run_call(
        self,
        outcome: CrossThreadFuture[T],
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
    ) -> None:
        try:
            with scope:
                outcome.set(await call(*args))
        except Exception as error:  # every exception is passed to the caller
            outcome.fail(error)
        finally:
            self._pending_outcomes.discard(outcome)
            outcome.fail(
                AlreadyClosed(self._closed_reason or f"{self.name}: the call was cancelled")
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class PendingOpen(Generic[T]):
    """An object that the event loop opens for a caller, with an owner at every moment.

    The caller waits for `start`. If it cannot keep the object, because it was interrupted or cancelled
    anywhere, it calls `abandon`, and the event loop closes the object. Put both calls into one ``try``. An
    interrupt after `start` then leads to `abandon`, and one before it has opened nothing.
    """

    def __init__(
        self,
        background: Background,
        open_value: Callable[[], Awaitable[T]],
        close_value: Callable[[T], Awaitable[object]],
    ) -> None:
        self._background = background
        self._open_value = open_value
        self._close_value = close_value
        self._scope = trio.CancelScope()
        self._opened: list[T] = []
        self._is_abandoned = False

    def start(self) -> CrossThreadFuture[T]:
        """Start to open the object; once. Raises `AlreadyClosed`, as the outcome does."""
        outcome: CrossThreadFuture[T] = CrossThreadFuture()
        self._background.begin(outcome, self._scope, self._open)
        return outcome

    def abandon(self) -> None:
        """Close the object when it is open. From any thread, in any state, repeatedly; does not wait."""
        with contextlib.suppress(AlreadyClosed):  # everything has ended with the loop
            self._background.post(self._close_abandoned)

    async def _open(self) -> T:
        value = await self._open_value()
        self._opened.append(value)
        if self._is_abandoned:
            self._close()
        return value

    def _close_abandoned(self) -> None:
        self._is_abandoned = True
        self._scope.cancel()
        self._close()

    def _close(self) -> None:
        while self._opened:
            self._background.spawn(self._close_value, self._opened.pop())


_running: "weakref.WeakSet[Background]" = weakref.WeakSet()


def lost_records_text(not_durable: Mapping[str, int]) -> str:
    """Return a line with the number of records per log."""
    sorted_logs = sorted(not_durable.items(), key=lambda name_and_count: -name_and_count[1])
    texts = [f'{number:,} of log "{name}"' for name, number in sorted_logs[:LOGS_NAMED_MAX]]
    other_logs = ["other logs"] if len(sorted_logs) > LOGS_NAMED_MAX else []
    return (
        f"{sum(not_durable.values()):,} submitted records are not known to be durable: "
        + ", ".join([*texts, *other_logs])
    )


def _stop_all() -> None:
    """Wait for submitted records at the interpreter's exit, report the others, and end the event loops."""
    running = list(_running)
    deadline = time.monotonic() + EXIT_S_MAX
    with contextlib.suppress(KeyboardInterrupt):  # an interrupt ends the wait
        for settled in [background.settle(EXIT_S_MAX) for background in running]:
            with contextlib.suppress(Exception):
                settled.wait(max(0.0, deadline - time.monotonic()))
    lost_by_log: dict[str, int] = {}
    for background in running:
        with contextlib.suppress(Exception):  # at exit no caller could handle it
            for name, record_count in background.not_durable().items():
                lost_by_log[name] = lost_by_log.get(name, 0) + record_count
            background.begin_stop(
                "the program is ending: submitted records were waited for, and it was closed"
            )
            background.stop(EXIT_S_MAX)
    if lost_by_log:
        with contextlib.suppress(Exception):
            print(
                f"distributedlog: {lost_records_text(lost_by_log)}. Close writers, or call commit(), "
                "before the program ends.",
                file=sys.stderr,
                flush=True,
            )


atexit.register(_stop_all)
