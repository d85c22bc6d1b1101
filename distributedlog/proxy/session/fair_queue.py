"""How much of what many share one of them may take, and who is next (pure).

Whoever asks first is not to have it all, and who is alone is to have most of it: so one may have as much as
stays free, or some times that, and each further one the same of what the others left. Who has nothing yet is
given something as long as anything is left.
"""

from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Item = TypeVar("Item")


def is_fair(held: int, requested: int, free: int, *, share_factor: int = 1) -> bool:
    """May one who has ``mine`` have ``more`` of what is ``left``? At most ``part`` times what stays then."""
    return requested <= free and (not held or held + requested <= share_factor * (free - requested))


class FairQueue(Generic[Owner, Item]):
    """Items that wait for one of so many places: their owners take turns, and none has all places.

    An item is in it once.
    """

    def __init__(self, places: int) -> None:
        self._free_places = places
        self._places_by_owner: dict[Owner, int] = {}
        """Places of each owner that has any."""
        self._waiting: dict[Owner, dict[Item, None]] = {}
        """The one whose turn it is first."""
        self._count = 0

    def __len__(self) -> int:
        """Items that wait."""
        return self._count

    def add(self, owner: Owner, item: Item) -> None:
        """One more waits, behind those of its owner."""
        self._waiting.setdefault(owner, {})[item] = None
        self._count += 1

    def discard(self, owner: Owner, item: Item) -> None:
        """It waits no more. Idempotent."""
        items = self._waiting.get(owner)
        if items is not None and item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._waiting[owner]

    def acquire_next(self) -> tuple[Owner, Item] | None:
        """Who is next, and has a place from now on until `give_back`; None: nobody may have one now."""
        # Only who has a place already is passed over: no more owners than there are places.
        for owner, items in self._waiting.items() if self._free_places else ():
            owner_places = self._places_by_owner.get(owner, 0)
            if is_fair(owner_places, 1, self._free_places):
                item = next(iter(items))
                del items[item], self._waiting[owner]
                if items:
                    self._waiting[owner] = items
                self._count -= 1
                self._free_places -= 1
                self._places_by_owner[owner] = owner_places + 1
                return owner, item
        return None

    def release(self, owner: Owner) -> None:
        """One of its places is free again."""
        self._free_places += 1
        self._places_by_owner[owner] -= 1
        if not self._places_by_owner[owner]:
            del self._places_by_owner[owner]
