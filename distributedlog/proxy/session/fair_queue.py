"""Share a limited resource fairly, and choose the next owner (pure).

The first client must not get everything, but a single client should get most of it. A client may therefore
use as much as remains free, or a multiple of that. The next client may use the same part of the remainder.
A client that has nothing yet gets its request if enough is free.
"""

from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Item = TypeVar("Item")


def is_fair(held: int, requested: int, free: int, *, share_factor: int = 1) -> bool:
    """Whether an owner that holds ``held`` may get ``requested`` more of ``free``.

    Afterwards it holds at most ``share_factor`` times what remains free. An owner that holds nothing has no
    such limit.
    """
    return requested <= free and (not held or held + requested <= share_factor * (free - requested))


class FairQueue(Generic[Owner, Item]):
    """Items that wait for one of a fixed number of places. Owners take turns, and no owner gets all places.

    An item can be in the queue only once.
    """

    def __init__(self, places: int) -> None:
        self._free_places = places
        self._places_by_owner: dict[Owner, int] = {}
        """Places by owner, for owners that have any."""
        self._waiting: dict[Owner, dict[Item, None]] = {}
        """The owner whose turn is next comes first."""
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return self._count

    def add(self, owner: Owner, item: Item) -> None:
        """Add an item behind those of its owner."""
        self._waiting.setdefault(owner, {})[item] = None
        self._count += 1

    def discard(self, owner: Owner, item: Item) -> None:
        """Remove a waiting item. Idempotent."""
        items = self._waiting.get(owner)
        if items is not None and item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._waiting[owner]

    def acquire_next(self) -> tuple[Owner, Item] | None:
        """Return the next owner and item; None if no owner may get a place now.

        The owner has the place until `release`.
        """
        # Only owners that have a place can be skipped, so at most as many as there are places.
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
        """Free one place of an owner."""
        self._free_places += 1
        self._places_by_owner[owner] -= 1
        if not self._places_by_owner[owner]:
            del self._places_by_owner[owner]
