"""A trio run in a background thread: what the blocking and asyncio flavours stand on.

Calls of moment (open, close, read) are a task each: `Background.run`, or `submit` for whoever does not
block. What happens per record is a callback (`post`): callbacks gather in a deque, and a burst of them
costs one wake-up of the loop (`Hops`).

The thread is a daemon, and stopped when the interpreter exits. A child of ``fork()`` has no such
thread: it is told so at its first call (H15).
"""

import atexit
import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import trio

from .errors import AlreadyClosed, InvalidRequest
from .forked import forked_message, watch_forks

SWITCH_INTERVAL_S = 0.0005
"""How long a computing thread may keep the interpreter from the loop: 5 ms by default, which makes a
write of 0.1 ms one of 10 ms beside a busy main thread (H27, measured)."""
EXIT_S_MAX = 5.0
"""How long the interpreter's exit waits for the loop to end."""

Mutex = threading.Lock
"""Guards what a flavour's callers and its loop both touch; held for a few statements, never while waiting."""

T = TypeVar("T")


class Hops:
    """Callbacks on their way into another thread's loop; one wake-up a burst.

    ``wake`` has the loop call a function soon: trio's ``token.run_sync_soon``, or asyncio's
    ``loop.call_soon_threadsafe`` for the way back. Callbacks run in the order they were posted, and
    must not raise.
    """

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._wake = wake
        self._posted: deque[Callable[[], object]] = deque()
        self._woken = False
        self._lock = threading.Lock()

    def post(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called in the loop, soon. From any thread. Raises as ``wake`` does."""
        with self._lock:
            self._posted.append(callback)
            if not self._woken:
                self._wake(self._drain)
                self._woken = True

    def _drain(self) -> None:
        with self._lock:
            self._woken = False  # what is posted from here on wakes anew
            count = len(self._posted)
        for _ in range(count):
            self._posted.popleft()()


class Background:
    """A trio run in a thread of its own. ``name`` is the thread's, for whoever lists threads.

    ``quick_switches`` sets the interpreter's switch interval to half a millisecond, for the whole
    process and for good (H27).
    """

    def __init__(self, name: str = "distributedlog", *, quick_switches: bool = False) -> None:
        self.name = name
        self._quick_switches = quick_switches
        self._thread: threading.Thread | None = None
        self._hops: Hops | None = None
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._unsettled: set[Future[Any]] = set()
        self._dead = f"{name}: the background loop was not started"

    def start(self) -> None:
        """Start the thread; return when it takes calls. Once only."""
        assert self._thread is None, "started once only"
        if self._quick_switches:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        running = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(running,), name=self.name, daemon=True
        )
        self._thread.start()
        running.wait()
        self._raise_failure()
        _running.add(self)
        watch_forks(self)

    def run(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Have ``call(*args)`` run in the loop, and wait for it. From any thread but the loop's own.

        Interrupted (Ctrl-C), it is cancelled. Raises `AlreadyClosed` when the loop is not running, or
        is stopped meanwhile.
        """
        if threading.current_thread() is self._thread:
            raise InvalidRequest(f"{self.name}: a blocking call in the loop that would serve it")
        future = self.submit(call, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, call: Callable[..., Awaitable[T]], *args: object) -> "Future[T]":
        """Have ``call(*args)`` run in the loop as a task. Cancelling the future cancels it.

        Raises `AlreadyClosed`; so does the future when the loop is stopped meanwhile.
        """
        future: Future[T] = Future()
        self._unsettled.add(
            future
        )  # before the look at whether the loop runs: whoever ends it looks here
        future.add_done_callback(self._unsettled.discard)
        try:
            self.post(lambda: self._begin(future, call, args))
        except AlreadyClosed:
            self._unsettled.discard(future)
            raise
        return future

    def post(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called in the loop, soon and in order; a burst costs one wake-up.

        One that raises ends the loop: it is a broken rule of ours. Raises `AlreadyClosed`.
        """
        if self._dead:
            raise AlreadyClosed(self._dead)
        assert self._hops is not None
        try:
            self._hops.post(callback)
        except trio.RunFinishedError:
            raise AlreadyClosed(self._dead or f"{self.name}: the loop has ended") from None

    def stop(self, wait_s: float | None = None) -> None:
        """Cancel all that runs, and wait for the end (at most ``wait_s``). Idempotent.

        Raises what ended the loop, if that was an error.
        """
        thread = self._thread
        if thread is None or (self._dead and not thread.is_alive()):
            self._raise_failure()
            return
        if not self._dead:
            self._dead = f"{self.name}: the background loop was stopped"
            assert self._hops is not None
            with contextlib.suppress(trio.RunFinishedError):
                self._hops.post(self._cancel)
        thread.join(wait_s)
        _running.discard(self)
        self._raise_failure()

    def on_forked(self) -> None:
        """In a forked child there is no such thread (H15)."""
        self._dead = forked_message(f"{self.name}: the background loop")
        self._thread = None
        _running.discard(self)

    def _work(self, running: threading.Event) -> None:
        try:
            trio.run(self._main, running)
        except BaseException as error:
            self._fail(error)
        finally:
            self._dead = self._dead or f"{self.name}: the background loop has ended"
            for future in list(self._unsettled):  # their callbacks will never run
                _settle(future, AlreadyClosed(self._dead))
            running.set()

    async def _main(self, running: threading.Event) -> None:
        token = trio.lowlevel.current_trio_token()
        self._hops = Hops(lambda drain: token.run_sync_soon(self._call_back, drain))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._dead = ""
            running.set()
            await trio.sleep_forever()

    def _call_back(self, drain: Callable[[], None]) -> None:
        try:
            drain()
        except Exception as error:
            self._fail(error)
            self._cancel()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._dead = f"{self.name}: the background loop failed: {self._failure!r}"

    def _cancel(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def _begin(
        self, future: "Future[T]", call: Callable[..., Awaitable[T]], args: tuple[object, ...]
    ) -> None:
        if self._dead or self._nursery is None:
            _settle(future, AlreadyClosed(self._dead))
            return
        scope = trio.CancelScope()

        def on_settled(settled: "Future[T]") -> None:
            if settled.cancelled():
                with contextlib.suppress(AlreadyClosed):
                    self.post(scope.cancel)

        future.add_done_callback(on_settled)
        self._nursery.start_soon(self._call, future, scope, call, args)

    async def _call(
        self,
        future: "Future[T]",
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
    ) -> None:
        try:
            with scope:
                result = await call(*args)
                with contextlib.suppress(InvalidStateError):  # cancelled at the last moment
                    future.set_result(result)
        except Exception as error:  # whatever it is, it is for whoever called
            _settle(future, error)
        finally:
            _settle(future, AlreadyClosed(self._dead or f"{self.name}: the call was cancelled"))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _settle(future: "Future[Any]", error: BaseException) -> None:
    if not future.done():
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)


_running: "weakref.WeakSet[Background]" = weakref.WeakSet()


def _stop_all() -> None:
    for background in list(_running):
        with contextlib.suppress(Exception):  # at exit nobody is left to be told
            background.stop(EXIT_S_MAX)


atexit.register(_stop_all)
