"""Distinct byte strings in order, by `sortedcontainers` (pure).

A flat list moves half of its pointers for each insertion: with a million keys, 2,400 keys per second. The
library uses a list of short lists. It has no type hints, so only this module imports it.
"""

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList


class SortedKeys:
    """Distinct keys in byte order. They must not change during an iteration."""

    __slots__ = ("_keys", "add", "remove")

    def __init__(self) -> None:
        self._keys = SortedList()
        self.add = self._keys.add
        """Add a key that is not in the set."""
        self.remove = self._keys.remove
        """Remove a key. Raises `ValueError` if it is not in the set."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._keys)

    def between(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return the first ``limit`` keys with start <= key < end."""
        return list(islice(self._keys.irange(start, end, (True, False)), limit))

    def after(self, key: bytes, limit: int) -> list[bytes]:
        """Return the first ``limit`` keys after ``key``, which need not be in the set."""
        return list(islice(self._keys.irange(key, None, (False, True)), limit))
