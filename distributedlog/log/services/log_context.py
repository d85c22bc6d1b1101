"""The clients, clocks and options that all operations on a log use."""

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
    """The context of a namespace, or of one log with separate options. `Namespace` creates it."""

    metadata: Metadata
    ledgers: SegmentEntryStore
    lease_sessions: LeaseSessions
    recovery_semaphore: RecoverySemaphore
    start: Start
    """Runs a task of a writer or reader. Raises `AlreadyClosed` after the namespace is closed."""
    clock_ms: Callable[[], int]
    """Returns the clock of this machine in ms since 1970."""
    random: Random
    settings: SettingsWatch
    namespace: str
    """The path of the namespace, which contains the names of its logs and of its deleted logs."""
    owner: str
    """The name of this process in locks and in errors."""
    options: LogOptions
    call_scheduler: CallScheduler
    """Sends entries for all writers."""
    segment_checks: PeriodicChecks
    """Checks for all writers whether their segments should end."""
    position_commits: PositionCommits
    """Stores the committed positions of all subscriptions."""
    idle_checks: PeriodicChecks
    """Finds idle writers that must add a keep-alive entry."""
    roll_semaphore: RollSemaphore
    """Limits concurrent rolls by size or age."""
    memory_budget: MemoryBudget
    """Limits the bytes of all writers that are not durable yet."""
    meters: LogMeters
    """The counters of the whole namespace."""
    unsettled_queues: WeakSet[Any]
    """The writers whose records the namespace waits for when it closes. (Typed as Any, because their
    module imports this one.)"""
    proxy_id: str = ""
    """The ID of this write proxy, or "" in other processes."""
    followed_log: FollowedLog | None = None
    """Only for an open log: its current options. ``options`` has those of the time when it was opened."""

    @property
    def current_options(self) -> LogOptions:
        """The options of which changes apply while a log is open."""
        return self.options if self.followed_log is None else self.followed_log.options
