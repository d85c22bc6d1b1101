"""A trio run in a background thread: what the blocking and asyncio faces stand on.

Calls of moment (open, close, read) are a task each: `Background.run`, or `submit` for whoever does not
block. What happens per record is a callback (`post`): callbacks gather in a deque, and a burst of them
costs one wake-up of the loop (`Hops`).

The thread is a daemon, and stopped when the interpreter exits. A child of ``fork()`` has no such
thread: it is told so at its first call (H15).
"""

import atexit
import contextlib
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

import trio

from .errors import AlreadyClosed, DistributedLogError, InvalidRequest
from .forked import forked_message, watch_forks

SWITCH_INTERVAL_S = 0.0005
"""How long a computing thread may keep the interpreter from the loop: 5 ms by default, which makes a
write of 0.1 ms one of 10 ms beside a busy main thread (H27, measured)."""
EXIT_S_MAX = 5.0
"""How long the interpreter's exit waits for the loop to end."""
DROPPED_S = 0.5
"""How often the loop looks for what was dropped and whose finalizer was interrupted."""
ASIDE_S_MAX = 2.0
"""How long the end of a loop waits for users' callbacks."""

Mutex = threading.Lock
"""Guards what a face's callers and its loop both touch; held for a few statements, never while waiting."""

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("distributedlog.runtime")


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
        # Reentrant: a finalizer may post, and run inside any allocation, also one made in here.
        self._lock = threading.RLock()

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


class Promise(Generic[T]):
    """What the loop gives to a thread that waits for it. Set once, by the loop.

    No `concurrent.futures.Future`: its condition is Python code, and an interrupt (Ctrl-C) in the middle of
    it leaves it locked for ever; the loop, which needs it to tell, would stand still. Here it takes no lock.
    """

    __slots__ = ("_callbacks", "_error", "_lock", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self, value: T) -> None:
        """Here it is; nothing where there is an outcome."""
        if not self.done:
            self._value = value
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Here is why not; nothing where there is an outcome."""
        if not self.done:
            self._error = error
            self._tell()

    def wait(self, timeout_s: float | None = None) -> T:
        """The value, or the error raised. `TimeoutError` where there is none in time."""
        if not self.done and self._lock.acquire(
            timeout=-1 if timeout_s is None else max(0.0, timeout_s)
        ):
            self._lock.release()  # for whoever waits beside
        if not self.done:
            raise TimeoutError
        return self.result()

    def result(self) -> T:
        """The value, or the error raised, of an outcome that is there."""
        assert self.done, "asked before it is there"
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def when_done(self, callback: Callable[[], object]) -> None:
        """Have it called once, by the loop, or here where the outcome is there. It must not raise."""
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def _tell(self) -> None:
        self.done = True
        self._lock.release()
        self._call_back()

    def _call_back(self) -> None:
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()


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
        self._unsettled: set[Promise[Any]] = set()
        self._started = False
        """`Thread.start` has come back. Interrupted, the thread may run, or stand still for ever."""
        self._stopping = False
        """Whatever runs, or will, has to end."""
        self._dead = f"{name}: the background loop was not started"
        self._kept: dict[weakref.ref[object], Callable[[], Awaitable[object]]] = {}
        self._dropped: deque[weakref.ref[object]] = deque()
        self._aside: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._aside_thread: threading.Thread | None = None
        self._aside_over = False
        """Its thread has ended: who puts something aside calls it himself."""

    def start(self) -> None:
        """Start the thread; return when it takes calls. Once only."""
        assert self._thread is None, "started once only"
        if self._quick_switches:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        running: Promise[None] = Promise()
        self._thread = threading.Thread(
            target=self._work, args=(running,), name=self.name, daemon=True
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
        if threading.current_thread() is self._thread:
            raise InvalidRequest(f"{self.name}: a blocking call in the loop that would serve it")
        outcome: Promise[T] = Promise()
        scope = trio.CancelScope()
        try:
            self.begin(outcome, scope, partial(call, *args, **options))
            return outcome.wait()
        except BaseException:
            self.cancel(scope)
            raise

    def submit(self, call: Callable[..., Awaitable[T]], *args: object) -> "Future[T]":
        """Have ``call(*args)`` run in the loop as a task. Cancelling the future cancels it.

        Raises `AlreadyClosed`; so does the future when the loop is stopped meanwhile. For threads that no
        signal interrupts (see `Promise`).
        """
        future: Future[T] = Future()
        outcome: Promise[T] = Promise()
        scope = trio.CancelScope()

        def settle() -> None:
            with contextlib.suppress(InvalidStateError):  # cancelled at the last moment
                try:
                    future.set_result(outcome.result())
                except InvalidStateError:
                    raise
                except BaseException as error:
                    future.set_exception(error)

        outcome.when_done(settle)
        self.begin(outcome, scope, call, *args)
        future.add_done_callback(lambda done: self.cancel(scope) if done.cancelled() else None)
        return future

    def begin(
        self,
        outcome: Promise[T],
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        *args: object,
    ) -> None:
        """Have ``call(*args)`` run in the loop as a task, in ``scope``. Raises `AlreadyClosed`.

        The outcome is set in any case, with `AlreadyClosed` where it was cancelled or the loop is stopped.
        """
        # Before the look at whether the loop runs: whoever ends it looks here.
        self._unsettled.add(outcome)
        try:
            self.post(lambda: self._begin(outcome, scope, call, args))
        except BaseException:  # where it was interrupted nobody waits, and it may begin or not
            self._unsettled.discard(outcome)
            raise

    def expect(self, outcome: Promise[None], look: Callable[[], object]) -> None:
        """Fail it with `AlreadyClosed` where the loop ends before somebody sets it.

        ``look`` is called in the loop, as with `post`. No task, for whoever waits often.
        """
        self._unsettled.add(outcome)  # before the look at whether the loop runs, as in `begin`
        outcome.when_done(partial(self._unsettled.discard, outcome))
        try:
            self.post(look)
        except AlreadyClosed as error:
            outcome.fail(error)

    def aside(self, callback: Callable[[], object]) -> None:
        """Have it called in a thread beside the loop, in order: users' own code may take long, or wait.

        From any thread. Where the loop has ended it is called here. What it raises is logged.
        """
        self._aside.put(callback)
        if self._aside_over:
            self._call_aside(wait=False)
        elif self._aside_thread is None:
            try:
                if threading.current_thread() is self._thread:
                    self._start_aside()
                else:  # no signal interrupts the start of a thread there
                    self.post(self._start_aside)
            except AlreadyClosed:
                self._call_aside(wait=False)

    def _start_aside(self) -> None:
        if self._aside_thread is None:
            self._aside_thread = threading.Thread(
                target=self._work_aside, name=f"{self.name}: callbacks", daemon=True
            )
            self._aside_thread.start()

    def _work_aside(self) -> None:
        self._call_aside(wait=True)
        self._aside_over = True
        self._call_aside(wait=False)  # what was put there before anybody could see that

    def _call_aside(self, *, wait: bool) -> None:
        with contextlib.suppress(Empty):
            while (callback := self._aside.get(block=wait)) is not None:
                try:
                    callback()
                except BaseException:  # an exit, too, is not this thread's to decide
                    log.exception("%s: a callback failed", self.name)

    def _end_aside(self) -> None:
        thread = self._aside_thread
        if thread is not None and thread.is_alive():
            self._aside.put(None)
            if thread is not threading.current_thread():
                thread.join(ASIDE_S_MAX)

    def cancel(self, scope: trio.CancelScope) -> None:
        """Cancel what was begun in a scope. From any thread; waits for nothing."""
        with contextlib.suppress(AlreadyClosed):
            self.post(scope.cancel)

    def post(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called in the loop, soon and in order; a burst costs one wake-up.

        One that raises ends the loop: it is a broken rule of ours. Raises `AlreadyClosed`.
        """
        self.check_running()
        assert self._hops is not None
        try:
            self._hops.post(callback)
        except trio.RunFinishedError:
            raise AlreadyClosed(self._dead or f"{self.name}: the loop has ended") from None

    def check_running(self) -> None:
        """Raise `AlreadyClosed`, with the reason, where the loop does not run."""
        if self._dead:
            raise AlreadyClosed(self._dead)

    def spawn(self, call: Callable[..., Awaitable[object]], *args: object) -> None:
        """In the loop: run a call whose outcome nobody waits for. What it raises is logged."""
        if self._nursery is not None:
            self._nursery.start_soon(self._unwatched, call, args)

    async def _unwatched(
        self, call: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> None:
        try:
            await call(*args)
        except DistributedLogError as error:
            log.info("%s: %s", self.name, error)
        except Exception:
            log.exception("%s: a call that nobody waits for failed", self.name)

    def keep(
        self, owned: object, give_up: Callable[[], Awaitable[object]]
    ) -> "weakref.ref[object]":
        """In the loop: have ``give_up`` run there soon after ``owned`` was dropped, unless it is `let_go`.

        It is C code that notes the drop. A finalizer would be told sooner and is no net: it is Python code
        in the thread that drops, where an interrupt (a second Ctrl-C) may end it and be swallowed.
        """
        kept = weakref.ref(owned, self._dropped.append)
        self._kept[kept] = give_up
        return kept

    def let_go(self, kept: "weakref.ref[object]") -> None:
        """It was closed. From any thread."""
        self._kept.pop(kept, None)

    def give_up(self, kept: "weakref.ref[object]") -> None:
        """In the loop: it was dropped."""
        give_up = self._kept.pop(kept, None)
        if give_up is not None:
            self.spawn(give_up)

    def stop(self, wait_s: float | None = None) -> None:
        """Cancel all that runs, and wait for the end (at most ``wait_s``). Idempotent.

        Raises what ended the loop, if that was an error. Interrupted, it may be called again.
        """
        thread = self._thread
        self._stopping = True
        self._dead = self._dead or f"{self.name}: the background loop was stopped"
        if self._hops is not None:  # else the loop sees, as it begins, that it has to end
            with contextlib.suppress(trio.RunFinishedError):
                self._hops.post(self._cancel)
        if thread is not None and self._started:
            thread.join(wait_s)
        self._end_aside()
        _running.discard(self)
        self._raise_failure()

    def on_forked(self) -> None:
        """In a forked child there is no such thread (H15)."""
        self._dead = forked_message(f"{self.name}: the background loop")
        self._thread = self._hops = None
        _running.discard(self)

    def _work(self, running: Promise[None]) -> None:
        try:
            trio.run(self._main, running)
        except BaseException as error:
            self._fail(error)
        finally:
            self._dead = self._dead or f"{self.name}: the background loop has ended"
            for outcome in list(self._unsettled):  # their callbacks will never run
                outcome.fail(AlreadyClosed(self._dead))
            running.set(None)

    async def _main(self, running: Promise[None]) -> None:
        token = trio.lowlevel.current_trio_token()
        self._hops = Hops(lambda drain: token.run_sync_soon(self._call_back, drain))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._stopping:
                return
            self._dead = ""
            running.set(None)
            while True:
                await trio.sleep(DROPPED_S)
                while self._dropped:
                    self.give_up(self._dropped.popleft())

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
        self,
        outcome: Promise[T],
        scope: trio.CancelScope,
        call: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
    ) -> None:
        if self._dead or self._nursery is None:
            self._unsettled.discard(outcome)
            outcome.fail(AlreadyClosed(self._dead))
            return
        self._nursery.start_soon(self._call, outcome, scope, call, args)

    async def _call(
        self,
        outcome: Promise[T],
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
            self._unsettled.discard(outcome)
            outcome.fail(AlreadyClosed(self._dead or f"{self.name}: the call was cancelled"))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class Handover(Generic[T]):
    """What the loop opens for a caller, until that one has it: it has an owner at any moment.

    The caller waits for `begin`. Whoever does not get to keep what comes of it, interrupted or cancelled
    wherever, calls `give_up`: the loop then closes what is open, or will be. Give both in one ``try``: an
    interrupt after `begin` is met by `give_up`, and one before it has opened nothing.
    """

    def __init__(
        self,
        background: Background,
        open_it: Callable[[], Awaitable[T]],
        close_it: Callable[[T], Awaitable[object]],
    ) -> None:
        self._background = background
        self._open_it = open_it
        self._close_it = close_it
        self._scope = trio.CancelScope()
        self._opened: list[T] = []
        self._given_up = False

    def begin(self) -> Promise[T]:
        """Have it opened; once. Raises `AlreadyClosed`; so does the outcome."""
        outcome: Promise[T] = Promise()
        self._background.begin(outcome, self._scope, self._open)
        return outcome

    def give_up(self) -> None:
        """Nobody will have it. From any thread, in any state, any number of times; waits for nothing."""
        with contextlib.suppress(AlreadyClosed):  # with the loop everything has ended
            self._background.post(self._on_given_up)

    async def _open(self) -> T:
        value = await self._open_it()
        self._opened.append(value)
        if self._given_up:
            self._close()
        return value

    def _on_given_up(self) -> None:
        self._given_up = True
        self._scope.cancel()
        self._close()

    def _close(self) -> None:
        while self._opened:
            self._background.spawn(self._close_it, self._opened.pop())


_running: "weakref.WeakSet[Background]" = weakref.WeakSet()


def _stop_all() -> None:
    for background in list(_running):
        with contextlib.suppress(Exception):  # at exit nobody is left to be told
            background.stop(EXIT_S_MAX)


atexit.register(_stop_all)
