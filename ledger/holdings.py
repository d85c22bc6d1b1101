"""Does a bookie hold what a closed ledger's record says? By its list of runs, no entry is read (pure)."""

from collections.abc import Sequence

from .metadata import NO_ENTRY, LedgerMetadata


def lacks(metadata: LedgerMetadata, bookie: str, ranges: Sequence[tuple[int, int]]) -> bool:
    """Is there an entry that ``bookie`` should hold and does not list?

    ``ranges``: stretches (first, count) that it holds, ascending.
    """
    assert metadata.last_entry is not None, "only of a closed ledger it is known"
    if metadata.last_entry == NO_ENTRY:
        return False
    for index, fragment in enumerate(metadata.ensembles):
        if bookie not in fragment.bookies:
            continue
        slot = fragment.bookies.index(bookie)
        fragment_end = metadata.fragment_end(index)
        stop = metadata.last_entry + 1
        if fragment_end is not None:
            stop = min(stop, fragment_end)
        wanted = metadata.striping.next_held(slot, fragment.first_entry)
        for first, count in ranges:
            if first > wanted:
                break  # it is in the gap before this stretch
            wanted = metadata.striping.next_held(slot, max(wanted, first + count))
        if wanted < stop:
            return True
    return False
