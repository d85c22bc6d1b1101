"""What all that is done with a log is done with: the clients and clocks of its namespace, its own options."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from weakref import WeakSet

from ...metadata.model.interface import Metadata
from ...runtime.schedule.call_scheduler import CallScheduler, PeriodicChecks
from ..declarations.options import LogOptions
from ..interfaces.segment_store import SegmentEntryStore
from ..limits.memory_budget import MemoryBudget
from ..limits.recovery_semaphore import RecoverySemaphore
from ..limits.roll_semaphore import RollSemaphore
from .lease_session import LeaseSessions, Start
from .log_metrics import LogMeters
from .position_commits import PositionCommits
from .settings_watch import FollowedLog, SettingsWatch


@dataclass(frozen=True, slots=True)
class LogContext:
    """One a namespace, and one a log, which differs in the options. Made by `Namespace`."""

    metadata: Metadata
    ledgers: SegmentEntryStore
    lease_sessions: LeaseSessions
    recovery_semaphore: RecoverySemaphore
    start: Start
    """Runs a task of a writer or reader. Raises `AlreadyClosed` once the namespace is closed."""
    clock_ms: Callable[[], int]
    """ms since 1970, by the clock of this machine."""
    random: Random
    settings: SettingsWatch
    namespace: str
    """The path of the namespace: the names of its logs, and of those that were deleted, are under it."""
    owner: str
    """What this process is called, in locks and in errors."""
    options: LogOptions
    call_scheduler: CallScheduler
    """Sends for all writers."""
    segment_checks: PeriodicChecks
    """Looks whether segments should end, for all writers."""
    position_commits: PositionCommits
    """Writes what subscribers commit, for all of them."""
    idle_checks: PeriodicChecks
    """Looks who of those that are to say so has written nothing."""
    roll_semaphore: RollSemaphore
    """To end them for size or age."""
    memory_budget: MemoryBudget
    """What all writers hold that is not durable yet."""
    meters: LogMeters
    """Of the whole namespace."""
    unsettled_queues: WeakSet[Any]
    """Writers (`Pipeline`, which imports this module) whose records the namespace waits for at its end."""
    proxy_id: str = ""
    """Of the write proxy that this process is; "": none."""
    followed_log: FollowedLog | None = None
    """Of an open log: its options as they are now, where ``options`` has them as they were at its opening."""

    @property
    def current_options(self) -> LogOptions:
        """For what may change while a log is open."""
        return self.options if self.followed_log is None else self.followed_log.options
