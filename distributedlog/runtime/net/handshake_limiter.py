"""When a server works on the next handshake: nodes at once, all others in turn, so many a second (H224).

A handshake is a millisecond of CPU that does not yield. A thousand clients that come back at one moment were
a second of it in one loop: heartbeats late, an election, and everybody comes back again. In turn they wait
some seconds, and the loop has nine tenths of its time for those who are there.

Who comes is not known before the handshake. But where it comes from is: hosts where nodes of the cluster
were met, as those that dialled or were dialled, go first. Of all others each host has one in the turn, so
that one machine that comes back for ever makes its own wait.
"""

from collections.abc import Callable

import trio

PER_S = 100
"""Of those who are not known to be nodes."""
HOSTS_MAX = 256
"""Of nodes; the one that was met first is forgotten first."""


class HandshakeLimiter:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._free_at = 0.0
        self._hosts: dict[str, None] = {}
        self._comers: dict[str, tuple[trio.Lock, list[int]]] = {}
        """Of a host from which somebody waits: whose turn it is among them, and how many they are."""
        self.waiting = 0

    def on_node(self, host: str) -> None:
        """A node of the cluster is there, by its certificate."""
        self._hosts.pop(host, None)
        self._hosts[host] = None
        if len(self._hosts) > HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    async def turn(self, host: str, check: Callable[[], None]) -> None:
        """Return when it is the turn of one who comes from there; what ``check`` raises ends its waiting.

        Who has gone while it waited takes no turn: else those who give up would keep all others from theirs.
        """
        if host in self._hosts:
            return
        turn_of_host, waiting = self._comers.setdefault(host, (trio.Lock(), [0]))
        self.waiting += 1
        waiting[0] += 1
        try:
            async with turn_of_host:
                check()
                async with self._lock:
                    check()
                    await trio.sleep_until(self._free_at)
                    check()
                    self._free_at = trio.current_time() + 1 / PER_S
        finally:
            self.waiting -= 1
            waiting[0] -= 1
            if not waiting[0]:
                del self._comers[host]
