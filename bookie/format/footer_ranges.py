"""The entry ranges that were written to some files, collected from their footers (pure).

To find the live extents of these files, only these ranges of the index are read, not the whole index. Short
gaps are included, because reading a few more extents is cheaper than another seek.
"""

from collections.abc import Iterable

GAP_ENTRIES_MAX = 16
ID_MAX = (1 << 64) - 1

EntryRange = tuple[int, int, int]
"""Ledger, first and last entry ID."""


class FooterRanges:
    """The entry ranges from the footers that were added so far."""

    def __init__(self) -> None:
        self._ranges_by_ledger: dict[int, list[list[int]]] = {}
        """First and last IDs by ledger, in the order of their addition."""
        self._range_count = 0

    def __len__(self) -> int:
        """Return the number of ranges before they are merged."""
        return self._range_count

    def add(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Add rows of a footer: ledger, first ID, offset, length, count and further columns."""
        ranges_by_ledger = self._ranges_by_ledger
        for ledger, first, _, _, count, *_ in rows:
            last = first + count - 1
            ledger_ranges = ranges_by_ledger.get(ledger)
            if ledger_ranges is None:
                ranges_by_ledger[ledger] = [[first, last]]
                self._range_count += 1
                continue
            last_range = ledger_ranges[-1]
            if last_range[0] <= first <= last_range[1] + GAP_ENTRIES_MAX:
                if last > last_range[1]:
                    last_range[1] = last
            else:
                ledger_ranges.append([first, last])
                self._range_count += 1

    def merged_ranges(self) -> list[EntryRange]:
        """Return disjoint ranges, sorted by ledger and first ID."""
        merged: list[EntryRange] = []
        for ledger in sorted(self._ranges_by_ledger):
            first, last = -1, -1
            for low, high in sorted(self._ranges_by_ledger[ledger]):
                if first < 0:
                    first, last = low, high
                elif low <= last + GAP_ENTRIES_MAX:
                    last = max(last, high)
                else:
                    merged.append((ledger, first, min(last, ID_MAX)))
                    first, last = low, high
            merged.append((ledger, first, min(last, ID_MAX)))
        return merged
