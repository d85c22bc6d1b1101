"""Which proxy should have a log: rendezvous hashing, so that everybody finds the same one alone (pure)."""

from collections.abc import Iterable

import xxhash


def order(path: str, log: str, ids: Iterable[str]) -> list[str]:
    """The proxies in the order in which they are asked for a log, the first one first.

    When one comes or goes, only the logs move for which it is the first.
    """
    name = f"{path}\0{log}".encode()

    def weight(proxy_id: str) -> tuple[int, str]:
        return xxhash.xxh3_64_intdigest(name + b"\0" + proxy_id.encode()), proxy_id

    return sorted(ids, key=weight, reverse=True)
