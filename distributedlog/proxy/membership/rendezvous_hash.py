"""Which proxy should have a log (pure): rendezvous hashing, so that everybody finds the same one alone; and
which logs an operator moves so that all have as many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash


def rank_proxies(path: str, log: str, ids: Iterable[str]) -> list[str]:
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


def plan_moves(logs_by_proxy: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[LogMove]:
    """Which logs go where, so that no proxy has two more than another one; the fewest that do.

    ``owned``: of each proxy that takes logs, by id: namespace, name and producers of those that it has.
    Those with the fewest producers go, for each of these sees a pause.
    """
    counts = {proxy_id: len(logs) for proxy_id, logs in logs_by_proxy.items()}
    if not counts:
        return []
    even_share, remainder = divmod(sum(counts.values()), len(counts))
    # Who has most keeps one more than the others, where it cannot be even: then nothing of it moves.
    ranked = sorted(counts, key=lambda proxy_id: (-counts[proxy_id], proxy_id))
    target_counts = {
        proxy_id: even_share + (rank < remainder) for rank, proxy_id in enumerate(ranked)
    }
    receivers = [
        proxy_id for proxy_id in ranked for _ in range(target_counts[proxy_id] - counts[proxy_id])
    ]
    moves = []
    for proxy_id in ranked:
        moved_logs = sorted(logs_by_proxy[proxy_id], key=lambda log: (log[2], log[:2]))[
            : max(0, counts[proxy_id] - target_counts[proxy_id])
        ]
        moves += [LogMove(path, log, proxy_id, receivers.pop()) for path, log, _ in moved_logs]
    return moves
