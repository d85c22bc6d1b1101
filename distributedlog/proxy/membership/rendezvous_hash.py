"""Choose the proxy of a log by rendezvous hashing, and plan a balance of logs (pure).

Every client and proxy computes the same proxy without coordination. A balance moves logs so that all
proxies write equally many.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash


def rank_proxies(path: str, log: str, ids: Iterable[str]) -> list[str]:
    """Return the proxies in the order in which clients try them for a log.

    If a proxy is added or removed, only the logs move of which it is the first.
    """
    name = f"{path}\0{log}".encode()

    def weight(proxy_id: str) -> tuple[int, str]:
        return xxhash.xxh3_64_intdigest(name + b"\0" + proxy_id.encode()), proxy_id

    return sorted(ids, key=weight, reverse=True)


@dataclass(frozen=True, slots=True)
class LogMove:
    """A log that should move to another proxy."""

    path: str
    log: str
    owner: str
    """The ID of the proxy that has the log."""
    target: str
    """The ID of the proxy that should have it."""


def plan_moves(logs_by_proxy: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[LogMove]:
    """Plan the fewest moves after which the proxies' numbers of logs differ by at most one.

    Logs with the fewest producers move, because each producer sees a pause.

    Args:
        logs_by_proxy: The namespace, name and number of producers of each log, by the ID of each proxy that
            accepts logs.
    """
    counts = {proxy_id: len(logs) for proxy_id, logs in logs_by_proxy.items()}
    if not counts:
        return []
    even_share, remainder = divmod(sum(counts.values()), len(counts))
    # If an even share is impossible, the proxies with the most logs keep one more, so that nothing of
    # theirs moves.
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
