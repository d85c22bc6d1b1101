"""Where one task waits, until it is woken with nothing or with an error; no object is made a wait."""

import outcome
import trio


class ParkingSpace:
    """Room for one task."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def park(self) -> None:
        """Wait until `wake` is called. Raises what it is called with."""
        assert self._task is None, "one task a direction"
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self, error: BaseException | None = None) -> None:
        """Let the task go on, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            if error is None:
                trio.lowlevel.reschedule(task)
            else:
                trio.lowlevel.reschedule(task, outcome.Error(error))
