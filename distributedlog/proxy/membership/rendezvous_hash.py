"""Which proxy should have a log (pure): rendezvous hashing, so that everybody finds the same one alone; and
which logs an operator moves so that all have as many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash


def order(path: str, log: str, ids: Iterable[str]) -> list[str]:
    """The proxies in the order in which they are asked for a log, the first one first.

    When one comes or goes, only the logs move for which it is the first.
    """
    name = f"{path}\0{log}".encode()

    def weight(proxy_id: str) -> tuple[int, str]:
        return xxhash.xxh3_64_intdigest(name + b"\0" + proxy_id.encode()), proxy_id

    return sorted(ids, key=weight, reverse=True)


@dataclass(frozen=True, slots=True)
class LogMove:
    """A log that another proxy should have."""

    path: str
    log: str
    owner: str
    """Who has it, by id,"""
    target: str
    """and who should."""


def balance(owned: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[LogMove]:
    """Which logs go where, so that no proxy has two more than another one; the fewest that do.

    ``owned``: of each proxy that takes logs, by id: namespace, name and producers of those that it has.
    Those with the fewest producers go, for each of these sees a pause.
    """
    counts = {one: len(logs) for one, logs in owned.items()}
    if not counts:
        return []
    least, above = divmod(sum(counts.values()), len(counts))
    # Who has most keeps one more than the others, where it cannot be even: then nothing of it moves.
    ranked = sorted(counts, key=lambda one: (-counts[one], one))
    share = {one: least + (rank < above) for rank, one in enumerate(ranked)}
    wanting = [one for one in ranked for _ in range(share[one] - counts[one])]
    moves = []
    for one in ranked:
        going = sorted(owned[one], key=lambda log: (log[2], log[:2]))[
            : max(0, counts[one] - share[one])
        ]
        moves += [LogMove(path, log, one, wanting.pop()) for path, log, _ in going]
    return moves
