"""Machines that are stalled: their tasks are kept back from trio, all others run on.

A stall is a node that stands still while the world goes on (a long collection, a suspended guest). trio's
run queue is replaced by one that knows whose task is whose.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from .machine_state import MachineState

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
    before, _Stalls.count = _Stalls.count, 0
    try:
        yield
    finally:
        _Stalls.count = before


class RunQueue(deque[Any]):
    """trio's run queue, which keeps back the tasks of stalled machines.

    trio takes a batch as ``list(runq)``, then ``runq.clear()``. ``on_batch`` is given each batch before.
    """

    def __init__(self, on_batch: Callable[[deque[Any]], None]) -> None:
        super().__init__()
        self._on_batch = on_batch
        self._held: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self._on_batch(self)
        held = [task for task in super().__iter__() if _is_stalled(task)] if _Stalls.count else []
        if held:
            self._held += held
            kept = [task for task in super().__iter__() if not _is_stalled(task)]
            self.clear()
            self.extend(kept)
        return super().__iter__()

    def release(self) -> None:
        """Put back what was held; what is still stalled is held again by the next batch."""
        held, self._held = self._held, []
        self.extend(held)


def _is_stalled(task: Any) -> bool:
    machine = task.context.get(machine_of_task)
    return machine is not None and machine.stalled
