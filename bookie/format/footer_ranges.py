"""Which ids of which ledgers were written to some files, as their footers say (pure).

The index is asked for those alone, and not for all that it has: what of it is live in the files. Short gaps
are taken along: looking at a few runs more costs less than beginning anew after each.
"""

from collections.abc import Iterable

GAP_IDS = 16
ID_MAX = (1 << 64) - 1

Span = tuple[int, int, int]
"""Ledger, first and last id."""


class FooterRanges:
    """What the footers of some files have said so far."""

    def __init__(self) -> None:
        self._of: dict[int, list[list[int]]] = {}
        """First and last ids by ledger, in the order in which they were told."""
        self._number = 0

    def __len__(self) -> int:
        """How many there are, before those that were told apart are joined."""
        return self._number

    def add(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Rows of a footer: ledger, first id, offset, length, count, and whatever follows."""
        of = self._of
        for ledger, first, _, _, count, *_ in rows:
            last = first + count - 1
            spans = of.get(ledger)
            if spans is None:
                of[ledger] = [[first, last]]
                self._number += 1
                continue
            newest = spans[-1]
            if newest[0] <= first <= newest[1] + GAP_IDS:
                if last > newest[1]:
                    newest[1] = last
            else:
                spans.append([first, last])
                self._number += 1

    def sorted(self) -> list[Span]:
        """By ledger and first id, disjoint."""
        found: list[Span] = []
        for ledger in sorted(self._of):
            first, last = -1, -1
            for low, high in sorted(self._of[ledger]):
                if first < 0:
                    first, last = low, high
                elif low <= last + GAP_IDS:
                    last = max(last, high)
                else:
                    found.append((ledger, first, min(last, ID_MAX)))
                    first, last = low, high
            found.append((ledger, first, min(last, ID_MAX)))
        return found
