"""How a micro-batch's limit is shared among logs (pure).

In proportion to what each log has waiting, in whole entries. The log whose turn it is may take one entry
even where that is more than its share, so that every log gets on, however large its entries and however
long the others' queues are; a batch is then within its limit, give or take an entry.
"""

from collections.abc import Mapping


def shares(limit: int, backlog: Mapping[str, int]) -> dict[str, int]:
    """The limit in proportion to the backlog, both in records or both in bytes; never above the backlog.

    What rounding leaves goes to the largest remainders, and of equals to the first name.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    found = {name: waiting * limit // total for name, waiting in backlog.items()}
    left = limit - sum(found.values())
    for name in sorted(backlog, key=lambda name: (-(backlog[name] * limit % total), name))[:left]:
        found[name] += 1
    return found


def turn_of(turn: int, backlog: Mapping[str, int]) -> str | None:
    """Whose turn it is among the logs that have something waiting; None when none has."""
    waiting = sorted(name for name, number in backlog.items() if number > 0)
    return waiting[turn % len(waiting)] if waiting else None
