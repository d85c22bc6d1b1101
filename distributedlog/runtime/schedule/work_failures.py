"""Contain unexpected failures of background work: retry a failed unit, and list it until it succeeds.

A unit is the smallest piece of work that can fail alone: the retention of one log, the repair of one ledger,
a checkpoint. An exception that is not a `DistributedLogError` (a `ValueError`, a failed assertion) ends one
attempt of its unit. The unit is retried after 1 to 60 s, and is listed in `WorkFailures.failed` until an
attempt succeeds. The log has one line for the first failure, one for the success, and none for the attempts
between.

A `DistributedLogError` passes, and the caller handles it. A cancellation passes, too. Three kinds of work
never run here, because nothing may be acknowledged after an unknown error in them: the journal of a bookie,
the Raft log, and its hard state. They end their node.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio

from ..declarations.events import WORK_FAILED, WORK_RECOVERED
from ..declarations.health_conditions import Code, HealthCondition, condition
from ..interfaces.errors import DistributedLogError
from ..interfaces.log_lines import get_logger
from ..primitives.backoff import Backoff

RETRY_MIN_S = 1.0
RETRY_MAX_S = 60.0
RECOVERED_AFTER_S = 60.0
"""A restarted endless task has recovered when it has run for this time."""
DROP_AFTER_S = 600.0
"""A failed unit that is not retried for this time after its delay is dropped, for example because its log was
deleted."""
UNITS_MAX = 256
"""Failed units that are stored individually. Further ones count as one unit, `OTHER_WORK`, and are retried
each time."""
OTHER_WORK = "other background work"

log = get_logger("distributedlog.runtime.work")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailedWork:
    """A unit whose last attempt failed, with the parameters of the condition ``work_failed``."""

    unit: str
    error: str
    """The name of the exception's class."""
    tries: int
    """The number of failures in a row."""


class WorkFailures:
    """The failed units of one node."""

    def __init__(self) -> None:
        self._failing: dict[str, _FailingUnit] = {}

    def failed(self) -> tuple[FailedWork, ...]:
        """Return the units that are failing, in the order of their first failures."""
        self._drop_stale()
        return tuple(
            FailedWork(unit, failing.error, failing.tries)
            for unit, failing in self._failing.items()
        )

    def conditions(self) -> list[HealthCondition]:
        """Return a condition per failed unit, for `NodeConditions.add_check`."""
        return [
            condition(
                Code.WORK_FAILED,
                unit=failed_work.unit,
                error=failed_work.error,
                tries=failed_work.tries,
            )
            for failed_work in self.failed()
        ]

    def is_waiting(self, unit: str) -> bool:
        """Return whether the retry delay of a failed unit has not passed yet.

        Check it before `attempt`, in a pass over many units.
        """
        failing = self._failing.get(unit)
        return failing is not None and unit != OTHER_WORK and trio.current_time() < failing.retry_at

    def retry_delay_s(self, unit: str) -> float:
        """Return the seconds until a failed unit may be retried; 0 for one that has not failed."""
        failing = self._failing.get(unit)
        return 0.0 if failing is None else max(0.0, failing.retry_at - trio.current_time())

    def next_try_s(self, unit: str, longest_s: float) -> float:
        """Return the seconds to the next attempt of ``unit``: ``longest_s``, or less if it has failed."""
        if unit not in self._failing:
            return longest_s
        return min(longest_s, max(RETRY_MIN_S, self.retry_delay_s(unit)))

    def attempt(self, unit: str, *, every_s: float = 0.0) -> "WorkAttempt":
        """Run one attempt of a unit in a ``with``. The end of the body is its success.

        An unexpected exception is recorded and ends the body. A `DistributedLogError` passes and does not
        change the state of the unit. A group of them passes as its worst member.

        Args:
            unit: The name of the work and of its object, such as ``retention of log 1a2b``.
            every_s: The interval of the unit, if it is long.
        """
        return WorkAttempt(self, unit, every_s)

    async def keep_running(
        self, unit: str, run: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run an endless task until it returns or is cancelled, and restart it after failures.

        A retryable `DistributedLogError` is a failure, too, because the task should have handled it. Others
        pass.
        """
        has_failed = False
        while True:
            with self.attempt(unit) as attempt:
                attempt.contains_retryable = True
                if has_failed:
                    await self._run_until_recovered(unit, run, args)
                else:
                    await run(*args)
            if not attempt.failed:
                return
            has_failed = True
            await trio.sleep(self.retry_delay_s(unit))

    async def keep_running_started(
        self,
        unit: str,
        run: Callable[..., Awaitable[object]],
        *args: object,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run an endless task as `keep_running` does, for ``await nursery.start(…)``.

        A failure before the task has started passes.
        """
        status = _StartedOnce(task_status)

        async def run_again(*args: object) -> None:
            try:
                await run(*args, task_status=status)
            except Exception as error:
                if status.started_once:
                    raise
                unstarted.append(error)

        unstarted: list[Exception] = []
        await self.keep_running(unit, run_again, *args)
        if unstarted:
            raise unstarted[0]

    async def _run_until_recovered(
        self, unit: str, run: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> None:
        """Run a task that has failed before, and record when it has recovered."""

        async def watch() -> None:
            await trio.sleep(RECOVERED_AFTER_S)
            self.record_success(unit)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await run(*args)
            nursery.cancel_scope.cancel()

    def record_failure(self, unit: str, error: BaseException, every_s: float = 0.0) -> None:
        """Record a failure of a unit, and log it if it is the first one in a row."""
        kind = type(error).__name__
        self._drop_stale()
        if unit not in self._failing and len(self._failing) >= UNITS_MAX:
            unit = OTHER_WORK
        failing = self._failing.get(unit)
        if failing is None:
            failing = self._failing[unit] = _FailingUnit(kind)
            WORK_FAILED.emit(
                log, "%s failed, and is tried again: %r", unit, error, unit=unit, error=kind
            )
        failing.error = kind
        failing.tries += 1
        now = trio.current_time()
        failing.retry_at = now + failing.backoff.next_s()
        failing.drop_at = failing.retry_at + max(DROP_AFTER_S, 2 * every_s)

    def record_success(self, unit: str) -> None:
        """Record that a unit has succeeded."""
        failing = self._failing.pop(unit, None)
        if failing is not None:
            WORK_RECOVERED.emit(
                log,
                "%s works again, after %d failed tries",
                unit,
                failing.tries,
                unit=unit,
                tries=failing.tries,
            )

    def _drop_stale(self) -> None:
        now = trio.current_time()
        for unit in [unit for unit, failing in self._failing.items() if failing.drop_at <= now]:
            del self._failing[unit]


class WorkAttempt:
    """One attempt of a unit. `WorkFailures.attempt` makes it."""

    __slots__ = ("_every_s", "_failures", "_unit", "contains_retryable", "failed")

    def __init__(self, failures: WorkFailures, unit: str, every_s: float) -> None:
        self._failures = failures
        self._unit = unit
        self._every_s = every_s
        self.contains_retryable = False
        """Whether a retryable `DistributedLogError` is a failure of the unit."""
        self.failed = False

    def __enter__(self) -> "WorkAttempt":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self._failures.record_success(self._unit)
            return False
        leaves = flatten_group(error)
        non_exceptions = [leaf for leaf in leaves if not isinstance(leaf, Exception)]
        expected = [leaf for leaf in leaves if self._is_expected(leaf)]
        unexpected = [
            leaf for leaf in leaves if leaf not in non_exceptions and leaf not in expected
        ]
        if unexpected:
            self.failed = True
            self._failures.record_failure(self._unit, unexpected[0], self._every_s)
        if non_exceptions:
            if not unexpected:
                return False
            assert isinstance(error, BaseExceptionGroup), "several leaves come in a group"
            remaining_group = error.split(lambda leaf: leaf in unexpected)[1]
            assert remaining_group is not None, "it holds what is left"
            raise remaining_group
        if not expected:
            return True
        worst = next((leaf for leaf in expected if not _is_retryable(leaf)), None)
        if worst is None and unexpected:
            return True  # the unexpected one is recorded
        if worst is None:
            worst = expected[0]
        if worst is error:
            return False
        raise worst

    def _is_expected(self, error: BaseException) -> bool:
        if not isinstance(error, DistributedLogError):
            return False
        return not (self.contains_retryable and error.retryable)


def flatten_group(error: BaseException) -> list[BaseException]:
    """Return the exceptions inside groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in flatten_group(inner)]
    return [error]


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, DistributedLogError) and error.retryable


class _FailingUnit:
    """A unit that fails."""

    __slots__ = ("backoff", "drop_at", "error", "retry_at", "tries")

    def __init__(self, error: str) -> None:
        self.error = error
        self.tries = 0
        self.backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        self.retry_at = 0.0
        """When it may be tried again."""
        self.drop_at = float("inf")


class _StartedOnce(Generic[T]):
    """Pass on the first ``started`` of a task that may run again."""

    def __init__(self, status: trio.TaskStatus[T]) -> None:
        self._status = status
        self.started_once = False

    def started(self, value: Any = None) -> None:
        """See `trio.TaskStatus`."""
        if not self.started_once:
            self.started_once = True
            self._status.started(value)
