"""State of a simulated machine that disks, network and scheduler share. `sim_host.py` has the rest.

A stalled node does not run while all others do, as during a long garbage collection or in a suspended
virtual machine. Trio's run queue is replaced by one that finds the machine of each task and holds the tasks
of stalled machines.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any


class HostDown(BaseException):
    """Raised in the code of a process that was killed or whose machine lost power.

    It is a `BaseException`, because ``except Exception`` must not survive a kill.
    """


class MachineState:
    """Power and current process life of a machine, and the crash point that a fault has set."""

    def __init__(self, name: str, on_crash: Callable[[str, bool], None]) -> None:
        self.name = name
        self.incarnation = 0
        self.powered = True
        self.running = False
        self.stalled = False
        self._on_crash = on_crash
        """Called at a crash point, with the name of the step and whether the power fails."""
        self._crash_in = 0
        self._crash_power = False

    def crash_after(self, steps: int, *, power: bool) -> None:
        """Crash at the ``steps``-th disk or network step from now (1 is the next one, 0 means never)."""
        self._crash_in, self._crash_power = steps, power

    def step(self, operation: str) -> None:
        """Count a disk or network step.

        Each of them is a possible crash point. Raises `HostDown` at a crash.
        """
        if self._crash_in:
            self._crash_in -= 1
            if not self._crash_in:
                self._on_crash(operation, self._crash_power)
                raise HostDown(self.name)

    def is_current(self, incarnation: int) -> bool:
        """Return whether this life of the process still runs."""
        return self.running and self.incarnation == incarnation

    def check(self, incarnation: int) -> None:
        """Raise `HostDown` unless this life of the process still runs."""
        if not self.running or self.incarnation != incarnation:
            raise HostDown(self.name)


# --- stalls ------------------------------------------------------------------------------------------

machine_of_task: ContextVar[MachineState | None] = ContextVar("machine_of_task", default=None)
"""The machine of a task. Set in the root task of each node and inherited by its other tasks."""


class _Stalls:
    """The number of stalled machines. It is global so that the usual case, none, is cheap to check."""

    count = 0


def count_stall(change: int) -> None:
    """Count a machine whose stall begins (+1) or ends (-1)."""
    _Stalls.count += change


@contextlib.contextmanager
def none_stalled() -> Iterator[None]:
    """Set the number of stalled machines to 0 for a run, and restore it afterwards."""
    count_before, _Stalls.count = _Stalls.count, 0
    try:
        yield
    finally:
        _Stalls.count = count_before


class RunQueue(deque[Any]):
    """Trio's run queue, which holds the tasks of stalled machines.

    Trio takes a batch as ``list(runq)``, then calls ``runq.clear()``. ``on_batch`` receives each batch first.
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
        """Return the held tasks to the queue.

        The next batch holds those again whose machines are still stalled.
        """
        tasks, self._stalled_tasks = self._stalled_tasks, []
        self.extend(tasks)


def _is_stalled(task: Any) -> bool:
    machine = task.context.get(machine_of_task)
    return machine is not None and machine.stalled
