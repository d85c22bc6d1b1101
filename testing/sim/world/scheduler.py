"""One virtual run: a seed determines time, order and randomness, and the real machine is not used.

- Trio's clock is a `MockClock` with replaced methods. When no task can run, time jumps exactly to the next
  deadline or event, without float drift. Events (deliveries, finished syncs) are on a separate heap and need
  no task.
- Trio's scheduler is seeded through two private names (`_ALLOW_DETERMINISTIC_SCHEDULING` and `_r`, its hook
  for Hypothesis). `check_trio` fails clearly if a release of Trio changes the internals that are used here.
- The run queue is replaced (`machine_state.py`), so that the tasks of a stalled node can be held, and a loop
  that spins without passing time is detected (H43).
- Calls to the real machine raise an error (`isolation_guard.py`).
- A state without runnable tasks and pending events is a deadlock, which is a failure.

The trace hash covers every delivery and disk step (`hash_step`) and every event (`record_event`).
"""

import contextlib
import gc
import hashlib
import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run as trio_run

from .bug_injection import patched, unexpected_error_patches
from .isolation_guard import isolated_from_machine
from .machine_state import RunQueue, none_stalled

STEPS_PER_SECOND_MAX = 300_000
"""Limit of task steps in one virtual second. A busy cluster of ten nodes needs a few thousand."""
IDLE_ROUNDS_MAX = 3
EPOCH_S = 1_700_000_000.0
"""The wall clock at virtual time 0, seconds since 1970."""

T = TypeVar("T")


class Deadlock(Exception):
    """No task is runnable, and no event is pending."""


class OutOfTime(Exception):
    """The virtual time of the run is used up, because some wait never ends."""


class BusyLoop(Exception):
    """A task loops without letting time pass."""


def check_trio() -> None:
    """Raise `RuntimeError` if this Trio release lacks internals that this module uses."""
    runner_fields = getattr(trio_run.Runner, "__annotations__", {})
    problems = [
        name
        for name, is_present in (
            (
                "_ALLOW_DETERMINISTIC_SCHEDULING",
                hasattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING"),
            ),
            ("_r", isinstance(getattr(trio_run, "_r", None), random.Random)),
            ("Runner.runq", "runq" in runner_fields),
            ("Runner.io_manager", "io_manager" in runner_fields),
            ("Runner.deadlines", hasattr(trio_run.Deadlines, "next_deadline")),
            ("MockClock._autojump", hasattr(trio.testing.MockClock, "_autojump")),
            ("GLOBAL_RUN_CONTEXT", hasattr(trio_run, "GLOBAL_RUN_CONTEXT")),
        )
        if not is_present
    ]
    if problems:
        raise RuntimeError(f"trio no longer has {', '.join(problems)}")


class Simulation:
    """One run from one seed. `run` may be called once.

    ``failures`` holds the failures, the first cause first. `run` itself raises only errors of ``main``.
    """

    def __init__(
        self, seed: int, *, virtual_seconds_max: float = 600.0, keep_trace: bool = False
    ) -> None:
        check_trio()
        self.seed = seed
        self.now = 0.0
        self.virtual_seconds_max = virtual_seconds_max
        self.steps_per_second_max = STEPS_PER_SECOND_MAX
        self.failures: list[BaseException] = []
        self.trace: list[str] | None = [] if keep_trace else None
        self.is_ending = False
        """Whether the run has ended. Later errors are no failures."""
        self.steps = 0
        self.main_lasted_s = 0.0
        """Virtual seconds until ``main`` returned."""
        self.events = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._step_hash = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._idle_jumps = 0
        self._poll_real_io = False
        self._second = 0
        self._second_steps = 0
        self._queue: RunQueue | None = None
        self._root: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None
        self._clock = trio.testing.MockClock(rate=0, autojump_threshold=0)
        clock: Any = self._clock  # the class is final, so one instance of it is changed
        for name, method in (
            ("current_time", lambda: self.now),
            ("deadline_to_sleep_time", lambda deadline: 0 if deadline <= self.now else 999_999_999),
            ("_autojump", self._jump),
        ):
            setattr(clock, name, method)

    # --- randomness and trace ---------------------------------------------------------------------

    def random_stream(self, stream: str) -> random.Random:
        """Return a separate random generator for ``stream``.

        More draws in one stream do not shift the others.
        """
        return random.Random(f"{self.seed}/{stream}")

    def record_event(self, *parts: object) -> None:
        """Add an event to the trace hash, and to the trace if it is kept.

        The text of the parts must be the same in each run of the seed.
        """
        line = f"{self.now:.9f} " + " ".join(map(str, parts))
        self._hash.update(line.encode() + b"\n")
        self.events += 1
        if self.trace is not None:
            self.trace.append(line)

    def hash_step(self, first: int, second: int) -> None:
        """Add a step to the trace hash only, because it is too frequent for a trace line."""
        self._step_hash = hash(
            (self._step_hash, self.now, first, second)
        )  # only numbers: the hash does not depend on PYTHONHASHSEED

    @property
    def trace_hash(self) -> str:
        """The hash that two runs of one seed must have in common."""
        digest = self._hash.copy()
        digest.update(str(self._step_hash).encode())
        return digest.hexdigest()

    # --- events -----------------------------------------------------------------------------------

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call at virtual time ``when``.

        Calls at equal times run in the order in which they were scheduled.
        """
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, call, args))

    def call_after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call after ``delay_s`` virtual seconds."""
        self.call_at(self.now + delay_s, call, *args)

    def fail(self, error: BaseException) -> None:
        """Record a failure and end the run."""
        if self.is_ending:
            return
        self.failures.append(error)
        self.record_event("FAILURE", type(error).__name__, str(error).split("\n")[0])
        self.is_ending = True
        self.stop()

    def stop(self) -> None:
        """End the run by cancelling all tasks."""
        if self._root is not None:
            self._root.cancel()

    def release_stalled(self) -> None:
        """Reconsider the held tasks, because a machine is no longer stalled."""
        if self._queue is not None:
            self._queue.release()

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery of the machines' processes."""
        assert self._nursery is not None, "the run has not begun"
        return self._nursery

    # --- the run ----------------------------------------------------------------------------------

    def run(self, main: Callable[["Simulation"], Awaitable[T]]) -> T | None:
        """Run ``main`` to its end or to the first failure. Return its result, or None after a failure."""
        result: list[T] = []

        async def root() -> None:
            with trio.CancelScope() as self._root:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    with trio.move_on_after(self.virtual_seconds_max) as time_limit:
                        result.append(await main(self))
                    if time_limit.cancelled_caught:
                        self.fail(
                            OutOfTime(f"not finished after {self.virtual_seconds_max:g} virtual s")
                        )
                    self.is_ending = True
                    self.main_lasted_s = self.now
                    nursery.cancel_scope.cancel()

        with (
            _seeded(self),
            none_stalled(),
            isolated_from_machine(lambda: EPOCH_S + self.now),
            patched(unexpected_error_patches(self.fail)),
        ):
            trio.run(root, clock=self._clock, instruments=[_Wiring(self)])
        return result[0] if result and not self.failures else None

    def _jump(self) -> None:
        """Jump to the next deadline or event. Trio calls this when no task can run."""
        heap = self._heap
        next_deadline = trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        now = min(next_deadline, heap[0][0] if heap else math.inf)
        if now == math.inf:
            self._idle()
            return
        self._idle_jumps = 0
        if now > self.now:
            self.now = now
            if int(now) != self._second:
                self._second = int(now)
                self._second_steps = 0
        while heap and heap[0][0] <= self.now:
            _, _, call, args = heapq.heappop(heap)
            try:
                call(*args)
            except Exception as error:
                self.fail(error)

    def _idle(self) -> None:
        self._idle_jumps += 1
        self._poll_real_io = True  # when a run ends, trio wakes itself through a socket pair
        if self._idle_jumps == IDLE_ROUNDS_MAX:
            self.fail(Deadlock("nothing runnable, no deadline, no event"))
            self.stop()
        elif self._idle_jumps > 3 * IDLE_ROUNDS_MAX:
            raise Deadlock("a task ignores its cancellation and waits for no event")

    def count_steps(self, tasks: "deque[Any]") -> None:
        """Count the steps of a batch of runnable tasks, and fail the run if there are too many per second."""
        count = len(tasks)
        self.steps += count
        self._second_steps += count
        if self._second_steps > self.steps_per_second_max:
            names = Counter(task.name for task in deque.__iter__(tasks))
            self._second_steps = 0
            self.fail(
                BusyLoop(
                    f"{self.steps_per_second_max} task steps in one virtual second; now running: "
                    + ", ".join(name for name, _ in sorted(names.most_common(3)))
                )
            )


class _Wiring(trio.abc.Instrument):
    """Installs the run queue and the I/O manager before the run begins."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def before_run(self) -> None:
        runner: Any = trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.io_manager = _NoIo(runner.io_manager, self._simulation)
        runner.runq = self._simulation._queue = RunQueue(self._simulation.count_steps)


class _NoIo:
    """Replaces trio's epoll, because there is no real I/O to wait for."""

    def __init__(self, real: Any, simulation: Simulation) -> None:
        self._real = real
        self._simulation = simulation

    def get_events(self, timeout: float) -> Any:
        if self._simulation._poll_real_io:
            self._simulation._poll_real_io = False
            return self._real.get_events(0)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextlib.contextmanager
def _seeded(simulation: Simulation) -> Iterator[None]:
    """Seed trio's scheduler and stop the garbage collector."""
    trio_module: Any = trio_run
    rng = trio_run._r
    state, deterministic = rng.getstate(), trio_module._ALLOW_DETERMINISTIC_SCHEDULING
    trio_module._ALLOW_DETERMINISTIC_SCHEDULING = True
    rng.seed(f"{simulation.seed}/trio")
    collecting = gc.isenabled()
    gc.disable()  # its timing depends on earlier runs, and finalizers must not run within a seed
    try:
        yield
    finally:
        trio_module._ALLOW_DETERMINISTIC_SCHEDULING = deterministic
        rng.setstate(state)
        if collecting:
            gc.enable()
