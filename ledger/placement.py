"""Choosing bookies for the slots of an ensemble: racks apart where that is possible (pure).

Chance is an argument: ``draw`` gives a number in [0, 1). Placement is a preference, never a promise: when
racks are few, bookies of one rack share a write set rather than that nothing is written.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .striping import Striping

Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may be chosen."""

    id: str
    rack: str = ""
    down: bool = False
    """Known, but not alive: may hold a slot that starts detached (H22b)."""


def choose_replacements(
    striping: Striping,
    kept: dict[int, str],
    slots: Sequence[int],
    candidates: Sequence[Candidate],
    draw: Draw,
    *,
    excluded: Collection[str] = (),
    racks: dict[str, str] | None = None,
) -> dict[int, str]:
    """A live bookie for each of ``slots`` as far as there are any: slot -> bookie id.

    ``kept`` are the slots that stay, with their bookies; ``racks`` their racks where known.
    """
    rack_of = dict(racks or {})
    rack_of.update({one.id: one.rack for one in candidates})
    taken = dict(kept)
    chosen: dict[int, str] = {}
    for slot in slots:
        used = set(taken.values())
        free = [
            one
            for one in sorted(candidates, key=lambda c: c.id)
            if not one.down and one.id not in used and one.id not in excluded
        ]
        if not free:
            break
        neighbours = _neighbours(striping, slot)
        near = [rack_of.get(taken[n], "") for n in neighbours if n in taken]
        fewest = min(near.count(one.rack) for one in free)
        best = [one for one in free if near.count(one.rack) == fewest]
        pick = best[int(draw() * len(best))]
        taken[slot] = chosen[slot] = pick.id
    return chosen


def choose_ensemble(
    striping: Striping, candidates: Sequence[Candidate], draw: Draw
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """An ensemble for a new ledger: the bookies by slot, and the slots that start detached.

    Slots without a live bookie get a known one that is down, while every write set keeps its ack quorum
    (H22b). None: not enough bookies for that.
    """
    size = striping.ensemble_size
    live = sum(not one.down for one in candidates)
    # Slots without a live bookie are spread: with E > Qw neighbours would share their write sets.
    empty = _spread(size, max(0, size - live), int(draw() * size))
    if not striping.ackable([slot for slot in range(size) if slot not in empty]):
        return None
    slots = [slot for slot in range(size) if slot not in empty]
    chosen = choose_replacements(striping, {}, slots, candidates, draw)
    down = sorted(one.id for one in candidates if one.down)
    if len(chosen) < len(slots) or len(down) < len(empty):
        return None
    for slot in empty:
        chosen[slot] = down.pop(int(draw() * len(down)))
    return tuple(chosen[slot] for slot in range(size)), tuple(sorted(empty))


def _neighbours(striping: Striping, slot: int) -> list[int]:
    """The other slots that share a write set with ``slot``."""
    size, reach = striping.ensemble_size, striping.write_quorum - 1
    near = {(slot + k) % size for k in range(-reach, reach + 1)}
    return sorted(near - {slot})


def _spread(size: int, count: int, start: int) -> list[int]:
    """``count`` of ``size`` slots, as far apart as can be."""
    return [(start + k * size // count) % size for k in range(count)] if count else []
