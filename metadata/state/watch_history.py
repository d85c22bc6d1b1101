"""The newest changes by revision, from which watches resume (pure; H29).

The history is limited in bytes and is not part of snapshots. A node that was restored from a snapshot
answers older watches with `Compacted`, and their clients list again, which they must be able to do at any
time. So the lengths of the histories of two nodes may differ.
"""

from collections import deque

from ...runtime.interfaces.errors import Compacted
from ..model.interface import WatchEvent

HISTORY_BYTES_MAX = 8 * 1024 * 1024
EVENT_BYTES = 120
"""Size of an event in addition to its key and value."""


class WatchHistory:
    """The events of the revisions after `compacted_to`, each revision complete."""

    def __init__(self, bytes_max: int = HISTORY_BYTES_MAX, *, compacted_to: int = 0) -> None:
        self.compacted_to = compacted_to
        """Oldest revision after which a watch can begin."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changes: deque[tuple[int, tuple[WatchEvent, ...], int]] = deque()

    def append(self, revision: int, events: tuple[WatchEvent, ...]) -> None:
        """Add the changes of the next revision.

        Above the limit, drop the oldest revisions but never this one.
        """
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
        """Return the changes of start <= key < end after ``revision``, grouped by revision, oldest first.

        Raises:
            Compacted: Changes after ``revision`` have been dropped.
        """
        if revision < self.compacted_to:
            raise Compacted(
                f"the changes after revision {revision} are no longer kept (the oldest revision for"
                f" a watch is {self.compacted_to}). List the range, then watch from its revision"
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
