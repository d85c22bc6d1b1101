"""State of a simulated machine that disks, network and scheduler share; `sim_host.py` has the rest.

A stalled node does not run while all others do (a long collection, a suspended guest). trio's
run queue is replaced by one that knows whose task is whose, and keeps back the tasks of stalled machines.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any


class HostDown(BaseException):
    """Raised into code of a machine that was switched off, or of a process that was killed.

    No `Exception`: ``except Exception`` must not survive a kill.
    """


class MachineState:
    """Whether a machine has power, which life of its process runs, and where that is made to die."""

    def __init__(self, name: str, on_crash: Callable[[str, bool], None]) -> None:
        self.name = name
        self.incarnation = 0
        self.powered = True
        self.running = False
        self.stalled = False
        self._on_crash = on_crash
        """Called at a crash point, with what was done there and whether the power fails."""
        self._crash_in = 0
        self._crash_power = False

    def crash_after(self, steps: int, *, power: bool) -> None:
        """Die at the ``steps``-th disk or network step from now (1: the very next; 0: at none)."""
        self._crash_in, self._crash_power = steps, power

    def step(self, operation: str) -> None:
        """Every contact with the world passes here: a crash point."""
        if self._crash_in:
            self._crash_in -= 1
            if not self._crash_in:
                self._on_crash(operation, self._crash_power)
                raise HostDown(self.name)

    def is_current(self, incarnation: int) -> bool:
        """Does this life of the process go on?"""
        return self.running and self.incarnation == incarnation

    def check(self, incarnation: int) -> None:
        """Raise `HostDown` unless this life of the process goes on."""
        if not self.running or self.incarnation != incarnation:
            raise HostDown(self.name)


# --- stalls ------------------------------------------------------------------------------------------

machine_of_task: ContextVar[MachineState | None] = ContextVar("machine_of_task", default=None)
"""Set at the root of each node; inherited by its tasks."""


class _Stalls:
    """How many machines are stalled now: the usual answer, none, must be cheap."""

    count = 0


def count_stall(change: int) -> None:
    """A machine begins (+1) or ends (-1) to be stalled."""
    _Stalls.count += change


@contextlib.contextmanager
def none_stalled() -> Iterator[None]:
    """A run begins without stalls, whatever another one left."""
    count_before, _Stalls.count = _Stalls.count, 0
    try:
        yield
    finally:
        _Stalls.count = count_before


class RunQueue(deque[Any]):
    """trio's run queue, which keeps back the tasks of stalled machines.

    trio takes a batch as ``list(runq)``, then ``runq.clear()``. ``on_batch`` is given each batch before.
    """

    def __init__(self, on_batch: Callable[[deque[Any]], None]) -> None:
        super().__init__()
        self._on_batch = on_batch
        self._stalled_tasks: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self._on_batch(self)
        stalled = (
            [task for task in super().__iter__() if _is_stalled(task)] if _Stalls.count else []
        )
        if stalled:
            self._stalled_tasks += stalled
            runnable = [task for task in super().__iter__() if not _is_stalled(task)]
            self.clear()
            self.extend(runnable)
        return super().__iter__()

    def release(self) -> None:
        """Put back the held tasks; the next batch holds those again whose machines are still stalled."""
        tasks, self._stalled_tasks = self._stalled_tasks, []
        self.extend(tasks)


def _is_stalled(task: Any) -> bool:
    machine = task.context.get(machine_of_task)
    return machine is not None and machine.stalled
