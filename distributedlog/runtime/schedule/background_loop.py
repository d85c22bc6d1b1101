"""A trio run in a background thread: what the blocking and asyncio faces stand on.

Calls of moment (open, close, read) are a task each: `Background.run`, or `submit` for whoever does not
block. What happens per record is a callback (`post`): callbacks gather in a deque, and a burst of them
costs one wake-up of the loop (`CallbackQueue`).

Signal handlers and finalizers interrupt the code of their thread at any point. The loop never blocks on a
lock that a caller holds. A call that would wait for a step that its own thread has interrupted raises
`InvalidRequest` (`Background.check_may_wait`). The loop itself calls no users' code: other threads call
callbacks and handle log lines (`CallbackThread`).

The thread is a daemon, and stopped when the interpreter exits. The exit waits for submitted records for
`EXIT_S_MAX`. A child of ``fork()`` has no such thread: its first call raises an error (H15).
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
"""How long a computing thread may keep the interpreter from the loop: 5 ms by default, which makes a
write of 0.1 ms one of 10 ms beside a busy main thread (H27, measured)."""
EXIT_S_MAX = 5.0
"""How long the interpreter's exit waits for submitted records, and then for the loop to end."""
DROP_CHECK_INTERVAL_S = 0.5
"""How often the loop looks for what was dropped and whose finalizer was interrupted."""
CALLBACK_WAIT_MAX_S = 2.0
"""How long the end of a loop waits for users' callbacks, and for handlers of log lines."""
LOGS_NAMED_MAX = 5
"""Logs that a line about lost records names."""
LOG_LINES_MAX = 10_000
"""Log lines that wait for their handlers; those beyond are dropped and counted."""

WAKE_BYTES_READ = 4096
"""Wake-ups that are taken for one; more of them wake the loop again."""

Mutex = threading.RLock
"""Guards what a face's callers and its loop both touch; held for a few statements, never while waiting.

Reentrant, because a signal handler or a finalizer may interrupt those statements and call again. Each entry
checks for that and raises (`has_interrupted`): blocking there would never end.
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
    """Mark a method that must end before another call of the same thread can wait for the loop.

    Its object is a `Background`, or has one as ``_background``. The mark costs its calls nothing.
    """
    _UNINTERRUPTED.add(function.__code__)
    return function


def has_interrupted(background: "Background", depth: int = 0) -> bool:
    """Whether this thread has interrupted a method that is marked `uninterrupted`, of this client.

    True in a signal handler or a finalizer that runs in the middle of one: Python calls it on top of that
    frame. ``depth``: how many frames above the caller's are not looked at.
    """
    frame = sys._getframe(depth + 1)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code in _UNINTERRUPTED:
            interrupted = frame.f_locals["self"]
            if interrupted is background or getattr(interrupted, "_background", None) is background:
                return True
    return False


class CallbackQueue:
    """Callbacks on their way into another thread's loop; one wake-up a burst.

    ``wake`` has the loop call `drain` soon. Callbacks run in the order they were posted, and must not raise.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._posted: deque[Callable[[], object]] = deque()
        self._wake_pending = False
        """A drain is on its way, or its caller is about to wake the loop for one."""

    def post(self, callback: Callable[[], object], *, urgent: bool = False) -> None:
        """Have ``callback`` called in the loop, soon. From any thread. Raises as ``wake`` does.

        There is no lock: a signal handler or a finalizer may interrupt this anywhere and post too, and the
        loop does not wait for either. ``urgent``: wake the loop in any case, because the thread that was to
        wake it may be in such a handler for long.
        """
        self._posted.append(callback)
        if urgent or not self._wake_pending:
            try:
                self._wake_pending = True
                self._wake()
            except BaseException:
                self._wake_pending = False  # also after an interrupt: the next post wakes the loop
                raise

    def drain(self) -> None:
        """In the loop: call what was posted so far."""
        self._wake_pending = False  # later posts wake the loop again
        for _ in range(len(self._posted)):
            self._posted.popleft()()


def _send_wakeup(sender: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):  # it has enough to wake up for
        sender.send(b"\0")


class CrossThreadFuture(Generic[T]):
    """What the loop gives to a thread that waits for it. Set once, by the loop.

    No `concurrent.futures.Future`: its condition is Python code, and an interrupt (Ctrl-C) in the middle of
    it leaves it locked for ever; the loop, which needs it to tell, would stand still. Here it takes no lock.
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
        """Here it is; nothing where there is an outcome."""
        if not self.is_done:
            self._value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Here is why not; nothing where there is an outcome."""
        if not self.is_done:
            self._error = error
            self._finish()

    def wait(self, timeout_s: float | None = None) -> T:
        """The value, or the error raised. `TimeoutError` where there is none in time."""
        if not self.is_done and self._done_lock.acquire(
            timeout=-1 if timeout_s is None else max(0.0, timeout_s)
        ):
            self._done_lock.release()  # for whoever waits beside
        if not self.is_done:
            raise TimeoutError
        return self.result()

    def result(self) -> T:
        """The value, or the error raised, of an outcome that is there."""
        assert self.is_done, "asked before it is there"
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Have it called once, by the loop, or here where the outcome is there. It must not raise."""
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

    The default clock of trio finds its function in a module, and freezegun replaces it there. Then no timeout
    would ever end.
    """

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds

    def start_clock(self) -> None:
        """Nothing: it runs."""

    def current_time(self) -> float:
        """Seconds since some moment."""
        return self._seconds()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until then."""
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
    """Calls users' code in a separate thread, in order. That code may take long, or wait for the loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        """The thread has ended: `put` makes the calls."""

    def __len__(self) -> int:
        """How many calls wait."""
        return self._calls.qsize()

    def put(self, call: Callable[[], object]) -> None:
        """Have it called. From any thread; waits for nothing while the thread runs."""
        self._calls.put(call)
        if self._has_ended:
            self._make_calls(wait=False)

    def start(self) -> None:
        """Start the thread, once; before the loop runs, which must not wait for the lock in here."""
        if not self._has_ended:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self, *, wait: bool = True) -> None:
        """Have what is here called, and end the thread; waits for `CALLBACK_WAIT_MAX_S`, except in that
        thread."""
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
        self._make_calls(wait=False)  # calls that were put before `_over` was set

    def _make_calls(self, *, wait: bool) -> None:
        with contextlib.suppress(Empty):
            while (call := self._calls.get(block=wait)) is not None:
                try:
                    call()
                except BaseException:  # an exit, too, is not this thread's to decide
                    with contextlib.suppress(Exception):
                        traceback.print_exc()  # not a log line: it may be a handler of those that failed


class UnsettledWrites(Protocol):
    """A buffer of submitted records, for the end of its namespace or of the interpreter."""

    name: str
    """Of the log."""

    async def settle(self) -> None:
        """In the loop: wait until the outcome of each record is known. Raises no `DistributedLogError`."""
        ...

    @property
    def not_durable(self) -> int:
        """How many of the records that were taken are not known to be durable."""
        ...


class Background:
    """A trio run in a thread of its own. ``name`` is the thread's, for whoever lists threads.

    ``quick_switches`` sets the interpreter's switch interval to half a millisecond, for the whole
    process and for good (H27).
    """

    def __init__(self, name: str = "distributedlog", *, quick_switches: bool = False) -> None:
        self.name = name
        self._quick_switches = quick_switches
        self._thread: threading.Thread | None = None
        self._ident = 0
        """Of that thread, while it runs."""
        self._callback_queue: CallbackQueue | None = None
        self._sockets: tuple[socket.socket, ...] = ()
        """They wake the loop."""
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._pending_outcomes: set[CrossThreadFuture[Any]] = set()
        self._started = False
        """`Thread.start` has come back. Interrupted, the thread may run, or stand still for ever."""
        self._stopping = False
        """Whatever runs, or will, has to end."""
        self._closed_reason = f"{name}: the background loop was not started"
        self._close_on_drop: dict[weakref.ref[object], Callable[[], Awaitable[object]]] = {}
        self._dropped_refs: deque[weakref.ref[object]] = deque()
        self._users: set[weakref.ref[object]] = set()
        self._had_user = self._is_ending = False
        """There was a user; there is none any more, and the loop ends."""
        self._writes: weakref.WeakSet[UnsettledWrites] = weakref.WeakSet()
        self._lost_records: dict[str, int] = {}
        """Records that were not known to be durable when their writer was dropped, by log."""
        self._callback_thread = CallbackThread(f"{name}: callbacks")
        self._log_line_thread = CallbackThread(f"{name}: log lines")
        self._dropped_lines = 0

    def start(self) -> None:
        """Start the thread; return when it takes calls. Once only."""
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
        """Have it called in the loop, and wait for what it gives. From any thread but the loop's own.

        Interrupted (Ctrl-C), it is cancelled. Raises `AlreadyClosed` when the loop is not running, or
        is stopped meanwhile.
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
        """Wait for what the loop gives; as `CrossThreadFuture.wait`. Raises `InvalidRequest` as
        `check_may_wait`."""
        self.check_may_wait()
        return outcome.wait(timeout_s)

    def check_may_wait(self) -> None:
        """Raise `InvalidRequest` where waiting for the loop in this thread would last for ever.

        That is in the loop's own thread, where a finalizer may run, and on top of a step of this client that
        the loop needs: a signal handler or a finalizer has interrupted it.
        """
        if threading.get_ident() == self._ident:
            raise InvalidRequest(f"{self.name}: a blocking call in the loop that would serve it")
        if has_interrupted(self):
            raise InvalidRequest(
                f"{self.name}: {INTERRUPTING_TEXT}; nothing was done. Set a flag or use another thread"
            )

    def submit(self, call: Callable[..., Awaitable[T]], *args: object) -> "Future[T]":
        """Have ``call(*args)`` run in the loop as a task. Cancelling the future cancels it.

        Raises `AlreadyClosed`; so does the future when the loop is stopped meanwhile. For threads that no
        signal interrupts (see `CrossThreadFuture`).
        """
        future: Future[T] = Future()
        outcome: CrossThreadFuture[T] = CrossThreadFuture()
        scope = trio.CancelScope()

        def settle() -> None:
            with contextlib.suppress(InvalidStateError):  # cancelled at the last moment
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
        """Have ``call(*args)`` run in the loop as a task, in ``scope``. Raises `AlreadyClosed`.

        The outcome is set in any case, with `AlreadyClosed` where it was cancelled or the loop is stopped.
        """
        # Before the look at whether the loop runs: whoever ends it looks here.
        self._pending_outcomes.add(outcome)
        try:
            self.post(lambda: self._start_call(outcome, scope, call, args), urgent=True)
        except BaseException:  # where it was interrupted nobody waits, and it may begin or not
            self._pending_outcomes.discard(outcome)
            raise

    def fail_when_ended(
        self, outcome: CrossThreadFuture[None], check: Callable[[], object]
    ) -> None:
        """Fail it with `AlreadyClosed` where the loop ends before somebody sets it.

        ``look`` is called in the loop, as with `post`. No task, for whoever waits often.
        """
        self._pending_outcomes.add(
            outcome
        )  # before the look at whether the loop runs, as in `start`
        outcome.add_done_callback(partial(self._pending_outcomes.discard, outcome))
        try:
            self.post(check, urgent=True)
        except AlreadyClosed as error:
            outcome.fail(error)

    def call_in_thread(self, callback: Callable[[], object]) -> None:
        """Have it called in a separate thread, in order: users' code may take long, or wait.

        From any thread. After the loop has ended it is called here. An exception that it raises is printed.
        """
        self._callback_thread.put(callback)

    def handle_log_line(self, handler: Callable[[], object]) -> None:
        """Have a log line handled in a separate thread."""
        if len(self._log_line_thread) >= LOG_LINES_MAX:
            self._dropped_lines += 1
            return
        dropped_count, self._dropped_lines = self._dropped_lines, 0
        if dropped_count:
            text = "%d log lines were dropped: their handlers were too slow"
            self._log_line_thread.put(partial(log.warning, text, dropped_count))
        self._log_line_thread.put(handler)

    def warn(self, text: str, stacklevel: int) -> None:
        """Issue a `ResourceWarning` from a finalizer. Users' code may show it, so the loop does not."""
        if threading.get_ident() == self._ident:
            self.handle_log_line(partial(warnings.warn, text, ResourceWarning, 1))
        else:
            warnings.warn(text, ResourceWarning, stacklevel + 1)

    def cancel(self, scope: trio.CancelScope) -> None:
        """Cancel what was begun in a scope. From any thread; waits for nothing."""
        with contextlib.suppress(AlreadyClosed):
            self.post(scope.cancel)

    def post(self, callback: Callable[[], object], *, urgent: bool = False) -> None:
        """Have ``callback`` called in the loop, soon and in order; a burst costs one wake-up.

        A callback that raises ends the loop. Raises `AlreadyClosed`. ``urgent`` as for `CallbackQueue.post`.
        """
        self.check_running()
        assert self._callback_queue is not None
        try:
            self._callback_queue.post(callback, urgent=urgent)
        except OSError:  # its socket is closed
            raise AlreadyClosed(self._closed_reason or f"{self.name}: the loop has ended") from None

    def check_running(self) -> None:
        """Raise `AlreadyClosed`, with the reason, where the loop does not run."""
        if self._closed_reason:
            raise AlreadyClosed(self._closed_reason)

    def spawn(self, call: Callable[..., Awaitable[object]], *args: object) -> None:
        """In the loop: run a call whose outcome nobody waits for. What it raises is logged."""
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
            log.exception("%s: a call that nobody waits for failed", self.name)

    def close_on_drop(
        self, owned: object, close: Callable[[], Awaitable[object]]
    ) -> "weakref.ref[object]":
        """In the loop: have ``close_dropped`` run there soon after ``owned`` was dropped, unless it is
        `unregister`.

        It is C code that notes the drop. A finalizer would be told sooner and is no net: it is Python code
        in the thread that drops, where an interrupt (a second Ctrl-C) may end it and be swallowed.
        """
        drop_ref = weakref.ref(owned, self._dropped_refs.append)
        self._close_on_drop[drop_ref] = close
        return drop_ref

    def unregister(self, drop_ref: "weakref.ref[object]") -> None:
        """It was closed. From any thread."""
        self._close_on_drop.pop(drop_ref, None)
        self._end_if_unused()

    def close_dropped(self, drop_ref: "weakref.ref[object]") -> None:
        """In the loop: it was dropped."""
        close = self._close_on_drop.pop(drop_ref, None)
        if close is not None:
            self.spawn(close)
            self._end_if_unused()

    def register_user(self, user: object) -> None:
        """Note an object through which a caller reaches this client.

        When all of them and all kept objects are dropped, no caller can end the client. It then ends with a
        `ResourceWarning`.
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
            self.warn(f"{self.name}: it was dropped unclosed; it is closed", stacklevel=3)

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
        """Wait for its records when the namespace or the interpreter ends, and report those that are left."""
        self._writes.add(writes)

    def record_lost(self, writes: UnsettledWrites) -> None:
        """In the loop: its writer was dropped unclosed."""
        if record_count := writes.not_durable:
            self._lost_records[writes.name] = self._lost_records.get(writes.name, 0) + record_count

    def settle(self, wait_s: float) -> CrossThreadFuture[None]:
        """Wait, in the loop, for all records that were taken, for at most ``wait_s``."""
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
        """How many of the records that were taken are not known to be durable, by log."""
        counts = dict(self._lost_records)
        for writes in list(self._writes):
            if record_count := writes.not_durable:
                counts[writes.name] = counts.get(writes.name, 0) + record_count
        return counts

    def stop(self, wait_s: float | None = None) -> None:
        """Cancel all that runs, and wait for the end (at most ``wait_s``). Idempotent.

        Raises what ended the loop, if that was an error. Interrupted, it may be called again.
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
        """Cancel all that runs, and wait for nothing."""
        self._stopping = True
        self._closed_reason = self._closed_reason or f"{self.name}: {reason}"
        if self._callback_queue is not None:  # else the loop sees, as it begins, that it has to end
            with contextlib.suppress(OSError):
                self._callback_queue.post(self._cancel, urgent=True)

    def on_forked(self) -> None:
        """In a forked child there is no such thread (H15)."""
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
            self._ident = 0  # another thread may have this number next
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
                    self._drain()  # of a thread that has posted, and has not come to wake the loop
                    while self._dropped_refs:
                        self.close_dropped(self._dropped_refs.popleft())

    async def _run_posted(self, receiver: socket.socket) -> None:
        """Call what is posted, until cancelled.

        Not by trio's ``run_sync_soon``: that has a lock, which a thread holds while a finalizer runs on top
        of it, and which the loop takes, too, when it posts.
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
        except Exception as error:  # whatever it is, it is for whoever called
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
    """What the loop opens for a caller, until that one has it: it has an owner at any moment.

    The caller waits for `start`. Whoever does not get to keep what comes of it, interrupted or cancelled
    wherever, calls `close_dropped`: the loop then closes what is open, or will be. Give both in one ``try``:
    an interrupt after `start` is met by `close_dropped`, and one before it has opened nothing.
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
        """Have it opened; once. Raises `AlreadyClosed`; so does the outcome."""
        outcome: CrossThreadFuture[T] = CrossThreadFuture()
        self._background.begin(outcome, self._scope, self._open)
        return outcome

    def abandon(self) -> None:
        """Nobody will have it. From any thread, in any state, any number of times; waits for nothing."""
        with contextlib.suppress(AlreadyClosed):  # with the loop everything has ended
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
    """Records by log, as one line has them."""
    sorted_logs = sorted(not_durable.items(), key=lambda name_and_count: -name_and_count[1])
    texts = [f'{number:,} of log "{name}"' for name, number in sorted_logs[:LOGS_NAMED_MAX]]
    other_logs = ["other logs"] if len(sorted_logs) > LOGS_NAMED_MAX else []
    return (
        f"{sum(not_durable.values()):,} submitted records are not known to be durable: "
        + ", ".join([*texts, *other_logs])
    )


def _stop_all() -> None:
    """At the interpreter's exit: wait for submitted records, report those that are left, end the loops."""
    running = list(_running)
    deadline = time.monotonic() + EXIT_S_MAX
    with contextlib.suppress(KeyboardInterrupt):  # an interrupt ends the wait
        for settled in [background.settle(EXIT_S_MAX) for background in running]:
            with contextlib.suppress(Exception):
                settled.wait(max(0.0, deadline - time.monotonic()))
    lost_by_log: dict[str, int] = {}
    for background in running:
        with contextlib.suppress(Exception):  # at exit nobody is left to be told
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
