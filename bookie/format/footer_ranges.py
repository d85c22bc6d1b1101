"""Which ids of which ledgers were written to some files, as their footers say (pure).

The index is asked for those alone, and not for all that it has: what of it is live in the files. Short gaps
are taken along: looking at a few runs more costs less than beginning anew after each.
"""

from collections.abc import Iterable

GAP_ENTRIES_MAX = 16
ID_MAX = (1 << 64) - 1

EntryRange = tuple[int, int, int]
"""Ledger, first and last id."""


class FooterRanges:
    """What the footers of some files have said so far."""

    def __init__(self) -> None:
        self._ranges_by_ledger: dict[int, list[list[int]]] = {}
        """First and last ids by ledger, in the order in which they were told."""
        self._range_count = 0

    def __len__(self) -> int:
        """How many there are, before those that were told apart are joined."""
        return self._range_count

    def add(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Rows of a footer: ledger, first id, offset, length, count, and whatever follows."""
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
        """By ledger and first id, disjoint."""
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
