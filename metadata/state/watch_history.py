"""The newest changes by revision, bounded in bytes: what watches resume from (pure; H29).

No part of snapshots: a node that was restored from one answers `Compacted` to older watches, and their
clients list anew, which they must be able to at any time. So nodes may differ in how far back they know.
"""

from collections import deque

from ...runtime.interfaces.errors import Compacted
from ..model.interface import WatchEvent

HISTORY_BYTES_MAX = 8 * 1024 * 1024
EVENT_BYTES = 120
"""What an event is counted as beside its key and value."""


class WatchHistory:
    """The events of the revisions after ``compacted_to``, each revision whole."""

    def __init__(self, bytes_max: int = HISTORY_BYTES_MAX, *, compacted_to: int = 0) -> None:
        self.compacted_to = compacted_to
        """Watches can begin after this revision, not before it."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changes: deque[tuple[int, tuple[WatchEvent, ...], int]] = deque()

    def append(self, revision: int, events: tuple[WatchEvent, ...]) -> None:
        """The changes of the next revision; the oldest are forgotten above the bound, never this one."""
        size = EVENT_BYTES * len(events)
        for event in events:
            size += len(event.item.key) + len(event.item.value)
        self._changes.append((revision, events, size))
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._changes) > 1:
            self.compacted_to, _, size = self._changes.popleft()
            self._bytes -= size

    def after(
        self, revision: int, start: bytes, end: bytes
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """The changes of start <= key < end after ``revision``, a revision at a time, oldest first.

        Raises `Compacted`.
        """
        if revision < self.compacted_to:
            raise Compacted(
                f"the changes after revision {revision} are gone, kept are those after"
                f" {self.compacted_to}: list, then watch from there"
            )
        changes = []
        for change_revision, events, _ in reversed(self._changes):
            if change_revision <= revision:
                break
            events_in_range = tuple(event for event in events if start <= event.item.key < end)
            if events_in_range:
                changes.append((change_revision, events_in_range))
        changes.reverse()
        return changes
